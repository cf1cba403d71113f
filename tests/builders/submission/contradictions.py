"""Faults that only a comparison reveals, because numbers, texts and files of a tree contradict each other.

Tables in the form of mutations.py: a name maps to the rule that must find the fault, and to the function that makes the
fault. MLCommons' checkers find only a few of these faults.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.loadgen.logs import ACCURACY, DETAIL, SUMMARY
from tests.builders.submission.power import CLIENT_JSON, PLACE, both, hashed_anew, lines, powered
from tests.builders.submission.power import put as put_key
from tests.builders.submission.trees import (
    ACC,
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
    alike,
    all_of,
    copied,
    log,
    log_line,
    multi,
    offline,
    put,
    server,
    single,
    sub,
    system,
    user_conf,
    value,
    write,
    write_summary,
)

RATE, OFFLINE_RATE = "result_completed_samples_per_sec", "result_samples_per_second"


def detail(path: str, changes: Mapping[str, Any]) -> Mutation:
    """Changes values in a detail log, but neither in its summary nor in the requested settings."""

    def mutate(root: Path) -> None:
        file = root / path / DETAIL
        before = file.read_text()
        after = "\n".join(log_line(line, changes) for line in before.splitlines()) + "\n"
        assert after != before, f"{path} has none of {list(changes)}"
        write(file, after)

    return mutate


def before(path: str, key: str, first: object) -> Mutation:
    """Inserts a second line with the same key before LoadGen's own line; checkers read the first line."""

    def mutate(root: Path) -> None:
        file = root / path / DETAIL
        text = file.read_text()
        real = next(line for line in text.splitlines() if f'"key": "{key}"' in line)
        write(file, text.replace(real, f"{log_line(real, {key: first})}\n{real}"))
        write_summary(file.parent, (file.parent / SUMMARY).read_text())

    return mutate


def without(path: str, key: str) -> Mutation:
    return sub(f"{path}/{DETAIL}", rf'^.*"key": "{key}".*\n', "")


def scaled(factor: float) -> Mutation:
    """Makes all three Server runs faster, and changes the texts of both audits to match."""
    rate = 2000.0 * factor
    texts = [f"{SERVER}/{name}/verify_performance.txt" for name in ("TEST01", "TEST04")]
    return all_of(
        *(
            log(f"{SERVER}/{run}", **{RATE: rate})
            for run in (RUN, f"TEST01/{RUN}", f"TEST04/{RUN}")
        ),
        *(
            sub(text, rf"(?i)({which} score = )[\d.]+", rf"\g<1>{rate}")
            for text in texts
            for which in ("reference", "test")
        ),
    )


def few_answers(count: int) -> Mutation:
    """Reduces the number of TEST01's answers, both in the log and in the text."""
    text = f"{SERVER}/TEST01/verify_accuracy.txt"
    return all_of(
        put(f"{SERVER}/TEST01/{ACC}/{ACCURACY}", accuracy_log(count)),
        *(
            sub(text, rf"({key} = )\d+", rf"\g<1>{count}")
            for key in ("num_perf_log_entries", "num_perf_log_qsl_idx_match")
        ),
    )


def edited_copy(name: str, **changes: Any) -> Mutation:
    """Copies the performance run's logs to an audit's folder, and changes the settings to the audit's."""
    run = f"{SERVER}/{name}/{RUN}"
    return all_of(copied(f"{SERVER}/{RUN}", run), log(run, **changes))


def second_submitter(root: Path) -> None:
    copied(LAB, "closed/Other")(root)
    value(f"closed/Other/systems/{SYSTEM}.json", submitter="Other")(root)


def second_system(root: Path) -> None:
    """Adds a second system whose logs differ from the first system's in one byte."""
    copied(f"{LAB}/results/{SYSTEM}", f"{LAB}/results/box2")(root)
    write(root / f"{LAB}/systems/box2.json", (root / f"{LAB}/systems/{SYSTEM}.json").read_text())
    for file in (root / f"{LAB}/results/box2").rglob(DETAIL):
        write(file, re.sub(r'"tid": (\d)', '"tid": 1\\1', file.read_text(), count=1))


