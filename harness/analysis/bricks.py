"""The verb `bricks`: models as sequences of layers, each of which is run once for all of them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import host, results
from harness.analysis import (
    brick_database,
    brick_json,
    brick_publish,
    brick_report,
    brick_rules,
    brick_runs,
    brick_synthetic,
)
from harness.analysis.brick_models import Brick, Cut
from harness.analysis.graph import Graph
from harness.analysis.graph_file import read
from harness.console import say, show
from harness.errors import ConfigError, HarnessError, PluginUnavailable, RunInvalid
from harness.manifest import load_model

FILE, PAGE = "bricks.json", "bricks.html"
SCHEMA = 1
DEFAULT_LAYERS, DEFAULT_ROUNDS = 8, 8
DATABASE = Path("results/bricks.sqlite")

RECIPE = "2"
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
    synthetic: Path | None = None
    synthetic_layers: int | None = None
    is_run: bool = True
    as_json: bool = False


class Subject:
    """A model, its graph and the pieces it is cut into. by_digest: one cut of each brick."""

    def __init__(self, name: str, graph: Graph, most: int) -> None:
        self.name = name
        self.graph = graph
        self.cuts = [Cut(graph, piece) for piece in brick_rules.by_groups(graph, most)]
        self.by_digest = {cut.brick.digest: cut for cut in self.cuts}
        self._published = [len(piece) for piece in brick_rules.by_chains(graph, most)]

    def to_json(self) -> dict[str, Any]:
        """Layers are named by their keys' digests; `pieces` say which of them, by position."""
        graph = self.graph
        place = {node.index: i for i, node in enumerate(graph.layers)}
        return {
            "sizes": dict(graph.sizes),
            "layers": [graph.digest(node) for node in graph.layers],
            "op_types": [node.op_type for node in graph.layers],
            "readers": [sorted(_readers(graph, node, place)) for node in graph.layers],
            "pieces": [
                {
                    "brick": cut.brick.digest,
                    "layers": [place[node.index] for node in cut.nodes],
                    "inputs": cut.inputs,
                    "outputs": cut.outputs,
                }
                for cut in self.cuts
            ],
            "published_lengths": self._published,
        }


def _readers(graph: Graph, node: Any, place: Mapping[int, int]) -> set[int]:
    readers = (reader for name in node.outputs for reader in graph.consumers.get(name, ()))
    return {place[reader.index] for reader in readers if reader.index in place}


def execute(request: Request) -> int:
    """Returns the exit status."""
    graphs = dict(_graphs(request))
    if unused := sorted(_unused_sizes(graphs, request.sizes)):
        raise ConfigError("\n".join(unused))
    subjects = [Subject(name, graph, request.most_layers) for name, graph in graphs.items()]
    if request.publish is not None:
        bricks = {digest: cut for one in subjects for digest, cut in one.by_digest.items()}
        written = brick_publish.publish(bricks, request.publish)
        _tell(
            request,
            f"{'published':<12}{len(bricks)} bricks, {written / 1e6:,.1f} MB, in {request.publish}",
        )
    if request.synthetic is not None:
        _synthesize(subjects, request)
    content = _content(subjects, request)
    if not request.is_run:
        _show(content, as_json=request.as_json)
        return 0
    brick_runs.onnxruntime()
    brick_database.prepare(request.database)
    folder = results.new_folder(request.out, "bricks", "ort", "-".join(graphs)[:60])
    try:
        _run(subjects, content, request, folder.path)
    except KeyboardInterrupt:
        _tell_stopped(folder.path)
        raise
    final = folder.finish(newest=False)
    _report(content, final, as_json=request.as_json)
    _tell(request, f"{'results':<12}{final}")
    return RunInvalid.exit_status if any(brick_report.failures(content)) else 0


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
    content = results.read_json(folder / FILE)
    if content.get("schema") != SCHEMA:
        raise ConfigError(
            f"{folder / FILE} is not of this harness's `bricks`: its schema is another"
        )
    try:
        _report(content, folder, as_json=as_json)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise ConfigError(f"{folder / FILE} is not what `bricks` writes: {e!r:.100}") from None
    return 0


