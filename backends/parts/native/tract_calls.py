"""Runs a network through the functions of tract's library (tract.h), with memory that is allocated once.

The functions of tract's Python package determine types, counts and shapes again in each call, which takes longer than
the computation of a small network.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np
from tract.bindings import TractError, lib

from harness.types import Array

_Pointer, _Size = ctypes.c_void_p, ctypes.c_size_t

_FAMILIES = {"b": 0x00, "u": 0x10, "i": 0x20, "f": 0x30}
"""Maps NumPy's kind of a number type to the base of tract's type codes. A code is the base plus the item size in
bytes.
"""

_TYPES = {
    _FAMILIES[kind.kind] + kind.itemsize: kind
    for kind in map(
        np.dtype, ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")
    )
}
"""Maps tract's type code to NumPy's type."""


class Network(Protocol):
    """A network that is ready to run."""

    runnable: Any
    """The network as an object of tract's package."""

    def run(self, arrays: Sequence[Array], /) -> list[Array]:
        """Returns the outputs. arrays: contiguous, in the order of the inputs. Raises tract's TractError."""


def network_of(runnable: Any) -> Network:
    """Returns the network. If this version of tract has different functions, tract's Python package runs the network."""
    try:
        return _Direct(runnable, runnable.input_count(), runnable.output_count())
    except AttributeError:
        return _Packaged(runnable)


class _Packaged:
    def __init__(self, runnable: Any) -> None:
        self.runnable = runnable

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        return [tensor.to_numpy() for tensor in self.runnable.run([*arrays])]


class _Functions:
    """Functions of tract's library, declared in tract.h.

    Short functions keep Python's GIL, because another thread would take the GIL if a short function released it for a
    microsecond.
    """

    def __init__(self) -> None:
        held = ctypes.PyDLL(None, handle=lib._handle)  # noqa: SLF001 - the same library, not loaded twice
        self.run = _function(lib, "tract_runnable_run", _Pointer, _Pointer, _Pointer)
        self.from_bytes = _function(
            lib, "tract_tensor_from_bytes", ctypes.c_int, _Size, _Pointer, _Pointer, _Pointer
        )
        self.as_bytes = _function(held, "tract_tensor_as_bytes", *[_Pointer] * 5)
        self.destroy = _function(held, "tract_tensor_destroy", _Pointer)


def _function(library: ctypes.CDLL, name: str, *arguments: Any) -> Any:
    """Returns a separate object for the function, because the package's object declares no argument types."""
    function = library[name]
    function.argtypes = arguments
    return function


_functions = cache(_Functions)


class _Direct:
    """Calls the library directly; only one thread may use it at a time."""

    def __init__(self, runnable: Any, inputs: int, outputs: int) -> None:
        self.runnable = runnable
        self._functions = _functions()
        self._given, self._found = (_Pointer * inputs)(), (_Pointer * outputs)()
        self._inputs, self._outputs = _addresses(self._given), _addresses(self._found)
        self._shapes: list[tuple[tuple[int, ...], Any]] = [((), (_Size * 0)())] * inputs
        self._type, self._rank = ctypes.c_uint32(), _Size()
        self._sizes, self._data = ctypes.POINTER(_Size)(), _Pointer()
        facts: Sequence[Any] = (self._type, self._rank, self._sizes, self._data)
        self._facts = [ctypes.addressof(one) for one in facts]

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        given, functions = 0, self._functions
        try:
            for rows in arrays:
                self._give(given, rows)
                given += 1
            _check(functions.run(self.runnable.ptr, self._given, self._found))
        finally:
            for address in self._inputs[:given]:
                functions.destroy(address)
        try:
            return [self._copied(pointer) for pointer in self._found]
        finally:
            for address in self._outputs:
                functions.destroy(address)

    def _give(self, number: int, rows: Array) -> None:
        """Copies an input into tract's memory."""
        shape, sizes = self._shapes[number]
        if rows.shape != shape:
            sizes = (_Size * rows.ndim)(*rows.shape)
            self._shapes[number] = rows.shape, sizes
        kind, address = rows.dtype, rows.__array_interface__["data"][0]
        number_type = _FAMILIES[kind.kind] + kind.itemsize
        into = self._inputs[number]
        _check(self._functions.from_bytes(number_type, rows.ndim, sizes, address, into))

    def _copied(self, pointer: int | None) -> Array:
        """Returns a copy of an output."""
        _check(self._functions.as_bytes(pointer, *self._facts))
        kind = _TYPES.get(self._type.value)
        if kind is None:
            raise ValueError(f"an output has tract's number type {self._type.value:#x}")
        rows: Array = np.empty(self._sizes[: self._rank.value], kind)
        ctypes.memmove(rows.__array_interface__["data"][0], self._data, rows.nbytes)
        return rows


def _addresses(pointers: "ctypes.Array[ctypes.c_void_p]") -> list[int]:
    """Returns the address of each element."""
    first, size = ctypes.addressof(pointers), ctypes.sizeof(_Pointer)
    return [first + size * number for number in range(len(pointers))]


def _check(code: int) -> None:
    if code != 0:
        raise TractError(str(lib.tract_get_last_error(), "utf-8"))
