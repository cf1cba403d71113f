"""Computes a system's provisioned power, and the share of this power that a point uses."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from harness.core.numbers import number, whole
from harness.submit.endpoints.power import values
from harness.submit.endpoints.power.values import Watts
from harness.submit.endpoints.tables import power_defaults

Json = Mapping[str, Any]
ROUNDED_DIGITS = 2
_COMPUTED_TOLERANCE_W = 0.5
_KW_TOLERANCE = 0.005
_LEAST_SHARE = 0.5
"""A stated power below this share of the rules' default is a problem, unless the descriptor declares the power as
limited.
"""


class NodeSetPower(NamedTuple):
    ensemble: int
    nodes: int
    power_w: float
    accelerators_per_node: int | None


class SystemPower(NamedTuple):
    kw: float | None
    """Provisioned power; None if the descriptor contains errors."""
    sets: Sequence[NodeSetPower]
    switches_w: float
    estimated: Sequence[str]
    """Values that the descriptor omits, so that the rules' defaults apply. If any value is listed, the power counts as
    estimated.
    """
    problems: Sequence[str]
    is_declared: bool = False
    """Whether declared_provisioned_power replaces the computed total."""

    def point_kw(self, used: Mapping[int, int] | None = None) -> float | None:
        """Returns a point's power. used: number of nodes per ensemble; an ensemble that is not listed counts in full."""
        if self.kw is None or not self.sets:
            return self.kw
        shares = {s.ensemble: (used or {}).get(s.ensemble, s.nodes) / s.nodes for s in self.sets}
        if all(share == 1 for share in shares.values()):
            return self.kw
        if self.is_declared:
            return round(self.kw * max(shares.values()), ROUNDED_DIGITS)
        engaged = sum(s.nodes * shares[s.ensemble] for s in self.sets)
        watts = sum(s.power_w * shares[s.ensemble] for s in self.sets)
        watts += self.switches_w * engaged / sum(s.nodes for s in self.sets)
        return round(watts / 1000, ROUNDED_DIGITS)


