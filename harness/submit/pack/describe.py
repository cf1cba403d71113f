"""systems/<system>.json, measurements.json and calibration.md.

What can be read is read from the machine and the runs, the rest is asked for in one YAML file.
"""

import platform
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from harness.core.formats.strict_yaml import load_yaml
from harness.core.units import show_bytes
from harness.errors import ConfigError
from harness.submit.rules.tree.rounds import Round

FILE = "describe.yaml"
_ASKED = {
    "status": "available, preview or rdi: can others buy it",
    "cooling": "e.g. air, liquid",
    "host_networking": "e.g. 10 GbE; N/A where there is none",
    "host_networking_topology": "e.g. N/A, fat tree",
    "host_storage_type": "e.g. SSD",
    "host_memory_configuration": "e.g. 8x 32 GB DDR5-4800",
    "accelerator_model_name": "e.g. NVIDIA H200",
    "accelerators_per_node": "a number",
    "accelerator_memory_capacity": "e.g. 141 GB",
    "accelerator_host_interconnect": "e.g. PCIe Gen5 x16",
    "accelerator_interconnect": "e.g. N/A, NVLink",
    "accelerator_memory_configuration": "e.g. HBM3e",
    "retraining": "yes or no: was the model trained further",
    "weight_data_types": "e.g. fp32, int8",
    "weight_transformations": "e.g. none, pruned, quantised",
    "starting_weights_filename": "the file the weights came in",
    "input_data_types": "e.g. fp32",
    "calibration": "how int8 ranges were found; 'none' for float weights (closed division)",
}
POWER = {
    "power_analyzer": "its firmware, last calibration, and how it is wired",
    "power_settings": "what of firmware and system decides power: profile, governor, C-states, fans",
}
"""Beside results with power: what a session does not tell of itself."""

_CAPACITY = "system_power_capacity"
_OPTIONAL = ("hw_notes", "sw_notes", "system_type_detail", "host_processor_interconnect")
_NO_ACCELERATOR = {"accelerators_per_node": "0"} | dict.fromkeys(
    (
        "accelerator_model_name",
        "accelerator_memory_capacity",
        "accelerator_host_interconnect",
        "accelerator_interconnect",
        "accelerator_memory_configuration",
    ),
    "N/A",
)
_SHORT_TYPES = {"float32": "fp32", "float16": "fp16", "float64": "fp64"}


class Run(NamedTuple):
    """What a finished run says of its machine and its model. input_types: of the model's inputs."""

    environment: Mapping[str, Any]
    backend: Mapping[str, Any]
    device: str
    weights: str | None
    input_types: tuple[str, ...]


class Described(NamedTuple):
    """system and measurements: the two JSON files. calibration: the text, '' where not asked.

    power: of POWER, {} where no power was measured.
    """

    system: dict[str, Any]
    measurements: dict[str, Any]
    calibration: str
    power: dict[str, str]


def describe(
    found: Round,
    run: Run,
    fixed: Mapping[str, str],
    answers: Mapping[str, Any],
    *,
    rehearsal: bool,
    power: bool,
) -> Described:
    """fixed: division, submitter, system_name, system_type. answers: of the YAML file. power: there
    are sessions of PTDaemon.

    A ConfigError with every key that is neither read nor answered; a rehearsal says so instead.
    """
    known = {**read_machine(run), **_read_model(run), **answers, **fixed}
    keys = found.system_keys
    unanswered = []
    values: dict[str, Any] = {}
    wanted = [*keys.required, *found.measurement_keys]
    if fixed["division"] != "open":
        wanted.append("calibration")
    wanted += POWER if power else ()
    for key in wanted:
        may_be_empty = key in keys.present
        values[key] = known.get(key, "" if may_be_empty else None)
        if values[key] in (None, "") and not may_be_empty:
            unanswered.append(key)
            values[key] = _stand_in(key)
    if unanswered and not rehearsal:
        raise ConfigError("\n".join(_asked(key) for key in unanswered))
    if rehearsal:
        values["sw_notes"] = "REHEARSAL: not a submission and not a result"
    system = {key: values[key] for key in keys.required}
    more = ("is_network", *keys.network, *((_CAPACITY,) if power else ()))
    system |= {key: answers[key] for key in more if key in answers}
    measurements = {key: values[key] for key in found.measurement_keys}
    told = {key: str(values[key]) for key in POWER if power}
    return Described(system, measurements, str(values.get("calibration", "")), told)


def _stand_in(key: str) -> str:
    return {"status": "rdi"}.get(key, "not told (rehearsal)")


def _asked(key: str) -> str:
    about = {**_ASKED, **POWER}.get(key, "a text")
    return f"{key} cannot be read here: give it in --describe FILE ({about})"


def template() -> str:
    """A file to fill in: every key that may be asked for, with what it wants."""
    lines = ["# What cannot be read from the machine. Remove what does not apply; values win over"]
    lines.append("# what is read. Pass it as --describe FILE.")
    lines += [f'{key}: ""  # {about}' for key, about in _ASKED.items()]
    lines += [f'{key}: ""  # may stay empty' for key in _OPTIONAL]
    lines += [f'{key}: ""  # with power: {about}' for key, about in POWER.items()]
    lines.append(f'{_CAPACITY}: ""  # with power, may stay empty: watts that its supplies can give')
    return "\n".join(lines) + "\n"


def read_answers_file(path: Path, found: Round) -> dict[str, Any]:
    """The user's file; an empty value is no answer. A ConfigError for keys nobody asked for."""
    content = load_yaml(path)
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must map keys to values: see docs/submit.md")
    keys = found.system_keys
    known = {*keys.required, *keys.network, "is_network", *found.measurement_keys}
    known |= {"calibration", *POWER, _CAPACITY}
    unknown = [str(key) for key in content if key not in known]
    if unknown:
        raise ConfigError(f"{path}: nobody asks for {', '.join(unknown)}: see docs/submit.md")
    return {k: str(v) for k, v in content.items() if v not in (None, "")}


def read_machine(run: Run) -> dict[str, str]:
    """Of the machine the run was made on; what only that machine can tell is left out elsewhere."""
    machine, system = run.environment["machine"], run.environment["system"]
    packages = run.environment["packages"]
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
    if run.device == "cpu":
        known |= _NO_ACCELERATOR
    if machine["host"] == platform.node():
        known |= dict(_read_here())
    return {key: str(value).replace('"', "'") for key, value in known.items() if value}


def _read_here() -> Iterator[tuple[str, str]]:
    yield "host_processors_per_node", str(_sockets())
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
    yield (
        "host_network_card_count",
        f"{len(list(Path('/sys/class/net').glob('*/device'))) or 'none'}",
    )


def _sockets() -> int:
    packages = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/physical_package_id")
    return len({_text(p) for p in packages}) or 1


def _caches() -> str:
    """L1d 32K, L1i 32K, L2 1024K, L3 32M."""
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


def _read_model(run: Run) -> dict[str, str]:
    types = [_SHORT_TYPES.get(t, t) for t in dict.fromkeys(run.input_types)]
    known = {"input_data_types": ", ".join(types), "starting_weights_filename": run.weights or ""}
    return {key: value for key, value in known.items() if value}
