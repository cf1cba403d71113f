"""Writes the configuration of the official client for each point, from the user's template."""

import copy
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from harness.core.files import reading
from harness.core.numbers import whole
from harness.errors import ConfigError, one_line, refuse
from harness.submit.endpoints.points import Point
from harness.submit.endpoints.request import DEDICATED, Request
from harness.submit.endpoints.tables import limits

_LARGEST_BYTES = 1 << 20
PERFORMANCE, ACCURACY = "performance", "accuracy"
_BLOCKS = ("model_params", "settings", "endpoint_config")
"""Keys of a configuration that this module fills in."""


class Template:
    """The client's configuration for a benchmark, in the format of the examples in mlcommons/endpoints."""

    def __init__(self, path: Path) -> None:
        """Raises a ConfigError if the file is not a configuration with a performance data set."""
        self.path = path
        try:
            text = path.read_text(encoding="utf-8")
            if len(text) > _LARGEST_BYTES:
                raise ConfigError(
                    f"--template {path} is larger than 1 MiB: pass an example from mlcommons/endpoints"
                )
            content = yaml.safe_load(text)
        except (OSError, UnicodeError) as e:
            raise ConfigError(
                f"--template {path} cannot be read ({one_line(e)}): pass an example from mlcommons/endpoints"
            ) from None
        except (yaml.YAMLError, ValueError, RecursionError) as e:
            raise ConfigError(
                f"--template {path} is not valid YAML: {' '.join(str(e).split())}"
            ) from None
        if not isinstance(content, dict):
            raise ConfigError(f"--template {path} is not a configuration of the client")
        for key in _BLOCKS:
            if content.get(key) is None:
                content[key] = {}
            if not isinstance(content[key], dict):
                raise ConfigError(
                    f"--template {path}: {key} must map keys to values: use the benchmark's example"
                )
        self.content: dict[str, Any] = content
        rows = content.get("datasets")
        self.datasets = (
            [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        )
        if len(self.of_type(PERFORMANCE)) != 1:
            raise ConfigError(
                f"--template {path} needs exactly one data set with `type: performance`: use the benchmark's example"
            )

    def of_type(self, kind: str) -> Sequence[Mapping[str, Any]]:
        return [row for row in self.datasets if row.get("type", PERFORMANCE) == kind]

    def file(self, row: Mapping[str, Any]) -> Path | None:
        """Returns the data set's file; None if the client generates the data itself."""
        path = row.get("path")
        if not isinstance(path, str):
            return None
        return Path(path) if Path(path).is_absolute() else self.path.parent / path

    @property
    def prompt_column(self) -> str:
        parser = self.of_type(PERFORMANCE)[0].get("parser")
        column = parser.get("prompt") if isinstance(parser, dict) else None
        return str(column or "prompt")

    def samples(self, request: Request) -> int:
        """Returns the number of samples in the data set. In a rehearsal, the number comes from the template or from the
        file; otherwise, it comes from the rules.
        """
        row = self.of_type(PERFORMANCE)[0]
        if request.of_round is not None and not request.rehearsal:
            return request.of_round.samples
        if row.get("samples") is not None:
            return self._stated(row["samples"])
        path = self.file(row)
        if path is None or path.suffix != ".jsonl":
            raise ConfigError(
                f"--template {self.path}: the size of a data set is unknown: add `samples: N` to that data set"
            )
        found = _trajectories(path) if request.is_agentic else _lines(path)
        if not found:
            raise ConfigError(f"{path} has no samples: correct `path` in --template {self.path}")
        return found

    def _stated(self, samples: object) -> int:
        found = whole(samples)
        if found is None or found < 1:
            raise ConfigError(
                f"--template {self.path}: samples is {samples!r}: write a whole number above 0"
            )
        return found

    def problems(self, request: Request) -> Iterator[str]:
        """Yields a problem for each missing part of the template, each part that the rules forbid, and each missing
        data file.
        """
        for row in self.datasets:
            path = self.file(row)
            if path is not None and not path.exists():
                yield f"--template {self.path}: {path} does not exist: correct `path`"
        if not self.of_type(ACCURACY):
            yield f"--template {self.path} has no data set with `type: accuracy`: add one for the accuracy points"
        if request.is_agentic:
            yield from self._agentic_problems()

    def trajectories(self) -> int | None:
        """Returns the number of trajectories that the client issues; None if the template does not set it."""
        block = self.of_type(PERFORMANCE)[0].get("agentic_inference")
        count = block.get("num_trajectories_to_issue") if isinstance(block, dict) else None
        return count if isinstance(count, int) else None

    def _agentic_problems(self) -> Iterator[str]:
        count = self.trajectories()
        unit = limits()["trajectories"]
        if count is None or count < 1 or count % unit:
            yield (
                f"--template {self.path}: num_trajectories_to_issue is {count}: write a multiple of {unit}"
            )


def _lines(path: Path) -> int:
    try:
        with path.open("rb") as file:
            return sum(1 for line in file if line.strip())
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}") from e


