"""RunConfig: parsers, the round trip through YAML, contradictions, and the report of all problems at once."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.core.config.parse import (
    Slo,
    bounded,
    parse_arrivals,
    parse_backend_option,
    parse_device,
    parse_input_shape,
    parse_key_value,
    parse_meter,
    parse_on_off,
    parse_path,
    parse_positive_duration_ns,
    parse_rate,
    parse_scenario,
    parse_slo,
    words_of,
)
from harness.core.config.run_config import RunConfig, config_from, from_plain, make_config, to_plain
from harness.core.config.schema import DISPATCHES, MAX_BATCH, MAX_SEED, MODES
from harness.core.registry import SCENARIOS
from harness.core.units import NS_PER_MS
from tests.builders.refusals import refusal, refusals

Parser = Callable[[str], Any]


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_scenario, "server", "server"),
        (parse_scenario, "Server", "server"),
        (parse_scenario, "SingleStream", "single-stream"),
        (parse_scenario, "MultiStream", "multi-stream"),
        (parse_scenario, "OFFLINE", "offline"),
        (parse_slo, "p99=15ms", Slo(0.99, 15 * NS_PER_MS)),
        (parse_slo, " p99.9=1s ", Slo(0.999, 1000 * NS_PER_MS)),
        (parse_slo, "p50=1ns", Slo(0.5, 1)),
        (parse_slo, "ttft:p99=2s", Slo(0.99, 2000 * NS_PER_MS, "ttft")),
        (parse_slo, "itl:p99.9=1ms", Slo(0.999, NS_PER_MS, "itl")),
        (parse_slo, "p99.99=1h", Slo(0.9999, 3600 * 1000 * NS_PER_MS)),
        (parse_rate, "1e9", 1e9),
        (parse_rate, "0.5", 0.5),
        (parse_rate, "12,345", 12345.0),
        (parse_positive_duration_ns, "1ns", 1),
        (bounded(0, MAX_SEED), "18446744073709551615", MAX_SEED),
        (bounded(1, 1000), "1,000", 1000),
        (parse_input_shape, "ids=1x128", ("ids", (1, 128))),
        (parse_input_shape, "x=1", ("x", (1,))),
        (parse_key_value, "a = b=c ", ("a", "b=c")),
        (parse_key_value, "a=", ("a", "")),
        (parse_meter, "rapl", ("rapl", "")),
        (parse_meter, "rapl=/host/sys", ("rapl", "/host/sys")),
        (parse_meter, "command=pdu --id=3", ("command", "pdu --id=3")),
        (words_of(("a", "b")), "b, a,b", ("b", "a")),
        (parse_on_off, "on", True),
        (parse_on_off, "off", False),
        (parse_device, "cuda", "cuda"),
        (parse_device, " cuda:0,12 ", "cuda:0,12"),
    ],
)
def test_a_value_is_accepted(parse: Parser, text: str, value: object) -> None:
    assert parse(text) == value


RATE = "must be more than 0 and at most 1e9 queries/s"
SHAPE = "is not an input shape: write NAME=1xDIM[xDIM...]"


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_scenario, "serve", "no scenario named 'serve': choose from single-stream, multi-stream, server, offline"),
        (parse_slo, "15ms", "'15ms' is not an SLO: write percentile=bound, e.g. p99=15ms for the latency, which has no prefix, or ttft:p99=2s for token times (ttft, tpot, itl)"),
        (parse_slo, "p49.9=1ms", "percentile p49.9 must be between p50 and p99.99"),
        (parse_slo, "p100=1ms", "percentile p100 must be between p50 and p99.99"),
        (parse_slo, "p99=0ms", "bound 0ms must be more than 0"),
        (parse_slo, "p99=15", "'15' is not a duration: write it with its unit, e.g. 500us, 15ms, 2s"),
        (parse_rate, "fast", "'fast' is not a number"),
        (parse_rate, "0", f"0 {RATE}"),
        (parse_rate, "-1", f"-1 {RATE}"),
        (parse_rate, "nan", f"nan {RATE}"),
        (parse_rate, "inf", f"inf {RATE}"),
        (parse_rate, "2e9", f"2e9 {RATE}"),
        (parse_positive_duration_ns, "0s", "0s must be more than 0"),
        (parse_positive_duration_ns, "0.1ns", "0.1ns must be more than 0"),
        (bounded(1, 65536), "0", "0 must be between 1 and 65,536"),
        (bounded(1, 65536), "65537", "65537 must be between 1 and 65,536"),
        (bounded(1, 65536), "1.0", "'1.0' is not a whole number: write 1"),
        (bounded(1, 65536), "1.5", "'1.5' is not a whole number"),
        (bounded(1, 65536), "inf", "'inf' is not a whole number"),
        (bounded(1, 65536), "0x" + "f" * 5000, f"'0x{'f' * 5000}' is not a whole number"),
        (bounded(1, 65536), "9" * 5000, f"'{'9' * 5000}' is not a whole number"),
        (bounded(1, 65536), "1e3", "'1e3' is not a whole number: write 1000"),
        (bounded(1, 65536), "0x20", "'0x20' is not a whole number: write 32"),
        (bounded(1, 65536), "0o17", "'0o17' is not a whole number: write 15"),
        (bounded(1, 65536), "0310", "'0310' begins with 0: write 310, or 200 if it is octal"),
        (bounded(1, 65536), "08", "'08' begins with 0: write 8"),
        (parse_input_shape, "128", f"'128' {SHAPE}"),
        (parse_input_shape, "ids=1x", f"'ids=1x' {SHAPE}"),
        (
            parse_input_shape,
            "ids=1xseq",
            (
                f"'ids=1xseq' {SHAPE} with numbers, e.g. ids=1x64; the size of a named dimension applies to "
                "every input that has it"
            ),
        ),
        (parse_input_shape, "=1x2", f"'=1x2' {SHAPE}"),
        (parse_input_shape, "ids=1x0", "'ids=1x0' has a dimension of 0"),
        (parse_input_shape, "ids=4x2", "'ids=4x2' must begin with 1, the batch of one sample: --max-batch sets the batch size"),
        (parse_path, "", "the name is empty"),
        (
            parse_arrivals,
            "ramp:5,step=1ms",
            "'ramp:5,step=1ms': a step must last 100ms or more, or it may end without an answer",
        ),
        (parse_path, "out\udcff", "'out\\udcff' is not UTF-8: rename it"),
        (words_of(("a", "b")), "a,,b", "'' is not one of a, b"),
        (parse_on_off, "yes", "'yes' is neither on nor off"),
        *(
            (
                parse_device,
                text,
                f"{text!r} is not a device: write cpu, cuda, or the numbers of GPUs as in cuda:0,1",
            )
            for text in ("gpu", "cpu:0", "cuda:", "cuda:x", "cuda:0,0", "cuda:-1", "cuda:00", "")
        ),
        (parse_key_value, "spinning", "'spinning' is not KEY=VALUE"),
        (parse_key_value, "=on", "'=on' is not KEY=VALUE"),
    ],
)  # fmt: skip
def test_a_value_is_refused_with_a_sentence(parse: Parser, text: str, message: str) -> None:
    assert refusal(parse, text, error=ValueError) == message


@pytest.mark.parametrize("text", ["1,5", "0,5", "1,50", "12,34", "1,2345"])
def test_a_decimal_comma_is_refused(text: str) -> None:
    """Bug: --target-qps 1,5 meant 15 queries/s."""
    for parse in (parse_rate, bounded(1, 10**6)):
        with pytest.raises(ValueError, match=f"^'{text}' is not "):
            parse(text)


@pytest.mark.parametrize(
    ("parse", "text"), [(parse_slo, "p99=9999999h"), (parse_positive_duration_ns, f"1{'0' * 400}s")]
)
def test_a_time_that_loadgen_cannot_count_is_refused(parse: Parser, text: str) -> None:
    """Bug: LoadGen's int64 time in ns, or a float, overflowed in the measured process and caused a traceback."""
    with pytest.raises(ValueError, match=r"^\S.+$"):
        parse(text)


