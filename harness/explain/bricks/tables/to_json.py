"""Computes the numbers of all tables for `bricks --json`, using only the content of a bricks.json."""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.core.stats import trimmed_mean
from harness.explain.bricks.tables import construct, mining
from harness.explain.bricks.tables.construct import CLOCKS

Content = Mapping[str, Any]


def to_json(content: Content) -> dict[str, Any]:
    """Returns the numbers: times in ns, shares, and ratios.

    A number is None if a model or brick that it needs was not run.
    """
    models = content["models"]
    layers = [key for model in models.values() for key in model["layers"]]
    ratios = {clock: construct.ratios(content, clock) for clock in CLOCKS}
    errors = {clock: construct.errors(ratios[clock]) for clock in CLOCKS}
    saved = {clock: construct.saving(content, clock) for clock in CLOCKS}
    alike = construct.jaccard(content)
    about = ("started", "machine", "version", "most_layers", "batch", "threads", "rounds")
    return {
        **{name: content[name] for name in about},
        "doubts": list(construct.doubts(content)),
        "models": {
            name: {
                **_structure(model, content["most_layers"]),
                **{
                    plain(clock): _construction(model, content["bricks"], clock, of.get(name))
                    for clock, of in ratios.items()
                },
            }
            for name, model in models.items()
        },
        "alike": {one: {other: alike[one, other] for other in models} for one in models},
        "chains": [chain._asdict() for chain in mining.chains(content)],
        "blocks": [block._asdict() for block in mining.blocks(content)],
        "layers": len(layers),
        "unique_layers": len(set(layers)),
        "errors": {plain(c): e._asdict() if e else None for c, e in errors.items()},
        "saving": {
            plain(c): {**s._asdict(), "factor": s.factor} if s else None for c, s in saved.items()
        },
        "bricks": list(_bricks(content)),
    }


def plain(clock: str) -> str:
    return clock.removesuffix("_ns")


def _structure(model: Content, most: int) -> dict[str, Any]:
    lengths = [len(piece["layers"]) for piece in model["pieces"]]
    published = model["published_lengths"]
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
    }


def _construction(
    model: Content, bricks: Content, clock: str, ratio: float | None
) -> dict[str, Any] | None:
    """Returns the numbers of a construction.

    measured_ns: None if the model is missing. ratio: None unless every brick was measured.
    """
    if not construct.is_measured(model):
        return None
    parts = construct.construct(model, bricks, clock)
    measured_ns = construct.measured_ns(model, clock)
    return {"measured_ns": measured_ns, "ratio": ratio, **parts._asdict()}


def _bricks(content: Content) -> Iterator[dict[str, Any]]:
    """Yields the numbers of each brick.

    cpu_ns, wall_ns: measured times. beside: time of the empty model right after each run.
    """
    for digest, brick in content["bricks"].items():
        result = construct.result(brick)
        times = {c: result[c] for c in CLOCKS if result.get(c)}
        yield {
            "brick": digest,
            **{k: brick[k] for k in ("layers", "inputs", "outputs", "weight_bytes")},
            "failed": brick["why_not"] or result.get("failed"),
            **{c: trimmed_mean(ns) for c, ns in times.items()},
            "beside": {c: trimmed_mean(result["beside"][c]) for c in times},
            "is_fresh": bool(brick.get("fresh")),
        }
