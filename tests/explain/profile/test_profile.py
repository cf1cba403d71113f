"""`profile`: spans of all levels, the fifteen analyses, and the same tables from the folder alone."""

import csv
import io
import json
import math
import re
import shutil
import signal
from collections.abc import Sequence
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from harness.cli.main import main
from harness.core.config.run_config import RunConfig
from harness.core.signals import stoppable
from harness.core.stats import trimmed_mean
from harness.errors import ConfigError, HarnessError, PluginUnavailable
from harness.explain.kernels import layers as ly
from harness.explain.kernels.layers import Peaks
from harness.explain.profile.measure import memory
from harness.explain.profile.measure.counters import EVENTS, Counters
from harness.explain.profile.spans.spans import Span, chrome_trace, lanes, with_parents
from harness.explain.profile.tables.batch_tables import batch_tables
from harness.explain.profile.tables.folder import headline
from harness.explain.profile.tables.layer_tables import Profiled, layer_tables, most_time
from harness.explain.profile.tables.tables import _data, contended
from harness.explain.profile.tables.tables import tables as every_table
from harness.models.graph import onnx_file
from harness.models.graph.graph import Constant, Graph, Node, Tensor
from harness.results.answer import headline_in_short
from harness.results.optimal_batch import optimum
from harness.results.outcome import Finished
from harness.results.pages import tables
from harness.results.pages.tables import Column, Table
from harness.results.seal.digests import SEAL
from tests.builders.models import odd_files
from tests.builders.refusals import Said
from tests.builders.support import present
from tests.stand_ins.chromium import needs_chromium, shown
from tests.stand_ins.fake_peak import System, names
from tests.stand_ins.servers.metrics import otlp_collector


def span(number: int, level: str, start_ns: int, end_ns: int, **more: Any) -> Span:
    return Span(id=number, name=level, level=level, start_ns=start_ns, end_ns=end_ns, **more)


def test_parents_are_rebuilt_from_intervals_one_level_up() -> None:
    tree = [
        *(span(1, "model", 0, 100), span(2, "model", 100, 200)),
        *(span(3, "layer", 0, 40), span(4, "layer", 40, 100), span(5, "layer", 120, 199)),
        *(span(6, "library", 41, 50), span(7, "library", 130, 130)),
    ]
    parents = [(s.id, s.parent) for s in with_parents(tree)]
    assert sorted(parents) == [(1, None), (2, None), (3, 1), (4, 1), (5, 2), (6, 4), (7, 5)]


def test_a_span_with_two_possible_parents_is_flagged() -> None:
    found = with_parents([span(1, "model", 0, 9), span(2, "model", 0, 9), span(3, "layer", 1, 2)])
    assert (found[2].parent, found[2].ambiguous) == (None, True)
    alone = with_parents([span(1, "model", 0, 9), span(3, "layer", 1, 12)])
    assert (alone[1].parent, alone[1].ambiguous) == (None, False)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=12))
def test_a_parent_is_the_only_span_that_contains_the_child(
    intervals: list[tuple[int, int]],
) -> None:
    parents = [span(i, "model", a, a + n) for i, (a, n) in enumerate(intervals)]
    child = span(99, "layer", 20, 22)
    holding = [p.id for p in parents if p.start_ns <= 20 and p.end_ns >= 22]
    found = with_parents([*parents, child])[-1]
    assert found.parent == (holding[0] if len(holding) == 1 else None)
    assert found.ambiguous == (len(holding) > 1)


def test_overlapping_spans_get_separate_lanes() -> None:
    assert list(lanes([(0, 10), (5, 8), (8, 12), (10, 11)])) == [0, 1, 1, 0]


def test_a_chrome_trace_has_names_times_levels_and_its_id() -> None:
    found = chrome_trace([span(1, "model", 2_000, 5_500, tags={"a": 1})], "run", {})
    (event,) = [e for e in found["traceEvents"] if e["ph"] == "X"]
    assert (event["ts"], event["dur"], event["cat"]) == (0.0, 3.5, "model")
    assert event["args"] == {"id": 1, "level": "model", "trace_id": "run", "a": 1}


