"""Checks system_desc.json, system_power.json and each point's replicas."""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

from harness.core.numbers import number, whole
from harness.submit.endpoints.power.formula import SystemPower, system_power
from harness.submit.endpoints.rules.curve import nodes_used
from harness.submit.endpoints.rules.findings import Finding
from harness.submit.endpoints.rules.submission import POINT, SYSTEM, Curve, Point, mapping
from harness.submit.endpoints.tables import limits

_PARALLEL = ("tensor_parallel", "pipeline_parallel", "expert_parallel")


def description(point: Point) -> Iterator[Finding]:
    system = point.system
    if not system:
        return  # another rule reports a missing or wrong file
    keys = limits()["keys"]
    for key in keys["system"]["required"]:
        if system.get(key) in (None, ""):
            yield _of(point, "system-key", f"{key} is missing", "a value")
    for key in keys["whole"]:
        if system.get(key) is not None and whole(system[key]) is None:
            yield _of(point, "system-value", f"{key}: {system[key]!r}", "a whole number")
    yield from _availability(point)
    division = str(system.get("division", "rdi")).lower()
    if division not in limits()["divisions"]:
        actual = f"division: {system['division']}"
        yield _of(point, "system-value", actual, ", ".join(limits()["divisions"]))
    name = str(system.get("shortened_system_name", ""))
    most = limits()["short_name_characters"]
    if len(name) > most or (name and not name.strip()):
        actual = f"shortened_system_name of {len(name)} characters"
        yield _of(point, "system-value", actual, f"1 to {most}")
    yield from _summary(point)
    yield from _nodes(point)


def _of(point: Point, rule: str, actual: str, expected: str) -> Finding:
    return Finding(rule, point.file(SYSTEM), actual, expected)


def _availability(point: Point) -> Iterator[Finding]:
    status = point.system.get("system_availability_status")
    text = str(status or "").lower()
    if text and text not in limits()["availability"]:
        actual = f"system_availability_status: {status}"
        yield _of(point, "system-value", actual, ", ".join(limits()["availability"]))
    if text == "available" and not str(point.system.get("availability_url") or "").strip():
        yield _of(point, "system-key", "availability_url is missing", "where to get the system")
    if text == "preview" and not _is_date(point.system.get("target_availability_date")):
        actual = f"target_availability_date: {point.system.get('target_availability_date')}"
        yield _of(point, "system-value", actual, "a date, e.g. 2027-03-01")


def _is_date(value: object) -> bool:
    if not isinstance(value, str) or not re.fullmatch(r"\d{4}-\d{2}-\d{2}", value):
        return False
    try:
        date.fromisoformat(value)
    except ValueError:
        return False
    return True


def _summary(point: Point) -> Iterator[Finding]:
    value = point.system.get("config_summary")
    if value is not None and not isinstance(value, dict) and len(str(value)) < 4:
        actual = f"config_summary: {value!r}"
        yield _of(point, "system-value", actual, "an object, or a string of at least 4 characters")


def _nodes(point: Point) -> Iterator[Finding]:
    value = point.system.get("node_types")
    if not isinstance(value, list):
        if value is not None:
            yield _of(point, "system-value", "node_types is not a list", "a list")
        return
    if not value:
        yield _of(point, "system-value", "node_types is empty", "the kinds of nodes")
    keys = limits()["keys"]["node"]
    for position, row in enumerate(value):
        node = mapping(row)
        for key in keys["required"]:
            if not isinstance(node.get(key), str) or not node[key].strip():
                actual = f"node_types[{position}].{key}: {node.get(key)!r}"
                yield _of(point, "system-value", actual, "a string")
        if all(whole(node.get(key)) is None for key in keys["one_of"]):
            actual = f"node_types[{position}] has no number of cores"
            yield _of(point, "system-key", actual, " or ".join(keys["one_of"]))


def same_system(curve: Curve) -> Iterator[Finding]:
    """Checks that all points describe the same system, except for settings that may differ between points."""
    varying = limits()["keys"]["system"]["per_point"]
    plain = {p: _identity(p.system, varying) for p in curve.points if p.system}
    texts = list(plain.values())
    if len(set(texts)) <= 1:
        return
    common = json.loads(max(texts, key=texts.count))
    for point in plain:
        for key in sorted({*common, *point.system} - {*varying}):
            if point.system.get(key) != common.get(key):
                actual = f"{key} differs from the other points"
                yield Finding("systems-differ", point.file(SYSTEM), actual, str(common.get(key)))


def _identity(system: Mapping[str, Any], varying: list[str]) -> str:
    return json.dumps({k: v for k, v in system.items() if k not in varying}, sort_keys=True)


def power_of(curve: Curve) -> SystemPower | None:
    """Returns the provisioned power; None if the curve has no descriptor."""
    return None if curve.power is None else system_power(curve.power, _cores(curve))


