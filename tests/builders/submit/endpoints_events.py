"""A run of MLCommons' client with generated events, and the files that the client leaves."""

import json
import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.submit.endpoints.runs import RUN, Attempt
from harness.submit.endpoints.witness.records import CONFIG, SNAPSHOT
from tests.builders.submit.endpoints import put_json

SEED, SIZE, PASSES, CONCURRENCY = 7, 20, 6, 4
STEP_NS = 1_000_000
SCORED, INDEX = "scored", "sample_idx_map.json"
Event = dict[str, Any]


def event(kind: str, stamp_ns: int, uuid: str = "", data: Any = None, **more: Any) -> Event:
    return {"event_type": kind, "timestamp_ns": stamp_ns, "sample_uuid": uuid, "data": data, **more}


def made_events(concurrency: int = CONCURRENCY, count: int = SIZE * PASSES) -> list[Event]:
    """Returns the events of a closed loop; each answer takes about 10 steps and has six words.

    No two events have equal times in ns, as in a real run.
    """
    found = [event("session.started", 0), event("session.start_performance_tracking", 10)]
    for number in range(count):
        begin = 10 + (number // concurrency) * 10 * STEP_NS + number % concurrency
        uuid = f"u{number}"
        chunks = ["one ", "two three ", "four five six"]
        first, end = begin + 4 * STEP_NS + 7 * number, begin + 10 * STEP_NS - concurrency - number
        found += [
            event("sample.issued", begin, uuid, ["PromptData", f"sample {order()[number]}"]),
            event("sample.recv_first", first, uuid),
            event("sample.complete", end, uuid, ["TextModelOutput", chunks], finish_reason="stop"),
        ]
    found = sorted(found, key=lambda one: one["timestamp_ns"])
    last = found[-1]["timestamp_ns"]
    return [*found, event("session.stop_performance_tracking", last), event("session.ended", last)]


def written(folder: Path, events: Sequence[Event]) -> Path:
    path = folder / "events.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in events))
    return path


def block(values: Sequence[float]) -> dict[str, Any]:
    keys = ("99", "90", "50", "1")
    at = {key: float(np.percentile(values, float(key), method="lower")) for key in keys}
    mean = sum(values) / len(values)
    return {
        "total": sum(values),
        "min": min(values),
        "max": max(values),
        "avg": mean,
        "percentiles": at,
    }


def summary(events: Sequence[Event] = ()) -> dict[str, Any]:
    """Computes the client's summary of events without using the harness's code."""
    of: dict[str, dict[str, int]] = {"issued": {}, "recv_first": {}, "complete": {}}
    for one in events or made_events():
        kind = one["event_type"].removeprefix("sample.")
        if kind in of and one["sample_uuid"].startswith("u"):
            of[kind][one["sample_uuid"]] = one["timestamp_ns"]
    issued, first, end = of["issued"], of["recv_first"], of["complete"]
    count, duration = len(issued), max(end.values()) - 10
    return {
        "duration_ns": duration,
        "n_samples_issued": count,
        "n_samples_completed": count,
        "n_samples_failed": 0,
        "ttft": block([first[uuid] - issued[uuid] for uuid in issued]),
        "tpot": block([(end[uuid] - first[uuid]) / 5 for uuid in issued]),
        "latency": block([end[uuid] - issued[uuid] for uuid in issued]),
        "output_sequence_lengths": block([6] * count),
        "qps": count / (duration / 1e9),
        "tps": 6 * count / (duration / 1e9),
        "state": "complete",
        "complete": True,
    }


def snapshot(content: dict[str, Any]) -> dict[str, Any]:
    """Returns the client's last snapshot for a summary."""
    counters = {"tracked_samples_issued": "n_samples_issued", "tracked_samples_completed": "n_samples_completed", "tracked_samples_failed": "n_samples_failed", "tracked_duration_ns": "duration_ns"}  # fmt: skip
    series = {"ttft_ns": "ttft", "tpot_ns": "tpot", "sample_latency_ns": "latency", "osl": "output_sequence_lengths"}  # fmt: skip
    rows = [{"name": theirs, "value": content[ours]} for theirs, ours in counters.items()]
    rows += [{"name": theirs, **content[ours]} for theirs, ours in series.items()]
    return {"state": "complete", "metrics": rows}


@cache
def order(seed: int = SEED) -> list[int]:
    generator, samples, found = random.Random(seed), list(range(SIZE)), []
    for _ in range(PASSES):
        generator.shuffle(samples)
        found += samples
    return found


def accuracy_events(begin_ns: int) -> list[Event]:
    """Returns the events of an accuracy phase, in which every second answer is right."""
    found = []
    for number in range(SIZE):
        uuid, stamp = f"a{number}", begin_ns + (number + 1) * STEP_NS
        answer = ["TextModelOutput", [f"{right(number) if number % 2 else 'wrong'} ", "answer"]]
        found += [
            event("sample.issued", stamp, uuid, ["PromptData", f"sample {number}"]),
            event("sample.recv_first", stamp + 100 + number, uuid),
            event("sample.complete", stamp + STEP_NS - 1, uuid, answer, finish_reason="stop"),
        ]
    return found


def right(sample: int) -> str:
    return f"right{sample}"


def accuracy_results() -> dict[str, Any]:
    entry = {
        "dataset_name": SCORED,
        "dataset_type": "accuracy",
        "score": 0.5,
        "unit_samples": SIZE,
        "total_samples": SIZE,
        "num_repeats": 1,
        "complete": True,
        "duration_s": 0.02,
        "response_counts": {"issued": SIZE, "scored": SIZE, "empty": 0, "missing": 0},
        "output_sequence_lengths": {"total": 2 * SIZE},
    }
    return {"accuracy_scores": [entry]}


def made_attempt(folder: Path, changes: Callable[[list[Event]], None] = lambda _: None) -> Attempt:
    """Writes a finished run with accuracy. changes: edits the events; the summary and the snapshot are computed from
    the edited events.
    """
    made, events = Attempt(folder), made_events()
    last = events.pop()
    events += accuracy_events(last["timestamp_ns"])
    changes(events)
    events.append({**last, "timestamp_ns": events[-1]["timestamp_ns"]})
    content = summary(events)
    put_json(made.summary, content)
    put_json(made.report / SNAPSHOT, snapshot(content))
    put_json(made.accuracy, accuracy_results())
    written(made.report, events)
    index = {f"u{number}": sample for number, sample in enumerate(order())}
    scored = {f"a{number}": number for number in range(SIZE)}
    put_json(made.report / INDEX, {"performance": index, SCORED: scored})
    asked = {
        "model_params": {"seed": 3, "max_new_tokens": 8, "temperature": 0.0},
        "settings": {
            "load_pattern": {"type": "concurrency", "target_concurrency": CONCURRENCY},
            "runtime": {"scheduler_random_seed": 5, "dataloader_random_seed": SEED},
        },
    }
    put_json(made.report / CONFIG, asked)
    put_json(
        made.folder / RUN, {"status": 0, "asked": asked, "monotonic_ns": [-5, 10**10], "server": {}}
    )
    return made


def write_tokenizer(folder: Path, template: str = "") -> Path:
    """Writes a tokenizer with one token per character; skips the test if the package is missing. template: a chat
    template.
    """
    tokenizers = pytest.importorskip("tokenizers")
    characters = ("<unk>", *"abcdefghijklmnopqrstuvwxyz =?0123456789")
    vocabulary = {character: number for number, character in enumerate(characters)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    if template:
        about["chat_template"] = template
    put_json(folder / "tokenizer_config.json", about)
    return folder
