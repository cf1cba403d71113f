"""Builds a checkout with the structure of power-dev, with a client and a checker made for the tests."""

import hashlib
import json
from pathlib import Path

# The script imitates the real client as far as the harness uses that client: it has the same options and log lines,
# makes the run twice, and leaves the same files. Everything that would need a director is made up; spl.txt contains 50
# W for the whole run.
SESSION = """
import argparse, json, logging, re, shutil, subprocess
from datetime import datetime, timedelta
from pathlib import Path

logging.basicConfig(level=logging.INFO, format="client %(asctime)s [%(levelname)s] %(message)s")
parser = argparse.ArgumentParser()
for name in ("addr", "port", "ntp", "label", "run-workload", "loadgen-logs", "output"):
    parser.add_argument(f"--{name}", required=True)
parser.add_argument("--no-timestamp-path", action="store_true", required=True)
options = parser.parse_args()
out, session = Path(options.output), f"2026-11-21_10-04-11_{options.label}"
(out / "power").mkdir(parents=True)
seen = set()
for mode, folder in (("ranging", "ranging"), ("testing", "run_1")):
    logging.info(f"Running workload in {mode} mode")
    logging.warning("the stand-in has no director") if mode == "ranging" else None
    subprocess.run(options.run_workload, shell=True, check=True)
    (detail,) = set(Path(options.loadgen_logs).rglob("mlperf_log_detail.txt")) - seen
    seen.add(detail)
    (out / folder).mkdir()
    for name in ("mlperf_log_detail.txt", "mlperf_log_summary.txt"):
        shutil.copy(detail.with_name(name), out / folder)
    times = re.findall(r"power_(?:begin|end)\\D+([-\\d]+ [:.\\d]+)", detail.read_text())
    begin, end = (datetime.strptime(t, "%m-%d-%Y %H:%M:%S.%f") for t in times[:2])
    lines = []
    for n in range(1, 5):
        at = (begin + (end - begin) * n / 5).strftime("%m-%d-%Y %H:%M:%S.%f")
        lines.append(f"Time,{at},Watts,50.0,Volts,230.0,Amps,0.3,PF,0.9,Mark,{session}_{mode}\\n")
    (out / folder / "spl.txt").write_text("".join(lines))
(out / "run_1" / "ptd_out.txt").write_text("Analyzer 1:\\n")
for name in ("client.json", "client.log", "server.json", "server.log", "ptd_logs.txt"):
    (out / "power" / name).write_text(json.dumps({"session_name": session}))
logging.info("Successful exit")
"""

ACCEPTS = "raise SystemExit(0)\n"
REFUSES = """
import logging
logging.basicConfig(level=logging.INFO)
logging.info("[x] Check client sources checksum")
logging.error("[ ] Check UUID")
logging.error("\\t'client uuid' is not equal.\\n")
raise SystemExit(1)
"""


def checkout(folder: Path, client: str = SESSION, checker: str = ACCEPTS) -> Path:
    """Writes the checkout with checksums of its sources, so that it counts as complete."""
    for name, text in (
        ("ptd_client_server/client.py", client),
        ("ptd_client_server/lib/__init__.py", ""),
        ("compliance/check.py", checker),
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    sources = {
        name: hashlib.sha1((folder / "ptd_client_server" / name).read_bytes()).hexdigest()
        for name in ("client.py", "lib/__init__.py")
    }
    older = dict.fromkeys(sources, "0" * 40)
    sums = folder / "compliance" / "sources_checksums.json"
    sums.write_text(json.dumps([older, sources]))
    return folder
