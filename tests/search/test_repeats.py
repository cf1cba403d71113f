"""--repeats: runs with consecutive seeds, their folders, and their joint interval."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.core.config.run_config import RunConfig
from harness.errors import ConfigError, PluginUnavailable
from harness.loadgen.versions import PINNED_VERSION, ROUNDS
from harness.results.evidence.between_runs import over_runs
from harness.results.outcome import Finished
from harness.results.seal.digests import SEAL
from harness.search import repeats
from tests.builders.refusals import Said
from tests.builders.support import present
from tests.stand_ins.fake_peak import System, names

SERVER = (
    *("--scenario", "server", "--backend", "null", "--mode", "performance"),
    *("--target-qps", "50"),
)


def repeated(
    monkeypatch: pytest.MonkeyPatch, system: System, *arguments: str
) -> tuple[int, System]:
    monkeypatch.setattr("harness.run.supervisor.job.measure", system)
    return main([*SERVER, "--out", "all", *arguments]), system


def repeats_json(folder: str = "all") -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(folder, "repeats.json").read_text())
    return content


def test_every_run_has_the_next_arrivals_and_a_folder_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, system = repeated(monkeypatch, System(100.0), "--repeats", "3")
    assert status == 0
    first = ROUNDS[PINNED_VERSION].seeds.schedule
    assert [c.schedule_seed for c in system.configs] == [first, first + 1, first + 2]
    assert {c.seed for c in system.configs} == {None}
    assert names(Path("all")) == [SEAL, "repeats.json", "run-1", "run-2", "run-3"]
    content = repeats_json()
    assert content["schedule_seeds"] == [first, first + 1, first + 2]
    assert content["numbers"]["p99"]["values"] == [2e7] * 3
    assert content["numbers"]["p99"]["interval"] == pytest.approx([2e7, 2e7])
    told = capsys.readouterr()
    assert told.out.startswith("3 of 3 VALID  server  null  digits\n")
    assert "harness: run 3 of 3: VALID, p99 20.0 ms, 50.0 samples/s" in told.err
    assert not Path("latest").exists()


def test_a_calibrated_rate_is_that_of_the_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(5000.0)
    monkeypatch.setattr("harness.run.supervisor.job.measure", system)
    given = "--scenario server --backend null --mode performance --repeats 3 --out all"
    assert main(given.split()) == 0
    assert [c.target_qps for c in system.configs] == [None, 1000, 1000]
    assert [c.queries for c in system.configs] == [None, 2010, 2010]


def test_threads_and_batch_are_those_of_the_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: the warm-up of each run chose the threads again, so three runs of one command were not comparable."""
    system = System(100.0)

    def measure(config: RunConfig, **more: Any) -> Finished:
        finished = system(config, **more)
        chosen = {"instances": 1, "threads": len(system.configs), "max_batch": 4}
        (finished.folder / "config.yaml").write_text(json.dumps(chosen))
        return finished

    monkeypatch.setattr("harness.run.supervisor.job.measure", measure)
    assert main([*SERVER, "--out", "all", "--repeats", "3"]) == 0
    chosen = [(c.instances, c.threads, c.max_batch) for c in system.configs]
    assert chosen == [(None, None, None), (1, 1, 4), (1, 1, 4)]


