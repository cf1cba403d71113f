"""Collects the facts that a run must match: the cohort's seeds, the prompts, and the correct answers."""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from harness.submit.endpoints.client.config import ACCURACY, PERFORMANCE, Template
from harness.submit.endpoints.request import Request

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Known(NamedTuple):
    """Known facts; an empty value means that the fact is unknown."""

    seeds: Mapping[str, int] = _NOTHING
    prompts: Sequence[str] = ()
    """Prompts in the performance data set, in the order of the file."""
    truths: Mapping[str, Sequence[str]] = _NOTHING
    """Maps each data set that is scored by exact match to its correct answers."""
    external: Collection[str] = ()
    """Data sets that a program other than the client sends and scores."""


_EXTERNAL = ("swe_bench_scorer",)


def known(request: Request, template: Template) -> Known:
    (row,) = template.of_type(PERFORMANCE)
    prompts = () if request.is_agentic else _column(template, row, template.prompt_column)
    truths = {}
    for scored in template.of_type(ACCURACY):
        block = _scorer(scored)
        is_plain = block.get("extractor") == "identity_extractor"
        if block.get("eval_method") == "string_match" and is_plain:
            column = str(block.get("ground_truth") or "ground_truth")
            truths[str(scored.get("name"))] = _column(template, scored, column)
    external = [
        str(scored.get("name"))
        for scored in template.of_type(ACCURACY)
        if _scorer(scored).get("eval_method") in _EXTERNAL
    ]
    return Known(request.seeds.seeds, prompts, truths, external)


def _scorer(row: Mapping[str, Any]) -> Mapping[str, Any]:
    block = row.get("accuracy_config")
    return block if isinstance(block, Mapping) else {}


def _column(template: Template, row: Mapping[str, Any], column: str) -> Sequence[str]:
    """Returns one column of a JSONL file; () if the file has another format or if some values are not texts."""
    path: Path | None = template.file(row)
    if path is None or path.suffix != ".jsonl":
        return ()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        values = [json.loads(line)[column] for line in lines if line.strip()]
    except (OSError, UnicodeError, ValueError, KeyError, TypeError):
        return ()
    return values if all(isinstance(value, str) for value in values) else ()
