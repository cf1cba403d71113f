"""Writes tune.html with the forecast as a heat map and the runs that judged the finalists."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.core.units import NS_PER_MS
from harness.results.pages import page
from harness.results.pages.heading import Badges, heading, is_doubted, task, verdict_of
from harness.results.pages.page import Article, Figure
from harness.results.pages.plots import bound_line, cell_border, heat_map, line, rounded, tall
from harness.search.tune import table as tune_report
from harness.search.tune.candidates import Aim
from harness.search.tune.content import Content

PAGE = "tune.html"


def write(content: Content, folder: Path) -> Path:
    return page.write(articles(content), folder.resolve().name, folder / PAGE, script_in=folder)


def articles(content: Content) -> list[Article]:
    tail = [
        part for table in tune_report.tables(content) for part in page.section(table, cards=True)
    ]
    return [Article(list(_head(content)), list(figures(content)), tail)]


def figures(content: Content) -> Iterator[Figure]:
    """Yields a plot of the LoadGen runs by round, and the forecast that chose their plans as a heat map."""
    aim = Aim(**content["judged"])
    scale, unit = (NS_PER_MS, "ms") if aim.unit == "ns" else (1, aim.unit)
    bound_ns = tune_report.bound_ns(content)
    layout: dict[str, Any] = {
        "xaxis": {"title": "round", "dtick": 1},
        "yaxis": {"title": f"{aim.what}, {unit}"},
    }
    if (
        bound_ns != math.inf
    ):  # the tails of rounds differ by factors, and none may be near the bound
        layout["yaxis"]["type"] = "log"
        layout["shapes"] = bound_line(bound_ns / NS_PER_MS, "y")
    yield Figure(
        "Judged by LoadGen",
        "One run of each plan per round; the runs of a round share their seeds.",
        [
            line(
                one["plan"],
                [int(number) + 1 for number in one["values"]],
                [rounded(value, 1 / scale) for value in one["values"].values()],
            )
            for one in content["finalists"]
        ],
        layout,
    )
    yield _heat_map(content)


def _heat_map(content: Content) -> Figure:
    aim = Aim(**content["predicted"])
    known = [one for one in content["layouts"] if one["predicted"]]
    sizes = sorted({int(size) for one in known for size in one["predicted"]})
    rows = [[one["predicted"].get(str(size)) for size in sizes] for one in known]
    # Several plans may have the same prediction, so cells are marked by plan.
    names = [tune_report.name_of(one) for one in known]
    plans = [[f"{name}, batch {size}" for size in sizes] for name in names]
    is_taken = content["taken"] is not None and not tune_report.is_unproven(content)
    borders = [
        cell_border(x, y)
        for y, row in enumerate(plans)
        for x, plan in enumerate(row)
        if is_taken and plan == content["taken"]
    ]
    # The unit is shown only in the title, because the cells are narrow.
    unit = "" if aim.unit == "ns" else f" {aim.unit}"
    judged = {one["plan"] for one in content["finalists"]}
    texts = [
        [
            "" if v is None else _cell(aim.show(v).removesuffix(unit), plan in judged)
            for v, plan in zip(*row, strict=True)
        ]
        for row in zip(rows, plans, strict=True)
    ]
    drawn = heat_map(
        f"{aim.what[:1].upper()}{aim.what[1:]}{unit and ','}{unit}, predicted from bare loops",
        "Instances x threads against largest batch; empty cells were not worth measuring. Brackets mark the plans that "
        "LoadGen judged: the forecast's best, with the smaller of two batches that are nearly equal, and the plan without tuning"
        f"{'. A border marks the plan to take' if borders else ''}.",
        ("largest batch, samples", sizes),
        ("", names),
        [[rounded(value) for value in row] for row in rows],
        tall(len(known)),
        text=texts,
        texttemplate="%{text}",
        hoverinfo="x+y+text",
        reversescale=not aim.more_is_better,
        showscale=False,
    )
    return drawn._replace(layout={**drawn.layout, "shapes": borders})


def _cell(text: str, is_judged: bool) -> str:
    return f"[{text}]" if is_judged else text


def badges(content: Content) -> Badges:
    runs = tune_report.judged_runs(content, content["taken"])
    verdict = "INVALID" if tune_report.missed_slo(content) else verdict_of(runs)
    if verdict == "VALID" and tune_report.invalid_runs(runs):
        verdict = "UNDECIDED"
    return Badges(verdict, is_doubted(runs))


def _head(content: Content) -> Iterator[str]:
    yield heading(["Tune", *task(content)], badges(content))
    lines = [f"{'plan':<12}{tune_report.headline(content)}"]
    yield from page.conclusion([*lines, *tune_report.conclusion(content, below_headline=True)])
