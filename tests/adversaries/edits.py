"""Edits the folder of a finished run, then recomputes the digests."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.results.verdict.doubts import OTHERS_SHARE

PERFORMANCE, ACCURACY = "performance/run_1/", "accuracy/"
DETAIL, SUMMARY = "mlperf_log_detail.txt", "mlperf_log_summary.txt"
ANSWERS = "mlperf_log_accuracy.json"
HOUR_NS = 3_600_000_000_000

SERVER = "--scenario server --target-qps 500 --queries 700 --slo p99=5s"
METER = """--meter 'command=sh -c "while :; do echo 12.5 W; sleep 0.05; done"'"""
RUNS = {
    "server": SERVER,
    "other": SERVER,
    "stream": "--scenario single-stream --queries 1500",
    "offline": "--scenario offline --queries 20000",
    "own": "--scenario server --concurrency 4 --queries 800 --slo p99=5s",
    "metered": f"--scenario server --target-qps 300 --queries 1000 --slo p99=5s {METER}",
}
"""Maps a name to the options of a short real run. `other` is a second run with the options of `server`."""

Change = Callable[[Path, Path], object]
"""Called with the folder of the run and the folder of `other`."""


class Edit(NamedTuple):
    run: str
    file: str
    about: str
    change: Change
    found: str
    """Words that the line from `check` must contain; empty if only the seal reveals the edit."""
    why: str = ""
    """The reason why no other file contradicts the edit."""


def text(name: str, old: str, new: str) -> Change:
    """Replaces the first match of a regular expression in a file."""

    def change(folder: Path, _other: Path) -> None:
        path = folder / name
        before = path.read_text()
        after = re.sub(old, new, before, count=1, flags=re.MULTILINE)
        assert after != before, f"{name} has no {old}"
        path.write_text(after)

    return change


def content(name: str, edit: Callable[[Any], object]) -> Change:
    """Changes the content of a JSON file, and writes each row of a list on its own line, as LoadGen does."""

    def change(folder: Path, _other: Path) -> None:
        path = folder / name
        value = json.loads(path.read_text())
        before = json.dumps(value)
        edit(value)
        assert json.dumps(value) != before
        rows = ",\n".join(map(json.dumps, value)) if isinstance(value, list) else ""
        path.write_text(f"[\n{rows}\n]\n" if rows else json.dumps(value, indent=2) + "\n")

    return change


def at(place: str, new: object) -> Callable[[Any], object]:
    """place: keys of a JSON file, joined by dots. new: a value, or a function of the old value."""

    def edit(value: Any) -> None:
        *keys, last = (int(key) if key.isdigit() else key for key in place.split("."))
        for key in keys:
            value = value[key]
        value[last] = new(value[last]) if callable(new) else new

    return edit


def _other_load(share: float | None) -> float:
    """Returns a share of CPU time on the other side of the doubt's threshold, because the machine may have been busy."""
    return 0.555 if share is None or share <= OTHERS_SHARE else 0.0


def columns(part: str, **edits: Callable[[Any], Any]) -> Change:
    """Changes columns of completions.npz; `every` stands for all time stamps, `all` for all columns."""

    def change(folder: Path, _other: Path) -> None:
        path = folder / f"{part}completions.npz"
        with np.load(path) as file:
            values: dict[str, Any] = dict(file)
        for name, edit in edits.items():
            chosen = [n for n in values if name == "all" or (name == "every" and n.endswith("_ns"))]
            for column in chosen or [name]:
                values[column] = edit(values[column].copy())
        np.savez(path, **values)

    return change


def cells(name: str, column: str, new: str, row: Callable[[int], int | slice]) -> Change:
    """Changes cells of a table. row: index of the row; row 0 is the first row below the header."""

    def change(folder: Path, _other: Path) -> None:
        path = folder / name
        head, *rows = [line.split(",") for line in path.read_text().splitlines()]
        chosen = row(len(rows))
        for one in rows[chosen] if isinstance(chosen, slice) else [rows[chosen]]:
            one[head.index(column)] = new
        path.write_text("".join(",".join(one) + "\n" for one in [head, *rows]))

    return change


