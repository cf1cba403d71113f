"""Prints the tables of `bricks` and writes its page, using only the content of a bricks.json."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.units import counted, show_ns, show_percent
from harness.explain.bricks.tables import construct
from harness.explain.bricks.tables.construct import CLOCKS
from harness.explain.bricks.tables.to_json import plain, to_json
from harness.models.manifest.lookup import result_name
from harness.results.pages import page
from harness.results.pages.heading import Badges, heading
from harness.results.pages.plots import bars, heat_map, tall
from harness.results.pages.tables import Cell, Column, Table, aligned, columns

Content = Mapping[str, Any]
"""The content of a bricks.json."""

Numbers = Mapping[str, Any]
"""Result of `to_json`."""

PAGE = "bricks.html"
CHAINS_SHOWN, BLOCKS_SHOWN, BRICKS_SHOWN = 8, 8, 20


def lines(content: Content) -> Iterator[str]:
    numbers = to_json(content)
    yield (
        f"BRICKS  {counted(len(numbers['models']), 'model')}  at most {numbers['most_layers']} layers per brick  "
        f"{numbers['version']}  {counted(numbers['threads'], 'thread')}"
    )
    for doubt in numbers["doubts"]:
        yield f"  doubt   {doubt}"
    for table in _tables(content, numbers):
        yield ""
        yield f"{table.title}: {table.about}" if table.about else table.title
        yield from aligned(table.columns, table.rows)
    yield ""
    yield from _summary(numbers)


def _tables(content: Content, numbers: Numbers) -> Iterator[Table]:
    models = numbers["models"]
    if any(model["cpu"] for model in models.values()):
        yield _construction(models)
    if models:
        yield _structure(models)
    if unordered := construct.of_no_model(content):
        yield _bricks([one for one in numbers["bricks"] if one["brick"] in unordered])
    if len(models) > 1:
        yield _alike(numbers["alike"])
    rows: list[list[Cell]]
    if chains := numbers["chains"][:CHAINS_SHOWN]:
        rows = [[" > ".join(c["operators"]), c["times"], c["models"]] for c in chains]
        heads = columns("three operators in a row | times [count] | models [count]")
        yield Table("chains", "chains", "", heads, rows)
    if blocks := numbers["blocks"][:BLOCKS_SHOWN]:
        rows = [[_short(b["operators"]), b["times"], ", ".join(b["models"])] for b in blocks]
        heads = columns("repeated block with branches | times [count] | models")
        yield Table("blocks", "blocks", "", heads, rows)


def _construction(models: Numbers) -> Table:
    rows: list[list[Cell]] = []
    for name, model in models.items():
        cpu, wall = model["cpu"], model["wall"]
        if cpu is None:
            continue
        whole_ns = cpu["measured_ns"]
        taken_off_ns = cpu["reorders_ns"] + cpu["overhead_ns"]
        known = f" ({show_percent(cpu['covered'])} of the layers)" if cpu["covered"] < 1 else ""
        critical_ns = cpu["critical_ns"]
        rows.append(
            [
                name,
                whole_ns,
                cpu["sequential_ns"],
                f"-{known}" if cpu["ratio"] is None else f"{cpu['ratio']:.3f}",
                f"{critical_ns / whole_ns:.3f}" if whole_ns else show_ns(critical_ns),
                None if wall["ratio"] is None else f"{wall['ratio']:.3f}",
                show_percent(taken_off_ns / whole_ns, 1) if whole_ns else show_ns(taken_off_ns),
            ]
        )
    heads = columns(
        "model | measured [ns] | bricks [ns] | ratio [1] | critical path [1] | by wall [1] | taken off [1]"
    )
    about = "CPU time of one batch: the whole model, and the sum of its bricks"
    return Table("construction", "construction", about, heads, rows)


def _structure(models: Numbers) -> Table:
    rows: list[list[Cell]] = [
        [
            name,
            model["layers"],
            model["unique_layers"] / model["layers"],
            model["bricks"],
            model["unique_bricks"],
            model["alone_share"],
            *model["published_rule"].values(),
        ]
        for name, model in models.items()
    ]
    heads = columns(
        "model | layers [count] | unique layers [share] | bricks [count] | unique bricks [count] | alone [share] "
        "| bricks, published [count] | alone, published [share]"
    )
    about = (
        "alone: share of the layers in bricks of one layer, by this rule and by the published rule"
    )
    return Table("structure", "structure", about, heads, rows)


def _bricks(bricks: Sequence[Numbers]) -> Table:
    """Tabulates the slowest bricks of models whose time cannot be computed because the order of their bricks is
    unknown.
    """
    rows: list[list[Cell]] = [
        [
            one["brick"][:16],
            _short(one["layers"]),
            ", ".join(one["outputs"]),
            *(max(0.0, one[c] - one["beside"][c]) if c in one else None for c in CLOCKS),
        ]
        for one in bricks
    ]
    slowest = sorted(rows, key=lambda row: row[3] or 0.0, reverse=True)[:BRICKS_SHOWN]
    heads = columns("brick | layers | makes")
    heads += [Column(name, "ns") for name in CLOCKS.values()]
    about = f"the slowest {len(slowest)} of {len(rows)} bricks, whose order in a model is not known"
    return Table("bricks", "bricks", about, heads, slowest)


def _alike(shares: Numbers) -> Table:
    heads = [Column("share of layers in common")]
    heads += [Column(f"{i}", "share") for i in range(1, len(shares) + 1)]
    rows: list[list[Cell]] = [
        [f"{i} {name}", *(f"{share:.2f}" for share in others.values())]
        for i, (name, others) in enumerate(shares.items(), 1)
    ]
    return Table("alike", "alike", "Jaccard index of the sets of unique layers", heads, rows)


def _summary(numbers: Numbers) -> Iterator[str]:
    layers, unique = numbers["layers"], numbers["unique_layers"]
    if layers:
        yield f"{'unique':<12}{unique:,} of {layers:,} layers ({show_percent(unique / layers, 1)})"
    for clock, clock_name in CLOCKS.items():
        if error := numbers["errors"][plain(clock)]:
            yield (
                f"{'error':<12}{clock_name}: mean {show_percent(error['mean'], 1)}, "
                f"worst {_beyond(error['worst_ratio'])} ({error['worst']}), "
                f"geometric mean {_beyond(error['geometric_mean'])}"
            )
    if saved := numbers["saving"]["cpu"]:
        yield (
            f"{'saving':<12}{saved['factor']:.2f} x: running every model once takes "
            f"{show_ns(saved['whole_ns'])}, running their bricks once takes {show_ns(saved['bricks_ns'])}"
        )
    measured = [brick for brick in numbers["bricks"] if "cpu_ns" in brick]
    fresh = sum(brick["is_fresh"] for brick in measured)
    counts = {"from the database": len(measured) - fresh}
    counts["not run"] = len(numbers["bricks"]) - len(measured)
    rest = "".join(f", {count} {where}" for where, count in counts.items() if count)
    yield f"{'run':<12}{fresh} of {len(numbers['bricks'])} bricks now{rest}"


def _short(operators: Sequence[str]) -> str:
    text = " ".join(operators)
    return text if len(text) <= 70 else f"{text[:60]} … ({len(operators)} layers)"


def write_page(content: Content, folder: Path) -> Path:
    """Writes the page and returns its path. Raises PluginUnavailable if plotly is not installed."""
    return page.write(articles(content), "Bricks", folder / PAGE, script_in=folder)


def _beyond(ratio: float) -> str:
    """Returns how far the sum of the bricks lies above the measured time."""
    return show_percent(ratio - 1, 1, signed=True)


def articles(content: Content) -> list[page.Article]:
    numbers = to_json(content)
    doubts = [f"{'doubt':<12}{doubt}" for doubt in numbers["doubts"]]
    names = ", ".join(map(result_name, numbers["models"])) or "no model"
    lines = [f"{'answer':<12}{_headline(numbers)}", *_summary(numbers), *doubts]
    head = [heading(["Bricks", names], Badges(doubted=bool(doubts))), *page.conclusion(lines)]
    tail = [html for table in _tables(content, numbers) for html in page.section(table, cards=True)]
    return [page.Article(head, list(_figures(numbers)), tail)]


def summary(content: Content) -> tuple[str, Badges]:
    """Returns the headline and the badges of the page."""
    numbers = to_json(content)
    return _headline(numbers), Badges(doubted=bool(numbers["doubts"]))


def _headline(numbers: Numbers) -> str:
    """States how many layers are unique, and how much time is saved by measuring each brick once."""
    layers, unique = numbers["layers"], numbers["unique_layers"]
    text = f"{unique:,} of {counted(layers, 'layer')} are unique" if layers else "no layers"
    saved = numbers["saving"]["cpu"]
    if saved and saved["factor"] > 1:
        less = show_percent(1 - 1 / saved["factor"])
        text += f"; running each brick once takes {less} less time than the models"
    return text


def _figures(numbers: Numbers) -> Iterator[page.Figure]:
    models, names = numbers["models"], list(numbers["models"])
    ratios = {
        clock_name: [(model[plain(clock)] or {}).get("ratio") for model in models.values()]
        for clock, clock_name in CLOCKS.items()
    }
    if len(names) > 1 and any(ratios["CPU time"]):
        about = "Sum of the times of a model's bricks, as a share of the whole model's time. At 1, both are equal."
        axes = ("", "bricks / model")
        drawn = bars("Bricks against models", about, axes, names, ratios, "group")
        equal = {"type": "line", "x0": 0, "x1": 1, "xref": "paper", "y0": 1, "y1": 1}
        yield drawn._replace(
            layout={**drawn.layout, "shapes": [{**equal, "line": {"dash": "dash", "width": 1.5}}]}
        )
    if len(names) > 2:
        shares = [[round(share, 3) for share in row.values()] for row in numbers["alike"].values()]
        about = "Share of the unique layers that two models have in common."
        yield heat_map(
            "Alike",
            about,
            ("", names),
            ("", names),
            shares,
            tall(len(names)),
            zmin=0,
            zmax=1,
            text=[[f"{share:.2f}" for share in row] for row in shares],
            texttemplate="%{text}",
            showscale=False,
        )
