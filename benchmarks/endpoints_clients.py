"""Compares MLCommons' client for Endpoints with the harness's client, in alternating runs on one server at ten
concurrencies.

    python benchmarks/endpoints_clients.py --client CHECKOUT [--work FOLDER] [--concurrencies 1,2,3,...] [--seconds 20]

CHECKOUT: mlcommons/endpoints at a published commit; the script leaves the checkout unmodified. FOLDER keeps a copy of
the client and the client's environment, which `uv` creates with Python 3.12 if it is missing. `serve tinylm` runs in a
separate process and sends each answer at fixed times (`paced.py`), so that the processor does not limit the server.
Both clients make the same number of passes over the same prompts, and stream 16 tokens per prompt. A point consists of
four runs, in this order: our client, the other client, the other client, our client.

The same function of `endpoints witness` computes the four numbers of both clients, from MLCommons' events.jsonl and
from the harness's journal. Each row is one point. A row shows each of our numbers divided by the other client's number,
with a 95 % bootstrap interval over the passes, and then the times that explain the ratios. `after` is the mean TTFT
minus the mean TTFT that the server reports for the same requests. This difference consists of the network, the client,
and the time until the client takes its time stamp. If an interval lies outside 1 %, the exit status is 4. Ten points
take about 20 minutes.
"""

import argparse
import json
import math
import os
import random
import resource
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
import psutil
import yaml

from benchmarks.client_ratios import Seen, judged, line, ratios, row_of, save, summary
from benchmarks.command import HERE
from benchmarks.honest_runs import serving
from benchmarks.paced import CYCLE
from benchmarks.pairs import Estimate
from harness.core.console import show
from harness.errors import RunInvalid
from harness.submit.endpoints.client.checkout import ENVIRONMENT, ensure_client, program_of
from harness.submit.endpoints.client.config import Template, client_config
from harness.submit.endpoints.client.process import run_client
from harness.submit.endpoints.plan.child import run_harness
from harness.submit.endpoints.plan.own import prepare
from harness.submit.endpoints.points import Point
from harness.submit.endpoints.request import Request, make_request
from harness.submit.endpoints.runs import SERVER_TIMES, Attempt
from harness.submit.endpoints.witness.doubts import refill_lag_ns
from harness.submit.endpoints.witness.events import Events, Sample
from harness.submit.endpoints.witness.numbers import metrics, series
from harness.submit.endpoints.witness.report import counted_events
from harness.submit.endpoints.witness.session import mean_of_server_ns
from harness.submit.endpoints.witness.tokens import counter_of
from harness.wire.server_series import Series, parse

CONCURRENCIES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
SECONDS = 20.0
PROMPTS = CYCLE
"""In one pass over the prompts, each speed of the server occurs once."""

DIGITS, TOKENS = 20, 16
"""Each prompt has more digits than an answer may have tokens, so the server cuts off every answer at the same length.
"""

FIRST_MS, GAP_MS = 100, 20
ORDER = ("ours", "theirs", "theirs", "ours")
_TOKENIZER: Mapping[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {
        "type": "Split",
        "pattern": {"String": ""},
        "behavior": "Isolated",
        "invert": False,
    },
    "post_processor": None,
    "decoder": None,
}


class Bench(NamedTuple):
    """Everything that both clients need."""

    request: Request
    template: Template
    work: Path
    folder: Path
    seconds: float
    server: psutil.Process
    url: str

    def queries(self, concurrency: int) -> int:
        """Returns the number of queries in the whole passes over the prompts that take about `seconds`."""
        latency_s = (FIRST_MS + GAP_MS * (TOKENS - 1)) / 1e3
        return PROMPTS * max(1, math.ceil(self.seconds * concurrency / latency_s / PROMPTS))


