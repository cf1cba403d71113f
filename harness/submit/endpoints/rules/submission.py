"""Reads a result tree of MLPerf Endpoints: its submissions, their curves, and each point's files."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import yaml

from harness.core.numbers import number, whole
from harness.submit.endpoints.regions import Regions, regions
from harness.submit.rules.tree.tree import Tree, join

POINT = "point.yaml"
CONFIG = "config.yaml"
SYSTEM = "system_desc.json"
SUMMARY = "result_summary.json"
ACCURACY = "accuracy_results.json"
POWER = "system_power.json"
REQUIRED = (POINT, CONFIG, SYSTEM, SUMMARY)
SERVER_FILES = "server_configs"
ELECTED, DEDICATED = "elected", "dedicated"
_FOLDER = re.compile(r"r([1-9]\d{0,8})")

Json = Mapping[str, Any]


def yaml_mapping(text: str) -> dict[str, Any] | None:
    """Returns the mapping in an untrusted YAML text; None if the text is not a mapping."""
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def mapping(value: object) -> dict[str, Any]:
    """Returns the value if it is a mapping with only text keys; otherwise an empty mapping."""
    return value if isinstance(value, dict) and all(isinstance(k, str) for k in value) else {}


class Point:
    """A curve's folder r<C>, which contains the files of one point."""

    def __init__(self, tree: Tree, path: str) -> None:
        self.tree = tree
        self.path = path

    def file(self, name: str) -> str:
        return join(self.path, name)

    @cached_property
    def yaml(self) -> dict[str, Any]:
        return mapping(yaml_mapping(self.tree.text(self.file(POINT))))

    @cached_property
    def config(self) -> dict[str, Any]:
        return mapping(yaml_mapping(self.tree.text(self.file(CONFIG))))

    @cached_property
    def system(self) -> dict[str, Any]:
        return mapping(self.tree.json(self.file(SYSTEM)))

    @cached_property
    def summary(self) -> dict[str, Any]:
        return mapping(self.tree.json(self.file(SUMMARY)))

    @cached_property
    def accuracy(self) -> list[dict[str, Any]] | None:
        """Entries of accuracy_results.json; None if the file is missing or malformed."""
        content = self.tree.json(self.file(ACCURACY), 16 << 20)
        entries = content.get("accuracy_scores") if isinstance(content, dict) else content
        if isinstance(entries, dict):
            entries = [{"dataset_name": k, **v} for k, v in entries.items() if isinstance(v, dict)]
        if not isinstance(entries, list):
            return None
        return [mapping(entry) for entry in entries]

    @property
    def inline(self) -> list[dict[str, Any]]:
        """Scores that the performance run itself computed."""
        return [e for e in self.accuracy or () if e.get("dataset_type") == "performance"]

    @property
    def scores(self) -> list[dict[str, Any]]:
        """Scores that accuracy runs computed."""
        return [e for e in self.accuracy or () if e.get("dataset_type") != "performance"]

    @property
    def folder_concurrency(self) -> int | None:
        match = _FOLDER.fullmatch(self.path.rpartition("/")[2])
        return int(match[1]) if match else None

    @property
    def concurrency(self) -> int:
        """The declared concurrency if it is a number; otherwise the concurrency in the folder's name, or 0 if the name
        does not contain one.
        """
        return whole(self.yaml.get("concurrency")) or self.folder_concurrency or 0

    @property
    def offline(self) -> str:
        return str(self.yaml.get("offline") or "")

    @property
    def pattern(self) -> str:
        return str(mapping(self.yaml.get("runtime_settings")).get("load_pattern", "concurrency"))

    @property
    def tokens_per_s(self) -> float | None:
        tokens = number(mapping(self.summary.get("output_sequence_lengths")).get("total"))
        duration_ns = number(self.summary.get("duration_ns"))
        return tokens / (duration_ns / 1e9) if tokens is not None and duration_ns else None


class Curve:
    """All points of one system in one benchmark."""

    def __init__(self, tree: Tree, root: str, system: str, model: str) -> None:
        self.tree = tree
        self.root = root
        self.system = system
        self.model = model
        self.path = join(root, "results", system, model)
        names = tree.folders(self.path)
        self.points = sorted(
            (Point(tree, join(self.path, n)) for n in names if _FOLDER.fullmatch(n)),
            key=lambda point: point.concurrency,
        )

    @property
    def is_agentic(self) -> bool:
        return any(point.pattern == "agentic_inference" for point in self.points)

    @property
    def c_max(self) -> int | None:
        """C_max from the first point that declares it."""
        found = (whole(p.system.get("max_supported_concurrency")) for p in self.points)
        return next((c for c in found if c is not None), None)

    @property
    def c_min_override(self) -> int | None:
        found = (whole(p.system.get("c_min_override")) for p in self.points)
        return next((c for c in found if c is not None), None)

    @cached_property
    def regions(self) -> Regions | None:
        """The curve's regions; None if C_max is missing or too small, or if C_min is impossible."""
        override = self.c_min_override
        measured = [p.concurrency for p in self.points if p.offline != DEDICATED and p.concurrency]
        lowest = min([*measured, 32])
        try:
            c_min = override if override is not None else lowest
            return regions(self.c_max or 0, c_min, overridden=override is not None)
        except ValueError:
            return None

    @cached_property
    def power(self) -> dict[str, Any] | None:
        content = self.tree.json(self.power_file)
        return content if isinstance(content, dict) else None

    @property
    def power_file(self) -> str:
        return join(self.root, "results", self.system, POWER)


def submission_roots(tree: Tree) -> Sequence[str]:
    """Returns the folders that contain results/. These folders are the root itself, or lie one or two levels below the
    root.
    """
    if "results" in tree.folders(""):
        return [""]
    found: list[str] = []
    for folder in tree.folders(""):
        if "results" in tree.folders(folder):
            found.append(folder)
        else:
            below = (join(folder, name) for name in tree.folders(folder))
            found += [path for path in below if "results" in tree.folders(path)]
    return found


def curves(tree: Tree, root: str) -> Iterator[Curve]:
    results = join(root, "results")
    for system in tree.folders(results):
        for model in tree.folders(join(results, system)):
            yield Curve(tree, root, system, model)
