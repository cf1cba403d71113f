"""Checks the MACs, lower bounds and predictions of `advise` on generated models.

python benchmarks/advise.py [--models NAME,...] [--pairs N]

Each model is measured twice: at graph=all on one thread, for the lower bound, and at graph=basic, which `advise` can
improve. All layers come from a single database, which is empty at the start.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.command import HERE, ROOT, environment
from benchmarks.report import machine
from harness.explain.advise.checks import self_checks
from harness.explain.advise.layers.settings import Setting
from harness.models.graph import onnx_file
from harness.models.graph.flops import graph_costs, total
from harness.models.manifest.lookup import load_model

MODELS = ("zoo/resnet50_v1", "zoo/mobilenet_v1", "light/inception_v1")
MACS = {"zoo/resnet50_v1": (3.86e9, 3.87e9), "zoo/vgg16": (15.47e9, 15.47e9)}
"""Maps a model to the published range of its multiply-adds. A count outside the range by more than 1 % misses the bar.
"""

RATIO = (0.75, 1.02)
COVERED = 0.98
OVERHEAD = 0.05
_PARTS = ("weights", "storage", "operators", "checks")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--pairs", default="15")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    _add(rows, [_macs(model, *span) for model, span in MACS.items()])
    _add(rows, [_overhead("zoo/resnet50_v1")])
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models.split(","):
            _add(rows, _of(model, options.pairs, Path(folder)))
    return 4 if any(row["verdict"] == "missed" for row in rows) else 0


def _add(rows: list[dict[str, Any]], more: list[dict[str, Any]]) -> None:
    """Prints and saves each row immediately, because measuring all rows takes a long time."""
    for row in more:
        print(f"{row['row']:<44}{row['verdict']:<8}{row['found']}", flush=True)
    rows += more
    content = {"rows": rows, "machine": machine()}
    (HERE / "results/advise.json").write_text(json.dumps(content, indent=2, default=str) + "\n")


def _macs(name: str, low: float, high: float) -> dict[str, Any]:
    model = load_model(name)
    model.obtain(("onnx",), print)
    path = model.path(("onnx",))
    assert path is not None
    macs = total(graph_costs(onnx_file.read(path))).macs or 0
    found = f"{macs / 1e9:.3f} GMACs, published {low / 1e9:.2f} to {high / 1e9:.2f}"
    return _row(f"macs {name}", low * 0.99 <= macs <= high * 1.01, found)


def _overhead(name: str) -> dict[str, Any]:
    """Measures the CPU time that the harness's backend adds to a bare session, as a share of the call."""
    model = load_model(name)
    path = model.path(("onnx",))
    assert path is not None
    image = np.random.default_rng(0).standard_normal((1, 3, 224, 224), np.float32)
    found = self_checks.overhead(path, name, {"image": image}, Setting())
    bare = median(found["bare"]["cpu_ns"])
    pairs = zip(found["harness"]["cpu_ns"], found["bare"]["cpu_ns"], strict=True)
    share = median(ours - theirs for ours, theirs in pairs) / bare
    text = f"{share:+.2%} of {bare / 1e6:.1f} ms, {len(found['bare']['cpu_ns'])} pairs"
    return _row(f"overhead of the backend {name}", share < OVERHEAD, text)


def _of(model: str, pairs: str, folder: Path) -> list[dict[str, Any]]:
    best = _advised(model, "all", "graph,precision", pairs, folder)
    bound, covered = best["lower_bound"], best["coverage"]
    ratios = ", ".join(f"{c} {b['ratio']:.3f}" for c, b in bound["by_clock"].items())
    shares = f"layers {covered['layers_time']:.1%}, work {covered['work_time']:.1%} of kernel time"
    is_covered = min(covered["layers_time"], covered["work_time"]) >= COVERED
    basic = _advised(model, "basic", "graph", pairs, folder)
    return [
        _row(
            f"lower bound / measured {model}", RATIO[0] <= bound["ratio"] <= RATIO[1], ratios, best
        ),
        _row(f"coverage {model}", is_covered, shares),
        _top(model, basic),
        *(_other(model, now, one) for now in (best, basic) for one in now["advice"]),
    ]


def _top(model: str, found: Mapping[str, Any]) -> dict[str, Any]:
    top = found["top"]
    if top is None:
        return _row(f"top advice {model}", False, "none")
    return _row(f"top advice {model}", top["within"] is True, _realised(top), found)


def _other(model: str, now: Mapping[str, Any], one: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row without a bar, for the accuracy of any other prediction."""
    name = f"  {model} {now['now'].split()[0]}"
    return {"row": name, "verdict": "-", "found": _realised(one)}


def _realised(one: Mapping[str, Any]) -> str:
    realised = f"{one['realised']['gain']:+.1%}" if one["realised"] else "not measured"
    return (
        f"{one['change']}: predicted {one['gain']:+.1%}, realised {realised} ({one['clock']} time)"
    )


def _row(
    name: str, is_met: bool, found: str, run: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns a row. run: the content of advise.json, if the row uses its times."""
    row: dict[str, Any] = {"row": name, "verdict": "met" if is_met else "missed", "found": found}
    if run is not None:
        bounds = run["lower_bound"]["by_clock"].items()
        kept = {clock: {k: v for k, v in b.items() if k != "path"} for clock, b in bounds}
        row |= {"measured": run["measured"], "lower_bound": kept}
    return row


def _advised(model: str, graph: str, vary: str, pairs: str, folder: Path) -> dict[str, Any]:
    out = folder / f"{model.replace('/', '-')}-{graph}"
    command = [sys.executable, "-P", "-m", "harness", "advise", "--model", model, "--json"]
    words = [
        "--graph",
        graph,
        "--vary",
        vary,
        "--pairs",
        pairs,
        "--threads",
        "1",
        "--samples",
        "16",
    ]
    skipped = [word for part in _PARTS for word in ("--skip", part)]
    places = ["--out", str(out), "--database", str(folder / "layers.sqlite")]
    done = subprocess.run(
        [*command, *words, *skipped, *places],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    sys.exit(main())