@pytest.mark.parametrize(
    ("throughput", "best"),
    [
        ({1: 100, 2: 104, 4: 300}, 1),  # the step from batch 1 to batch 2 gains 4 %
        ({1: 100, 2: 106, 4: 111, 8: 400}, 2),  # the step from 106 to 111 gains only 4.7 %
        # The best batch is unknown, because no larger batch was measured.
        ({1: 100, 2: 200, 4: 400}, None),
        ({1: 100}, None),
        ({1: 100, 2: 105}, 1),  # a gain of exactly 5 % is not more than 5 %
    ],
)
def test_the_optimal_batch_is_the_first_that_doubling_does_not_help(
    throughput: dict[int, float], best: int | None
) -> None:
    assert optimum(throughput) == (best, False)


def test_one_slow_batch_within_the_noise_does_not_end_the_search() -> None:
    dipped = {1: 100.0, 2: 104.0, 4: 300.0, 8: 305.0}
    assert optimum(dipped, dict.fromkeys(dipped, 0.01)) == (4, False)
    assert optimum(dipped, dict.fromkeys(dipped, 0.02)) == (4, True)
    times = [10.0, 11.0, 9.0, 10.0, 500.0]
    assert ly.uncertainty(times) == pytest.approx(1.4826 * 1.0 / 10 / 5**0.5)
    assert ly.uncertainty([7.0]) == 0.0


def test_the_dominant_third_is_named() -> None:
    assert ly.dominant([1, 1, 5, 6, 1, 1]) == "middle"
    assert ly.dominant([9, 1, 1, 1]) == "beginning"
    assert sum(ly.thirds([1, 2, 3, 4, 5])) == pytest.approx(1)
    assert ly.thirds([0, 0, 0]) == (0, 0, 0)


def test_the_ridge_is_flops_over_bandwidth() -> None:
    """The expected value follows XSP, section III-D: a V100 with 15.7 TFLOP/s and 900 GB/s."""
    peaks = Peaks(15.7e12, 900e9)
    assert round(peaks.ridge, 2) == 17.44
    assert [peaks.bound(i) for i in (17.0, 18.0, None)] == ["memory", "compute", None]


def test_a_table_says_the_same_in_text_json_and_csv() -> None:
    columns = (Column("name"), Column("mean time", "ns"), Column("share", "share"))
    table = Table("k", "T", "about", columns, [["a,b", 1_500_000.0, 0.25], ["c", None, None]])
    assert list(tables.lines(table))[2:] == [
        "  a,b     1.50 ms  25.0 %",
        "  c             -       -",
    ]
    assert table.to_json()["rows"][0] == {"name": "a,b", "mean_time_ns": 1.5e6, "share": 0.25}
    rows = list(csv.reader(tables.to_csv(table).splitlines()))
    assert rows == [["name", "mean_time_ns", "share"], ["a,b", "1500000.0", "0.25"], ["c", "", ""]]
    assert "1 more rows" in "\n".join(tables.lines(table, 1))


def chain(batch: int, *sizes: int) -> Graph:
    """Builds x -> t0 -> t1 ... sizes: number of float32 values per sample in each tensor."""
    names = ["x", *(f"t{i}" for i in range(len(sizes) - 1))]
    nodes = tuple(
        Node(i, "", "Relu", "", {}, (a,), (b,), False, None)
        for i, (a, b) in enumerate(pairwise(names))
    )
    sized = {n: Tensor("float32", (batch, s)) for n, s in zip(names, sizes, strict=True)}
    weights = {"w": Constant(Tensor("float32", (10,)), False, None)}
    return Graph(Path("m"), nodes, sized, weights, {}, ("x",), (names[-1],), {}, {}, None)


def test_activations_live_from_producer_to_last_consumer() -> None:
    found = memory.footprint(chain(1, 5, 100, 20, 30))
    assert (found.weights, found.inputs, found.activations) == (40, 20, 4 * 120)


def test_activations_grow_with_the_batch() -> None:
    points = {
        float(b): float(memory.footprint(chain(b, 5, 100, 20)).activations) for b in (1, 2, 4)
    }
    assert memory.slope(points) == pytest.approx(1.0)


