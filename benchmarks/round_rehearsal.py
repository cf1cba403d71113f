"""Rehearses MLPerf benchmarks with boxes, questions, volumes, graphs, recommendation and retrieval at full length.

    python benchmarks/round_rehearsal.py WORK --only BENCHMARK,... [--official CHECKOUT] [--side-by-side]

BENCHMARK: yolo-95, yolo-99, bert-99, bert-99.9, 3d-unet-99, 3d-unet-99.9, rgat, dlrm-v3, e2e-rag-qna or e2e-rag-db. For
each benchmark, the script creates data in the format and number of the real download, and a model or a server whose
right answers are known. The runs follow the official rules. `pack` and `check` follow, with both official checkers if a
checkout is given. A run takes ten minutes, because the models sleep; a retrieval run takes one minute. With
--side-by-side, the scenarios of a benchmark run at the same time. The exit status is the number of benchmarks that
fail.

The numbers do not describe any model: the script tests the steps from runs to a submission.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.rehearsal import pack_and_check, run_lots, submit  # noqa: E402
from harness.backends.ort import OrtBackend  # noqa: E402
from harness.types import BackendSetup, Batch, Outputs  # noqa: E402

_HERE = Path(__file__).resolve()
_TRUST = f"--trust={_HERE}:Slowed"
QUESTIONS, PAGES = 824, 2515
SERVER_PORT = 18923


@dataclass(frozen=True)
class Kind:
    """A benchmark with a model file. The settings hold even on a slow machine, because the model sleeps."""

    count: int
    per_s: float
    """Samples per second that the model answers."""
    conf: str
    """Content of user.conf."""
    category: str = "datacenter"
    max_batch: int = 32
    least: int = 2
    """The model sleeps only after batches of at least this size."""

    @property
    def scenarios(self) -> list[str]:
        return re.findall(r"^\*\.(\w+)", self.conf, re.MULTILINE)


_STREAMS = "*.SingleStream.target_latency = 50\n*.Offline.target_qps = 20\n"
_YOLO = Kind(1525, 20, f"{_STREAMS}*.MultiStream.target_latency = 400\n", "edge", 8, 1)
_BERT = Kind(10_833, 20, _STREAMS, "edge", 8, 1)
_VOLUMES = Kind(
    43, 2, "*.SingleStream.target_latency = 500\n*.Offline.target_qps = 2\n", "edge", 1, 1
)
KINDS = {
    "yolo-95": _YOLO,
    "yolo-99": _YOLO,
    "bert-99": _BERT,
    "bert-99.9": _BERT,
    "3d-unet-99": _VOLUMES,
    "3d-unet-99.9": _VOLUMES,
    "rgat": Kind(788_379, 1240, "*.Offline.target_qps = 1230\n"),
    "dlrm-v3": Kind(349_823, 2000, "*.Server.target_qps = 470\n*.Offline.target_qps = 1950\n"),
}


class Slowed(OrtBackend):
    """ONNX Runtime that answers `per_s` samples per second, in batches of at least `least` samples (default 2)."""

    def __init__(self, setup: BackendSetup) -> None:
        options = dict(setup.options)
        self._each_s = 1 / float(options.pop("per_s"))
        self._least = int(options.pop("least", "2"))
        super().__init__(replace(setup, options=options))

    def infer(self, batch: Batch) -> Outputs:
        begun_s = time.perf_counter()
        outputs = super().infer(batch)
        if batch.size >= self._least:
            time.sleep(max(0.0, batch.size * self._each_s - (time.perf_counter() - begun_s)))
        return outputs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--official", type=Path)
    parser.add_argument("--only", required=True, type=_names)
    parser.add_argument("--side-by-side", action="store_true")
    options = parser.parse_args()
    work = options.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in options.only:
        official = options.official.absolute() if options.official else None
        status = rehearse(name, work / name, official, together=options.side_by_side)
        print(f"{name}: {'passed' if status == 0 else f'exit status {status}'}", flush=True)
        failed += status != 0
    return failed


def _names(text: str) -> list[str]:
    """Splits the text into benchmark names. Raises ArgumentTypeError if a benchmark is unknown."""
    names = text.split(",")
    known = [*KINDS, *SERVED]
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(known)}")
    return names


def rehearse(name: str, work: Path, official: Path | None, *, together: bool) -> int:
    """Rehearses one benchmark. Returns the exit status of `check`, or the exit status of the runs if the runs failed."""
    work.mkdir(parents=True, exist_ok=True)
    kind = KINDS.get(name)
    words = _own_model(name, kind, work) if kind else SERVED[name](work)
    with nullcontext("") if kind else _serving() as url:
        request = [
            *("--rehearsal", "--division=closed", "--submitter=LabOrg", "--system=stand-in"),
            *(f"--benchmark={name}", "--hang-timeout=30min", *words),
        ]
        judge = official / "e2e-rag/accuracy_eval.py" if official else _judge(work)
        os.environ["RAG_JUDGE"] = shlex.join(
            [sys.executable, str(judge), "--judge_service_url", f"{url}/v1/chat/completions"]
        )
        submit("plan", f"--work={work}", *request)
        lots = kind.scenarios if kind and together and len(kind.scenarios) > 1 else ()
        status = run_lots(work, lots, _TRUST)
    return status or pack_and_check(work, official, _TRUST)


def _own_model(name: str, kind: Kind, work: Path) -> list[str]:
    """Writes the model and the data, and returns the command-line words of the request."""
    (work / "given.conf").write_text(kind.conf)
    model, data = {"rgat": _rgat, "dlrm-v3": _dlrm}.get(name, _classic)(name, kind.count, work)
    return [
        *(f"--category={kind.category}", f"--user-conf={work / 'given.conf'}"),
        *(f"--model={model}", f"--data-dir={data}", f"--backend={_HERE}:Slowed"),
        *(f"--backend-option=per_s={kind.per_s:g}", f"--backend-option=least={kind.least}"),
        *("--instances=1", "--threads=1", f"--max-batch={kind.max_batch}"),
    ]


def _classic(name: str, count: int, work: Path) -> tuple[Path, Path]:
    from tests.builders.submit.classic_data import MAKERS

    made = work / "made"
    # The old files are removed, because each call makes the same files.
    shutil.rmtree(made, ignore_errors=True)
    return MAKERS[name](made, count)


def _rgat(_name: str, count: int, work: Path) -> tuple[Path, Path]:
    from tests.builders.submit.mlperf_data import manifest_in, rgat_model, write_igbh

    file, data = work / "rgat.onnx", work / "igbh"
    if not file.exists():
        rgat_model(file, write_igbh(data, count, bare=True), wrong_share=0.25)
    return manifest_in(work, "rgat"), data


def _dlrm(_name: str, count: int, work: Path) -> tuple[Path, Path]:
    from tests.builders.submit.mlperf_data import dlrm_model, manifest_in, write_streaming

    file, data = work / "dlrm_v3.onnx", work / "sampled_data"
    if not file.exists():
        write_streaming(data, count, timestamps=20, candidates=3)
        dlrm_model(file)
    return manifest_in(work, "dlrm-v3"), data


def _qna(work: Path) -> list[str]:
    from tests.builders.submit.mlperf_data import write_frames

    path = write_frames(work / "frames_dataset.tsv", QUESTIONS)
    return [
        *(
            "--category=datacenter",
            "--model=e2e-rag-qna",
            "--backend=openai",
            f"--url={URL}",
            f"--data-dir={path}",
        ),
        *("--backend-option=answer=text", "--backend-option=stream=off"),
    ]


def _db(work: Path) -> list[str]:
    from tests.builders.submit.mlperf_data import write_documents

    if not (work / "doc_html").exists():
        write_documents(work / "doc_html", PAGES)
    return [
        "--category=datacenter",
        "--model=e2e-rag-db",
        "--backend=http-json",
        f"--url={URL}",
        f"--data-dir={work / 'doc_html'}",
    ]


URL = f"http://127.0.0.1:{SERVER_PORT}"
SERVED = {"e2e-rag-qna": _qna, "e2e-rag-db": _db}


def _judge(work: Path) -> Path:
    """Writes a program like MLCommons' accuracy_eval.py, for a rehearsal without a checkout."""
    from tests.submit.round.test_round_rehearsals import JUDGE

    (work / "accuracy_eval.py").write_text(JUDGE)
    return work / "accuracy_eval.py"


@contextmanager
def _serving() -> Iterator[str]:
    """Serves the stand-in, which answers every fourth question wrongly, and yields the server's URL."""
    served = [sys.executable, "-m", "tests.stand_ins.servers.rag_server", str(SERVER_PORT), "270", "4", str(PAGES)]  # fmt: skip
    with subprocess.Popen(served, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            if not (url := process.stdout.readline().strip()):
                raise SystemExit(f"the stand-in did not start: is port {SERVER_PORT} in use?")
            yield url
        finally:
            process.terminate()


if __name__ == "__main__":
    sys.exit(main())
