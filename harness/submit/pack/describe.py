"""Builds systems/<system>.json, measurements.json and calibration.md.

Takes values from the machine and the runs if possible; otherwise from the user's --describe file.
"""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from harness import __version__
from harness.core.formats.strict_yaml import load_yaml
from harness.core.shown.private import host_id
from harness.core.units import show_bytes
from harness.errors import ConfigError
from harness.submit.pack import system_desc
from harness.submit.plan.finished_run import FinishedRun
from harness.submit.plan.request import Request
from harness.submit.rules.tree.rounds import Round, SystemKeys

FILE = "describe.yaml"
_FACTS = {
    "status": "available, preview or rdi: whether others can buy the system",
    "cooling": "e.g. air, liquid",
    "host_networking": "e.g. 10 GbE; N/A if there is none",
    "host_networking_topology": "e.g. N/A, fat tree",
    "host_storage_type": "e.g. SSD",
    "host_memory_configuration": "e.g. 8x 32 GB DDR5-4800",
    "accelerator_model_name": "e.g. NVIDIA H200",
    "accelerators_per_node": "a number",
    "accelerator_memory_capacity": "e.g. 141 GB",
    "accelerator_host_interconnect": "e.g. PCIe Gen5 x16",
    "accelerator_interconnect": "e.g. N/A, NVLink",
    "accelerator_memory_configuration": "e.g. HBM3e",
    "retraining": "'yes' or 'no', in quotes: whether the model was retrained",
    "weight_data_types": "e.g. fp32, int8",
    "weight_transformations": "e.g. none, pruned, quantised",
    "starting_weights_filename": "file name of the original weights",
    "input_data_types": "e.g. fp32",
    "calibration": "how int8 ranges were determined; 'none' for float weights (closed division)",
}
NETWORK_FACTS = {
    "network_type": "e.g. Ethernet, InfiniBand, IEEE 802.11, 3GPP",
    "network_media": "e.g. copper, fiber, wireless",
    "network_rate": "e.g. 100 Gbit/s",
    "nic_loadgen": "model of LoadGen's network card",
    "number_nic_loadgen": "number of network cards that LoadGen uses",
    "net_software_stack_loadgen": "driver, kernel and libraries on LoadGen's machine",
    "network_protocol": "e.g. HTTP/1.1 over TCP",
    "number_connections": "number of connections between LoadGen and the servers",
    "nic_sut": "model of the servers' network card",
    "number_nic_sut": "number of network cards in a server",
    "net_software_stack_sut": "driver, kernel and libraries on the servers",
    "network_topology": "e.g. point to point; one switch, its model",
}
"""Keys that a networked system requires, in addition to is_network."""

DIAGRAM = "network_diagram"
"""Key for a file that contains a diagram of the connections between LoadGen and the servers. The path is relative to
the --describe file.
"""

POWER = {
    "power_analyzer": "the analyser's firmware, last calibration and wiring",
    "power_settings": "firmware and system settings that affect power: profile, governor, C-states, fans",
}
"""Keys that a power result requires because a session does not record these facts.
"""

_CAPACITY = "system_power_capacity"
_OPTIONAL = ("hw_notes", "sw_notes", "system_type_detail", "host_processor_interconnect")
_NO_ACCELERATOR = {
    key: "0" if key == "accelerators_per_node" else "N/A" for key in _FACTS if "accelerator" in key
}
_SHORT_TYPES = {"float32": "fp32", "float16": "fp16", "float64": "fp64"}


class Described(NamedTuple):
    system: dict[str, Any]
    """Contents of systems/<system>.json."""
    measurements: dict[str, Any]
    """Contents of measurements.json."""
    calibration: str
    """Text for calibration.md; '' in the open division."""
    power: dict[str, str]
    """Values for the keys in POWER; {} for a result without power."""
    diagram: str = ""
    """Path to the network diagram; '' for a system without a network, or if a rehearsal has no diagram."""