def write_files(folder: Path) -> None:
    """Writes the prompts, the tokenizer and the configuration of MLCommons' client."""
    drawn = random.Random(1)
    texts = [
        f"{('sort', 'reverse')[i % 2]} {''.join(drawn.choices('0123456789', k=DIGITS))}="
        for i in range(PROMPTS)
    ]
    lines = "".join(json.dumps({"prompt": text}) + "\n" for text in texts)
    (folder / "prompts.jsonl").write_text(lines, encoding="utf-8")
    characters = ("<unk>", *"abcdefghijklmnopqrstuvwxyz =?0123456789")
    words = {
        "type": "WordLevel",
        "vocab": {one: i for i, one in enumerate(characters)},
        "unk_token": "<unk>",
    }
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir(exist_ok=True)
    (tokenizer / "tokenizer.json").write_text(json.dumps({**_TOKENIZER, "model": words}))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(about))
    content = {
        "name": "tinylm",
        "version": "1.0",
        "model_params": {"name": "tinylm", "temperature": 0.0, "max_new_tokens": TOKENS},
        "datasets": [
            {
                "name": "digits",
                "type": "performance",
                "path": "prompts.jsonl",
                "parser": {"prompt": "prompt"},
            }
        ],
        "settings": {
            "service_ready_timeout_s": 120,
            "client": {"num_workers": 1, "warmup_connections": 0},
        },
        "endpoint_config": {"api_type": "openai"},
    }
    (folder / "template.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")


def requested(folder: Path, url: str) -> Request:
    return make_request(
        {
            "submitter": "LabOrg",
            "system": "box",
            "division": "rdi",
            "model": "tinylm",
            "cohort": "2026-10-C1",
            "url": [url],
            "served": "tinylm",
            "c_max": 64,
            "tokenizer": str(folder / "tokenizer"),
            "template": str(folder / "template.yaml"),
            "rehearsal": True,
            "duration_s": 1.0,
        }
    )


def theirs(bench: Bench, concurrency: int, name: str) -> Events:
    """Runs MLCommons' client as `endpoints run` does."""
    attempt = Attempt(bench.folder / f"theirs-{name}")
    point = Point(concurrency, "", is_accuracy=False)
    report, queries = attempt.report.absolute(), bench.queries(concurrency)
    asked = client_config(bench.request, bench.template, point, queries, report)
    program = program_of(bench.work)
    status = run_client(program, bench.work, attempt, asked, None, lambda _took_s: None)
    if status or attempt.run()["changed"]:
        raise RuntimeError(f"MLCommons' client ended with {status}: see {attempt.folder}")
    counter = counter_of(bench.request.tokenizer, bench.work / ENVIRONMENT)
    events = counted_events(attempt.events, *counter)
    if events.uncounted:
        raise RuntimeError(f"tokens cannot be counted: {events.uncounted}")
    return events


def ours(bench: Bench, concurrency: int, name: str) -> Events:
    """Runs the harness's client as `endpoints rehearse` does."""
    out = bench.folder / f"ours-{name}"
    own = prepare(bench.request, bench.template, bench.folder)
    words = [*own.words, "--concurrency", str(concurrency), "--slo", "p99=1h"]
    words += ["--queries", str(bench.queries(concurrency)), "--mode", "performance"]
    words += ["--out", str(out), "--no-metrics", "--no-report"]
    status = run_harness(words, out.with_name(f"{out.name}.log"), lambda _took_s: None)
    path = out / "performance/run_1/completions.npz"
    if status not in (0, RunInvalid.exit_status) or not path.is_file():
        raise RuntimeError(f"the harness ended with {status}: see {out}.log")
    with np.load(path) as done:
        columns = {key: done[key] for key in done.files}
    return events_of(columns)


def events_of(columns: Mapping[str, np.ndarray[Any, Any]]) -> Events:
    """Converts a journal to the form of MLCommons' events. A request counts as issued when the load generator issues
    it.
    """
    names = ("entry_ns", "first_token_ns", "completed_ns", "tokens", "failed")
    rows = zip(*(columns[name].tolist() for name in names), strict=True)
    in_order = sorted(zip(columns["order"].tolist(), rows, strict=True))
    samples = [
        Sample(str(order), issued, first, None, end, tokens, tokens - 1, failed=bool(failed))
        for order, (issued, first, end, tokens, failed) in in_order
    ]
    return Events(samples, start_ns=int(columns["scheduled_ns"].min()))