def test_dimension_that_the_network_fixes_has_no_growth(tmp_path: Path) -> None:
    """Bug: activations of tokens expanded to a constant size were reported to grow with the sequence length ** 0.00."""
    ids, wide = (odd_files.value(n, ["n", 8], odd_files.INT64) for n in ("ids", "wide"))
    nodes = [
        helper.make_node("Gather", ["ids", "zero"], ["first"], axis=1),
        helper.make_node("Expand", ["first", "size"], ["wide"]),
    ]
    constants = {"zero": np.array([0]), "size": np.array([1, 100_000])}
    path = odd_files.write(tmp_path / "m.onnx", nodes, [ids], [wide], constants)
    shapes = {"ids": (1, 8)}
    grown = memory.measure(onnx_file.read(path, shapes=shapes), shapes)["growth"]
    assert len(grown["batch"]["points"]) > 1
    why = "the network fixes this size: all activations have the same size"
    assert grown["sequence length"] == {"points": {}, "refused": why}


def test_counters_count_or_have_a_reason() -> None:
    with Counters() as counters:
        counters.start()
        sum(range(200_000))
        counters.stop()
        found = counters.read()
    assert list(found) == list(EVENTS)
    assert all((r.value is None) == bool(r.reason) for r in found.values())
    clock = found["task-clock"]
    assert clock.value is None or clock.value > 100_000


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a profile of the digits model with all levels."""
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("profile") / "p"
    options = ["--queries", "64", "--runs", "5", "--batches", "1,2", "--threads", "1"]
    more = ["--no-metrics", "--quiet", "--out", str(folder)]
    with redirect_stdout(io.StringIO()) as told:
        assert main(["profile", *options, *more]) == 0
    folder.with_name("told.txt").write_text(told.getvalue())
    return folder


def stored(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "tables.json").read_text())
    return found


def column(folder: Path, key: str, name: str) -> Sequence[Any]:
    return [row[name] for row in stored(folder)[key]["rows"]]


def test_every_table_is_rebuilt_from_the_stored_files(
    profiled: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["profile", "--from", str(profiled), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == stored(profiled)
    assert main(["profile", "--from", str(profiled), "--out", str(tmp_path / "again")]) == 0
    made = [p.relative_to(profiled) for p in profiled.rglob("*") if p.is_file()]
    made = [p for p in made if p.parts[0] not in ("run", "profile.json", "ort_events.json", SEAL)]
    assert {p.name for p in made} >= {"tables.txt", "tables.json", "trace.json", "layers.csv"}
    for path in made:
        assert (tmp_path / "again" / path).read_bytes() == (profiled / path).read_bytes(), path
    capsys.readouterr()
    assert main(["profile", "--from", str(profiled)]) == 0
    results = f"\n{'results':<12}{profiled}\n"
    told = profiled.with_name("told.txt").read_text()
    assert told.startswith(capsys.readouterr().out + results)


def test_the_answer_is_from_the_unprofiled_run(
    profiled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = json.loads((profiled / "run" / "result.json").read_text())
    content = json.loads((profiled / "profile.json").read_text())
    assert content["run"]["answer"] == headline_in_short(result)
    main(["profile", "--from", str(profiled)])
    printed = capsys.readouterr().out
    assert printed.startswith(
        f"{'answer':<12}{content['run']['answer']}  (single-stream, VALID, not profiled)\n"
    )
    assert re.search(r"^most time +\d+ % of the kernels' time is in \d", printed, re.MULTILINE)
    levels = stored(profiled)["levels"]["rows"]
    assert [row["level"] for row in levels] == ["query", "batch", "stage", "model", "layer"]
    times = content["model"]["batches"]["1"]["wall_ns"]
    assert levels[3]["latency_ns"] == trimmed_mean(times)
    assert levels[4]["latency_ns"] - levels[4]["overhead_added_ns"] == pytest.approx(
        trimmed_mean(content["layer"]["profile"]["plain"]["wall_ns"])
    )


def test_a_profile_on_a_disturbed_machine_states_it() -> None:
    run = {"answer": None, "scenario": "offline", "verdict": "VALID", "doubts": ["padded"]}
    assert not any(line.startswith("machine") for line in headline(Profiled({"run": run})))
    disturbed = {**run, "doubts": ["busy-machine", "padded"]}
    told = "machine     not at rest (busy-machine): stop other programs and profile again"
    assert told in list(headline(Profiled({"run": disturbed})))


@pytest.mark.parametrize(
    ("throughput_per_s", "outcome"),
    [
        ({1: 100, 2: 190, 4: 370}, "more than 4: each doubling up to it gained more than 5 %"),
        ({1: 100, 2: 190, 4: 191}, "2: the smallest batch whose doubling gains at most 5 %"),
        ({1: 100}, "unknown: only batch 1 was measured"),
    ],
)
def test_optimal_batch_not_bracketed_is_stated(
    throughput_per_s: dict[int, float], outcome: str
) -> None:
    """Bug: the largest batch was called optimal although no batch of twice its size had been measured."""
    times = {
        str(batch): {"wall_ns": [batch * 10**9 / per_s] * 5, "cpu_ns": [1.0] * 5}
        for batch, per_s in throughput_per_s.items()
    }
    content = {"batch": 1, "model": {"batches": times, "skipped": {}}}
    model = next(one for one in every_table(Profiled(content)) if one.key == "model")
    assert model.notes[0] == f"optimal batch {outcome}"


def level_of(**times_ns: float) -> Any:
    """Returns kernels by name; the first letters of each name are its type."""
    layers = [SimpleNamespace(name=n, op_type=n[0], latency_ns=ns) for n, ns in times_ns.items()]
    by_type: dict[str, float] = {}
    for layer in layers:
        by_type[layer.op_type] = by_type.get(layer.op_type, 0.0) + layer.latency_ns
    groups = [SimpleNamespace(name=n, latency_ns=ns) for n, ns in by_type.items()]
    return SimpleNamespace(layers=layers, by_type=groups)


def test_a_sentence_says_where_most_time_is() -> None:
    """Bug: no line mentioned that two convolutions took 97 % of the time."""
    assert most_time(level_of(C1=50.0, R1=2.0, C2=47.0, M1=1.0)) == (
        "97 % of the kernels' time is in 2 of 4 kernels: C1 (C), C2 (C)"
    )
    many = {f"C{n}": 10.0 for n in range(9)} | {f"R{n}": 1.0 for n in range(9)}
    assert most_time(level_of(**many)) == (
        "91 % of the kernels' time is in 1 of 2 types of kernels: C"
    )
    even = level_of(**{f"{name}1": 1.0 for name in "ABCDE"})
    assert most_time(even) == "80 % of the kernels' time is in 4 of 5 types of kernels: A, B, C, …"


def test_layers_are_the_kernels_of_one_run(profiled: Path) -> None:
    events = json.loads((profiled / "ort_events.json").read_text())
    runs = sum(e["name"] == "model_run" for e in events)
    kernels = [e for e in events if e["cat"] == "Node"]
    assert len(stored(profiled)["layers"]["rows"]) * runs == len(kernels)
    assert all(column(profiled, "layers", "shape"))
    assert all(ns > 0 for ns in column(profiled, "layers", "latency_ns"))


def test_shares_by_type_and_by_phase_are_whole(profiled: Path) -> None:
    for key, name in (
        *(("types", "of_all_share"), ("types", "of_time_share"), ("types", "of_memory_share")),
        *(("layers", "share"), ("phases", "share"), ("stages", "share")),
    ):
        assert sum(column(profiled, key, name)) == pytest.approx(1, abs=1e-3), (key, name)


def test_kernels_and_named_overhead_add_up_to_the_call(profiled: Path) -> None:
    rows = {r["part"]: r["time_ns"] for r in stored(profiled)["accounted"]["rows"]}
    parts = [ns for name, ns in rows.items() if name[0] != "=" and name != "less the profiler"]
    assert sum(parts) == pytest.approx(rows["= the profiled call"], rel=0.02)
    less = rows["= the profiled call"] + rows["less the profiler"]
    assert less == pytest.approx(rows["= the call without the profiler"])


def test_the_work_of_the_digits_model_is_known(profiled: Path) -> None:
    # The model has two convolutions and two matrix products.
    macs = 9 * 16 * 64 + 16 * 9 * 32 * 64 + 512 * 128 + 128 * 10
    assert sum(column(profiled, "nodes", "work_MAC")) == macs
    assert column(profiled, "kernels", "read_bytes")[-1] == 4 * (128 + 128 * 10 + 10)
    bounds = column(profiled, "kernels", "bound")
    assert set(bounds) <= {"memory", "compute"}


def test_layers_by_batch_are_measured_at_each(profiled: Path) -> None:
    """Analysis A15 of the digits model with --batches 1,2: each batch reads the weights once."""
    content = json.loads((profiled / "profile.json").read_text())
    assert list(content["layer_batches"]["measured"]) == ["2"]
    one, two = stored(profiled)["whole_by_batch"]["rows"]
    assert (one["batch_count"], two["batch_count"]) == (1, 2)
    assert two["flops_FLOP"] == 2 * one["flops_FLOP"]
    assert one["moved_bytes"] < two["moved_bytes"] < 2 * one["moved_bytes"]
    assert two["intensity_FLOP_per_byte"] > one["intensity_FLOP_per_byte"]
    kernels = stored(profiled)["layers"]["rows"]
    assert one["memory-bound_count"] + one["compute-bound_count"] <= len(kernels)
    rows = stored(profiled)["kernels_by_batch"]["rows"]
    assert {row["kernel"] for row in rows} == {row["kernel"] for row in kernels}
    (conv, *_) = (row for row in rows if row["nodes_of_the_file"].startswith("Conv"))
    assert conv["intensity_at_2_FLOP_per_byte"] > conv["intensity_at_1_FLOP_per_byte"]


def test_a_refused_batch_is_noted_and_the_others_stay(profiled: Path) -> None:
    content = json.loads((profiled / "profile.json").read_text())
    content["layer_batches"]["skipped"] = {"4": "no"}
    whole, kernels = batch_tables(Profiled(content))
    assert "batch 4: no" in whole.notes
    assert len(kernels.rows) == len(content["layer"]["profile"]["kernels"])
    del content["peaks"]
    whole, kernels = batch_tables(Profiled(content))
    assert {row["bound"] for row in whole.to_json()["rows"]} == {None}
    del content["layer_batches"]
    assert list(batch_tables(Profiled(content))) == []


def test_uncounted_work_is_absent_and_not_zero(profiled: Path) -> None:
    content = json.loads((profiled / "profile.json").read_text())
    why = "reading a model's graph needs the module 'onnx'"
    content["layer"]["no_costs"] = why
    for node in content["layer"]["nodes"]:
        node |= {"macs": None, "flops": None, "shape": ""}
    made = {table.key: table for table in layer_tables(Profiled(content))}
    groups = made["types"].to_json()["rows"]
    work = {row["flops_FLOP"] for row in groups if "ReorderOutput" not in str(row)}
    assert work == {None}
    assert [row[0] for row in made["thirds"].rows] == ["latency", "allocated", "traffic"]
    whole = {str(row[0]) for row in made["whole"].rows}
    assert whole == {"nodes in the file", "kernels executed", "bytes per call"}
    assert made["whole"].notes == [f"no FLOPs: {why}"]


def _data_table(**data: Any) -> Table | None:
    content = {"data": {"dataset": "digits", **data}}
    return next(iter(_data(content)), None)


def test_noise_is_compared_only_where_the_calls_support_it() -> None:
    """Bug: for a synthetic dataset, noise was compared with noise: -28.7 %, +126.5 %."""
    calls = [100, 104, 97, 101, 99, 103, 102, 98]
    side = {"wall_ns": calls}
    assert _data_table(missing="the dataset is synthetic") is None
    same = present(_data_table(real=side, synthetic={"wall_ns": calls[::-1]}))
    assert [row[2] for row in same.rows] == [None, None]
    assert same.notes == ["no difference is shown: it is within the variation of the calls"]
    slower = present(_data_table(real=side, synthetic={"wall_ns": [2 * ns for ns in calls]}))
    assert [row[2] for row in slower.rows] == [None, 1.0]
    assert slower.notes == []


def test_tables_have_plain_titles_and_none_repeats_another(profiled: Path) -> None:
    """Bug: titles contained a paper's codes, and the table `kinds` repeated `types` if no kernel was fused."""
    content = json.loads((profiled / "profile.json").read_text())
    made = {table.key: table for table in every_table(Profiled(content))}
    assert not [table.about for table in made.values() if re.search(r"\bA\d", table.about)]
    assert "kinds" not in made
    conv = next(k for k in content["layer"]["profile"]["kernels"] if k["op_type"] == "Conv")
    conv["nodes"] = conv["nodes"][:1]
    assert "kinds" in {table.key for table in layer_tables(Profiled(content))}