def rows(path: str, pattern: bytes, to: bytes) -> Mutation:
    """Changes the first rows of a truncated log."""

    def mutate(root: Path) -> None:
        content = (root / path).read_bytes()
        changed = re.sub(pattern, to, content, count=1)
        assert changed != content
        write(root / path, changed)

    return mutate


def tail_of(scenario: str, count: int) -> Mutation:
    """Replaces the end of the truncated log with the end of a log of `count` rows."""

    def mutate(root: Path) -> None:
        file = root / scenario / ACC / ACCURACY
        head, cut, _ = file.read_bytes().partition(b"\n\n...\n\n")
        write(file, head + cut + accuracy_log(count).encode()[-4096:])

    return mutate


def shown(path: str, pattern: bytes, to: bytes) -> Mutation:
    """Changes answers in a truncated log, but keeps its size and hash."""
    return rows(f"{path}/{ACCURACY}", pattern, to)


def dated(path: str, year: int) -> Mutation:
    """Moves all dates of a run to a different year, including the build date of LoadGen."""

    def mutate(root: Path) -> None:
        file = root / path / DETAIL
        text = file.read_text()
        write(file, text.replace('"2026-', f'"{year}-').replace("-2026 ", f"-{year} "))

    return mutate


DATES = alike(
    "wrong-date",
    {
        "run of 2019": dated(f"{SERVER}/{RUN}", 2019),
        "audit of 2019": dated(f"{SERVER}/TEST01/{RUN}", 2019),
        "accuracy of 2019": dated(f"{SERVER}/{ACC}", 2019),
        "accuracy of 2029": dated(f"{SERVER}/{ACC}", 2029),
        "run before its LoadGen was built": server(
            test_datetime="2026-07-03T00:00:00Z", power_begin="07-03-2026 00:00:01.000"
        ),
        "run of another date than its log": server(test_datetime="2026-10-01T00:00:00Z"),
    },
)
NUMBERS = {
    **alike(
        "numbers-disagree",
        {
            "estimate halved": single(early_stopping_latency_ss=38_923),
            "estimate below its percentile": all_of(
                single(early_stopping_latency_ss=70_000),
                sub(f"{SINGLE}/{RUN}/{DETAIL}", "estimate: 77846", "estimate: 70000"),
            ),
            "estimate above a higher percentile": all_of(
                single(early_stopping_latency_ss=90_000),
                sub(f"{SINGLE}/{RUN}/{DETAIL}", "estimate: 77846", "estimate: 90000"),
            ),
            "multi-stream estimate halved": multi(early_stopping_latency_ms=1_130_529),
            "Server rate doubled": server(**{RATE: 4000.0}),
            "Offline rate doubled": offline(**{OFFLINE_RATE: 201.526}),
            "Offline rate doubled in open": log(f"{OPEN}/Offline/{RUN}", **{OFFLINE_RATE: 201.526}),
            "Offline rate and latency": offline(
                **{OFFLINE_RATE: 105.803, "result_max_latency_ns": 623_800_000_000}
            ),
            "three runs and their texts + 5 %": scaled(1.05),
            "two rates + 5 %": server(**{RATE: 2100.0}, result_scheduled_samples_per_sec=2100.0),
            "rate above the scheduled one": server(result_scheduled_samples_per_sec=1990.0),
            "rate of another target": server(effective_target_qps=3000),
            "p99 above the bound, none late": server(
                result_99__00_percentile_latency_ns=99_000_000,
                result_99__90_percentile_latency_ns=99_000_000,
                result_max_latency_ns=99_000_000,
            ),
            "maximum above the bound, none late": server(result_max_latency_ns=16_000_000),
            "late, none above the bound": server(result_overlatency_query_count=30),
            "Server's queries x 10": server(result_query_count=12_020_010),
            "single-stream's queries x 10": single(
                result_query_count=97_047_680, generated_query_count=97_047_680
            ),
            "multi-stream's queries x 10": multi(
                result_query_count=39_000_000, generated_query_count=39_000_000
            ),
            "mean above the maximum": server(result_mean_latency_ns=10**10),
            "mean below what the percentiles allow": server(result_mean_latency_ns=100_000),
            "p90 above p99": server(result_90__00_percentile_latency_ns=600_000),
            "minimum below 0": server(result_min_latency_ns=-5),
            "multi-stream minimum above its p50": multi(result_min_query_latency_ns=160_000),
            "qps without overhead": single(result_qps_without_loadgen_overhead=20_000.0),
            "duration requested is another": detail(
                f"{SERVER}/{RUN}", {"requested_min_duration_ms": 60_000}
            ),
            "rate requested is another": detail(
                f"{SERVER}/{RUN}", {"requested_server_target_qps": 900}
            ),
            "VALID, minimum duration missed": server(result_min_duration_met=False),
            "VALID, queries missed": server(result_min_queries_met=False),
            "VALID, constraints missed": server(result_perf_constraints_met=False),
            "early stopping's text says no": server(
                early_stopping_result=" * Run unsuccessful.  * Processed 10 queries."
            ),
            "early stopping's text counts others": sub(
                f"{SINGLE}/{RUN}/{DETAIL}", r"queries \(\d+\)", "queries (700)"
            ),
        },
    ),
    "Server rate doubled, summary left": (
        "summary-differs",
        detail(f"{SERVER}/{RUN}", {RATE: 4000.0}),
    ),
}
TWICE = alike(
    "log-mixed",
    {
        "VALID before INVALID": all_of(
            server(result_validity="INVALID"), before(f"{SERVER}/{RUN}", "result_validity", "VALID")
        ),
        "seed twice": all_of(
            server(effective_qsl_rng_seed=1),
            before(f"{SERVER}/{RUN}", "effective_qsl_rng_seed", 2085463073848966840),
        ),
        "least duration twice": all_of(
            server(effective_min_duration_ms=1),
            before(f"{SERVER}/{RUN}", "effective_min_duration_ms", 600_000),
        ),
        "late queries twice": all_of(
            server(result_overlatency_query_count=20_000),
            before(f"{SERVER}/{RUN}", "result_overlatency_query_count", 0),
        ),
        "end twice": before(f"{SERVER}/{RUN}", "power_end", "11-21-2026 03:57:26.000"),
    },
)
VERSIONS = alike(
    "loadgen-version",
    {
        "LoadGen of another round": server(loadgen_version="5.1.2 @ d6147c7eb7"),
        "LoadGen with local changes": server(loadgen_git_status_message=" M loadgen/results.cc"),
        "accuracy by another LoadGen": log(
            f"{SERVER}/{ACC}", loadgen_version="6.0.17 @ 0000000000"
        ),
        "accuracy by another commit of LoadGen": log(
            f"{SERVER}/{ACC}", loadgen_git_log_message="0000 mine"
        ),
    },
)
SETTINGS = {
    **alike(
        "dataset-size",
        {
            "performance on 1,024 samples": server(qsl_reported_total_count=1024),
            "performance on 99,999 samples": server(qsl_reported_total_count=99_999),
            "accuracy without its sample count": without(
                f"{SERVER}/{ACC}", "effective_accuracy_sample_count"
            ),
        },
    ),
    **alike(
        "scenario-settings",
        {
            "four samples a single-stream query": single(effective_samples_per_query=4),
            "four samples a Server query": server(effective_samples_per_query=4),
            "permutation": offline(effective_sample_concatenate_permutation=True),
        },
    ),
    "no key of issue same": (
        "audit-settings",
        without(f"{SERVER}/{RUN}", "effective_performance_issue_same"),
    ),
    "no key of sampled answers": (
        "audit-settings",
        without(f"{SERVER}/{RUN}", "effective_accuracy_log_sampling_target"),
    ),
    **alike(
        "user-conf",
        {
            "user.conf of another rate": user_conf(SERVER, "*.Server.target_qps = 1900"),
            "user.conf of another latency": user_conf(SINGLE, "*.SingleStream.target_latency = 5"),
            "user.conf of another bound": user_conf(SERVER, "resnet50.Server.target_latency = 10"),
            "user.conf with a count": user_conf(SERVER, "*.Server.min_query_count = 270336"),
            "user.conf with an Offline count": user_conf(OFFLINE, "*.*.min_query_count = 270336"),
        },
    ),
    **alike(
        "system-value",
        {
            "no node": system(number_of_nodes="0"),
            "no processor": system(host_processors_per_node=0),
            "cores in words": system(host_processor_core_count="thirty-two"),
        },
    ),
    "empty calibration": ("empty-file", put(f"{LAB}/calibration.md", "\n")),
}
TEXT1 = f"{SERVER}/TEST01/verify_accuracy.txt"
FILES = {
    **alike(
        "summary-differs",
        {
            "summary of one word": put(f"{SERVER}/{RUN}/{SUMMARY}", "VALID\n"),
            "summary without its result": sub(
                f"{SERVER}/{RUN}/{SUMMARY}", r"^Completed samples per second.*\n", ""
            ),
            "summary with errors": sub(
                f"{SERVER}/{RUN}/{SUMMARY}", "^No errors encountered", "5 ERRORS encountered"
            ),
            "summary of another estimate": sub(
                f"{SINGLE}/{RUN}/{SUMMARY}", r"(90\.0th percentile estimate: )\d+", r"\g<1>38923"
            ),
        },
    ),
    **alike(
        "audit-failed",
        {
            "TEST01 of 10 answers": few_answers(10),
            "TEST01 scores 1 %": sub(
                f"{SERVER}/TEST01/{ACC}/accuracy.txt",
                "76.001%, good=3113",
                "1.001%, good=41",
            ),
            "score raised with its counts, beyond TEST01's": sub(
                f"{SERVER}/{ACC}/accuracy.txt", "76.700%, good=38350", "95.000%, good=47500"
            ),
            "TEST01 matched fewer": sub(TEXT1, r"(num_perf_log_qsl_idx_match = )\d+", r"\g<1>9"),
            "other answers than TEST01's": shown(
                f"{SERVER}/{ACC}", b'"data" : "08', b'"data" : "07'
            ),
            "other answers in TEST01": shown(
                f"{SERVER}/TEST01/{ACC}", b'"data" : "08', b'"data" : "07'
            ),
            "TEST PASS alone": put(TEXT1, "TEST PASS\n"),
            "TEST PASS with mismatches": sub(
                TEXT1, r"(num_perf_log_data_mismatch = )\d+", r"\g<1>7"
            ),
            "TEST PASS after a failed check": sub(
                TEXT1, "^TEST PASS", "Accuracy check pass: False\nTEST PASS"
            ),
        },
    ),
    "TEST01's text counts others": (
        "audit-stale",
        sub(TEXT1, r"(num_acc_log_entries = )\d+", r"\g<1>49000"),
    ),
    "TEST PASS without scores": (
        "audit-stale",
        put(f"{SERVER}/TEST01/verify_performance.txt", "TEST PASS\n"),
    ),
    "TEST01 samples fewer": (
        "audit-not-one",
        log(f"{SERVER}/TEST01/{RUN}", effective_accuracy_log_sampling_target=1000),
    ),
    **alike(
        "log-copied",
        {
            "TEST01 is the performance log": edited_copy(
                "TEST01",
                effective_accuracy_log_rng_seed=720381539243781796,
                effective_accuracy_log_sampling_target=4096,
            ),
            "TEST04 is the performance log": edited_copy(
                "TEST04",
                effective_performance_issue_same=True,
                effective_performance_issue_same_index=3,
                test_datetime="2026-11-22T04:00:00Z",
            ),
            "TEST01's answers are the accuracy run's": copied(
                f"{SERVER}/{ACC}", f"{SERVER}/TEST01/{ACC}"
            ),
            "results of another submitter": second_submitter,
            "results of another system": second_system,
        },
    ),
    "TEST PASS and TEST FAIL": (
        "audit-score",
        sub(f"{SERVER}/TEST04/verify_performance.txt", "^TEST PASS", "TEST FAIL\nTEST PASS"),
    ),
    "a better score above the real one": (
        "accuracy-text",
        sub(f"{SERVER}/{ACC}/accuracy.txt", "^accuracy", "accuracy=78.000%\naccuracy"),
    ),
    "101 %": (
        "accuracy-text",
        sub(
            f"{OPEN}/Offline/{ACC}/accuracy.txt",
            "^.*$",
            "accuracy=101.000%, good=50500, total=50000",
        ),
    ),
    "TEST01's counts do not agree": (
        "accuracy-counts",
        sub(f"{SERVER}/TEST01/{ACC}/accuracy.txt", "good=3113", "good=3000"),
    ),
    **alike(
        "accuracy-hash",
        {
            "a second hash": sub(f"{SERVER}/{ACC}/accuracy.txt", "^hash=", "hash=0\nhash="),
            "TEST01 has the accuracy run's hash": lambda root: write(
                root / f"{SERVER}/TEST01/{ACC}/accuracy.txt",
                (root / f"{SERVER}/{ACC}/accuracy.txt").read_text(),
            ),
        },
    ),
    **alike(
        "measurements-key",
        {
            "retraining in closed": value(f"{SERVER}/measurements.json", retraining="yes"),
            "retraining in closed, in words": value(
                f"{SERVER}/measurements.json", retraining="for 3 epochs"
            ),
            "retraining as a bool": value(f"{SERVER}/measurements.json", retraining=True),
        },
    ),
    **alike(
        "accuracy-log",
        {
            "shorter answers": shown(f"{SERVER}/{ACC}", b"0800000000000000", b"08"),
            "answers in words": shown(f"{SERVER}/{ACC}", b"0800000000000000", b"08000000000000xy"),
            "last rows cut off": lambda root: write(
                root / f"{OFFLINE}/{ACC}/{ACCURACY}",
                (root / f"{OFFLINE}/{ACC}/{ACCURACY}").read_bytes()[:-600] + b"\n]\n",
            ),
            "end of a Server log of 1,000 rows": tail_of(SERVER, 1000),
            "answer beyond the data set": rows(
                f"{SERVER}/{ACC}/{ACCURACY}", rb'"qsl_idx" : 7,', b'"qsl_idx" : 50000,'
            ),
            "answer with the number of another": rows(
                f"{SERVER}/{ACC}/{ACCURACY}", rb'"seq_id" : 7,', b'"seq_id" : 6,'
            ),
            "sample answered twice": rows(
                f"{SERVER}/{ACC}/{ACCURACY}", rb'"qsl_idx" : 7,', b'"qsl_idx" : 6,'
            ),
            "end of a log of 100 rows": tail_of(SERVER, 100),
            "end of a log of 1,000 rows": tail_of(SINGLE, 1000),
        },
    ),
}


