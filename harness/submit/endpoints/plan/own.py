"""Runs the harness's client and its search: prepares command lines and prompts, and reads the numbers from finished
runs.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.files import read_json, write_text
from harness.core.formats.strict_yaml import write_yaml
from harness.core.numbers import number
from harness.errors import ConfigError
from harness.results.run_folder import RESULT
from harness.submit.endpoints.client.config import ACCURACY, PERFORMANCE, Template
from harness.submit.endpoints.request import Request

FOLDER = "rehearsal"
COMMAND = "harness.cli.main"
"""Module whose `main` executes a single run."""

MOST_PROMPTS = 100_000
_FIELDS = ("temperature", "top_p", "seed")
"""The client's sampling parameters that the harness's client also sends."""

_METRICS = {"string_match": "exact_match", "rouge": "rouge"}
"""Maps the client's scorers to the harness's metrics. The client's other scorers have no counterpart in the harness."""


class Own(NamedTuple):
    """Files and options for the harness's client."""

    words: Sequence[str]
    metric: str
    """Name of the metric; '' if the harness cannot score the answers."""
    slo: str


class Rates(NamedTuple):
    """Numbers from the finished rehearsal of one point."""

    verdict: str
    answers_per_s: float | None
    tokens_per_s: float | None
    ttft_ns: Mapping[str, float]
    tpot_ns: Mapping[str, float]
    score: float | None
    reasons: Sequence[str]
    codes: Sequence[str]
    """Codes of the reasons and doubts that the run reported."""


def prepare(request: Request, template: Template, work: Path) -> Own:
    """Writes the prompts and the manifest for the harness's client, and returns its options."""
    folder = work / FOLDER
    prompts, metric = folder / "prompts.jsonl", _metric(template)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(row, ensure_ascii=False) for row in _prompts(request, template, metric)]
        write_text(prompts, "\n".join(lines) + "\n")
        manifest: dict[str, Any] = {
            "name": request.served or request.model,
            "files": {},
            "inputs": [{"name": "request", "dtype": "string", "shape": ["batch"]}],
            "outputs": [{"name": "answer"}],
            "dataset": "prompts",
        }
        write_yaml(folder / "model.yaml", manifest)
    except OSError as e:
        raise ConfigError(
            f"{folder} cannot be written ({e.strerror}): pass a different --work"
        ) from e
    words = ["--scenario", "server", "--backend", "openai", "--model", str(folder / "model.yaml")]
    words += ["--data-dir", str(prompts), "--backend-option", f"served={request.served}"]
    for url in request.url:
        words += ["--url", url]
    return Own(words, metric, request.slo)


def _metric(template: Template) -> str:
    for row in template.of_type(ACCURACY):
        block = row.get("accuracy_config")
        scorer = block.get("eval_method") if isinstance(block, Mapping) else None
        if scorer in _METRICS and template.file(row) is not None:
            return _METRICS[str(scorer)]
    return ""


def _prompts(request: Request, template: Template, metric: str) -> Iterator[Mapping[str, Any]]:
    """Yields the prompts in the format that the client sends."""
    model = template.content["model_params"]
    more = {key: model[key] for key in _FIELDS if model.get(key) is not None}
    if model.get("max_new_tokens"):
        more["max_tokens"] = model["max_new_tokens"]
    kind = template.content["endpoint_config"].get("api_type", "openai")
    path, column, answers = _source(request, template)
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(islice(file, MOST_PROMPTS), 1):
                if line.strip():
                    yield (
                        _prompt(path, number, line, column, answers if metric else "", kind) | more
                    )
    except (OSError, UnicodeError) as e:
        raise ConfigError(f"{path} cannot be read: {e}") from None


def _source(request: Request, template: Template) -> tuple[Path, str, str]:
    """Returns the prompt file, and the names of its columns for prompts and correct answers."""
    if request.prompts:
        return Path(request.prompts), "prompt", "reference"
    row = template.of_type(PERFORMANCE)[0]
    path = template.file(row)
    if path is None or path.suffix != ".jsonl":
        raise ConfigError(
            f"--template {template.path}: the official client generates this data set itself: pass prompts for the "
            "harness's client with --prompts FILE (JSONL with the key `prompt`)"
        )
    config = next((r.get("accuracy_config") for r in template.of_type(ACCURACY)), None)
    answers = config.get("ground_truth") if isinstance(config, Mapping) else None
    return path, template.prompt_column, str(answers or "ground_truth")


def _prompt(
    path: Path, number: int, line: str, column: str, answers: str, kind: str
) -> dict[str, Any]:
    try:
        row = json.loads(line)
        text = row[column]
    except (ValueError, KeyError, TypeError) as e:
        raise ConfigError(
            f"{path}: line {number} has no prompt under the key {column!r}: {e}"
        ) from None
    is_chat = kind == "openai" and isinstance(text, str)
    prompt = {"messages": [{"role": "user", "content": text}]} if is_chat else {"prompt": text}
    return {**prompt, "reference": str(row[answers])} if answers and answers in row else prompt


def read_rates(folder: Path) -> Rates | None:
    """Returns a rehearsed point's numbers; None if its run has not finished."""
    if not (folder / RESULT).is_file():
        return None
    result = read_json(folder / RESULT)
    tokens, speed = _map(result.get("tokens")), _map(result.get("throughput_per_s"))
    rows = [*_list(result.get("reasons")), *_list(result.get("doubts"))]
    accuracy = _map(result.get("accuracy"))
    return Rates(
        str(result.get("verdict")),
        _positive(speed.get("completed")),
        _positive(tokens.get("output_per_s")),
        _numbers(tokens.get("ttft_ns")),
        _numbers(tokens.get("tpot_ns")),
        number(accuracy.get("value")),
        [str(row.get("text")) for row in _list(result.get("reasons"))],
        [str(row.get("code")) for row in rows],
    )


def _positive(value: object) -> float | None:
    found = number(value)
    return found if found is not None and found > 0 else None


def _numbers(value: object) -> Mapping[str, float]:
    pairs = ((key, number(row)) for key, row in _map(value).items())
    return {key: row for key, row in pairs if row is not None}


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Mapping[str, Any]]:
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def point_folder(work: Path, name: str) -> Path:
    return work / FOLDER / name
