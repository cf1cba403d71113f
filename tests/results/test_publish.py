"""Neither files for other readers nor a published copy contain a text that identifies the user or the machine."""

import json
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from harness.cli.main import main
from harness.core.shown import private
from harness.models.manifest.model import MODELS_DIR
from harness.results.publish.copy import PUBLISHED
from harness.results.publish.replacements import Replacements
from harness.results.recheck import check, notes
from harness.results.seal import digests
from harness.submit.plan.finished_run import FinishedRun
from tests.builders.edited import edit
from tests.builders.refusals import Said

USER, HOST, PASSWORD, FOLDER = "marieuser", "secretive-host", "hunter2pass", "confidential"
"""Identifying texts ("markers"): FOLDER lies in the home folder and contains data, plug-ins, the model and the meter.
"""

PLUGINS = """
import dataclasses
import sys
from harness.backends.ort import OrtBackend
from harness.datasets.digits import DigitsDataset

class Mine(OrtBackend):
    def __enter__(self):
        print("Traceback in", __file__, file=sys.stderr)
        return super().__enter__()

    def describe(self):
        return {**super().describe(), "library": __file__, "server": "http://HOST:80/USER"}

class Digits(DigitsDataset):
    def __init__(self, setup):
        super().__init__(dataclasses.replace(setup, data_dir=None))
        self.source = setup.data_dir

    def describe(self):
        return {**super().describe(), "source": str(self.source), "scratch": "/scratch/USER/x"}
""".replace("USER", USER).replace("HOST", HOST)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Makes a real run that contains every marker."""
    top = tmp_path_factory.mktemp("publish")
    home = top / "home" / USER
    folder = home / FOLDER
    (folder / "images").mkdir(parents=True)
    (folder / "own.py").write_text(PLUGINS)
    (folder / "watts.sh").write_text("while :; do echo 12 W; sleep 0.1; done\n")
    for path in MODELS_DIR.glob("digits.*"):
        shutil.copy(path, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(platform, "node", lambda: HOST)
        patch.chdir(folder)
        for name, value in {
            "HOME": home,
            "USER": USER,
            "LD_PRELOAD": f"{folder}/faster.so",
        }.items():
            patch.setenv(name, str(value))
        words = [
            *("--scenario", "single-stream", "--queries", "2000", "--quiet"),
            *("--model", "digits.yaml"),
        ]
        words += ["--backend", "own.py:Mine", "--dataset", "own.py:Digits", "--data-dir", "images"]
        words += ["--meter", f"command=sh watts.sh -U {USER} -P {PASSWORD}"]
        assert main([*words, "--out", str(home / "results" / "run")]) in (0, 4)
        yield home / "results" / "run"


def texts_of(path: Path) -> Iterator[tuple[Path, bytes]]:
    """Yields every file below `path`, including the arrays of a NumPy archive."""
    for file in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()):
        yield file, file.read_bytes() + str(file.relative_to(path.parent)).encode()
        if file.suffix == ".npz":
            with np.load(file) as arrays:
                yield file, b"".join(arrays[name].tobytes() for name in arrays.files)


def markers_in(path: Path) -> list[str]:
    markers = (USER, HOST, PASSWORD, "/home/")
    return [f"{file}: {m}" for file, text in texts_of(path) for m in markers if m.encode() in text]


def test_results_pages_and_tables_hold_no_marker(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: result.json and report.html contained the meter's password, and all files contained the home folder, user
    and host.
    """
    for name in ("result.json", "environment.json", "host.csv", "power.csv", "metrics.prom"):
        assert markers_in(run / name) == []
    assert markers_in(run / "report.html") == []
    content = json.loads((run / "result.json").read_text())
    (reading,) = content["power"]["readings"]
    assert reading["source"] == "command:sh"
    assert reading["domain"].startswith("sh arguments-")
    assert content["environment"]["machine"]["host"] == private.host_id()
    assert content["environment"]["variables"]["LD_PRELOAD"] == "faster.so"
    assert content["dataset_description"]["source"] == f"~/{FOLDER}/images"
    # The configuration keeps the password, because a repetition of the run needs it.
    assert PASSWORD in (run / "config.yaml").read_text()
    assert markers_in(run.parent / "runs.sqlite") == []
    results = ["--results", str(run.parent)]
    capsys.readouterr()
    assert main(["runs", *results, "--host", HOST, "--format", "csv"]) == 0
    # The row contains the host's substitute in the column `host`, and in an address among the settings.
    assert capsys.readouterr().out.count(str(private.host_id())) == 2
    page = run.parent.parent / "history.html"
    assert main(["runs", *results, "--history", str(page)]) == 0
    assert markers_in(page) == []


