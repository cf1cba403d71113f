"""Builds ONNX files whose inputs select rows of tables, in every form that exporters write."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROWS = 300

Model = tuple[str, Mapping[str, Sequence[int]], Mapping[str, int]]

MODELS: Mapping[str, Model] = {
    "one table": (
        "(int64[N, 4] ids) => (float[N, 4, 2] y) { y = Gather(t, ids) }",
        {"t": (ROWS, 2)},
        {"ids": ROWS},
    ),
    "the smallest of two tables": (
        """(int64[N, 4] ids) => (float[N, 4, 2] y) {
            a = Gather(t, ids)
            i = Identity(ids)
            b = Gather(u, i)
            y = Add(a, b)
        }""",
        {"t": (ROWS, 2), "u": (7, 2)},
        {"ids": 7},
    ),
    "two inputs and a mask": (
        """(int32[N, 4] ids, int8[N, 4] kinds, int64[N, 4] attention_mask) => (float[N, 4, 2] y) {
            wide = Cast <to = 7> (kinds)
            a = Gather(t, ids)
            b = Gather(u, wide)
            m = Cast <to = 1> (attention_mask)
            axes = Constant <value_ints = [2]> ()
            column = Unsqueeze(m, axes)
            c = Mul(a, column)
            y = Add(b, c)
        }""",
        {"t": (ROWS, 2), "u": (200, 2)},
        {"ids": ROWS, "kinds": 200},
    ),
    "behind operators that move numbers": (
        """(uint8[N, 2, 2] ids) => (float[M, 2] y) {
            wide = Cast <to = 6> (ids)
            flat = Constant <value_ints = [-1]> ()
            row = Reshape(wide, flat)
            both = Concat <axis = 0> (row, row)
            y = Gather(t, both)
        }""",
        {"t": (ROWS, 2)},
        {"ids": ROWS},
    ),
    "columns of a table": (
        """(int64[N] ids) => (float[2, N] y) { y = Gather <axis = -1> (t, ids) }""",
        {"t": (2, 9)},
        {"ids": 9},
    ),
    "an index counted from the end": (
        """(int64[N, 4] ids) => (float[N, 4, 2] y) {
            zero = Constant <value_int = 0> ()
            rows = Constant <value_int = 300> ()
            less = Less(ids, zero)
            sum = Add(ids, rows)
            index = Where(less, sum, ids)
            y = Gather(t, index)
        }""",
        {"t": (ROWS, 2)},
        {"ids": ROWS},
    ),
    "an index of several numbers": (
        """(int64[N, 1] ids) => (float[N, 2] y) { y = GatherND(t, ids) }""",
        {"t": (ROWS, 2)},
        {"ids": ROWS},
    ),
    "arithmetic before a table": (
        """(int64[N, 4] ids) => (float[N, 4, 2] y) {
            shift = Constant <value_int = 5> ()
            later = Add(ids, shift)
            a = Gather(t, ids)
            b = Gather(t, later)
            y = Add(a, b)
        }""",
        {"t": (ROWS, 2)},
        {},
    ),
    "a comparison before a table": (
        """(int64[N, 4] ids) => (float[N, 4, 2] y) {
            zero = Constant <value_int = 0> ()
            is = Equal(ids, zero)
            number = Cast <to = 7> (is)
            a = Gather(t, ids)
            b = Gather(u, number)
            y = Add(a, b)
        }""",
        {"t": (ROWS, 2), "u": (2, 2)},
        {"ids": ROWS},
    ),
    "a table that is computed": (
        """(int64[N, 4] ids) => (float[N, 4, 2] y) {
            twice = Add(t, t)
            y = Gather(twice, ids)
        }""",
        {"t": (ROWS, 2)},
        {},
    ),
    "a size that is no index": (
        """(int64[N, 4] ids, int64[N] sizes) => (float[N, 4, 2] y, int64[N] z) {
            z = Add(sizes, sizes)
            y = Gather(t, ids)
        }""",
        {"t": (ROWS, 2)},
        {"ids": ROWS},
    ),
    "a branch": (
        """(int64[N, 4] ids) => (float[N, 4, 2] y) {
            yes = Constant <value = bool {1}> ()
            y = If (yes) <
                then_branch = a () => (float[N, 4, 2] p) { p = Gather(t, ids) },
                else_branch = b () => (float[N, 4, 2] p) { p = Gather(u, ids) }
            >
        }""",
        {"t": (ROWS, 2), "u": (20, 2)},
        {"ids": 20},
    ),
    "out of a branch": (
        """(int64[N, 4] ids) => (float[N, 4, 2] y) {
            yes = Constant <value = bool {1}> ()
            index = If (yes) <
                then_branch = a () => (int64[N, 4] p) { p = Identity(ids) },
                else_branch = b () => (int64[N, 4] p) { p = Identity(ids) }
            >
            y = Gather(t, index)
        }""",
        {"t": (ROWS, 2)},
        {"ids": ROWS},
    ),
    "a loop": (
        """(int64[N, 4] ids) => (float[N, 4, 2] y) {
            count = Constant <value = int64 {2}> ()
            yes = Constant <value = bool {1}> ()
            last, y = Loop (count, yes, ids, start) <
                body = step (int64 i, bool go, int64[N, 4] x, float[N, 4, 2] before)
                    => (bool on, int64[N, 4] next, float[N, 4, 2] after) {
                    on = Identity(go)
                    next = Identity(x)
                    after = Gather(t, x)
                }
            >
        }""",
        {"t": (ROWS, 2), "start": (1, 4, 2)},
        {"ids": ROWS},
    ),
    "an unknown operator": (
        """(int64[N, 4] ids) => (float[N, 4, 2] y) {
            a = Gather(t, ids)
            b = vendor.Lookup(ids)
            y = Add(a, b)
        }""",
        {"t": (ROWS, 2)},
        {},
    ),
    "a quantised table": (
        """(int64[N, 4] ids) => (float[N, 4, 2] y) {
            small = QuantizeLinear(t, scale)
            large = DequantizeLinear(small, scale)
            y = Gather(large, ids)
        }""",
        {"t": (ROWS, 2), "scale": ()},
        {"ids": ROWS},
    ),
}
"""Maps a name to (graph in ONNX's text format, shape of each table, number of rows that each input can select)."""


def saved(graph: str, tables: Mapping[str, Sequence[int]], folder: Path, **how: Any) -> Path:
    """Writes the graph with its tables filled with ones, and returns the file's path. Skips the test if the onnx
    package is missing.
    """
    onnx = pytest.importorskip("onnx")
    opsets = '<ir_version: 9, opset_import: ["" : 17, "vendor": 1, "com.microsoft": 1]>'
    model = onnx.parser.parse_model(f"{opsets} net {graph}")
    for name, shape in tables.items():
        values = np.ones(shape, np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    path = folder / "net.onnx"
    onnx.save(model, path, **how)
    return path
