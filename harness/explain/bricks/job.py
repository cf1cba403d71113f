"""The verb `bricks`: models as sequences of layers, each of which is run once for all of them."""

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
"""Part of the version under which results are kept: those of another way to measure are others."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asked for. sizes: of symbolic dimensions, by name."""

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
        say(f"stopped: what was measured until then is in {folder}: bricks --from {folder}")


def _tell(request: Request, line: str) -> None:
    """Beside the tables; beside JSON, which a program reads, on stderr."""
    (say if request.as_json else show)(line)


def show_again(folder: Path, *, as_json: bool = False) -> int:
    """The tables and the page, from the files of a folder alone."""
    content = files.read_json(folder / FILE)
    if content.get("schema") != SCHEMA:
        raise ConfigError(
            f"{folder / FILE} is not of this harness's `bricks`: its schema is another"
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
        made = str(text.write_page(content, folder / PAGE))
    except PluginUnavailable as e:
        made = f"none: {e}"
    except OSError as e:
        made = f"none: {folder} cannot be written: {e.strerror}"
    if not as_json:
        show(f"{'page':<12}{made}")


def _names(subjects: Sequence[Subject]) -> str:
    """For the folder's name."""
    return "-".join(one.name.rstrip("/").rpartition("/")[2] for one in subjects)[:60]


def _subjects(request: Request) -> list[Subject]:
    """Models cut into bricks, and bricks that were published. All problems of all of them at once."""
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
    """The model's name, as a run says it; the path where another model in `taken` has that name."""
    name = load_model(model).name if is_path(model) else model
    return model if name in taken else name


def _graph(name: str, request: Request) -> Graph:
    model = load_model(name)
    model.obtain(("onnx",), say)
    path = model.path(("onnx",))
    assert path is not None
    return read(path, request.batch, request.sizes)


def _unused(graphs: Sequence[Graph], request: Request) -> Iterator[str]:
    """Options that change nothing."""
    if not graphs:
        settled = {
            "--most-layers": request.most_layers != DEFAULT_LAYERS,
            "--batch": request.batch != 1,
            "--size": bool(request.sizes),
            "--synthetic": request.synthetic is not None,
        }
        told = ", ".join(flag for flag, is_given in settled.items() if is_given)
        if told:
            yield f"bricks that were published are as they are: drop {told}"
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
    """What the database has not; every model's results are kept before the next one runs."""
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
        found = runs.measure(one.graph, one.weight_bytes, missing, settings)
        fresh = {d: _result_json(found, d) for d in missing if _was_run(found, d)}
        known |= fresh
        for digest, result in fresh.items():
            content["bricks"][digest] |= {"result": result, "fresh": True}
        if one.about is not None:
            content["models"][one.name] |= {
                "whole": _samples(found.whole if found.overhead else ()),  # stopped between the two
                "why_not": found.why_not,
                "overhead": _samples(found.overhead),
                "setup_s": round(found.setup_s, 3),
            }
        with suppress(OSError):  # a full disk is told when the folder is finished
            files.write_json(folder / FILE, content)
        if found.was_stopped:  # too few samples for those who find them in the database
            raise KeyboardInterrupt
        brick_database.add(
            request.database, {d: r for d, r in fresh.items() if "failed" not in r}, *key
        )
    files.write_json(folder / FILE, content)


def _was_run(found: runs.Found, digest: str) -> bool:
    """Not where it was stopped before the brick's first sample."""
    return digest in found.failed or bool(found.beside.get(digest))


def _result_json(found: runs.Found, digest: str) -> dict[str, Any]:
    if digest in found.failed:
        return {"failed": found.failed[digest], "measured": record.now()}
    reorders = found.reorders[digest]._asdict()
    beside = {
        "beside": _samples(found.beside[digest]),
        "reorders": reorders,
        "measured": record.now(),
    }
    return {**_samples(found.bricks[digest]), **beside}


def _samples(samples: Sequence[runs.Sample]) -> dict[str, list[int]]:
    return {"cpu_ns": [s.cpu_ns for s in samples], "wall_ns": [s.wall_ns for s in samples]}


def _synthesize(subjects: Sequence[Subject], request: Request) -> None:
    assert request.synthetic is not None
    graph = subjects[0].graph
    if len(subjects) != 1 or graph is None:
        raise ConfigError("--synthetic is made like one model: name one")
    made = brick_synthetic.synthesize(graph, request.synthetic_layers or len(graph.layers))
    brick_synthetic.write(made, request.synthetic)
    _tell(
        request,
        f"{'synthetic':<12}{request.synthetic}: {made.layers} layers, the operators' shares differ by "
        f"{made.distance:.3f} from those of {subjects[0].name} (0 alike, 1 nothing in common)",
    )