def _ranging(**changes: Any) -> Mutation:
    return hashed_anew(log(f"{PLACE}/ranging", **changes))


POWER = {
    "power: ranging INVALID": ("invalid-result", _ranging(result_validity="INVALID")),
    "power: ranging of another scenario": (
        "wrong-scenario",
        _ranging(effective_scenario="Offline"),
    ),
    "power: ranging under another seed": ("wrong-seed", _ranging(effective_schedule_rng_seed=1)),
    "power: ranging at another rate": (
        "power-ranging",
        _ranging(
            effective_target_qps=1000,
            result_query_count=601_001,
            result_scheduled_samples_per_sec=1000.0,
            result_completed_samples_per_sec=1000.0,
        ),
    ),
    "power: ranging of another data set": (
        "power-ranging",
        _ranging(qsl_reported_total_count=60_000),
    ),
    "power: ranging without half its samples": (
        "power-samples",
        hashed_anew(lines(f"{PLACE}/ranging/spl.txt", lambda x: x[:300])),
    ),
    "power: ranging is the testing run": (
        "log-copied",
        hashed_anew(
            lambda root: write(
                root / PLACE / "ranging" / DETAIL, (root / PLACE / "run_1" / DETAIL).read_bytes()
            )
        ),
    ),
    "power: one uuid": (
        "power-session",
        powered(
            lambda root: both(
                put_key(
                    "uuid/server", json.loads((root / CLIENT_JSON).read_text())["uuid"]["client"]
                )
            )(root)
        ),
    ),
    "power: watts are not the product": (
        "power-samples",
        hashed_anew(
            lines(
                f"{PLACE}/run_1/spl.txt",
                lambda x: [re.sub(r"Amps,[\d.]+", "Amps,0.300000", line) for line in x],
            )
        ),
    ),
}
CONTRADICTIONS: dict[str, Fault] = {
    **NUMBERS,
    **DATES,
    **TWICE,
    **VERSIONS,
    **SETTINGS,
    **FILES,
    **POWER,
}
