"""Reads a torch.save file that contains a single tensor. The module does not need PyTorch, and does not run the file's
pickle.

The file is a zip archive. `data.pkl` describes the tensor, and `data/KEY` contains its numbers. For a single tensor,
this description is a fixed sequence of operations. Files with any other description are refused.
"""

import pickletools
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.errors import ConfigError
from harness.types import Array

_TYPES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
}
_MARK, _TENSOR = object(), "torch._utils _rebuild_tensor_v2"
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_IGNORED = ("PROTO", "FRAME", "BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE", "STOP")


class _Global(NamedTuple):
    """A name in the pickle, which the reader never imports."""

    name: str


class _Storage(NamedTuple):
    dtype: str
    key: str


class _Described(NamedTuple):
    storage: _Storage
    offset: int
    """Number of elements that precede the tensor's first element."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_tensor(path: Path) -> Array:
    """Returns the tensor. Raises a ConfigError if the file has any other content."""
    try:
        with zipfile.ZipFile(path) as archive:
            (pickled,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            found = _described(archive.read(pickled))
            content = archive.read(f"{pickled.removesuffix('data.pkl')}data/{found.storage.key}")
        return _view(found, np.frombuffer(content, found.storage.dtype)).copy()
    except (OSError, ValueError, KeyError, IndexError, TypeError, zipfile.BadZipFile) as e:
        raise ConfigError(
            f"{path} does not contain a single tensor saved with torch.save: {str(e) or type(e).__name__}"
        ) from None


def _view(found: _Described, numbers: Array) -> Array:
    if len(found.shape) != len(found.strides) or any(n < 0 for n in (*found.shape, *found.strides)):
        raise ValueError("its shape and its strides differ")
    last = found.offset + sum(
        (n - 1) * stride for n, stride in zip(found.shape, found.strides, strict=True)
    )
    if found.offset < 0 or (all(found.shape) and last >= len(numbers)):
        raise ValueError(f"its storage has {len(numbers)} numbers, but the tensor needs {last + 1}")
    return np.lib.stride_tricks.as_strided(
        numbers[found.offset :],
        found.shape,
        tuple(stride * numbers.itemsize for stride in found.strides),
        writeable=False,
    )


def _described(pickled: bytes) -> _Described:
    stack: list[Any] = []
    for operation, argument, _ in pickletools.genops(pickled):
        _apply(stack, operation.name, argument)
    if len(stack) != 1 or not isinstance(stack[0], _Described):
        raise ValueError("its pickle contains objects other than a tensor")
    return stack[0]


def _apply(stack: list[Any], name: str, argument: Any) -> None:
    """Applies one pickle operation to the stack. Raises a ValueError for an operation that a single tensor does not
    need.
    """
    if name in _IGNORED:
        return
    if name == "MARK":
        stack.append(_MARK)
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name == "GLOBAL":
        stack.append(_Global(str(argument)))
    elif name.startswith(("BININT", "LONG", "INT", "BINUNICODE", "SHORT_BINUNICODE")):
        stack.append(argument)
    elif name.startswith("TUPLE"):
        stack.append(_tuple(stack, name))
    elif name == "BINPERSID":
        stack.append(_storage(stack.pop()))
    elif name == "REDUCE":
        arguments, function = stack.pop(), stack.pop()
        stack.append(_reduced(function, arguments))
    else:
        raise ValueError(f"its pickle uses the operation {name}")


def _tuple(stack: list[Any], name: str) -> tuple[Any, ...]:
    if name == "TUPLE":
        items: list[Any] = []
        while (item := stack.pop()) is not _MARK:
            items.insert(0, item)
        return tuple(items)
    count = int(name.removeprefix("TUPLE"))
    found = tuple(stack[-count:])
    del stack[-count:]
    return found


def _storage(named: tuple[Any, ...]) -> _Storage:
    kind, storage, key, _place, _count = named
    if kind != "storage":
        raise ValueError("its numbers are not in a storage")
    return _Storage(_TYPES[storage.name.removeprefix("torch ")], str(key))


def _reduced(function: object, arguments: tuple[Any, ...]) -> object:
    """Returns the tensor, or an empty dictionary in place of its hooks."""
    if function == _Global("collections OrderedDict") and not arguments:
        return {}
    if function != _Global(_TENSOR):
        raise ValueError(f"its pickle calls {function!r:.60}")
    storage, offset, shape, strides, *_ = arguments
    return _Described(storage, int(offset), tuple(map(int, shape)), tuple(map(int, strides)))
