"""Judges one run of the official client from the run's files, and stores the outcome in witness.json."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.core.files import read_json, sha256, write_json
from harness.core.units import show_percent
from harness.errors import ConfigError, PluginUnavailable
from harness.results.steady import official
from harness.results.steady.referee import referee
from harness.results.steady.series import Stream
from harness.submit.endpoints.client.checkout import ENVIRONMENT
from harness.submit.endpoints.runs import WITNESS, Attempt
from harness.submit.endpoints.witness import doubts, records, session
from harness.submit.endpoints.witness.accuracy import accuracy
from harness.submit.endpoints.witness.copies import copies, sketch
from harness.submit.endpoints.witness.doubts import Doubt
from harness.submit.endpoints.witness.events import Events, read_events
from harness.submit.endpoints.witness.known import Known
from harness.submit.endpoints.witness.numbers import Row, compare, metrics
from harness.submit.endpoints.witness.tokens import TokenCounter, counter_of

FORMAT = 1
INDEX = "sample_idx_map.json"
_NAN = float("nan")


@dataclass(frozen=True)
class Witnessed:
    rows: Sequence[Row]
    doubts: Sequence[Doubt]
    steady: Mapping[str, Any]
    """The block `steady_state` for point.yaml."""
    own: Mapping[str, Any]
    """The harness's verdict on the whole run; {} if the run has too few samples."""
    warm_up: Mapping[str, float]
    metrics: Mapping[str, float | None]
    tokens_absent: str
    """Reason why tokens were not counted; '' if they were counted."""
    summary_sha256: str
    events_sha256: str
    accuracy_sha256: str | None
    """Digest of the accuracy result; None if the run has no accuracy result."""
    sketch: Sequence[int]

    @property
    def disagreements(self) -> Sequence[Row]:
        """Rows in which the recomputed number differs from the published number."""
        return [row for row in self.rows if not row.agrees and row.recomputed is not None]

    @property
    def passed(self) -> bool:
        """Whether every number was recomputed and agrees, and no doubt causes `pack` to refuse the run."""
        return all(row.agrees for row in self.rows) and not any(
            one.code in doubts.REFUSED for one in self.doubts
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "passed": self.passed,
            "summary_sha256": self.summary_sha256,
            "events_sha256": self.events_sha256,
            "accuracy_sha256": self.accuracy_sha256,
            "tokens_absent": self.tokens_absent or None,
            "metrics": dict(self.metrics),
            "steady_state": dict(self.steady),
            "own_verdict": dict(self.own),
            "warm_up": dict(self.warm_up),
            "doubts": [one._asdict() for one in self.doubts],
            "rows": [row.to_json() for row in self.rows],
            "sketch": list(self.sketch),
        }


def witness(
    work: Path,
    attempt: Attempt,
    concurrency: int,
    size: int,
    tokenizer: str,
    known: Known | None = None,
    *,
    trust: bool = False,
) -> Witnessed:
    """Recomputes the numbers of a run, writes witness.json, and returns the outcome.

    size: number of samples in the data set, which the client issues once per pass. known: facts that the run must
    match. trust: whether the tokenizer's code may run.
    """
    summary = read_json(attempt.summary)
    events = counted_events(attempt.events, *counter_of(tokenizer, work / ENVIRONMENT, trust=trust))
    absent = events.uncounted
    own, steady = own_verdict(events, attempt.report / INDEX), steady_block(events, size)
    times = sketch(events)
    found = Witnessed(
        list(compare(events, summary)),
        [
            *_doubts(attempt, events, concurrency, size),
            *_of_session(attempt, events, known or Known()),
            *records.snapshot(attempt.report, summary),
            *copies(work, attempt, times),
            *_beside(steady, own),
        ],
        steady,
        own,
        _warm_up(events),
        metrics(events),
        absent,
        sha256(attempt.summary),
        sha256(attempt.events),
        _accuracy_sha256(attempt),
        times,
    )
    write_json(attempt.folder / WITNESS, found.to_json())
    return found


def counted_events(path: Path, counter: TokenCounter | None, absent: str) -> Events:
    """Reads the events, counts their tokens, and closes the counter. absent: reason why the counter is missing."""
    events = None
    if counter is not None:
        try:
            events = read_events(path, counter.count)
        except PluginUnavailable as e:
            absent = str(e)
        finally:
            counter.close()
    if events is None:
        events = read_events(path)
    events.uncounted = absent
    return events


def _warm_up(events: Events) -> Mapping[str, float]:
    """Returns the warm-up numbers that point.yaml contains."""
    first_ns, start_ns = events.warm_up_first_ns, events.start_ns
    duration_s = 0.0 if first_ns is None or start_ns is None else (start_ns - first_ns) / 1e9
    return {
        "duration_s": round(duration_s, 3),
        "requests_issued": events.warm_up_issued,
        "requests_completed": events.warm_up_completed,
    }


def _doubts(attempt: Attempt, events: Events, concurrency: int, size: int) -> Iterator[Doubt]:
    run = attempt.run()
    settings = records.at(run, ("asked", "settings"))
    pattern = records.at(settings, ("load_pattern", "type"))
    seed = records.at(settings, ("runtime", "dataloader_random_seed"))
    index = attempt.report / INDEX
    is_agentic = pattern == "agentic_inference"
    if isinstance(seed, int) and not is_agentic:
        yield from doubts.order(index, seed, size)
    yield from doubts.events_and_map(events, index, is_agentic=is_agentic)
    if pattern == "concurrency":
        yield from doubts.in_flight(events, concurrency)
        yield from doubts.lag(events, concurrency)
    yield from doubts.negative_tpot(events)
    server = run.get("server")
    yield from doubts.server_tokens(events, server if isinstance(server, Mapping) else None)
    yield from doubts.errors(events)
    yield from _drift(events, size)
    if run.get("changed"):
        yield Doubt("client-changed", "the client's files changed during the run")


