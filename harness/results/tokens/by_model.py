"""Summarises a run's answers by the model or adapter that the requests name. Has no side effects."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.core.units import NS_PER_S, counted, show_ns
from harness.results.evidence.evidence import Evidence
from harness.results.schema.client import ByModel, OfModel
from harness.results.tokens.facts import MODEL
from harness.results.tokens.section import percentiles_ns, token_times
from harness.types import Array

_LISTED = 4
"""The screen lists at most this many models. If a run has more models, the screen shows only the slowest one."""


def section(run: Evidence) -> ByModel | None:
    """Returns the section of result.json; None if the requests name at most one model."""
    done = run.done
    if not done or MODEL not in done.columns:
        return None
    columns = done.columns
    spent_ns = int(columns["completed_ns"].max()) - int(columns["scheduled_ns"].min())
    parts = {name: _of(columns, columns[MODEL] == number) for number, name in enumerate(run.models)}
    models = [
        _model(name, part, len(done), spent_ns / NS_PER_S)
        for name, part in sorted(parts.items())
        if len(part["order"])
    ]
    time = "ttft_ns" if all(model["ttft_ns"] for model in models) else "latency_ns"
    times = {
        model["model"]: found["p90"]
        for model in models
        if (found := model["ttft_ns"] if time == "ttft_ns" else model["latency_ns"]) is not None
    }
    whole = len(times) == len(models)
    slowest = max(times, key=lambda name: times[name]) if whole else ""
    return {
        "models": models,
        "slowest": slowest,
        "slowest_ratio": times[slowest] / max(1, min(times.values())) if whole else None,
        "compared": f"{time} p90",
        "fairness": _jain([_speed(parts[model["model"]], model) for model in models])
        if whole
        else None,
    }


def _of(columns: Mapping[str, Array], mine: Array) -> dict[str, Array]:
    return {name: column[mine] for name, column in columns.items()}


def _model(name: str, columns: Mapping[str, Array], answers: int, seconds: float) -> OfModel:
    right = columns["failed"] == 0
    good = _of(columns, right)
    latency_ns = good["completed_ns"] - good["scheduled_ns"]
    tokens = good["tokens"].astype(np.int64) if "tokens" in good else None
    known = tokens is not None and len(tokens) > 0 and bool((tokens > 0).all())
    first, each = token_times(good)
    made = int(tokens.sum()) if known and tokens is not None else None
    return {
        "model": name,
        "requests": len(right),
        "share": len(right) / answers,
        "failed": int((~right).sum()),
        "tokens": made,
        "tokens_per_s": made / seconds if made is not None and seconds else None,
        "user_tokens_per_s": (
            float((tokens * NS_PER_S / np.maximum(latency_ns, 1)).mean())
            if known and tokens is not None
            else None
        ),
        "latency_ns": percentiles_ns(latency_ns),
        "ttft_ns": first,
        "tpot_ns": each,
    }


def _speed(columns: Mapping[str, Array], model: OfModel) -> float:
    """Returns the speed in tokens/s, or in answers/s, that the model's users see."""
    if model["user_tokens_per_s"] is not None:
        return model["user_tokens_per_s"]
    right = columns["failed"] == 0
    mean_ns = float((columns["completed_ns"] - columns["scheduled_ns"])[right].mean())
    return NS_PER_S / max(1.0, mean_ns)


def _jain(speeds: Sequence[float]) -> float:
    """Returns Jain's fairness index. Source: Jain, Chiu, Hawe, DEC Research Report TR-301 (1984)."""
    return sum(speeds) ** 2 / (len(speeds) * sum(speed**2 for speed in speeds))


def shown(result: Mapping[str, Any]) -> str | None:
    """Returns the speeds of the models in one line; None for a single model."""
    found = result.get("by_model")
    if not found:
        return None
    models = found["models"]
    words = [counted(len(models), "model")]
    if len(models) <= _LISTED:
        words = [_shown(model) for model in models]
    text = "; ".join(words)
    if found["slowest_ratio"] is not None:
        time = found["compared"].split()[0]
        p90_ns = {model["model"]: model[time]["p90"] for model in models}
        fastest = min(p90_ns, key=lambda name: p90_ns[name])
        text += (
            f"; slowest {found['slowest']}: {'TTFT' if time == 'ttft_ns' else 'latency'} p90 "
            f"{show_ns(p90_ns[found['slowest']])}, {found['slowest_ratio']:.2f} x the p90 of the fastest ({fastest}); "
            f"fairness {found['fairness']:.3f}"
        )
    return text


def _shown(model: Mapping[str, Any]) -> str:
    times, name = model["ttft_ns"], "TTFT"
    if times is None:
        times, name = model["latency_ns"], "latency"
    text = f"{model['model']} {counted(model['requests'], 'request')}"
    return f"{text}, {name} {show_ns(times['p50'])} / {show_ns(times['p99'])}" if times else text
