"""Computes models' times from their bricks, and compares the results with the bars of `python -m harness bricks`.

    python benchmarks/bricks.py                  # 14 networks, a few minutes on one core
    python benchmarks/bricks.py --from FOLDER    # judge the folder of a finished `bricks`
    python benchmarks/bricks.py --fine-only      # three networks in bricks of at most three layers

The networks are the nine topologies of the onnx package and five networks from this project. Thirteen networks are
judged. ResNet-50 v1 is only measured. Three networks are measured again with bricks of three layers, which separate
many nodes that runtimes would fuse. If a bar is missed, the exit status is 4.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.explain.bricks.cut import cutting
from harness.explain.bricks.tables import construct
from harness.models.graph.onnx_file import read
from harness.models.manifest.lookup import load_model, made_models

RESULTS = Path(__file__).parent / "results"
BESIDE = "zoo/resnet50_v1"
INCEPTIONS = ("light/inception_v1", "light/inception_v2")


FINE = ("zoo/resnet50_v1.5", "zoo/mobilenet_v1", "light/inception_v1")
FINE_LAYERS = 3


class Row(NamedTuple):
    name: str
    value: float
    bar: str
    is_met: bool
    about: str


def rows(content: dict[str, Any]) -> Iterator[Row]:
    ratios = construct.ratios(content, "cpu_ns")
    judged = {name: ratio for name, ratio in ratios.items() if name != BESIDE}
    near = sum(1 for ratio in judged.values() if 0.90 <= ratio <= 1.10)
    each = ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())
    expected = len(made_models()) - 1
    is_whole = len(judged) == expected
    yield Row("near", near, f">= 10 of {expected} within 0.90-1.10", is_whole and near >= 10, each)
    far = max((abs(r - 1) for r in judged.values()), default=1.0)
    inside = is_whole and all(0.80 <= ratio <= 1.25 for ratio in judged.values())
    error = construct.errors(judged)
    mean = f"mean error {error.mean:.1%}, worst {error.worst}" if error else "nothing was measured"
    yield Row("all", far, "all within 0.80-1.25", inside, mean)
    saved = construct.saving(content, "cpu_ns")
    factor = saved.factor if saved else 0.0
    yield Row("saving", factor, ">= 2", factor >= 2, "all models once / all bricks once")


def fallback(most: int = 6) -> Iterator[Row]:
    for name in INCEPTIONS:
        model = load_model(name)
        model.obtain(("onnx",), print)
        path = model.path(("onnx",))
        assert path is not None
        graph = read(path)
        ours, published = (
            construct.fallback_share([len(piece) for piece in rule(graph, most)], most)
            for rule in (cutting.by_groups, cutting.by_chains)
        )
        about = f"{name}, at most {most} layers; by the published rule {published:.1%}"
        yield Row("fallback", ours, "<= 0.10", ours <= 0.10, about)


def fine(content: dict[str, Any]) -> Iterator[Row]:
    """Yields a row for each network in FINE. content: the networks' bricks.json, with bricks of FINE_LAYERS layers."""
    ratios = construct.ratios(content, "cpu_ns")
    for name in FINE:
        ratio = ratios.get(name, 0.0)
        bar = f"0.80-1.25, {FINE_LAYERS} layers"
        yield Row("fine", ratio, bar, 0.80 <= ratio <= 1.25, name)


def measured(models: Sequence[str], rounds: int, *options: str) -> Path:
    """Measures in a new folder with an empty database, so that every brick is measured."""
    folder = Path(tempfile.mkdtemp(prefix="harness-bricks-")) / "run"
    database = folder.with_name("bricks.sqlite")
    words = [*models, "--out", str(folder), "--database", str(database)]
    words += ["--rounds", str(rounds), *options]
    subprocess.run([sys.executable, "-P", "-m", "harness", "bricks", *words], check=True)
    return folder


def _content(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "bricks.json").read_text(encoding="utf-8"))
    return content


def _kept(content: dict[str, Any]) -> dict[str, Any]:
    return {
        "machine": content["machine"],
        "version": content["version"],
        "rounds": content["rounds"],
        "most_layers": content["most_layers"],
        "doubts": list(construct.busy(content)),
        "ratios": {c: construct.ratios(content, c) for c in ("cpu_ns", "wall_ns")},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--from", dest="folder", type=Path, metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=8, help="rounds of `bricks` (default 8)")
    parser.add_argument(
        "--fine-only",
        action="store_true",
        help="measure only the networks in bricks of three layers",
    )
    options = parser.parse_args()
    found, kept = list[Row](), dict[str, Any]()
    if not options.fine_only:
        folder = options.folder or measured(made_models(), options.rounds)
        content = _content(folder)
        found += [*rows(content), *fallback()]
        kept |= _kept(content)
    if options.folder is None:
        content = _content(measured(FINE, options.rounds, "-G", str(FINE_LAYERS)))
        found += fine(content)
        kept[f"at_most_{FINE_LAYERS}_layers"] = _kept(content)
    for row in found:
        state = "met" if row.is_met else "missed"
        print(f"{row.name:<10}{row.value:>8.3f}  {row.bar:<32}{state:<8}{row.about}")
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({**kept, "rows": [row._asdict() for row in found]}, indent=2) + "\n"
    name = "bricks-fine.json" if options.fine_only else "bricks.json"
    (RESULTS / name).write_text(text, encoding="utf-8")
    return 0 if all(row.is_met for row in found) else 4


if __name__ == "__main__":
    sys.exit(main())
