"""Predicts with a forest; uses the predictor of the framework that wrote the file, or treelite's GTIL."""

import json
import warnings
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.backends.parts.trees import checkpoint
from harness.backends.parts.trees.kinds import Kind, is_text
from harness.backends.parts.trees.xgboost_calls import scores_of
from harness.core.extras import how_to_install
from harness.errors import ConfigError, PluginUnavailable
from harness.types import Array

GTIL = "GTIL"


class Predictor(NamedTuple):
    """A loaded forest."""

    framework: str
    """Name and version of the framework that predicts."""
    features: int
    """The number of columns of a table."""
    trees: int | None
    """Number of trees; None if the framework does not report the number."""
    dtype: str
    """The number type of the thresholds with which features are compared."""
    threads: int
    scores: Callable[[Array], Array]
    """Maps an array of shape (n, features) to an array of shape (n, scores per sample)."""


def opened(path: Path, kind: Kind, threads: int, *, by_gtil: bool) -> Predictor:
    """Loads a forest. Raises a PluginUnavailable if the framework is not installed; the framework may raise other
    exceptions.
    """
    if kind == "treelite" or by_gtil:
        return _of_treelite(path, kind, threads)
    return _OWN[kind](path, threads)


def _of_treelite(path: Path, kind: Kind, threads: int) -> Predictor:
    import treelite
    from treelite import gtil

    # treelite warns about fields that it does not know
    with warnings.catch_warnings(action="ignore"):
        model = _LOADED[kind](treelite, path)

    def scores(rows: Array) -> Array:
        return _flat(gtil.predict(model, rows, nthread=threads))

    return Predictor(
        f"treelite {version('treelite')} ({GTIL})",
        int(model.num_feature),
        int(model.num_tree),
        str(model.input_type),
        threads,
        scores,
    )


def _flat(answers: Array) -> Array:
    """Turns GTIL's (n, targets, classes) into (n, classes) if there is one target, or into (n, targets) if there is one
    class.
    """
    if answers.shape[1] == 1:
        return answers[:, 0]
    return answers[..., 0] if answers.shape[2] == 1 else answers


def _checkpoint(treelite: Any, path: Path) -> Any:
    try:
        checkpoint.check(path)
    except ValueError as e:
        raise ConfigError(
            f"{path} is not a complete treelite checkpoint ({e}): serialize the model again"
        ) from None
    return treelite.Model.deserialize(path)


def _xgboost_file(treelite: Any, path: Path) -> Any:
    choice = "json" if is_text(path) else "ubjson"
    return treelite.frontend.load_xgboost_model(
        path, format_choice=choice, allow_unknown_field=True
    )


_LOADED: Mapping[Kind, Callable[[Any, Path], Any]] = {
    "treelite": _checkpoint,
    "xgboost": _xgboost_file,
    "lightgbm": lambda treelite, path: treelite.frontend.load_lightgbm_model(path),
}


def _of_xgboost(path: Path, threads: int) -> Predictor:
    xgboost = _module("xgboost", "trees")
    booster = xgboost.Booster({"nthread": threads})
    booster.load_model(bytearray(path.read_bytes()))
    config = json.loads(booster.save_config())["learner"]
    if (
        config["objective"]["name"] == "multi:softmax"
    ):  # softmax would return labels; softprob returns the scores of the same trees
        booster.set_param({"objective": "multi:softprob"})
    return Predictor(
        f"xgboost {xgboost.__version__}",
        int(booster.num_features()),
        None,
        "float32",
        int(config["generic_param"]["nthread"]),
        scores_of(booster),
    )


def _of_lightgbm(path: Path, threads: int) -> Predictor:
    lightgbm = _module("lightgbm", "lightgbm")
    booster = lightgbm.Booster(model_file=str(path))

    def scores(rows: Array) -> Array:
        answers: Array = booster.predict(rows, num_threads=threads)
        return answers if answers.ndim > 1 else answers[:, np.newaxis]

    return Predictor(
        f"lightgbm {lightgbm.__version__}",
        int(booster.num_feature()),
        int(booster.num_trees()),
        "float64",
        threads,
        scores,
    )


_OWN: Mapping[Kind, Callable[[Path, int], Predictor]] = {
    "xgboost": _of_xgboost,
    "lightgbm": _of_lightgbm,
}


def _module(name: str, extra: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError as e:
        raise PluginUnavailable(
            f"the file's own predictor needs the module {e.name!r}: {how_to_install(extra)}, or pass --backend-option "
            "engine=gtil"
        ) from e
