"""Writes system_power.json from a few facts. All other values are the rules' defaults."""

from collections.abc import Mapping
from typing import Any

from harness.submit.endpoints.power.formula import SystemPower, system_power

FILE = "system_power.json"


def descriptor(facts: Mapping[str, Any], system: str) -> tuple[dict[str, Any], SystemPower]:
    """Returns the file's content, and the power that the formula yields.

    facts: the section `power` of the description, in the format of a descriptor. The section may omit the facts that
    are the same for every single node without a network.
    """
    content: dict[str, Any] = {"system_desc_id": system, **facts}
    content.setdefault("scale_out", {"present": False})
    sets = content.get("node_sets")
    if isinstance(sets, list):
        content["node_sets"] = [_node_set(row, number) for number, row in enumerate(sets)]
    power = system_power(content)
    if power.kw is not None:
        content["provisioned_power_kw"] = power.kw
        content["mlc_estimated_power"] = bool(power.estimated)
    return content, power


def _node_set(row: object, number: int) -> object:
    if not isinstance(row, Mapping):
        return row
    known = {
        "node_set_id": number,
        "system_node_ensemble_id": number,
        "nodes_provisioned": 1,
        "power_method": "component_sum",
        **row,
    }
    components = known.get("components")
    if isinstance(components, Mapping):
        known["components"] = {"scale_up_network": {"method": "none"}, **components}
    return known
