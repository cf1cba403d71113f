"""`tune`: the grid, predictions from bare loops, the chosen plan and its certainty, and the folder."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import yaml

from harness.cli.main import main
from harness.core import registry
from harness.core.config.parse import parse_slo
from harness.core.config.run_config import RunConfig
from harness.core.service_times import QUANTILES, ServiceTimes
from harness.errors import ConfigError, PluginUnavailable, RunInvalid
from harness.loadgen.plan import InstanceGroup
from harness.machine.cores import Cores
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import MODELS_DIR
from harness.models.opened.instances import plan
from harness.results.outcome import Finished
from harness.results.seal.digests import SEAL
from harness.run.measured import bare_loops
from harness.run.progress import Progress
from harness.search.tune.candidates import (
    Aim,
    Forecast,
    Layout,
    Placement,
    batch_sizes,
    best_batch,
    candidates,
    layouts,
)
from harness.search.tune.decision import Finalist, decide, to_drop
from harness.search.tune.page import articles, figures
from harness.search.tune.peaks import least_sample_ns
from harness.search.tune.screening import Bare, Cut, time_layout
from harness.search.tune.table import conclusion, headline, lines
from harness.types import TensorSpec
from tests.builders.refusals import Said
from tests.builders.support import present
from tests.stand_ins.fake_peak import names, result

OFFLINE = ("tune", "--scenario", "offline", "--backend", "ort", "--quiet", "--no-report")
SERVER = ("tune", "--scenario", "server", "--backend", "ort", "--slo", "p99=10ms", "--quiet")
RATE = Aim("throughput", "samples/s", more_is_better=True)
TAIL = Aim("p99", "ns", more_is_better=False)


def service(sizes: Sequence[int], first_ns: float, each_ns: float) -> ServiceTimes:
    """Returns service times in which a batch always takes first_ns plus each_ns per sample."""
    ns = np.array([[first_ns + each_ns * size] * QUANTILES for size in sizes])
    return ServiceTimes(tuple(sizes), ns, tuple(5 for _ in sizes))


@dataclass
class Machine:
    """Stands in for bare loops and LoadGen on a machine with two cores. Spinning makes everything one tenth faster.
    `told` returns what LoadGen measures for a plan; each run is slower by `drift`. factor: factor of bare loops, which
    stop at `most` samples. least_ns: the fastest answer. fixed: batch size of the file. broken: maps the number of a
    run to its reason code and exit status. doubted: numbers of the runs with a doubt.
    """

    told: Callable[[RunConfig], float]
    spinning: float = 0.9
    drift: float = 0.0
    factor: float = 1.0
    most: int = 1024
    fixed: int | None = None
    broken: dict[int, tuple[str, int]] = field(default_factory=dict)
    doubted: tuple[int, ...] = ()
    least_ns: int = 1000
    refused: tuple[tuple[int, int], ...] = ()
    pair: float = 0.6
    """Factor for one instance with two threads."""
    timed: list[tuple[int, int, dict[str, str]]] = field(default_factory=list)
    configs: list[RunConfig] = field(default_factory=list)

    def bare(
        self, config: RunConfig, dataset: str, spec: InstanceGroup, sizes: Sequence[int], *_: Any
    ) -> Bare:
        options = dict(config.backend_option)
        self.timed.append((spec.instances, spec.threads, options))
        if (spec.instances, spec.threads) in self.refused:
            raise ConfigError("model.onnx: ONNX Runtime cannot load it: no")
        factor = self.factor * (self.spinning if options.get("spinning") == "on" else 1.0)
        layouts = {(2, 1): 1.0, (1, 2): self.pair, (1, 1): 0.95}
        factor *= layouts.get((spec.instances, spec.threads), 1.0)
        timed = [size for size in sizes if size <= self.most]
        timed = timed if self.fixed is None else [min(self.fixed, max(sizes))]
        times = service(timed, 50e3 * factor, 10e3 * factor)
        return Bare(times, {"spinning": ("on",)}, fixed_batch=self.fixed)

    def measure(self, config: RunConfig, *, probe_s: float, progress: Progress) -> Finished:
        self.configs.append(config)
        assert config.out is not None
        code, status = self.broken.get(len(self.configs), ("", 0))
        folder = config.out.with_name(config.out.name + ".partial") if code else config.out
        folder.mkdir(parents=True)
        made = result(config, [code] if code else [], 0)
        value = self.told(config) * (1 + self.drift * len(self.configs))
        made["throughput_per_s"]["completed"] = value
        made["latency_ns"] = {**dict.fromkeys(made["latency_ns"], value), "min": self.least_ns}
        made["doubts"] = [{"code": "busy-machine"}] * (len(self.configs) in self.doubted)
        (folder / "result.json").write_text(json.dumps(made))
        return Finished(status, folder, made)


Tuned = Callable[..., tuple[int, Any]]


@pytest.fixture
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tuned:
    """Returns a function (machine, arguments) -> (exit status, tune.json)."""
    monkeypatch.chdir(tmp_path)

    def run(machine: Machine, *arguments: str) -> tuple[int, Any]:
        monkeypatch.setattr("harness.search.tune.job.time_layout", machine.bare)
        monkeypatch.setattr("harness.run.supervisor.job.measure", machine.measure)
        monkeypatch.setattr("harness.machine.cores.available", lambda: Cores(((0,), (1,))))
        status = main([*arguments, "--out", "t"])
        (found,) = Path().glob("t*/tune.json")
        return status, json.loads(found.read_text())

    return run


def by_batch(config: RunConfig) -> float:
    """Returns samples/s that grow with the batch, and by another tenth with spinning."""
    spins = dict(config.backend_option).get("spinning") == "on"
    return float(1000.0 * (config.max_batch or 1) ** 0.1 * (1.1 if spins else 1.0))


def test_the_winner_is_a_file_that_config_takes(
    tuned: Tuned, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(by_batch)
    status, content = tuned(machine, *OFFLINE, "--model", "digits")
    assert status == 0
    assert content["taken"] == content["best"] == "2 x 1 spinning=on, batch 256"
    assert names(Path("t")) == [SEAL, "runs", "tune.json", "tuned.yaml"]
    plain = yaml.safe_load(Path("t/tuned.yaml").read_text())
    assert {"instances": 2, "threads": 1, "max_batch": 256}.items() <= plain.items()
    assert plain["backend_option"] == ["spinning=on"]
    assert not {"duration", "queries", "mode", "target_qps"} & plain.keys()
    out = capsys.readouterr().out
    assert out.startswith("TUNED  offline  ort  digits\n")
    assert re.search(r"^2 x 1, batch 64 .* not tuned$", out, re.MULTILINE)
    assert ") as good as the next, " in out
    machine = Machine(by_batch)
    tuned_again = main([*OFFLINE, "--config", "t/tuned.yaml", "--out", "again"])
    assert tuned_again == 0


def test_the_title_has_the_models_name_and_not_its_path(tuned: Tuned) -> None:
    path = MODELS_DIR / "digits.yaml"
    _, content = tuned(Machine(by_batch), *OFFLINE, "--model", str(path))
    assert content["model"] == "digits"


def test_each_layout_is_timed_in_both_directions_and_options_on_the_best(tuned: Tuned) -> None:
    machine = Machine(by_batch)
    tuned(machine, *OFFLINE)
    plain = [(i, t) for i, t, options in machine.timed if not options]
    assert plain[:6] == [(2, 1), (1, 2), (1, 1), (1, 1), (1, 2), (2, 1)]
    spun = [(i, t) for i, t, options in machine.timed if options]
    assert spun == [(2, 1), (1, 2), (1, 2), (2, 1)]


def test_option_without_a_gain_is_not_a_finalist(tuned: Tuned) -> None:
    _, content = tuned(Machine(by_batch, spinning=0.99), *OFFLINE)
    assert all("spinning" not in one["plan"] for one in content["finalists"])
    assert any(one["options"] for one in content["layouts"])


def test_rounds_turn_around_and_share_their_seed(tuned: Tuned) -> None:
    machine = Machine(by_batch)
    tuned(machine, *OFFLINE, "--rounds", "3", "--seed", "7")
    plans = [(c.max_batch, c.backend_option) for c in machine.configs]
    assert plans[:3] == plans[5:2:-1]
    assert [c.schedule_seed for c in machine.configs] == [7, 7, 7, 8, 8, 8, 9, 9, 9]


def test_a_drift_of_the_machine_does_not_pick_the_winner(tuned: Tuned) -> None:
    _, content = tuned(Machine(by_batch, drift=-0.02), *OFFLINE, "--rounds", "6")
    assert content["taken"] == "2 x 1 spinning=on, batch 256"
    assert content["best_over_second"]["low"] > 1


def by_plan(default: tuple[float, ...], others: tuple[float, ...]) -> Callable[[RunConfig], float]:
    """Returns results, round by round, for the plan without tuning and for all other plans."""

    def told(config: RunConfig) -> float:
        is_default = config.max_batch == 64 and not config.backend_option
        values = default if is_default else others
        return values[(config.schedule_seed or 0) % len(values)]

    return told


def test_simplest_of_equal_plans_is_taken_and_the_search_ends(
    tuned: Tuned, capsys: pytest.CaptureFixture[str]
) -> None:
    told = by_plan((100.0, 99.8, 100.1), (100.5, 100.6, 100.3))
    _, content = tuned(Machine(told), *OFFLINE)
    assert content["taken"] == "2 x 1, batch 64" != content["best"]
    assert {len(one["values"]) for one in content["finalists"]} == {3}
    alike = "differ by at most 3 % (95 % interval): the simpler one is taken"
    assert f"{content['best']} and 2 x 1, batch 64 {alike}" in capsys.readouterr().out


def test_better_mean_is_taken_if_rounds_decide_nothing(
    tuned: Tuned, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: the plan without tuning was chosen, although its mean was worse."""
    told = by_plan((98.0, 106.0), (100.0, 106.0, 103.0))
    _, content = tuned(Machine(told), *OFFLINE, "--rounds", "6", "--finalists", "2")
    assert content["taken"] == content["best"] != "2 x 1, batch 64"
    assert len(content["finalists"][0]["values"]) == 6
    mean = f"{content['best']} has the better mean; more --rounds may decide"
    assert mean in capsys.readouterr().out


