"""The benchmarks for speech, images, videos, products and function calls: complete rehearsals with stand-in servers."""

import hashlib
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.cli.main import main
from tests.builders.submit import generated_data as made
from tests.stand_ins.servers import makers
from tests.stand_ins.servers.json_services import Service, serving_json

SCRIPTS = Path(__file__).parents[2] / "stand_ins/reference"
SCORERS = {"IMAGE_SCORER": "accuracy_coco.py", "VIDEO_SCORER": "run_evaluation.py"}
SIZES = {"simple_python": 24, "simple_java": 4, "parallel": 6, "live_multiple": 6, "irrelevance": 6}


def speech(folder: Path) -> Service:
    return makers.transcribes(made.speech(folder, 12))


def images(folder: Path) -> Service:
    made.coco(folder, 12)
    return makers.draws()


def videos(folder: Path) -> Service:
    folder.mkdir()
    made.prompts(folder / "vbench_prompts.txt", 248)
    return makers.films()


def products(folder: Path) -> Service:
    return makers.chats(made.products(folder, 40))


def functions(folder: Path) -> Service:
    folder.mkdir()
    return makers.chats(made.functions(folder, SIZES))


@dataclass(frozen=True)
class Rehearsal:
    """How one benchmark is rehearsed. score: a line of accuracy.txt."""

    category: str
    scenarios: Sequence[str]
    serve: Callable[[Path], Service]
    words: Sequence[str]
    score: str
    needs: str = ""
    script: str = ""
    """The program that scores the answers; empty if the harness scores them."""

    @property
    def scorer(self) -> str:
        """Returns what the result states about the scoring program."""
        content = (SCRIPTS / self.script).read_bytes() if self.script else b""
        return f"{self.script} {hashlib.sha256(content).hexdigest()}" if self.script else ""


HTTP = ("--backend", "http-json")
CHAT = ("--backend", "openai", "--backend-option", "stream=off")
REHEARSALS = {
    "whisper": Rehearsal(
        "edge",
        ["Offline"],
        speech,
        HTTP,
        "Word Error Rate: 0.0000%, accuracy=100.0000%",
        "whisper_normalizer",
    ),
    "stable-diffusion-xl": Rehearsal(
        "datacenter,edge",
        ["SingleStream", "Server", "Offline"],
        images,
        (*HTTP, "--target-qps", "20"),
        "'CLIP_SCORE': '31.75'",
        script="accuracy_coco.py",
    ),
    "wan-2.2-t2v-a14b": Rehearsal(
        "datacenter",
        ["SingleStream", "Offline"],
        videos,
        HTTP,
        "{'vbench_score': 70.5}",
        script="run_evaluation.py",
    ),
    "qwen3-vl-235b-a22b": Rehearsal(
        "datacenter",
        ["Server", "Offline"],
        products,
        (*CHAT, "--backend-option", "answer=text", "--target-qps", "20"),
        '{"f1": 0.9',
        "pyarrow",
    ),
    "qwen3.6-27b": Rehearsal(
        "edge",
        ["SingleStream"],
        functions,
        (*CHAT, "--backend-option", "answer=calls"),
        "{'Total': 9",
    ),
}


@pytest.mark.slow
@pytest.mark.limit_s(1500)
@pytest.mark.usefixtures("real_runs")
@pytest.mark.parametrize("benchmark", REHEARSALS)
def test_benchmark_is_rehearsed_from_plan_to_check(
    benchmark: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Makes real runs of one second each in every scenario, then packs and checks the runs."""
    for variable, script in SCORERS.items():
        monkeypatch.setenv(variable, shlex.join([sys.executable, str(SCRIPTS / script)]))
    rehearsal = REHEARSALS[benchmark]
    if rehearsal.needs:
        pytest.importorskip(rehearsal.needs)
    work = ["--work", str(tmp_path / "work")]
    # Each answer takes longer than the delays of a busy machine.
    service = makers.paced(rehearsal.serve(tmp_path / "data"), 0.15)
    with serving_json(service) as url:
        words = [
            *("--rehearsal", "--duration", "1s", "--division", "closed", "--submitter", "LabOrg"),
            *("--system", "box", "--category", rehearsal.category, "--benchmark", benchmark),
            *("--model", benchmark, "--url", url, "--data-dir", str(tmp_path / "data")),
            *rehearsal.words,
        ]
        assert main(["submit", "run", *work, *words]) == 0, capsys.readouterr()
    assert main(["submit", "pack", *work]) == 0, capsys.readouterr()
    tree = tmp_path / "work/tree"
    (results,) = tree.glob(f"closed/*/results/*/{benchmark}")
    assert {path.name for path in results.iterdir()} == {*rehearsal.scenarios}
    for scenario in results.iterdir():
        text = (scenario / "accuracy/accuracy.txt").read_text()
        assert rehearsal.score in text
        assert scorer_of(tmp_path / "work", scenario.name) == rehearsal.scorer
        videos_ = sorted(int(p.stem) for p in scenario.glob("accuracy/videos/*.mp4"))
        assert videos_ == (
            [12, 22, 32, 43, 59, 84, 106, 123, 130, 238] if serve_videos(rehearsal) else []
        )
    capsys.readouterr()
    assert main(["submit", "check", str(tree), "--rehearsal"]) == 0, capsys.readouterr()
    assert main(["submit", "check", str(tree)]) == 4


def scorer_of(work: Path, scenario: str) -> str:
    """Returns the name of the program that scored the run, from the result."""
    (result,) = work.glob(f"runs/{scenario}-accuracy/attempt-1/result.json")
    scorer: str = json.loads(result.read_text())["accuracy"].get("scorer", "")
    return scorer


def serve_videos(rehearsal: Rehearsal) -> bool:
    return rehearsal.serve is videos
