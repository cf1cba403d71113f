"""Reads the single-turn samples of the Berkeley Function Calling Leaderboard (BFCL), as used by MLPerf's benchmark
edge-agentic.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.core.files import parse_json
from harness.core.formats.prompt_fields import framed
from harness.datasets.parts import sources
from harness.datasets.parts.prompts.tokens import input_of
from harness.datasets.parts.prompts.tools import tool_of
from harness.datasets.parts.rows import LoadedRows
from harness.datasets.parts.sources import unreadable
from harness.errors import ConfigError
from harness.types import Array, Dataset, DatasetSetup

SHARES_PERCENT = {
    **dict.fromkeys(("simple_python", "simple_java", "simple_javascript"), 62),
    **dict.fromkeys(("multiple", "parallel", "parallel_multiple"), 62),
    **dict.fromkeys(("live_simple", "live_multiple"), 10),
    **dict.fromkeys(("live_parallel", "live_parallel_multiple"), 10),
    **dict.fromkeys(("irrelevance", "live_irrelevance"), 10),
}
"""MLPerf uses this percentage of each BFCL subset, from the first sample on."""

WHOLE_SUBSET = 25
"""Subsets with at most this many samples are used completely."""

SAMPLING = {"temperature": 0, "seed": 42}
SAMPLES = ("mlperf", "all")
"""Permitted values of --dataset-option samples."""

_ANSWERS = "possible_answer"


class _Sample(NamedTuple):
    subset: str
    request: bytes
    functions: Sequence[Mapping[str, Any]]
    right: Sequence[Mapping[str, Any]]


class FunctionCallsDataset(LoadedRows):
    """BFCL's samples. --data-dir contains BFCL_v4_*.json, and possible_answer/ with the right answers, as in bfcl-eval.

    samples=mlperf uses the first samples of each subset, 995 in total; samples=all uses all samples. A label consists
    of the functions offered to the model, and the right calls.
    """

    options = ("samples",)

    def __init__(self, setup: DatasetSetup) -> None:
        self._input = input_of(setup, "function-calls")
        self._setup = setup
        self._root = sources.given_folder(
            setup, "function-calls", "a folder with BFCL_v4_*.json, e.g. the data of bfcl-eval"
        )
        chosen = setup.options.get("samples", SAMPLES[0])
        if chosen not in SAMPLES:
            raise ConfigError(
                f"--dataset-option samples={chosen:.40} is not one of {', '.join(SAMPLES)}"
            )
        self._files: dict[str, Path] = {}
        self._samples = [s for name in sorted(SHARES_PERCENT) for s in self._of(name, chosen)]
        if not self._samples:
            raise ConfigError(
                f"{self._root} has no BFCL_v4_*.json: name the folder with these files"
            )
        super().__init__(len(self._samples))

    def _of(self, subset: str, chosen: str) -> list[_Sample]:
        """Returns the chosen samples of a subset, or an empty list if the folder does not contain the subset."""
        path = self._root / f"BFCL_v4_{subset}.json"
        if not path.is_file():
            return []
        self._files[path.name] = path
        answers = self._root / _ANSWERS / path.name
        right: dict[str, Any] = {}
        if answers.is_file():
            self._files[f"{_ANSWERS}/{path.name}"] = answers
            right = {
                str(row.get("id")): row.get("ground_truth", []) for _, row in _objects(answers)
            }
        rows = [(place, row) for place, row in _objects(path) if row.get("question")]
        count = len(rows)
        if chosen == SAMPLES[0] and count > WHOLE_SUBSET:
            count = max(1, int(count * SHARES_PERCENT[subset] / 100))
        return [_sample(subset, place, row, right) for place, row in rows[:count]]

    def load(self, indices: Sequence[int]) -> None:
        self.hold_objects(indices, self._input, (self._samples[index].request for index in indices))

    def lengths(self, indices: Sequence[int]) -> Array:
        return np.array([len(self._samples[i].request) for i in indices])

    def label(self, index: int) -> Mapping[str, object]:
        sample = self._samples[index]
        return {"subset": sample.subset, "functions": sample.functions, "right": sample.right}

    def describe(self) -> Mapping[str, object]:
        subsets = [sample.subset for sample in self._samples]
        return {
            "name": "function-calls",
            "count": len(self),
            "source": str(self._root),
            "subsets": {name: subsets.count(name) for name in dict.fromkeys(subsets)},
            "digest": sources.digest(self._files, self._setup),
        }


def _objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (place, object) for each line of a file with one JSON object per line."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeError) as e:
        raise unreadable(path, e) from e
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            row = parse_json(line)
        except (ValueError, RecursionError):
            raise ConfigError(f"{place} is not valid JSON") from None
        if not isinstance(row, dict):
            raise ConfigError(f"{place} is not a JSON object")
        yield place, row


def _sample(subset: str, place: str, row: Mapping[str, Any], right: Mapping[str, Any]) -> _Sample:
    try:
        functions = list(row.get("function", []))
        fields = {
            **SAMPLING,
            "tools": [tool_of(function) for function in functions],
            "tool_choice": "auto",
        }
        chat = [
            {"role": message["role"], "content": message.get("content") or ""}
            for turn in row["question"]
            for message in turn
        ]
        request = framed(fields, {"messages": chat})
        encoded = json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode()
    except (LookupError, TypeError, AttributeError, UnicodeEncodeError) as e:
        raise ConfigError(f"{place} is not a BFCL sample: {e!r:.80}") from None
    return _Sample(subset, encoded, functions, right.get(str(row.get("id")), []))


_: type[Dataset] = FunctionCallsDataset
