"""No verb runs code that is named in a folder, unless the user names it, too."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from harness.cli.main import main
from harness.core.config.code import named, untrusted, values_of
from harness.core.config.run_config import from_plain
from tests.builders.refusals import refused
from tests.faults.command import run_here

EVIL = """
from pathlib import Path
Path({marker!r}).touch()
class Evil: ...
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("results") / "run"
    words = ["--scenario", "server", "--target-qps", "500", "--queries", "300", "--slo", "p90=5s"]
    assert main([*words, "--quiet", "--no-metrics", "--out", str(out)]) == 0
    return out


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """Returns the path of a file that exists only if the folder's code has run."""
    return tmp_path / "ran"


@pytest.fixture
def evil(tmp_path: Path, marker: Path) -> Path:
    path = tmp_path / "evil.py"
    path.write_text(EVIL.format(marker=str(marker)))
    return path


@pytest.fixture
def run(finished: Path, tmp_path: Path, evil: Path, marker: Path) -> Path:
    """Returns a finished run whose files name code in every possible place."""
    run = tmp_path / "results" / "run"
    shutil.copytree(finished, run)
    shutil.copyfile(finished.parent / "runs.sqlite", run.parent / "runs.sqlite")
    config = yaml.safe_load((run / "config.yaml").read_text())
    names = dict.fromkeys(("backend", "dataset", "metric"), f"{evil}:Evil")
    code = {**names, "hook": str(evil), "meter": [f"command=touch {marker}", f"{evil}:Evil=x"]}
    config |= code
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    for name, keys in (("findings.json", ("asked",)), ("result.json", ())):
        content = json.loads((run / name).read_text())
        place = content[keys[0]] if keys else content
        place |= {k: v for k, v in code.items() if k in place or keys}
        content["dataset"] = names["dataset"]
        (run / name).write_text(json.dumps(content))
    return run


READING = [
    ("check", "RUN"),
    ("compare", "RUN", "RUN"),
    ("report", "RUN"),
    ("runs", "--results", "RESULTS"),
    ("runs", "--results", "RESULTS", "--history", "RESULTS/history.html"),
    ("submit", "check", "RESULTS"),
    ("sweep", "--from", "RUN"),
    ("profile", "--from", "RUN"),
    ("advise", "--from", "RUN"),
    ("bricks", "--from", "RUN"),
]
RUNNING = [
    ("--config", "RUN"),
    ("rerun", "RUN"),
    ("peak", "--config", "RUN"),
    ("sweep", "--config", "RUN"),
    ("sweep", "--config", "RUN", "--batch", "1,2"),
    ("tune", "--config", "RUN"),
    ("profile", "--config", "RUN"),
]


def words(row: tuple[str, ...], run: Path) -> list[str]:
    return [w.replace("RUN", str(run)).replace("RESULTS", str(run.parent)) for w in row]


@pytest.mark.parametrize("row", READING, ids=" ".join)
def test_a_verb_that_only_reads_executes_no_code(
    row: tuple[str, ...], run: Path, marker: Path
) -> None:
    assert main(words(row, run)) in (0, 2, 4)
    assert not marker.exists()


@pytest.mark.parametrize("verb", ["check", "compare", "report"])
def test_a_scenario_named_in_run_json_is_not_imported(
    verb: str, finished: Path, evil: Path, marker: Path, tmp_path: Path
) -> None:
    """Bug: `check` imported a file that a folder's load plan named as its scenario."""
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    for part in ("performance/run_1", "accuracy"):
        path = run / part / "run.json"
        content = json.loads(path.read_text())
        content["plan"]["scenario"] = f"{evil}:Evil"
        path.write_text(json.dumps(content))
    status = main([verb, str(run), *([str(finished)] if verb == "compare" else [])])
    assert status == 2 or verb != "check"
    assert not marker.exists()


@pytest.mark.parametrize("row", RUNNING, ids=" ".join)
def test_a_verb_that_executes_code_names_it_first(
    row: tuple[str, ...], run: Path, marker: Path, evil: Path
) -> None:
    """Bug: `rerun` and `--config` started programs that were named in a folder."""
    said = "\n".join(refused(*words(row, run)))
    assert re.findall(r"names code, the (\w+) .*: read it, and add --trust (.+) if", said) == [
        ("backend", f"{evil}:Evil"),
        ("dataset", f"{evil}:Evil"),
        ("metric", f"{evil}:Evil"),
        ("hook", str(evil)),
        ("meter", f"'command=touch {marker}'"),
        ("meter", f"{evil}:Evil=x"),
    ]
    assert not marker.exists()


