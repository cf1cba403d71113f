"""Exports a language-model run as llm-d's Benchmark Report v0.2.1, in YAML.

Source: llm-d-benchmark, llmdbenchmark/analysis/benchmark_report (schema_v0_2_1.py and its JSON Schema). Times are in
seconds. The report omits percentiles that the format defines differently. TTFT and latency begin at the time when
the query was due. `inter_token_latency` is left out, because the run stores only the percentiles of this latency.
"""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

import numpy as np
import yaml

from harness.core.units import NS_PER_S
from harness.errors import ConfigError
from harness.results.export.samples import span_ns
from harness.results.run_files import RunFiles, shown_config
from harness.types import Array

VERSION = "0.2.1"
LOAD_VERSION = "0.0.1"

_QUANTILES = {
    **{f"p{p}": p / 100 for p in (1, 5, 10, 25, 50, 75, 90, 95, 99)},
    "p0p1": 0.001,
    "p99p9": 0.999,
}
_RANDOM = ("synthetic-prompts", "synthetic-chats", "trace")
"""Datasets that draw the tokens of their prompts at random."""


def write(run: RunFiles, out: TextIO) -> None:
    """Writes the report. Raises a ConfigError if the run measured no tokens or has no performance run."""
    done = run.performance.done if run.performance else None
    tokens = run.result.get("tokens")
    if not done or not tokens:
        raise ConfigError(
            f"{run.folder} has no tokens: a Benchmark Report describes a performance run with a language model; "
            "use a different --format"
        )
    yaml.safe_dump(_report(run, done.columns, tokens), out, sort_keys=False, allow_unicode=True)


def _report(
    run: RunFiles, columns: Mapping[str, Array], tokens: Mapping[str, Any]
) -> dict[str, Any]:
    observability = _observability(run.result)
    return {
        "version": VERSION,
        "run": _run(run),
        # The format accepts a load only together with a prompt length.
        **({"scenario": {"load": _load(run, tokens)}} if tokens["input"] is not None else {}),
        "results": {
            "request_performance": {"aggregate": _aggregate(run.result, columns, tokens)},
            **({"observability": {"components": [observability]}} if observability else {}),
        },
    }


def _run(run: RunFiles) -> dict[str, Any]:
    result = run.result
    reasons = "; ".join(f"{one['code']}: {one['text']}" for one in result["reasons"])
    began_ns, ended_ns = span_ns(run)
    began, ended = (
        datetime.fromtimestamp(ns / NS_PER_S, UTC).isoformat() for ns in (began_ns, ended_ns)
    )
    facts = ("scenario", "backend", "model", "dataset", "verdict")
    return {
        "uid": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{run.name} {result['started']}")),
        "time": {
            "start": began,
            "end": ended,
            "duration": f"PT{max(0, ended_ns - began_ns) / NS_PER_S:.3f}S",
        },
        "description": f"{run.name}: {result['verdict']}{f': {reasons}' if reasons else ''}",
        "keywords": [str(result[name]) for name in facts],
    }


def _load(run: RunFiles, tokens: Mapping[str, Any]) -> dict[str, Any]:
    result, options = run.result, shown_config(run.config)
    harness = (run.environment.get("harness") or {}).get("version", "")
    rate = (result["throughput_per_s"] or {}).get("scheduled")
    answers = max(1, tokens["answers"])
    sent, made = tokens["input"], tokens["output"]
    return {
        "metadata": {"schema_version": LOAD_VERSION},
        "standardized": _known(
            tool="mlperf-harness",
            tool_version=str(harness),
            source="random" if result["dataset"] in _RANDOM else "sampled",
            input_seq_len=_length(sent / answers),
            output_seq_len=_length(made / answers) if made is not None else None,
            rate_qps=rate or None,
            concurrency=options.get("concurrency"),
        ),
        "native": {"config": dict(options)},
    }


def _length(mean: float) -> dict[str, Any]:
    return {"distribution": "other", "value": mean}


def _aggregate(
    result: Mapping[str, Any], columns: Mapping[str, Array], tokens: Mapping[str, Any]
) -> dict[str, Any]:
    right = columns["failed"] == 0
    due_ns, end_ns = columns["scheduled_ns"], columns["completed_ns"]
    first_ns, made = columns.get("first_token_ns"), columns.get("tokens")
    issued = (result["queries"] or {}).get("samples_issued", len(right))
    answers = max(1, tokens["answers"])
    first = each = lengths = None
    if first_ns is not None and made is not None:
        begun, several = right & (first_ns > 0), right & (first_ns > 0) & (made > 1)
        first = _statistics((first_ns - due_ns)[begun], "s")
        each = _statistics((end_ns - first_ns)[several] / (made[several] - 1), "s/token")
        lengths = _statistics(made[right & (made > 0)], "count", scale=1.0)
    seconds = max(1, int(end_ns.max() - due_ns.min())) / NS_PER_S
    sent = tokens["input"]
    total = sent + tokens["output"] if None not in (sent, tokens["output"]) else None
    return {
        "requests": _known(
            total=int(issued),
            failures=int((~right).sum()),
            incomplete=int(issued) - len(right),
            input_length=_mean(sent / answers, "count") if sent is not None else None,
            output_length=lengths,
        ),
        "latency": _known(
            time_to_first_token=first,
            time_per_output_token=each,
            request_latency=_statistics((end_ns - due_ns)[right], "s"),
        ),
        "throughput": _known(
            input_token_rate=_mean(sent / seconds, "tokens/s") if sent is not None else None,
            output_token_rate=_mean(tokens["output_per_s"], "tokens/s"),
            total_token_rate=_mean(total / seconds, "tokens/s") if total is not None else None,
            request_rate=_mean(len(right) / seconds, "queries/s"),
        ),
    }


def _observability(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the servers' metrics as one component; None without metrics."""
    servers = result.get("servers") or {}
    hit = servers.get("cache_hit_share")
    aggregate = _known(cache_hit_rate=_mean(hit, "fraction"))
    return {"component_label": "servers", "aggregate": aggregate} if aggregate else None


def _known(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _mean(value: float | None, units: str) -> dict[str, Any] | None:
    return {"units": units, "mean": float(value)} if value is not None else None


def _statistics(values: Array, units: str, scale: float = 1 / NS_PER_S) -> dict[str, Any] | None:
    """Returns the statistics of the values; None without values. Quantiles are measured values, as in LoadGen."""
    if not len(values):
        return None
    found = np.sort(values.astype(np.float64)) * scale
    return {
        "units": units,
        "mean": float(found.mean()),
        "stddev": float(found.std()),
        "min": float(found[0]),
        **{name: float(found[int(len(found) * share)]) for name, share in _QUANTILES.items()},
        "max": float(found[-1]),
    }
