"""Checks a treelite checkpoint (format 4), because treelite reads a checkpoint without checks.

With a damaged file, native code could read outside its arrays, or follow a tree endlessly.
"""

import struct
from pathlib import Path

import numpy as np

from harness.core.formats.protobuf import mapped
from harness.types import Array

MAJOR = 4
_MOST_MINOR = 1000
_TYPES = {1: "<u4", 2: "<f4", 3: "<f8"}
"""Maps the code of a type in the header to NumPy's type."""

_LEAF, _CATEGORICAL = 0, 2
_KINDS = (0, 1, 2)


class _Reader:
    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._at = 0

    def number(self, kind: str) -> int:
        size = struct.calcsize(f"<{kind}")
        if self._at + size > len(self._content):
            raise ValueError("it is truncated")
        (value,) = struct.unpack_from(f"<{kind}", self._content, self._at)
        self._at += size
        return int(value)

    def array(self, dtype: str, lengths: tuple[int, ...] = ()) -> Array:
        """Returns an array. lengths: the allowed lengths; () for any length."""
        count = self.number("Q")
        if lengths and count not in lengths:
            raise ValueError("two arrays of a tree differ in length")
        end = self._at + count * np.dtype(dtype).itemsize
        if end > len(self._content):
            raise ValueError("it is truncated")
        values: Array = np.frombuffer(self._content[self._at : end], dtype)
        self._at = end
        return values

    def skip_options(self) -> None:
        """Skips fields that later versions of treelite add. Each field consists of a name and its bytes."""
        for _ in range(self.number("i")):
            self.array("u1")
            size, count = self.number("Q"), self.number("Q")
            end = self._at + size * count
            if end > len(self._content):
                raise ValueError("it is truncated")
            self._at = end


def is_checkpoint(head: bytes) -> bool:
    """Returns whether a file is a checkpoint. head: the first bytes of the file."""
    if len(head) < 14:
        return False
    major, minor, patch = struct.unpack_from("<iii", head)
    versions = major == MAJOR and 0 <= minor < _MOST_MINOR and 0 <= patch < _MOST_MINOR
    return versions and head[12] in _TYPES and head[13] in _TYPES


def check(path: Path) -> None:
    """Raises a ValueError if treelite cannot read the checkpoint, or would read outside the file's arrays."""
    reader = _Reader(mapped(path))
    for _ in range(3):
        reader.number("i")
    types = [_TYPES.get(reader.number("B")) for _ in range(2)]
    trees, features = reader.number("Q"), reader.number("i")
    reader.number("B")
    reader.number("B")
    targets = reader.number("i")
    classes = reader.array("<i4", (targets,))
    leaf_shape = reader.array("<i4", (2,))
    target_of, class_of = reader.array("<i4", (trees,)), reader.array("<i4", (trees,))
    reader.array("u1")
    reader.number("f")
    reader.number("f")
    scores = reader.array("<f8")
    reader.array("u1")
    reader.skip_options()
    threshold, leaf = types
    if threshold is None or leaf is None or targets < 1 or features < 1 or trees < 1:
        raise ValueError("its header has an impossible number")
    most = int(classes.max())
    if classes.min() < 1 or len(scores) != targets * most or leaf_shape.min() < 1:
        raise ValueError("its header has an impossible number of classes")
    if leaf_shape[0] > targets or leaf_shape[1] > most:
        raise ValueError("its leaves have more numbers than the model has classes")
    if not _within(target_of, -1, targets) or not _within(class_of, -1, most):
        raise ValueError("a tree does not belong to a class of the model")
    for _ in range(trees):
        _check_tree(reader, features, threshold, leaf, int(leaf_shape.prod()))


def _check_tree(
    reader: _Reader, features: int, threshold: str, leaf: str, vector_length: int
) -> None:
    nodes = reader.number("i")
    reader.number("B")
    if nodes < 1:
        raise ValueError("a tree has no nodes")
    each, some = (nodes,), (0, nodes)
    kinds = reader.array("i1", each)
    children = [reader.array("<i4", each) for _ in range(2)]
    split = reader.array("<i4", each)
    reader.array("u1", each)
    reader.array(leaf, each)
    reader.array(threshold, each)
    reader.array("i1", each)
    reader.array("u1", each)
    vectors = _ranges(reader, leaf, some)
    categories = _ranges(reader, "<u4", some)
    for dtype in ("<u8", "u1", "<f8", "u1", "<f8", "u1"):
        reader.array(dtype, some)
    reader.skip_options()
    reader.skip_options()
    if not np.isin(kinds, _KINDS).all():
        raise ValueError("a tree has a node of an unknown kind")
    inner = kinds != _LEAF
    _check_children([side[inner] for side in children], nodes)
    if not _within(split[inner], 0, features):
        raise ValueError("a tree uses a feature that the model does not have")
    if vector_length > 1 and not (_sizes(vectors, nodes)[~inner] == vector_length).all():
        raise ValueError("a leaf has the wrong number of scores")
    if (kinds == _CATEGORICAL).any() and not len(categories[0]):
        raise ValueError("a tree has no list of categories")


def _ranges(reader: _Reader, dtype: str, lengths: tuple[int, ...]) -> tuple[Array, Array]:
    """Reads the values of all nodes, and returns the start and end of each node's values."""
    values = reader.array(dtype)
    begin, end = reader.array("<u8", lengths), reader.array("<u8", lengths)
    if len(begin) != len(end) or (begin > end).any() or (end > len(values)).any():
        raise ValueError("a list of a node reaches beyond its values")
    return begin, end


def _sizes(ranges: tuple[Array, Array], nodes: int) -> Array:
    begin, end = ranges
    return (end - begin) if len(begin) else np.zeros(nodes, np.uint64)


def _check_children(children: list[Array], nodes: int) -> None:
    """Raises a ValueError if a walk from the root could leave the array of nodes or never end.

    Each node except the root (0) has at most one parent, so no walk from the root visits a node twice.
    """
    every = np.concatenate(children)
    if not _within(every, 1, nodes):
        raise ValueError("a tree has a child that is not one of its nodes")
    if len(np.unique(every)) < len(every):
        raise ValueError("a node of a tree has two parents")


def _within(values: Array, low: int, high: int) -> bool:
    return not len(values) or bool(values.min() >= low and values.max() < high)
