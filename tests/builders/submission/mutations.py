"""Single faults in a good submission: a name maps to the rule that must find the fault, and to the function that makes
the fault.

tests/submit/test_check.py looks for each fault with our validator; benchmarks/official_check.py runs MLCommons'
checkers on the same trees.
"""

import os
from pathlib import Path

from harness.loadgen.logs import ACCURACY, DETAIL, SUMMARY
from tests.builders.submission.contradictions import CONTRADICTIONS
from tests.builders.submission.power_mutations import POWER as SESSIONS
from tests.builders.submission.trees import (
    ACC,
    CLOSED,
    FREE,
    JSON,
    LAB,
    OFFLINE,
    OPEN,
    RUN,
    SERVER,
    SINGLE,
    SYSTEM,
    Fault,
    Mutation,
    accuracy_log,
    all_of,
    copied,
    drop,
    log,
    multi,
    offline,
    put,
    server,
    single,
    sub,
    swap,
    system,
    user_conf,
    value,
)


def link(path: str, to: str) -> Mutation:
    return lambda root: (root / path).symlink_to(to)


def rename(path: str, to: str) -> Mutation:
    def mutate(root: Path) -> None:
        (root / path).rename(root / to)

    return mutate


def folder(path: str) -> Mutation:
    return lambda root: (root / path).mkdir(parents=True)


def cut(path: str) -> Mutation:
    """Truncates the last line, as if the run had been killed."""

    def mutate(root: Path) -> None:
        content = (root / path).read_bytes()
        put(path, content[: len(content) - 40])(root)

    return mutate


def ended_early(path: str) -> Mutation:
    """Removes the last five lines, and leaves the other lines complete."""

    def mutate(root: Path) -> None:
        lines = (root / path).read_text().splitlines(keepends=True)
        put(path, "".join(lines[:-5]))(root)

    return mutate


def twice(path: str) -> Mutation:
    return lambda root: put(path, (root / path).read_bytes() * 2)(root)


def add_line(path: str, line: str) -> Mutation:
    return lambda root: put(path, (root / path).read_text() + line + "\n")(root)


def error_in(path: str) -> Mutation:
    line = (
        ':::MLLOG {"key": "error_runtime", "value": "something failed", "time_ms": 1.0, '
        '"namespace": "mlperf::logging", "event_type": "POINT_IN_TIME", "metadata": '
        '{"is_error": true, "is_warning": false, "file": "loadgen.cc", "line_no": 1, "pid": 1, '
        '"tid": 1}}'
    )
    return add_line(f"{path}/{DETAIL}", line)


def huge(path: str) -> Mutation:
    def mutate(root: Path) -> None:
        with (root / path).open("wb") as f:
            f.truncate(51 << 20)  # the file is sparse, so it needs no space on the disk

    return mutate


def pipe(path: str) -> Mutation:
    return lambda root: os.mkfifo(root / path)