def describe(request: Request, run: FinishedRun, answers: Mapping[str, Any]) -> Described:
    """Combines facts about the machine and the run with `answers` (the values from the YAML file) and with values from
    the request.

    Raises a ConfigError that lists every key that has no value. In a rehearsal, fills in placeholders for such keys
    instead.
    """
    rules, rehearsal, power = request.rules, request.rehearsal, bool(request.meters)
    submitter, system_name = request.tree_names
    fixed = {
        "division": request.division,
        "submitter": submitter,
        "system_name": str(answers.get("system_name") or system_name),
        "system_type": request.category,
        **({"is_network": "true"} if run.config.qdl else {}),
    }
    known = {**_machine(run), **_model(run), **answers, **fixed}
    keys = rules.system_keys
    unanswered = []
    values: dict[str, Any] = {}
    required = [*keys.required, *rules.measurement_keys]
    if fixed["division"] != "open":
        required.append("calibration")
    required += POWER if power else ()
    required += (*keys.network, DIAGRAM) if run.config.qdl else ()
    for key in required:
        may_be_empty = key in keys.present
        values[key] = known.get(key, "" if may_be_empty else None)
        if values[key] in (None, "") and not may_be_empty:
            unanswered.append(key)
            values[key] = _placeholder(key, keys)
    if unanswered and not rehearsal:
        raise ConfigError("\n".join(_unknown(key) for key in unanswered))
    if rehearsal:
        values["sw_notes"] = "REHEARSAL: not a submission and not a result"
    system = {key: values[key] for key in keys.required}
    more = ("is_network", *keys.network, *((_CAPACITY,) if power else ()))
    system |= {key: known[key] for key in more if key in known}
    system |= {key: values[key] for key in keys.network if key in values}
    measurements = {key: values[key] for key in rules.measurement_keys}
    power_texts = {key: str(values[key]) for key in POWER if power}
    diagram = str(known.get(DIAGRAM, ""))
    return Described(system, measurements, str(values.get("calibration", "")), power_texts, diagram)


def _placeholder(key: str, keys: SystemKeys) -> str:
    """Returns a value for a rehearsal, in a format that both checkers accept."""
    if key in (*keys.numbers, *keys.counted):
        return "1"
    return {"status": "rdi", DIAGRAM: ""}.get(key, "not described (rehearsal)")


def _unknown(key: str) -> str:
    about = {**_FACTS, **NETWORK_FACTS, **POWER, DIAGRAM: _ABOUT_DIAGRAM}.get(key, "a string")
    return f"{key} cannot be read from the machine: add it to the --describe file ({about})"


_ABOUT_DIAGRAM = (
    "file with a diagram of LoadGen's machine, the servers and the network between them"
)


def template() -> str:
    """Returns a --describe file to fill in, with every possible key and its meaning."""
    keys = {
        **_FACTS,
        **dict.fromkeys(_OPTIONAL, "can be left empty"),
        **{key: f"with power: {about}" for key, about in POWER.items()},
        **{key: f"with a network: {about}" for key, about in NETWORK_FACTS.items()},
        DIAGRAM: f"with a network: {_ABOUT_DIAGRAM}",
        _CAPACITY: "with power: capacity of the power supplies in watts; can be left empty",
    }
    lines = [
        "# Facts that cannot be read from the machine. Remove lines that do not apply. Values here",
        "# override the machine's values. Pass this file as --describe FILE.",
        *(f'{key}: ""  # {about}' for key, about in keys.items()),
    ]
    return "\n".join(lines) + "\n"


def read_answers_file(path: Path, rules: Round) -> dict[str, Any]:
    """Reads a --describe file that the user or MLCommons' tool (system_desc.py) wrote. Ignores empty values.

    Raises a ConfigError if the user's file contains unknown keys.
    """
    content = load_yaml(path)
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must map keys to values: see docs/submit.md")
    keys = rules.system_keys
    known = {*keys.required, *keys.network, "is_network", *rules.measurement_keys}
    known |= {"calibration", *POWER, _CAPACITY, DIAGRAM}
    if system_desc.is_system_desc(content):
        content = system_desc.answers(content, path, known)
    unknown = [str(key) for key in content if key not in known]
    if unknown:
        raise ConfigError(f"{path}: unknown keys {', '.join(unknown)}: see docs/submit.md")
    values = {k: str(v) for k, v in content.items() if v not in (None, "")}
    if DIAGRAM in values:
        diagram = path.absolute().parent / values[DIAGRAM]
        if not diagram.is_file():
            raise ConfigError(f"{path}: {DIAGRAM} {diagram} does not exist")
        values[DIAGRAM] = str(diagram)
    return values