def power(curve: Curve) -> Iterator[Finding]:
    """Checks the descriptor that the Standardized division requires, and checks what share of the system each point
    uses.
    """
    file = curve.power_file
    divisions = {str(p.yaml.get("division", "")).lower() for p in curve.points}
    found = power_of(curve)
    if found is None:
        if curve.tree.has(file):
            yield Finding("bad-file", file, "not a mapping in JSON", "one mapping")
        elif "standardized" in divisions:
            yield Finding(
                "missing-file", file, "no such file", "this file, which Standardized requires"
            )
        return
    for problem in found.problems:
        yield Finding("power", file, problem, "a descriptor that follows the rules")
    yield from _hardware(curve, found)
    for point in curve.points:
        yield from _nodes_used(point, found)
        yield from _engagement(point, found, is_standardized="standardized" in divisions)
        yield from _stored(point, found)


def _cores(curve: Curve) -> dict[int, int]:
    system = next((p.system for p in curve.points if p.system), {})
    rows = system.get("node_types")
    found: dict[int, int] = {}
    for row in map(mapping, rows if isinstance(rows, list) else []):
        ensemble, cores = row.get("system_node_ensemble_id"), row.get("host_processor_core_count")
        if str(ensemble).isdigit() and whole(cores) is not None:
            found[int(str(ensemble))] = int(str(cores))
    return found


def _hardware(curve: Curve, found: SystemPower) -> Iterator[Finding]:
    """Compares the descriptor's nodes and accelerators with system_desc.json."""
    system = next((p.system for p in curve.points if p.system), {})
    rows = system.get("node_types")
    described = {
        whole(row.get("system_node_ensemble_id")): row
        for row in map(mapping, rows if isinstance(rows, list) else [])
    }
    for one in found.sets:
        row = mapping(described.get(one.ensemble))
        cards = row.get("accelerator_info")
        counts = [
            count
            for card in map(mapping, cards if isinstance(cards, list) else [])
            if (count := whole(card.get("accelerators_per_node"))) is not None
        ]
        pairs = [("nodes", one.nodes, whole(row.get("number_of_nodes")))]
        if counts and one.accelerators_per_node is not None:
            pairs.append(("accelerators in a node", one.accelerators_per_node, sum(counts)))
        for what, stated, expected in pairs:
            if expected is not None and stated != expected:
                actual = f"{stated} {what} in ensemble {one.ensemble}"
                yield Finding("power", curve.power_file, actual, f"{expected}, as in {SYSTEM}")


def _nodes_used(point: Point, found: SystemPower) -> Iterator[Finding]:
    rows = point.yaml.get("nodes_used")
    if rows is None:
        return
    known = {one.ensemble: one.nodes for one in found.sets}
    used = nodes_used(point)
    if not used or (isinstance(rows, list) and len(used) < len(rows)):
        yield _point(point, "nodes_used is not a list of ensembles and nodes", "such a list")
    for ensemble, nodes in used.items():
        if ensemble not in known or not 1 <= nodes <= known[ensemble]:
            actual = f"{nodes} nodes of ensemble {ensemble}"
            yield _point(point, actual, f"1 to {known.get(ensemble, 0)}")


def _point(point: Point, actual: str, expected: str) -> Finding:
    return Finding("engagement", point.file(POINT), actual, expected)


def _engagement(point: Point, found: SystemPower, *, is_standardized: bool) -> Iterator[Finding]:
    """Checks that a point runs as many replicas as the provisioned accelerators can hold."""
    sizes = [whole(point.system.get(key)) for key in _PARALLEL]
    replicas = whole(point.system.get("data_parallel"))
    if replicas is None:
        if is_standardized and point.system:
            yield _point(point, "data_parallel is missing in system_desc.json", "the replicas")
        return
    if point.system.get("disaggregated") is True or any(
        one.accelerators_per_node is None for one in found.sets
    ):
        return  # the rules do not define the number of replicas for such a system
    footprint = 1
    for size in sizes:
        footprint *= size or 1
    provisioned = sum(one.nodes * (one.accelerators_per_node or 0) for one in found.sets)
    fits = provisioned // footprint if footprint > 0 else 0
    declared = mapping(point.yaml.get("dp_shortfall"))
    if replicas > fits or (replicas < fits and not declared):
        yield _point(point, f"{replicas} replicas", f"{fits}: {provisioned} accelerators hold them")
    elif replicas < fits:
        stated = (declared.get("dp_actual"), declared.get("dp_formula"))
        if stated != (replicas, fits) or not str(declared.get("reason") or ""):
            actual = f"dp_shortfall: {stated[0]} of {stated[1]}"
            yield _point(point, actual, f"{replicas} of {fits}, with a reason")


def _stored(point: Point, found: SystemPower) -> Iterator[Finding]:
    stored, kw = number(point.summary.get("tps_per_kw")), found.point_kw(nodes_used(point))
    stored = stored if stored is not None else number(point.summary.get("system_tps_per_kw"))
    if stored is None or not kw or point.tokens_per_s is None:
        return
    own = point.tokens_per_s / kw
    if own and abs(stored / own - 1) > limits()["stored_tolerance"]:
        actual = f"tokens/s per kW: {stored:g}"
        yield Finding("stored-metric", point.file("result_summary.json"), actual, f"{own:g}")
