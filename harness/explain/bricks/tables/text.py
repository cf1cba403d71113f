"""Tables and the page of `bricks`, from the content of a bricks.json alone."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from harness.core.units import show_ns, show_percent
from harness.explain.bricks.tables import construct, mining
from harness.results.pages import page

Content = Mapping[str, Any]
Rows = list[list[str]]

CHAINS_SHOWN, BLOCKS_SHOWN, BRICKS_SHOWN = 8, 8, 20
CLOCKS = {"cpu_ns": "CPU time", "wall_ns": "wall time"}


def lines(content: Content) -> Iterator[str]:
    yield (
        f"BRICKS  {_count(len(content['models']), 'model')}  at most {content['most_layers']} layers a brick  "
        f"{content['version']}  {_count(content['threads'], 'thread')}"
    )
    for doubt in doubts(content):
        yield f"  doubt   {doubt}"
    for title, heads, rows, about in tables(content):
        yield ""
        yield f"{title}: {about}" if about else title
        yield from _aligned(heads, rows)
    yield ""
    yield from summary(content)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def doubts(content: Content) -> Iterator[str]:
    yield from construct.busy(content)
    yield from failures(content)


def failures(content: Content) -> Iterator[str]:
    """What was not run, and why."""
    for name, model in content["models"].items():
        if model.get("why_not"):
            yield f"{name} was not run whole: {model['why_not']}"
    for brick in content["bricks"].values():
        failed = brick["why_not"] or (brick.get("result") or {}).get("failed")
        if failed:
            yield f"a brick of {' '.join(brick['layers'])} was not run: {failed}"


def tables(content: Content) -> Iterator[tuple[str, list[str], Rows, str]]:
    """(title, heads, rows, one sentence about it)."""
    if any(map(construct.is_measured, content["models"].values())):
        yield _construction(content)
    if content["models"]:
        yield _structure(content)
    if construct.of_no_model(content):
        yield _bricks(content)
    if len(content["models"]) > 1:
        yield _alike(content)
    chains = mining.chains(content)[:CHAINS_SHOWN]
    rows = [[" > ".join(c.operators), f"{c.times:,}", f"{c.models}"] for c in chains]
    if rows:
        yield "chains", ["three operators in a row", "times", "models"], rows, ""
    found = mining.blocks(content)[:BLOCKS_SHOWN]
    rows = [[_short(b.operators), f"{b.times}", ", ".join(b.models)] for b in found]
    if rows:
        yield "blocks", ["with branches, and more than once", "times", "models"], rows, ""


def _construction(content: Content) -> tuple[str, list[str], Rows, str]:
    heads = ["model", "measured", "bricks", "ratio", "critical path", "by wall", "taken off"]
    cpu, wall = (construct.ratios(content, clock) for clock in CLOCKS)
    rows = []
    for name, model in content["models"].items():
        if not construct.is_measured(model):
            continue
        whole_ns = construct.measured_ns(model, "cpu_ns")
        made = construct.construct(model, content["bricks"], "cpu_ns")
        taken_off_ns = made.reorders_ns + made.overhead_ns
        known = f" ({show_percent(made.covered)} of the layers)" if made.covered < 1 else ""
        rows.append(
            [
                *(name, show_ns(whole_ns) if whole_ns else "-", show_ns(made.sequential_ns)),
                f"{cpu[name]:.3f}" if name in cpu else f"-{known}",
                f"{made.critical_ns / whole_ns:.3f}" if whole_ns else show_ns(made.critical_ns),
                f"{wall[name]:.3f}" if name in wall else "-",
                show_percent(taken_off_ns / whole_ns, 1) if whole_ns else show_ns(taken_off_ns),
            ]
        )
    about = "CPU time of one batch, the model run whole and put together from its bricks"
    return "construction", heads, rows, about


def _structure(content: Content) -> tuple[str, list[str], Rows, str]:
    heads = ["model", "layers", "unique", "bricks", "unique", "alone", "bricks, published", "alone"]
    rows = []
    for name, model in content["models"].items():
        lengths = [len(piece["layers"]) for piece in model["pieces"]]
        published, most = model["published_lengths"], content["most_layers"]
        rows.append(
            [
                *(
                    name,
                    f"{len(model['layers'])}",
                    show_percent(construct.unique_share(model), 1),
                ),
                f"{len(lengths)}",
                f"{len({piece['brick'] for piece in model['pieces']})}",
                show_percent(construct.fallback_share(lengths, most), 1),
                *(
                    f"{len(published)}",
                    show_percent(construct.fallback_share(published, most), 1),
                ),
            ]
        )
    about = "alone: layers that ended up as bricks of one, here and by the published rule"
    return "structure", heads, rows, about


def _bricks(content: Content) -> tuple[str, list[str], Rows, str]:
    """The slowest of those whose model's order is not known, so that nothing is made of them."""
    heads = ["brick", "layers", "makes", "CPU time", "wall time"]
    found = {digest: content["bricks"][digest] for digest in construct.of_no_model(content)}
    times = {
        d: [construct.alone_ns(brick, clock) for clock in CLOCKS] for d, brick in found.items()
    }
    slowest = sorted(found, key=lambda digest: times[digest][0] or 0.0, reverse=True)
    rows = [
        [
            *(digest[:16], _short(found[digest]["layers"]), ", ".join(found[digest]["outputs"])),
            *("-" if ns is None else show_ns(ns) for ns in times[digest]),
        ]
        for digest in slowest[:BRICKS_SHOWN]
    ]
    about = f"the slowest {len(rows)} of {len(found)} whose order in a model is not known"
    return "bricks", heads, rows, about