def test_the_trace_has_every_call_and_kernel_within_its_parent(profiled: Path) -> None:
    trace = json.loads((profiled / "trace.json").read_text())
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    by_id = {e["args"]["id"]: e for e in events}
    assert len(by_id) == len(events)
    levels = [e["args"]["level"] for e in events]
    assert levels.count("query") == 64
    assert levels.count("stage") == 4 * levels.count("batch")
    assert levels.count("model") == 5 + 5  # the five calls run once bare and once profiled
    assert levels.count("layer") == 5 * len(stored(profiled)["layers"]["rows"])
    for event in events:
        level, parent = event["args"]["level"], by_id.get(event["args"].get("parent"))
        assert (parent is None) == (level in ("query", "model")), event
        assert event["args"]["trace_id"]
        if parent is not None:
            assert event["ts"] >= parent["ts"] - 1
            assert event["ts"] + event["dur"] <= parent["ts"] + parent["dur"] + 1


def test_headers_of_the_environment_go_only_to_its_collector(
    profiled: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    again = ["profile", "--from", str(profiled), "--table", "levels", "--otlp"]
    with otlp_collector.collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s3cret-of-mine")
        assert main([*again, "env"]) == 0
        assert main([*again, collector.address]) == 0
    keys = [headers.get("api-key") for headers in collector.headers]
    assert set(keys[: len(keys) // 2]) == {"s3cret-of-mine"}
    # The key is not sent, because the URL belongs to a different server.
    assert set(keys[len(keys) // 2 :]) == {None}
    shown = capfd.readouterr()
    assert f"spans to {collector.address}/v1/traces\n" in shown.err
    assert "s3cret" not in shown.out + shown.err
    files = [path for path in profiled.rglob("*") if path.is_file()]
    assert not [path for path in files if b"s3cret" in path.read_bytes()]
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    assert main([*again, "env"]) == 2


def test_otlp_has_the_spans_of_the_trace_file(profiled: Path, tmp_path: Path) -> None:
    trace = json.loads((profiled / "trace.json").read_text())
    events = {e["args"]["id"]: e for e in trace["traceEvents"] if e["ph"] == "X"}
    file = tmp_path / "spans.jsonl"
    again = ["profile", "--from", str(profiled), "--table", "levels", "--otlp"]
    assert main([*again, str(file)]) == 0
    spans = [s for line in file.read_bytes().splitlines() for s in otlp_collector.spans_of(line)]
    with otlp_collector.collecting() as collector:
        assert main([*again, collector.address]) == 0
    assert len(collector.received) == len(spans) == len(events)
    assert collector.received == spans
    for span in spans:
        event = events[int.from_bytes(span.span_id)]
        parent = int.from_bytes(span.parent_span_id) or None
        assert (span.name, parent) == (event["name"], event["args"].get("parent"))
        took_ns = span.end_time_unix_nano - span.start_time_unix_nano
        assert took_ns == pytest.approx(event["dur"] * 1e3)
    assert main([*again, str(file)]) == 2  # `profile` never overwrites an existing file


def test_missing_counters_have_a_reason(profiled: Path) -> None:
    for row in stored(profiled)["hardware"]["rows"]:
        assert (row["per_call_count"] is None) == bool(row["reason"])


def test_only_the_levels_asked_for_leave_spans(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    out = tmp_path / "p"
    arguments = ["profile", "--levels", "model", "--runs", "5", "--batches", "1", "--quiet"]
    assert main([*arguments, "--no-report", "--out", str(out)]) == 0
    trace = json.loads((out / "trace.json").read_text())
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert [e["args"]["level"] for e in spans] == ["model"] * 5
    assert not (out / "run").exists()


def test_a_run_folder_alone_shows_its_levels(profiled: Path, prints: Said) -> None:
    found = json.loads(prints("profile", "--from", profiled / "run", "--json"))
    assert list(found) == ["levels", "stages", "phases", "batches"]
    assert found["stages"] == stored(profiled)["stages"]


@pytest.mark.parametrize(
    ("error", "status"), [(ConfigError("too large"), 2), (PluginUnavailable("no module"), 3)]
)
def test_a_start_that_fails_leaves_nothing(
    error: HarnessError, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.run.supervisor.job.measure", System(1.0, {1: error}))
    assert main(["profile", "--quiet", "--out", str(tmp_path / "p")]) == status
    assert names(tmp_path) == []


def test_a_stopped_profile_names_its_folder_and_keeps_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(config: RunConfig, **_: object) -> Finished:
        # The signal arrives in a section that must not be interrupted, so the section ends before the signal is
        # handled.
        with stoppable():
            signal.raise_signal(signal.SIGTERM)
            return System(1.0)(config)

    monkeypatch.setattr("harness.run.supervisor.job.measure", stopped)
    assert main(["profile", "--quiet", "--out", str(tmp_path / "p")]) == 128 + signal.SIGTERM
    assert names(tmp_path / "p.partial") == [SEAL, "profile.json", "run"]
    told = capsys.readouterr()
    assert f"profile --from {tmp_path}/p.partial shows the results so far" in told.err
    assert told.out == ""


def test_mistakes_are_reported_in_one_line_each(
    profiled: Path, tmp_path: Path, refuses: Said
) -> None:
    for arguments, message in (
        (
            ["--levels", "model,kernel"],
            "--levels: 'kernel' is not one of query, batch, stage, model",
        ),
        (["--levels", ","], "--levels: '' is not one of query, batch, stage, model"),
        (["--from", str(tmp_path / "no")], "does not exist"),
        (["--from", str(tmp_path)], "has neither profile.json nor result.json"),
        (["--from", str(profiled), "--table", "x"], "--table x: "),
        (["--mode", "accuracy"], "profile measures speed: drop --mode"),
        (
            ["--from", str(profiled), "--threads", "2", "--batch", "4", "--json"],
            "--from reads a folder and runs nothing: drop --batch, --threads",
        ),
    ):
        assert message in refuses("profile", *arguments)


def test_a_changed_profile_is_refused_in_one_line_in_every_view(
    profiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = json.loads((profiled / "profile.json").read_text())
    folder, out = tmp_path / "changed", tmp_path / "again"
    shutil.copytree(profiled, folder)
    incomplete = {"run": {"answer": "p90 1 ms"}}
    count = {"hardware": {**whole["hardware"], "per_call": {event: [1] for event in EVENTS}}}
    for changed, how in ((incomplete, []), (count, []), ({"batch": math.inf}, ["--json"])):
        (folder / "profile.json").unlink()
        (folder / "profile.json").write_text(json.dumps({**whole, **changed}))
        for arguments in (how, ["--out", str(out)]):
            assert main(["profile", "--from", str(folder), *arguments]) == 2
            told = capsys.readouterr().err
            assert re.match(
                rf"harness: {folder}(: its files do not fit together|/profile.json is not valid JSON): ",
                told,
            )
            assert told.count("\n") == 1
            assert not list(tmp_path.glob("again*"))


@pytest.mark.slow
def test_a_resnet_50_matches_the_published_numbers(tmp_path: Path) -> None:
    """Sources: Benanza, table I (175 layers, 3.87 GMAC), and XSP (convolutions take most of the time)."""
    pytest.importorskip("onnxruntime")
    out = tmp_path / "p"
    levels = ["--levels", "model,layer", "--batches", "1", "--runs", "5", "--threads", "1"]
    arguments = ["--model", "zoo/resnet50_v1", *levels, "--quiet", "--no-report"]
    assert main(["profile", *arguments, "--out", str(out)]) == 0
    nodes = stored(out)["nodes"]["rows"]
    assert len(nodes) == 175
    assert 3.85e9 <= sum(row["work_MAC"] for row in nodes) <= 3.87e9
    assert all(row["kernels"] or row["eliminated"] for row in nodes)
    # In ONNX Runtime 1.31, fusion turns 175 nodes into 58 kernels.
    assert 50 <= len(stored(out)["kernels"]["rows"]) <= 70
    assert column(out, "types", "type")[0] == "Conv"
    parts = {row["part"]: row["time_ns"] for row in stored(out)["accounted"]["rows"]}
    kernels = sum(ns for name, ns in parts.items() if name.startswith("kernels "))
    assert 0 <= 1 - kernels / parts["= the profiled call"] <= 0.10
    sizes = {row["memory"]: row["bytes"] for row in stored(out)["memory"]["rows"]}
    assert sizes["weights"] / 2**20 == pytest.approx(97.7, abs=0.1)
    grown = [r for r in stored(out)["growth"]["rows"] if r["by"] == "image area"]
    assert len(grown) >= 4
    per_pixel = [row["activations_bytes"] / row["size_count"] for row in grown]
    assert max(per_pixel) == pytest.approx(min(per_pixel), rel=0.05)


def test_the_page_names_the_whole_time_and_the_time_of_each_box(profiled: Path) -> None:
    page = (profiled / "profile.html").read_text()
    headline = re.search(r'<p class="headline">(.*?)</p><p class="lead">(.*?)</p>', page)
    assert headline is not None
    assert re.fullmatch(r"Mean [\d.]+\u00a0\S+ per query", headline[1])
    assert "of the kernels&#x27; time is in" in headline[2]
    (flame,) = re.findall(
        r'"type": "icicle".*?"texttemplate": "%{label}<br>%{text}"', page.replace("\\u003c", "<")
    )
    assert f'"text": ["{headline[1].removeprefix("Mean ").removesuffix(" per query")}", ' in flame


@pytest.mark.slow
@needs_chromium()
def test_the_page_draws_all_plots_without_console_messages(profiled: Path) -> None:
    pytest.importorskip("plotly")
    found = shown(profiled / "profile.html")
    assert found.console == []
    assert found.drawn >= 5
    assert "iciclelayer" in found.document


def _calls(wall_ns: int, cpu_ns: int, last_ns: int = 0) -> dict[str, list[int]]:
    return {"wall_ns": [wall_ns] * 9 + [last_ns or wall_ns], "cpu_ns": [cpu_ns] * 10}


@pytest.mark.parametrize(
    ("threads", "calls", "note"),
    [
        (1, _calls(300, 100), "Contended: a call took 3.00 times its CPU time, load average 9.0 to"),
        (1, _calls(100, 100), None),
        (2, _calls(300, 600, last_ns=100), "Unsteady: the mean call took 3.00 times the fastest one"),
        (2, _calls(110, 200, last_ns=100), None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["plain", "profiled"])
def test_calls_disturbed_by_other_programs_are_noted(
    kind: str, threads: int, calls: dict[str, list[int]], note: str | None
) -> None:
    """Bug: with two threads, the means were three times the medians, and no message said so."""
    load = {"before": 9.0, "after": 9.5}
    profile = {"plain": _calls(100, 100), "profiled": _calls(100, 100)} | {kind: calls}
    content = {"layer": {"profile": profile}, "threads": threads, "load_average": load, "batch": 1}
    assert [line[: len(note or "")] for line in contended(content)] == ([note] if note else [])


def test_a_file_of_a_fixed_batch_is_profiled_only_at_that_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: the message was "batch 2: negative dimensions are not allowed"."""
    pytest.importorskip("onnx")
    path = odd_files.fixed(tmp_path / "m.onnx", 1)
    out = tmp_path / "p"
    options = ["--model", str(path), "--levels", "model", "--runs", "5", "--no-report"]
    assert main(["profile", *options, "--batches", "1,2", "--out", str(out)]) == 0
    assert "the file fixes the batch at 1: no other batch is measured" in capsys.readouterr().err
    assert list(json.loads((out / "profile.json").read_text())["model"]["batches"]) == ["1"]