def copied(name: str) -> Change:
    """Copies a file or folder from another run."""

    def change(folder: Path, other: Path) -> None:
        if (other / name).is_dir():
            shutil.rmtree(folder / name)
            shutil.copytree(other / name, folder / name)
        else:
            shutil.copyfile(other / name, folder / name)

    return change


def removed(name: str) -> Change:
    return lambda folder, _other: (folder / name).unlink()


def changed_bytes(name: str, edit: Callable[[bytes], bytes]) -> Change:
    return lambda folder, _: (folder / name).write_bytes(edit((folder / name).read_bytes()))


def logged(part: str, key: str, new: str) -> Change:
    """Changes a value in LoadGen's detail log. new: `\\g<2>` stands for the old value."""
    return text(part + DETAIL, rf'("key": "{re.escape(key)}", "value": )([^,]+)', rf"\g<1>{new}")


def put(index: int, new: float) -> Callable[[Any], Any]:
    def edit(column: Any) -> Any:
        column[index] = new
        return column

    return edit


def another_class(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "data": "63" + row["data"][2:]}


def exchange(answers: list[dict[str, Any]]) -> None:
    """Swaps the first two answers of the run."""
    first, second = answers[0]["seq_id"], answers[1]["seq_id"]
    answers[0]["seq_id"], answers[1]["seq_id"] = second, first


NO_WITNESS = "no other file has it"
MOMENT = "a reading of the moment, which no other file has"

LOG = [
    ("server", "result_validity", '"INVALID"', "the line 'Result is'"),
    ("server", "result_completed_samples_per_sec", r"9\g<2>", "the journal's rate"),
    ("server", "result_scheduled_samples_per_sec", r"9\g<2>", "Scheduled samples per second"),
    ("server", "result_99.00_percentile_latency_ns", r"9\g<2>", "99.00 percentile"),
    ("server", "result_50.00_percentile_latency_ns", "1", "50.00 percentile"),
    ("server", "result_mean_latency_ns", "1", "Mean latency"),
    ("server", "result_max_latency_ns", "1", "Max latency"),
    ("server", "result_min_latency_ns", r"9\g<2>", "Min latency"),
    ("server", "result_overlatency_query_count", "600", "early_stopping_met"),
    ("server", "result_query_count", "600", "samples-lost"),
    ("server", "result_min_duration_met", "false", "result_min_duration_met"),
    ("server", "result_min_queries_met", "false", "result_min_queries_met"),
    ("server", "result_perf_constraints_met", "false", "result_perf_constraints_met"),
    ("server", "early_stopping_met", "false", "early_stopping_met"),
    ("server", "effective_target_qps", "300", "wrong-settings"),
    ("server", "effective_target_latency_ns", "1", "wrong-settings"),
    ("server", "effective_target_latency_percentile", "0.5", "wrong-settings"),
    ("server", "effective_min_query_count", "5", "wrong-settings"),
    ("server", "effective_max_duration_ms", "5", "wrong-settings"),
    ("server", "effective_performance_issue_same", "true", "wrong-settings"),
    ("server", "effective_performance_issue_unique", "true", "wrong-settings"),
    ("server", "effective_accuracy_log_rng_seed", "5", "wrong-settings"),
    ("server", "effective_accuracy_log_sampling_target", "5", "wrong-settings"),
    ("server", "effective_schedule_rng_seed", "5", "wrong-seed"),
    ("server", "effective_qsl_rng_seed", "5", "wrong-seed"),
    ("server", "effective_sample_index_rng_seed", "5", "wrong-seed"),
    ("server", "effective_scenario", '"Offline"', "wrong-run"),
    ("server", "effective_test_mode", '"AccuracyOnly"', "wrong-run"),
    ("server", "effective_performance_sample_count", "5", "wrong-sample-count"),
    ("server", "qsl_reported_total_count", "5", "wrong-settings"),
    ("server", "qsl_reported_performance_count", "5", "wrong-settings"),
    ("server", "generated_query_count", "5", "were generated"),
    ("server", "generated_samples_per_query", "2", "were generated"),
    ("server", "loadgen_version", '"5.1.2 @ 0"', "LoadGen's version"),
    ("server", "test_datetime", '"2020-01-01T00:00:00Z"', "test_datetime in LoadGen's log"),
    ("server", "power_begin", '"01-01-2020 00:00:00.000"', "power_begin in LoadGen's log"),
    ("server", "power_end", '"01-01-2030 00:00:00.000"', "power_end in LoadGen's log"),
    ("server", "sut_name", '"Mine"', "the line 'SUT name'"),
    ("server", "num_errors", "3", "loadgen-errors"),
    ("stream", "early_stopping_latency_ss", "1", "estimate"),
    ("stream", "result_90.00_percentile_latency_ns", "1", "90.00 percentile"),
    ("stream", "result_qps_without_loadgen_overhead", r"9\g<2>", "QPS w/o loadgen overhead"),
    ("offline", "result_samples_per_second", r"9\g<2>", "the longest latency"),
    ("offline", "result_max_latency_ns", r"9\g<2>", "the longest latency"),
    ("offline", "effective_min_sample_count", "5", "wrong-settings"),
    ("offline", "effective_samples_per_query", "5", "samples-lost"),
]
"""Rows: (run, key in LoadGen's detail log of the performance run, new value, expected words from `check`)."""

