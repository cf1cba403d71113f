"""pytest's fixture `latency_budget` fails with the lines of the verdict, the SLO and `compare`."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import RunConfig, read_run
from harness.api.budget import LatencyBudget, failures, regressions
from harness.core.config.parse import parse_slo
from harness.core.units import show_ns
from harness.errors import ConfigError
from harness.results.compare.limits import parse_limit
from tests.builders.edited import edit
from tests.builders.finished import REASON, RUNS, answered_later, invalid
from tests.faults.command import LIMIT_S, ROOT

PLUGIN = "pytest_mlperf_harness"


def test_an_exceeded_budget_is_reported_with_both_numbers() -> None:
    run = read_run(RUNS / "server")
    measured = {name: int(run.latency_ns[name]) for name in ("p90", "p99.9")}
    kept = [parse_slo(f"{name}={ns}ns") for name, ns in measured.items()]
    assert [*failures(run, kept)] == []
    assert [*failures(run, [slo._replace(bound_ns=1_000) for slo in kept])] == [
        f"{name} is {show_ns(ns)}, but the budget {name}=1us allows {show_ns(1_000)}"
        for name, ns in measured.items()
    ]


def test_an_invalid_run_fails_within_its_budget_too(tmp_path: Path) -> None:
    run = read_run(invalid("server", tmp_path))
    assert [*failures(run, [parse_slo("p90=10s")])] == [
        f"the run is INVALID: {REASON['code']}: {REASON['text']}",
    ]


def test_a_baseline_is_judged_as_compare_does(tmp_path: Path) -> None:
    slower = tmp_path / "slower"
    shutil.copytree(RUNS / "closed-loop", slower)
    limit = [parse_limit("throughput:-5%")]
    again = RUNS / "closed-loop-again"
    assert [*regressions(RUNS / "closed-loop", again, limit, None)] == []
    path = slower / "result.json"
    content = read_run(slower).content
    rate = str(content["throughput_per_s"]["completed"])
    text = path.read_text()
    assert text.count(rate) >= 1
    path.write_text(text.replace(rate, str(float(rate) / 10)))
    (line,) = regressions(RUNS / "closed-loop", slower, limit, None)
    assert line == "limit: broken     throughput x 0.1 against -5 %"
    (line, *_) = regressions(RUNS / "server", slower, limit, None)
    assert line.startswith("not comparable: ")


def test_a_baseline_may_be_a_folder_of_repeats(tmp_path: Path) -> None:
    """Bug: a baseline made with --repeats used other schedule seeds than the run."""
    base = tmp_path / "base"
    for seed in (1, 2, 3):
        run = shutil.copytree(RUNS / "single-stream", base / f"run-{seed}")
        edit(run / "environment.json", lambda c: c["loadgen"]["seeds"].update(schedule=seed))  # noqa: B023 - runs at once
        answered_later(run, seed)
    (base / "repeats.json").write_text("{}")
    limits = [parse_limit("p50:+20%")]
    assert [*regressions(base, RUNS / "single-stream", limits, None)] == []


def test_wrong_bounds_are_named_before_anything_runs(tmp_path: Path) -> None:
    budget, config = LatencyBudget(tmp_path), RunConfig.of(scenario="server", backend="null")
    with pytest.raises(ConfigError) as raised:
        budget(config, p98="1ms", p99="1")
    first, second = str(raised.value).splitlines()
    assert first.startswith("latency_budget: p98: it is not one of p50, p90")
    assert second.startswith("latency_budget: p99: ")
    with pytest.raises(ConfigError, match=r"^fail_on: 'p99' is not a limit"):
        budget(config, fail_on="p99")
    with pytest.raises(ConfigError, match=r"^baseline and fail_on must be passed together"):
        budget(config, fail_on="p99:+5%")
    assert list(tmp_path.iterdir()) == []


def _pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", *words],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_a_session_without_the_fixture_does_not_import_the_harness(tmp_path: Path) -> None:
    """The project under test may contain a package `harness`, which Python must find first."""
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness/__init__.py").write_text("OWN = True\n")
    (tmp_path / "test_own.py").write_text(
        "import sys\nsys.path.insert(0, '.')\n"
        "def test_own():\n    assert not [m for m in sys.modules if m.startswith('harness')]\n"
        "    import harness\n    assert harness.OWN\n"
    )
    done = _pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "latency_budget" in _pytest(tmp_path, "--fixtures").stdout


@pytest.mark.slow
def test_the_fixture_measures_and_fails_with_the_sentence_of_the_slo(tmp_path: Path) -> None:
    (tmp_path / "test_latency.py").write_text(
        "from harness import RunConfig\n"
        "CONFIG = RunConfig.of(scenario='single-stream', backend='null', mode='performance', queries=100)\n"
        "def test_kept(latency_budget):\n"
        "    run = latency_budget(CONFIG, p90='5s')\n"
        "    assert run.is_valid and run.latency_ns['p90'] < 5e9\n"
        "def test_missed(latency_budget):\n"
        "    latency_budget(CONFIG, p90='1ns', p50='1ns')\n"
    )
    done = _pytest(tmp_path, "-v")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "test_latency.py::test_kept PASSED" in done.stdout
    assert "slo-missed: " in done.stdout
    assert "the SLO p90=1ns allows 1 ns" in done.stdout
    assert "the budget p50=1ns allows 1 ns" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.slow
def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    first, tests = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", first],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = re.fullmatch(r"(?:IN)?VALID: p99 (\d+) us, mean (\d+) us\n", done.stdout)
    assert printed is not None, done.stdout
    assert int(printed[2]) < int(printed[1])
    (tmp_path / "test_page.py").write_text(tests)
    assert "2 tests collected" in _pytest(tmp_path, "--collect-only").stdout