def test_numbers_of_tokens_are_summarised_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: the summary lacked TTFT, TPOT, tokens/s and goodput, and did not name the SLO."""
    system = System(100.0)

    def measure(config: RunConfig, **more: Any) -> Finished:
        finished = system(config, **more)
        times = {"p50": 2_000_000, "p90": 3_000_000, "p99": 4_000_000}
        tokens = {"output_per_s": 12_000.0, "ttft_ns": times, "tpot_ns": None}
        more = {"slo": "ttft:p90=1s", "goodput": {"per_s": 49.0}, "tokens": tokens}
        score = {"accuracy": {"value": 0.5, "unit": ""}}
        return finished._replace(result={**finished.result, **more, **score})

    monkeypatch.setattr("harness.run.supervisor.job.measure", measure)
    assert main([*SERVER, "--out", "all", "--repeats", "2"]) == 0
    content = repeats_json()
    assert content["slo"] == "ttft:p90=1s"
    assert content["numbers"]["ttft_p90"]["values"] == [3_000_000] * 2
    assert "accuracy" not in content["numbers"]
    # Bug: the deciding number was p99 of whole answers, which no SLO mentions.
    assert content["deciding"] == "ttft_p90"
    out = capsys.readouterr().out
    assert out.startswith("2 of 2 VALID  server  null  digits  ttft:p90=1s\n")
    for row in ("ttft_p99 +4.00 ms", "tokens +12,000/s", "goodput.ttft:p90=1s +49.0/s"):
        assert re.search(f"^{row} ", out, re.MULTILINE), row


def test_a_given_seed_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    _, system = repeated(monkeypatch, System(100.0), "--repeats", "2", "--seed", str(2**64 - 1))
    assert [c.schedule_seed for c in system.configs] == [2**64 - 1, 0]


def test_one_invalid_run_makes_the_status_4(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {2: ("slo-missed", 4)}
    status, system = repeated(monkeypatch, System(100.0, broken), "--repeats", "3")
    assert (status, len(system.configs)) == (4, 3)
    assert repeats_json()["verdicts"] == ["VALID", "INVALID", "VALID"]


def test_a_stopped_run_is_the_last_run_and_the_folder_stays_partial(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: the table had a line whose mean, minimum and maximum came from a single run."""
    broken = {2: ("interrupted", 130)}
    assert repeated(monkeypatch, System(100.0, broken), "--repeats", "3")[0] == 130
    assert names(Path("all.partial")) == [SEAL, "repeats.json", "run-1", "run-2.partial"]
    assert capsys.readouterr().out.splitlines() == [
        "1 of 2 VALID  server  null  digits",
        "  stopped after 1 of 3 runs",
        "  over    1 of 2 runs; left out: interrupted",
        "",
        "results     all.partial",
    ]


@pytest.mark.parametrize("end", [("interrupted", 130), ("died", 5)])
def test_a_last_run_that_did_not_end_leaves_the_folder_partial(
    monkeypatch: pytest.MonkeyPatch, end: tuple[str, int]
) -> None:
    status, _ = repeated(monkeypatch, System(100.0, {3: end}), "--repeats", "3")
    assert status == end[1]
    assert names(Path()) == ["all.partial"]
    assert names(Path("all.partial")) == [SEAL, "repeats.json", "run-1", "run-2", "run-3.partial"]