IN_ACCURACY = [
    ("qsl_reported_total_count", "5", "wrong-settings"),
    ("effective_qsl_rng_seed", "5", "wrong-seed"),
    ("effective_test_mode", '"PerformanceOnly"', "wrong-run"),
    ("loadgen_version", '"5.1.2 @ 0"', "LoadGen's version"),
    ("test_datetime", '"2020-01-01T00:00:00Z"', "test_datetime in LoadGen's log"),
    ("power_end", '"01-01-2020 00:00:00.000"', "power_end in LoadGen's log"),
    ("generated_query_count", "5", "were generated"),
]
"""Rows in the form of `LOG`, for the accuracy run of `server`."""

JSON: list[tuple[str, str, str, object, str]] = [
    ("server", "result.json", "verdict", "INVALID", "verdict: result.json has"),
    ("server", "result.json", "headline.value", 9e9, "headline.value"),
    ("server", "result.json", "latency_ns.p99", 1, "latency_ns.p99"),
    ("server", "result.json", "latency_intervals_ns", {}, "latency_intervals_ns"),
    ("server", "result.json", "throughput_per_s.completed", 9e9, "throughput_per_s.completed"),
    ("server", "result.json", "accuracy.value", 100.0, "accuracy.value"),
    ("server", "result.json", "accuracy.target", 1.0, "accuracy.target"),
    ("server", "result.json", "accuracy.compared.answers", 9, "accuracy.compared.answers"),
    ("server", "result.json", "stages_ns.infer.p50", 1, "stages_ns.infer.p50"),
    ("server", "result.json", "reference", {}, "reference."),
    ("server", "result.json", "queries.late", 9, "queries.late"),
    ("server", "result.json", "doubts", [{"code": "steal", "text": ""}], "doubts"),
    ("server", "result.json", "started", "2020-01-01T00:00:00+00:00", "started: result.json"),
    ("server", "result.json", "scenario", "offline", "scenario: result.json has"),
    ("server", "result.json", "backend", "openvino", "backend: result.json has"),
    ("server", "result.json", "dataset", "imagenet", "dataset: result.json has"),
    ("server", "result.json", "model", "resnet", "model: result.json has"),
    ("server", "result.json", "slo", "p99=1ms", "slo: result.json has"),
    ("server", "result.json", "not_for_submission", [], "not_for_submission"),
    ("server", "result.json", "measured_process.cpu_s_per_query", 0, "measured_process.cpu_s"),
    ("server", "result.json", "plan.instances", 64, "plan.instances"),
    ("server", "result.json", "environment", {}, "environment: result.json contains none"),
    ("own", "result.json", "headline.value", 9e9, "headline.value"),
    ("metered", "result.json", "power.readings.0.joules", 1.0, "power.readings"),
    ("server", "findings.json", "asked.target_qps", 5.0, "target_qps of the request is 5.0"),
    ("server", "findings.json", "asked.queries", 5, "queries of the request is 5"),
    ("server", "findings.json", "asked.slo", "p99=1ms", "slo of the request is"),
    ("server", "findings.json", "asked.seed", 5, "_seed of the request is 5"),
    ("server", "findings.json", "asked.scenario", "offline", "scenario"),
    ("server", "findings.json", "asked.instances", 64, "instances of the request is 64"),
    ("server", "findings.json", "noise.p99", 1, "noise_floor_ns"),
    ("server", "findings.json", "load.others", _other_load, "doubts"),
    ("server", "findings.json", "started", "2020-01-01T00:00:00+00:00", "started"),
    ("server", "findings.json", "loaded.total_count", 5, "total_count is"),
    ("server", "findings.json", "loaded.model_sha256", "0" * 64, "model_sha256"),
    ("server", "findings.json", "spec.instances", 1, "plan.instances"),
    ("metered", "findings.json", "power.idle_ns", None, "power.readings"),
    ("metered", "findings.json", "power.sources.0.provenance", "wall", "power.readings"),
    ("server", "environment.json", "system.python", "2", "environment.system"),
    ("server", "environment.json", "loadgen.seeds.schedule", 7, "seeds is"),
    ("server", "environment.json", "loadgen.version", "5.1.2", "LoadGen's version"),
    ("server", "environment.json", "dataset.digest", "b", "dataset digest is b"),
    ("server", "environment.json", "dataset.split", "train", "dataset is"),
    ("server", "environment.json", "backend.version", "9", "backend is"),
    ("server", "environment.json", "model_sha256", "a", "model_sha256 is a"),
    ("server", "environment.json", "manifest_sha256", "a", "report.html differs"),
    ("server", f"{PERFORMANCE}run.json", "plan.total_count", 9, "total_count is 9"),
    ("server", f"{PERFORMANCE}run.json", "plan.performance_count", 9, "performance_count is 9"),
    ("server", f"{PERFORMANCE}run.json", "plan.journal_samples", 9, "journal_samples is 9"),
    ("server", f"{PERFORMANCE}run.json", "plan.target_qps", 9.0, "wrong-settings"),
    ("server", f"{PERFORMANCE}run.json", "plan.latency_bound_ns", 9, "wrong-settings"),
    ("server", f"{PERFORMANCE}run.json", "plan.seeds", [1, 2, 3], "wrong-seed"),
    ("server", f"{PERFORMANCE}run.json", "plan.query_count", 9, "wrong-settings"),
    ("server", f"{PERFORMANCE}run.json", "plan.concurrency", 4, "concurrency"),
    ("server", f"{PERFORMANCE}run.json", "plan.logged_answers", 0, "wrong-settings"),
    ("server", f"{PERFORMANCE}run.json", "plan.expected_s", 9.0, "queries.expected_s"),
    ("server", f"{PERFORMANCE}run.json", "ended.answer_dtype", "int32", "answer_dtype"),
    ("server", f"{PERFORMANCE}run.json", "issued", 650, "samples-lost"),
    ("server", f"{PERFORMANCE}run.json", "ended.failed_samples", 3, "batch-failed"),
    ("server", f"{PERFORMANCE}run.json", "clock.largest_step_ns", 10**10, "clock-jumped"),
    ("server", f"{PERFORMANCE}run.json", "ended.used.cpu_s", 0.0, "measured_process.cpu_s"),
    ("server", f"{PERFORMANCE}run.json", "ended.bare", None, "reference"),
    ("server", f"{PERFORMANCE}run.json", "ended", None, "died"),
    ("own", f"{PERFORMANCE}run.json", "plan.concurrency", 64, "concurrency"),
    ("server", f"{ACCURACY}run.json", "plan.total_count", 9, "total_count is 9"),
    ("server", f"{ACCURACY}run.json", "plan.seeds", [1, 2, 3], "seeds is"),
    ("server", f"{ACCURACY}run.json", "plan.latency_bound_ns", 9, "latency_bound_ns is 9"),
    ("server", f"{ACCURACY}run.json", "plan.query_count", 9, "query_count is 9"),
    ("server", f"{ACCURACY}run.json", "plan.journal_samples", 9, "journal_samples is 9"),
    ("server", f"{ACCURACY}run.json", "ended.answer_dtype", "int32", "answer_dtype"),
]
"""Rows: (run, file, keys joined by dots, new value, expected words from `check`)."""

