"""Predicts through XGBoost's C interface, with arguments that are prepared once.

In each call, `Booster.inplace_predict` checks for the table types of seven other packages and encodes its arguments as
JSON, which takes longer than a prediction with small trees.
"""

import ctypes
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from harness.types import Array

_ARGUMENTS = {
    "type": 0,
    "training": False,
    "iteration_begin": 0,
    "iteration_end": 0,
    "missing": float("nan"),
    "strict_shape": True,
    "cache_id": 0,
}
"""The arguments of `inplace_predict`. Source: XGBoost, c_api.h, XGBoosterPredictFromDense."""

_TABLE = '{"data":[%d,true],"shape":[%d,%d],"typestr":"%s","version":3}'
"""Description of a table in NumPy's array interface."""


def scores_of(booster: Any) -> Callable[[Array], Array]:
    """Returns a function that maps (n, features) to (n, scores per sample). Only one thread may call the function at a
    time.

    If XGBoost's library lacks the C function, `inplace_predict` is used.
    """
    from xgboost import core

    try:
        library, check = core._LIB, core._check_call  # noqa: SLF001 - the package has no other name for them
        predict, handle = library.XGBoosterPredictFromDense, booster.handle
    except AttributeError:
        return _packaged(booster)
    arguments = json.dumps(_ARGUMENTS).encode()
    shape, dimensions = ctypes.POINTER(ctypes.c_uint64)(), ctypes.c_uint64()
    found = ctypes.POINTER(ctypes.c_float)()
    into = tuple(map(ctypes.byref, (shape, dimensions, found)))

    def scores(rows: Array, _keep: Any = (booster, shape, dimensions)) -> Array:
        rows = np.ascontiguousarray(rows)
        table = _TABLE % (rows.__array_interface__["data"][0], *rows.shape, rows.dtype.str)
        check(predict(handle, table.encode(), arguments, None, *into))
        answers: Array = np.empty((shape[0], shape[1]), np.float32)
        ctypes.memmove(answers.__array_interface__["data"][0], found, answers.nbytes)
        return answers

    return scores


def _packaged(booster: Any) -> Callable[[Array], Array]:
    def scores(rows: Array) -> Array:
        answers: Array = booster.inplace_predict(rows, validate_features=False)
        return answers if answers.ndim > 1 else answers[:, np.newaxis]

    return scores