def _alike(content: Content) -> tuple[str, list[str], Rows, str]:
    found, names = construct.jaccard(content), list(content["models"])
    heads = ["share of layers in common", *(f"{i}" for i in range(1, len(names) + 1))]
    rows = [
        [f"{i} {one}", *(f"{found[one, other]:.2f}" for other in names)]
        for i, one in enumerate(names, 1)
    ]
    return "alike", heads, rows, "Jaccard index of the sets of unique layers"


def summary(content: Content) -> Iterator[str]:
    layers, unique = construct.all_unique(content)
    if layers:
        yield f"{'unique':<12}{unique:,} of {layers:,} layers ({show_percent(unique / layers, 1)})"
    for clock, told in CLOCKS.items():
        error = construct.errors(construct.ratios(content, clock))
        if error is not None:
            yield (
                f"{'error':<12}{told}: mean {show_percent(error.mean, 1)}, worst {error.worst_ratio:.3f} "
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
    told = [f"{fresh} of {count} bricks now"]
    if before := len(results) - fresh:
        told.append(f"results of {before} were there")
    if missing := count - len(results):
        told.append(f"{missing} not at all")
    return ", ".join(told)


def _short(operators: Sequence[str]) -> str:
    text = " ".join(operators)
    return text if len(text) <= 70 else f"{text[:60]} … ({len(operators)} layers)"


def _aligned(heads: Sequence[str], rows: Rows) -> Iterator[str]:
    """The first column to the left, the others to the right; the last one of text to the left."""
    widths = [max(len(row[i]) for row in [list(heads), *rows]) for i in range(len(heads))]
    for row in [list(heads), *rows]:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield "  ".join(cells).rstrip()


def write_page(content: Content, out: Path) -> Path:
    """A PluginUnavailable where plotly is not installed."""
    head = ["<header><h1>Bricks</h1>"]
    head += [f"<p>{escape(line)}</p>" for line in [*summary(content), *doubts(content)]]
    head.append("</header>")
    tail = []
    for title, heads, rows, about in tables(content):
        tail.append(f"<h2>{escape(title)}</h2><p class='quiet'>{escape(about)}</p>")
        tail.append(page.table(heads, rows, numbers=len(heads) - 1))
    return page.write(
        [page.Article(head, list(_figures(content)), tail)], "Bricks", out, script_in=out.parent
    )


def _figures(content: Content) -> Iterator[page.Figure]:
    names = list(content["models"])
    cpu, wall = (construct.ratios(content, clock) for clock in CLOCKS)
    if cpu:
        bars = [
            {"type": "bar", "name": told, "x": names, "y": [found.get(n) for n in names]}
            for told, found in zip(CLOCKS.values(), (cpu, wall), strict=True)
        ]
        layout = {
            "xaxis": {"type": "category"},
            "yaxis": {"title": "constructed / measured"},
            "barmode": "group",
        }
        about = "1 is a model put together from its bricks as fast as it is"
        yield page.Figure("construction", about, bars, layout)
    if len(names) < 2:
        return
    found = construct.jaccard(content)
    heat = {
        "type": "heatmap",
        "x": names,
        "y": names,
        "z": [[round(found[one, other], 3) for other in names] for one in names],
        "zmin": 0,
        "zmax": 1,
        "colorscale": "Viridis",
    }
    axes = {"xaxis": {"type": "category"}, "yaxis": {"type": "category", "autorange": "reversed"}}
    yield page.Figure("alike", "share of unique layers in common", [heat], axes, 30)
