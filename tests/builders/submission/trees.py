"""A submission that satisfies every rule, made from LoadGen's golden logs, and ways to break it.

closed/LabOrg: resnet in four scenarios with both audits. open/LabOrg: the lab's own model, mapped to resnet.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

from harness.loadgen.logs import ACCURACY, DETAIL, SUMMARY, read_detail
from harness.results.evidence.summary import differences, read_summary
from harness.submit.pack.pack import truncate
from harness.submit.rules.tree.rounds import load_round
from harness.submit.rules.tree.verify import TEST01, TEST04, verify
from tests.builders.support import GOLDEN

ROUND = load_round()
SYSTEM = "box"
CLOSED = f"closed/LabOrg/results/{SYSTEM}/resnet"
OPEN = f"open/LabOrg/results/{SYSTEM}/my-net"
SCENARIOS = {
    "SingleStream": "single-stream",
    "MultiStream": "multi-stream",
    "Server": "server",
    "Offline": "offline",
}
SAMPLES = 50_000
RUN_S, OFFLINE_S = 601, 655
PERFORMANCE = {
    "qsl_reported_total_count": SAMPLES,
    "qsl_reported_performance_count": 1024,
    "effective_performance_sample_count": 1024,
    "effective_accuracy_sample_count": SAMPLES,
    "effective_min_duration_ms": 600_000,
}
COUNTS = {"SingleStream": 9_704_768, "MultiStream": 3_900_000, "Server": 1_202_001, "Offline": 1}
"""Number of queries in a run that takes RUN_S with the golden logs' latencies."""

OF_SCENARIO: Mapping[str, Mapping[str, Any]] = {
    "SingleStream": {"effective_target_qps": 16_666.7},
    "MultiStream": {"effective_target_qps": 6_666.67},
    "Server": {
        "effective_target_qps": 2_000,
        "effective_target_latency_ns": 15_000_000,
        "result_scheduled_samples_per_sec": 2_000.0,
        "result_completed_samples_per_sec": 2_000.0,
    },
    "Offline": {
        "effective_target_qps": 100,
        "effective_samples_per_query": 66_000,
        "effective_min_sample_count": 66_000,
        "generated_samples_per_query": 66_000,
        "result_samples_per_second": 100.763,
    },
}
"""Changes that scale the golden runs to 600 s and keep rates, counts and times consistent."""

USER_CONF = {
    "SingleStream": "*.SingleStream.target_latency = 0.06\n",
    "MultiStream": "*.MultiStream.target_latency = 0.15\n",
    "Server": "*.Server.target_qps = 2000.000000\n",
    "Offline": "*.Offline.target_qps = 100\n",
}
TEST01_ROWS = 4096
ACCURACY_RUN = {
    "qsl_reported_total_count": SAMPLES,
    "qsl_reported_performance_count": 1024,
    "effective_performance_sample_count": 1024,
    "effective_accuracy_sample_count": SAMPLES,
}
AUDIT = {
    TEST01: {
        "effective_accuracy_log_rng_seed": 720381539243781796,
        "effective_accuracy_log_sampling_target": 4096,
    },
    TEST04: {
        "effective_performance_issue_same": True,
        "effective_performance_issue_same_index": 3,
    },
}
SYSTEM_JSON = {
    **dict.fromkeys(ROUND.system_keys.required, "N/A"),
    "division": "closed",
    "submitter": "LabOrg",
    "status": "available",
    "system_name": "box",
    "system_type": "edge",
    "number_of_nodes": "1",
    "host_processors_per_node": "2",
    "host_processor_core_count": "32",
    "accelerators_per_node": "0",
}
MEASUREMENTS = dict.fromkeys(ROUND.measurement_keys, "N/A")