def test_the_largest_batch_is_limited_by_the_journal() -> None:
    """Bug: 65536 was accepted and silently became 65535."""
    problems: list[str] = []
    assert config_from({"max_batch": MAX_BATCH}, "x", problems) == {"max_batch": MAX_BATCH}
    assert config_from({"max_batch": MAX_BATCH + 1}, "x", problems) == {}
    assert problems == ["x: max_batch: 65536 must be between 1 and 65,535"]


def _without_contradictions(values: dict[str, Any]) -> dict[str, Any]:
    one: dict[str, Any] = {"instances": None} if "stream" in values["scenario"] else {}
    if values["scenario"] != "server":
        one |= {"dispatch": "elastic", "batch_wait_ns": 0}
    if values["pin"]:
        one["oversubscribe"] = False
    return {**values, **one, **({"meter": ()} if values["mode"] == "accuracy" else {})}


def _config(**values: Any) -> RunConfig:
    return RunConfig(**{"scenario": "server", **values})


@st.composite
def percents(draw: st.DrawFn) -> str:
    return f"p{draw(st.integers(50_0000, 99_9900)) / 1e4:.4f}"


durations_ns = st.integers(1, 10**15)
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_:.-]{0,9}", fullmatch=True)
texts = st.from_regex(r"[A-Za-z0-9_=:./ ,#'\"-]{0,12}", fullmatch=True).map(str.strip)
maybe = {
    "dataset": names,
    "data_dir": names.map(Path),
    "metric": names,
    "queries": st.integers(1, 2**31 - 1),
    "slo": st.builds(lambda p, ns: (parse_slo(f"{p}={ns}ns"),), percents(), durations_ns),
    "performance_count": st.integers(1, 2**31 - 1),
    "seed": st.integers(0, MAX_SEED),
    "instances": st.integers(1, 1024),
    "threads": st.integers(1, 1024),
    "max_batch": st.integers(1, 65535),
    "provider": names,
    "provider_option": st.lists(names, max_size=2, unique=True).map(
        lambda keys: tuple((key, "1") for key in keys)
    ),
    "hang_timeout_ns": durations_ns,
    "qsl_seed": st.integers(0, MAX_SEED),
    "sample_index_seed": st.integers(0, MAX_SEED),
    "schedule_seed": st.integers(0, MAX_SEED),
    "model_sha256": st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
    "dataset_digest": st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
    "loadgen_version": st.just("6.0.17"),
}
configs = st.fixed_dictionaries(
    {
        "scenario": st.sampled_from(list(SCENARIOS)),
        "backend": st.one_of(names, st.sampled_from(("null", "on", "1", "1e3", "true", "~"))),
        "model": names,
        "mode": st.sampled_from(MODES),
        "duration_ns": durations_ns,
        "pin": st.booleans(),
        "oversubscribe": st.booleans(),
        "dispatch": st.sampled_from(DISPATCHES),
        "batch_wait_ns": st.one_of(st.just(0), durations_ns),
        "input_shape": st.lists(
            st.tuples(
                names, st.lists(st.integers(1, 10**6), max_size=3).map(lambda dims: (1, *dims))
            ),
            max_size=3,
            unique_by=lambda item: item[0],
        ).map(tuple),
        "backend_option": st.lists(
            # A value that begins with `@` names a file.
            st.tuples(names, texts.filter(lambda text: not text.startswith("@"))),
            max_size=3,
            unique_by=lambda item: item[0],
        ).map(tuple),
        "meter": st.lists(st.tuples(names, texts), max_size=3).map(tuple),
    },
    optional=maybe,
).map(lambda values: _config(**_without_contradictions(values)))
server_configs = st.builds(lambda qps: _config(target_qps=qps), st.floats(1 / 600, 1e9))


