"""Publishes bricks as ONNX files without their model's names, order or weights, and reads such files.

Only the structure of a published brick is read. This module builds the brick that runs from that structure, and the
result is stored under the structure's digest. A file that differs from the index is refused, so it cannot run or be
stored under another brick's name.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.files import WRONG_CONTENT, read_json, write_json
from harness.errors import ConfigError
from harness.explain.bricks.cut.record import Subject
from harness.explain.pieces.cut import Cut
from harness.explain.pieces.ends import DEQUANTISE
from harness.models.graph.onnx_file import read

INDEX = "index.json"
SCHEMA = 1


def publish(subjects: Sequence[Subject], folder: Path, *, with_order: bool) -> tuple[int, int]:
    """Returns the number of bricks and the number of bytes written.

    folder: must not exist yet. with_order: whether to also publish how the bricks form each model. The index is sorted
    by digest, so its order does not reveal the model. If layers cannot be published, raises one ConfigError that lists
    all of them, and does not write any file.
    """
    cuts = {digest: cut for one in subjects for digest, cut in one.by_digest.items()}
    reasons = {
        why for cut in cuts.values() for why in (cut.brick.why_not, cut.brick.why_private) if why
    }
    hindrances = sorted(reasons | _unknown_shapes(cuts.values()))
    problems = [f"--publish wrote nothing: {why}" for why in hindrances]
    if with_order:
        problems += [
            f"--publish-order: {one.name} was published without its order"
            for one in subjects
            if one.about is None
        ]
    if problems:
        raise ConfigError("\n".join(problems))
    models = [_order(one.about) for one in subjects if with_order and one.about is not None]
    try:
        folder.mkdir(parents=True)
        rows = [_write(cuts[digest], folder) for digest in sorted(cuts)]
        order = {"models": models} if models else {}
        write_json(folder / INDEX, {"schema": SCHEMA, "bricks": rows, **order})
    except FileExistsError:
        raise ConfigError(
            f"--publish {folder} already exists and will not be overwritten: pass a different folder"
        ) from None
    except OSError as e:
        raise ConfigError(f"--publish {folder} cannot be written: {e.strerror}") from e
    return len(rows), sum(row["size_bytes"] for row in rows)


def _unknown_shapes(cuts: Iterable[Cut]) -> set[str]:
    """Returns a problem for each unknown output shape, because users of published bricks check output shapes."""
    return {
        f"{cut.nodes[0].op_type}: the shape of a tensor depends on data ({tensor})"
        for cut in cuts
        for tensor in cut.brick.outputs
        if tensor.elements is None
    }


def _order(about: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the pieces in order. Tensors between pieces are numbered to hide the model's names."""
    numbers: dict[str, int] = {}

    def numbered(names: Sequence[str]) -> list[int]:
        return [numbers.setdefault(name, len(numbers)) for name in names]

    pieces = [
        {
            "brick": piece["brick"],
            "inputs": numbered(piece["inputs"]),
            "outputs": numbered(piece["outputs"]),
        }
        for piece in about["pieces"]
    ]
    return {"pieces": pieces, "published_lengths": about["published_lengths"]}


def file_name(digest: str) -> str:
    """Returns a brick's file name. Raises ValueError for a string that is not a brick's digest."""
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError(f"{digest:.80} is not a brick's digest")
    return f"{digest[:16]}.onnx"


def _write(cut: Cut, folder: Path) -> dict[str, Any]:
    """Writes a brick. kept_values: number of the model's own values in the file (shapes, axes, limits)."""
    brick, model = cut.brick, cut.model()
    content = model.SerializeToString(deterministic=True)
    path = folder / file_name(brick.digest)
    path.write_bytes(content)
    return {
        "file": path.name,
        "brick": brick.digest,
        "sha256": hashlib.sha256(content).hexdigest(),
        "size_bytes": len(content),
        "layers": brick.layers,
        "inputs": [str(tensor) for tensor in brick.inputs],
        "outputs": [str(tensor) for tensor in brick.outputs],
        "kept_values": cut.kept_values,
    }


def is_published(folder: Path) -> bool:
    try:
        return (folder / INDEX).is_file()
    except (OSError, ValueError):  # because the name of a model may be an impossible path
        return False


def read_published(folder: Path) -> list[Subject]:
    """Returns a subject per published model. If no order was published, returns one subject with all bricks. Raises one
    ConfigError that lists all problems of the folder.
    """
    index = read_json(folder / INDEX, "bricks --publish")
    if index.get("schema") != SCHEMA or not isinstance(index.get("bricks"), list):
        raise ConfigError(f"{folder / INDEX} was not written by this version of `bricks --publish`")
    problems: list[str] = []
    by_digest = dict(_bricks(folder, index["bricks"], problems))
    if not by_digest and not problems:
        problems.append(f"{folder / INDEX} lists no bricks")
    models, wired = index.get("models") or [], list[_PublishedModel]()
    try:
        wired += () if problems else (_PublishedModel(by_digest, model) for model in models)
    except WRONG_CONTENT as e:
        problems.append(f"{folder / INDEX} lists an invalid model: {e!r:.100}")
    if problems:
        raise ConfigError("\n".join(problems))
    if not wired:
        size = sum(one.brick.weight_bytes for one in by_digest.values())
        return [Subject(str(folder), None, by_digest, size, None)]
    names = [f"{folder}#{i}" if len(wired) > 1 else str(folder) for i in range(1, len(wired) + 1)]
    return [
        Subject(name, None, one.by_digest, one.weight_bytes, one.about)
        for name, one in zip(names, wired, strict=True)
    ]


