"""Picks the numbers at the top of a run's page. Has no side effects."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from harness.core.config.parse import Slo, leading, parse_slos
from harness.core.units import counted, show_ns, show_rate, show_si
from harness.loadgen.scenario import Scenario, scenario_named
from harness.results.answer.answer import (
    beside,
    beside_slo,
    included,
    interval_of,
    kept_up,
    percentile_name,
    show_score,
)
from harness.results.numbers import OPEN, Number, numbers
from harness.results.pages.page import typeset

MOST = 6
"""A page shows at most this many tiles."""

_TILED_ROWS = {"accuracy": "Accuracy", "tokens": "Answer tokens"}
"""Maps a row of the answer to the tile that shows the row's numbers."""

_Numbers = Mapping[str, Number]


class Tile(NamedTuple):
    """A number that readers look for first. All texts are plain, without markup."""

    label: str
    number: str
    """The number with its unit."""
    about: str = ""
    """The bound, interval or share that qualifies the number."""
    is_bad: bool = False
    """Whether the number misses a bound or a target."""
    is_doubtful: bool = False
    """Whether the number almost reaches its bound, or a disturbance of the run in progress casts doubt on it."""


def tiles(result: Mapping[str, Any]) -> Sequence[Tile]:
    """Returns at most MOST tiles. A number that was not measured gets no tile. result: the content of result.json."""
    if result["mode"] == "accuracy":  # the headline of an accuracy run is the score
        return []
    scenario, known = scenario_named(result["scenario"]), numbers(result)
    tokens = list(_tokens(result, known))
    speed = list(_latencies(result, scenario, known))
    rate = list(_rate(result, scenario, known))
    common = [*_accuracy(result), *_energy(result, scenario)]
    if tokens:
        slo = leading(parse_slos(result.get("slo") or ""))
        first, second = (tokens, speed[:1]) if slo is None or slo.of else (speed[:1], tokens)
        found = [*first, *second, *common, *rate]
    else:
        found = [*speed, *rate, *common, *_batch(result, scenario), *_cores(result)]
    return found[:MOST]


def without_tiled(rows: Mapping[str, str], shown: Sequence[Tile]) -> dict[str, str]:
    """Returns an answer's rows without the rows whose numbers the tiles show."""
    labels = {tile.label for tile in shown}
    return {name: text for name, text in rows.items() if _TILED_ROWS.get(name) not in labels}


def html(shown: Sequence[Tile]) -> str:
    """Returns the tiles as a definition list; "" without tiles. Escapes all texts."""
    if not shown:
        return ""
    items = "".join(_item(tile) for tile in shown)
    return f'<dl class="tiles">{items}</dl>'


def _item(tile: Tile) -> str:
    kinds = {"reason": tile.is_bad, "doubt": tile.is_doubtful}
    kind = next((f' class="{name}"' for name, applies in kinds.items() if applies), "")
    value, _, unit = typeset(tile.number).replace("\u00a0", " ").partition(" ")
    more = f' <span class="unit">{escape(unit)}</span>' if unit else ""
    number = f"<dd{kind}>{escape(value)}{more}</dd>"
    about = f'<dd class="quiet">{escape(tile.about)}</dd>' if tile.about else ""
    return f"<div><dt>{escape(tile.label)}</dt>{number}{about}</div>"


def _latencies(result: Mapping[str, Any], scenario: Scenario, known: _Numbers) -> Iterator[Tile]:
    """Yields the percentile of the headline, then the median."""
    slo = leading(parse_slos(result.get("slo") or ""))
    main = percentile_name(scenario, slo)
    for name in dict.fromkeys((main, "p50")):
        if (one := known.get(name)) is None:
            continue
        bound, is_bad = "", False
        if slo is not None and name == main:
            bound = beside_slo(result, name, one.value, slo).lstrip(" ,")
            is_bad = one.value > slo.bound_ns
        # The headline already says why an open interval is unknown.
        is_known = (one.low, one.high) != OPEN
        interval = interval_of(result, name, one.value).strip(" ()") if is_known else ""
        about = "; ".join(filter(None, (bound, interval)))
        yield Tile(f"{name} latency", show_ns(one.value), about, is_bad)