def _of_network(run: FinishedRun) -> dict[str, str]:
    """Returns the facts about the servers' network that the run recorded."""
    client = run.result["client"]
    count = len(client["peers"])
    kernel = run.result["environment"]["system"]["kernel"]
    return {
        "number_of_nodes": str(count),
        "number_connections": str(count * client["connections"]),
        "network_protocol": f"{run.backend.get('protocol', 'HTTP/1.1')}, TCP/IP",
        "net_software_stack_loadgen": f"Linux {kernel}, sockets of mlperf-harness {__version__}",
        "framework": "",  # left empty, because the server reports the framework's name
    }


def _machine(run: FinishedRun) -> dict[str, str]:
    """Returns facts about the machine on which the run was made. If a fact is missing from the run's files, adds the
    fact only if this process runs on the same machine.

    If the servers are on other machines, the system consists of the servers, and only the network to them is known.
    """
    of_network = _of_network(run) if run.config.qdl else {}
    if run.config.qdl and not all(peer["local"] for peer in run.result["client"]["peers"]):
        return {key: value for key, value in of_network.items() if value}
    machine, system, packages = (
        run.result["environment"][key] for key in ("machine", "system", "packages")
    )
    known = {
        "number_of_nodes": "1",
        "host_processor_model_name": machine["cpu"],
        "host_memory_capacity": f"{machine['memory_bytes'] / 2**30:.0f} GiB",
        "operating_system": f"{system['os']}, Linux {system['kernel']}",
        "framework": str(run.backend.get("framework", "")),
        "other_software_stack": ", ".join(
            [f"Python {system['python']}", *(f"{k} {v}" for k, v in sorted(packages.items()))]
        ),
    }
    if run.config.device == "cpu":
        known |= _NO_ACCELERATOR
    if machine["host"] == host_id():
        known |= dict(this_machine())
    known |= of_network
    return {key: str(value).replace('"', "'") for key, value in known.items() if value}


def this_machine() -> Iterator[tuple[str, str]]:
    packages = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/physical_package_id")
    yield "host_processors_per_node", str(len({_text(p) for p in packages}) or 1)
    yield "host_processor_core_count", str(psutil.cpu_count(logical=False) or psutil.cpu_count())
    yield "host_processor_caches", _caches()
    try:
        frequency = psutil.cpu_freq()
    except (OSError, RuntimeError, NotImplementedError):
        frequency = None
    if frequency is not None and frequency.max:
        yield "host_processor_frequency", f"{frequency.max:.0f} MHz"
    yield "host_storage_capacity", show_bytes(shutil.disk_usage("/").total)
    kinds = sorted({_text(p) for p in Path("/sys/block").glob("*/queue/rotational")})
    yield "host_storage_type", {"": "", "0": "SSD", "1": "HDD"}.get("".join(kinds), "SSD and HDD")
    cards = list(Path("/sys/class/net").glob("*/device"))
    yield "host_network_card_count", str(len(cards) or "none")


def _caches() -> str:
    parts = []
    for cache in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind = {"Data": "d", "Instruction": "i"}.get(_text(cache / "type"), "")
        parts.append(f"L{_text(cache / 'level')}{kind} {_text(cache / 'size')}")
    return ", ".join(parts)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _model(run: FinishedRun) -> dict[str, str]:
    types = dict.fromkeys(_SHORT_TYPES.get(spec.dtype, spec.dtype) for spec in run.loaded.inputs)
    weights = run.weights_file or ""
    known = {"input_data_types": ", ".join(types), "starting_weights_filename": weights}
    return {key: value for key, value in known.items() if value}
