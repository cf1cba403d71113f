"""Returns the tables of `bricks --json` as numbers, from the content of a bricks.json alone."""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.explain.bricks.tables import construct, mining
from harness.explain.bricks.tables.text import CLOCKS, doubts

Content = Mapping[str, Any]


def to_json(content: Content) -> dict[str, Any]:
    """Times in ns, shares and ratios of 1; None where something was not run."""
    layers, unique = construct.all_unique(content)
    saved = {clock: construct.saving(content, clock) for clock in CLOCKS}
    errors = {c: construct.errors(construct.ratios(content, c)) for c in CLOCKS}
    alike = construct.jaccard(content)
    names = list(content["models"])
    about = ("started", "machine", "version", "most_layers", "batch", "threads", "rounds")
    return {
        **{name: content[name] for name in about},
        "doubts": list(doubts(content)),
        "models": {name: _model(content, name) for name in names},
        "alike": {one: {other: alike[one, other] for other in names} for one in names},
        "chains": [chain._asdict() for chain in mining.chains(content)],
        "blocks": [block._asdict() for block in mining.blocks(content)],
        "layers": layers,
        "unique_layers": unique,
        "errors": {_plain(c): e._asdict() if e else None for c, e in errors.items()},
        "saving": {
            _plain(c): {**s._asdict(), "factor": s.factor} if s else None for c, s in saved.items()
        },
        "bricks": list(_bricks(content)),
    }


def _plain(clock: str) -> str:
    return clock.removesuffix("_ns")


def _model(content: Content, name: str) -> dict[str, Any]:
    model = content["models"][name]
    lengths = [len(piece["layers"]) for piece in model["pieces"]]
    published, most = model["published_lengths"], content["most_layers"]
    return {
        "layers": len(model["layers"]),
        "unique_layers": len(set(model["layers"])),
        "bricks": len(lengths),
        "unique_bricks": len({piece["brick"] for piece in model["pieces"]}),
        "alone_share": construct.fallback_share(lengths, most),
        "published_rule": {
            "bricks": len(published),
            "alone_share": construct.fallback_share(published, most),
        },
        **{_plain(clock): _construction(content, name, clock) for clock in CLOCKS},
    }


def _construction(content: Content, name: str, clock: str) -> dict[str, Any] | None:
    """measured_ns: None where the model is absent. ratio: only where every brick was measured."""
    model = content["models"][name]
    if not construct.is_measured(model):
        return None
    measured_ns = construct.measured_ns(model, clock)
    parts = construct.construct(model, content["bricks"], clock)
    ratio = parts.sequential_ns / measured_ns if measured_ns and parts.covered == 1 else None
    return {"measured_ns": measured_ns, "ratio": ratio, **parts._asdict()}


def _bricks(content: Content) -> Iterator[dict[str, Any]]:
    """cpu_ns, wall_ns: as measured. beside: time of the empty model right after each."""
    for digest, brick in content["bricks"].items():
        result = brick.get("result") or {}
        times = {c: result[c] for c in CLOCKS if result.get(c)}
        yield {
            "brick": digest,
            **{k: brick[k] for k in ("layers", "inputs", "outputs", "weight_bytes")},
            "failed": brick["why_not"] or result.get("failed"),
            **{c: construct.trimmed_mean(ns) for c, ns in times.items()},
            "beside": {c: construct.trimmed_mean(result["beside"][c]) for c in times},
            "is_fresh": bool(brick.get("fresh")),
        }