def _of_session(attempt: Attempt, events: Events, known: Known) -> Iterator[Doubt]:
    """Compares the events with each other, with the run's other files, and with the known facts."""
    run = attempt.run()
    asked = run.get("asked")
    asked = asked if isinstance(asked, Mapping) else {}
    pattern = records.at(asked, ("settings", "load_pattern", "type"))
    yield from session.structure(events)
    yield from session.clock(events, run, is_closed_loop=pattern == "concurrency")
    yield from session.repeated_times(events)
    yield from session.lengths(events, records.at(asked, ("model_params", "max_new_tokens")))
    server = run.get("server")
    yield from session.server_times(events, server if isinstance(server, Mapping) else None)
    yield from records.seeds(asked, known.seeds)
    yield from records.effective(asked, attempt.report)
    index = attempt.report / INDEX
    if pattern != "agentic_inference":
        yield from session.prompts(events, doubts.issue_order(index), known.prompts)
    yield from accuracy(events, attempt.accuracy, index, known.truths, known.external)


def _drift(events: Events, size: int) -> Iterator[Doubt]:
    """Reports a trend after the steady window, because the official numbers ignore such a trend."""
    if events.uncounted or not events.completed:
        return
    found = official.judge(samples_of(events), size)
    if found.is_found and found.drifts_up:
        yield Doubt(
            "drift-after-window",
            f"after the window, {', '.join(found.drifts_up)} rise until the end",
        )


def samples_of(events: Events) -> official.Samples:
    """Returns the run in the format that the detector expects: completed samples in the order of issue."""
    done = events.completed

    def column(values: Iterator[float | None]) -> np.ndarray[Any, Any]:
        return np.array([_NAN if value is None else value for value in values], dtype=np.float64)

    return official.Samples(
        np.array([s.issued_ns for s in done], dtype=np.int64),
        column(None if s.first_ns is None else s.first_ns - s.issued_ns for s in done),
        column(s.tpot_ns for s in done),
        column((s.complete_ns or 0) - s.issued_ns for s in done),
        np.array([s.rest_tokens or 0 for s in done], dtype=np.int64),
    )


def steady_block(events: Events, size: int) -> dict[str, Any]:
    """Judges the run by the official rule, and returns the block `steady_state` for point.yaml. If the run cannot be
    judged, the block contains the reason.

    The file point.yaml counts passes from 1.
    """
    if events.uncounted:
        return {"status": "insufficient_passes", "reason": events.uncounted}
    if not events.completed:
        return {"status": "insufficient_passes", "reason": "no request was completed"}
    found = official.judge(samples_of(events), size)
    status = found.status or "insufficient_duration"
    verdict = "STEADY STATE" if found.is_found else "not found"
    if found.shift is not None:
        verdict = "anomaly"
    block: dict[str, Any] = {"status": status, "verdict": verdict}
    if found.window is not None:
        window = found.window
        block["window"] = {
            "super_pass_start": window.first_pass + 1,
            "super_pass_end": window.end_pass,
            "super_pass_size": size,
            "n_samples": window.samples,
            "duration_s": window.duration.window_s,
        }
    # If a steady window was found, the state is always "Plateau", because the gated series have no trend within the
    # window. `found.trends` is then ignored, because it also covers the time after the window.
    words = {} if found.is_found else {"up": "Drifting Up", "down": "Drifting Down"}
    block["state"] = {
        name: words.get(str(found.trends.get(name)), "Plateau") for name, _ in official.GATED
    }
    if found.shift is not None:
        block["anomaly"] = {"at_pass": found.shift.at_pass + 1, "change": found.shift.change}
    if found.reason is not None:
        block["reason"] = found.reason
    return block


def own_verdict(events: Events, index: Path) -> Mapping[str, Any]:
    """Judges the whole run with the harness's referee, which also detects a slow-down after the steady window."""
    try:
        named = json.loads(index.read_text(encoding="utf-8"))["performance"]
        samples = [int(named[s.uuid]) for s in events.completed]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    run = samples_of(events)
    if not samples:
        return {}
    ok = np.array([not s.failed for s in events.completed])
    tpot = None if events.uncounted else run.tpot_ns
    times = Stream(run.issued_ns, run.latency_ns, np.array(samples), ok, run.ttft_ns, tpot)
    found = referee(times)
    if found is None:
        return {}
    cause = found.cause
    about = (
        {}
        if cause is None
        else {"series": cause.name, "change": cause.change, "shape": cause.shape}
    )
    return {"verdict": found.verdict, "needed_s": found.needed_s, **about}


def _beside(steady: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[Doubt]:
    """Reports a run that the official rule accepts although the run's level changed."""
    if steady["status"] == "windowable" and own.get("verdict") == "not steady":
        yield Doubt(
            "not-steady",
            f"the official rule finds a window, but {own['series']} changed by {show_percent(own['change'], signed=True)} ({own['shape']})",
        )


def kept_witness(attempt: Attempt) -> Mapping[str, Any]:
    """Returns witness.json. Raises a ConfigError if the file is missing, or if a result has changed after the witness
    wrote the file.
    """
    path = attempt.folder / WITNESS
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: run `endpoints witness` first")
    content = read_json(path)
    kept = content.get("summary_sha256"), content.get("accuracy_sha256")
    if kept != (sha256(attempt.summary), _accuracy_sha256(attempt)):
        raise ConfigError(f"{path} belongs to another result: run `endpoints witness` again")
    return content


def _accuracy_sha256(attempt: Attempt) -> str | None:
    return sha256(attempt.accuracy) if attempt.accuracy.is_file() else None
