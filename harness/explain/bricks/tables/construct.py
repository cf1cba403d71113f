"""Computes the times of models from their bricks, and the errors relative to the measured times. Uses only the content
of a bricks.json.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from statistics import fmean, geometric_mean
from typing import Any, NamedTuple

from harness.core.stats import trimmed_mean
from harness.explain.pieces.lower_bound import critical_path

CLOCKS = {"cpu_ns": "CPU time", "wall_ns": "wall time"}

Content = Mapping[str, Any]


def result(brick: Content) -> Content:
    """Returns the brick's result, which is empty if the brick was not run."""
    return brick.get("result") or {}


class Construction(NamedTuple):
    """A model's time in ns, computed from its bricks.
    sequential_ns: all bricks one after the other.
    critical_ns: the slowest chain of dependent bricks.
    reorders_ns, overhead_ns: times that were subtracted, because they occur only when a brick runs alone.
    covered: share of the layers whose brick was measured.
    """

    sequential_ns: float
    critical_ns: float
    reorders_ns: float
    overhead_ns: float
    covered: float


def construct(model: Content, bricks: Content, clock: str) -> Construction:
    """Computes a model's time. model, bricks: as in bricks.json. clock: one of CLOCKS."""
    once_ns = trimmed_mean(model["overhead"][clock])
    unpaid_ns = _conversions_ns(model["pieces"], bricks)
    net_ns: list[float] = []
    overhead_ns, layers = 0.0, 0
    for piece, conversions_ns in zip(model["pieces"], unpaid_ns, strict=True):
        one = result(bricks[piece["brick"]])
        if not one.get(clock):
            net_ns.append(0.0)
            continue
        beside_ns = trimmed_mean(one["beside"][clock])
        overhead_ns += beside_ns
        layers += len(piece["layers"])
        net_ns.append(max(0.0, trimmed_mean(one[clock]) - beside_ns - conversions_ns))
    maker = {name: i for i, piece in enumerate(model["pieces"]) for name in piece["outputs"]}
    needs = [[maker[n] for n in piece["inputs"] if n in maker] for piece in model["pieces"]]
    return Construction(
        sequential_ns=sum(net_ns) + once_ns,
        critical_ns=critical_path(net_ns, needs).ns + once_ns,
        reorders_ns=sum(unpaid_ns),
        overhead_ns=max(0.0, overhead_ns - once_ns),
        covered=layers / sum(len(piece["layers"]) for piece in model["pieces"]),
    )


def _conversions_ns(pieces: Sequence[Content], bricks: Content) -> list[float]:
    """Returns, for each piece, the time of the layout conversions at its ends that are not needed inside the model.

    If the brick that computes a tensor converts it back, and every reader converts it again, the model needs neither
    conversion. The model converts a tensor in the plain layout only once for all its readers.
    """
    unpaid_ns = [0.0] * len(pieces)
    makers: dict[str, tuple[int, float | None]] = {}
    read: dict[str, list[tuple[int, float | None]]] = {}
    for i, piece in enumerate(pieces):
        reorders = result(bricks[piece["brick"]]).get("reorders")
        if not reorders:
            continue
        for name, ns in zip(piece["outputs"], reorders["outputs_ns"], strict=True):
            makers[name] = (i, ns)
        for name, ns in zip(piece["inputs"], reorders["inputs_ns"], strict=True):
            read.setdefault(name, []).append((i, ns))
    for name, (maker, out_ns) in makers.items():
        readers = read.get(name, [])
        converting = sorted(
            ((i, ns or 0.0) for i, ns in readers if ns != 0), key=lambda one: one[1], reverse=True
        )
        is_blocked = out_ns != 0
        if is_blocked and converting and len(converting) == len(readers):
            unpaid_ns[maker] += out_ns or 0.0
        for i, ns in converting if is_blocked else converting[1:]:
            unpaid_ns[i] += ns
    blocked = {name for name, (_, out_ns) in makers.items() if out_ns != 0}
    # layouts.Reorders.inside explains conversions inside a brick
    for i, piece in enumerate(pieces):
        inside = (result(bricks[piece["brick"]]).get("reorders") or {}).get("inside", ())
        unpaid_ns[i] += sum(
            ns for ends, ns in inside if all(piece["inputs"][end] in blocked for end in ends)
        )
    return unpaid_ns