TEXTS = [
    (
        "server",
        "result.json",
        "a second verdict",
        "{",
        '{"verdict": "INVALID", ',
        "appears twice",
    ),
    ("server", "config.yaml", "queries", "queries: 700", "queries: 9000", "queries is 9000"),
    ("server", "config.yaml", "device", "device: cpu", "device: cuda", "device is cuda"),
    ("server", "config.yaml", "version", "_version: 6.*", "_version: 5.1.2", "LoadGen's version"),
    (
        "server",
        "config.yaml",
        "a seed",
        "schedule_seed: .*",
        "schedule_seed: 7",
        "schedule_seed is 7",
    ),
    ("server", "config.yaml", "digest", "model_sha256: .", "model_sha256: x", "model_sha256 is x"),
    ("metered", "config.yaml", "meter", "12.5 W", "99.5 W", "meter is"),
    ("server", "report.html", "verdict", ">VALID<", ">INVALID<", "differs from the run"),
    ("server", "report.html", "headline", '"headline">', r"\g<0>9", "differs from the run"),
    (
        "server",
        "report.html",
        "p99",
        "<td[^>]*>p99</td><td[^>]*>",
        r"\g<0>9",
        "differs from the run",
    ),
    (
        "server",
        "report.html",
        "a setting",
        "<td>queries</td><td>7",
        r"\g<0>0",
        "differs from the run",
    ),
    (
        "server",
        "metrics.prom",
        "verdict",
        r"(_run_valid\{.*\}) 1.0",
        r"\1 0.0",
        "harness_run_valid",
    ),
    ("server", "metrics.prom", "score", r"(_accuracy\{.*\}) .*", r"\1 100.0", "harness_accuracy"),
    (
        "server",
        "metrics.prom",
        "failed",
        r"(samples_failed_total\{.*\}) 0",
        r"\1 5",
        "failed_total",
    ),
    (
        "server",
        "metrics.prom",
        "answered",
        r"(samples_completed_total\{.*\}) 7",
        r"\1 6",
        "completed_total",
    ),
    ("server", f"{ACCURACY}accuracy.txt", "score", "accuracy=", "accuracy=9", "has no line"),
    (
        "server",
        f"{ACCURACY}accuracy.txt",
        "a better line above",
        "^",
        "accuracy=100%\n",
        "lines other than",
    ),
    ("server", PERFORMANCE + SUMMARY, "verdict", ": VALID", ": INVALID", "the line 'Result is'"),
    (
        "server",
        PERFORMANCE + SUMMARY,
        "rate",
        "(Completed .*: )",
        r"\g<1>9",
        "'Completed samples per",
    ),
    (
        "server",
        PERFORMANCE + SUMMARY,
        "p99",
        r"(99.00 .*: )",
        r"\g<1>9",
        "99.00 percentile latency",
    ),
    ("server", PERFORMANCE + SUMMARY, "a setting", "(target_qps : )", r"\g<1>9", "target_qps"),
    ("server", PERFORMANCE + SUMMARY, "errors", "No errors", "1 ERROR", "No errors"),
    ("offline", PERFORMANCE + SUMMARY, "rate", "(Samples .*: )", r"\g<1>9", "'Samples per second'"),
    ("server", ACCURACY + SUMMARY, "errors", "No errors", "2 ERRORS", "No errors"),
]
"""Rows: (run, file, description, regular expression, new text, expected words from `check`)."""