def test_best_of_equal_plans_may_be_the_simplest(
    tuned: Tuned, capsys: pytest.CaptureFixture[str]
) -> None:
    told = by_plan((100.2, 100.1, 100.2), (100.1, 100.0, 100.2))
    _, content = tuned(Machine(told), *OFFLINE, "--rounds", "3", "--finalists", "2")
    assert content["taken"] == content["best"] == "2 x 1, batch 64"
    assert (
        "their speeds are equal within the limit, and 2 x 1, batch 64 is the simpler plan\n"
        in capsys.readouterr().out
    )


UNTUNED = "2 x 1, batch 64, the plan without tuning"


@pytest.mark.parametrize(
    ("default", "others", "broken", "head", "gain"),
    [
        ((100.0,), (150.0, 151.0), {}, ".*, the plan to take; .*", r".* is 1\.5\d x \(1\.4\d to 1\.5\d\) as good as UNTUNED"),
        ((98.0, 106.0), (100.0, 106.0, 103.0), {}, "keep UNTUNED: no plan is shown to be better; best mean: .*; .*", r"not shown, so keep your present options: .* is 1\.\d+ x \(0\.9\d+ to 1\.\d+\) as good as UNTUNED .*"),
        ((150.0,), (100.0,), {}, "throughput 150 samples/s with 2 x 1, batch 64, which is the plan without tuning; .*", "none: 2 x 1, batch 64 is the plan without tuning"),
        ((100.0,), (150.0,), {2: ("batch-failed", 4)}, ".*, the plan to take; .*", "not measured for UNTUNED: batch-failed: .*"),
    ],
)  # fmt: skip
def test_conclusion_begins_with_the_gain_of_tuning(
    tuned: Tuned,
    capsys: pytest.CaptureFixture[str],
    default: tuple[float, ...],
    others: tuple[float, ...],
    broken: dict[int, tuple[str, int]],
    head: str,
    gain: str,
) -> None:
    """Bug: the page began with "the plan to take", and advised below to keep the present options."""
    machine = Machine(by_plan(default, others), broken=broken)
    _, content = tuned(machine, *OFFLINE, "--rounds", "3", "--finalists", "2")
    found = present(re.search(r"^gain {8}(.*)$", capsys.readouterr().out, re.MULTILINE))
    assert re.fullmatch(gain.replace("UNTUNED", UNTUNED), found[1]), found[1]
    assert re.fullmatch(head.replace("UNTUNED", UNTUNED), headline(content)), headline(content)


