"""The command line of `bricks`."""

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
from harness.errors import ConfigError

ABOUT = (
    "Cut models into short sequences of layers, run each different one once, without the models' "
    "weights, and put the models' times together again from these bricks."
)
_MOST = 1_000_000
_CUTTING, _RUNNING, _RESULTS, _MADE = "cutting", "running", "results", "made of the models"


def parse_size(text: str) -> tuple[str, int]:
    name, equals, number = text.rpartition("=")
    if not equals or not name or not number.isdecimal() or int(number) < 1:
        raise ValueError(f"{text!r}: write NAME=N, e.g. sequence=128")
    return name, int(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrickOptions:
    """Only a schema: what is not given has the defaults of bricks.Request."""

    most_layers: int | None = option(
        "layers of a brick at most, also -G (default 8)",
        parse=positive(_MOST),
        metavar="N",
        group=_CUTTING,
    )
    batch: int | None = option(
        "samples of a run (default 1)", parse=positive(_MOST), metavar="N", group=_CUTTING
    )
    size: tuple[tuple[str, int], ...] = option(
        "of another symbolic dimension of the inputs (repeatable)",
        parse=parse_size,
        metavar="NAME=N",
        many=True,
        group=_CUTTING,
    )
    threads: int | None = option(
        "of ONNX Runtime (default 1)", parse=positive(1024), metavar="N", group=_RUNNING
    )
    rounds: int | None = option(
        "turns of a model and its bricks, two timed runs each (default 8)",
        parse=positive(_MOST),
        metavar="N",
        group=_RUNNING,
    )
    structure: bool = option(
        "run nothing: only look at the graphs", flag=True, default=False, group=_RUNNING
    )
    database: Path | None = option(
        "what was run already (default results/bricks.sqlite)",
        parse=parse_path,
        metavar="FILE",
        group=_RUNNING,
    )
    out: Path | None = option(
        "the result folder, which must not exist yet",
        parse=parse_path,
        metavar="DIR",
        group=_RESULTS,
    )
    source: Path | None = option(
        "all tables again, from a result folder alone",
        name="from",
        parse=parse_path,
        metavar="DIR",
        group=_RESULTS,
    )
    json: bool = option(
        "print the tables' numbers as JSON instead", flag=True, default=False, group=_RESULTS
    )
    publish: Path | None = option(
        "the bricks as ONNX files, without any weight of the models",
        parse=parse_path,
        metavar="DIR",
        group=_MADE,
    )
    publish_order: bool = option(
        "of --publish: also how each model is put together, so that others get its time",
        flag=True,
        default=False,
        group=_MADE,
    )
    synthetic: Path | None = option(
        "a made-up model with the operators of the one named",
        parse=parse_path,
        metavar="FILE",
        group=_MADE,
    )
    synthetic_layers: int | None = option(
        "of --synthetic (default: as many as the model has)",
        parse=positive(_MOST),
        metavar="N",
        group=_MADE,
    )


def bricks(arguments: list[str]) -> int:
    values = expanded(_values(arguments))
    as_json, source = values.pop("json", False), values.pop("source", None)
    from harness.explain.bricks.job import Request, execute, show_again

    if source is not None:
        return show_again(source, as_json=as_json)
    values["sizes"] = dict(values.pop("size", ()))
    values["is_run"] = not values.pop("structure", False)
    return execute(Request(**values, as_json=as_json))


def _values(arguments: list[str]) -> dict[str, Any]:
    """What is given, by field; a ConfigError with all that is wrong."""
    parser = Parser(prog="python -m harness bricks", description=ABOUT, allow_abbrev=False)
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="a name of `list`, an .onnx file, or a folder of bricks that --publish wrote",
    )
    add_options(parser, BrickOptions)
    parser.add_argument("-G", dest="most_layers", metavar="N", help="--most-layers")
    given = {k: v for k, v in vars(parse_known(parser, arguments)).items() if v is not None}
    problems: list[str] = given.pop("problems")
    models: list[str] = given.pop("models")
    values = parse_values(BrickOptions, given, "command line", problems)
    if "from" in given and models:
        problems.append("--from shows what a folder holds: name no models beside it")
    problems += ignored_beside("from", given, ("json",))
    if "publish_order" in given and "publish" not in given:
        problems.append("--publish-order is for --publish: add it, or drop this")
    if "synthetic_layers" in given and "synthetic" not in given:
        problems.append("--synthetic-layers is for --synthetic: add it, or drop this")
    if "from" not in given and not models:
        problems.append("bricks needs models: names of `python -m harness list`, or .onnx files")
    if problems:
        raise ConfigError("\n".join(problems))
    return {"models": models, **values}
