"""The dashboard, the rules and the configuration for Prometheus and Grafana are consistent, and match real runs."""

import copy
import importlib.util
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from harness.cli.main import main
from harness.run.supervisor.metrics.live_counts import EDGES_NS
from tests.builders import grafana_schema
from tests.builders.power_trees import counting, machine, powercap
from tests.builders.support import SCENARIOS
from tests.faults.command import ROOT, Ended, result, run
from tests.stand_ins.servers.metrics.prometheus_server import (
    DASHBOARDS,
    Prometheus,
    programs,
    prometheus,
)

DASHBOARD = json.loads((DASHBOARDS / "harness.json").read_text())
PANELS = grafana_schema.panels(DASHBOARD)
NO_DATA_HERE = {
    *("Power", "Energy per query", "CPU frequency", "Temperature"),
    *("GPUs: busy", "GPUs: clock", "GPUs: power"),
}
"""Panels that need a meter or a sensor, which a test machine may lack; fake trees provide the data."""

MAYBE = {
    *("Reasons and doubts", "Token times", "Samples by node", "Answer time of nodes, p99"),
    "Model cache",
}
"""Panels that stay empty in a run without meters, tokens or nodes."""


def _expressions() -> list[str]:
    asked = [t["expr"] for p in PANELS for t in p["targets"]]
    asked += [shaded["expr"] for shaded in DASHBOARD["annotations"]["list"]]
    rules = yaml.safe_load((DASHBOARDS / "rules.yml").read_text())
    return asked + [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


def test_the_committed_dashboard_is_what_the_script_builds() -> None:
    spec = importlib.util.spec_from_file_location("dashboard_script", ROOT / "scripts/dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.build() == script.PATH.read_text()


def test_every_series_asked_for_is_served() -> None:
    documented = (ROOT / "docs/metrics.md").read_text()
    asked = set(re.findall(r"(?<!:)\bharness_\w+", " ".join(_expressions())))
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked}
    assert {name for name in names if f"| `{name}` |" not in documented} == set()
    assert len(names) > 15


def test_panels_do_not_overlap_and_each_panel_has_a_description() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        x, y, w, h = (panel["gridPos"][k] for k in "xywh")
        cells = {(i, j) for i in range(x, x + w) for j in range(y, y + h)}
        assert x + w <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["description"]


def test_grafana_knows_how_often_prometheus_scrapes() -> None:
    source = yaml.safe_load((DASHBOARDS / "provisioning/datasources/prometheus.yml").read_text())
    scraped = yaml.safe_load((DASHBOARDS / "prometheus.yml").read_text())["global"]
    assert source["datasources"][0]["jsonData"]["timeInterval"] == scraped["scrape_interval"]


def _files(folder: Path) -> dict[str, bytes]:
    found = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    return {name: path.read_bytes() for name, path in found.items()}


def test_the_verb_writes_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: an installed wheel did not contain the dashboard."""
    out = tmp_path / "new" / "boards"
    assert main(["dashboards", "--out", str(out)]) == 0
    assert _files(out) == _files(DASHBOARDS)
    assert capsys.readouterr().out.split() == sorted(str(out / name) for name in _files(out))
    assert [p.name for p in out.parent.iterdir()] == ["boards"]


def test_the_verb_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboards", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(
        f"harness: {tmp_path} already exists and will not be overwritten: "
    )
    (tmp_path / "file").touch()
    assert main(["dashboards", "--out", str(tmp_path / "file/x")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert _files(tmp_path) == {"file": b""}


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the TypeScript compiler and Grafana's types."""
    folder = tmp_path_factory.mktemp("typescript")
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    words = ["npm", "install", "--silent", "--no-audit", "--no-fund", *grafana_schema.PACKAGES]
    if subprocess.run(words, cwd=folder, check=False).returncode:
        pytest.skip("Grafana's types cannot be fetched")
    return folder


def _type_errors(dashboard: dict[str, Any], folder: Path) -> list[str]:
    text = grafana_schema.typescript(dashboard, folder / "node_modules")
    (folder / "made.ts").write_text(text)
    options = "--noEmit --strict --skipLibCheck --moduleResolution bundler --module esnext"
    done = subprocess.run(
        ["node_modules/.bin/tsc", *options.split(), "--target", "es2020", "made.ts"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return re.findall(r"^made.ts.*error.*", done.stdout, re.MULTILINE)


@pytest.mark.slow
def test_the_dashboard_fits_grafanas_own_types(compiler: Path) -> None:
    assert _type_errors(DASHBOARD, compiler) == []
    wrong = copy.deepcopy(DASHBOARD)
    (rate,) = (panel for panel in wrong["panels"] if panel["title"] == "Rate")
    rate["options"]["legend"]["displayMode"] = "nosuch"
    rate["fieldConfig"]["defaults"]["custom"]["nosuch"] = 1
    wrong["refresh"] = 1
    assert len(_type_errors(wrong, compiler)) == 3


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="module")
def server(bin_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with prometheus(bin_folder, tmp_path_factory.mktemp("prometheus")) as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    ["check rules rules.yml", "check config prometheus.yml", "test rules rules_test.yml"],
)
def test_promtool_accepts_the_files(words: str, bin_folder: Path) -> None:
    done = subprocess.run(
        [bin_folder / "promtool", *words.split()],
        cwd=DASHBOARDS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_real_run_fills_the_panels(scenario: str, server: Prometheus, tmp_path: Path) -> None:
    """Simulates a machine with meters and sensors: the kernel's files are fake, and the code that reads them is real."""
    name = f"run-{scenario}"
    zones, root = powercap(tmp_path / "powercap"), machine(tmp_path / "machine")
    shutil.rmtree(root / "proc")
    (root / "proc").symlink_to("/proc")
    with counting(zones / "intel-rapl:0/energy_uj", watts=80.0):
        done = _watched(
            *(server, tmp_path / name, scenario),
            *("--meter", f"rapl={zones}", "--meter", f"hwmon={root}/sys/class/hwmon"),
            prefix=(sys.executable, "-m", "tests.stand_ins.on_machine", str(root)),
        )
    assert done.status == 0, done.printed + done.said
    assert _empty(server, name) - MAYBE == set()
    _assert_agrees(server, name, result(tmp_path / name)["latency_ns"])
    # The counters also include idle time and loading. A busy machine may have left gaps in the readings; the result
    # then contains a reason instead of a reading.
    power = result(tmp_path / name)["power"] or {"readings": []}
    for reading in power["readings"]:
        joules = f'harness_energy_joules_total{{run="{name}", source="{reading["source"]}"}}'
        (counted,) = server.now(f"max_over_time({joules}[2m])")
        assert float(counted["value"][1]) >= reading["joules"]
    assert server.since(f'ALERTS{{run="{name}", alertname="RunInvalid"}}', 60) == []
    assert server.since(f'run:harness_queries_completed:rate5s{{run="{name}"}}', 40)


@pytest.mark.slow
def test_without_meters_only_their_panels_are_empty(server: Prometheus, tmp_path: Path) -> None:
    done = _watched(server, tmp_path / "run-bare", "offline")
    assert done.status == 0, done.printed + done.said
    empty = _empty(server, "run-bare") - MAYBE
    assert {"Power", "Energy per query"} <= empty <= NO_DATA_HERE


def _watched(
    server: Prometheus, out: Path, scenario: str, *more: str, prefix: Sequence[str] = ()
) -> Ended:
    return run(
        *("--scenario", scenario, "--duration", "5s", "--slo", "p99=1min", "--mode", "both"),
        *(("--target-qps", "1000") if scenario == "server" else ()),
        *("--metrics", f"127.0.0.1:{server.target}", "--metrics-linger", "4s"),
        *("--out", str(out), *more),
        prefix=prefix,
    )


def _empty(server: Prometheus, name: str) -> set[str]:
    return {p["title"] for p in PANELS if not _has_data(server, p, name)}


def _has_data(server: Prometheus, panel: dict[str, Any], name: str) -> bool:
    """Returns whether all queries of a panel are valid, and at least one of them returns a finite value within a
    minute.
    """
    values = {"$run": name, "$other": "none", "$shift": "1h", "$__rate_interval": "5s"}
    found = False
    for target in panel["targets"]:
        expr = target["expr"]
        for variable, text in values.items():
            expr = expr.replace(variable, text)
        for series in server.since(expr, 60):
            found |= any(math.isfinite(float(value)) for _, value in series["values"])
    return found


def _assert_agrees(server: Prometheus, name: str, logged_ns: dict[str, float]) -> None:
    """Checks that the percentiles from the histogram and from LoadGen lie in the same bucket or in adjacent ones."""
    series = f'harness_latency_seconds_bucket{{run="{name}", phase="performance"}}'
    # The query looks two minutes back, because the series ended with the run.
    buckets = f"last_over_time({series}[2m])"
    for fraction in (0.5, 0.9, 0.99):
        (found,) = server.now(f"histogram_quantile({fraction}, sum by (le) ({buckets}))")
        ends_ns = [float(found["value"][1]) * 1e9, logged_ns[f"p{fraction * 100:g}"]]
        first, second = np.searchsorted(EDGES_NS, ends_ns)
        assert abs(int(first) - int(second)) <= 1, (fraction, ends_ns)