def test_server_is_judged_at_the_rate_that_the_best_plan_sustains(tuned: Tuned) -> None:
    machine = Machine(lambda c: 50e6 if (c.target_qps or 0) > 40_000 else 5e6)
    status, content = tuned(machine, *SERVER, "--no-report", "--max-batch", "2")
    assert status == 0
    rates = [c.target_qps or 0 for c in machine.configs]
    assert rates[0] > 40_000 >= rates[-1] > 30_000
    assert content["rate_per_s"] == rates[-1]
    assert {r["rate_per_s"] for r in content["runs"] if r["round"] is not None} == {rates[-1]}
    assert content["judged"]["what"].startswith("p99 at ")


def test_rate_of_an_idle_backend_can_be_issued(tuned: Tuned) -> None:
    machine = Machine(lambda c: 50e6 if (c.target_qps or 0) > 500_000 else 5e6, factor=1e-4)
    status, content = tuned(machine, *SERVER, "--no-report", "--max-batch", "2")
    assert status == 0
    assert machine.configs[0].target_qps == 1e6
    assert 300_000 < content["rate_per_s"] <= 500_000


@pytest.mark.parametrize(
    ("pair", "asked", "plain"),
    [
        (0.6, (), "1 x 2, batch 1"),
        (1.5, (), "1 x 1, batch 1"),
        (1.5, ("--threads", "2"), "1 x 2, batch 1"),
    ],
)
def test_plan_without_tuning_has_the_threads_that_a_stream_would_choose(
    tuned: Tuned, pair: float, asked: tuple[str, ...], plain: str
) -> None:
    words = ("tune", "--scenario", "single-stream", "--backend", "ort", "--quiet", "--no-report")
    _, content = tuned(Machine(lambda _: 1e5, pair=pair), *words, *asked)
    assert [one["plan"] for one in content["finalists"] if one["is_default"]] == [plain]


@pytest.mark.parametrize("scenario", ["offline", "single-stream"])
def test_run_of_an_idle_backend_has_at_most_the_issuable_queries(
    tuned: Tuned, scenario: str
) -> None:
    machine = Machine(by_batch, factor=1e-4)
    assert tuned(machine, "tune", "--scenario", scenario, *OFFLINE[3:])[0] == 0
    # A run takes 1.5 s.
    assert {1_490_000 < (c.queries or 0) < 1_510_000 for c in machine.configs} == {True}