OTHERS: list[tuple[str, str, str, Change, str]] = [
    (
        "server",
        PERFORMANCE + SUMMARY,
        "from another run",
        copied(PERFORMANCE + SUMMARY),
        "the line",
    ),
    ("server", PERFORMANCE + SUMMARY, "removed", removed(PERFORMANCE + SUMMARY), "the line"),
    (
        "server",
        PERFORMANCE + DETAIL,
        "from another run",
        copied(PERFORMANCE + DETAIL),
        "the line",
    ),
    (
        *("server", PERFORMANCE + DETAIL, "cut"),
        changed_bytes(PERFORMANCE + DETAIL, lambda b: b[:9000]),
        "log-incomplete",
    ),
    (
        *("server", PERFORMANCE + DETAIL, "two runs"),
        changed_bytes(PERFORMANCE + DETAIL, lambda b: b * 2),
        "log-mixed",
    ),
    (
        *("server", PERFORMANCE + DETAIL, "a better value above"),
        text(PERFORMANCE + DETAIL, r'^(.*"result_99.00\S+ "value": )\d+(.*)$', r"\g<1>1\2\n\g<0>"),
        "log-mixed",
    ),
    ("server", PERFORMANCE, "from another run", copied(PERFORMANCE), "started is"),
    ("server", ACCURACY, "from another run", copied(ACCURACY), "started is"),
    (
        *("server", f"{PERFORMANCE}run.json", "the supervisor's looks an hour later"),
        content(
            f"{PERFORMANCE}run.json",
            lambda r: r.update(looks=[[at_ns + HOUR_NS, n] for at_ns, n in r["looks"]]),
        ),
        "supervisor's first look",
    ),
]


