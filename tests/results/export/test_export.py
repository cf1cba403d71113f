"""Every format contains the run's numbers, and no format hides an INVALID run."""

import csv
import io
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pyarrow.parquet as pq
import pytest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from harness.cli.main import main
from harness.core.files import read_json
from harness.results.export import github
from harness.results.export.formats import FORMATS
from harness.results.export.parquet import METADATA
from harness.results.run_files import read_files
from tests.builders.edited import edit
from tests.builders.finished import REASON, RUNS, invalid
from tests.builders.refusals import Said

Exported = Callable[..., str]


@pytest.fixture
def exported(capsys: pytest.CaptureFixture[str]) -> Exported:
    """Returns the output of `export`, which must accept the run."""

    def export(folder: Path, kind: str, *words: str) -> str:
        assert main(["export", str(folder), "--format", kind, *words]) == 0
        return capsys.readouterr().out

    return export


def stored(name: str) -> dict[str, Any]:
    with np.load(RUNS / name / "performance/run_1/completions.npz") as file:
        return dict(file)


def result(name: str) -> Mapping[str, Any]:
    return read_json(RUNS / name / "result.json")


@pytest.mark.parametrize("name", ["server", "offline"])
def test_parquet_has_the_columns_and_types_of_completions_npz(
    name: str, exported: Exported, tmp_path: Path
) -> None:
    out = tmp_path / "run.parquet"
    assert exported(RUNS / name, "parquet", "--out", str(out)) == ""
    table, columns = pq.read_table(out), stored(name)
    assert {*table.column_names} == {*columns, "verdict"}
    for column, values in columns.items():
        assert table[column].to_numpy().dtype == values.dtype
        assert (table[column].to_numpy() == values).all()
    assert set(table["verdict"].to_pylist()) == {"VALID"}
    facts = json.loads(table.schema.metadata[METADATA])
    assert (facts["run"], facts["verdict"], facts["reasons"]) == (name, "VALID", [])


def test_rows_of_csv_and_json_lines_are_those_of_completions_npz(exported: Exported) -> None:
    columns = stored("server")
    rows = [*csv.DictReader(io.StringIO(exported(RUNS / "server", "csv")))]
    objects = [json.loads(line) for line in exported(RUNS / "server", "jsonl").splitlines()]
    assert len(rows) == len(objects) == len(columns["order"]) == 64
    for name, values in columns.items():
        assert [int(row[name]) for row in rows] == [one[name] for one in objects] == values.tolist()
    assert {row["verdict"] for row in rows} == {one["verdict"] for one in objects} == {"VALID"}


def test_an_accuracy_run_alone_is_exported_too(exported: Exported, tmp_path: Path) -> None:
    run = invalid("server", tmp_path)
    (run / "performance/run_1/run.json").unlink()
    with np.load(run / "accuracy/completions.npz") as file:
        samples = len(file["order"])
    assert len(exported(run, "jsonl").splitlines()) == samples == 20


def test_entries_for_github_are_numbers_of_which_less_is_better(exported: Exported) -> None:
    entries = {one["name"]: one for one in json.loads(exported(RUNS / "server", "github"))}
    of_run = result("server")
    assert all(
        one.keys() <= {"name", "unit", "value", "range", "extra"} for one in entries.values()
    )
    assert all(isinstance(one["value"], int | float) for one in entries.values())
    p90 = entries["server ort digits: p90"]
    assert (p90["unit"], p90["value"]) == ("ns", of_run["latency_ns"]["p90"])
    assert "range" not in p90  # 64 queries are too few for an interval
    assert not [name for name in entries if "accuracy" in name or "per sample" in name]


def test_an_entry_has_the_farther_end_of_its_interval() -> None:
    run = read_files(RUNS / "server", with_evidence=False)
    p90 = run.result["latency_ns"]["p90"]
    bounded = {"p90": {"block_interval": [p90 - 1000, p90 + 2000]}, "level": 0.95}
    tokens = {"ttft_ns": {"p99": 10}}
    more = {"latency_intervals_ns": bounded, "tokens": tokens, "latency_ns": {"p90": p90}}
    entries = {
        one["name"]: one for one in github.entries(run._replace(result={**run.result, **more}))
    }
    assert entries["server ort digits: p90"]["range"] == "± 2000"
    assert "range" not in entries["server ort digits: ttft_p99"]