def log_line(line: str, changes: Mapping[str, Any]) -> str:
    """Returns a line of a detail log, with a new value if its key is in `changes`."""
    match = re.match(r':::MLLOG \{"key": "([^"]+)", "value": ', line)
    if match is None or match[1] not in changes:
        return line
    entry = json.loads(line.removeprefix(":::MLLOG "))
    return ":::MLLOG " + json.dumps(entry | {"value": changes[match[1]]})


def changed_log(text: str, changes: Mapping[str, Any]) -> str:
    """changes: new values by key; a change to an effective setting also changes the requested setting."""
    named = dict(changes)
    for key, value in changes.items():
        if key.startswith("effective_"):
            name = key.removeprefix("effective_")
            for prefix in ("", "single_stream_", "multi_stream_", "server_"):
                named.setdefault(f"requested_{prefix}{name}", value)
    return "\n".join(log_line(line, named) for line in text.splitlines()) + "\n"


def another_run(text: str, name: str) -> str:
    """Returns the log that a second run on the same system would write. The log is always the same for a given name."""
    number = crc32(name.encode())
    at = datetime(2026, 11, 21) + timedelta(seconds=number % 80_000)  # noqa: DTZ001 - only text
    text = re.sub(r'"pid": \d+', f'"pid": {1000 + number % 50_000}', text)
    changes: dict[str, Any] = {"test_datetime": f"{at.isoformat()}Z"}
    for key in ("result_min_latency_ns", "result_min_query_latency_ns"):
        if least := re.search(rf'"{key}", "value": (\d+)', text):
            changes[key] = int(least[1]) - number % 10_000
    return changed_log(text, changes)