def _show(content: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        show(json.dumps(brick_json.to_json(content), indent=2, allow_nan=False))
    else:
        show("\n".join(brick_report.lines(content)))


def _report(content: Mapping[str, Any], folder: Path, *, as_json: bool) -> None:
    _show(content, as_json=as_json)
    try:
        made = str(brick_report.write_page(content, folder / PAGE))
    except PluginUnavailable as e:
        made = f"none: {e}"
    except OSError as e:
        made = f"none: {folder} cannot be written: {e.strerror}"
    if not as_json:
        show(f"{'page':<12}{made}")


def _graphs(request: Request) -> Iterator[tuple[str, Graph]]:
    """All problems of all models at once."""
    problems: list[str] = []
    for name in dict.fromkeys(request.models):
        try:
            model = load_model(name)
            model.obtain(("onnx",), say)
            path = model.path(("onnx",))
            assert path is not None
            yield name, read(path, request.batch, request.sizes)
        except HarnessError as e:
            if not isinstance(e, ConfigError):
                raise
            problems.append(str(e))
    if problems:
        raise ConfigError("\n".join(problems))


def _unused_sizes(graphs: Mapping[str, Graph], sizes: Mapping[str, int]) -> Iterator[str]:
    known = sorted({name for graph in graphs.values() for name in graph.sizes})
    for name in sizes.keys() - set(known):
        yield (
            f"--size {name}={sizes[name]}: no model has a symbolic dimension of that name: "
            f"they have {', '.join(known) or 'none'}"
        )


def _content(subjects: Sequence[Subject], request: Request) -> dict[str, Any]:
    """bricks.json before anything ran."""
    machine = host.fingerprint()["machine"]
    bricks = {d: _brick_json(cut.brick) for one in subjects for d, cut in one.by_digest.items()}
    return {
        "schema": SCHEMA,
        "started": _now(),
        "most_layers": request.most_layers,
        "batch": request.batch,
        "threads": request.threads,
        "rounds": request.rounds,
        "machine": " ".join(f"{machine[k]}" for k in ("cpu", "architecture", "cores_usable")),
        "version": "not run",
        "models": {one.name: one.to_json() for one in subjects},
        "bricks": bricks,
    }


def _brick_json(brick: Brick) -> dict[str, Any]:
    return {
        "layers": brick.layers,
        "inputs": [str(tensor) for tensor in brick.inputs],
        "outputs": [str(tensor) for tensor in brick.outputs],
        "weight_bytes": brick.weight_bytes,
        "why_not": brick.why_not,
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _run(
    subjects: Sequence[Subject], content: dict[str, Any], request: Request, folder: Path
) -> None:
    """What the database has not; every model's results are kept before the next one runs."""
    ort = brick_runs.onnxruntime()
    content["version"] = f"onnxruntime {ort.__version__}"
    key = (content["machine"], f"{content['version']} recipe {RECIPE}", request.threads)
    known = brick_database.read(request.database, content["bricks"], *key)
    for digest, result in known.items():
        content["bricks"][digest]["result"] = result
    settings = brick_runs.Settings(request.threads, request.rounds)
    for number, one in enumerate(subjects, 1):
        missing = {d: c for d, c in one.by_digest.items() if d not in known and not c.brick.why_not}
        say(
            f"{number} of {len(subjects)}: {one.name}, {len(missing)} of {len(one.by_digest)} bricks"
        )
        found = brick_runs.measure(one.graph, missing, settings)
        fresh = {d: _result_json(found, d) for d in missing if _was_run(found, d)}
        known |= fresh
        for digest, result in fresh.items():
            content["bricks"][digest] |= {"result": result, "fresh": True}
        content["models"][one.name] |= {
            "whole": _samples(found.whole if found.overhead else ()),  # stopped between the two
            "why_not": found.why_not,
            "overhead": _samples(found.overhead),
            "setup_s": round(found.setup_s, 3),
        }
        with suppress(OSError):  # a full disk is told when the folder is finished
            results.write_json(folder / FILE, content)
        if found.was_stopped:  # too few samples for those who find them in the database
            raise KeyboardInterrupt
        brick_database.add(
            request.database, {d: r for d, r in fresh.items() if "failed" not in r}, *key
        )
    results.write_json(folder / FILE, content)


def _was_run(found: brick_runs.Found, digest: str) -> bool:
    """Not where it was stopped before the brick's first sample."""
    return digest in found.failed or bool(found.beside.get(digest))


def _result_json(found: brick_runs.Found, digest: str) -> dict[str, Any]:
    if digest in found.failed:
        return {"failed": found.failed[digest], "measured": _now()}
    reorders = found.reorders[digest]._asdict()
    beside = {"beside": _samples(found.beside[digest]), "reorders": reorders, "measured": _now()}
    return {**_samples(found.bricks[digest]), **beside}


def _samples(samples: Sequence[brick_runs.Sample]) -> dict[str, list[int]]:
    return {"cpu_ns": [s.cpu_ns for s in samples], "wall_ns": [s.wall_ns for s in samples]}


def _synthesize(subjects: Sequence[Subject], request: Request) -> None:
    assert request.synthetic is not None
    if len(subjects) != 1:
        raise ConfigError("--synthetic is made like one model: name one")
    graph = subjects[0].graph
    made = brick_synthetic.synthesize(graph, request.synthetic_layers or len(graph.layers))
    brick_synthetic.write(made, request.synthetic)
    _tell(
        request,
        f"{'synthetic':<12}{request.synthetic}: {made.layers} layers, the operators' shares differ by "
        f"{made.distance:.3f} from those of {subjects[0].name} (0 alike, 1 nothing in common)",
    )
