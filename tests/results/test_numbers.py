"""Each number of a run has the same name in all outputs."""

from harness.results import database
from harness.results.numbers import OPEN, Number, deciding_number, numbers
from tests.builders.result import stored_result

READING = {
    "source": "rapl:psys",
    "provenance": "measured",
    "joules_per_query": 8.0,
    "joules_per_sample": 1.0,
}
RESULT = stored_result(
    "2026-01-01T10:00:00.000+00:00",
    throughput_per_s={"completed": 500.0},
    latency_ns={"p99": 3_000_000, "mean": 2_000_000},
    latency_intervals_ns={"p99": {"block_interval": [2_900_000, 3_200_000]}},
    measured_process={"cpu_s_per_query": 0.001},
    headline={"value": 3_100_000, "unit": "ns"},
    slo="ttft:p99=2s",
    goodput={"per_s": 450.0},
    tokens={"output_per_s": 9000.0, "ttft_ns": {"p99": 1_500_000}, "itl_ns": None},
    accuracy={"metric": "bits", "value": 1.2, "unit": "bits", "lower_is_better": True},
    power={"readings": [READING]},
)


def test_every_number_has_its_unit_kind_and_direction() -> None:
    assert numbers(RESULT) == {
        "throughput": Number(500.0, "samples/s", "rate", higher_is_better=True),
        "p99": Number(3_000_000, "ns", "tail", 2_900_000, 3_200_000),
        "mean": Number(2_000_000, "ns", "body", *OPEN),
        "cpu": Number(1e6, "ns"),
        "headline": Number(3_100_000, "ns", "tail"),
        "goodput.ttft:p99=2s": Number(450.0, "queries/s", higher_is_better=True),
        "tokens": Number(9000.0, "tokens/s", higher_is_better=True),
        "ttft_p99": Number(1_500_000, "ns", "tail"),
        "accuracy": Number(1.2, "bits", "exact"),
        "joules_per_query.rapl:psys": Number(8.0, "J"),
        "joules_per_sample.rapl:psys": Number(1.0, "J"),
    }


def test_a_run_that_measured_nothing_has_no_numbers() -> None:
    assert numbers({"scenario": "server"}) == {}


def test_a_row_of_the_database_holds_numbers_of_the_run_by_the_same_names() -> None:
    row = database.columns_of("a", RESULT)
    kept = {name: number.value for name, number in numbers(database.content_of(row)).items()}
    known = {name: number.value for name, number in numbers(RESULT).items()}
    assert kept.keys() >= {"throughput", "p99", "headline", "accuracy"}
    assert kept == {name: known[name] for name in kept}


def test_an_slo_on_a_token_time_alone_names_the_number_that_decides() -> None:
    """Bug: repeats and compare judged the p99 of whole answers, although the SLO was only on a token time."""
    known = numbers(RESULT)
    assert deciding_number(RESULT, known) == "ttft_p99"
    assert deciding_number({**RESULT, "slo": "ttft:p99=2s p99=9s"}, known) == "p99"
    assert deciding_number({**RESULT, "slo": "itl:p95=2s"}, known) == "p99"
