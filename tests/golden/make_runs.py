"""Makes the golden result folders again; run it with `python tests/golden/make_runs.py`.

runs/NAME/: the folder of a small real run, without metrics.prom and with neutral words for the machine.
runs/expected.json: what `check`, `report` and `compare` print for these folders.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.core.files import read_json
from harness.results import run_folder
from harness.results.compare import finished
from harness.results.compare.compare import compare
from harness.results.compare.report import lines
from harness.results.pages.report import report
from harness.results.recheck import agreed, check
from harness.results.seal import digests

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOLDERS = HERE / "runs"
EXPECTED = FOLDERS / "expected.json"

# The bound is wide enough for a busy machine; early stopping at p90 needs 64 queries.
_BOUND = "--slo p90=5s"
_CLOSED = f"--scenario server --concurrency 4 --queries 64 --mode performance {_BOUND}"
TINY = "tests.golden.tiny:Tiny"  # a dataset of 20 samples makes a short accuracy log
RUNS: Mapping[str, str] = {
    "server": f"--scenario server --target-qps 200 --queries 64 --max-batch 4 --dataset {TINY} {_BOUND}",
    "single-stream": "--scenario single-stream --queries 64 --mode performance",
    "offline": "--scenario offline --queries 64 --max-batch 4 --mode performance",
    "closed-loop": _CLOSED,
    "closed-loop-again": _CLOSED,
}
COMPARED = ("closed-loop", "closed-loop-again")
_HEADING = re.compile(r"<h[1-6][^>]*>(.*?)</h[1-6]>", re.DOTALL)


def main() -> None:
    with tempfile.TemporaryDirectory() as parent:
        for name, options in RUNS.items():
            out = Path(parent) / name
            command = [sys.executable, "-m", "harness", *options.split(), "--out", str(out)]
            subprocess.run([*command, "--no-report", "--no-metrics"], cwd=ROOT, check=True)
            shutil.rmtree(FOLDERS / name, ignore_errors=True)
            # Omits metrics.prom, because no verb reads this file of 300 kB.
            unread = shutil.ignore_patterns("metrics.prom")
            shutil.copytree(out, FOLDERS / name, ignore=unread)
            _make_neutral(FOLDERS / name, parent)
            digests.write(FOLDERS / name)
    EXPECTED.write_text(json.dumps(expected(), indent=1) + "\n", encoding="utf-8")


def _make_neutral(run: Path, parent: str) -> None:
    """Replaces folders and words that identify the machine, in all files."""
    environment = read_json(run / run_folder.ENVIRONMENT)
    machine, system = environment["machine"], environment["system"]
    neutral = {
        parent: "/golden",
        str(ROOT): "/harness",
        str(environment["harness"]["commit"]): "0" * 40,
        f'"{machine["host"]}"': '"machine"',
        machine["cpu"]: "processor",
        system["kernel"]: "kernel",
        system["os"]: "system",
    }
    for path in [p for p in run.rglob("*") if p.suffix in (".json", ".yaml")]:
        text = path.read_text(encoding="utf-8")
        for word, replaced in neutral.items():
            text = text.replace(word, replaced)
        path.write_text(text, encoding="utf-8")


def expected(folders: Path = FOLDERS) -> dict[str, Any]:
    """Returns the lines of `check` and `compare`, and the headings of each run's page."""
    before, after = ([finished.read(folders / name)] for name in COMPARED)
    compared = compare(before, after)
    return {
        "runs": {name: _of_run(folders / name) for name in RUNS},
        "compare": [line.replace(f"{folders}/", "") for line in lines(compared, [])],
    }


def _of_run(folder: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as parent:
        page = report(folder, Path(parent) / "page.html", standalone=False)
        headings = _HEADING.findall(page.read_text(encoding="utf-8"))
    agreement = agreed(folder).removeprefix(f"{folder}: ")
    return {"check": [*check(folder, [TINY]), agreement], "headings": headings}


if __name__ == "__main__":
    main()