class _Sum:
    """Collects problems, gaps and defaults while adding up the formula's terms."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.gaps: list[str] = []
        """Missing values that have no default. These gaps are problems unless the descriptor declares the total power.
        """
        self.estimated: list[str] = []

    def watts(self, where: str, value: object, default: Watts | None = None) -> float:
        if value is None:
            if default is None:
                self.gaps.append(f"{where} is missing, and the rules have no default for it")
                return 0.0
            self.estimated.append(f"{where} ({default.default})")
            return default.watts
        if problem := values.value_problem(value):
            self.problems.append(f"{where} {problem}")
            return 0.0
        assert isinstance(value, Mapping)
        found = values.watts_of(value)
        if found is None:
            self.problems.append(f"{where} is an energy, but must be a power: write value_w")
            return 0.0
        if found.default:
            self.estimated.append(f"{where} ({found.default})")
        return found.watts

    def count(self, where: str, value: object, least: int = 0) -> int:
        found = whole(value)
        if found is None or found < least:
            self.problems.append(f"{where} is {value!r}, not a whole number of at least {least}")
            return least
        return found


def system_power(descriptor: Json, cores: Mapping[int, int] | None = None) -> SystemPower:
    """Computes the provisioned power. cores: cores per processor for each ensemble, which determine the processors'
    default power.
    """
    total = _Sum()
    cooling = descriptor.get("cooling")
    overhead = power_defaults()["overhead"].get(str(cooling))
    if overhead is None:
        total.problems.append(f"cooling is {cooling!r}, but must be liquid or air")
    if not str(descriptor.get("system_desc_id") or ""):
        total.problems.append("system_desc_id is missing")
    rows = [row for row in _list(descriptor.get("node_sets")) if isinstance(row, Mapping)]
    if not rows:
        total.problems.append("node_sets has no node set")
    cards_w, switches_w = _scale_out(descriptor.get("scale_out"), rows, total)
    factor = 1 + (overhead or 0.0)
    sets = [_node_set(row, cores or {}, cards_w, factor, total) for row in rows]
    total.problems += _identities(rows)
    declared = descriptor.get("declared_provisioned_power")
    watts = sum(s.power_w for s in sets) + switches_w
    if declared is not None:
        total.gaps, total.estimated = [], []
        watts = total.watts("declared_provisioned_power", declared)
    total.problems += total.gaps
    kw = round(watts / 1000, ROUNDED_DIGITS)
    if not total.problems and declared is None:
        total.problems += _disagreements(descriptor, sets, switches_w, factor, kw)
    return SystemPower(
        None if total.problems else kw,
        sets,
        switches_w,
        total.estimated,
        total.problems,
        declared is not None,
    )


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _map(value: object) -> Json:
    return value if isinstance(value, Mapping) else {}


def _identities(rows: Sequence[Json]) -> Iterator[str]:
    for key in ("node_set_id", "system_node_ensemble_id"):
        found = [row.get(key) for row in rows]
        if any(isinstance(one, bool) or not isinstance(one, int) for one in found):
            yield f"node_sets: {key} must be a whole number in every set"
        elif len(set(found)) < len(found):
            yield f"node_sets: {key} appears twice"


def _node_set(
    row: Json, cores: Mapping[int, int], cards_w: float, factor: float, total: _Sum
) -> NodeSetPower:
    where = f"node_sets[{row.get('node_set_id')}]"
    nodes = total.count(f"{where}.nodes_provisioned", row.get("nodes_provisioned"), 1)
    method, parts = row.get("power_method"), _map(row.get("components"))
    ensemble = row.get("system_node_ensemble_id")
    ensemble = ensemble if isinstance(ensemble, int) else 0
    if method == "component_sum":
        node_w = _components_w(parts, cores.get(ensemble), f"{where}.components", total) + cards_w
        power_w = nodes * node_w * factor
    elif method in power_defaults()["methods"]:
        power_w = _published_w(row, nodes, str(method), where, total)
    else:
        power_w = 0.0
        known = ", ".join(power_defaults()["methods"])
        total.problems.append(f"{where}.power_method is {method!r}, not one of {known}")
    count = _map(parts.get("accelerator")).get("count_per_node")
    return NodeSetPower(ensemble, nodes, power_w, count if isinstance(count, int) else None)


def _published_w(row: Json, nodes: int, method: str, where: str, total: _Sum) -> float:
    watts = total.watts(f"{where}.published_power", row.get("published_power"))
    if method == "published_system":
        return nodes * watts
    rack = total.count(f"{where}.nodes_in_published_rack", row.get("nodes_in_published_rack"), 1)
    if rack <= nodes:
        total.problems.append(
            f"{where} has {nodes} of the rack's {rack} nodes, but node_scaling is only for a part of a rack"
        )
    return watts * nodes / rack


def _components_w(parts: Json, cores: int | None, where: str, total: _Sum) -> float:
    combined = parts.get("combined_cpu_accelerator")
    if combined is not None:
        watts = total.watts(f"{where}.combined_cpu_accelerator", combined)
        if any(_map(parts.get(key)).get("tdp_per_unit") for key in ("cpu", "accelerator")):
            total.problems.append(
                f"{where} has combined_cpu_accelerator and separate values: keep one of them"
            )
    elif not (parts.get("cpu") and parts.get("accelerator")):
        total.problems.append(
            f"{where} needs cpu and accelerator, or combined_cpu_accelerator for both together"
        )
        watts = 0.0
    else:
        cpu, accelerator = _map(parts["cpu"]), _map(parts["accelerator"])
        watts = _units_w(cpu, f"{where}.cpu", values.cpu_default(cpu.get("model"), cores), total)
        default = values.accelerator_default(accelerator.get("model"))
        watts += _units_w(accelerator, f"{where}.accelerator", default, total)
        total.problems += _limited(accelerator, default, f"{where}.accelerator")
    return watts + _scale_up_w(_map(parts.get("scale_up_network")), where, total)


def _units_w(part: Json, where: str, default: Watts | None, total: _Sum) -> float:
    count = total.count(f"{where}.count_per_node", part.get("count_per_node"), 1)
    value = part.get("tdp_per_unit")
    watts = total.watts(f"{where}.tdp_per_unit", value, default)
    if watts and _map(value).get("source_type") == "mlc_default":
        total.problems += _as_a_default(part, watts, default, f"{where}.tdp_per_unit")
    return count * watts


def _as_a_default(part: Json, watts: float, default: Watts | None, where: str) -> Iterator[str]:
    if default is None:
        yield f"{where} is declared as a default, but the rules have no default for {part.get('model')!r}"
    elif abs(watts - default.watts) > _COMPUTED_TOLERANCE_W:
        yield f"{where} is declared as a default, but has {watts:g} W instead of {default.watts:g} W"


def _limited(part: Json, default: Watts | None, where: str) -> Iterator[str]:
    """Reports an accelerator whose stated power is far below the rules' power for its model."""
    value = _map(part.get("tdp_per_unit"))
    if default is None or part.get("below_rated_tdp") is not None or values.value_problem(value):
        return
    found = values.watts_of(value)
    if found is not None and found.watts < _LEAST_SHARE * default.watts:
        yield (
            f"{where}.tdp_per_unit is {found.watts:g} W, less than half of the rules' {default.watts:g} W for "
            f"{part.get('model')!r}: declare below_rated_tdp if it is limited"
        )


def _scale_up_w(network: Json, where: str, total: _Sum) -> float:
    method, where = network.get("method"), f"{where}.scale_up_network"
    if method == "none":
        return 0.0
    if method == "declared_tdp":
        count = total.count(f"{where}.switch_count", network.get("switch_count"))
        return count * total.watts(f"{where}.tdp_per_switch", network.get("tdp_per_switch"))
    if method != "bandwidth_estimate":
        total.problems.append(
            f"{where}.method is {method!r}, not one of declared_tdp, bandwidth_estimate, none"
        )
        return 0.0
    return _estimated_w(network, where, total)


