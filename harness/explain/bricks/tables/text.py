"""Prints the tables of `bricks` and writes its page, from the content of a bricks.json alone."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from harness.core.units import show_ns, show_percent
from harness.explain.bricks.tables import construct, mining
from harness.results.pages import page
from harness.results.pages.tables import Cell, Column, Table, aligned

Content = Mapping[str, Any]

CHAINS_SHOWN, BLOCKS_SHOWN, BRICKS_SHOWN = 8, 8, 20
CLOCKS = {"cpu_ns": "CPU time", "wall_ns": "wall time"}
_TIMES = Column("times", "count")


def lines(content: Content) -> Iterator[str]:
    yield (
        f"BRICKS  {_count(len(content['models']), 'model')}  at most {content['most_layers']} layers a brick  "
        f"{content['version']}  {_count(content['threads'], 'thread')}"
    )
    for doubt in doubts(content):
        yield f"  doubt   {doubt}"
    for table in tables(content):
        yield ""
        yield f"{table.title}: {table.about}" if table.about else table.title
        yield from aligned(table.columns, table.rows)
    yield ""
    yield from summary(content)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def doubts(content: Content) -> Iterator[str]:
    yield from construct.busy(content)
    yield from failures(content)


def failures(content: Content) -> Iterator[str]:
    """Models and bricks that were not run, with reasons."""
    for name, model in content["models"].items():
        if model.get("why_not"):
            yield f"{name} was not run as a whole: {model['why_not']}"
    for brick in content["bricks"].values():
        failed = brick["why_not"] or (brick.get("result") or {}).get("failed")
        if failed:
            yield f"a brick of {' '.join(brick['layers'])} was not run: {failed}"


def tables(content: Content) -> Iterator[Table]:
    if any(map(construct.is_measured, content["models"].values())):
        yield _construction(content)
    if content["models"]:
        yield _structure(content)
    if construct.of_no_model(content):
        yield _bricks(content)
    if len(content["models"]) > 1:
        yield _alike(content)
    if chains := mining.chains(content)[:CHAINS_SHOWN]:
        rows: list[list[Cell]] = [[" > ".join(c.operators), c.times, c.models] for c in chains]
        heads = [Column("three operators in a row"), _TIMES, Column("models", "count")]
        yield Table("chains", "chains", "", heads, rows)
    if blocks := mining.blocks(content)[:BLOCKS_SHOWN]:
        rows = [[_short(b.operators), b.times, ", ".join(b.models)] for b in blocks]
        heads = [Column("repeated block with branches"), _TIMES, Column("models")]
        yield Table("blocks", "blocks", "", heads, rows)


def _construction(content: Content) -> Table:
    cpu, wall = (construct.ratios(content, clock) for clock in CLOCKS)
    rows: list[list[Cell]] = []
    for name, model in content["models"].items():
        if not construct.is_measured(model):
            continue
        whole_ns = construct.measured_ns(model, "cpu_ns")
        parts = construct.construct(model, content["bricks"], "cpu_ns")
        taken_off_ns = parts.reorders_ns + parts.overhead_ns
        known = f" ({show_percent(parts.covered)} of the layers)" if parts.covered < 1 else ""
        rows.append(
            [
                name,
                whole_ns,
                parts.sequential_ns,
                f"{cpu[name]:.3f}" if name in cpu else f"-{known}",
                f"{parts.critical_ns / whole_ns:.3f}" if whole_ns else show_ns(parts.critical_ns),
                f"{wall[name]:.3f}" if name in wall else None,
                show_percent(taken_off_ns / whole_ns, 1) if whole_ns else show_ns(taken_off_ns),
            ]
        )
    columns = [Column("model"), Column("measured", "ns"), Column("bricks", "ns")]
    columns += [Column(name, "1") for name in ("ratio", "critical path", "by wall", "taken off")]
    about = "CPU time of one batch: the model run whole, and the sum of its bricks"
    return Table("construction", "construction", about, columns, rows)


def _structure(content: Content) -> Table:
    rows: list[list[Cell]] = []
    for name, model in content["models"].items():
        lengths = [len(piece["layers"]) for piece in model["pieces"]]
        published, most = model["published_lengths"], content["most_layers"]
        rows.append(
            [
                name,
                len(model["layers"]),
                construct.unique_share(model),
                len(lengths),
                len({piece["brick"] for piece in model["pieces"]}),
                construct.fallback_share(lengths, most),
                len(published),
                construct.fallback_share(published, most),
            ]
        )
    columns = [Column("model"), Column("layers", "count"), Column("unique", "share")]
    columns += [Column("bricks", "count"), Column("unique", "count"), Column("alone", "share")]
    columns += [Column("bricks, published", "count"), Column("alone", "share")]
    about = (
        "alone: share of the layers in bricks of one layer, by this rule and by the published one"
    )
    return Table("structure", "structure", about, columns, rows)


def _bricks(content: Content) -> Table:
    """The slowest bricks of models whose order is not known, so that no model is constructed."""
    bricks = {digest: content["bricks"][digest] for digest in construct.of_no_model(content)}
    times = {
        d: [construct.alone_ns(brick, clock) for clock in CLOCKS] for d, brick in bricks.items()
    }
    slowest = sorted(bricks, key=lambda digest: times[digest][0] or 0.0, reverse=True)
    rows: list[list[Cell]] = [
        [
            digest[:16],
            _short(bricks[digest]["layers"]),
            ", ".join(bricks[digest]["outputs"]),
            *times[digest],
        ]
        for digest in slowest[:BRICKS_SHOWN]
    ]
    columns = [Column(name) for name in ("brick", "layers", "makes")]
    columns += [Column(name, "ns") for name in CLOCKS.values()]
    about = f"the slowest {len(rows)} of {len(bricks)} whose order in a model is not known"
    return Table("bricks", "bricks", about, columns, rows)


def _alike(content: Content) -> Table:
    shares, names = construct.jaccard(content), list(content["models"])
    columns = [Column("share of layers in common")]
    columns += [Column(f"{i}", "share") for i in range(1, len(names) + 1)]
    rows: list[list[Cell]] = [
        [f"{i} {one}", *(f"{shares[one, other]:.2f}" for other in names)]
        for i, one in enumerate(names, 1)
    ]
    return Table("alike", "alike", "Jaccard index of the sets of unique layers", columns, rows)


def summary(content: Content) -> Iterator[str]:
    layers, unique = construct.all_unique(content)
    if layers:
        yield f"{'unique':<12}{unique:,} of {layers:,} layers ({show_percent(unique / layers, 1)})"
    for clock, clock_name in CLOCKS.items():
        error = construct.errors(construct.ratios(content, clock))
        if error is not None:
            yield (
                f"{'error':<12}{clock_name}: mean {show_percent(error.mean, 1)}, worst {error.worst_ratio:.3f} "
                f"({error.worst}), geometric mean of the ratios {error.geometric_mean:.3f}"
            )
    saved = construct.saving(content, "cpu_ns")
    if saved is not None:
        yield (
            f"{'saving':<12}{saved.factor:.2f} x: all models once take {show_ns(saved.whole_ns)}, "
            f"their bricks once {show_ns(saved.bricks_ns)}"
        )
    yield f"{'run':<12}{_ran(content)}"


def _ran(content: Content) -> str:
    count = len(content["bricks"])
    results = [b for b in content["bricks"].values() if (b.get("result") or {}).get("cpu_ns")]
    fresh = sum(1 for brick in results if brick.get("fresh"))
    parts = [f"{fresh} of {count} bricks now"]
    if before := len(results) - fresh:
        parts.append(f"{before} from the database")
    if missing := count - len(results):
        parts.append(f"{missing} not run")
    return ", ".join(parts)


def _short(operators: Sequence[str]) -> str:
    text = " ".join(operators)
    return text if len(text) <= 70 else f"{text[:60]} … ({len(operators)} layers)"


def write_page(content: Content, out: Path) -> Path:
    """Raises PluginUnavailable where plotly is not installed."""
    head = ["<header><h1>Bricks</h1>"]
    head += [f"<p>{escape(line)}</p>" for line in [*summary(content), *doubts(content)]]
    head.append("</header>")
    tail = [html for table in tables(content) for html in page.section(table)]
    return page.write(
        [page.Article(head, list(_figures(content)), tail)], "Bricks", out, script_in=out.parent
    )


def _figures(content: Content) -> Iterator[page.Figure]:
    names = list(content["models"])
    cpu, wall = (construct.ratios(content, clock) for clock in CLOCKS)
    if cpu:
        bars = [
            {"type": "bar", "name": clock_name, "x": names, "y": [ratios.get(n) for n in names]}
            for clock_name, ratios in zip(CLOCKS.values(), (cpu, wall), strict=True)
        ]
        layout = {
            "xaxis": {"type": "category"},
            "yaxis": {"title": "constructed / measured"},
            "barmode": "group",
        }
        about = "1: the sum of the bricks equals the measured time"
        yield page.Figure("construction", about, bars, layout)
    if len(names) < 2:
        return
    ratios = construct.jaccard(content)
    heat = {
        "type": "heatmap",
        "x": names,
        "y": names,
        "z": [[round(ratios[one, other], 3) for other in names] for one in names],
        "zmin": 0,
        "zmax": 1,
        "colorscale": "Viridis",
    }
    axes = {"xaxis": {"type": "category"}, "yaxis": {"type": "category", "autorange": "reversed"}}
    yield page.Figure("alike", "share of unique layers in common", [heat], axes, 30)
