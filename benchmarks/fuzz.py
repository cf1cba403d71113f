"""Feeds broken files to the harness: none may cause a traceback or a hang.

python benchmarks/fuzz.py [--minutes 10] [--seed 0]
"""

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent.parent))

from harness.cli import main as cli
from harness.cli.run_options import from_file
from harness.core.config.run_config import make_config
from harness.errors import HarnessError
from harness.loadgen import user_conf
from harness.loadgen.logs import ACCURACY, DETAIL, AccuracyLogError
from harness.models.manifest.lookup import load_model
from harness.models.manifest.requirements import problems, read_environment
from harness.results.recheck import check
from harness.results.verdict.score import compute

ROOT = Path(__file__).parent.parent
HANG_S = 5.0
_EXAMPLES = 200
"""Examples of each target in one round; rounds continue with the next seed until time is up."""

_USER_CONF = """# a comment
*.Server.target_qps = 20
resnet50.Server.target_latency = 15
*.Offline.min_duration = 600000
"""

_MANIFEST = """
performance_count: 500
requires:
  frameworks: {onnxruntime: ">=1.20, <2"}
  ram_mb: 100
  cpu_flags: [sse2]
"""

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["server", "ort", "10s", "p99=1ms", "*.Server.x = 1", "!!python/x", "&a *a"]),
)
structures = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=12), inner, max_size=4)
    ),
    max_leaves=12,
)


@st.composite
def broken(draw: st.DrawFn, text: str) -> bytes:
    """`text` cut, repeated or overwritten in up to six places."""
    content = text.encode()
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(content)))
        end = draw(st.integers(start, min(len(content), start + 80)))
        kind = draw(st.integers(0, 4))
        if kind == 0:
            content = content[:start] + content[end:]
        elif kind == 1:
            content = content[:start] + draw(st.binary(max_size=12)) + content[end:]
        elif kind == 2:
            content = content[:end] + content[start:]
        elif kind == 3:
            content = content[:start]
        else:
            word = draw(
                st.sampled_from(["null", "-1", "1e999", "[]", "{}", '""', "nan", ":", "\n"])
            )
            content = content[:start] + word.encode() + content[end:]
    return content


@st.composite
def changed_yaml(draw: st.DrawFn, text: str) -> bytes:
    """The same document with some fields set to other values."""
    content = yaml.safe_load(text)
    for _ in range(draw(st.integers(1, 4))):
        place = content
        while isinstance(place, dict) and place and draw(st.booleans()):
            key = draw(st.sampled_from(sorted(place, key=str)))
            if not isinstance(place[key], dict):
                break
            place = place[key]
        if isinstance(place, dict):
            keys = st.sampled_from(sorted(place, key=str)) if place else st.text(max_size=8)
            place[draw(st.one_of(keys, st.text(max_size=8)))] = draw(structures)
    return yaml.safe_dump(content, allow_unicode=True).encode("utf-8", "replace")


def _like(text: str) -> st.SearchStrategy[bytes]:
    return st.one_of(
        broken(text),
        changed_yaml(text),
        structures.map(lambda x: yaml.safe_dump(x).encode("utf-8", "replace")),
        st.binary(max_size=200),
    )


