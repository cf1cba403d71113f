"""Runs gradient-boosted trees and forests, from files of XGBoost, LightGBM and, for scikit-learn, treelite."""

from collections.abc import Mapping
from math import prod
from typing import ClassVar

from harness.backends.parts.framework import Choices, FrameworkBackend, with_next_step
from harness.backends.parts.trees.kinds import kind_of
from harness.backends.parts.trees.predictors import opened
from harness.errors import ConfigError, HarnessError, one_line
from harness.types import Array, Backend, Outputs, TensorSpec

_TABLES = ("float32", "float64")


class TreesBackend(FrameworkBackend):
    """One forest. Each sample is a row of features in the order of the training columns, and the answer contains the
    scores.

    engine: `own` uses the predictor of XGBoost or LightGBM for a file of that framework, and GTIL for a treelite
    checkpoint. `gtil` reads every file with treelite and predicts with GTIL. A file does not contain input names. The
    model has one input, named as in the manifest or otherwise `features`. A classifier with two classes returns one
    score. With XGBoost's multi:softmax, the answer contains the scores of all classes, not only the best class.
    """

    name = "trees"
    title = "the library of the trees"
    formats = ("xgboost", "lightgbm", "treelite")
    options: ClassVar[Choices] = {"engine": ("own", "gtil")}

    def _load(self) -> tuple[tuple[TensorSpec, ...], tuple[str, ...]]:
        kind = kind_of(self._path)
        by_gtil = self._option["engine"] == "gtil"
        try:
            self._forest = opened(self._path, kind, self._setup.threads, by_gtil=by_gtil)
        except (HarnessError, MemoryError):
            raise
        except Exception as e:  # catches all, because the libraries' exceptions share no base class
            why = with_next_step(_first_line(e))
            raise ConfigError(f"{self._path}: {kind} cannot load it: {why}") from e
        self._feature_count = self._forest.features
        return (self._input(),), ()

    def _input(self) -> TensorSpec:
        """Returns the only input, as declared in the manifest or as `features`. Raises a ConfigError if the manifest's
        input does not fit the trees.
        """
        if self._setup.names:
            raise ConfigError(
                f"{self._path}: a tree file has no input names: drop this file's `names` from the manifest"
            )
        declared = self._setup.inputs
        if not declared:
            return TensorSpec("features", "float32", (None, self._feature_count))
        if len(declared) > 1:
            raise ConfigError(
                f"model {self._setup.model_name!r}: the manifest has {len(declared)} inputs, but trees take one table: "
                "declare one input with all columns"
            )
        (spec,) = declared
        sizes = [size for size in spec.shape[1:] if isinstance(size, int)]
        if len(sizes) + 1 != len(spec.shape) or prod(sizes) != self._feature_count:
            raise ConfigError(
                f"{self._path}: its trees take {self._feature_count} features, but a sample of input {spec.name!r} "
                f"has the shape {list(spec.shape[1:])}: declare shape [batch, {self._feature_count}]"
            )
        if spec.dtype not in _TABLES:
            raise ConfigError(
                f"input {spec.name!r} is {spec.dtype}, but trees take float32 or float64: declare one of these types"
            )
        return spec._replace(shape=(None, *spec.shape[1:]))

    def __exit__(self, *exc: object) -> None:
        del self._forest

    def _answer(self, inputs: Mapping[str, Array]) -> Outputs:
        (rows,) = inputs.values()
        return self._forest.scores(rows.reshape(len(rows), self._feature_count))

    def describe(self) -> Mapping[str, object]:
        forest = self._forest
        return {
            "framework": forest.framework,
            "device": "cpu",
            "precision": forest.dtype,
            "threads": forest.threads,
            "math_library": "OpenMP",
            "engine": self._option["engine"],
            "features": forest.features,
            **({} if forest.trees is None else {"trees": forest.trees}),
        }


def _first_line(error: Exception) -> str:
    """Returns only the first line, because XGBoost appends a stack trace of native calls."""
    text = str(error).strip().partition("\nStack trace")[0]
    return (
        one_line(text.partition(": ")[2] if text.startswith("[") else text) or type(error).__name__
    )


_: type[Backend] = TreesBackend