def seen(events: Events, concurrency: int, queries: int, server_ns: float, others: float) -> Seen:
    """Raises a RuntimeError if an answer is missing or has another length, because the runs then cannot be compared."""
    lengths = {sample.tokens for sample in events.samples}
    answered = sum(not sample.failed for sample in events.completed)
    if answered != queries or len(events.samples) != queries or lengths != {TOKENS}:
        raise RuntimeError(
            f"{answered} of {queries} requests were answered, with {sorted(map(str, lengths))} tokens instead of {TOKENS}"
        )
    found = {name: np.asarray(values, np.float64) for name, values in series(events).items()}
    system_tps = metrics(events)["system_tps"]
    assert system_tps is not None
    lag_ns = refill_lag_ns(events, concurrency)
    half_ns = float(np.median(lag_ns)) if len(lag_ns) else 0.0
    return Seen(
        found["ttft"], found["tpot"], found["latency"], system_tps, half_ns, server_ns, others
    )


def measured(
    client: Callable[[Bench, int, str], Events], bench: Bench, concurrency: int, name: str
) -> Seen:
    first, before = _readings(bench.url), _cpu_s(bench.server)
    events = client(bench, concurrency, name)
    busy, own, total = (now - then for then, now in zip(before, _cpu_s(bench.server), strict=True))
    others = max(0.0, busy - own) / max(total, 1e-9)
    server = {"first": first, "last": _readings(bench.url)}
    server_ns = mean_of_server_ns(server, "first_token")
    assert server_ns is not None
    return seen(events, concurrency, bench.queries(concurrency), server_ns, others)


def _readings(url: str) -> Mapping[str, float]:
    """Returns the sums and counts of the times that the server reports."""
    names = [name for many in SERVER_TIMES.values() for name in many]
    with urllib.request.urlopen(f"{url}/metrics") as page:  # noqa: S310 - the address is our own
        text = page.read().decode()
    return parse(text, [Series(f"{name}_{part}") for name in names for part in ("sum", "count")])


def _cpu_s(server: psutil.Process) -> tuple[float, float, float]:
    """Returns three CPU times in seconds: the machine's busy time, the time of the benchmark and its server, and the
    machine's total including idle time.
    """
    times = psutil.cpu_times()
    busy = times.user + times.nice + times.system + getattr(times, "steal", 0.0)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    served = server.cpu_times()
    own = sum(u.ru_utime + u.ru_stime for u in used) + served.user + served.system
    return busy, own, busy + times.idle


def point_of(bench: Bench, concurrency: int) -> Mapping[str, Sequence[Seen]]:
    """Makes the runs of one point, alternating between the clients."""
    clients = {"ours": ours, "theirs": theirs}
    runs: dict[str, list[Seen]] = {side: [] for side in clients}
    for number, side in enumerate(ORDER):
        name = f"{concurrency}-{number}"
        runs[side].append(measured(clients[side], bench, concurrency, name))
    return runs


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--client", type=Path, help="a checkout of mlcommons/endpoints")
    parser.add_argument("--work", type=Path, help="folder of the client's copy and environment")
    parser.add_argument("--concurrencies", default=",".join(map(str, CONCURRENCIES)))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="length of a run")
    options = parser.parse_args()
    concurrencies = [int(word) for word in options.concurrencies.split(",")]
    os.environ |= {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(HERE.parent)}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        work = (options.work or folder / "work").absolute()
        work.mkdir(parents=True, exist_ok=True)
        proof = ensure_client(work, options.client)
        show(f"client {proof.commit[:12]}: unmodified, SHA-256 {proof.digest[:12]}")
        write_files(folder)
        pace = ("--backend-option", f"first_ms={FIRST_MS}", "--backend-option", f"gap_ms={GAP_MS}")
        backend = ("--backend", f"{HERE / 'paced.py'}:Paced", *pace, "--max-batch", "64")
        with serving(sys.executable, "tinylm", *backend) as url:
            (server,) = psutil.Process().children()
            request = requested(folder, url)
            template = Template(folder / "template.yaml")
            bench = Bench(request, template, work, folder, options.seconds, server, url)
            found = _points(bench, concurrencies)
    show(summary(found))
    return 4 if any(judged(e) == "beyond" for row in found.values() for e in row.values()) else 0


def _points(bench: Bench, concurrencies: Sequence[int]) -> Mapping[int, Mapping[str, Estimate]]:
    found, rows = {}, []
    for concurrency in concurrencies:
        runs = point_of(bench, concurrency)
        found[concurrency] = ratios(runs)
        rows.append(row_of(concurrency, runs, found[concurrency]))
        show(line(concurrency, runs, found[concurrency]))
        save(rows, bench.seconds)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
