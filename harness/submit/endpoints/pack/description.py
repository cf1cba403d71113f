"""Builds system_desc.json from facts about this machine, the file from mlperf-sysinfo, and the user's --describe files."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.formats.strict_yaml import load_yaml
from harness.core.numbers import whole
from harness.core.shown.private import hidden
from harness.errors import ConfigError
from harness.machine import host
from harness.submit.endpoints.request import Request
from harness.submit.pack.describe import this_machine

FILE = "describe.yaml"
_UNKNOWN = ("", "n/a", "not available", "not detected", "unknown")
_SYSTEM: Mapping[str, str] = {
    "shortened_system_name": "at most 20 characters",
    "system_availability_status": "available, preview or rdi",
    "availability_url": "where to get the system, if it is available",
    "target_availability_date": "YYYY-MM-DD, if it is a preview",
    "system_size": "e.g. 1 node, 8 accelerators",
    "serving_framework": "e.g. vLLM 0.33",
    "data_parallel": "number of model replicas",
    "tensor_parallel": "a number",
    "pipeline_parallel": "a number",
    "expert_parallel": "a number",
    "batch": "maximum batch size of the server",
    "config_summary_notes": "server settings that affect the result",
}
_NODE: Mapping[str, str] = {
    "host_memory_configuration": "e.g. 8x 32 GB DDR5-4800",
    "host_networking": "e.g. 10 GbE; N/A if there is none",
    "driver": "accelerator driver version; N/A without accelerators",
    "cooling": "air or liquid",
    "number_of_nodes": "a number",
    "container_link": "container image of the server",
}
_ACCELERATOR: Mapping[str, str] = {
    "accelerator_model_name": "e.g. NVIDIA H200; remove these lines without accelerators",
    "accelerators_per_node": "a number",
    "accelerator_memory_capacity": "e.g. 141 GB",
    "accelerator_memory_type": "e.g. HBM3e",
    "accelerator_interconnect": "e.g. NVLink",
    "accelerator_host_interconnect": "e.g. PCIe Gen5 x16",
}
_POINT: Mapping[str, str] = {
    "model_precision": "lowest precision of the weights, e.g. bf16",
    "link_to_model": "a URL",
    "link_to_model_transformation": "a URL, if the weights were quantised",
    "model_notes": "can be left empty",
    "dataset_name": "human-readable name of the data set",
    "dataset_link": "a URL",
}
_FILES: Mapping[str, str] = {
    "readme": "file that explains how to build the system and reproduce a point; written to src/<implementation>/README.md",
    "docs": "folder with the documents: topology, hops, baseline latency",
    "server_configs": "folder with the server's settings; can be left empty",
}
POINT_FILE = ("nodes_used", "dp_shortfall")
"""Keys of point.yaml that the user may set for a single point."""

_NESTED = ("power", "points", "speculative_decoding")
_WHOLE = (
    *("data_parallel", "tensor_parallel", "pipeline_parallel", "expert_parallel", "batch"),
    *("number_of_nodes", "accelerators_per_node", "host_processors_per_node"),
)
_REQUIRED = (
    *("shortened_system_name", "system_availability_status", "system_size", "driver"),
    *("host_memory_configuration", "model_precision", "link_to_model", "dataset_name"),
    *("dataset_link", "readme", "docs"),
)


class Description:
    """Facts that the runs do not record."""

    def __init__(self, values: Mapping[str, Any], system: Mapping[str, Any]) -> None:
        """Stores the described values. system: content of mlperf-sysinfo's system_desc.json; {} without this file."""
        self.values = values
        self._system = system

    def __getitem__(self, key: str) -> Any:
        return self.values.get(key)

    def of_point(self, concurrency: int) -> Mapping[str, Any]:
        """Returns the values that the user set only for this point."""
        points = self.values.get("points")
        found = points.get(concurrency) if isinstance(points, Mapping) else None
        return found if isinstance(found, Mapping) else {}

    def unknown_points(self, concurrencies: Collection[int]) -> Iterator[str]:
        """Yields the points that the user described but that are not in the submission."""
        for concurrency in self.values.get("points") or ():
            if concurrency not in concurrencies:
                known = ", ".join(map(str, concurrencies))
                yield f"points.{concurrency} in the --describe file is not a point of the submission: choose from {known}"

    def missing(self) -> Iterator[str]:
        about = {**_SYSTEM, **_NODE, **_POINT, **_FILES}
        for key in _REQUIRED:
            if self.values.get(key) in (None, ""):
                yield f"{key} cannot be read from the machine: add it to the --describe file ({about[key]})"

    def system_desc(self, request: Request, c_max: int, concurrency: int) -> dict[str, Any]:
        """Returns a point's system_desc.json, without user, host and folder names."""
        values = {**self.values, **self.of_point(concurrency)}
        _, name = request.tree_names
        content: dict[str, Any] = {
            **self._system,
            "system_name": name,
            "division": request.division,
            "max_supported_concurrency": c_max,
            "system_node_ensemble_count": 1,
            "system_node_ensemble_total": int(values.get("number_of_nodes") or 1),
        }
        content |= {key: values[key] for key in _SYSTEM if values.get(key) not in (None, "")}
        if request.c_min:
            content["c_min_override"] = request.c_min
        if not self._system.get("node_types"):
            content["node_types"] = [self._node(values)]
        cleaned: dict[str, Any] = hidden(content)
        return cleaned

    def _node(self, values: Mapping[str, Any]) -> dict[str, Any]:
        node: dict[str, Any] = {
            "system_node_ensemble_id": 0,
            "number_of_nodes": int(values.get("number_of_nodes") or 1),
            **_machine(),
        }
        node |= {key: values[key] for key in _NODE if values.get(key) not in (None, "")}
        node["number_of_nodes"] = int(node["number_of_nodes"])
        found = {k: values[k] for k in _ACCELERATOR if values.get(k) not in (None, "")}
        if found:
            node["accelerator_info"] = [found]
        return node


