"""The verbs that explain results: profile, advise, bricks, cold, pitfalls and machine."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.cli import many_runs
from harness.cli.parser import Parser, add_options, read_options
from harness.cli.run_options import invocation, read_run_options, run_parser
from harness.core.config.options import expanded, flag_name, parse_values, user_path
from harness.core.config.run_config import RunConfig, config_from
from harness.core.console import program
from harness.core.units import NS_PER_S
from harness.errors import ConfigError, refuse
from harness.explain.advise.options import AdviseOptions
from harness.explain.bricks.options import CUTTING, BrickOptions
from harness.explain.cold.options import RUN_OPTIONS, ColdOptions
from harness.explain.machine.options import MachineOptions
from harness.explain.profile.options import ProfileOptions

_ADVISE_AS_A_RUN = ("model", "dataset", "data_dir", "input_shape", "input_range")
"""Options of `advise` that are parsed in the same way as the options of a run."""


def profile(arguments: list[str]) -> int:
    parser = run_parser(
        "profile",
        "Show where a query's time goes, from LoadGen down to the kernels. The verb makes one run of the harness, and "
        "then calls the model with and without a profiler. Writes tables, a trace and a page with a flame view and a "
        "roofline.",
        ("[options]", "--from DIR [options]"),
        (ProfileOptions, RunConfig),
    )
    parser.set_helps(
        {
            "scenario": "scenario of the harness run (default single-stream)",
            "mode": "performance, accuracy or both (default performance)",
            "duration": "approximate duration of the harness run, e.g. 10s or 2min (default 3s)",
        }
    )
    texts, problems = read_run_options(parser, arguments)
    problems += _unused_beside_from(texts, ("otlp", "table", "out", "json", "quiet"))
    defaults = {"mode": "performance", "scenario": "single-stream", "duration_ns": 3 * NS_PER_S}
    call = invocation(texts, problems, ProfileOptions, defaults)
    from harness.explain.profile import job

    return many_runs.execute("profile", call, job.problems, job.profile)


def _unused_beside_from(texts: Mapping[str, object], shown: Sequence[str]) -> Iterator[str]:
    """Yields a problem for options in `texts` that have no effect together with --from. shown: keys that --from
    accepts.
    """
    others = [flag_name(key) for key in texts if key not in ("from", *shown)]
    if "from" in texts and others:
        yield f"--from reads a folder and runs nothing: drop {', '.join(others)}"


def advise(arguments: list[str]) -> int:
    options, run = advise_options(arguments)
    from harness.explain.advise import job

    return job.advise(options, run)


def advise_options(arguments: list[str]) -> tuple[AdviseOptions, Mapping[str, Any]]:
    """Returns the options for `advise` and, as fields of RunConfig, the options that it shares with a run."""
    parser = Parser(
        "advise",
        "Find ONNX Runtime settings that make a model faster: measure each layer alone, predict the gain of each "
        "setting, and then time each new setting against the current settings. docs/advise.md explains the answers.",
        "--model MODEL [options]",
        "--from DIR [options]",
    )
    add_options(parser, AdviseOptions)
    texts, problems = read_options(parser, arguments)
    values = parse_values(AdviseOptions, texts, "command line", problems)
    as_a_run = {name: texts[name] for name in _ADVISE_AS_A_RUN if name in texts}
    run = {"backend": "ort", **config_from(as_a_run, "command line", problems)}
    problems += _advise_problems(texts, run)
    refuse(problems)
    return AdviseOptions(**expanded(values)), run


def _advise_problems(texts: Mapping[str, object], run: Mapping[str, Any]) -> Iterator[str]:
    if "from" in texts:
        yield from _unused_beside_from(texts, ("json", "quiet"))
    elif "model" not in texts:
        yield "advise needs --model MODEL, or --from DIR, the folder of an earlier `advise`"
    else:
        from harness.models.manifest.formats import ONNX, format_of
        from harness.models.opened.loading import missing_data, unknown_names

        path = Path(run["model"])
        own = format_of(path)
        if own not in (None, ONNX):
            yield (
                f"advise reads ONNX files, and {path.name} is {own.about}: export the network to ONNX, or try "
                f"settings with `tune --backend {own.backend}`"
            )
        yield from (*unknown_names(run), *missing_data(run.get("data_dir")))


def bricks(arguments: list[str]) -> int:
    models, options = _brick_options(arguments)
    from harness.explain.bricks import job

    return job.bricks(models, options)


def _brick_options(arguments: list[str]) -> tuple[list[str], BrickOptions]:
    """Returns the models and the other options. Raises a single ConfigError that lists every problem."""
    parser = Parser(
        "bricks",
        "Cut models into short sequences of layers (bricks), time each distinct brick once, without the weights "
        "of the models, and sum the times per model.",
        "MODEL... [options]",
        "--from DIR [--json]",
    )
    parser.text(
        "models",
        "MODEL",
        "a name from `list`, an .onnx file, or a folder of bricks that --publish wrote",
        nargs="*",
    )
    cutting = add_options(parser, BrickOptions)[CUTTING]
    cutting.add_argument("-G", dest="most_layers", metavar="N", help="short form of --most-layers")
    texts, problems = read_options(parser, arguments)
    models: list[str] = texts.pop("models")
    values = parse_values(BrickOptions, texts, "command line", problems)
    problems += _brick_problems(texts, models)
    refuse(problems)
    return models, BrickOptions(**expanded(values))


def _brick_problems(texts: Mapping[str, object], models: Sequence[str]) -> Iterator[str]:
    if "from" in texts and models:
        yield "--from prints the tables of a folder: drop the models"
    yield from _unused_beside_from(texts, ("json",))
    if "publish_order" in texts and "publish" not in texts:
        yield "--publish-order needs --publish DIR: add it, or drop --publish-order"
    if "synthetic_layers" in texts and "synthetic" not in texts:
        yield "--synthetic-layers needs --synthetic FILE: add it, or drop --synthetic-layers"
    if "from" not in texts and not models:
        yield f"bricks needs models: names of `{program()} list`, or .onnx files"


def cold(arguments: list[str]) -> int:
    options, run = _cold_options(arguments)
    from harness.explain.cold import job

    return job.cold(options, run)


def _cold_options(arguments: list[str]) -> tuple[ColdOptions, Mapping[str, Any]]:
    """Returns the options for `cold` and, as fields of RunConfig, the options that it shares with a run."""
    parser = Parser(
        "cold",
        "Show how long a new process takes to give its first answer, and where the time goes: reading the model, "
        "loading it, preparing its input, its first run. docs/cold.md explains the tables.",
        "MODEL [options]",
        "--from DIR [--json]",
    )
    parser.text(
        "model", "MODEL", "a name from `list`, a manifest (.yaml) or a model file", nargs="?"
    )
    add_options(parser, ColdOptions)
    texts, problems = read_options(parser, arguments)
    own = {name: text for name, text in texts.items() if name != "model"}
    values = parse_values(ColdOptions, own, "command line", problems)
    as_a_run = {name: texts[name] for name in RUN_OPTIONS if name in texts}
    run = {"backend": "ort", **config_from(as_a_run, "command line", problems)}
    problems += _cold_problems(texts)
    refuse(problems)
    return ColdOptions(**expanded(values)), run


def _cold_problems(texts: Mapping[str, object]) -> Iterator[str]:
    if "from" in texts:
        if "model" in texts:
            yield "--from prints the tables of a folder: drop the model"
        yield from _unused_beside_from(
            {k: v for k, v in texts.items() if k != "model"}, ("json", "quiet")
        )
    elif "model" not in texts:
        yield "cold needs a MODEL, or --from DIR, the folder of an earlier `cold`"


def pitfalls(arguments: list[str]) -> int:
    parser = Parser(
        "pitfalls",
        "Show which mistakes in preparing the input cost accuracy: change one declared step, the precision or the "
        "backend at a time, and compare the result with the declared model. Without --model and --dataset, use the "
        "embedded digits and scikit-learn's two photographs.",
        "[options]",
    )
    parser.text(
        "--model", "MODEL", "model (default: digits; for image files, an installed image model)"
    )
    parser.text("--dataset", "NAME", "dataset (default: the manifest's dataset)")
    parser.text("--data-dir", "PATH", "the dataset's file or folder")
    parser.text("--backend", "NAME", "backend (default ort); null compares only the inputs")
    parser.text(
        "--hook", "FILE", "Python file with the manifest's hook; the harness runs this code"
    )
    parser.text("--samples", "N", "use at most N samples (default 500)", type=int, default=500)
    parser.text("--out", "DIR", "folder for pitfalls.json and the page pitfalls.html")
    values = {k: v for k, v in vars(parser.parse_args(arguments)).items() if v is not None}
    if values["samples"] < 1:
        raise ConfigError(f"--samples {values['samples']}: it must be at least 1")
    for key in ("data_dir", "hook", "out"):
        if key in values:
            values[key] = user_path(values[key])
    from harness.explain.pitfalls import job

    return job.pitfalls(values, samples=values.pop("samples"), out=values.pop("out", None))


def machine(arguments: list[str]) -> int:
    parser = Parser(
        "machine",
        "Measure the speed of this machine and the cost of moving data: peaks of matrix products by library and "
        "precision, copies, transports. Writes a database of machines, tables and a page with plots. "
        "docs/machine.md explains the numbers.",
        "[options]",
        "--from DIR [--json]",
        "FOLDER FOLDER [--json]",
    )
    about = "two or more folders of `machine`, to compare side by side"
    parser.text("sides", "FOLDER", about, nargs="*")
    add_options(parser, MachineOptions)
    texts, problems = read_options(parser, arguments)
    sides: list[str] = texts.pop("sides", [])
    values = parse_values(MachineOptions, texts, "command line", problems)
    problems += _unused_beside_from(texts, ("json", "quiet"))
    problems += _side_problems(texts, sides)
    if "thorough" in texts and "within" in texts:
        problems.append("--thorough measures every point, but --within may skip some: drop one")
    refuse(problems)
    options = MachineOptions(**expanded(values))
    from harness.explain.machine import job

    if sides:
        return job.compare_machines([user_path(side) for side in sides], as_json=options.json)
    return job.machine(options)


def _side_problems(texts: Mapping[str, object], sides: Sequence[str]) -> Iterator[str]:
    if len(sides) == 1:
        yield f"machine compares two or more folders: --from {sides[0]} shows one"
    if sides and (others := [flag_name(key) for key in texts if key not in ("json", "quiet")]):
        yield f"a comparison of folders measures nothing: drop {', '.join(others)}"