def test_the_rate_of_offline_is_the_time_of_a_sample_for_github(exported: Exported) -> None:
    first, *others = json.loads(exported(RUNS / "offline", "github"))
    rate = result("offline")["throughput_per_s"]["completed"]
    assert first["name"] == "offline ort digits: time per sample"
    assert first["value"] == pytest.approx(1e9 / rate)
    assert [one["name"].partition(": ")[2] for one in others] == ["cpu"]


JUNIT: Mapping[str, tuple[set[str], set[str]]] = {
    "testsuites": ({"testsuite"}, set()),
    "testsuite": (
        {"properties", "testcase", "system-out", "system-err"},
        {
            *("name", "package", "id", "tests", "failures", "errors", "skipped"),
            *("time", "timestamp", "hostname"),
        },
    ),
    "properties": ({"property"}, set()),
    "property": (set(), {"name", "value"}),
    "testcase": ({"failure"}, {"name", "classname", "time"}),
    "failure": (set(), {"type", "message"}),
    "system-out": (set(), set()),
    "system-err": (set(), set()),
}
"""Maps an element to its child elements and attributes that junit-10.xsd and Apache Ant's JUnit.xsd share; the second
schema demands every attribute, and the children of a suite in this order.
"""


def junit(text: str) -> ET.Element:
    root = ET.fromstring(text)
    for element in root.iter():
        children, attributes = JUNIT[element.tag]
        assert {child.tag for child in element} <= children
        assert element.attrib.keys() == attributes
    (suite,) = root
    assert list(dict.fromkeys(child.tag for child in suite)) == [
        *("properties", "testcase", "system-out", "system-err")
    ]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.attrib["timestamp"])
    assert float(suite.attrib["time"]) > 0
    return root


def test_junit_has_one_case_that_passes_for_a_valid_run(exported: Exported) -> None:
    root = junit(exported(RUNS / "server", "junit"))
    (suite,) = root
    (case,) = suite.iter("testcase")
    assert (case.get("name"), len(case)) == ("VALID", 0)
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["1", "0", "0"]
    numbers = {one.get("name"): one.get("value") for one in suite.iter("property")}
    assert float(str(numbers["p99 [ns]"])) == result("server")["latency_ns"]["p99"]


def families_of(text: str) -> dict[str, Metric]:
    families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    return {one.name: one for one in families}


def test_openmetrics_is_read_by_its_own_parser(exported: Exported) -> None:
    families = families_of(exported(RUNS / "server", "openmetrics"))
    of_run = result("server")
    latency = families["harness_latency_percentile_seconds"].samples
    p99 = next(one for one in latency if one.labels["quantile"] == "0.99")
    assert p99.value == of_run["latency_ns"]["p99"] / 1e9
    assert {k: p99.labels[k] for k in ("run", "scenario", "backend", "model")} == {
        "run": "server",
        "scenario": "server",
        "backend": "ort",
        "model": "digits",
    }
    assert [one.value for one in families["harness_run_valid"].samples] == [1.0]
    doubts = [one.labels["code"] for one in families["harness_run_doubt"].samples]
    assert doubts == [one["code"] for one in of_run["doubts"]]


