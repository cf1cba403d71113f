"""A submission with power: only PTDaemon sessions count, and `pack` copies the sessions unchanged.

The sessions are made up and satisfy every rule (tests/builders/submission/power.py);
tests/machine/power/test_ptdaemon_client.py takes the same steps with power-dev's own client and server.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.core.shown.private import host_id
from harness.errors import ConfigError
from harness.submit.pack.pack import Packed, pack
from harness.submit.plan.matrix import DONE, FAILED, PlannedRun, plan, search
from harness.submit.plan.request import Request
from harness.submit.rules.validate import validate
from tests.builders.refusals import refusals
from tests.builders.submission.power import METER, POWERED, TOLD, make_power_runs
from tests.builders.submission.trees import CLOSED as RESULTS
from tests.builders.submission.trees import ROUND
from tests.stand_ins.fake_submission_runs import ANSWERS, CLOSED, ENVIRONMENT, WORDS

SERVER_ALONE = replace(POWERED, division="open", category="datacenter,edge", scenarios=("Server",))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    make_power_runs(POWERED, folder)
    return folder


def packed(request: Request, work: Path, out: Path, answers: Mapping[str, Any] = TOLD) -> Packed:
    return pack(request, plan(request, work), answers, out, None)


def server(request: Request, work: Path) -> PlannedRun:
    return next(row for row in plan(request, work) if row.name == "Server-performance")


@pytest.mark.slow
def test_the_session_is_packed_unchanged_and_keeps_every_rule(work: Path, tmp_path: Path) -> None:
    found = packed(POWERED, work, tmp_path / "tree")
    assert [f.lines() for f in validate(found.tree, ROUND, raw=found.raw).findings] == []
    folder = found.tree / RESULTS / "Offline"
    session = work / "runs/Offline-performance/attempt-1/performance"
    names = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    logs = {"mlperf_log_detail.txt", "mlperf_log_summary.txt", "spl.txt"}
    wanted = {f"performance/{place}/{name}" for place in ("ranging", "run_1") for name in logs}
    wanted |= {f"performance/power/{name}" for name in ROUND.power_files}
    assert {name for name in names if name.startswith("performance/")} == wanted
    for name in wanted:
        assert (folder / name).read_bytes() == (session.parent / name).read_bytes()
    assert not {n for n in names if n.startswith("TEST") and n.endswith("spl.txt")}
    table = (folder / "analyzer_table.md").read_text()
    assert "YokogawaWT310E,made up,version=1.11.1-0" in table
    assert table.endswith("Firmware F1.04, calibrated 2026-03-01.\n")
    assert "Governor performance" in (folder / "power_settings.md").read_text()
    system = json.loads((found.tree / "closed/LabOrg/systems/box.json").read_text())
    assert system["system_power_capacity"] == "1200"
    commands = (folder / "README.md").read_text().splitlines()
    metered = [line for line in commands if "--meter ptdaemon=POWER_DEV," in line]
    assert len(metered) == 1
    assert "--audit" not in metered[0]


def test_package_without_power_runs_has_no_power_files(tmp_path: Path) -> None:
    request = replace(CLOSED, division="open", category="edge", scenarios=("Offline",))
    make_power_runs(replace(request, options=POWERED.options), tmp_path / "work")
    rows = plan(request, tmp_path / "work")
    assert rows[0].why == "the run was made with other options"
    make_power_runs(request, tmp_path / "plain")
    found = packed(request, tmp_path / "plain", tmp_path / "tree")
    assert not [p for p in found.tree.rglob("*") if "power" in p.name or p.name == "ranging"]
    text = (found.tree / "open/LabOrg/systems/box.json").read_text()
    assert "system_power_capacity" not in text


@pytest.mark.parametrize(
    ("meter", "told"),
    [
        (["rapl"], r"^--meter rapl \(energy counters .* cannot be submitted, because .*: remove --meter, or use --meter p"),
        (["estimate=4"], r"^--meter estimate \(busy CPU time .* cannot be submitted"),
        (["mine.py:Meter"], r"^--meter mine.py:Meter \(a plug-in's readings\) cannot be submitted"),
        (["ptdaemon"], r"^meter 'ptdaemon': it needs a checkout of MLCommons' power-dev"),
        (["ptdaemon=a,director=b:0,ntp=c"], r"^meter 'ptdaemon': director=b:0: write HOST"),
        ([METER, METER], r"^--meter appears twice: keep one$"),
        ([METER, "rapl"], r"(?m)^--meter rapl .*\n--meter appears twice"),
        ("rapl", r"^--meter rapl"),
        ([""], r"^--meter: the name is empty$"),
        (5, r"^--meter 5 \(a plug-in"),
    ],
)  # fmt: skip
def test_no_other_meter_is_submitted(meter: object, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        replace(CLOSED, options={**CLOSED.options, "meter": meter})


def test_only_performance_runs_have_two_measured_passes(tmp_path: Path) -> None:
    request = replace(POWERED, category="edge")
    rows = {row.name: row for row in plan(request, tmp_path)}
    assert {name for name, row in rows.items() if row.config.meter} == {
        "SingleStream-performance", "MultiStream-performance", "Offline-performance"
    }  # fmt: skip
    assert rows["SingleStream-performance"].expected_s == pytest.approx(2 * 605 + 40)
    assert rows["SingleStream-TEST01"].expected_s == pytest.approx(605)
    options = {"model": "digits", "slo": "p99=12ms", "meter": [METER]}
    found = search(replace(CLOSED, options=options), tmp_path)
    assert found is not None
    assert found.config.meter == ()


@pytest.mark.parametrize(
    ("power", "why"),
    [
        (None, "no power reading: ptdaemon: no sample for 4 s"),
        (
            {"note": "not an MLPerf Power result: power-dev's checker reported Check UUID"},
            "not an MLPerf",
        ),
    ],
)
def test_a_session_that_may_not_be_submitted_is_made_again(
    power: object, why: str, tmp_path: Path
) -> None:
    reason = "ptdaemon: no sample for 4 s" if power is None else None
    make_power_runs(SERVER_ALONE, tmp_path, power=power, power_reason=reason)
    row = server(SERVER_ALONE, tmp_path)
    assert (row.state, row.why.startswith(why)) == (FAILED, True)
    with pytest.raises(ConfigError, match=r"^Server-performance is failed: "):
        packed(SERVER_ALONE, tmp_path, tmp_path / "tree")
    rehearsal = server(replace(SERVER_ALONE, rehearsal=True), tmp_path)
    assert rehearsal.state == (FAILED if power is None else DONE)


def test_missing_files_of_a_session_are_reported(tmp_path: Path) -> None:
    make_power_runs(SERVER_ALONE, tmp_path)
    session = tmp_path / "runs/Server-performance/attempt-1/performance"
    for name in ("power/client.json", "ranging/spl.txt"):
        (session / name).unlink()
    assert [line.split()[1] for line in refusals(packed, SERVER_ALONE, tmp_path, tmp_path / "tree")] == [
        str(session / "power/client.json"), str(session / "ranging/spl.txt")
    ]  # fmt: skip


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"ptd_messages": []}'])
def test_a_broken_description_is_reported_in_one_line(content: str, tmp_path: Path) -> None:
    make_power_runs(SERVER_ALONE, tmp_path)
    path = tmp_path / "runs/Server-performance/attempt-1/performance/power/server.json"
    path.write_text(content)
    assert len(refusals(packed, SERVER_ALONE, tmp_path, tmp_path / "tree")) == 1


def test_facts_missing_in_a_session_are_requested(work: Path, tmp_path: Path) -> None:
    told = [line.split()[0] for line in refusals(packed, POWERED, work, tmp_path / "tree", ANSWERS)]
    assert told == ["power_analyzer", "power_settings"]


def test_checkout_is_checked_before_the_first_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*WORDS, "--work", "w", "--meter", "ptdaemon=power-dev,director=d,ntp=n"]
    assert main(["submit", "plan", *words]) == 0
    told = capsys.readouterr()
    assert "SingleStream-performance  missing  20:50" in told.out
    assert f"{tmp_path}/power-dev/ptd_client_server/client.py does not exist" in told.err
    # A request is valid in any working directory.
    assert main(["submit", "plan", *words]) == 0
    assert main(["submit", "run", "--work", "w"]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert not (tmp_path / "w/runs").exists()


def test_the_packed_tree_names_neither_user_nor_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: src/ contained each config.yaml unchanged, with home folders and the names of the director and the NTP
    server.
    """
    home = tmp_path / "home" / "marieuser"
    home.mkdir(parents=True)
    for name in ("hook.py", "mine.py"):
        (home / name).write_text(f"# {home}/notes of marieuser on secretive-host\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USER", "marieuser")
    monkeypatch.setattr("platform.node", lambda: "secretive-host")
    meter = f"ptdaemon={home}/power-dev,director=director.lab:4950,ntp=clock.lab"
    options = {"backend": f"{home}/mine.py:Mine", "hook": str(home / "hook.py"), "meter": [meter]}
    request = replace(
        POWERED,
        division="open",
        category="edge",
        scenarios=("Offline",),
        options={**CLOSED.options, **options},
    )
    machine = {**ENVIRONMENT["machine"], "host": host_id()}
    make_power_runs(request, home / "work", environment={**ENVIRONMENT, "machine": machine})
    answers = {**TOLD, "starting_weights_filename": "mine.bin"}
    found = packed(request, home / "work", tmp_path / "tree", answers)
    texts = {path: path.read_bytes() for path in found.tree.rglob("*") if path.is_file()}
    markers = ("marieuser", "secretive-host", "/home/", "director.lab", "clock.lab")
    assert [(p, m) for p, text in texts.items() for m in markers if m.encode() in text] == []
    source = found.tree / "open/LabOrg/src/resnet"
    assert "backend: mine.py:Mine\n" in (source / "Offline-performance.yaml").read_text()
    assert (source / "mine.py").read_text() == f"# ~/notes of USER on {host_id()}\n"