def test_an_untouched_run_agrees_with_its_files(run: Path) -> None:
    assert check(run) == []


@pytest.fixture(scope="module")
def copy(run: Path) -> Path:
    out = run.parent / "shown"
    np.savez_compressed(run / "notes.npz", author=np.array([USER]))
    (run / "link").symlink_to(run.parent)
    digests.write(run)
    assert main(["publish", str(run), str(out)]) == 0
    return out


def test_a_published_copy_holds_no_marker(copy: Path) -> None:
    assert markers_in(copy) == []
    for name in ("config.yaml", "findings.json", "result.json", "report.html", "model/digits.yaml"):
        assert FOLDER not in (copy / name).read_text()


def test_list_of_replacements_does_not_show_the_replaced_text(
    run: Path, copy: Path, prints: Said
) -> None:
    shown, list_ = prints("publish", run, copy.with_name("again")), (copy / PUBLISHED).read_text()
    assert shown.startswith(list_)
    for kind in ("arguments of a meter", "home folder", "path of backend", "path of data_dir"):
        assert kind in list_
    assert "config.yaml" in list_
    assert "left out: notes.npz: a binary file with private texts in it\n" in list_
    assert "left out: link: a link or a device\n" in list_
    assert not (copy / "notes.npz").exists()


def test_check_accepts_a_published_copy_on_another_machine(
    run: Path,
    copy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir("/")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(platform, "node", lambda: "elsewhere")
    there = tmp_path / "copy"
    shutil.copytree(copy, there)
    hidden = run.parent.parent / FOLDER
    hidden.rename(hidden.with_name("gone"))
    try:
        assert main(["check", str(there)]) == 0
    finally:
        hidden.with_name("gone").rename(hidden)
    assert "is a published copy" in capsys.readouterr().err
    edit(there / "result.json", lambda said: said["latency_ns"].update(p99=1))
    assert main(["check", str(there)]) == 4


@pytest.mark.parametrize("words", [["rerun"], ["--config"], ["peak", "--config"]])
def test_a_copy_runs_no_file_that_lies_in_the_working_directory(
    words: list[str],
    run: Path,
    copy: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Bug: the bare names in a copy referred to files in the working directory."""
    monkeypatch.chdir(run.parent.parent / FOLDER)
    capsys.readouterr()
    assert main([*words, str(copy), "--trust", "own.py:Mine", "--trust", "own.py:Digits"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"harness: {copy} is a published copy, whose paths were cut")
    assert line.endswith(f"your own --data-dir, --model, --backend, --dataset with --config {copy}")


def test_a_copy_runs_with_files_of_the_command_line(
    run: Path, copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run.parent.parent / FOLDER)
    words = ["--config", str(copy), "--data-dir", "images", "--model", "digits.yaml"]
    words += ["--backend", "own.py:Mine", "--dataset", "own.py:Digits", "--meter", "estimate=1"]
    capsys.readouterr()
    assert main([*words, "--scenario", "nosuch"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "nosuch" in line


def test_copy_without_a_score_does_not_mention_it(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: for a run without a score, `check` reported that it used the stored score."""
    assert list(notes(copy))
    there = Path(shutil.copytree(copy, tmp_path / "copy"))
    none = {"value": None, "reason": "performance run only"}
    edit(there / "result.json", lambda said: said.update(accuracy=none))
    assert list(notes(there)) == []


def test_a_page_of_a_copy_needs_no_other_file(copy: Path) -> None:
    text = (copy / "report.html").read_text(encoding="utf-8")
    assert "<script src" not in text
    assert "Plotly" in text


def test_an_existing_folder_is_refused(run: Path, copy: Path, refuses: Said) -> None:
    assert "already exists and will not be overwritten: pass a different OUT" in refuses(
        "publish", run, copy
    )
    assert main(["publish", str(run), str(run / "inside")]) == 2
    assert main(["publish", str(run.parent.parent / FOLDER), str(run.parent / "x")]) == 2
    assert not (run.parent / "x").exists()
    assert not (run.parent / "x.partial").exists()


def test_a_name_that_is_a_word_of_results_is_replaced_in_paths_only(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user name such as `server`, or one equal to a key in LoadGen's log, must not change a result."""
    for name in ("server", "generated", "ort"):
        monkeypatch.setenv("USER", name)
        text = f'{{"scenario": "{name}", "key": "x_{name}_y", "path": "/data/{name}/x"}}'
        content, counts = Replacements([run]).file(text.encode(), "a.json")
        assert content.decode() == text.replace(f"/data/{name}", "/data/USER")
        assert sum(counts.values()) == 1


def test_texts_of_a_run_from_elsewhere_are_replaced() -> None:
    text = 'Traceback: File "/home/other.one/x.py", /Users/Other/y, /homes/z, /root.bak'
    content, _ = Replacements([]).file(text.encode(), "a.log")
    assert content.decode() == 'Traceback: File "~/x.py", ~/y, /homes/z, /root.bak'


def test_long_texts_that_yaml_folds_are_replaced(run: Path) -> None:
    """Bug: a command line was replaced only if it was on a single line."""
    words = " ".join(f"-P {PASSWORD}{i}" for i in range(40))
    folder = run.parent / "folded"
    folder.mkdir()
    config = {"scenario": "server", "backend": "ort", "meter": [f"command=sh -c '{words}'"]}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert max(map(len, (folder / "config.yaml").read_text().splitlines())) < 100
    content, _ = Replacements([folder]).file((folder / "config.yaml").read_bytes(), "config.yaml")
    assert PASSWORD.encode() not in content
    assert yaml.safe_load(content)["meter"][0].startswith("command=sh arguments-")


@pytest.mark.slow
def test_a_study_is_published_with_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home" / USER
    home.mkdir(parents=True)
    (home / "own.py").write_text(PLUGINS)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USER", USER)
    words = ["sweep", "--scenario", "server", "--backend", f"{home}/own.py:Mine", "--slo", "p99=5s"]
    words += ["--rate", "50,100", "--duration", "1s", "--quiet", "--out", str(home / "sweep")]
    assert main(words) in (0, 4)
    assert main(["publish", str(home / "sweep"), str(tmp_path / "shown")]) == 0
    assert [m for m in markers_in(tmp_path / "shown") if HOST not in m] == []
    runs = [path.parent for path in (tmp_path / "shown").rglob("findings.json")]
    assert len(runs) == 2
    assert [check(one) for one in runs] == [[], []]


def test_a_published_copy_is_not_packed(run: Path, copy: Path) -> None:
    """In a published copy, `check` uses the stored score because the data are missing."""
    assert FinishedRun("single-stream", "performance", run).differences() == []
    (problem,) = FinishedRun("single-stream", "performance", copy).differences()
    assert problem.startswith(f"{copy} is a published copy")


def test_short_names_and_arguments_bend_no_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers that look like a name are kept, in text and in arrays; a name at the end of a path is removed."""
    monkeypatch.setenv("USER", "eva")
    config = {"scenario": "server", "backend": "ort", "meter": ["lamp.py:Lamp=100"]}
    settings = yaml.safe_dump({**config, "data_dir": "/scratch/eva"})
    (tmp_path / "config.yaml").write_text(settings)
    replacements = Replacements([tmp_path])
    text = b"p99: 100 ns of /scratch/eva/x by eva, evaluated"
    content, _ = replacements.file(text, "a.log")
    assert content == b"p99: 100 ns of USER/x by USER, evaluated"
    assert b"eva" not in replacements.file(b"# by eva\nmodel: digits\n", "a.yaml")[0]
    number = int.from_bytes(b"eva\0\0\0\0\0", "little")
    for name, array, is_private in (("n", [number], False), ("t", ["by eva"], True)):
        np.savez(tmp_path / name, x=np.array(array))
        assert replacements.stand_in((tmp_path / f"{name}.npz").read_bytes()) == is_private
    assert replacements.stand_in(b"\0\1 model of eva \0")
