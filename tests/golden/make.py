"""Makes the golden logs again for a new LoadGen; run it with `python tests/golden/make.py`.

<scenario>/performance and /accuracy: logs of real runs, without the long lines that carry no information
(`loadgen_file_sha1`, `loaded_qsl_set`), and the journal as completions.npz. early_stopping.json: LoadGen's verdicts on
runs of known length with a known number of late queries.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from harness.loadgen.logs import ACCURACY, DETAIL, SUMMARY, read_detail

HERE = Path(__file__).parent
RUNS = {
    "single-stream": "--queries 700",
    "multi-stream": "--queries 662",
    "server": "--queries 700 --target-qps 2000 --instances 2",
    "offline": "--queries 500 --instances 2",
}
EARLY_STOPPING = (
    *[("SingleStream", n, 0) for n in (44, 63, 64, 90, 197, 700, 2010)],
    *[("MultiStream", n, 0) for n in (459, 661, 662, 838, 2010)],
    *[("Server", n, late) for n, late in ((458, 0), (459, 0), (661, 1), (662, 1), (700, 2))],
    *[("Server", n, late) for n, late in ((2009, 10), (2010, 10), (2010, 11), (3304, 20))],
)


def main() -> None:
    for scenario, options in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            _harness(scenario, options, out)
            _keep(out, HERE / scenario)
    found = [_early_stopping(*run) for run in EARLY_STOPPING]
    (HERE / "early_stopping.json").write_text(json.dumps(found, indent=1) + "\n")


def _harness(scenario: str, options: str, out: Path) -> None:
    fixed = f"--dataset {HERE / 'tiny.py'}:Tiny --out {out} --scenario {scenario}"
    subprocess.run(
        [sys.executable, "-m", "harness", *fixed.split(), *options.split()],
        cwd=HERE.parent.parent,
        check=True,
    )


def _keep(run: Path, golden: Path) -> None:
    for source, name in (
        (run / "performance/run_1", "performance"),
        (run / "accuracy", "accuracy"),
    ):
        (golden / name).mkdir(parents=True, exist_ok=True)
        lines = (source / DETAIL).read_text().splitlines(keepends=True)
        kept = [n for n in lines if "loadgen_file_sha1" not in n and "loaded_qsl_set" not in n]
        (golden / name / DETAIL).write_text("".join(kept))
    summary = (run / "performance/run_1" / SUMMARY).read_text()
    (golden / "performance" / SUMMARY).write_text(summary)
    (golden / "accuracy" / ACCURACY).write_text((run / "accuracy" / ACCURACY).read_text())
    with np.load(run / "performance/run_1/completions.npz") as columns:
        np.savez_compressed(golden / "performance/completions.npz", **columns)


def _early_stopping(scenario: str, queries: int, late: int) -> dict[str, object]:
    script = HERE.parent / "loadgen_run.py"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(script), folder, scenario, str(queries), str(late), "10000"]
        subprocess.run(command, check=True)
        log = read_detail(Path(folder) / DETAIL)
    return {
        "scenario": scenario,
        "queries": log.get("result_query_count"),
        "late": log.get("result_overlatency_query_count", 0),
        "met": log.get("early_stopping_met"),
        "text": log.get("early_stopping_result"),
    }


if __name__ == "__main__":
    main()
