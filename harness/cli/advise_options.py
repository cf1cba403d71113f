"""The command line of `advise`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.config.options import (
    Parser,
    add_options,
    expanded,
    ignored_beside,
    option,
    parse_known,
    parse_values,
)
from harness.core.config.parse import parse_path, positive
from harness.core.config.run_config import config_from
from harness.errors import ConfigError
from harness.explain.advise.parts import PARTS
from harness.models.opened.loading import missing_data, unknown_names
from harness.models.opened.ort_session import AXES, GRAPH_LEVELS, PARALLEL, SEQUENTIAL

_MOST = 1_000_000
_MODEL, _TODAY, _MEASURED, _RESULTS = "the model", "how it runs now", "what is measured", "results"
_OF_A_RUN = ("model", "dataset", "data_dir", "input_shape")
"""Options that a run has, too, and that are parsed as a run's are."""


def parse_axes(text: str) -> tuple[str, ...]:
    axes = tuple(word.strip() for word in text.split(","))
    if unknown := [axis for axis in axes if axis not in AXES]:
        raise ValueError(f"{', '.join(map(repr, unknown))}: choose from {', '.join(AXES)}")
    return axes


def parse_part(text: str) -> str:
    if text not in PARTS:
        raise ValueError(f"{text!r}: choose from {', '.join(PARTS)}")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviseOptions:
    model: str | None = option("a name, a manifest, or an .onnx file", metavar="M", group=_MODEL)
    dataset: str | None = option("default: the manifest's, or synthetic", metavar="D", group=_MODEL)
    data_dir: str | None = option("the dataset's file or folder", metavar="PATH", group=_MODEL)
    input_shape: tuple[str, ...] = option(
        "of symbolic sizes (repeatable)", metavar="NAME=1xDIM", many=True, group=_MODEL
    )
    batch: int = option(
        "samples a call (default 1)", parse=positive(_MOST), default=1, metavar="N", group=_MODEL
    )
    graph: str = option(
        f"of {', '.join(GRAPH_LEVELS)} (default all)",
        choices=tuple(GRAPH_LEVELS),
        default="all",
        metavar="LEVEL",
        group=_TODAY,
    )
    threads: int | None = option(
        "default: all usable cores", parse=positive(1024), metavar="N", group=_TODAY
    )
    execution: str = option(
        f"{SEQUENTIAL} (the default) or {PARALLEL}",
        choices=(SEQUENTIAL, PARALLEL),
        default=SEQUENTIAL,
        metavar="MODE",
        group=_TODAY,
    )
    vary: tuple[str, ...] = option(
        "what advice may change (default: all): "
        + "; ".join(f"{name}: {about}" for name, about in AXES.items()),
        parse=parse_axes,
        default=tuple(AXES),
        metavar="AXIS,...",
        group=_MEASURED,
    )
    samples: int = option(
        "for accuracy (default 200)",
        parse=positive(_MOST),
        default=200,
        metavar="N",
        group=_MEASURED,
    )
    pairs: int = option(
        "a setting (default 7)", parse=positive(_MOST), default=7, metavar="N", group=_MEASURED
    )
    passes: int = option(
        "a layer (default 3)", parse=positive(_MOST), default=3, metavar="N", group=_MEASURED
    )
    database: Path | None = option(
        "of layers; default: in the cache folder", parse=parse_path, metavar="FILE", group=_MEASURED
    )
    skip: tuple[str, ...] = option(
        f"of {', '.join(PARTS)} (repeatable)",
        parse=parse_part,
        metavar="PART",
        many=True,
        group=_MEASURED,
    )
    out: Path | None = option(
        "default: results/TIME-advise-ort-MODEL", parse=parse_path, metavar="DIR", group=_RESULTS
    )
    source: Path | None = option(
        "the tables again from a folder; runs nothing",
        name="from",
        parse=parse_path,
        metavar="DIR",
        group=_RESULTS,
    )
    json: bool = option(
        "print advise.json instead of tables", flag=True, default=False, group=_RESULTS
    )
    quiet: bool = option("no progress", flag=True, default=False, group=_RESULTS)


def options_of(arguments: list[str]) -> tuple[AdviseOptions, Mapping[str, Any]]:
    """The options, and of them those of a run as a run has them. A ConfigError with all that is wrong."""
    parser = Parser(
        prog="python -m harness advise",
        description="How far a model on ONNX Runtime is from what its layers could give, which "
        "settings would be faster and by how much, and whether they are: predicted from the layers "
        "alone, then measured. See docs/advise.md.",
        allow_abbrev=False,
    )
    add_options(parser, AdviseOptions)
    given = {k: v for k, v in vars(parse_known(parser, arguments)).items() if v is not None}
    problems: list[str] = given.pop("problems")
    values = parse_values(AdviseOptions, given, "command line", problems)
    of_a_run = {name: given[name] for name in _OF_A_RUN if name in given}
    run = {"backend": "ort", **config_from(of_a_run, "command line", problems)}
    problems += _problems(given, run)
    if problems:
        raise ConfigError("\n".join(problems))
    return AdviseOptions(**expanded(values)), run


def _problems(given: Mapping[str, object], run: Mapping[str, Any]) -> Iterator[str]:
    if "from" in given:
        yield from ignored_beside("from", given, ("json", "quiet"))
    elif "model" not in given:
        yield "advise needs --model (or --from, a folder it left)"
    else:
        yield from (*unknown_names(run), *missing_data(run.get("data_dir")))
