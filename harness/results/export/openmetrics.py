"""Exports a run's final state as OpenMetrics text, for example for node_exporter's text-file collector.

docs/metrics.md defines the names. Percentiles and rates come from result.json.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import Collector

from harness.core.config.parse import Slo, parse_slos
from harness.core.units import NS_PER_S
from harness.results.evidence.stages import PERCENTILES
from harness.results.numbers import TOKEN_TIMES
from harness.results.run_files import RunFiles

RUN_LABELS = ("run", "scenario", "backend", "model")

Samples = Iterable[tuple[Iterable[str], float]]
"""(label values, value) pairs, one per sample. The label values exclude the values of RUN_LABELS."""


def write(run: RunFiles, out: TextIO) -> None:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_End(run))
    text: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
    out.write(text.decode("utf-8"))


class _End(Collector):
    def __init__(self, run: RunFiles) -> None:
        self._run = run

    def collect(self) -> Iterator[Metric]:
        result = self._run.result
        labels = [self._run.name, *(str(result[name]) for name in RUN_LABELS[1:])]
        yield from _facts(labels, result)
        yield from _numbers(labels, result)
        yield from verdict_families(labels, result)


def _facts(run: Iterable[str], result: Mapping[str, Any]) -> Iterator[Metric]:
    harness = (result.get("environment") or {}).get("harness") or {}
    info = {
        "version": str(harness.get("version", "")),
        "mode": result["mode"],
        "dataset": result["dataset"],
    }
    yield family(run, "run_info", "The run and its options, always 1", info, [(info.values(), 1)])
    yield from slo_families(run, parse_slos(result.get("slo") or ""))


def _numbers(run: Iterable[str], result: Mapping[str, Any]) -> Iterator[Metric]:
    phase = "performance"
    latencies = _quantiles(result.get("latency_ns") or {})
    text = "Latency percentile of the queries"
    samples: Samples = [((phase, quantile), seconds) for quantile, seconds in latencies]
    yield family(run, "latency_percentile_seconds", text, ["phase", "quantile"], samples)
    rate = (result.get("throughput_per_s") or {}).get("completed")
    text = "Samples completed, by the scheduler's log"
    samples = [([phase], rate)] if rate is not None else []
    yield family(run, "completed_samples_per_second", text, ["phase"], samples)
    samples = [
        ((phase, stage, quantile), seconds)
        for stage, spent in (result.get("stages_ns") or {}).items()
        for quantile, seconds in _quantiles(spent)
    ]
    text, labels = "Percentile of a stage of the samples' latency", ["phase", "stage", "quantile"]
    yield family(run, "stage_percentile_seconds", text, labels, samples)
    readings = (result.get("power") or {}).get("readings", ())
    samples = [((one["source"], one["provenance"]), one["joules_per_sample"]) for one in readings]
    text = "Energy of a sample in the performance run"
    yield family(run, "joules_per_sample", text, ["source", "provenance"], samples)


def _quantiles(times_ns: Mapping[str, float]) -> list[tuple[str, float]]:
    """Returns the percentiles as pairs: value of the label `quantile`, and time in seconds."""
    known = [(share, times_ns.get(name)) for name, share in PERCENTILES.items()]
    return [(f"{share:g}", ns / NS_PER_S) for share, ns in known if ns is not None]


def slo_families(run: Iterable[str], slos: Iterable[Slo]) -> Iterator[Metric]:
    """Yields the SLOs' bounds on the latency and on token times."""
    bounds = [(slo.of, f"{slo.percentile:g}", slo.bound_ns / NS_PER_S) for slo in slos]
    yield family(
        run,
        "slo_seconds",
        "Latency bound of the SLO",
        ["quantile"],
        [([quantile], bound_s) for of, quantile, bound_s in bounds if not of],
    )
    of_tokens = [((of, quantile), bound_s) for of, quantile, bound_s in bounds if of]
    if of_tokens:
        name, text = "token_slo_seconds", "Bound of an SLO on a token time"
        yield family(run, name, text, ["time", "quantile"], of_tokens)


def verdict_families(run: Iterable[str], result: Mapping[str, Any]) -> Iterator[Metric]:
    """Yields the verdict, reasons, doubts and score. run: values of RUN_LABELS. result: the content of result.json."""
    valid = float(result["verdict"] == "VALID")
    yield family(run, "run_valid", "1 VALID, 0 INVALID", (), [([], valid)])
    tokens = result.get("tokens") or {}
    times = [
        ((time, quantile), seconds)
        for time in TOKEN_TIMES
        for quantile, seconds in _quantiles(tokens.get(f"{time}_ns") or {})
    ]
    if times:
        name, text = "token_time_percentile_seconds", "Percentile of a token time"
        yield family(run, name, text, ["time", "quantile"], times)
    goodput = (result.get("goodput") or {}).get("per_s")
    if goodput is not None:
        text = "Queries that met every SLO"
        yield family(run, "goodput_queries_per_second", text, (), [([], goodput)])
    for kind in ("reason", "doubt"):
        codes = dict.fromkeys(entry["code"] for entry in result[f"{kind}s"])
        samples = [([code], 1.0) for code in codes]
        yield family(run, f"run_{kind}", "Its code, always 1", ["code"], samples)
    accuracy = result["accuracy"] or {}
    score = [accuracy.get("metric", ""), accuracy.get("unit", "")]
    for key, name, text in (
        ("value", "accuracy", "The score"),
        ("target", "accuracy_target", "Target of the manifest"),
    ):
        samples = [(score, accuracy[key])] if accuracy.get(key) is not None else []
        yield family(run, name, text, ["metric", "unit"], samples)


def family(
    run: Iterable[str], name: str, text: str, labels: Iterable[str], samples: Samples
) -> Metric:
    """Builds one metric with its samples. run: values of RUN_LABELS. labels: names of the other labels."""
    made = GaugeMetricFamily(f"harness_{name}", text, labels=[*RUN_LABELS, *labels])
    for values, sample in samples:
        made.add_metric([*run, *values], sample)
    return made
