"""Runs the verb `bricks`: cuts models into bricks, runs each different brick once, sums up the models."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.core import files
from harness.core.console import say, show
from harness.core.units import counted
from harness.errors import ConfigError, PluginUnavailable, RunInvalid
from harness.explain.bricks.cut import record
from harness.explain.bricks.cut import synthetic as brick_synthetic
from harness.explain.bricks.cut.record import SCHEMA, Subject
from harness.explain.bricks.share import publish as brick_publish
from harness.explain.bricks.share import published
from harness.explain.bricks.tables import text, to_json
from harness.explain.bricks.time import database as brick_database
from harness.explain.bricks.time import runs
from harness.models.graph.graph import Graph
from harness.models.graph.onnx_file import read
from harness.models.manifest.lookup import is_path, load_model
from harness.results import run_folder

FILE, PAGE = "bricks.json", "bricks.html"
DEFAULT_LAYERS, DEFAULT_ROUNDS = 8, 8
DATABASE = Path("results/bricks.sqlite")

RECIPE = "3"
"""Version of the measuring method. It is part of the database key: results of other methods are
not used.
"""


@dataclass(frozen=True, kw_only=True)
class Request:
    """Options of the command line. sizes: symbolic dimensions, by name."""

    models: Sequence[str]
    most_layers: int = DEFAULT_LAYERS
    batch: int = 1
    sizes: Mapping[str, int] = field(default_factory=dict)
    threads: int = 1
    rounds: int = DEFAULT_ROUNDS
    database: Path = DATABASE
    out: Path | None = None
    publish: Path | None = None
    publish_order: bool = False
    synthetic: Path | None = None
    synthetic_layers: int | None = None
    is_run: bool = True
    as_json: bool = False


def execute(request: Request) -> int:
    """Returns the exit status."""
    subjects = _subjects(request)
    if request.publish is not None:
        _publish(subjects, request, request.publish)
    if request.synthetic is not None:
        _synthesize(subjects, request)
    content = record.content(
        subjects,
        most_layers=request.most_layers,
        batch=request.batch,
        threads=request.threads,
        rounds=request.rounds,
    )
    if not request.is_run:
        _show(content, as_json=request.as_json)
        return 0
    runs.onnxruntime()
    brick_database.prepare(request.database)
    folder = run_folder.new_folder(request.out, "bricks", "ort", _names(subjects))
    try:
        _run(subjects, content, request, folder.path)
    except KeyboardInterrupt:
        _tell_stopped(folder.path)
        raise
    final = folder.finish(newest=False)
    _report(content, final, as_json=request.as_json)
    _tell(request, f"{'results':<12}{final}")
    return RunInvalid.exit_status if any(text.failures(content)) else 0


def _tell_stopped(folder: Path) -> None:
    with suppress(OSError):  # it holds what was measured
        folder.rmdir()
    if folder.exists():
        say(f"stopped: the results so far are in {folder}: bricks --from {folder}")


def _tell(request: Request, line: str) -> None:
    """Prints beside the tables; with --json, on stderr."""
    (say if request.as_json else show)(line)


def show_again(folder: Path, *, as_json: bool = False) -> int:
    """Prints the tables and writes the page from the files of a folder alone."""
    content = files.read_json(folder / FILE)
    if content.get("schema") != SCHEMA:
        raise ConfigError(
            f"{folder / FILE} was written by another version of `bricks`: its schema differs"
        )
    with files.reading(f"{folder / FILE} is not what `bricks` writes"):
        _report(content, folder, as_json=as_json)
    return 0


def _show(content: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        show(json.dumps(to_json.to_json(content), indent=2, allow_nan=False))
    else:
        show("\n".join(text.lines(content)))


def _report(content: Mapping[str, Any], folder: Path, *, as_json: bool) -> None:
    _show(content, as_json=as_json)
    try:
        page = str(text.write_page(content, folder / PAGE))
    except PluginUnavailable as e:
        page = f"none: {e}"
    except OSError as e:
        page = f"none: {folder} cannot be written: {e.strerror}"
    if not as_json:
        show(f"{'page':<12}{page}")


def _names(subjects: Sequence[Subject]) -> str:
    """The models' names, for the folder's name."""
    return "-".join(one.name.rstrip("/").rpartition("/")[2] for one in subjects)[:60]


def _subjects(request: Request) -> list[Subject]:
    """Cut models and published bricks. Raises one ConfigError with all problems of all of them."""
    problems: list[str] = []
    subjects: list[Subject] = []
    for name in dict.fromkeys(request.models):
        try:
            if published.is_published(Path(name)):
                subjects += published.published(Path(name))
            else:
                graph = _graph(name, request)
                taken = {one.name for one in subjects}
                subjects.append(record.cut(_title(name, taken), graph, request.most_layers))
        except ConfigError as e:
            problems.append(str(e))
    if problems:
        raise ConfigError("\n".join(problems))
    graphs = [one.graph for one in subjects if one.graph is not None]
    if unused := sorted(_unused(graphs, request)):
        raise ConfigError("\n".join(unused))
    return subjects


def _title(model: str, taken: Collection[str]) -> str:
    """The model's name as a run shows it; its path where `taken` has that name."""
    name = load_model(model).name if is_path(model) else model
    return model if name in taken else name