def _estimated_w(network: Json, where: str, total: _Sum) -> float:
    energy, stated = network.get("energy_per_bit_pj"), network.get("aggregate_bandwidth_tbps")
    bandwidth = number(stated)
    if bandwidth is None or bandwidth < 0:
        total.problems.append(f"{where}.aggregate_bandwidth_tbps is {stated!r}, not a number")
        return 0.0
    problem = values.value_problem(energy)
    if problem or _map(energy).get("value_pj") is None:
        total.problems.append(f"{where}.energy_per_bit_pj {problem or 'needs value_pj'}")
        return 0.0
    # The checker reads the bandwidth as terabytes per second, although the key names a different unit.
    return bandwidth * 8 * float(_map(energy)["value_pj"])


def _scale_out(fabric: object, rows: Sequence[Json], total: _Sum) -> tuple[float, float]:
    """Returns the power of the network cards that count towards a node, and the power of all switches, both in watts."""
    network = _map(fabric)
    nodes = sum(whole(row.get("nodes_provisioned")) or 0 for row in rows)
    if not isinstance(network.get("present"), bool):
        total.problems.append("scale_out.present must be true or false")
        return 0.0, 0.0
    if not network["present"]:
        if nodes > 1 and all(_is_alone(row) for row in rows):
            total.problems.append(
                f"scale_out.present is false, but nothing else connects the {nodes} nodes"
            )
        return 0.0, 0.0
    cards = _map(network.get("nics"))
    cards_w = _cards_w(cards, rows, total)
    switches_w = _switches_w(network, cards, nodes, total)
    return cards_w, switches_w


def _is_alone(row: Json) -> bool:
    network = _map(_map(row.get("components")).get("scale_up_network"))
    return row.get("power_method") == "component_sum" and network.get("method") == "none"


def _cards_w(cards: Json, rows: Sequence[Json], total: _Sum) -> float:
    has_formula = any(row.get("power_method") == "component_sum" for row in rows)
    count = total.count("scale_out.nics.count_per_node", cards.get("count_per_node"))
    if not cards.get("counted"):
        if has_formula:
            total.problems.append(
                "scale_out.nics.counted is false, but component_sum has no term for network cards"
            )
        return 0.0
    default = values.card_default()
    return count * total.watts("scale_out.nics.tdp_per_nic", cards.get("tdp_per_nic"), default)


def _switches_w(network: Json, cards: Json, nodes: int, total: _Sum) -> float:
    watts, offered_tbps = 0.0, 0.0
    for position, row in enumerate(_list(network.get("switches"))):
        switch, where = _map(row), f"scale_out.switches[{position}]"
        count = total.count(f"{where}.count", switch.get("count"), 1)
        default = values.switch_default(switch.get("model"), network.get("cabling"))
        power = switch.get("power_per_switch")
        watts += count * total.watts(f"{where}.power_per_switch", power, default)
        offered_tbps += count * _number(switch.get("bandwidth_tbps"))
    cards_tbps = nodes * _number(cards.get("count_per_node"))
    cards_tbps *= _number(cards.get("bandwidth_per_nic_gbps")) / 1000
    required_tbps = _number(network.get("required_bandwidth_tbps"))
    if required_tbps < cards_tbps - 1e-6:
        total.problems.append(
            f"scale_out.required_bandwidth_tbps is {required_tbps:g}, below the {cards_tbps:g} of the network cards"
        )
    if offered_tbps < max(required_tbps, cards_tbps) - 1e-6:
        total.problems.append(
            f"scale_out.switches offer {offered_tbps:g} Tbit/s, below the {max(required_tbps, cards_tbps):g} required"
        )
    return watts


def _number(value: object) -> float:
    return number(value) or 0.0


def _disagreements(
    descriptor: Json, sets: Sequence[NodeSetPower], switches_w: float, factor: float, kw: float
) -> Iterator[str]:
    """Compares the submitter's kW and `computed` block with the formula's results."""
    formula = {
        row["node_set_id"]: row.get("power_method") == "component_sum"
        for row in descriptor["node_sets"]
    }
    by_method = list(zip(formula.values(), sets, strict=True))
    major_w = sum(one.power_w for is_sum, one in by_method if is_sum) / factor
    ours = {
        "major_components_w": major_w,
        "overhead_fraction": factor - 1,
        "other_components_w": major_w * (factor - 1),
        "published_node_power_w": sum(one.power_w for is_sum, one in by_method if not is_sum),
        "scale_out_switch_power_w": switches_w,
        "total_system_power_w": sum(one.power_w for one in sets) + switches_w,
    }
    for key, value in ours.items():
        stated = _map(descriptor.get("computed")).get(key)
        tolerance = 1e-9 if key == "overhead_fraction" else _COMPUTED_TOLERANCE_W
        if stated is not None and abs(_number(stated) - value) > tolerance:
            yield f"computed.{key} is {stated}, but the formula gives {value:g}"
    stated_kw = descriptor.get("provisioned_power_kw")
    if stated_kw is not None and abs(_number(stated_kw) - kw) > _KW_TOLERANCE:
        yield f"provisioned_power_kw is {stated_kw}, but the formula gives {kw:g}"