def _machine() -> dict[str, Any]:
    """Returns facts about this machine, under the keys for a node."""
    facts = dict(this_machine())
    print_of = host.fingerprint()
    machine, system = print_of["machine"], print_of["system"]
    whole = ("host_processors_per_node", "host_processor_core_count")
    return {
        "host_processor_model_name": str(machine["cpu"]),
        **{key: int(facts[key]) for key in whole if facts.get(key, "").isdigit()},
        "host_memory_capacity": f"{machine['memory_bytes'] / 2**30:.0f} GiB",
        "host_network_card_count": facts.get("host_network_card_count") or "none",
        "host_storage_capacity": facts.get("host_storage_capacity", ""),
        "host_storage_type": facts.get("host_storage_type", ""),
        "operating_system": f"{system['os']}, Linux {system['kernel']}",
        "filesystem": _filesystem(),
    }


def _filesystem() -> str:
    """Returns the type of the root file system."""
    try:
        rows = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    return next((row[2] for row in reversed(rows) if len(row) > 2 and row[1] == "/"), "unknown")


def placeholders() -> dict[str, Any]:
    """Returns values for a rehearsal without --describe, in a format that the checker accepts."""
    text = "not described (rehearsal)"
    return {
        **dict.fromkeys(("system_size", "driver", "host_memory_configuration"), text),
        "shortened_system_name": "rehearsal",
        "system_availability_status": "rdi",
        "model_precision": text,
        "dataset_name": text,
        "link_to_model": "https://example.org/model",
        "dataset_link": "https://example.org/data",
        "data_parallel": 1,
        "config_summary_notes": text,
    }


def read_description(paths: Sequence[Path], request: Request) -> Description:
    """Reads the user's YAML files and the file from mlperf-sysinfo. A later file overrides an earlier one."""
    values: dict[str, Any] = placeholders() if request.rehearsal else {}
    system: dict[str, Any] = {}
    for path in paths:
        content = _content(path)
        if "node_types" in content:
            system = _known_facts(content)
            continue
        known = {*_SYSTEM, *_NODE, *_ACCELERATOR, *_POINT, *_FILES, *_NESTED}
        if unknown := [str(key) for key in content if key not in known]:
            raise ConfigError(f"{path}: unknown keys {', '.join(unknown)}: see docs/endpoints.md")
        values |= {key: _typed(path, key, value) for key, value in content.items()}
    found = Description(values, system)
    if not request.rehearsal and (problems := list(found.missing())):
        raise ConfigError("\n".join(problems))
    return found


def _typed(path: Path, key: str, value: Any) -> Any:
    if value in (None, ""):
        return value
    if key in _WHOLE and whole(value) is None:
        raise ConfigError(f"{path}: {key} is {value!r}: write a whole number")
    if key in _FILES:
        return _found(path, key, value)
    if key == "points":
        return _points(path, value)
    return value


def _found(path: Path, key: str, value: object) -> str:
    """Returns the absolute path of a file or folder that the description names. Raises a ConfigError if the path does
    not exist.
    """
    found = path.absolute().parent / str(value)
    exists, kind = (found.is_file(), "file") if key == "readme" else (found.is_dir(), "folder")
    if not exists:
        raise ConfigError(f"{path}: the {kind} {found} does not exist: correct {key}")
    return str(found)


def _points(path: Path, value: object) -> Mapping[int, Mapping[str, Any]]:
    """Returns the values that apply to individual points. Raises a ConfigError for an unknown key or a value of the
    wrong type.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}: points must map concurrencies to values: see docs/endpoints.md")
    known = {*_SYSTEM, *_NODE, *_ACCELERATOR, *POINT_FILE}
    for concurrency, row in value.items():
        if not isinstance(row, Mapping):
            raise ConfigError(f"{path}: points.{concurrency} must map keys to values")
        if unknown := [str(key) for key in row if key not in known]:
            raise ConfigError(
                f"{path}: points.{concurrency} has unknown keys {', '.join(unknown)}: see docs/endpoints.md"
            )
        for key, one in row.items():
            _typed(path, key, one)
    return value


def _content(path: Path) -> dict[str, Any]:
    content: Any = None
    if path.suffix == ".json":
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as e:
            raise ConfigError(f"{path} cannot be read: {e}") from None
    else:
        content = load_yaml(path)
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must map keys to values: see docs/endpoints.md")
    return content


def _known_facts(value: Any) -> Any:
    """Returns the content from mlperf-sysinfo without its placeholders for unknown facts."""
    if isinstance(value, dict):
        kept = {
            k: _known_facts(v) for k, v in value.items() if not str(k).startswith("mlperf_sysinfo")
        }
        return {k: v for k, v in kept.items() if not _is_unknown(v)}
    return [_known_facts(v) for v in value] if isinstance(value, list) else value


def _is_unknown(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in _UNKNOWN)


def template() -> str:
    """Returns a --describe file to fill in, with every possible key and its meaning."""
    keys = {**_POINT, **_SYSTEM, **_NODE, **_ACCELERATOR, **_FILES}
    lines = [
        "# Facts that cannot be read from the machine. Remove lines that do not apply.",
        "# Pass this file as --describe FILE; docs/endpoints.md explains `power` and `points`.",
        *(f'{key}: ""  # {about}' for key, about in keys.items()),
        "# power: {cooling: air, node_sets: [{components: {...}}]}",
        "# points: {16: {batch: 64}}",
    ]
    return "\n".join(lines) + "\n"
