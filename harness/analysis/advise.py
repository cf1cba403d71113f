"""The verb `advise`: where a model's time goes that need not, and what to change first."""

import argparse
import json
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from harness import results
from harness.analysis import advise_page, advise_report
from harness.analysis.advise_answers import answers
from harness.analysis.advise_job import Job, Request, open_job
from harness.analysis.advise_measure import measure as measure_model
from harness.analysis.advise_parts import PARTS
from harness.analysis.advise_parts import measure as measure_parts
from harness.analysis.advise_record import FILE
from harness.analysis.settings import AXES, GRAPH_LEVELS, PARALLEL, SEQUENTIAL, Setting
from harness.analysis.subjects import subjects
from harness.cache import cache_dir
from harness.config import config_from
from harness.console import say, show
from harness.cores import available
from harness.errors import ConfigError, PluginUnavailable, RunInvalid
from harness.options import Parser, user_path

DERIVED = "advise.json"


def advise(arguments: list[str]) -> int:
    """Returns the exit status."""
    options = _parser().parse_args(arguments)
    problems = list(_problems(options))
    if problems:
        raise ConfigError("\n".join(problems))
    folder = Path(options.source) if options.source else _measured(options)
    try:
        found = derive(folder)
    except OSError as e:
        raise ConfigError(f"{folder} cannot be written: {e.strerror}: copy it elsewhere") from e
    if options.json:
        show(json.dumps(found, indent=2))
    else:
        show("\n".join(advise_report.lines(found)))
        show(f"\n{'results':<12}{folder}")
    return 0


def derive(folder: Path) -> dict[str, Any]:
    """The content of advise.json, from measured.json alone; it and the page are written again."""
    content = results.read_json(folder / FILE)
    try:
        found = {**answers(content), "parts": content.get("parts", {})}
        tuple(advise_report.lines(found))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as e:
        raise ConfigError(f"{folder / FILE} is not what advise writes: {e!r}") from None
    results.write_json(folder / DERIVED, found)
    try:
        advise_page.write(found, folder)
    except PluginUnavailable as e:
        say(f"no page was made: {e}")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m harness advise",
        description="How far a model on ONNX Runtime is from what its layers could give, which "
        "settings would be faster and by how much, and whether they are: predicted from the layers "
        "alone, then measured. See docs/advise.md.",
    )
    parser.add_argument("--model", metavar="M", help="a name, a manifest, or an .onnx file")
    parser.add_argument("--dataset", metavar="D", help="default: the manifest's, or synthetic")
    parser.add_argument("--data-dir", metavar="PATH", help="the dataset's file or folder")
    parser.add_argument(
        "--input-shape",
        action="append",
        metavar="NAME=1xDIM",
        help="of symbolic sizes (repeatable)",
    )
    parser.add_argument(
        "--batch", type=int, default=1, metavar="N", help="samples a call (default 1)"
    )
    today = parser.add_argument_group("how it runs now")
    today.add_argument("--graph", default="all", choices=tuple(GRAPH_LEVELS), help="default all")
    today.add_argument("--threads", type=int, metavar="N", help="default: all usable cores")
    today.add_argument("--execution", default=SEQUENTIAL, choices=(SEQUENTIAL, PARALLEL))
    parser.add_argument(
        "--vary",
        default=",".join(AXES),
        metavar="AXIS,...",
        help="what advice may change (default: all): "
        + "; ".join(f"{name}: {about}" for name, about in AXES.items()),
    )
    parser.add_argument("--samples", type=int, default=200, metavar="N", help="for accuracy")
    parser.add_argument("--pairs", type=int, default=7, metavar="N", help="a setting (default 7)")
    parser.add_argument("--passes", type=int, default=3, metavar="N", help="a layer (default 3)")
    parser.add_argument(
        "--database", metavar="FILE", help="of layers; default: in the cache folder"
    )
    parser.add_argument(
        "--skip", action="append", default=[], metavar="PART", help=f"of {', '.join(PARTS)}"
    )
    parser.add_argument("--out", metavar="DIR", help="default: results/TIME-advise-ort-MODEL")
    parser.add_argument(
        "--from", dest="source", metavar="DIR", help="the tables again from a folder; runs nothing"
    )
    parser.add_argument("--json", action="store_true", help="print advise.json instead of tables")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    return parser


def _problems(options: argparse.Namespace) -> list[str]:
    if options.source is not None:
        given = {"model": options.model, "out": options.out, "dataset": options.dataset}
        return [f"--from reads a folder: drop --{name}" for name, v in given.items() if v]
    found = [] if options.model else ["advise needs --model (or --from, a folder it left)"]
    for name in ("batch", "threads", "samples", "pairs", "passes"):
        value = getattr(options, name)
        if value is not None and value < 1:
            found.append(f"--{name} {value}: it must be at least 1")
    found += [
        f"--vary {axis!r}: choose from {', '.join(AXES)}"
        for axis in options.vary.split(",")
        if axis not in AXES
    ]
    found += [
        f"--skip {p!r}: choose from {', '.join(PARTS)}" for p in options.skip if p not in PARTS
    ]
    return found


def _measured(options: argparse.Namespace) -> Path:
    """Measures into a new folder, and returns it. What was measured before an error stays there."""
    (subject,) = subjects(_values(options), ExitStack())
    cores = available().planned
    request = Request(
        now=Setting(options.graph, options.threads or cores, options.execution),
        axes=options.vary.split(","),
        batch=options.batch,
        samples=options.samples,
        pairs=options.pairs,
        passes=options.passes,
        database=user_path(options.database or cache_dir() / "layers.sqlite"),
    )
    tell = (lambda _line: None) if options.quiet else say
    out = Path(options.out) if options.out else None
    folder = results.new_folder(out, "advise", "ort", subject.model.name)
    try:
        with tempfile.TemporaryDirectory(prefix="harness-advise-") as temporary:
            _measure(
                open_job(request, subject, Path(temporary), tell),
                frozenset(options.skip),
                folder.path,
            )
    except OSError as e:
        where = e.filename or folder.path
        raise RunInvalid(f"{where} cannot be written: {e.strerror}: make room there") from e
    finally:
        with suppress(OSError):  # it holds what was measured
            folder.path.rmdir()
    return folder.finish(newest=False)


def _measure(job: Job, skipped: frozenset[str], folder: Path) -> None:
    """Writes measured.json. After Ctrl-C as far as it had come, with its tables."""
    content: dict[str, Any] = {}
    try:
        measure_model(job, content)
        results.write_json(folder / FILE, content)
        content["parts"] = {}
        measure_parts(job, skipped, content["parts"])
        results.write_json(folder / FILE, content)
    except KeyboardInterrupt:
        if (content.get("now_runs") or {}).get("wall_ns"):
            results.write_json(folder / FILE, {**content, "stopped": True})
            derive(folder)
            say(f"stopped: the tables until then: advise --from {folder}")
        say("the same command measures only the layers that are missing")
        raise


def _values(options: argparse.Namespace) -> Mapping[str, Any]:
    """The options that are a run's, too, parsed as a run's are; every problem at once."""
    given = {
        "model": options.model,
        "dataset": options.dataset,
        "data_dir": options.data_dir,
        "input_shape": options.input_shape,
        "backend": "ort",
    }
    problems: list[str] = []
    values = config_from(
        {name: value for name, value in given.items() if value is not None},
        "command line",
        problems,
    )
    if problems:
        raise ConfigError("\n".join(problems))
    return values
