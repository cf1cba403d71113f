"""config.yaml means the same in every folder, because its paths are absolute."""

import json
import os
import shlex
from pathlib import Path

import pytest
import yaml

from harness.cli.main import main
from harness.results.recheck import check
from harness.results.resolved import absolute_argument
from tests.builders.power_trees import files

METER = "while :; do cat watts; sleep 0.05; done"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a folder with files that a meter may need, and runs the command in it."""
    folder = tmp_path / "with space"
    files(folder / "tree", {"name": "x"})
    files(folder / "pdu", {"read": "#"})
    for name in ("meter.sh", "power"):
        (folder / name).touch()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(
    ("meter", "argument", "resolved"),
    [
        ("rapl", "", ""),
        ("rapl", "tree", "{here}/tree"),
        ("hwmon", "/sys/class/hwmon", "/sys/class/hwmon"),
        ("nvml", "0,1", "0,1"),
        ("estimate", "65", "65"),
        ("plugin.py:Meter", "tree", "tree"),
        ("command", "ipmitool dcmi power  reading", "ipmitool dcmi power  reading"),
        ("command", "sh meter.sh --rate 1.5", "sh '{here}/meter.sh' --rate 1.5"),
        ("command", "meter.sh tree", "meter.sh tree"),
        ("command", "./pdu/read 'a b'", "'{here}/pdu/read' 'a b'"),
        ("command", "sh -c 'cat power; sleep 1'", "sh -c 'cat power; sleep 1'"),
        ("command", "sh none.sh", "sh none.sh"),
    ],
)
def test_a_meters_files_are_named_from_everywhere(
    here: Path, meter: str, argument: str, resolved: str
) -> None:
    found = absolute_argument(meter, argument)
    assert found == resolved.format(here=here)
    os.chdir("/")
    assert absolute_argument(meter, found) == found


@pytest.mark.slow
def test_a_run_is_repeated_from_another_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "meter.sh").write_text(f"cd '{here}'\n{METER}\n")
    (here / "watts").write_text("12 W\n")
    (here / "mine.py").write_text("from harness.backends.null import NullBackend as Mine\n")
    given = "--scenario single-stream --backend mine.py:Mine --mode performance --duration 1s"
    words = [*given.split(), "--no-metrics", "--quiet", "--meter", "command=sh meter.sh"]
    assert main([*words, "--out", "first"]) == 0
    elsewhere = here.with_name("elsewhere")
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    config = here / "first/config.yaml"
    assert str(here / "meter.sh") in yaml.safe_load(config.read_text())["meter"][0]
    again = ["--config", str(config), "--quiet", "--no-metrics"]
    assert main([*again, "--out", "second"]) == 2
    refused = [line for line in capsys.readouterr().err.splitlines() if "--trust" in line]
    trust = [
        *("--trust", f"{here}/mine.py:Mine"),
        *("--trust", f"command=sh {shlex.quote(str(here / 'meter.sh'))}"),
    ]
    for line, word in zip(refused, trust[1::2], strict=True):
        assert f"add --trust {shlex.quote(word)} if" in line
    assert main([*again, *trust, "--out", "second"]) == 0
    (reading,) = json.loads(Path("second/result.json").read_text())["power"]["readings"]
    assert reading["mean_watts"] == pytest.approx(12)
    assert main(["rerun", "second", *trust, "--quiet"]) == 0
    assert Path("second-rerun/report.html").is_file()
    assert check(Path("second-rerun")) == []
    capsys.readouterr()
    (here / "meter.sh").unlink()
    assert main([*again, *trust, "--out", "third"]) == 2
    assert "--meter command=sh: the program ended" in capsys.readouterr().err