def _answers() -> Iterator[tuple[str, str, str, Change, str]]:
    """Yields the edits of LoadGen's answers."""
    first, strangers = PERFORMANCE + ANSWERS, "belong to different samples"
    for about, edit, found in (
        ("other samples", lambda a: [row.update(qsl_idx=7) for row in a], strangers),
        (
            "other places",
            lambda a: [row.update(seq_id=7) for row in a],
            "further answers to samples",
        ),
        ("another class", lambda a: a[0].update(another_class(a[0])), "answers-differ"),
        ("one fewer", lambda a: a.pop(), "accuracy.compared.answers"),
    ):
        yield "server", first, about, content(first, edit), found
    second = ACCURACY + ANSWERS
    for about, edit, found in (
        ("a second answer", lambda a: a.append(another_class(a[0])), "further answers to samples"),
        ("another sample", lambda a: a[0].update(qsl_idx=a[1]["qsl_idx"]), "accuracy-incomplete"),
        ("places exchanged", exchange, strangers),
        ("one fewer", lambda a: a.pop(), "accuracy-incomplete"),
        (
            "all wrong",
            lambda a: a.__setitem__(slice(None), map(another_class, a)),
            "accuracy.value",
        ),
    ):
        yield "server", second, about, content(second, edit), found
    own = f"{PERFORMANCE}answers.json"
    planted = content(own, lambda a: a[0].update(another_class(a[0])))
    yield "own", own, "another class", planted, "answers-differ"


COLUMNS: list[tuple[str, str, str, dict[str, Callable[[Any], Any]], str]] = [
    (
        "server",
        PERFORMANCE,
        "all indices 0",
        {"index": lambda c: c * 0},
        "belong to different samples",
    ),
    ("server", PERFORMANCE, "indices beyond", {"index": lambda c: c + 10**6}, "journal-impossible"),
    (
        "server",
        PERFORMANCE,
        "all workers 9",
        {"worker": lambda c: c * 0 + 9},
        "a worker is not one of",
    ),
    (
        "server",
        PERFORMANCE,
        "an hour later",
        {"every": lambda c: c + HOUR_NS},
        "power_end in LoadGen",
    ),
    (
        "server",
        PERFORMANCE,
        "earlier answers",
        {"completed_ns": lambda c: c - 10**6},
        "journal-imposs",
    ),
    (
        *("server", PERFORMANCE, "due later"),
        {"scheduled_ns": lambda c: c + np.arange(len(c))},
        "not due at the times in LoadGen's schedule",
    ),
    ("server", PERFORMANCE, "1 ns later", {"inferred_ns": lambda c: c + (c == c[0])}, "stages_ns."),
    ("server", PERFORMANCE, "five rows fewer", {"all": lambda c: c[:-5]}, "samples-lost"),
    ("server", PERFORMANCE, "a failure", {"failed": put(0, 1)}, "batch-failed"),
    ("server", PERFORMANCE, "a larger batch", {"batch_size": put(0, 60)}, "journal-impossible"),
    ("server", ACCURACY, "an hour later", {"every": lambda c: c + HOUR_NS}, "power_end in LoadGen"),
    (
        "server",
        ACCURACY,
        "all indices 0",
        {"index": lambda c: c * 0},
        "belong to different samples",
    ),
    ("server", ACCURACY, "five rows fewer", {"all": lambda c: c[:-5]}, "samples-lost"),
    (
        "own",
        PERFORMANCE,
        "earlier answers",
        {"completed_ns": lambda c: c - 10**6},
        "journal-imposs",
    ),
    ("own", PERFORMANCE, "an hour earlier", {"every": lambda c: c - HOUR_NS}, "the job's start"),
    (
        "stream",
        PERFORMANCE,
        "all workers 1",
        {"worker": lambda c: c * 0 + 1},
        "a worker is not one of",
    ),
    (
        "stream",
        PERFORMANCE,
        "later starts",
        {"entry_ns": lambda c: c + HOUR_NS},
        "journal-impossible",
    ),
    (
        "offline",
        PERFORMANCE,
        "all indices 0",
        {"index": lambda c: c * 0},
        "belong to different samples",
    ),
]
"""Rows: (run, part, description, columns of completions.npz, expected words from `check`)."""