class Errors(NamedTuple):
    """Statistics of the ratios constructed / measured.
    mean: mean distance of the ratios from 1. worst: the model with the largest distance.
    """

    mean: float
    worst: str
    worst_ratio: float
    geometric_mean: float


def errors(ratios: Mapping[str, float]) -> Errors | None:
    if not ratios:
        return None
    worst = max(ratios, key=lambda name: abs(ratios[name] - 1))
    return Errors(
        mean=fmean(abs(ratio - 1) for ratio in ratios.values()),
        worst=worst,
        worst_ratio=ratios[worst],
        geometric_mean=geometric_mean(max(ratio, 1e-9) for ratio in ratios.values()),
    )


def measured_ns(model: Content, clock: str) -> float | None:
    """Returns the time of the whole model, or None if the model was not run."""
    samples = (model.get("whole") or {}).get(clock)
    return trimmed_mean(samples) if samples else None


def is_measured(model: Content) -> bool:
    """Whether enough bricks were run to add up the model's time. The model itself may be missing."""
    return bool((model.get("overhead") or {}).get("cpu_ns"))


def of_no_model(content: Content) -> list[str]:
    """Returns the digests of bricks that do not belong to any model with a known order."""
    used = {p["brick"] for model in content["models"].values() for p in model["pieces"]}
    return [digest for digest in content["bricks"] if digest not in used]


def ratios(content: Content, clock: str) -> dict[str, float]:
    """Returns the ratio constructed / measured of each model whose bricks were all measured."""
    by_model = {}
    for name, model in content["models"].items():
        whole_ns = measured_ns(model, clock)
        if whole_ns is None:
            continue
        parts = construct(model, content["bricks"], clock)
        if parts.covered == 1:
            by_model[name] = parts.sequential_ns / whole_ns
    return by_model


class Saving(NamedTuple):
    """Time saved by bricks. whole_ns: time to run each model once. bricks_ns: time to run each distinct brick once."""

    whole_ns: float
    bricks_ns: float

    @property
    def factor(self) -> float:
        return self.whole_ns / self.bricks_ns


def saving(content: Content, clock: str) -> Saving | None:
    """Computes the time saved by running bricks instead of models.

    Returns None if a model or brick was not run. Source: DLBricks (Li et al., ICPE 2020), section 4.3.
    """
    whole = [measured_ns(model, clock) for model in content["models"].values()]
    samples = [result(brick).get(clock) for brick in content["bricks"].values()]
    if not samples or not all(whole) or not all(samples):
        return None
    return Saving(sum(ns or 0 for ns in whole), sum(trimmed_mean(s) for s in samples if s))


def jaccard(content: Content) -> dict[tuple[str, str], float]:
    """Returns the Jaccard index of the layer sets for each ordered pair of models, including each model with itself."""
    sets = {name: set(model["layers"]) for name, model in content["models"].items()}
    shares = {(name, name): 1.0 for name in sets}
    for one, other in combinations(sets, 2):
        share = len(sets[one] & sets[other]) / len(sets[one] | sets[other])
        shares[one, other] = shares[other, one] = share
    return shares


def fallback_share(lengths: Sequence[int], most: int) -> float:
    """Returns the share of layers that form a piece alone, although a piece may contain `most` layers."""
    return sum(1 for n in lengths if n == 1) / sum(lengths) if most > 1 else 0.0


def doubts(content: Content) -> Iterator[str]:
    yield from busy(content)
    yield from failures(content)


def failures(content: Content) -> Iterator[str]:
    """Yields the models and bricks that did not run, with the reasons."""
    for name, model in content["models"].items():
        if model.get("why_not"):
            yield f"{name} was not run as a whole: {model['why_not']}"
    for brick in content["bricks"].values():
        if failed := brick["why_not"] or result(brick).get("failed"):
            yield f"a brick of {' '.join(brick['layers'])} was not run: {failed}"


def busy(content: Content) -> Iterator[str]:
    """Yields a warning for each model if other processes used the cores while it ran."""
    for name, model in content["models"].items():
        cpu_ns, wall_ns = (measured_ns(model, clock) for clock in ("cpu_ns", "wall_ns"))
        if cpu_ns and wall_ns and wall_ns > 1.2 * cpu_ns * content["threads"]:
            yield f"{name} took {wall_ns / cpu_ns:.1f} times its CPU time: other processes used the cores"
