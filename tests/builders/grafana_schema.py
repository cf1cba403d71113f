"""Writes a dashboard as TypeScript that compiles only if the dashboard fits Grafana's own types."""

import json
from pathlib import Path
from typing import Any

PACKAGES = ("@grafana/schema@13.2.3", "typescript@5.7.3")
_PANELS = {
    "timeseries": "timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen",
    "stat": "stat/panelcfg/x/StatPanelCfg_types.gen",
    "heatmap": "heatmap/panelcfg/x/HeatmapPanelCfg_types.gen",
    "table": "table/panelcfg/x/TablePanelCfg_types.gen",
}
_HAS_FIELDS = ("timeseries", "heatmap", "table")
_OF_PROMETHEUS = ("expr", "step", "titleFormat")
"""Keys of an annotation that its data source reads, although the dashboard schema lacks them."""

# JSON contains the values of enums, but TypeScript does not accept a plain value where it expects an enum.
_HEAD = """
import type { Dashboard } from '@grafana/schema';
type Plain<T> = T extends string ? `${T}` : T extends number | boolean ? T
  : T extends (infer U)[] ? Plain<U>[] : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
"""


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns all panels that show data, including the panels in folded rows."""
    found = [one for panel in dashboard["panels"] for one in (panel, *panel.get("panels", ()))]
    return [panel for panel in found if panel["type"] != "row"]


def typescript(dashboard: dict[str, Any], modules: Path) -> str:
    """modules: the node_modules folder with PACKAGES."""
    raw = modules / "@grafana/schema/dist/esm/raw/composable"
    text = [_HEAD]
    for kind, path in _PANELS.items():
        text.append(f"import type * as {kind} from {json.dumps(str(raw / path))};")
    shaded = [
        {key: value for key, value in one.items() if key not in _OF_PROMETHEUS}
        for one in dashboard["annotations"]["list"]
    ]
    whole = {**dashboard, "annotations": {"list": shaded}}
    text.append(f"export const whole: Plain<Dashboard> = {json.dumps(whole)};")
    for n, panel in enumerate(panels(dashboard)):
        kind = panel["type"]
        options = json.dumps(panel.get("options", {}))
        text.append(f"export const o{n}: Plain<Partial<{kind}.Options>> = {options};")
        custom = panel.get("fieldConfig", {}).get("defaults", {}).get("custom", {})
        if kind in _HAS_FIELDS:
            fields = json.dumps(custom)
            text.append(f"export const f{n}: Plain<Partial<{kind}.FieldConfig>> = {fields};")
        else:
            assert not custom
    return "\n".join(text) + "\n"