@pytest.mark.parametrize("end", [("interrupted", 130), ("batch-failed", 4)])
def test_failed_run_is_left_out_of_the_mean(
    monkeypatch: pytest.MonkeyPatch, end: tuple[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    """A failed sample is answered at once, so a run with failures would be the fastest."""
    system = System(100.0, {4: end})

    def measure(config: RunConfig, **how: Any) -> Finished:
        finished = system(config, **how)
        if finished.status:
            finished.result["latency_ns"]["p99"] = 1
        return finished

    monkeypatch.setattr("harness.run.supervisor.job.measure", measure)
    assert main([*SERVER, "--out", "all", "--repeats", "4", "--quiet"]) == end[1]
    content = repeats_json("all" if end[1] == 4 else "all.partial")
    assert content["left_out"] == [None, None, None, end[0]]
    assert content["numbers"]["p99"]["values"] == [2e7, 2e7, 2e7, None]
    assert content["numbers"]["p99"]["interval"] == pytest.approx([2e7, 2e7])
    out = capsys.readouterr().out
    assert out.startswith("3 of 4 VALID  server  null  digits\n")
    assert f"\n  over    3 of 4 runs; left out: {end[0]}\n" in out
    assert re.search(r"^p99 +20.0 ms +20.0 ms to 20.0 ms +20.0 ms +20.0 ms$", out, re.MULTILINE)


def test_run_that_only_missed_its_slo_is_in_the_mean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repeated(monkeypatch, System(100.0, {2: ("slo-missed", 4)}), "--repeats", "3")
    assert repeats_json()["numbers"]["p99"]["values"] == [2e7] * 3
    assert " over  " not in capsys.readouterr().out


def test_a_folder_that_cannot_be_named_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, refuses: Said
) -> None:
    system = System(100.0)

    def measure(config: RunConfig, **how: Any) -> Finished:
        # The folder is not empty, so it cannot be replaced.
        Path("all/taken").mkdir(parents=True, exist_ok=True)
        return system(config, **how)

    monkeypatch.setattr("harness.run.supervisor.job.measure", measure)
    told = "all.partial cannot be written (Directory not empty): pass a different --out"
    assert refuses(*SERVER, "--out", "all", "--repeats", "2", "--quiet", status=4) == told


def test_a_users_mistake_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(100.0, {1: ConfigError("no")})
    assert repeated(monkeypatch, system, "--repeats", "3")[0] == 2
    assert names(Path()) == []


def test_a_refused_second_run_names_the_folder_of_the_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: the command ended with status 2, and only `ls -a` showed the folder of the first run."""
    system = System(100.0, {2: ConfigError("no")})
    assert repeated(monkeypatch, system, "--repeats", "3")[0] == 2
    assert names(Path()) == ["all.partial"]
    assert (
        "harness: all.partial contains what was measured before the error\n"
        in capsys.readouterr().err
    )


def test_missing_module_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(100.0, {1: PluginUnavailable("no module")})
    assert repeated(monkeypatch, system, "--repeats", "3")[0] == 3
    assert names(Path()) == []


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--repeats 1", "--repeats: 1 must be between 2 and 1,000"),
        ("--repeats 3 --mlperf", "--repeats changes the seeds: drop --mlperf, which fixes them"),
        ("--repeats 3 --audit a.config", "--audit makes one run, but --repeats makes several: drop it"),
        ("--repeats 3 --metrics-linger 1s", "--metrics-linger waits after one run, but --repeats makes several: drop it"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_in_one_line_and_status_2(
    arguments: str, line: str, refuses: Said
) -> None:
    assert refuses(*SERVER, *arguments.split()) == line


def test_an_interval_of_a_few_very_different_runs_is_not_printed() -> None:
    """Bug: `mean 11.4 ms  1.11 us to 118 s`."""

    def row(*values: float) -> list[str]:
        over = present(over_runs(values))
        number = {"mean": over[0], "interval": over[1], "values": values, "unit": "ns"}
        content: Any = {"numbers": {"mean": number}}
        return next(repeats._rows(content))

    assert row(1e6, 1.1e6, 1.2e6)[2] == "875 us to 1.38 ms"
    assert row(1e6, 3e7, 2e8)[2] == "> x 100"


@pytest.mark.slow
def test_real_runs_are_one_side_of_a_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    given = "--scenario server --backend null --mode performance --target-qps 2000 --slo p99=1s"
    more = "--queries 2010 --no-metrics --quiet --repeats 2 --out all"
    assert main([*given.split(), *more.split()]) == 0
    rates = repeats_json()["numbers"]["throughput"]
    assert len(set(rates["values"])) == 2  # the runs have different arrivals
    over = present(over_runs(rates["values"]))
    assert (rates["mean"], rates["interval"]) == over == (over[0], None)
    assert "needs 3 runs or more" in capsys.readouterr().out
    assert main(["check", "all/run-1"]) == 0
    # run-1 has only one of the schedule seeds, so the arrivals differ.
    assert main(["compare", "all/run-*", "all/run-1"]) == 4
    assert "arrivals: schedule seeds" in capsys.readouterr().out
    assert main(["compare", "all/run-*", "all/run-1,all/run-2"]) == 0


@pytest.mark.parametrize(("slo", "bounds"), [("p99=4ms", 1), ("p99=1s", 0), ("p90=4ms", 0)])
def test_the_plot_shows_a_near_bound_and_invalid_runs(slo: str, bounds: int) -> None:
    """Bug: an INVALID run looked like a VALID one, and the plot had no bound."""
    number = {"unit": "ns", "values": [2e6, 5e6], "mean": 3e6, "interval": [2.4e6, 3.6e6]}
    content: Any = {
        "level": 0.95,
        "slo": slo,
        "verdicts": ["VALID", "INVALID"],
        "deciding": "p99",
        "numbers": {"p99": number},
    }
    (plot,) = repeats.figures(content)
    shown = {trace["name"]: (trace["x"], trace["marker"]["symbol"]) for trace in plot.data}
    assert shown == {
        "VALID": (["1"], "circle"),
        "INVALID": (["2"], "x"),
        "geometric mean": (["mean"], "diamond"),
    }
    # Bug: an interval over a factor of a hundred pressed the runs into the lowest part of the plot.
    assert "type" not in plot.layout["yaxis"]
    number["interval"] = [2.4e5, 3.6e7]
    (wide,) = repeats.figures(content)
    assert wide.layout["yaxis"]["type"] == "log"
    named = [shape for shape in plot.layout["shapes"] if shape.get("name") == "bound"]
    assert len(named) == bounds
