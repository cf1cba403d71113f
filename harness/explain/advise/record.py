"""Reads measured.json and computes the numbers that several answers share. This module has no side effects."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from statistics import median
from typing import Any, NamedTuple

from harness.core.files import reading
from harness.core.stats import median_interval
from harness.explain.advise.layers.bench import Clock, LayerTimes
from harness.explain.advise.layers.settings import PARALLEL, Setting, parse_setting
from harness.models.opened.ort_session import GRAPH_LEVELS

SCHEMA = {"schema_version": 1}
FILE = "measured.json"


def share_saved(ratio: float) -> float:
    """Returns the share of the time that is saved. ratio: time before divided by time after."""
    return 1 - 1 / ratio


class RealisedGain(NamedTuple):
    """Speed-up of a setting relative to the current setting.
    ratio: median of now / other over the pairs.
    low, high: 95 % interval from order statistics; None if there are too few pairs.
    clock: cpu if both settings use one thread, else wall.
    """

    ratio: float
    low: float | None
    high: float | None
    clock: Clock
    pairs: int

    @property
    def gain(self) -> float:
        """Share of the time that is saved. Negative if the setting is slower."""
        return share_saved(self.ratio)


class Record:
    """The measurements in measured.json.

    content: the content of that file. Raises ConfigError if the content has a different form.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.content = content
        with reading(f"{FILE} is not valid `advise` output"):
            self.now = parse_setting(content["now"])
            self.candidates = [parse_setting(text) for text in content["candidates"]]
            self.layers = {
                key: {parse_setting(s): LayerTimes.from_json(t) for s, t in settings.items()}
                for key, settings in content["layers"].items()
            }
            self.units: Sequence[Mapping[str, Any]] = content["units"]
            self.nodes: Sequence[Mapping[str, Any]] = content["nodes"]

    def clock(self, *settings: Setting) -> Clock:
        """Returns `cpu` if all settings use one thread, otherwise `wall`."""
        settings = (self.now, *settings)
        is_single = all(s.threads == 1 and s.execution != PARALLEL for s in settings)
        return "cpu" if is_single else "wall"

    def now_ns(self, clock: Clock) -> float:
        """Returns the shortest measured time of the whole model under the current setting."""
        timings = [self.content["now_runs"]]
        timings += [pair["now"] for pair in self.content["pairs"].values() if "now" in pair]
        return float(min(ns for timing in timings for ns in timing[f"{clock}_ns"]))

    def now_median_ns(self, clock: Clock) -> float:
        return float(median(self.content["now_runs"][f"{clock}_ns"]))

    def alone(self, setting: Setting) -> list[LayerTimes | None]:
        """Returns the times of each unit that was measured alone, as a (units,) list; None for any other unit."""
        return [self.layers.get(unit["key"], {}).get(setting.kernel) for unit in self.units]

    def own_ns(self, setting: Setting, clock: Clock) -> list[float | None]:
        """Returns the shortest time of each unit that was measured alone, as a (units,) list; None for any other unit."""
        return [timed.least_ns(clock) if timed else None for timed in self.alone(setting)]

    def unit_ns(self, setting: Setting, clock: Clock) -> list[float]:
        """Returns the shortest time of each unit when it runs alone, as a (units,) list. If a unit's time is missing,
        the time under the current setting replaces it. If both are missing, the time of the unit's kernels in the whole
        model is used.
        """
        rows = [self.own_ns(s, clock) for s in (setting, self.now)]
        return [
            next((ns for ns in known if ns is not None), 0.0)
            for known in zip(*rows, self.inside_ns, strict=True)
        ]

    @cached_property
    def inside_ns(self) -> list[float]:
        """Shortest time of each unit's kernels in the whole model under the current setting, as a (units,) list.

        A kernel that computes several units counts only for the first unit.
        """
        owner = {node: i for i, unit in enumerate(self.units) for node in unit["nodes"]}
        total_ns = [0.0] * len(self.units)
        for kernel in self.kernels(self.now.graph):
            units = [owner[node] for node in kernel["nodes"] if node in owner]
            if units and not kernel["inserted"]:
                total_ns[units[0]] += min(kernel["duration_ns"])
        return total_ns

    def kernels(self, level: str) -> Sequence[Mapping[str, Any]]:
        """Returns the kernels that were executed at a graph level. The list is empty if the level could not be
        profiled.
        """
        return list(self.content["profiles"].get(level, {}).get("kernels", ()))

    @property
    def needs(self) -> list[Sequence[int]]:
        return [unit["needs"] for unit in self.units]

    def about(self, unit: int) -> str:
        """Returns the unit's operators, such as Conv+BatchNormalization+Relu."""
        return "+".join(self.nodes[i]["op"] for i in self.units[unit]["nodes"])

    def best_ns(self, clock: Clock) -> tuple[list[float], list[str]]:
        """Returns two (units,) lists: each unit's shortest time over all graph levels, and the level with that time.
        Both lists apply to the current number of threads and the current precision.
        """
        by_level = {
            level: self.own_ns(self.now._replace(graph=level), clock) for level in GRAPH_LEVELS
        }
        best: list[tuple[float, str]] = []
        for i, inside in enumerate(self.inside_ns):
            known = [(ns, level) for level, row in by_level.items() if (ns := row[i]) is not None]
            best.append(min(known, default=(inside, "")))
        return [ns for ns, _ in best], [level for _, level in best]

    def realised(self, setting: Setting) -> RealisedGain | None:
        """Returns the measured gain; None if the setting was not measured."""
        pair = self.content["pairs"].get(str(setting))
        if pair is None or "now" not in pair:
            return None
        clock = self.clock(setting)
        before, after = (pair[side][f"{clock}_ns"] for side in ("now", "other"))
        ratios = [a / max(b, 1) for a, b in zip(before, after, strict=True)]
        return RealisedGain(median(ratios), *median_interval(ratios), clock, len(ratios))
