"""Checks the points of a curve together: C_max, the regions, Offline, and the values that all points must share."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from harness.core.numbers import number, whole
from harness.core.units import show_percent
from harness.submit.endpoints.regions import MARGIN, REQUIRED, WORDS, Regions, matched
from harness.submit.endpoints.rules.findings import Finding
from harness.submit.endpoints.rules.submission import (
    DEDICATED,
    ELECTED,
    POINT,
    SYSTEM,
    Curve,
    Point,
)
from harness.submit.endpoints.tables import limits, models

_SHARED = (
    *("division", "max_supported_concurrency", "model_name", "model_precision", "link_to_model"),
    *("dataset", "dataset_name", "dataset_link", "shared_src", "shared_docs", "seed_set"),
    *("target_cohort", "speculative_decoding"),
)
"""Keys of point.yaml that must have the same value in all points."""


def curve(of: Curve) -> Iterator[Finding]:
    if not of.points:
        return  # another rule reports the folder
    yield from _model_name(of)
    yield from _shared(of)
    yield from _c_max(of)
    yield from _c_min(of)
    yield from _offline(of)
    yield from _counts(of)
    yield from _utilisation(of)
    if of.regions is not None:
        yield from _coverage(of, of.regions)
        yield from _accuracy_coverage(of, of.regions)


def _model_name(of: Curve) -> Iterator[Finding]:
    if of.model not in models():
        yield Finding("model-name", of.path, of.model, ", ".join(models()))
    for point in of.points:
        name = point.yaml.get("model_name")
        if name is not None and name != of.model:
            yield Finding("model-name", point.file(POINT), f"model_name: {name}", of.model)


def _shared(of: Curve) -> Iterator[Finding]:
    for key in _SHARED:
        yield from _odd(of.points, key, [p.yaml.get(key) for p in of.points if p.yaml])
    for point in of.points:
        for key in ("division", "max_supported_concurrency"):
            ours, theirs = point.yaml.get(key), point.system.get(key)
            if None not in (ours, theirs) and _plain(ours) != _plain(theirs):
                actual = f"{key}: {ours}, but {SYSTEM} has {theirs}"
                yield Finding("points-differ", point.file(POINT), actual, "the same value")


def _odd(points: Sequence[Point], key: str, values: Sequence[Any]) -> Iterator[Finding]:
    """Yields a finding for each point whose value differs from the most common value."""
    texts = [_plain(value) for value in values]
    if len(set(texts)) <= 1:
        return
    common = max(texts, key=texts.count)
    expected = f"{values[texts.index(common)]}"
    for point in points:
        value = point.yaml.get(key)
        if point.yaml and _plain(value) != common:
            yield Finding("points-differ", point.file(POINT), f"{key}: {value}", expected)


def _plain(value: object) -> str:
    """Returns a text that is identical for equal values. Ignores case."""
    return json.dumps(value, sort_keys=True, default=str).lower()


def _c_max(of: Curve) -> Iterator[Finding]:
    most = limits()["ultra_low_most"]
    if of.points and (of.c_max is None or of.c_max <= most):
        actual = f"max_supported_concurrency: {of.c_max}"
        yield Finding("c-max", of.points[0].file(SYSTEM), actual, f"above {most}")


def _c_min(of: Curve) -> Iterator[Finding]:
    declared = [p.system.get("c_min_override") for p in of.points if p.system]
    if not any("c_min_override" in p.system for p in of.points):
        return
    value = of.c_min_override
    file = of.points[0].file(SYSTEM)
    if len({_plain(one) for one in declared}) > 1:
        actual = "c_min_override differs between points"
        yield Finding("c-min", file, actual, "the same value in every point")
    measured = [p.concurrency for p in of.points if p.offline != DEDICATED]
    most = limits()["ultra_low_most"]
    if value is None or not 1 <= value <= most or value not in measured:
        actual = f"c_min_override: {value}"
        yield Finding("c-min", file, actual, f"a submitted point from 1 to {most}")


def _offline(of: Curve) -> Iterator[Finding]:
    for point in of.points:
        if point.offline not in ("", ELECTED, DEDICATED):
            actual = f"offline: {point.offline}"
            yield Finding("offline", point.file(POINT), actual, f"{ELECTED} or {DEDICATED}")
    chosen = [p for p in of.points if p.offline in (ELECTED, DEDICATED)]
    if of.is_agentic:
        for point in chosen:
            actual = f"offline: {point.offline}"
            yield Finding(
                "offline", point.file(POINT), actual, "no Offline point in agentic benchmarks"
            )
        return
    if len(chosen) != 1:
        yield Finding("offline", of.path, f"{len(chosen)} Offline points", "one")
    for point in chosen:
        if point.offline == ELECTED and of.c_max is not None and point.concurrency != of.c_max:
            actual = f"elected at {point.concurrency}"
            yield Finding("offline", point.file(POINT), actual, f"the point at C_max, {of.c_max}")
        if point.offline == DEDICATED:
            yield from _dedicated(of, point)


def _dedicated(of: Curve, point: Point) -> Iterator[Finding]:
    model = models().get(of.model)
    if model is not None and point.concurrency != model.samples:
        actual = f"concurrency {point.concurrency}"
        yield Finding("offline", point.file(POINT), actual, f"the data set, {model.samples:,}")
    at_most = next((p for p in of.points if p.concurrency == of.c_max and p is not point), None)
    rates = (point.tokens_per_s, at_most.tokens_per_s if at_most else None)
    share = limits()["offline_share"]
    if rates[0] is not None and rates[1] and rates[0] < share * rates[1]:
        actual = f"{rates[0]:.1f} tokens/s, C_max has {rates[1]:.1f}"
        yield Finding(
            "offline-slower", point.file(POINT), actual, f"at least {show_percent(share)} of it"
        )


def _counts(of: Curve) -> Iterator[Finding]:
    table = limits()["points"]
    kind = "agentic" if of.is_agentic else ELECTED
    if any(p.offline == DEDICATED for p in of.points):
        kind = DEDICATED
    count = len(of.points)
    if not table[kind] <= count <= table["most"]:
        expected = f"{table[kind]} to {table['most']}"
        yield Finding("point-count", of.path, f"{count} points", expected)


def _coverage(of: Curve, regions: Regions) -> Iterator[Finding]:
    for region in regions.empty():
        actual = f"the region {WORDS[region]} is empty for C_max {of.c_max}"
        yield Finding("empty-region", of.path, actual, "a region that a point can cover")
    measured = [p for p in of.points if p.offline != DEDICATED]
    for region in REQUIRED:
        if not any(region in regions.covered(p.concurrency) for p in measured):
            band = regions.ultra_low if region == REQUIRED[0] else regions.bands[region]
            actual = f"no point in the region {WORDS[region]}"
            yield Finding("coverage", of.path, actual, f"a point in {band}")
    for point in measured:
        if point.concurrency and regions.of(point.concurrency) is None:
            last = regions.bands[MARGIN].last
            yield Finding(
                "out-of-range", point.path, f"concurrency {point.concurrency}", f"at most {last}"
            )


def accuracy_points(of: Curve) -> Sequence[Point]:
    """Returns the points that contain the result of an accuracy run. Scores that a performance run computed do not
    count.
    """
    return [p for p in of.points if p.scores]


def _accuracy_coverage(of: Curve, regions: Regions) -> Iterator[Finding]:
    scored = accuracy_points(of)
    options = {
        p.concurrency: regions.covered(p.concurrency) for p in scored if p.offline != DEDICATED
    }
    elected = [p.concurrency for p in scored if p.offline == ELECTED]
    owners = matched(options, elected)
    for region in REQUIRED:
        if region not in owners:
            actual = f"no accuracy result in the region {WORDS[region]}"
            yield Finding("accuracy-coverage", of.path, actual, "one result")
    yield from _extra(regions, scored, owners.values())
    for point in of.points:
        if point.offline in (ELECTED, DEDICATED) and not point.scores and not of.is_agentic:
            actual = "no accuracy result at the Offline point"
            yield Finding("accuracy-coverage", point.path, actual, "one result")


def _extra(regions: Regions, scored: Sequence[Point], owners: Iterable[int]) -> Iterator[Finding]:
    """Yields a finding for each additional accuracy result in a region that already has one. An elected point's result
    counts for Offline and for the point's region, so a second result in that region is also a finding.
    """
    filled = set(owners)
    elected = next((p for p in scored if p.offline == ELECTED), None)
    for point in scored:
        if point.offline:
            continue
        region = regions.of(point.concurrency)
        is_second = elected is not None and region == regions.of(elected.concurrency)
        if point.concurrency not in filled or is_second:
            actual = f"a second accuracy result in the region {WORDS.get(str(region), 'margin')}"
            yield Finding("accuracy-coverage", point.path, actual, "one in each region")


def _utilisation(of: Curve) -> Iterator[Finding]:
    rates = {p.path: p.tokens_per_s for p in of.points}
    largest = max((rate for rate in rates.values() if rate), default=0.0)
    for point in of.points:
        stated, rate = number(point.system.get("tps_utilization")), rates[point.path]
        if stated is None or not rate:
            continue
        if abs(stated - rate / largest) > limits()["utilisation_tolerance"]:
            actual = f"tps_utilization: {stated:g}"
            yield Finding("utilisation", point.file(SYSTEM), actual, f"{rate / largest:.3f}")


def nodes_used(point: Point) -> dict[int, int]:
    """Maps each ensemble to the number of its nodes that a point uses; {} if the point uses the whole system."""
    rows = point.yaml.get("nodes_used")
    found: dict[int, int] = {}
    for row in rows if isinstance(rows, list) else []:
        ensemble = whole(row.get("system_node_ensemble_id")) if isinstance(row, dict) else None
        nodes = whole(row.get("nodes")) if isinstance(row, dict) else None
        if ensemble is not None and nodes is not None:
            found[ensemble] = nodes
    return found
