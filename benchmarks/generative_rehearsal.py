"""Makes a full-length closed rehearsal of a benchmark with speech, images, videos, products or function calls.

    python benchmarks/generative_rehearsal.py BENCHMARK WORK [--official CHECKOUT] [--side-by-side] [--engine ENGINE]

BENCHMARK: whisper, stable-diffusion-xl, wan-2.2-t2v-a14b, qwen3-vl-235b-a22b or qwen3.6-27b. The data have the
benchmark's formats and its number of samples. A stand-in server sleeps and then gives the right answers. Each run takes
600 s or more under the official rules. A benchmark needs between two runs (qwen3.6-27b) and twelve
(stable-diffusion-xl). With --side-by-side, the benchmark's scenarios run at the same time. With --engine ort-whisper or
openvino-whisper, a Whisper model with random weights transcribes in the measured process instead, and its answers count
as correct. The script returns the exit status of `check`.

The numbers do not describe any model: the script tests the steps from runs to a submission.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.rehearsal import pack_and_check, run_lots, submit  # noqa: E402
from tests.builders.submit import generated_data as made  # noqa: E402
from tests.stand_ins.servers import makers  # noqa: E402
from tests.stand_ins.servers.json_services import Service, serving_json  # noqa: E402

PORT = 18930
"""The port of the first benchmark's server. The port is fixed, because a resumed submission request must contain the same address.
"""

SCRIPTS = ROOT / "tests/stand_ins/reference"
BFCL = {
    "simple_python": 400, "simple_java": 100, "simple_javascript": 50, "multiple": 200,
    "parallel": 200, "parallel_multiple": 200, "live_simple": 258, "live_multiple": 1053,
    "live_parallel": 16, "live_parallel_multiple": 24, "irrelevance": 240, "live_irrelevance": 884,
}  # fmt: skip
"""Maps each subset of BFCL v4 to its number of samples; MLPerf uses 995 of all samples."""


def speech(folder: Path) -> Service:
    return makers.transcribes(made.speech(folder, 1633))


def images(folder: Path) -> Service:
    made.coco(folder, 5000)
    return makers.draws()


def videos(folder: Path) -> Service:
    folder.mkdir(parents=True)
    made.prompts(folder / "vbench_prompts.txt", 248)
    return makers.films()


def products(folder: Path) -> Service:
    return makers.chats(made.products(folder, 48_289, rows_per_group=1000))


def functions(folder: Path) -> Service:
    folder.mkdir(parents=True)
    return makers.chats(made.functions(folder, BFCL))


@dataclass(frozen=True)
class Kind:
    category: str
    serve: Callable[[Path], Service]
    words: tuple[str, ...]
    service_s: float
    """Time to compute an answer. The server uses one thread per connection."""
    conf: str
    """Content of user.conf."""

    @property
    def scenarios(self) -> list[str]:
        return sorted(set(re.findall(r"^\*\.(\w+)", self.conf, re.MULTILINE)))


HTTP = ("--backend=http-json",)
CHAT = ("--backend=openai", "--backend-option=stream=off")
KINDS = {
    "whisper": Kind("edge", speech, HTTP, 4.0, "*.Offline.target_qps = 16\n"),
    "stable-diffusion-xl": Kind(
        "datacenter,edge",
        images,
        (*HTTP, "--connections=5"),
        0.2,
        "*.SingleStream.target_latency = 200\n*.Server.target_qps = 8\n*.Offline.target_qps = 25\n",
    ),
    "wan-2.2-t2v-a14b": Kind(
        "datacenter",
        videos,
        HTTP,
        8.0,
        "*.SingleStream.target_latency = 8000\n*.Offline.target_qps = 8\n",
    ),
    "qwen3-vl-235b-a22b": Kind(
        "datacenter",
        products,
        (*CHAT, "--backend-option=answer=text"),
        0.3,
        "*.Server.target_qps = 80\n*.Offline.target_qps = 200\n",
    ),
    "qwen3.6-27b": Kind(
        "edge",
        functions,
        (*CHAT, "--backend-option=answer=calls"),
        0.5,
        "*.SingleStream.target_latency = 500\n",
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("benchmark", choices=KINDS)
    parser.add_argument("work", type=Path)
    parser.add_argument("--official", type=Path)
    parser.add_argument("--side-by-side", action="store_true")
    parser.add_argument("--engine", choices=("ort-whisper", "openvino-whisper"))
    options = parser.parse_args()
    work, kind = options.work.absolute(), KINDS[options.benchmark]
    work.mkdir(parents=True, exist_ok=True)
    (work / "user.conf").write_text(kind.conf)
    for variable, name in (
        ("IMAGE_SCORER", "accuracy_coco.py"),
        ("VIDEO_SCORER", "run_evaluation.py"),
    ):
        os.environ[variable] = shlex.join([sys.executable, str(SCRIPTS / name)])
    data = work / "data"
    # The old data are removed, because each call makes the same data.
    subprocess.run(["rm", "-rf", str(data)], check=True)
    if options.engine:
        return _in_process(work, data, options.engine, options.official)
    service = makers.paced(kind.serve(data), kind.service_s)
    with serving_json(service, PORT + list(KINDS).index(options.benchmark)) as url:
        submit(
            "plan",
            f"--work={work}",
            *("--rehearsal", "--division=closed", "--submitter=LabOrg", "--system=asleep"),
            *(f"--category={kind.category}", f"--benchmark={options.benchmark}"),
            *(f"--model={options.benchmark}", f"--data-dir={data}", f"--url={url}"),
            *(f"--user-conf={work / 'user.conf'}", "--hang-timeout=30min", *kind.words),
        )
        status = run_lots(work, kind.scenarios if options.side_by_side else ())
    return status or pack_and_check(work, options.official)


def _in_process(work: Path, data: Path, engine: str, official: Path | None) -> int:
    """Rehearses whisper on a speech engine."""
    from tests.submit.round import test_whisper_in_process as tiny

    (work / "model").mkdir(exist_ok=True)
    model = tiny.manifest(work / "model", engine)
    tiny.data(data, engine, model, clips=1633)
    status = submit(
        "run",
        f"--work={work}",
        *("--rehearsal", "--division=closed", "--submitter=LabOrg", "--system=tiny"),
        *("--category=datacenter,edge", "--benchmark=whisper", f"--model={model}"),
        *(f"--backend={engine}", f"--data-dir={data}", "--hang-timeout=30min"),
    )
    return status or pack_and_check(work, official)


if __name__ == "__main__":
    sys.exit(main())