@given(st.one_of(configs, server_configs))
def test_a_configuration_written_as_yaml_is_read_back_equal(config: RunConfig) -> None:
    text = yaml.safe_dump(to_plain(config), allow_unicode=True)
    assert from_plain(yaml.safe_load(text)) == config


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"x": ["{{samples}}", 1.5, null]}'),
        ("a.yaml", "x:\n- '{{samples}}'  # each\n- 1.5\n- null\n"),
    ],
)
def test_value_of_a_backend_option_may_be_in_a_file(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    found = parse_backend_option(f"body=@{tmp_path / name}")
    assert found == ("body", '{"x":["{{samples}}",1.5,null]}')
    (tmp_path / name).unlink()
    # A stored configuration must still work if the file is gone.
    assert parse_backend_option("=".join(found)) == found


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, " cannot be read: No such file or directory"),
        (b"\xff", " is not UTF-8, at byte 1"),
        (
            b"{a: 1e3}",
            " line 1: 1e3 can mean 1000 or the string '1e3': write 1000 or '1e3'",
        ),
        (b'{"a": 1, "a": 2}', " is not valid JSON: "),
        (b"[" * 10**5, " is not valid JSON: "),
        (b" " * (2**20 + 1), " is larger than 1 MiB: pass the path of a JSON or YAML file"),
    ],
)
def test_file_of_a_backend_option_is_refused_in_one_line(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "body"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}{re.escape(message)}") as caught:
        parse_backend_option(f"body=@{path}")
    assert "\n" not in str(caught.value)