def _graph(name: str, request: Request) -> Graph:
    model = load_model(name)
    model.obtain(("onnx",), say)
    path = model.path(("onnx",))
    assert path is not None
    return read(path, request.batch, request.sizes)


def _unused(graphs: Sequence[Graph], request: Request) -> Iterator[str]:
    """Options that have no effect here."""
    if not graphs:
        settled = {
            "--most-layers": request.most_layers != DEFAULT_LAYERS,
            "--batch": request.batch != 1,
            "--size": bool(request.sizes),
            "--synthetic": request.synthetic is not None,
        }
        flags = ", ".join(flag for flag, is_given in settled.items() if is_given)
        if flags:
            yield f"published bricks are fixed: drop {flags}"
        return
    known = sorted({name for graph in graphs for name in graph.sizes})
    for name in request.sizes.keys() - set(known):
        yield (
            f"--size {name}={request.sizes[name]}: no model has a symbolic dimension of that name: "
            f"they have {', '.join(known) or 'none'}"
        )


def _publish(subjects: Sequence[Subject], request: Request, folder: Path) -> None:
    count, size = brick_publish.publish(subjects, folder, with_order=request.publish_order)
    _tell(request, f"{'published':<12}{counted(count, 'brick')}, {size / 1e6:,.1f} MB, in {folder}")


def _run(
    subjects: Sequence[Subject], content: dict[str, Any], request: Request, folder: Path
) -> None:
    """Runs the bricks that the database lacks; each model's results are saved before the next one
    runs.
    """
    ort = runs.onnxruntime()
    content["version"] = f"onnxruntime {ort.__version__}"
    key = (content["machine"], f"{content['version']} recipe {RECIPE}", request.threads)
    known = brick_database.read(request.database, content["bricks"], *key)
    for digest, result in known.items():
        content["bricks"][digest]["result"] = result
    settings = runs.Settings(request.threads, request.rounds)
    for number, one in enumerate(subjects, 1):
        missing = {d: c for d, c in one.by_digest.items() if d not in known and not c.brick.why_not}
        say(
            f"{number} of {len(subjects)}: {one.name}, {len(missing)} of {len(one.by_digest)} bricks"
        )
        measured = runs.measure(one.graph, one.weight_bytes, missing, settings)
        fresh = {d: _result_json(measured, d) for d in missing if _was_run(measured, d)}
        known |= fresh
        for digest, result in fresh.items():
            content["bricks"][digest] |= {"result": result, "fresh": True}
        if one.about is not None:
            content["models"][one.name] |= {
                "whole": _samples(
                    measured.whole if measured.overhead else ()
                ),  # stopped between the two
                "why_not": measured.why_not,
                "overhead": _samples(measured.overhead),
                "setup_s": round(measured.setup_s, 3),
            }
        with suppress(OSError):  # a full disk is told when the folder is finished
            files.write_json(folder / FILE, content)
        if measured.was_stopped:  # too few samples for those who find them in the database
            raise KeyboardInterrupt
        brick_database.add(
            request.database, {d: r for d, r in fresh.items() if "failed" not in r}, *key
        )
    files.write_json(folder / FILE, content)


def _was_run(measured: runs.Measured, digest: str) -> bool:
    """False where Ctrl-C came before the brick's first sample."""
    return digest in measured.failed or bool(measured.beside.get(digest))


def _result_json(measured: runs.Measured, digest: str) -> dict[str, Any]:
    if digest in measured.failed:
        return {"failed": measured.failed[digest], "measured": record.now()}
    reorders = measured.reorders[digest]._asdict()
    beside = {
        "beside": _samples(measured.beside[digest]),
        "reorders": reorders,
        "measured": record.now(),
    }
    return {**_samples(measured.bricks[digest]), **beside}


def _samples(samples: Sequence[runs.Sample]) -> dict[str, list[int]]:
    return {"cpu_ns": [s.cpu_ns for s in samples], "wall_ns": [s.wall_ns for s in samples]}


def _synthesize(subjects: Sequence[Subject], request: Request) -> None:
    assert request.synthetic is not None
    graph = subjects[0].graph
    if len(subjects) != 1 or graph is None:
        raise ConfigError("--synthetic imitates one model: name exactly one")
    synthetic = brick_synthetic.synthesize(graph, request.synthetic_layers or len(graph.layers))
    brick_synthetic.write(synthetic, request.synthetic)
    _tell(
        request,
        f"{'synthetic':<12}{request.synthetic}: {synthetic.layers} layers, the operators' shares differ by "
        f"{synthetic.distance:.3f} from those of {subjects[0].name} (0 alike, 1 nothing in common)",
    )
