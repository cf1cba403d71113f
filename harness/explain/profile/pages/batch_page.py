"""Draws A15 over batches: the model and its slowest kernels below the roofline."""

from collections.abc import Sequence
from typing import Any

from harness.explain.kernels.layers import Layer, Peaks
from harness.explain.profile.tables.batch_tables import AtBatch
from harness.results.pages.page import Figure

KERNELS_SHOWN = 5
_ROOF = {"color": "#8a949e", "dash": "dash"}


def figure(batches: Sequence[AtBatch], peaks: Peaks) -> Figure:
    """batches: ascending by batch, at least two."""
    slowest = sorted(batches[-1].layers, key=lambda la: -la.latency_ns)[:KERNELS_SHOWN]
    data = [_line("the model", "#1d2329", [(b.batch, b.intensity, b.flops_per_s) for b in batches])]
    for layer in slowest:
        same = [(b.batch, _named(b, layer.name)) for b in batches]
        points = [(batch, la.intensity, la.flops_per_s) for batch, la in same if la]
        data.append(_line(f"{layer.index} {layer.name}", None, points))
    data = [line for line in data if line["x"]]
    ends = [x for line in data for x in line["x"]] + [peaks.ridge]
    x = [min(ends) / 2, peaks.ridge, max(ends) * 2]
    y = [min(peaks.flops_per_s, at * peaks.bytes_per_s) / 1e9 for at in x]
    data.append({"x": x, "y": y, "mode": "lines", "name": "measured peaks", "line": _ROOF})
    return Figure(
        "Roofline by batch (A15)",
        "Numbers are batches: the whole model, and the kernels that take most of the largest one.",
        data,
        {
            "xaxis": {"title": "arithmetic intensity, FLOP/byte", "type": "log"},
            "yaxis": {"title": "GFLOP/s", "type": "log"},
        },
    )


def _named(at: AtBatch, name: str) -> Layer | None:
    return next((layer for layer in at.layers if layer.name == name), None)


def _line(
    name: str, colour: str | None, points: Sequence[tuple[int, float | None, float | None]]
) -> dict[str, Any]:
    """points: (batch, FLOP/byte, FLOP/s); points without work are left out."""
    known = [(batch, x, y / 1e9) for batch, x, y in points if x and y]
    return {
        "x": [x for _, x, _ in known],
        "y": [y for _, _, y in known],
        "text": [str(batch) for batch, _, _ in known],
        "textposition": "top center",
        "name": name,
        "mode": "lines+markers+text",
        **({"line": {"color": colour, "width": 3}} if colour else {"line": {"width": 1}}),
        "hovertemplate": "batch %{text}<br>%{x:.3g} FLOP/byte, %{y:.3g} GFLOP/s<extra></extra>",
    }