def test_a_written_configuration_omits_the_result_folder() -> None:
    assert "out" not in to_plain(_config(out=Path("results/x")))


def test_a_written_configuration_omits_unset_options() -> None:
    assert to_plain(_config()) == {
        "schema_version": 1,
        "scenario": "server",
        "backend": "ort",
        "model": "digits",
        "mode": "both",
        "duration": "10s",
        "oversubscribe": False,
        "pin": False,
        "dispatch": "elastic",
        "batch_wait": "0s",
        "device": "cpu",
        "mlperf": False,
    }


_SET = {"models": Path("set.yaml"), "mode": "performance"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"scenario": ""}, "--scenario is missing: choose from single-stream, multi-stream, server, offline"),
        ({"scenario": "offline", "target_qps": 1.0}, "--target-qps belongs to --scenario server: drop it for offline"),
        ({"samples_per_query": 8}, "--samples-per-query belongs to --scenario multi-stream: drop it for server"),
        ({"meter": (("rapl", ""),), "mode": "accuracy"}, "--meter measures the performance run: drop it with --mode accuracy"),
        ({"input_shape": (("ids", (1, 2)), ("ids", (1, 3)))}, "--input-shape ids appears twice: keep one"),
        ({"backend_option": (("a", "1"), ("b", "2"), ("a", "1"))}, "--backend-option a appears twice: keep one"),
        ({"user_conf": Path("user.conf")}, "--user-conf applies under the official rules only: add --mlperf, or drop --user-conf"),
        ({"mlperf": True, "duration_ns": 1}, "--duration cannot be set with --mlperf: a run takes 600 s"),
        ({"mlperf": True, "queries": 1}, "--queries cannot be set with --mlperf: LoadGen sets the count"),
        ({"mlperf": True, "seed": 0}, "--seed cannot be set with --mlperf: the round sets the seeds"),
        ({"mlperf": True, "slo": (Slo(0.99, 1),)}, "--slo cannot be set with --mlperf: put target_latency into --user-conf"),
        ({"scenario": "multi-stream", "mlperf": True, "samples_per_query": 4}, "--samples-per-query cannot be set with --mlperf: the rules set 8"),
        (
            {**_SET, "model": "x.onnx", "dataset": "digits"},
            "--models names each model with its data, so --model and --dataset cannot be set: drop --model and --dataset",
        ),
        ({**_SET, "scenario": "offline"}, "--models chooses a model at each arrival, and offline has no arrivals: add --scenario server"),
        ({**_SET, "mode": "both"}, "--models measures speed, and several models have no common score: add --mode performance"),
        ({**_SET, "max_batch": 4}, "--max-batch 4 is not allowed with --models, because waiting queries may need different models: drop it"),
        ({**_SET, "pin": True}, "--pin applies to one model: drop it with --models"),
    ],
)  # fmt: skip
def test_a_contradiction_between_options_is_refused(values: dict[str, Any], message: str) -> None:
    assert refusal(_config, **values) == message