def _length(text: str, scenario: str) -> dict[str, Any]:
    """Returns the times and counts of a run that takes about 600 s."""
    begin = re.search(r'"power_begin", "value": "([^"]+)"', text)
    assert begin is not None
    form = "%m-%d-%Y %H:%M:%S.%f"
    seconds = OFFLINE_S if scenario == "Offline" else RUN_S
    end = datetime.strptime(begin[1], form) + timedelta(seconds=seconds)  # noqa: DTZ007 - only text
    count = COUNTS[scenario]
    latencies = {}
    if scenario == "Offline":
        found = dict(re.findall(r'"(result_[\w.]+_latency_ns)", "value": (\d+)', text))
        longest = int(found["result_max_latency_ns"])
        latencies = {key: int(ns) * OFFLINE_S * 10**9 // longest for key, ns in found.items()}
    stopping = re.search(r'"early_stopping_result", "value": "([^"]*)"', text)
    assert stopping is not None
    return {
        "power_end": end.strftime(form)[:-3],
        "result_query_count": count,
        "generated_query_count": count,
        "early_stopping_result": re.sub(r"queries \(\d+\)", f"queries ({count})", stopping[1]),
        **latencies,
    }


def _name(folder: Path) -> str:
    """Returns the run's name within its tree."""
    return "/".join(folder.parts[-5:])


def write_performance_logs(folder: Path, scenario: str, more: Mapping[str, Any]) -> None:
    golden = GOLDEN / SCENARIOS[scenario] / "performance"
    folder.mkdir(parents=True)
    text = another_run((golden / DETAIL).read_text(), _name(folder))
    changes = {**PERFORMANCE, **OF_SCENARIO[scenario], **_length(text, scenario), **more}
    (folder / DETAIL).write_text(changed_log(text, changes))
    write_summary(folder, (golden / SUMMARY).read_text())


def write_summary(folder: Path, text: str) -> None:
    """Writes a summary that repeats the folder's detail log. text: a summary of the same scenario."""
    for line, _, value in differences(read_summary(text), read_detail(folder / DETAIL)):
        shown = value
        if isinstance(value, bool):
            shown = ("Yes" if value else "NO") if "satisfied" in line else int(value)
        text = re.sub(rf"(?m)^(\s*{re.escape(line)}\s*: ?).*$", rf"\g<1>{shown}", text)
    write(folder / SUMMARY, text)


@cache
def accuracy_log(count: int, answer: str = "0800000000000000") -> str:
    rows = (f'{{ "seq_id" : {i}, "qsl_idx" : {i}, "data" : "{answer}" }}' for i in range(count))
    return "[\n" + ",\n".join(rows) + "\n]\n"


def write_accuracy_logs(folder: Path, scenario: str) -> None:
    golden = GOLDEN / SCENARIOS[scenario] / "accuracy"
    folder.mkdir(parents=True)
    text = another_run((golden / DETAIL).read_text(), _name(folder))
    (folder / DETAIL).write_text(changed_log(text, ACCURACY_RUN))
    (folder / SUMMARY).write_text(
        "\nNo warnings encountered during test.\n\nNo errors encountered during test.\n"
    )


def _accuracy(folder: Path, scenario: str, raw: Path) -> None:
    write_accuracy_logs(folder, scenario)
    digest = truncate(raw, folder / ACCURACY, ROUND)
    score = "accuracy=76.700%, good=38350, total=50000"
    (folder / "accuracy.txt").write_text(f"{score}\n\nhash={digest}\n")


def _audit(scenario: Path, name: str, raw: Path, answers: Path) -> None:
    folder = scenario / name
    run = folder / "performance" / "run_1"
    write_performance_logs(run, scenario.name, AUDIT[name])
    (run / ACCURACY).write_text(answers.read_text())
    found = verify(name, scenario / "performance" / "run_1", raw.parent, run, "int64")
    assert found.passed, found.texts
    for file, text in found.texts.items():
        (folder / file).write_text(text)
    if name == TEST01:
        (folder / "accuracy").mkdir()
        digest = truncate(answers, folder / "accuracy" / ACCURACY, ROUND)
        text = f"accuracy=76.001%, good=3113, total=4096\n\nhash={digest}\n"
        (folder / "accuracy" / "accuracy.txt").write_text(text)
    (run / ACCURACY).unlink()


def _scenario(folder: Path, raw: Path, answers: Path | None) -> None:
    write_performance_logs(folder / "performance" / "run_1", folder.name, {})
    _accuracy(folder / "accuracy", folder.name, raw)
    for name in (TEST01, TEST04) if answers is not None else ():
        assert answers is not None
        _audit(folder, name, raw, answers)
    (folder / "measurements.json").write_text(json.dumps(MEASUREMENTS))
    (folder / "user.conf").write_text(USER_CONF[folder.name])
    (folder / "README.md").write_text("python -m harness\n")


def build(root: Path, raw: Path) -> Path:
    """Builds the tree at `root`. raw: an empty folder for the untruncated accuracy logs."""
    whole, some = raw / ACCURACY, raw / "some.json"
    whole.write_text(accuracy_log(SAMPLES))
    some.write_text(accuracy_log(TEST01_ROWS))
    for division, model in (("closed", "resnet"), ("open", "my-net")):
        top = root / division / "LabOrg"
        for scenario in SCENARIOS if division == "closed" else ("SingleStream", "Offline"):
            folder = top / "results" / SYSTEM / model / scenario
            folder.mkdir(parents=True)
            _scenario(folder, whole, some if division == "closed" else None)
        for name in ("systems", "src"):
            (top / name).mkdir()
        both = "datacenter,edge" if division == "closed" else "edge"
        described = SYSTEM_JSON | {"division": division, "system_type": both}
        (top / "systems" / f"{SYSTEM}.json").write_text(json.dumps(described, indent=1))
        (top / "src" / "README.md").write_text("mlperf-harness\n")
    (root / "closed/LabOrg/calibration.md").write_text("No calibration: float32.\n")
    (root / "open/LabOrg/model_mapping.json").write_text('{"my-net": "resnet"}\n')
    return root


def copy(golden: Path, to: Path) -> Path:
    """Copies the golden tree to break it; the copied files are links to the golden files, so `write` replaces them."""
    return shutil.copytree(golden, to, copy_function=os.link)


def write(path: Path, content: str | bytes) -> None:
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


Mutation = Callable[[Path], None]


def log(path: str, **changes: Any) -> Mutation:
    """Changes values in a detail log and its summary. Keys are LoadGen's keys, with `__` for each dot."""

    def mutate(root: Path) -> None:
        file = root / path / DETAIL
        named = {key.replace("__", "."): value for key, value in changes.items()}
        before = file.read_text()
        after = changed_log(before, named)
        assert after != before, f"{path} has none of {list(named)}"
        write(file, after)
        summary = file.with_name(SUMMARY)
        if summary.is_file():
            write_summary(summary.parent, summary.read_text())

    return mutate


def put(path: str, content: str | bytes) -> Mutation:
    return lambda root: write(root / path, content)


def sub(path: str, pattern: str, to: str) -> Mutation:
    """Replaces the first match in a text file."""

    def mutate(root: Path) -> None:
        before = (root / path).read_text()
        after = re.sub(pattern, to, before, count=1, flags=re.MULTILINE)
        assert after != before, f"{path}: nothing to replace"
        write(root / path, after)

    return mutate


def drop(path: str) -> Mutation:
    def mutate(root: Path) -> None:
        if (root / path).is_dir():
            shutil.rmtree(root / path)
        else:
            (root / path).unlink()

    return mutate


def value(path: str, **changes: Any) -> Mutation:
    """Changes values in a JSON object; None removes the key."""

    def mutate(root: Path) -> None:
        named = {key.replace("__", "-"): change for key, change in changes.items()}
        content = json.loads((root / path).read_text()) | named
        write(root / path, json.dumps({k: v for k, v in content.items() if v is not None}))

    return mutate


def swap(first: str, second: str) -> Mutation:
    def mutate(root: Path) -> None:
        a, b, spare = root / first, root / second, root / "spare"
        a.rename(spare)
        b.rename(a)
        spare.rename(b)

    return mutate


def copied(source: str, to: str) -> Mutation:
    def mutate(root: Path) -> None:
        if (root / to).is_dir():
            shutil.rmtree(root / to)
        shutil.copytree(root / source, root / to)

    return mutate


def all_of(*mutations: Mutation) -> Mutation:
    def mutate(root: Path) -> None:
        for mutation in mutations:
            mutation(root)

    return mutate


LAB, FREE = "closed/LabOrg", "open/LabOrg"
JSON = f"{LAB}/systems/{SYSTEM}.json"
SINGLE, MULTI = f"{CLOSED}/SingleStream", f"{CLOSED}/MultiStream"
SERVER, OFFLINE = f"{CLOSED}/Server", f"{CLOSED}/Offline"
RUN, ACC = "performance/run_1", "accuracy"

Fault = tuple[str, Mutation]
"""The code of the rule that must find the fault, and the function that makes the fault."""


def alike(code: str, mutations: Mapping[str, Mutation]) -> dict[str, Fault]:
    """Maps names to faults that the same rule must find."""
    return {name: (code, mutation) for name, mutation in mutations.items()}


def server(**changes: Any) -> Mutation:
    """Changes values in the log of the closed Server run; the functions below change the logs of the other scenarios."""
    return log(f"{SERVER}/{RUN}", **changes)


def offline(**changes: Any) -> Mutation:
    return log(f"{OFFLINE}/{RUN}", **changes)


def single(**changes: Any) -> Mutation:
    return log(f"{SINGLE}/{RUN}", **changes)


def multi(**changes: Any) -> Mutation:
    return log(f"{MULTI}/{RUN}", **changes)


def system(**changes: Any) -> Mutation:
    """Changes values in the description of the closed system."""
    return value(JSON, **changes)


def user_conf(scenario: str, line: str) -> Mutation:
    return put(f"{scenario}/user.conf", f"{line}\n")