def test_code_that_the_user_names_is_executed(run: Path, marker: Path, evil: Path) -> None:
    """The user names each file on the command line, as the value of its option or after --trust."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    del config["hook"]  # the hook is removed, so that the model's manifest names no code
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    given = ["--dataset", "digits", "--metric", "top1", "--meter", "estimate=1"]
    words = ["--config", str(run), *given, "--trust", f"{evil}:Evil", "--out", str(run / "again")]
    ended = run_here(*words)
    assert ended.status == 3, "the class is no backend"
    assert f"running code that --config {run} names: the backend {evil}:Evil" in ended.said
    assert marker.exists()


@pytest.mark.slow
def test_the_config_of_a_run_has_the_digest_of_its_plug_ins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: a plug-in could change between a run and its `rerun` without notice."""
    mine = tmp_path / "mine.py"
    mine.write_text("from harness.backends.null import NullBackend as Mine\n")
    monkeypatch.chdir(tmp_path)
    options = ["--scenario", "single-stream", "--queries", "200", "--mode", "performance"]
    options += ["--quiet", "--no-metrics", "--no-report", "--backend", "mine.py:Mine"]
    assert main([*options, "--out", "first"]) == 0
    (kept,) = from_plain(yaml.safe_load(Path("first/config.yaml").read_text())).plugin_sha256
    assert (kept[0], len(kept[1])) == (str(mine), 64)
    again = ["rerun", "first", "--trust", f"{mine}:Mine", "--out"]
    capsys.readouterr()
    assert main([*again, "second"]) == 0
    says = f"harness: running code that first names: the backend {mine}:Mine"
    assert says in capsys.readouterr().err.splitlines()
    mine.write_text(mine.read_text() + "# changed\n")
    assert main([*again, "third"]) == 0
    assert f"{says}, which has changed since that run" in capsys.readouterr().err.splitlines()
    # `check` accepts a changed plug-in, because the plug-in is not part of the run's folder.
    assert main(["check", "first"]) == 0
    (line,) = refused("rerun", "first", "--trust", "mine.py:Theirs")
    assert f"the backend {mine}:Mine: read it" in line


def test_trust_applies_to_a_file_however_its_path_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: `--trust mine.py:Mine` did not match the absolute path in config.yaml."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.py").symlink_to("mine.py")
    values = {"backend": f"{tmp_path}/mine.py:Mine", "hook": tmp_path / "hook.py"}
    assert untrusted("x", values, ["./mine.py:Mine", "../" + tmp_path.name + "/hook.py"]) == []
    assert untrusted("x", values, ["link.py:Mine", "hook.py"]) == []
    assert len(untrusted("x", values, ["other/mine.py:Mine", "mine.py:Other"])) == 2
    (line,) = untrusted("x", {"dataset": "mine.py:Data"}, ["mine.py:Mine"])
    assert line == (
        f"x names code, the dataset {tmp_path}/mine.py:Data: read it, and add "
        f"--trust {tmp_path}/mine.py:Data if it may run here"
    )
    meters = {"meter": [("command", "sh a.py"), ("mine.py:Lamp", "4")]}
    assert untrusted("x", meters, ["command=sh a.py", f"{tmp_path}/mine.py:Lamp=4"]) == []


def test_installed_plug_ins_and_built_in_meters_need_no_trust() -> None:
    plain = {"scenario": "server", "backend": "ort", "meter": ["rapl", "estimate=4"]}
    assert list(named(values_of(from_plain(plain)))) == []


def test_a_submission_request_that_names_code_is_refused(
    tmp_path: Path, evil: Path, marker: Path
) -> None:
    """`submit run --work` runs the code that the request names, although the folder may come from someone else."""
    work = tmp_path / "work"
    options = "--division open --submitter me --system s --category edge --benchmark resnet"
    options += " --scenarios Offline --model digits --dataset digits --rehearsal --duration 1s"
    first = ["submit", "plan", "--work", str(work), *options.split(), "--backend", f"{evil}:Evil"]
    assert main(first) == 0
    for verb in ("run", "pack"):
        (line,) = refused("submit", verb, "--work", work)
        assert f"request.yaml names code, the backend {evil}:Evil: read it" in line
    assert not marker.exists()