def test_reason_of_the_first_plan_is_shown_if_every_plan_fails(
    tuned: Tuned, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = dict.fromkeys(range(1, 4), ("batch-failed", 4))
    status, content = tuned(Machine(by_batch, broken=broken), *OFFLINE)
    assert status == 4
    assert content["ended_early"] == "no plan could be judged: the finalists state why"
    first = content["finalists"][0]["plan"]
    told = f"every plan failed; {first}: batch-failed: batch-failed it is\n"
    assert f"no plan was chosen: {told}" in capsys.readouterr().out


def test_doubts_of_the_runs_that_judged_are_counted(
    tuned: Tuned, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(by_batch, doubted=(1, 4, 5))
    _, content = tuned(machine, *OFFLINE, "--rounds", "3")
    out = capsys.readouterr().out
    assert re.search(r"^machine +not at rest in 3 of 9 runs \(busy-machine\)", out, re.MULTILINE)
    assert "doubt" not in out  # bug: a second line had the same doubt
    assert "machine" not in "".join(conclusion(content | {"runs": []}))


def test_slo_that_no_rate_meets_is_reported(
    tuned: Tuned, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: the page was VALID, and its headline stated "the plan to take"."""
    slow = Machine(lambda _c: 50e6)
    status, content = tuned(slow, *SERVER, "--no-report", "--max-batch", "2")
    assert status == 4
    printed = capsys.readouterr().out
    assert printed.startswith("SLO MISSED")
    assert "<- closest" in printed
    assert "no plan met p99=10ms at the rate of the judged runs" in printed
    (article,) = articles(content)
    assert ">INVALID<" in article.head[0]
    assert re.search("No plan met .* the closest plan", " ".join(article.head))
    assert "bound" in [shape["name"] for shape in article.figures[0].layout["shapes"]]


def test_plan_that_misses_the_slo_is_not_taken_if_another_meets_it(
    tuned: Tuned, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(config: RunConfig) -> float:
        is_default = (config.instances, config.backend_option) == (2, ())
        return (9.0e6, 12.5e6)[(config.schedule_seed or 0) % 2] if is_default else 9.9e6

    fixed = ("--target-qps", "700", "--max-batch", "8", "--finalists", "2")
    _, content = tuned(Machine(told), *SERVER, "--no-report", *fixed)
    assert content["best_over_second"]["low"] < 1
    assert content["second"] == "2 x 1, batch 8"
    assert content["taken"] == content["best"] != content["second"]
    out = capsys.readouterr().out
    assert f"{content['best']} meets p99=10ms\n" in out
    assert "warning" not in out
    # Bug: the advice was to keep the plan without tuning, whose mean misses the SLO.
    assert "gain        not shown, but only its mean meets the SLO: " in out
    assert "whose mean meets p99=10ms, as the other plan's mean does not" in headline(content)


def test_a_simpler_plan_that_is_taken_has_not_the_best_mean(tuned: Tuned) -> None:
    """Bug: the page said "which has the best mean" of a simpler plan, and "the plan to take" of a slower one."""
    told = by_plan((100.2, 100.1, 100.2), (100.1, 100.0, 100.2))
    _, content = tuned(Machine(told), *OFFLINE, "--rounds", "3", "--finalists", "2")
    default, other = "2 x 1, batch 64", content["second"]
    worse = {"ratio": 0.996, "low": 0.993, "high": 0.999, "rounds": 3}
    content |= {"taken": other, "best": default, "taken_over_default": worse}
    assert headline(content).startswith(f"keep {default}, the plan without tuning: no plan ")
    assert "; simpler and about as good: " in headline(content)


def test_slo_missed_by_offline_runs_is_reported(
    tuned: Tuned, capsys: pytest.CaptureFixture[str]
) -> None:
    missed = dict.fromkeys(range(1, 16), ("slo-missed", 4))
    status, content = tuned(Machine(by_batch, broken=missed), *OFFLINE, "--slo", "p99.99=1s")
    assert status == 0
    told = f"p99.99=1s was missed in 3 of 3 runs of {content['taken']}: Offline latency grows"
    assert told in capsys.readouterr().out


def test_invalid_runs_of_the_chosen_plan_are_counted(
    tuned: Tuned, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: runs of the chosen plan that missed the SLO were not mentioned, and the page was VALID."""
    broken = {1: ("slo-missed", 4), 2: ("early-stopping", 4)}
    fixed = ("--target-qps", "700", "--max-batch", "8", "--finalists", "2")
    _, content = tuned(Machine(lambda _c: 5e6, broken=broken), *SERVER, "--no-report", *fixed)
    out = capsys.readouterr().out
    taken = content["taken"]
    count = sum(run["plan"] == taken and run["verdict"] != "VALID" for run in content["runs"])
    assert count == 1
    assert re.search(rf"warning +1 of \d+ runs of {taken} are INVALID \((slo|early)-\w+ 1\)", out)
    assert out.count(" runs INVALID\n") == 2
    assert ">UNDECIDED<" in articles(content)[0].head[0]


def test_the_command_of_the_chosen_plan_can_be_pasted(tuned: Tuned) -> None:
    """Bug: the path was not quoted."""
    _, content = tuned(Machine(by_batch), *OFFLINE, "--no-report")
    command = "tuned       python -m harness --config 't u/tuned.yaml'  # a run with this plan"
    assert command in lines(content, Path("t u"))


@pytest.mark.parametrize("scenario", ["server", "single-stream"])
def test_a_percentile_that_no_run_reports_is_refused(
    scenario: str, tmp_path: Path, refuses: Said
) -> None:
    out = ("--out", str(tmp_path / "t"))
    ask = ("tune", "--scenario", scenario, "--backend", "ort", "--slo", "p99.99=10ms", *out)
    assert refuses(*ask) == (
        "runs report percentiles up to p99.9, but the SLO is p99.99=10ms: pass --slo with p99.9 or a "
        "lower percentile"
    )
    assert names(tmp_path) == []


def test_a_given_rate_is_kept_and_goes_into_the_file(tuned: Tuned) -> None:
    machine = Machine(lambda _c: 5e6)
    tuned(machine, *SERVER, "--no-report", "--target-qps", "700", "--max-batch", "8")
    assert {c.target_qps for c in machine.configs} == {700.0}
    assert all((c.queries or 0) >= 1050 for c in machine.configs)  # a run takes 1.5 s
    assert yaml.safe_load(Path("t/tuned.yaml").read_text())["target_qps"] == 700


def test_options_set_by_the_user_are_kept(tuned: Tuned) -> None:
    machine = Machine(by_batch)
    fixed = ("--instances", "1", "--max-batch", "4", "--backend-option", "spinning=off")
    _, content = tuned(machine, *OFFLINE, *fixed)
    assert {i for i, _, _ in machine.timed} == {1}
    assert all(options == {"spinning": "off"} for _, _, options in machine.timed)
    assert {c.max_batch for c in machine.configs} == {4}
    assert all(set(one["predicted"]) == {"4"} for one in content["layouts"])


def test_given_max_batch_is_kept_if_bare_loops_end_before_it(tuned: Tuned) -> None:
    machine = Machine(by_batch, most=4)
    _, content = tuned(machine, *OFFLINE, "--max-batch", "32")
    assert {c.max_batch for c in machine.configs} == {32}
    assert all(set(one["predicted"]) == {"32"} for one in content["layouts"])
    assert yaml.safe_load(Path("t/tuned.yaml").read_text())["max_batch"] == 32


def test_default_plan_keeps_its_batch_if_bare_loops_end_before_it(tuned: Tuned) -> None:
    _, content = tuned(Machine(by_batch, most=4), *OFFLINE)
    (default,) = [one["plan"] for one in content["finalists"] if one["is_default"]]
    assert default == "2 x 1, batch 64"  # the manifest sets the batch of 64
    others = [one["plan"] for one in content["finalists"] if not one["is_default"]]
    assert others
    assert all(plan.endswith(", batch 4") for plan in others)


@pytest.mark.parametrize("given", [(), ("--max-batch", "32")])
def test_no_plan_has_a_larger_batch_than_the_file_allows(
    tuned: Tuned, given: tuple[str, ...]
) -> None:
    machine = Machine(by_batch, fixed=2)
    tuned(machine, *OFFLINE, *given)
    assert {c.max_batch for c in machine.configs} == {2}


def test_a_layout_that_cannot_be_loaded_affects_no_other_layout(
    tuned: Tuned, capsys: pytest.CaptureFixture[str]
) -> None:
    status, content = tuned(Machine(by_batch, refused=((1, 2),)), *OFFLINE)
    assert status == 0
    (failed,) = [one for one in content["layouts"] if one["failed"]]
    assert (failed["instances"], failed["threads"]) == (1, 2)
    assert "1 x 2" in capsys.readouterr().out.split("failed: model.onnx")[0]


def test_search_without_a_loadable_layout_leaves_nothing(tuned: Tuned) -> None:
    # The command leaves no tune.json, so `tuned` fails.
    with pytest.raises(ValueError, match="not enough values"):
        tuned(Machine(by_batch, refused=((1, 2), (2, 1), (1, 1))), *OFFLINE)
    assert names(Path()) == []


def test_a_plugin_that_raises_leaves_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    faulty = Path(__file__).parents[2] / "faults/faulty.py"
    fixed = ("--instances", "1", "--threads", "1", "--out", "t")
    assert main([*OFFLINE[:3], "--backend", f"{faulty}:RaisesInLoad", "--quiet", *fixed]) == 3
    (log,) = Path("t.partial/bare").iterdir()
    assert "Traceback" in log.read_text()


def test_a_plan_that_fails_under_loadgen_is_out(tuned: Tuned) -> None:
    status, content = tuned(Machine(by_batch, broken={1: ("batch-failed", 4)}), *OFFLINE)
    assert status == 0
    failed = [one for one in content["finalists"] if one["failed"]]
    assert [one["failed"] for one in failed] == ["batch-failed: batch-failed it is"]
    assert content["taken"] != failed[0]["plan"]
    assert len([r for r in content["runs"] if r["plan"] == failed[0]["plan"]]) == 1


def test_stopped_run_ends_the_search_and_keeps_the_measurements(
    tuned: Tuned, capsys: pytest.CaptureFixture[str]
) -> None:
    status, content = tuned(Machine(by_batch, broken={5: ("interrupted", 130)}), *OFFLINE)
    assert status == 130
    assert content["taken"] is None
    assert [len(one["values"]) for one in content["finalists"]] == [1, 1, 2]
    assert names(Path("t.partial")) == [SEAL, "bare", "runs", "tune.json"]
    out = capsys.readouterr().out
    assert out.startswith("NOT TUNED")
    best = content["finalists"][2]["plan"]
    told = f"no plan was chosen, because the search was stopped: the best plan so far is {best}, "
    assert told in out, "not `or no plan was judged twice`"
    few = [{**one, "values": {"0": 1.0}} for one in content["finalists"]]
    (line,) = conclusion(content | {"finalists": few})
    assert line.startswith("no plan was chosen: the search ended before a plan was judged twice")
    assert re.search(r"; tune.json has the times of \d+ layouts$", line)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--mlperf",), "drop --mlperf"),
        (("--mode", "accuracy"), "drop --mode accuracy"),
        (("--rounds", "1"), "--rounds: 1 must be between 3 and 1,000"),
        (("--meter", "estimate"), "--meter is for a single run"),
        (("--queries", "10"), "tune sets the length of its runs with --duration: drop --queries"),
    ],
)
def test_contradictory_options_are_refused(
    arguments: tuple[str, ...], told: str, refuses: Said
) -> None:
    assert told in refuses(*OFFLINE, *arguments)


def test_concurrency_and_arrivals_are_refused(refuses: Said) -> None:
    assert "tune uses Poisson arrivals" in refuses(*SERVER, "--concurrency", "4")


def grid(scenario: str, cores: Cores, **given: Any) -> list[tuple[int, int]]:
    config = RunConfig(scenario=scenario, **given)
    found = registry.load("scenario", scenario)
    default = plan(config, found, load_model("digits"), cores)
    return [layout[:2] for layout in layouts(config, found, cores, default)]


def test_layouts_fill_the_cores_or_half_of_them() -> None:
    two = Cores(((0,), (1,)))
    assert sorted(grid("offline", two)) == [(1, 1), (1, 2), (2, 1)]
    assert sorted(grid("single-stream", two)) == [(1, 1), (1, 2)]
    six = Cores(tuple((n,) for n in range(6)))
    assert {(6, 1), (3, 2), (2, 3), (1, 6), (1, 3)} <= set(grid("offline", six))
    assert all(i * t <= 6 for i, t in grid("offline", six))
    assert grid("server", six)[0] == (5, 1)  # the default plan leaves one core to LoadGen
    assert set(grid("offline", six, threads=2)) == {(3, 2), (2, 2), (1, 2)}
    smt = Cores(((0, 2), (1, 3)))
    assert {(2, 2), (4, 1), (1, 4), (2, 1)} <= set(grid("offline", smt))
    quota = Cores(((0,), (1,), (2,), (3,)), quota=1.5)
    assert grid("offline", quota) == [(1, 1)]


def test_batch_sizes_are_powers_of_two_and_parts_of_a_query() -> None:
    def sizes(scenario: str, **given: Any) -> list[int]:
        return batch_sizes(
            RunConfig(scenario=scenario, **given), registry.load("scenario", scenario)
        )

    assert sizes("offline") == [1 << k for k in range(11)]
    assert sizes("server", max_batch=12) == [1, 2, 4, 8, 12]
    assert sizes("single-stream") == [1]
    assert sizes("multi-stream", samples_per_query=12) == [1, 2, 3, 6, 12]


def test_forecast_follows_the_scenario_and_the_slo() -> None:
    times = service([1, 2, 4, 8], 1e6, 1e6)
    offline = Forecast(registry.load("scenario", "offline"), 1, None, None)
    assert offline.of(times, 2, 4) == pytest.approx(2 * 4 / 5e-3)
    streams = Forecast(registry.load("scenario", "multi-stream"), 6, None, None)
    assert streams.of(times, 1, 4) == pytest.approx(5e6 + 3e6)
    slo = parse_slo("p99=20ms")
    server = registry.load("scenario", "server")
    slow = Forecast(server, 1, slo, 10.0).of(times, 1, 8)
    busy = Forecast(server, 1, slo, 400.0).of(times, 1, 8)
    assert 2e6 <= slow < busy
    peaks = [Forecast(server, 1, slo, None).of(times, n, 8) for n in (1, 2)]
    assert 1.5 * peaks[0] < peaks[1] < 2 * 8 / 9e-3
    strict = Forecast(server, 1, parse_slo("p99=10ms"), None).of(times, 1, 8)
    assert strict < peaks[0]


def cut_to(slo: str, call_ns: dict[Layout, float], measured: list[Layout] | None = None) -> Cut:
    """Cuts a Server grid with calls of one query that always take these times. measured: receives the order of the
    calls.
    """

    def timed(layout: Layout, sizes: Sequence[int]) -> Bare:
        if measured is not None:
            measured.append(layout)
        return Bare(service(sizes, call_ns[layout], 0.0), {})

    forecast = Forecast(registry.load("scenario", "server"), 1, parse_slo(slo), None)
    made = Cut(forecast, timed, partial(candidates, None), Progress(quiet=True))
    made.run(list(call_ns), [1], {})
    return made


def test_a_layout_that_misses_the_slo_even_without_load_is_omitted() -> None:
    wide, deep = Layout(4, 1), Layout(1, 4)
    found = cut_to("p99=12ms", {wide: 20e6, deep: 9e6})
    (left,) = found.ranked()
    assert left.layout == deep
    # 1 % of the queries arrive while a query that began 6 ms earlier is still running.
    assert 1.2 < left.predicted < 2.2
    told = found.measured[wide].to_json()
    assert told["failed"] == "misses p99=12ms even for a single query: 20.0 ms"
    assert (told["predicted"], told["best_batch"]) == ({}, None)


def test_a_layout_that_is_too_slow_at_the_machines_peaks_is_not_tried() -> None:
    """The first layout is the default, which is always tried; if the bound is unknown, no layout is skipped."""
    timed: list[Layout] = []

    def fake(layout: Layout, sizes: Sequence[int]) -> Bare:
        timed.append(layout)
        return Bare(service(sizes, 0.0, {1: 4e6, 2: 3e6}[layout.threads]), {})

    first, slow, fast = Layout(2, 1), Layout(1, 1), Layout(1, 2)
    least_ns = {first: 3e6, slow: 3e6, fast: 1e6}
    forecast = Forecast(registry.load("scenario", "offline"), 1, None, None)
    cut = Cut(forecast, fake, partial(candidates, None), Progress(quiet=True))
    cut.least_ns = least_ns.get
    cut.run([first, slow, fast], [1, 2], {})
    assert timed == [first, fast, fast, first]
    told = cut.measured[slow].to_json()
    assert told["failed"] == (
        "not tried: 333 samples/s at the machine's peaks, but 2 x 1 reaches 500 samples/s"
    )
    assert [one.layout for one in cut.ranked()] == [first, fast]
    timed.clear()
    cut = Cut(forecast, fake, partial(candidates, None), Progress(quiet=True))
    cut.run([first, slow, fast], [1, 2], {})
    assert len(timed) == 6


def test_the_least_time_of_a_sample_is_its_operations_at_the_peak(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    path = MODELS_DIR / "digits.onnx"
    config = RunConfig.of(scenario="offline", backend="ort")
    rates = {1: {"flops_per_s": 1e11}, 2: {"flops_per_s": 1.5e11}}
    least_ns = least_sample_ns(config, path, lambda threads: rates.get(threads, {}))
    one, two, four = (least_ns(Layout(1, threads)) for threads in (1, 2, 4))
    assert one is not None
    assert one > 0
    assert two == pytest.approx(one / 1.5)
    # The bound assumes four times the peak of one thread, because no peak is stored for four
    # threads.
    assert four == pytest.approx(one / 4)
    for unknown in (
        least_sample_ns(config, path, lambda _threads: {}),
        least_sample_ns(config, None),
        least_sample_ns(replace(config, backend="openvino"), path, rates.__getitem__),
    ):
        assert unknown(Layout(1, 1)) is None


def test_slo_missed_by_every_layout_is_reported_in_one_line() -> None:
    """Bug: each layout was timed twice, although the first measurement was conclusive."""
    timed: list[Layout] = []
    with pytest.raises(
        RunInvalid, match=r"^no layout meets p99=5ms, .* 1 x 4, takes 9\.00 ms: raise"
    ):
        cut_to("p99=5ms", {Layout(4, 1): 20e6, Layout(1, 4): 9e6}, timed)
    assert timed == [Layout(4, 1), Layout(1, 4)]


def test_a_bound_below_the_fastest_answer_ends_the_search_for_a_rate(
    tuned: Tuned, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: `tune` ran up to eight rates per finalist and all rounds, although no answer could be in time."""
    machine = Machine(lambda _config: 15e6, least_ns=12_000_000)
    assert tuned(machine, *SERVER)[0] == 4
    assert len(machine.configs) == 2
    told = "no load meets p99=10ms, because the fastest answer took 12.0 ms and the bound is 10.0 ms: raise --slo"
    assert told in capsys.readouterr().err


def test_machine_is_named_if_it_was_not_idle(
    tuned: Tuned, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned(Machine(by_batch, doubted=(2, 3)), *OFFLINE)
    told = r"^machine +not at rest in 2 of \d+ runs \(busy-machine\): plans were compared"
    assert re.search(told, capsys.readouterr().out, re.MULTILINE)


def test_each_run_prints_its_plan_result_and_the_time_left(
    tuned: Tuned, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned(Machine(by_batch), *(word for word in OFFLINE if word != "--quiet"))
    lines = [line for line in capsys.readouterr().err.splitlines() if "round" in line]
    assert re.fullmatch(
        r"harness: round 1 of at most 10: 2 x 1.*: [\d,]+ samples/s; at most \d+ s left", lines[0]
    )
    assert lines[-1].startswith("harness: round 3 of at most 10: ")


def test_search_without_a_remaining_layout_keeps_its_times(
    tuned: Tuned, capsys: pytest.CaptureFixture[str]
) -> None:
    status, content = tuned(Machine(by_batch), *SERVER[:-3], "--slo", "p99=10us", "--quiet")
    assert status == 4
    assert all("misses p99=10us" in one["failed"] for one in content["layouts"])
    assert "harness: no layout meets p99=10us" in capsys.readouterr().err
    assert names(Path("t.partial")) == [SEAL, "bare", "tune.json"]


class Described:
    """A backend that spins, and describes no other option."""

    tunable: ClassVar = {"spinning": ("on", "off"), "hint": ("latency", "throughput"), "x": ("1",)}

    def describe(self) -> Mapping[str, object]:
        return {"spinning": True, "hint": "latency", "threads": 2}


def test_current_values_of_a_backend_are_not_tried_again() -> None:
    found = bare_loops._other_values(Described())  # type: ignore[arg-type]
    assert found == {"spinning": ["off"], "hint": ["throughput"], "x": ["1"]}


def test_smallest_of_equally_good_batches_is_taken() -> None:
    times = service([1, 2, 4, 8, 16, 32], 1.0, 1e6)  # in this model, larger batches gain nothing
    offline = Forecast(registry.load("scenario", "offline"), 1, None, None)
    values, best = best_batch(offline, times, 1, times.sizes)
    assert best == 1
    assert set(values) == set(times.sizes)


def finalist(name: int, values: Sequence[float], *, is_default: bool = False) -> Finalist:
    made = Finalist(Placement(Layout(name, 1), 8), 1.0, is_default=is_default)
    made.values = dict(enumerate(values))
    return made


def test_the_interval_is_of_the_pairs_not_of_the_values() -> None:
    fast = finalist(2, [110.0, 220.0, 55.0, 330.0])
    slow = finalist(1, [100.0, 200.0, 50.0, 300.0], is_default=True)
    found = present(decide(RATE, [slow, fast]))
    assert found.taken is fast
    assert found.gain is not None
    assert found.gain.ratio == pytest.approx(1.1)
    assert found.gain.high - found.gain.low < 1e-6
    # Two plans always continue, even if one is clearly faster.
    assert [one is fast for one in to_drop(TAIL, [slow, fast])] == []


def test_clearly_worse_plan_is_dropped_after_three_rounds() -> None:
    best, near, far = (
        finalist(1, [100.0, 101.0, 99.0]),
        finalist(2, [99.0, 102.0, 100.0]),
        finalist(3, [150.0, 151.0, 149.0]),
    )
    assert list(to_drop(TAIL, [best, near, far])) == [far]
    for one in (best, near, far):
        del one.values[2]
    assert list(to_drop(TAIL, [best, near, far])) == []


def test_better_mean_of_two_inseparable_plans_is_taken() -> None:
    plain = finalist(1, [100.0, 101.0, 99.0], is_default=True)
    steady = finalist(2, [110.0, 111.0, 109.0, 110.0, 110.0])
    noisy = finalist(3, [90.0, 140.0, 100.0, 135.0, 105.0])
    plain.dropped = True
    found = present(decide(RATE, [plain, steady, noisy]))
    assert (found.best, found.second, found.taken) == (noisy, steady, noisy)
    plain.dropped = False
    plain.values = dict(enumerate([100.0, 101.0, 99.0, 100.0, 100.0]))
    found = present(decide(RATE, [plain, steady, noisy]))
    assert (found.best, found.second, found.taken) == (noisy, steady, noisy)


def test_a_plan_that_a_third_plan_beats_is_not_called_less_simple() -> None:
    """The best two plans do not differ significantly, but `tune` does not choose the second plan (the default), because
    a third plan beats it.
    """
    middle = finalist(2, [100.0] * 5)
    best = finalist(3, [100 * math.exp(gain) for gain in (0.02, 0.06, 0.1, 0.1, 0.1)])
    plain = finalist(1, [100 * math.exp(-gain) for gain in (0.01, 0.0101, 0.01)], is_default=True)
    found = present(decide(RATE, [plain, middle, best]))
    assert (found.best, found.second, found.taken) == (best, plain, best)
    assert found.second_is_beaten
    assert present(found.gain).low < 1


def test_dropped_plan_is_taken_if_all_others_failed() -> None:
    dropped, failed = finalist(1, [100.0, 101.0, 99.0]), finalist(2, [110.0, 111.0, 109.0])
    dropped.dropped, failed.failed = True, "died"
    found = present(decide(RATE, [failed, dropped]))
    assert found.taken is dropped


def test_plan_that_misses_the_slo_is_not_taken_if_the_best_meets_it() -> None:
    plain = finalist(1, [9.4e6, 9.7e6, 9.6e6, 9.5e6, 9.6e6], is_default=True)
    fast = finalist(2, [9.5e6] * 5)
    for bound_ns, taken in ((None, plain), (9.51e6, fast), (9e6, plain), (11e6, plain)):
        found = present(decide(TAIL, [plain, fast], bound_ns))
        assert found.best is fast
        assert found.taken is taken


def test_one_plan_is_taken_without_a_comparison_and_none_without_rounds() -> None:
    alone = present(decide(RATE, [finalist(1, [1.0, 2.0])]))
    assert (alone.second, alone.gain) == (None, None)
    assert decide(RATE, [finalist(1, [1.0])]) is None


def test_the_page_has_a_heat_map_of_all_that_was_timed(tuned: Tuned) -> None:
    _, content = tuned(Machine(by_batch), *OFFLINE)
    rounds, heat = figures(content)
    (map_,) = heat.data
    assert map_["y"] == ["2 x 1", "1 x 2", "1 x 1", "2 x 1 spinning=on", "1 x 2 spinning=on"]
    assert len(map_["z"]) == 5
    assert heat.title == "Throughput, samples/s, predicted from bare loops"
    texts = [text for row in map_["text"] for text in row if text]
    assert all(text.strip("[]").replace(",", "").isdigit() for text in texts)
    assert sum(text.startswith("[") for text in texts) == len(content["finalists"])
    # Bug: cells with equal predictions were marked for one plan.
    first = content["layouts"][0]
    first["predicted"] = dict.fromkeys(first["predicted"], 5.0)
    _, heat = figures(content)
    marked = [text for row in heat.data[0]["text"] for text in row if "[" in text]
    assert len(marked) == len(content["finalists"])
    assert heat.height_rem > rounds.height_rem
    assert {len(row) for row in map_["z"]} == {len(map_["x"])}
    assert [line["name"] for line in rounds.data] == [one["plan"] for one in content["finalists"]]


def looped(config: RunConfig, log: Path, instances: int, sizes: Sequence[int]) -> Bare:
    """Runs bare loops of the digits model in a separate process, with batches of at most 4."""
    group = InstanceGroup(instances, 1, 4)
    return time_layout(config, "digits", group, sizes, None, log, Progress(quiet=True))


def test_bare_loops_in_a_process_of_their_own(tmp_path: Path) -> None:
    config = RunConfig(scenario="server", max_batch=4, instances=2, threads=1)
    found = looped(config, tmp_path / "bare.log", 2, [1, 2, 4])
    assert found.service.sizes == (1, 2, 4)
    assert found.service.ns.shape == (3, QUANTILES)
    assert (found.service.ns > 0).all()
    assert min(found.service.counts) >= 6  # each of the two instances runs at least three loops
    assert found.tunable == {"graph": ["extended"]}
    assert found.fixed_batch is None
    assert names(tmp_path) == []


def test_error_of_a_layout_before_its_first_batch_is_raised(tmp_path: Path) -> None:
    config = RunConfig(scenario="offline", backend_option=(("spinning", "maybe"),))
    with pytest.raises(ConfigError, match="'maybe' is not one of"):
        looped(config, tmp_path / "bare.log", 1, [1])
    faulty = Path(__file__).parents[2] / "faults/faulty.py"
    config = RunConfig(scenario="offline", backend=f"{faulty}:RaisesInLoad")
    with pytest.raises(PluginUnavailable, match="raised"):
        looped(config, tmp_path / "bare.log", 1, [1])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(n for n, e in registry.BACKENDS.items() if e.installed))
def test_tunable_values_are_values_of_an_option(name: str) -> None:
    backend = registry.load("backend", name)
    if not hasattr(backend, "tunable"):
        pytest.skip("it has none")
    images = TensorSpec("x", "float32", ("batch", 3, 8, 8))
    of_two_threads = SimpleNamespace(_setup=SimpleNamespace(threads=2), _inputs=(images,))
    for option, values in backend.tunable.fget(of_two_threads).items():
        assert set(values) < set(backend.options[option])