class Fuzz:
    """Each target breaks one file of a real run's folder, and reads it."""

    def __init__(self, folder: Path) -> None:
        self.run = folder / "run"
        status = cli.main(
            [
                "--scenario", "server", "--backend", "null", "--target-qps", "2000",
                "--queries", "2010", "--quiet", "--out", str(self.run),
            ]
        )  # fmt: skip
        if status not in (0, 4):
            raise RuntimeError(f"the run to break ended with status {status}")
        self.folder = folder
        self.examples = dict.fromkeys(self.targets(), 0)
        self.slowest_s = 0.0

    def targets(self) -> Mapping[str, tuple[st.SearchStrategy[bytes], Callable[[bytes], None]]]:
        config = (self.run / "config.yaml").read_text(encoding="utf-8")
        manifest = (ROOT / "harness/models/shipped/digits.yaml").read_text(
            encoding="utf-8"
        ) + _MANIFEST
        files = {
            name: (self.run / name).read_text(encoding="utf-8")
            for name in (
                f"performance/run_1/{DETAIL}",
                "performance/run_1/run.json",
                "findings.json",
                "result.json",
            )
        }
        answers = (self.run / "accuracy" / ACCURACY).read_text(encoding="utf-8")
        return {
            "config.yaml": (_like(config), self._config),
            "manifest": (_like(manifest), self._manifest),
            "user.conf": (st.one_of(broken(_USER_CONF), st.binary(max_size=80)), self._user_conf),
            ACCURACY: (broken(answers), self._answers),
            **{name: (broken(text), partial(self._check, name)) for name, text in files.items()},
            "completions.npz": (
                broken("PK\x03\x04" + "x" * 200),
                partial(self._check, "performance/run_1/completions.npz"),
            ),
        }

    def _file(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        return path

    def _config(self, content: bytes) -> None:
        problems: list[str] = []
        values = from_file(self._file("config.yaml", content), problems)
        make_config(values, problems)

    def _manifest(self, content: bytes) -> None:
        """Looks for the model's files, and never fetches them."""
        model = load_model(str(self._file("manifest.yaml", content)))
        assert model.manifest is not None
        list(problems(model.name, model.manifest.requires, read_environment("onnxruntime")))
        assert model.steps.keys() == {spec.name for spec in model.inputs}
        assert model.may_have_to_be_obtained in (True, False)
        model.path(("onnx",))

    def _user_conf(self, content: bytes) -> None:
        text = user_conf.lint(self._file("user.conf", content))
        user_conf.compose(text, iter([("Server.target_qps", "5")]))

    def _answers(self, content: bytes) -> None:
        self._file(ACCURACY, content)
        labels: dict[int, object] = dict.fromkeys(range(500), 1)
        compute(self.folder, "top1", "int64", labels)

    def _check(self, name: str, content: bytes) -> None:
        path = self.run / name
        before = path.read_bytes()
        try:
            path.write_bytes(content)
            check(self.run)
        finally:
            path.write_bytes(before)

    def round(self, name: str, seed: int) -> None:
        strategy, read = self.targets()[name]

        @seeded(seed)
        @settings(
            max_examples=_EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def one(content: bytes) -> None:
            start = time.monotonic()
            try:
                read(content)
            except (HarnessError, AccuracyLogError):
                pass
            except ValueError as e:
                if name != ACCURACY:  # a metric may raise it; score.judge turns it into a reason
                    raise AssertionError(f"{name}: {content!r}") from e
            except Exception as e:
                raise AssertionError(f"{name}: {content!r}") from e
            took_s = time.monotonic() - start
            self.slowest_s = max(self.slowest_s, took_s)
            assert took_s < HANG_S, f"{name}: {took_s:.1f} s for {content!r}"
            self.examples[name] += 1

        one()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10.0, help="default 10")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first round (default 0)")
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    failures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as parent:
        fuzz = Fuzz(Path(parent))
        seed = options.seed
        while time.monotonic() < deadline:
            for name in fuzz.examples:
                if name in failures or time.monotonic() > deadline:
                    continue
                try:
                    fuzz.round(name, seed)
                except BaseException as e:
                    if isinstance(e, KeyboardInterrupt):
                        raise
                    failures[name] = e
                    traceback.print_exception(e)
            seed += 1
        shutil.rmtree(fuzz.run)
    for name, count in fuzz.examples.items():
        print(f"{name}: {count:,} files, {'FAILED' if name in failures else 'no traceback'}")
    print(f"slowest file {fuzz.slowest_s:.2f} s, seeds {options.seed} to {seed - 1}")
    return 4 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