TREE = {
    "file at the root": ("stray-file", put("results.csv", "a\n")),
    "folder at the root": ("stray-folder", put("preview/x.txt", "a\n")),
    "file beside submitters": ("stray-file", put("closed/notes.md", "a\n")),
    "no src": ("missing-folder", drop(f"{LAB}/src")),
    "empty src": ("empty-folder", drop(f"{LAB}/src/README.md")),
    "no calibration": ("missing-file", drop(f"{LAB}/calibration.md")),
    "broken link": ("special-file", link(f"{LAB}/src/x.py", "nowhere")),
    "link to a folder as a system": ("special-file", link(f"{LAB}/results/other", SYSTEM)),
    "link out of the tree": ("special-file", link(f"{LAB}/src/passwd", "/etc/passwd")),
    "circle of links": ("special-file", link(f"{LAB}/src/loop", "loop")),
    "pipe": ("special-file", pipe(f"{LAB}/src/pipe")),
    "dot file": ("bad-name", put(f"{LAB}/.DS_Store", "x")),
    "gitkeep": ("bad-name", put(f"{SERVER}/{RUN}/.gitkeep", "")),
    "space in a name": ("bad-name", put(f"{LAB}/src/my code.py", "x")),
    "name beyond ASCII": ("bad-name", put(f"{LAB}/src/modèle.py", "x")),
    "pycache": ("pycache", put(f"{LAB}/src/__pycache__/x.pyc", "x")),
    "empty folder": ("empty-folder", folder(f"{LAB}/src/empty")),
    "60 MB file": ("large-file", huge(f"{LAB}/src/weights.bin")),
    "energy sidecar": ("energy-sidecar", put(f"{SERVER}/energy.json", "{}")),
    "plots beside scenarios": ("unknown-scenario", put(f"{CLOSED}/plots/a.txt", "x")),
    "lower-case scenario": ("unknown-scenario", rename(OFFLINE, f"{CLOSED}/offline")),
    "folder beside performance": ("stray-folder", put(f"{SERVER}/logs/a.txt", "x")),
    "second run": ("stray-folder", copied(f"{SERVER}/{RUN}", f"{SERVER}/performance/run_2")),
    "extra file in run_1": ("stray-file", put(f"{SERVER}/{RUN}/completions.npz", "x")),
    "extra file in accuracy": ("stray-file", put(f"{SERVER}/{ACC}/run.json", "{}")),
    "system without results": ("unused-system", put(f"{LAB}/systems/old.json", "{}")),
    "results without a system": ("missing-file", drop(JSON)),
    "empty system": ("no-results", put(f"{LAB}/results/empty/x.txt", "x")),
    "unknown benchmark": ("unknown-benchmark", rename(CLOSED, f"{LAB}/results/{SYSTEM}/alexnet")),
    "missing scenario": ("missing-scenarios", drop(OFFLINE)),
    "mapping in closed": ("model-mapping", put(f"{LAB}/model_mapping.json", '{"a": "resnet"}')),
    "mapping to nothing": ("model-mapping", put(f"{FREE}/model_mapping.json", '{"my-net": "vgg"}')),
    "mapping is a list": ("bad-json", put(f"{FREE}/model_mapping.json", "[]")),
    "no mapping": ("unknown-benchmark", drop(f"{FREE}/model_mapping.json")),
    "network without its SUT": ("network-sut", rename("closed", "network")),
    "server beside LoadGen": (
        "same-machine",
        all_of(server(sut_name="Network SUT: a (same machine)"), rename("closed", "network")),
    ),
    "language model without tokens": (
        "token-latencies",
        put(f"{FREE}/model_mapping.json", '{"my-net": "llama2-70b-99.9"}'),
    ),
    "rehearsal mark": ("rehearsal", put("REHEARSAL.md", "x\n")),
}
SYSTEMS = {
    "system is not JSON": ("bad-json", put(JSON, "{")),
    "system is a list": ("bad-json", put(JSON, "[]")),
    "system is binary": ("bad-json", put(JSON, b"\xff\xfe\x00")),
    "system is NaN": ("bad-json", put(JSON, '{"a": NaN}')),
    "key missing": ("system-key", system(framework=None)),
    "key missing that may be empty": ("system-key", system(hw_notes=None)),
    "empty cooling": ("system-value", system(cooling="")),
    "accelerators as 0": ("system-value", system(accelerators_per_node=0)),
    "accelerators N/A": ("system-value", system(accelerators_per_node="N/A")),
    "nodes in words": ("system-value", system(number_of_nodes="1 node")),
    "status": ("system-value", system(status="shipping")),
    "system type": ("system-value", system(system_type="laptop")),
    "submitter of another": ("system-value", system(submitter="Other")),
    "division of another": ("system-value", system(division="open")),
    "division in capitals": ("system-value", system(division="Closed")),
    "network as a bool": ("system-value", system(is_network=True)),
    "network in closed": ("system-value", system(is_network="true")),
    "quote in the notes": ("system-value", system(sw_notes='the "fast" build')),
    "framework is a list": ("system-value", system(framework=["ort"])),
    "open in the datacenter": (
        "wrong-category",
        value(f"{FREE}/systems/{SYSTEM}.json", system_type="datacenter"),
    ),
    "network system in open": (
        "network-sut",
        value(f"{FREE}/systems/{SYSTEM}.json", is_network="true"),
    ),
    "broken capacity": ("system-value", put(f"{LAB}/systems/{SYSTEM}_power.yaml", "a: [1")),
    "resnet in the datacenter": ("wrong-category", system(system_type="datacenter")),
    "server on the edge": ("unknown-scenario", system(system_type="edge")),
    "no measurements": ("missing-file", drop(f"{SERVER}/measurements.json")),
    "measurements not JSON": ("bad-json", put(f"{SERVER}/measurements.json", "x")),
    "no retraining": ("measurements-key", value(f"{SERVER}/measurements.json", retraining=None)),
    "empty weights": (
        "measurements-key",
        value(f"{SERVER}/measurements.json", weight_data_types=""),
    ),
    "no user.conf": ("missing-file", drop(f"{SERVER}/user.conf")),
    "empty user.conf": ("empty-file", put(f"{SERVER}/user.conf", "")),
    "typo in user.conf": ("user-conf", user_conf(SERVER, "*.Server.target_qs = 5")),
    "no spaces in user.conf": ("user-conf", user_conf(SERVER, "*.Server.target_qps=5")),
    "max_duration in user.conf": ("user-conf", user_conf(SERVER, "*.Server.max_duration = 5000")),
    "no README": ("missing-file", drop(f"{SERVER}/README.md")),
    "empty README": ("empty-file", put(f"{SERVER}/README.md", "")),
}
PERFORMANCE = {
    "no performance": ("missing-file", drop(f"{SERVER}/performance")),
    "no detail log": ("missing-file", drop(f"{SERVER}/{RUN}/{DETAIL}")),
    "no summary": ("missing-file", drop(f"{SERVER}/{RUN}/{SUMMARY}")),
    "empty detail log": ("empty-file", put(f"{SERVER}/{RUN}/{DETAIL}", "")),
    "binary detail log": ("log-incomplete", put(f"{SERVER}/{RUN}/{DETAIL}", b"\x00\xff" * 999)),
    "cut log": ("log-incomplete", cut(f"{SERVER}/{RUN}/{DETAIL}")),
    "log without its end": ("log-incomplete", ended_early(f"{SERVER}/{RUN}/{DETAIL}")),
    "two runs in one log": ("log-mixed", twice(f"{SERVER}/{RUN}/{DETAIL}")),
    "foreign line": ("log-incomplete", add_line(f"{SERVER}/{RUN}/{DETAIL}", "Segmentation fault")),
    "INVALID run": ("invalid-result", server(result_validity="INVALID")),
    "INVALID open run": ("invalid-result", log(f"{OPEN}/Offline/{RUN}", result_validity="INVALID")),
    "error in the log": ("loadgen-errors", error_in(f"{SERVER}/{RUN}")),
    "counted errors": ("loadgen-errors", server(num_errors=3)),
    "accuracy log as performance": ("wrong-mode", server(effective_test_mode="AccuracyOnly")),
    "submission run": ("wrong-mode", server(effective_test_mode="SubmissionRun")),
    "qsl seed": ("wrong-seed", server(effective_qsl_rng_seed=1)),
    "index seed": ("wrong-seed", server(effective_sample_index_rng_seed=1)),
    "schedule seed": ("wrong-seed", log(f"{OPEN}/Offline/{RUN}", effective_schedule_rng_seed=1)),
    "duration set": ("too-short", server(effective_min_duration_ms=60_000)),
    "duration measured": (
        "too-short",
        server(power_begin="11-21-2026 04:00:00.000", power_end="11-21-2026 04:00:05.000"),
    ),
    "short offline": ("too-short", offline(result_max_latency_ns=5_000_000_000)),
    "no times": ("log-incomplete", server(power_begin="now")),
    "max duration": ("run-limited", server(effective_max_duration_ms=5000)),
    "max queries": ("run-limited", server(effective_max_query_count=5000)),
    "early stopping": ("early-stopping", server(early_stopping_met=False)),
    "late beyond early stopping": ("early-stopping", server(result_overlatency_query_count=30_000)),
    "few queries": ("too-few-queries", server(result_query_count=100)),
    "fewer than set": ("too-few-queries", multi(effective_min_query_count=10**8)),
    "few offline samples": ("too-few-queries", offline(effective_samples_per_query=1000)),
    "offline without a least count": ("too-few-queries", offline(effective_min_query_count=0)),
    "few samples held": ("performance-samples", server(effective_performance_sample_count=100)),
    "more held than there are": ("sample-override", server(qsl_reported_total_count=500)),
    "percentile": ("scenario-settings", server(effective_target_latency_percentile=0.9)),
    "four samples a query": ("scenario-settings", multi(effective_samples_per_query=4)),
    "late bound": ("latency-limit", server(effective_target_latency_ns=20_000_000)),
    "issue same": ("audit-settings", server(effective_performance_issue_same=True)),
    "sampled answers": ("audit-settings", server(effective_accuracy_log_sampling_target=4096)),
    "no result": ("result-missing", single(early_stopping_latency_ss=0)),
    "summary of another run": (
        "summary-differs",
        sub(f"{SERVER}/{RUN}/{SUMMARY}", r"(Min latency \(ns\)\s*: )\d+", r"\g<1>7"),
    ),
    "summary says INVALID": (
        "summary-differs",
        sub(f"{SERVER}/{RUN}/{SUMMARY}", "Result is : VALID", "Result is : INVALID"),
    ),
    "swapped performance": (
        "wrong-scenario",
        swap(f"{SERVER}/performance", f"{OFFLINE}/performance"),
    ),
    "swapped scenarios": ("wrong-scenario", swap(SERVER, SINGLE)),
    "swapped modes": ("wrong-mode", swap(f"{SERVER}/{RUN}/{DETAIL}", f"{SERVER}/{ACC}/{DETAIL}")),
    "copied log": ("log-copied", copied(f"{SERVER}/{RUN}", f"{SERVER}/TEST04/{RUN}")),
}
ACCURACIES = {
    "no accuracy": ("missing-file", drop(f"{SERVER}/{ACC}")),
    "no accuracy detail": ("missing-file", drop(f"{SERVER}/{ACC}/{DETAIL}")),
    "no accuracy.txt": ("missing-file", drop(f"{OPEN}/Offline/{ACC}/accuracy.txt")),
    "no accuracy log": ("missing-file", drop(f"{SERVER}/{ACC}/{ACCURACY}")),
    "cut accuracy detail": ("log-incomplete", cut(f"{SERVER}/{ACC}/{DETAIL}")),
    "performance log as accuracy": (
        "wrong-mode",
        log(f"{SERVER}/{ACC}", effective_test_mode="PerformanceOnly"),
    ),
    "error in accuracy": ("loadgen-errors", error_in(f"{SERVER}/{ACC}")),
    "subset": (
        "dataset-size",
        log(f"{SERVER}/{ACC}", effective_accuracy_sample_count=1000, qsl_reported_total_count=1000),
    ),
    "subset in open": (
        "dataset-size",
        log(
            f"{OPEN}/Offline/{ACC}",
            effective_accuracy_sample_count=1000,
            qsl_reported_total_count=1000,
        ),
    ),
    "subset with an override": (
        "sample-override",
        log(f"{SERVER}/{ACC}", qsl_reported_total_count=100),
    ),
    "score of a subset": ("dataset-size", sub(f"{SERVER}/{ACC}/accuracy.txt", "50000", "1000")),
    "below the target": (
        "accuracy-target",
        sub(f"{SERVER}/{ACC}/accuracy.txt", "76.700%, good=38350", "70.000%, good=35000"),
    ),
    "a second score below the target": (
        "accuracy-target",
        sub(f"{SERVER}/{ACC}/accuracy.txt", "^$", "accuracy=70.000%"),
    ),
    "counts that do not agree": (
        "accuracy-counts",
        sub(f"{SERVER}/{ACC}/accuracy.txt", "good=38350", "good=30000"),
    ),
    "score nan": ("accuracy-text", sub(f"{SERVER}/{ACC}/accuracy.txt", r"76\.700", "nan")),
    "no score": ("accuracy-text", sub(f"{OPEN}/Offline/{ACC}/accuracy.txt", "^accuracy", "hello")),
    "no hash": ("accuracy-hash", sub(f"{SERVER}/{ACC}/accuracy.txt", "^hash=.*", "")),
    "hash of nothing": ("accuracy-hash", sub(f"{SERVER}/{ACC}/accuracy.txt", "hash=.*", "hash=x")),
    "wrong hash": ("accuracy-hash", put(f"{SERVER}/TEST01/{ACC}/{ACCURACY}", accuracy_log(100))),
    "untruncated": ("accuracy-log", put(f"{SERVER}/{ACC}/{ACCURACY}", accuracy_log(50_000))),
    "no answers": ("accuracy-log", put(f"{SERVER}/{ACC}/{ACCURACY}", "[\n]\n")),
    "binary answers": ("accuracy-log", put(f"{SERVER}/{ACC}/{ACCURACY}", b"\x00\xff" * 99)),
    "half a truncated log": (
        "accuracy-log",
        put(f"{SERVER}/{ACC}/{ACCURACY}", accuracy_log(40)[:1500] + "\n\n...\n\n"),
    ),
    "few answers": ("dataset-size", put(f"{SERVER}/{ACC}/{ACCURACY}", accuracy_log(20))),
}
TEXT1, TEXT4 = f"{SERVER}/TEST01/verify_performance.txt", f"{SERVER}/TEST04/verify_performance.txt"
AUDITS = {
    "no TEST01": ("audit-missing", drop(f"{SERVER}/TEST01")),
    "no TEST04": ("audit-missing", drop(f"{OFFLINE}/TEST04")),
    "no verify_accuracy": ("missing-file", drop(f"{SERVER}/TEST01/verify_accuracy.txt")),
    "no verify_performance": ("missing-file", drop(TEXT4)),
    "no audit log": ("missing-file", drop(f"{SERVER}/TEST04/{RUN}/{DETAIL}")),
    "no audit summary": ("missing-file", drop(f"{SERVER}/TEST04/{RUN}/{SUMMARY}")),
    "extra file in an audit": ("stray-file", put(f"{SERVER}/TEST04/{RUN}/run.json", "{}")),
    "TEST01 failed": ("audit-score", sub(TEXT1, "TEST PASS", "TEST FAIL: Test score invalid")),
    "TEST04 failed": ("audit-score", sub(TEXT4, "TEST PASS", "TEST FAIL: Test score invalid")),
    "TEST04 is no TEST04": (
        "audit-not-one",
        log(f"{SERVER}/TEST04/{RUN}", effective_performance_issue_same=False),
    ),
    "TEST04 of another sample": (
        "audit-not-one",
        log(f"{SERVER}/TEST04/{RUN}", effective_performance_issue_same_index=7),
    ),
    "TEST01 is no TEST01": (
        "audit-not-one",
        log(f"{SERVER}/TEST01/{RUN}", effective_accuracy_log_rng_seed=0),
    ),
    "TEST01 without answers": (
        "audit-not-one",
        log(f"{SERVER}/TEST01/{RUN}", effective_accuracy_log_sampling_target=0),
    ),
    "stale TEST04": ("audit-stale", sub(TEXT4, r"reference score = [\d.]+", "reference score = 9")),
    "stale TEST01": ("audit-stale", sub(TEXT1, r"Test score = [\d.]+", "Test score = 9")),
    "cached answers": (
        "audit-score",
        log(f"{SERVER}/TEST04/{RUN}", result_completed_samples_per_sec=3000.0),
    ),
    "slow TEST01": (
        "audit-score",
        log(f"{SERVER}/TEST01/{RUN}", result_completed_samples_per_sec=1500.0),
    ),
    "INVALID TEST01": ("invalid-result", log(f"{SERVER}/TEST01/{RUN}", result_validity="INVALID")),
    "error in TEST01": ("loadgen-errors", error_in(f"{SERVER}/TEST01/{RUN}")),
    "seed in TEST04": ("wrong-seed", log(f"{SERVER}/TEST04/{RUN}", effective_qsl_rng_seed=1)),
    "short TEST04": ("too-short", log(f"{SERVER}/TEST04/{RUN}", effective_min_duration_ms=1)),
    "cut TEST01": ("log-incomplete", cut(f"{SERVER}/TEST01/{RUN}/{DETAIL}")),
    "TEST01 of another scenario": (
        "wrong-scenario",
        copied(f"{OFFLINE}/TEST01/{RUN}", f"{SERVER}/TEST01/{RUN}"),
    ),
    "TEST01 without its accuracy": ("missing-file", drop(f"{SERVER}/TEST01/{ACC}")),
    "TEST01 without accuracy.txt": ("missing-file", drop(f"{SERVER}/TEST01/{ACC}/accuracy.txt")),
    "TEST01 log untruncated": (
        "accuracy-log",
        put(f"{SERVER}/TEST01/{ACC}/{ACCURACY}", accuracy_log(1000)),
    ),
    "TEST01 rows missing": ("accuracy-log", put(f"{SERVER}/TEST01/{ACC}/{ACCURACY}", "[\n]\n")),
    "answers differ, no scores": (
        "missing-file",
        sub(f"{SERVER}/TEST01/verify_accuracy.txt", "TEST PASS", "TEST FAIL"),
    ),
    "answers differ by 2 %": (
        "audit-failed",
        all_of(
            sub(f"{SERVER}/TEST01/verify_accuracy.txt", "TEST PASS", "TEST FAIL"),
            put(f"{SERVER}/TEST01/{ACC}/baseline_accuracy.txt", "accuracy=76.500%\n"),
            put(f"{SERVER}/TEST01/{ACC}/compliance_accuracy.txt", "accuracy=75.000%\n"),
        ),
    ),
}
POWER = {
    **SESSIONS,
    "empty power": ("power-files", put(f"{SERVER}/performance/power/notes.txt", "x")),
    "ranging alone": ("power-files", put(f"{SERVER}/performance/ranging/spl.txt", "x")),
}
MUTATIONS: dict[str, Fault] = {
    **TREE,
    **SYSTEMS,
    **PERFORMANCE,
    **ACCURACIES,
    **AUDITS,
    **POWER,
    **CONTRADICTIONS,
}
