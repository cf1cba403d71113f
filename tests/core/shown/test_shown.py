"""Texts that leave the process: private names, control characters, and spreadsheet formulas."""

import csv
import io
import platform
from pathlib import Path

import pytest

from harness.core.shown import cells, private
from harness.core.shown.escapes import visible
from harness.machine.power.energy import POWER_CSV, PowerLog
from harness.machine.power.meters.command import CommandMeter
from harness.results.pages.tables import Column, Table, to_csv
from harness.run.study import write_csv
from harness.types import PowerSource

HOME = "/srv/people/marieuser"


@pytest.fixture
def marie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", HOME)
    monkeypatch.setenv("USER", "marieuser")
    monkeypatch.setattr(platform, "node", lambda: "box7.lab.example")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"{HOME}/x.py:Mine", "~/x.py:Mine"),
        (f"no such file: '{HOME}'.", "no such file: '~'."),
        (f"file://{HOME}/a b -I{HOME}/include", "file://~/a b -I~/include"),
        (f"{HOME}2/x and {HOME}.bak", None),
        ("/scratch/marieuser/x, /data/marieuser", "/scratch/USER/x, /data/USER"),
        ("marieuser@box7:/x", "USER@HOST:/x"),
        ("http://box7.lab.example:80/ and box7:9464", "http://HOST:80/ and HOST:9464"),
        # This text contains words that `publish` must replace.
        ("marieuser of box7 made marieuser.py", None),
    ],
)
def test_home_user_and_host_are_replaced_in_paths_and_addresses(
    text: str, shown: str | None, marie: None
) -> None:
    expected = text if shown is None else shown.replace("HOST", str(private.host_id()))
    assert private.hide(text) == expected
    assert private.hide(expected) == expected


def test_a_host_has_one_id_that_does_not_name_it(
    marie: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = str(private.host_id())
    assert own == private.host_id()
    assert "box7" not in own
    monkeypatch.setattr(platform, "node", lambda: "box8")
    assert private.host_id() != own


@pytest.mark.parametrize(
    ("meter", "shown"),
    [
        ("rapl", "rapl"),
        ("estimate=95", "estimate=95"),
        ("command=/opt/pdu/watts", "command=watts"),
        ("ptdaemon=/opt/power-dev,director=lab3,ntp=lab4", "ptdaemon=arguments-"),
        ("/opt/lamp.py:Lamp=secret", "lamp.py:Lamp=arguments-"),
        ("command=ipmitool -U admin -P hunter2", "command=ipmitool arguments-"),
        ("command=sh 'open", "command=arguments-"),
    ],
)
def test_a_meter_is_shown_without_its_arguments(meter: str, shown: str) -> None:
    found = private.meter(meter)
    assert found.startswith(shown)
    assert len(found) == len(shown) + (8 if shown.endswith("arguments-") else 0)
    assert private.meter(found) == found


def test_a_password_in_a_meter_command_is_never_shown() -> None:
    """Bug: the `domain` of the readings was the command line with the password."""
    with CommandMeter("sh -c 'echo 5 W; sleep 9' -P hunter2") as meter:
        (source,) = meter.sources()
    assert source.name == "command:sh"
    assert source.domain == private.meter("command=sh -c 'echo 5 W; sleep 9' -P hunter2")[8:]
    for argument in ("/no/such/program -P hunter2", "sh -P 'hunter2", "false -P hunter2"):
        with pytest.raises(Exception, match=r"^--meter command") as raised, CommandMeter(argument):
            pass
        assert "hunter2" not in str(raised.value)


FORMULAS = ["=HYPERLINK(A1)", "+1+cmd|' /C'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1"]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_of_a_table_is_a_formula(text: str, tmp_path: Path) -> None:
    """Bug: if a model's node was named `=cmd|...`, the name became a formula in tables/*.csv."""
    columns = (Column("layer"), Column("latency", "ns"))
    tables = [to_csv(Table("t", "T", "", columns, [(text, -1.5), (None, 3)]))]
    write_csv(tmp_path / "t.csv", ("layer", "latency_ns"), [(text, -1.5), ((text, "b"), 3)])
    tables.append((tmp_path / "t.csv").read_text())
    for table in tables:
        rows = list(csv.reader(io.StringIO(table)))
        assert rows[1][0].startswith("'")
        assert rows[1][1] == "-1.5"  # a negative number is not a formula
        assert not any(cell[:1] in "=+@\t\r" for row in rows for cell in row if cell)


def test_a_cell_is_one_line_of_text_without_private_names(marie: None) -> None:
    assert cells.cell(f"\x1b[31m{HOME}/x") == r"\x1b[31m~/x"
    assert [cells.cell(value) for value in (-1, 2.5, None, True)] == [-1, 2.5, None, True]


def test_readings_of_an_oddly_named_source_survive_a_round_trip(
    marie: None, tmp_path: Path
) -> None:
    source = PowerSource("=pdu\x1b", "rack", "W")
    log = PowerLog((source,), {source.name: [(1, 2.0), (2, 3.0)]})
    log.write(tmp_path / POWER_CSV)
    again = PowerLog.from_json(log.to_json())
    again.read(tmp_path / POWER_CSV)
    assert again.series == log.series


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("\x9b31m\x85\x7f", r"\x9b31m\x85\x7f"),
        ("VALID\rINVALID\b", r"VALID\rINVALID\x08"),
        ("\u202egnp.x \u2028 \udc80", r"\u202egnp.x \u2028 \udc80"),
        ("a\tb\nä ≤ … 日本", "a\tb\nä ≤ … 日本"),
    ],
)
def test_control_characters_are_shown_as_text(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["run", "--meter=rapl"], ["run", "--meter=rapl"]),
        (["run", "--meter", "command=a"], ["run", "--meter", "command=a"]),
        (["run", "--queries", "5"], ["run", "--queries", "5"]),
    ],
)
def test_arguments_without_secrets_are_shown(words: list[str], shown: list[str]) -> None:
    assert private.arguments(words) == shown


@pytest.mark.parametrize(
    "words", [["--meter", "command=a -P hunter2"], ["--meter=command=a -P hunter2"]]
)
def test_arguments_of_a_meters_program_are_hidden(words: list[str]) -> None:
    assert "hunter2" not in " ".join(private.arguments(words))