@pytest.mark.parametrize(("verdict", "status"), [("VALID", "FINISHED"), ("INVALID", "FAILED")])
def test_mlflow_reads_its_run(
    verdict: str, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RUNS / "server" if verdict == "VALID" else invalid("server", tmp_path)
    store = tmp_path / "mlruns"
    for name in (str(run), str(RUNS / "offline")):
        assert main(["export", name, "--format", "mlflow", "--out", str(store)]) == 0
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    # The import comes after `export`, which disables MLflow's usage reports.
    from mlflow import MlflowClient

    client = MlflowClient(store.as_uri())
    one = client.get_experiment_by_name("mlperf-harness")
    (read,) = client.search_runs([one.experiment_id], "params.scenario = 'server'")
    of_run = result("server")
    assert (read.info.status, read.info.run_name) == (status, run.name)
    assert 0 < read.info.end_time - read.info.start_time < 60_000
    assert read.data.metrics["p99_ns"] == of_run["latency_ns"]["p99"]
    throughput = of_run["throughput_per_s"]["completed"]
    assert read.data.metrics["throughput_samples_per_s"] == throughput
    assert (read.data.params["target_qps"], read.data.params["slo"]) == ("200.0", "p90=5s")
    tags = read.data.tags
    assert tags["harness.verdict"] == verdict
    assert tags.get("harness.reasons", "") == ("" if verdict == "VALID" else REASON["code"])
    assert [a.path for a in client.list_artifacts(read.info.run_id)] == ["result.json"]


def test_the_store_of_mlflow_takes_many_runs_and_each_of_them_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--format", "mlflow", "--out", str(tmp_path / "store")]
    assert main(["export", str(RUNS / "server"), *words]) == 0
    assert main(["export", str(RUNS / "offline"), *words]) == 0
    runs = [*(tmp_path / "store").glob("*/*/meta.yaml")]
    assert len(runs) == 2
    assert len({run.parent.parent for run in runs}) == 1
    capsys.readouterr()
    assert main(["export", str(RUNS / "server"), *words]) == 2
    message = capsys.readouterr().err
    assert f"store: {RUNS / 'server'} was exported there before, as run " in message
    assert [*(tmp_path / "store").glob("*/*/meta.yaml")] == runs


@pytest.mark.parametrize("kind", sorted({*FORMATS} - {"benchmark-report", "otlp"}))
def test_no_format_hides_an_invalid_run(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = invalid("server", tmp_path), tmp_path / "out"
    assert main(["export", str(run), "--format", kind, "--out", str(out)]) == 0
    assert capsys.readouterr().err == f"harness: {run} is INVALID: its numbers must not be quoted\n"
    text = out.read_text(encoding="utf-8") if FORMATS[kind].is_text else ""
    assert "\x1b" not in text
    if kind in ("csv", "jsonl"):
        assert all("INVALID" in line for line in text.splitlines()[1:])
    elif kind == "parquet":
        assert set(pq.read_table(out)["verdict"].to_pylist()) == {"INVALID"}
    elif kind == "github":
        names = [one["name"] for one in json.loads(text)]
        assert all(name.startswith("INVALID server") for name in names)
        assert all(REASON["code"] in one["extra"] for one in json.loads(text))
    elif kind == "junit":
        (failure,) = junit(text).iter("failure")
        assert (failure.text or "").startswith("<LoadGen> says \\x1b[31mINVALID")
        (suite,) = junit(text)
        assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    elif kind == "openmetrics":
        families = families_of(text)
        assert [one.value for one in families["harness_run_valid"].samples] == [0.0]
        (reason,) = families["harness_run_reason"].samples
        assert reason.labels["code"] == REASON["code"]
    else:
        (verdict,) = out.glob("*/*/tags/harness.verdict")
        assert verdict.read_text() == "INVALID"


def test_a_source_of_power_names_no_folder_of_the_store(tmp_path: Path) -> None:
    """A run's folder may come from anyone, so its names must not lead outside the store."""
    run = invalid("server", tmp_path)
    reading = {"source": "../../../out", "joules_per_sample": 1.0, "joules_per_query": 1.0}
    power = {"readings": [{**reading, "mean_watts": 1.0}]}
    edit(run / "result.json", lambda said: said.update(power=power))
    (run / "config.yaml").write_text("'../../../x': 1\nscenario: server\n")
    store = tmp_path / "store"
    assert main(["export", str(run), "--format", "mlflow", "--out", str(store)]) == 0
    names = [path.name for path in store.glob("*/*/metrics/*")]
    assert "joules_per_sample..._.._.._out_J" in names
    assert [path.name for path in store.glob("*/*/params/*")] == ["scenario"]
    assert not [p for p in tmp_path.rglob("*out*") if store not in p.parents]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--format", "parquet"], "harness: --format parquet cannot be printed: pass --out\n"),
        (["--format", "xml"], "'xml' is not one of parquet, csv, jsonl"),
        ([], "--format"),
        (["--format", "csv", "--out", "{run}/result.json"], "already exists and will not be overwritten"),
        (["--format", "csv", "--out", "{run}/no/x.csv"], "cannot be written: No such file"),
        (["--format", "mlflow", "--out", "{run}/result.json"], "cannot be written: Not a directory"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_reported_in_one_line_and_changes_nothing(
    words: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = invalid("server", tmp_path)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert main(["export", str(run), *(word.format(run=run) for word in words)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert problem.rstrip() in line
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_run_without_samples_is_reported_in_one_line(tmp_path: Path, refuses: Said) -> None:
    run = invalid("offline", tmp_path)
    (run / "performance/run_1/run.json").unlink()
    assert refuses("export", run, "--format", "csv") == f"{run} has no completed samples"
    assert main(["export", str(run), "--format", "junit"]) == 0


def test_large_numbers_stay_integers_in_text(exported: Exported) -> None:
    """A float cannot represent a time of 1.8e18 ns since 1970 exactly."""
    last = exported(RUNS / "server", "csv").splitlines()[-1].split(",")
    assert int(last[-2]) == int(stored("server")["completed_ns"][-1])
    assert math.log10(int(last[-2])) > 18
