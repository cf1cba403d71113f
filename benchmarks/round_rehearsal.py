"""Rehearses MLPerf's graph, recommendation and retrieval benchmarks at full length, with stand-ins of the right shapes.

    python benchmarks/round_rehearsal.py WORK [--official CHECKOUT] [--only rgat,dlrm-v3,e2e-rag-qna,e2e-rag-db] [--side-by-side]

Each benchmark gets data in the format and number of its download, made here, and a model or a server whose right answers are
known. The runs follow the official rules; `pack` and `check` follow, with both official checkers if a checkout is given. rgat
takes half an hour and dlrm-v3 an hour, because its models sleep between their batches; the other two take a minute. With
--side-by-side, the scenarios of dlrm-v3 run at once. The exit status is the number of benchmarks that do not pass.

The numbers mean nothing for any model: the script tests the steps from runs to a submission.
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.rehearsal import pack_and_check, run_lots, submit  # noqa: E402
from harness.backends.ort import OrtBackend  # noqa: E402
from harness.types import BackendSetup, Batch, Outputs  # noqa: E402

_HERE = Path(__file__).resolve()
_TRUST = f"--trust={_HERE}:Slowed"
PAPERS, REQUESTS, QUESTIONS, PAGES = 788_379, 349_823, 824, 2515
SERVER_PORT = 18923
CONF = {
    "rgat": "*.Offline.target_qps = 1230\n",
    "dlrm-v3": "*.Server.target_qps = 470\n*.Offline.target_qps = 1950\n",
}
"""Settings that also hold on a slow machine, because the models sleep."""

SAMPLES_PER_S = {"rgat": 1240.0, "dlrm-v3": 2000.0}


class Slowed(OrtBackend):
    """ONNX Runtime that answers `per_s` samples per second in batches."""

    def __init__(self, setup: BackendSetup) -> None:
        options = dict(setup.options)
        self._each_s = 1 / float(options.pop("per_s"))
        super().__init__(replace(setup, options=options))

    def infer(self, batch: Batch) -> Outputs:
        begun_s = time.perf_counter()
        outputs = super().infer(batch)
        if batch.size > 1:
            time.sleep(max(0.0, batch.size * self._each_s - (time.perf_counter() - begun_s)))
        return outputs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--official", type=Path)
    parser.add_argument("--only", default="e2e-rag-db,e2e-rag-qna,rgat,dlrm-v3")
    parser.add_argument("--side-by-side", action="store_true")
    options = parser.parse_args()
    work = options.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in options.only.split(","):
        official = options.official.absolute() if options.official else None
        status = rehearse(name, work / name, official, together=options.side_by_side)
        print(f"{name}: {'passed' if status == 0 else f'exit status {status}'}", flush=True)
        failed += status != 0
    return failed


def rehearse(name: str, work: Path, official: Path | None, *, together: bool) -> int:
    """Returns the exit status of `check`, or of the runs if they failed."""
    work.mkdir(parents=True, exist_ok=True)
    words = REQUESTS_OF[name](work)
    served = name.startswith("e2e")
    with _serving() if served else nullcontext("") as url:
        request = [
            *("--rehearsal", "--division=closed", "--submitter=LabOrg", "--system=stand-in"),
            *("--category=datacenter", f"--benchmark={name}"),
            *("--hang-timeout=30min", *words),
        ]
        judge = official / "e2e-rag/accuracy_eval.py" if official else _judge(work)
        os.environ["RAG_JUDGE"] = shlex.join(
            [sys.executable, str(judge), "--judge_service_url", f"{url}/v1/chat/completions"]
        )
        submit("plan", f"--work={work}", *request)
        lots = ("Server", "Offline") if together and name == "dlrm-v3" else ()
        status = run_lots(work, lots, _TRUST)
    return status or pack_and_check(work, official, _TRUST)


def _conf(name: str, work: Path) -> str:
    (work / "given.conf").write_text(CONF[name])
    return f"--user-conf={work / 'given.conf'}"


def _slowed(name: str) -> list[str]:
    return [
        f"--backend={_HERE}:Slowed",
        f"--backend-option=per_s={SAMPLES_PER_S[name]:g}",
        *("--instances=1", "--threads=1", "--max-batch=32"),
    ]


def _rgat(work: Path) -> list[str]:
    from tests.builders.submit.mlperf_data import manifest_in, rgat_model, write_igbh

    file, data = work / "rgat.onnx", work / "igbh"
    if not file.exists():
        rgat_model(file, write_igbh(data, PAPERS, bare=True), wrong_share=0.25)
    model = manifest_in(work, "rgat")
    return [f"--model={model}", f"--data-dir={data}", _conf("rgat", work), *_slowed("rgat")]


def _dlrm(work: Path) -> list[str]:
    from tests.builders.submit.mlperf_data import dlrm_model, manifest_in, write_streaming

    file, data = work / "dlrm_v3.onnx", work / "sampled_data"
    if not file.exists():
        write_streaming(data, REQUESTS, timestamps=20, candidates=3)
        dlrm_model(file)
    model = manifest_in(work, "dlrm-v3")
    return [f"--model={model}", f"--data-dir={data}", _conf("dlrm-v3", work), *_slowed("dlrm-v3")]


def _qna(work: Path) -> list[str]:
    from tests.builders.submit.mlperf_data import write_frames

    path = write_frames(work / "frames_dataset.tsv", QUESTIONS)
    return [
        *("--model=e2e-rag-qna", "--backend=openai", f"--url={URL}", f"--data-dir={path}"),
        *("--backend-option=answer=text", "--backend-option=stream=off"),
    ]


def _db(work: Path) -> list[str]:
    from tests.builders.submit.mlperf_data import write_documents

    if not (work / "doc_html").exists():
        write_documents(work / "doc_html", PAGES)
    return [
        "--model=e2e-rag-db",
        "--backend=http-json",
        f"--url={URL}",
        f"--data-dir={work / 'doc_html'}",
    ]


URL = f"http://127.0.0.1:{SERVER_PORT}"
REQUESTS_OF = {"rgat": _rgat, "dlrm-v3": _dlrm, "e2e-rag-qna": _qna, "e2e-rag-db": _db}


def _judge(work: Path) -> Path:
    """Writes a program like MLCommons' accuracy_eval.py, for a rehearsal without a checkout."""
    from tests.submit.round.test_round_rehearsals import JUDGE

    (work / "accuracy_eval.py").write_text(JUDGE)
    return work / "accuracy_eval.py"


@contextmanager
def _serving() -> Iterator[str]:
    """Serves the stand-in, which answers every fourth question wrongly, and yields its URL."""
    served = [sys.executable, "-m", "tests.stand_ins.servers.rag_server", str(SERVER_PORT), "270", "4", str(PAGES)]  # fmt: skip
    with subprocess.Popen(served, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


if __name__ == "__main__":
    sys.exit(main())
