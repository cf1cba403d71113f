"""Runs the verb `bricks`: cuts models into bricks, runs each distinct brick once, and adds up the bricks' times for
each model.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from harness.core.clock import utc_text
from harness.core.console import say, show
from harness.core.units import counted, show_wait
from harness.errors import ConfigError, RunInvalid
from harness.explain.bricks import published
from harness.explain.bricks.cut import record
from harness.explain.bricks.cut import synthetic as brick_synthetic
from harness.explain.bricks.cut.record import Subject
from harness.explain.bricks.options import LAYERS, BrickOptions
from harness.explain.bricks.tables import construct, text
from harness.explain.bricks.tables.to_json import to_json
from harness.explain.bricks.time import runs
from harness.explain.pieces.database import Database
from harness.explain.report import Report
from harness.machine import host
from harness.models.graph.graph import Graph
from harness.models.graph.onnx_file import read
from harness.models.manifest.formats import format_of
from harness.models.manifest.lookup import is_path, load_model
from harness.models.manifest.model import Model
from harness.models.opened.ort_session import SessionSetup
from harness.results import run_folder
from harness.run.progress import Pace, Progress
from harness.run.study import show_result

REPORT = Report(
    "bricks", "bricks.json", record.SCHEMA, text.lines, text.write_page, to_json=to_json
)

RECIPE = "3"
"""Version of the measuring method. The database key contains this version, so results of other methods are not used."""


def bricks(models: Sequence[str], options: BrickOptions) -> int:
    """Returns the exit status."""
    if options.source is not None:
        REPORT.show_again(options.source, as_json=options.json)
        return 0
    subjects = _subjects(models, options)
    if options.publish is not None:
        count, size = published.publish(subjects, options.publish, with_order=options.publish_order)
        written = f"{counted(count, 'brick')}, {size / 1e6:,.1f} MB, in {options.publish}"
        _show_beside(options, f"{'published':<12}{written}")
    if options.synthetic is not None:
        _synthesize(subjects, options, options.synthetic)
    content = record.content(subjects, options)
    if options.structure:
        show_result(partial(to_json, content), partial(text.lines, content), as_json=options.json)
        return 0
    version = f"onnxruntime {runs.onnxruntime().__version__}"
    database = Database(options.database, host.fingerprint()["machine"], version)
    content["version"] = version
    names = "-".join(one.name.rstrip("/").rpartition("/")[2] for one in subjects)[:60]
    with REPORT.measuring(options.out, "ort", names) as new:
        _run(subjects, content, options, database, new.path)
    REPORT.show(content, new.final, as_json=options.json)
    return RunInvalid.exit_status if any(construct.failures(content)) else 0


def setting(threads: int) -> str:
    """Returns the setting under which the database stores times."""
    return f"threads={threads} recipe={RECIPE}"


def _show_beside(options: BrickOptions, line: str) -> None:
    """Prints a line in addition to the tables; with --json, prints the line on stderr."""
    (say if options.json else show)(line)


def _subjects(models: Sequence[str], options: BrickOptions) -> list[Subject]:
    """Returns cut models and published bricks. Raises one ConfigError that lists all problems."""
    problems: list[str] = []
    subjects: list[Subject] = []
    for name in dict.fromkeys(models):
        try:
            if published.is_published(Path(name)):
                subjects += published.read_published(Path(name))
            else:
                subjects.append(_cut(name, options, {one.name for one in subjects}))
        except ConfigError as e:
            problems.append(str(e))
    if not problems:
        graphs = [one.graph for one in subjects if one.graph is not None]
        problems = sorted(_unused(graphs, options))
    if problems:
        raise ConfigError("\n".join(problems))
    return subjects


def _cut(name: str, options: BrickOptions, other_names: Collection[str]) -> Subject:
    """Cuts a model. The model is named as in a run, or by its path if `other_names` contains that name."""
    own = format_of(Path(name)) if is_path(name) else None
    if own is not None and own.name != "onnx":
        raise ConfigError(
            f"only ONNX files can be cut, but {name} is {own.about}: convert it to ONNX"
        )
    model = load_model(name)
    model.obtain(("onnx",), say)
    path = model.path(("onnx",))
    assert path is not None
    title = name if not is_path(name) or model.name in other_names else model.name
    declared = _declared_sizes(model, path, options.batch)
    graph = read(path, options.batch, {**declared, **dict(options.size)})
    if not graph.layers:
        raise ConfigError(
            f"{path}: no layer depends on an input, so there is nothing to time: name a different model"
        )
    return record.cut(title, graph, options.most_layers)


def _declared_sizes(model: Model, path: Path, batch: int) -> dict[str, int]:
    """Returns the sizes that the manifest states and that the file may leave open, by INPUT[AXIS]. These are the sizes
    of a sample, and the batch size if its axis is not the first.
    """
    shapes = model.in_file(path, {spec.name: spec.shape for spec in model.file_inputs})
    axes = model.in_file(path, model.layout.input_axes if model.layout is not None else {})
    sizes = {
        f"{name}[{axis}]": size
        for name, shape in shapes.items()
        for axis, size in enumerate(shape)
        if axis != axes.get(name, 0) and isinstance(size, int)
    }
    return sizes | {f"{name}[{axis}]": batch for name, axis in axes.items() if axis}


def _unused(graphs: Sequence[Graph], options: BrickOptions) -> Iterator[str]:
    """Yields a problem for options that have no effect on these models."""
    if not graphs:
        has_effect = {
            "--most-layers": options.most_layers != LAYERS,
            "--batch": options.batch != 1,
            "--size": bool(options.size),
            "--synthetic": options.synthetic is not None,
        }
        if flags := ", ".join(flag for flag, is_used in has_effect.items() if is_used):
            yield f"published bricks cannot be changed: drop {flags}"
        return
    known = sorted({name for graph in graphs for name in graph.sizes})
    for name, size in dict(options.size).items():
        if name not in known:
            yield (
                f"--size {name}={size} names a symbolic dimension that no model has: the models "
                f"have {', '.join(known) or 'none'}"
            )


def _run(
    subjects: Sequence[Subject],
    content: dict[str, Any],
    options: BrickOptions,
    database: Database,
    folder: Path,
) -> None:
    """Runs the bricks that are not in the database. Saves each model's results before the next model runs."""
    key = setting(options.threads)
    known = database.read(content["bricks"], key)
    for digest, result in known.items():
        content["bricks"][digest]["result"] = result
    note = partial(run_folder.note_progress, folder)
    progress, pace = Progress(noted=lambda text, left_s: note(text, None, left_s)), Pace()
    for number, one in enumerate(subjects, 1):
        missing = {d: c for d, c in one.by_digest.items() if d not in known and not c.brick.why_not}
        which = f"model {number} of {len(subjects)}"
        left_s, begun_s = pace.left_s([0.0] * (len(subjects) - number + 1)), time.monotonic()
        left = "" if left_s is None else f"; about {show_wait(left_s)} left for all models"
        say(f"{which}: {one.name}, {len(missing)} of {len(one.by_digest)} bricks{left}")
        progress.series(which, left_s)

        def show(done: int, begun_s: float = begun_s) -> None:
            left_s = (time.monotonic() - begun_s) / done * (options.rounds - done) if done else None
            progress.show("rounds", share=done / options.rounds, left_s=left_s)

        with progress:
            measured = runs.measure(
                one.graph,
                one.weight_bytes,
                missing,
                SessionSetup(threads=options.threads),
                options.rounds,
                show,
            )
        pace.ended(time.monotonic() - begun_s)
        fresh = {
            digest: {**result, "measured": utc_text()}
            for digest, result in measured.bricks.items()
            # A brick without CPU times is left out, because the run was stopped before the brick ran.
            if "failed" in result or result["beside"]["cpu_ns"]
        }
        known |= fresh
        for digest, result in fresh.items():
            content["bricks"][digest] |= {"result": result, "fresh": True}
        if one.about is not None:
            # `was_run` is False if the run was stopped before the empty model ran
            was_run = bool(measured.overhead["cpu_ns"])
            content["models"][one.name] |= {
                "whole": measured.whole if was_run else measured.overhead,
                "why_not": measured.why_not,
                "overhead": measured.overhead,
                "setup_s": round(measured.setup_s, 3),
            }
        with suppress(OSError):  # a full disk is reported at the end, when the folder is completed
            REPORT.save(content, folder)
        # After an interruption, the results are not saved to the database that other commands read, because the samples
        # are too few.
        if measured.was_stopped:
            raise KeyboardInterrupt
        complete = {d: r for d, r in fresh.items() if "failed" not in r}
        layers = {d: " ".join(one.by_digest[d].brick.layers) for d in complete}
        database.add(complete, key, layers)
    REPORT.save(content, folder)


def _synthesize(subjects: Sequence[Subject], options: BrickOptions, file: Path) -> None:
    graph = subjects[0].graph
    if len(subjects) != 1 or graph is None:
        raise ConfigError("--synthetic imitates one model: name exactly one")
    synthetic = brick_synthetic.synthesize(graph, options.synthetic_layers or len(graph.layers))
    brick_synthetic.write(synthetic, file)
    _show_beside(
        options,
        f"{'synthetic':<12}{file}: {synthetic.layers} layers, whose operator shares differ by "
        f"{synthetic.distance:.3f} from {subjects[0].name}'s (0: equal, 1: nothing in common)",
    )