def test_options_that_the_official_rules_leave_open_are_allowed() -> None:
    _config(mlperf=True, target_qps=20.0, user_conf=Path("user.conf"), max_batch=4)
    _config(scenario="multi-stream", mlperf=True, samples_per_query=8)


def test_all_problems_of_a_configuration_are_reported_at_once() -> None:
    raw = {"duration": "10", "target-qps": 1, "queries": 0, "samples_per_query": 2, "queriez": 1}
    problems: list[str] = []
    values = config_from(raw, "my.yaml", problems)
    assert refusals(make_config, values, problems) == [
        "my.yaml: duration: '10' is not a duration: write it with its unit, e.g. 500us, 15ms, 2s",
        "my.yaml: unknown key 'target-qps': did you mean 'target_qps'?",
        "my.yaml: queries: 0 must be between 1 and 2,147,483,647",
        "my.yaml: unknown key 'queriez': did you mean 'queries'?",
        "--scenario is missing: choose from single-stream, multi-stream, server, offline",
    ]


def test_the_first_20_unknown_keys_are_reported_and_the_rest_counted() -> None:
    problems: list[str] = []
    values = config_from({f"x{n}": 1 for n in range(3000)}, "my.yaml", problems)
    lines = refusals(make_config, {**values, "scenario": "offline"}, problems)
    assert lines[0] == "my.yaml: unknown key 'x0'"
    assert lines[19:] == ["my.yaml: unknown key 'x19'", "and 2,980 more problems like these"]


@pytest.mark.parametrize(
    ("key", "given", "problem"),
    [
        ("mlperf", "yes", "'yes' is neither true nor false"),
        ("queries", True, "True is not a single value"),
        ("queries", [1], "[1] is not a single value"),
        ("slo", {"p99": "15ms"}, "{'p99': '15ms'} is not a single value"),
        ("mode", "fast", "'fast' is not one of performance, accuracy, both"),
        ("input_shape", [["a=1"]], "['a=1'] is not a single value"),
        ("threads", 2.5, "'2.5' is not a whole number"),
    ],
)
def test_a_yaml_value_of_the_wrong_kind_is_refused(key: str, given: object, problem: str) -> None:
    problems: list[str] = []
    assert config_from({key: given}, "my.yaml", problems) == {}
    assert problems == [f"my.yaml: {key}: {problem}"]


def test_yaml_scalars_go_through_the_same_parser_as_the_command_line() -> None:
    raw = {"queries": 1000, "target_qps": 2.5, "duration": "2s", "input_shape": "a=1x2", "seed": 0}
    problems: list[str] = []
    assert config_from(raw, "my.yaml", problems) == {
        "queries": 1000,
        "target_qps": 2.5,
        "duration_ns": 2_000_000_000,
        "input_shape": (("a", (1, 2)),),
        "seed": 0,
    }
    assert problems == []


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        _config().scenario = "offline"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("mode", "performance", "accuracy"),
    [("performance", True, False), ("accuracy", False, True), ("both", True, True)],
)
def test_the_mode_decides_which_runs_are_done(mode: str, performance: bool, accuracy: bool) -> None:
    config = _config(mode=mode)
    assert (config.runs_performance, config.runs_accuracy) == (performance, accuracy)