def _trajectories(path: Path) -> int:
    """Returns the number of conversations in the file, which has one turn per line."""
    with reading(f"{path} is not a JSONL file of conversation turns"):
        lines = path.read_text(encoding="utf-8").splitlines()
        return len({json.loads(line)["conversation_id"] for line in lines if line.strip()})


def passes(point: Point, samples: int, rate_per_s: float | None) -> int:
    """Returns the number of times that the client issues the whole data set. The passes after the first pass must last
    at least as long as the minimum steady window.
    """
    least: int = limits()["least_passes"]
    if point.offline == DEDICATED:
        return 1
    if rate_per_s is None:
        return least
    return max(least, math.ceil(point.least_s * rate_per_s / samples) + 1)


def client_config(
    request: Request, template: Template, point: Point, queries: int, report: Path
) -> dict[str, Any]:
    """Returns the configuration of one run. Takes the sampling parameters and data sets unchanged from the template."""
    content = copy.deepcopy(template.content)
    seeds = request.seeds.seeds
    content["name"] = f"{request.model}-{point.name}"
    content["type"] = "offline" if point.offline == DEDICATED else "online"
    content.pop("benchmark_mode", None)
    content["datasets"] = [_absolute(template, row) for row in _used(template, point)]
    model = content["model_params"]
    model["seed"] = seeds["model_seed"]
    model["streaming"] = "on"
    for key, value in (("name", request.served), ("tokenizer_name", request.tokenizer)):
        if value:
            model[key] = value
    settings = content["settings"]
    settings["runtime"] = _runtime(request, point, queries, seeds)
    settings["load_pattern"] = _pattern(request, point)
    endpoints = content["endpoint_config"]
    if request.url:
        endpoints["endpoints"] = list(request.url)
    content["report_dir"] = str(report)
    refuse(_unserved(content))
    return content


def mode_of(asked: Mapping[str, Any]) -> str:
    """Returns the value of the client's --mode option for a configuration. If the configuration has an accuracy data
    set, the same run also computes the score.
    """
    scored = any(row.get("type") == ACCURACY for row in asked["datasets"])
    return "both" if scored else "perf"


def _unserved(content: Mapping[str, Any]) -> Iterator[str]:
    if not content["model_params"].get("name"):
        yield "the client needs the model's name on the server: pass --served"
    if not content["endpoint_config"].get("endpoints"):
        yield "the client needs the server's URL: pass --url"


def _used(template: Template, point: Point) -> Iterator[Mapping[str, Any]]:
    for row in template.datasets:
        if point.is_accuracy or row.get("type", PERFORMANCE) == PERFORMANCE:
            yield row


def _absolute(template: Template, row: Mapping[str, Any]) -> dict[str, Any]:
    path = template.file(row)
    return dict(row) if path is None else {**row, "path": str(path.absolute())}


def _runtime(
    request: Request, point: Point, queries: int, seeds: Mapping[str, int]
) -> dict[str, Any]:
    known: dict[str, Any] = {
        "min_duration_ms": 0 if request.is_agentic else round(point.least_s * 1000),
        "max_duration_ms": 0,
        "scheduler_random_seed": seeds["scheduler_rng_seed"],
        "dataloader_random_seed": seeds["sample_index_rng_seed"],
    }
    return known if request.is_agentic else {**known, "n_samples_to_issue": queries}


def _pattern(request: Request, point: Point) -> dict[str, Any]:
    if point.offline == DEDICATED:
        return {"type": "max_throughput"}
    kind = "agentic_inference" if request.is_agentic else "concurrency"
    return {"type": kind, "target_concurrency": point.concurrency}
