"""Compares accuracy_results.json with the answers in the event log: their number, their tokens and, if possible, the
score.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.files import read_json
from harness.errors import ConfigError
from harness.submit.endpoints.witness.doubts import Doubt
from harness.submit.endpoints.witness.events import Events, Sample, digest
from harness.submit.endpoints.witness.records import at

_TOLERANCE = 1e-6


def accuracy(
    events: Events,
    result: Path,
    index: Path,
    truths: Mapping[str, Sequence[str]],
    external: Collection[str] = (),
) -> Iterator[Doubt]:
    """Yields a doubt for each score that the events contradict.

    index: the client's file that maps requests to samples. truths: correct answers for each data set that is scored by
    exact match. external: data sets that a program other than the client sends and scores.
    """
    try:
        entries = read_json(result).get("accuracy_scores")
    except ConfigError:
        return  # a layout rule reports the missing file
    try:
        named = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return  # `order` in doubts.py reports the unreadable file
    answered = {s.uuid: s for s in events.others if s.complete_ns is not None}
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, Mapping) and entry.get("dataset_type") != "performance":
            requests = at(named, (str(entry.get("dataset_name")),))
            if requests is None and entry.get("dataset_name") in external:
                continue  # because an external program, not the client, sent these requests
            yield from _entry(entry, requests if isinstance(requests, Mapping) else {}, answered, events, truths)  # fmt: skip


def _entry(
    entry: Mapping[str, Any],
    requests: Mapping[str, Any],
    answered: Mapping[str, Sample],
    events: Events,
    truths: Mapping[str, Sequence[str]],
) -> Iterator[Doubt]:
    name = str(entry.get("dataset_name"))
    scored = at(entry, ("response_counts", "scored"))
    scored = entry.get("total_samples") if scored is None else scored
    found = [answered[uuid] for uuid in requests if uuid in answered]
    if isinstance(scored, int) and scored > len(found):
        text = f"{scored:,} answers of {name} were scored, but the events have {len(found):,}"
        yield Doubt("accuracy-differs", text)
        return
    tokens = at(entry, ("output_sequence_lengths", "total"))
    if isinstance(tokens, int) and not events.uncounted and not events.structured:
        own = sum(sample.tokens or 0 for sample in found)
        if own != tokens:
            text = f"the answers of {name} have {own:,} tokens, not {tokens:,} as in the result"
            yield Doubt("accuracy-differs", text)
    score, right = entry.get("score"), truths.get(name)
    if right and isinstance(score, int | float) and found:
        matches = [
            answered[uuid].answer == digest(right[int(sample) % len(right)].strip())
            for uuid, sample in requests.items()
            if uuid in answered
        ]
        own_score = sum(matches) / len(matches)
        if abs(own_score - score) > _TOLERANCE:
            text = f"the answers of {name} score {own_score:.6g} according to the events, but {score:.6g} in the result"
            yield Doubt("accuracy-differs", text)