def _bricks(
    folder: Path, rows: Sequence[Mapping[str, Any]], problems: list[str]
) -> Iterator[tuple[str, Cut]]:
    for row in rows:
        try:
            digest = str(row["brick"])
            path = folder / file_name(digest)
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() != str(row["sha256"]):
                problem = f"{path} is not the published file: its SHA-256 differs"
                raise ConfigError(problem)
            yield digest, _cut(path, digest, len(content))
        except OSError as e:
            problems.append(f"{e.filename} cannot be read: {e.strerror}")
        except ConfigError as e:
            problems.append(str(e))
        except (KeyError, TypeError, ValueError) as e:
            problems.append(f"{folder / INDEX} lists an invalid brick: {e!r}")


def _cut(path: Path, digest: str, size_bytes: int) -> Cut:
    graph = read(path)
    cut = Cut(graph, graph.layers)
    if not graph.layers or cut.brick.digest != digest:
        raise ConfigError(
            f"{path} contains layers that the index does not list: its digest differs"
        )
    if cut.brick.weight_bytes > size_bytes:
        raise ConfigError(f"{path} declares more bytes of weights than it contains")
    return cut


class _PublishedModel:
    """A model made of pieces and the tensors between them. Raises ValueError if pieces and tensors do not fit together.
    model: an entry of the index, in which tensors are numbers.
    """

    def __init__(self, by_digest: Mapping[str, Cut], model: Mapping[str, Any]) -> None:
        lengths = [int(n) for n in model["published_lengths"]]
        self._layers: list[str] = []
        self._op_types: list[str] = []
        self._readers: list[set[int]] = []
        self._makers: dict[int, tuple[int, str]] = {}
        self._read: set[int] = set()
        self.by_digest = {piece["brick"]: by_digest[piece["brick"]] for piece in model["pieces"]}
        pieces = [
            self._add(self.by_digest[piece["brick"]], piece["inputs"], piece["outputs"])
            for piece in model["pieces"]
        ]
        self.weight_bytes = sum(
            self.by_digest[piece["brick"]].brick.weight_bytes for piece in pieces
        )
        self.about = {
            "sizes": {},
            "pieces": pieces,
            "layers": self._layers,
            "op_types": self._op_types,
            "readers": [sorted(readers) for readers in self._readers],
            "published_lengths": lengths,
        }
        # If several pieces read a DequantizeLinear node, the node counts as a layer of each piece.
        more, repeated = len(self._layers) - sum(lengths), self._op_types.count(DEQUANTISE)
        if not 0 <= more <= repeated or not all(n > 0 for n in lengths):
            raise ValueError("published_lengths do not add up to the layers of the pieces")

    def _add(self, cut: Cut, inputs: Sequence[int], outputs: Sequence[int]) -> dict[str, Any]:
        """Adds a piece. The pieces whose output the new piece reads must be added first. Returns the piece as in
        bricks.json.
        """
        first = len(self._layers)
        inputs, outputs = [int(n) for n in inputs], [int(n) for n in outputs]
        for number, name, tensor in zip(inputs, cut.inputs, cut.brick.inputs, strict=True):
            maker, kind = self._makers.get(number, (None, str(tensor)))
            if kind != str(tensor):
                raise ValueError(
                    f"a piece reads {tensor}, but the producer of this tensor writes {kind}"
                )
            self._read.add(number)
            if maker is not None:
                self._readers[maker] |= {first + i for i in _readers(cut, name)}
        for node in cut.nodes:
            self._layers.append(cut.graph.digest(node))
            self._op_types.append(node.op_type)
            self._readers.append({first + i for name in node.outputs for i in _readers(cut, name)})
        for number, name, tensor in zip(outputs, cut.outputs, cut.brick.outputs, strict=True):
            if number in self._makers or number in self._read:
                raise ValueError(
                    f"tensor {number} has two producers, or a consumer before its producer"
                )
            maker = first + cut.nodes.index(cut.graph.producer[name])
            self._makers[number] = (maker, str(tensor))
        return {
            "brick": cut.brick.digest,
            "layers": list(range(first, len(self._layers))),
            "inputs": [f"t{number}" for number in inputs],
            "outputs": [f"t{number}" for number in outputs],
        }


def _readers(cut: Cut, name: str) -> list[int]:
    """Returns the positions of the piece's layers that read a tensor."""
    return [i for i, node in enumerate(cut.nodes) if name and name in node.inputs]