TABLES: list[tuple[str, str, str, str, Callable[[int], int | slice], str]] = [
    ("power.csv", "all halved", "watts", "6.25", lambda _: slice(None), "power.readings"),
    ("power.csv", "one in the run", "watts", "1.0", lambda n: n - 30, "power.readings"),
    ("power.csv", "one of the idle time", "watts", "1.0", lambda _: 10, "power.readings"),
    ("host.csv", "one in the run", "cpu_user_s", "1e9", lambda n: n - 2, "host"),
    ("host.csv", "a counter before it", "cpu_user_s", "1e9", lambda _: 0, "cpu_user_s falls"),
    ("host.csv", "a time before it", "wall_ns", "9" * 18, lambda _: 1, "in chronological order"),
]
"""Rows for the run `metered`: (file, description, column, new value, row, expected words from `check`)."""

SEAL_ALONE: list[tuple[str, str, str, Change, str]] = [
    (
        "metered",
        "power.csv",
        "the last",
        cells("power.csv", "watts", "1.0", lambda n: n - 1),
        MOMENT,
    ),
    (
        *("metered", "host.csv", "memory before the run"),
        cells("host.csv", "memory_available_bytes", "1", lambda _: 0),
        MOMENT,
    ),
    (
        *("server", f"{PERFORMANCE}run.json", "peak memory of the whole process"),
        content(f"{PERFORMANCE}run.json", at("ended.used.rss_peak_bytes", 1)),
        MOMENT,
    ),
    (
        *("server", "metrics.prom", "a latency"),
        text("metrics.prom", r"(harness_latency_seconds_sum\{.*\}) ", r"\1 9"),
        "its latencies count from another start than the journal's",
    ),
    (
        *("server", PERFORMANCE + DETAIL, "process ID of a line"),
        text(PERFORMANCE + DETAIL, '"pid": ', r"\g<0>9"),
        NO_WITNESS,
    ),
    (
        *("server", PERFORMANCE + DETAIL, "build date of LoadGen"),
        logged(PERFORMANCE, "loadgen_build_date_utc", '"2020"'),
        NO_WITNESS,
    ),
    (
        *("server", "notes.txt", "a new file"),
        lambda folder, _: (folder / "notes.txt").write_text("idle machine"),
        "a plug-in may write files, too",
    ),
]


def _edits() -> Iterator[Edit]:
    for run, key, new, found in LOG:
        yield Edit(run, PERFORMANCE + DETAIL, key, logged(PERFORMANCE, key, new), found)
    for key, new, found in IN_ACCURACY:
        yield Edit("server", ACCURACY + DETAIL, key, logged(ACCURACY, key, new), found)
    for run, file, place, value, found in JSON:
        yield Edit(run, file, place, content(file, at(place, value)), found)
    for run, file, about, old, new, found in TEXTS:
        yield Edit(run, file, about, text(file, old, new), found)
    yield from (Edit(*one) for one in (*OTHERS, *_answers()))
    for run, part, about, edits, found in COLUMNS:
        yield Edit(run, f"{part}completions.npz", about, columns(part, **edits), found)
    for file, about, column, new, row, found in TABLES:
        yield Edit("metered", file, about, cells(file, column, new, row), found)
    for file in ("power.csv", "host.csv"):
        yield Edit("metered", file, "removed", removed(file), file.removesuffix(".csv"))
    for run, file, about, change, why in SEAL_ALONE:
        yield Edit(run, file, about, change, "", why)


EDITS = list(_edits())