def _rate(result: Mapping[str, Any], scenario: Scenario, known: _Numbers) -> Iterator[Tile]:
    if (completed := known.get("throughput")) is None:
        return
    asked = result["throughput_per_s"].get("asked")
    arrivals, queries = (result.get(name) or {} for name in ("arrivals", "queries"))
    about = ""
    if asked is not None and not result.get("sessions"):
        about = f"of {show_rate(asked)} requested"
    elif streams := arrivals.get("streams"):
        about = f"from {counted(streams, 'stream')}"
    elif arrivals.get("concurrency"):
        about = f"with {arrivals['concurrency']:,} in flight"
    elif scenario.all_at_once and queries.get("took_s"):
        about = f"{queries['samples_answered']:,} samples in {show_ns(queries['took_s'] * 1e9)}"
    unit = "queries/s" if scenario.scheduled else "samples/s"
    number = f"{show_rate(completed.value)} {unit}"
    text = f"{about}{included(result)}".lstrip(" ,")
    label = "Throughput" if scenario.all_at_once else "Completed rate"
    yield Tile(label, number, text, not kept_up(result))


def _accuracy(result: Mapping[str, Any]) -> Iterator[Tile]:
    score = result.get("accuracy") or {}
    if score.get("value") is None:
        return
    target, value = score["target"], score["value"]
    is_bad = target is not None and (
        value > target if score.get("lower_is_better") else value < target
    )
    bound = f", target {target:g} {score['unit']}".rstrip() if target is not None else ""
    about = f"{score['metric']} of {score['samples']:,} samples{bound}"
    yield Tile(_TILED_ROWS["accuracy"], show_score(score), about, is_bad)


def _energy(result: Mapping[str, Any], scenario: Scenario) -> Iterator[Tile]:
    """Yields the energy from the first meter with a reading."""
    for reading in ((result.get("power") or {}).get("readings") or ())[:1]:
        per = "sample" if scenario.all_at_once else "query"
        # An estimate's domain is a long sentence, so the tile only says "estimated".
        is_estimate = reading["provenance"] == "estimated"
        number = show_si(reading[f"joules_per_{per}"], "J")
        yield Tile(f"Energy per {per}", number, "estimated" if is_estimate else reading["domain"])


def _tokens(result: Mapping[str, Any], known: _Numbers) -> Iterator[Tile]:
    """Yields the p99 of each token time, or, if an SLO judges the time, the judged percentile and value; then tokens/s."""
    tokens = result.get("tokens") or {}
    if (per_s := known.get("tokens")) is None:
        return
    slos = {slo.of: slo for slo in parse_slos(result.get("slo") or "")}
    for of in ("ttft", "tpot"):
        slo = slos.get(of, Slo(0.99, 0, of))
        value_ns = _judged_ns(result, slo)
        if value_ns is None and (one := known.get(slo.name.replace(":", "_"))) is not None:
            value_ns = one.value
        if value_ns is None:
            continue
        bound = beside(value_ns, slo.bound_ns).lstrip(" ,") if of in slos else ""
        median = known.get(f"{of}_p50")
        median_text = f"p50 {show_ns(median.value)}" if median else ""
        yield Tile(
            f"{of.upper()} {slo.name.partition(':')[2]}",
            show_ns(value_ns),
            "; ".join(filter(None, (bound, median_text))),
            bool(slo.bound_ns) and value_ns > slo.bound_ns,
        )
    about = f"{tokens['output_mean']:.3g} tokens per answer"
    yield Tile(_TILED_ROWS["tokens"], f"{show_rate(per_s.value)} tokens/s", about)


def _judged_ns(result: Mapping[str, Any], slo: Slo) -> float | None:
    """Returns the value that the verdict compared with the SLO, in ns; None if the run did not measure this value."""
    judged = (result.get("goodput") or {}).get("slos") or ()
    values: Iterator[float | None] = (one["value_ns"] for one in judged if one["slo"] == str(slo))
    return next(values, None)


def _batch(result: Mapping[str, Any], scenario: Scenario) -> Iterator[Tile]:
    """Yields the mean batch size if the run's dispatcher forms batches."""
    mean = (result.get("queries") or {}).get("mean_batch")
    most = (result.get("plan") or {}).get("max_batch") or 1
    if mean is not None and most > 1 and (scenario.scheduled or scenario.all_at_once):
        yield Tile("Mean batch", f"{show_rate(mean)} samples", f"at most {most:,}")


def _cores(result: Mapping[str, Any]) -> Iterator[Tile]:
    """Yields the number of cores that the model used; nothing if the model runs on a server."""
    busy = (result.get("measured_process") or {}).get("cpu_over_wall")
    cores = (result.get("plan") or {}).get("cores")
    if busy is not None and cores and not result.get("client"):
        yield Tile("Cores in use", f"{busy:.2g}", f"of {cores:g} cores")
