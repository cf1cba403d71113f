"""Probes a language-model server after the run, to find out whether a prompt with a new beginning takes longer than a
repeated prompt.

Each round sends three sequential requests for one token: a prompt whose words or tokens are in a new order, a prompt of
the run, and the changed prompt again. If the server caches neither prompts nor answers, all three requests take equally
long.
"""

import json
from collections.abc import Mapping, Sequence
from random import Random
from time import monotonic, perf_counter_ns
from typing import Any

import numpy as np

from harness.core.formats.prompt_fields import framed
from harness.core.units import NS_PER_S
from harness.errors import type_and_text
from harness.types import Dataset
from harness.wire.remote_backend import RemoteBackend

ROUNDS = 40
FEWEST_ROUNDS = 8
LEAST_S = 2.0
"""Even after a short run, the probe may take up to this long."""

LIMIT_S = 0.5
"""After this time, the probe ends if it has finished FEWEST_ROUNDS rounds."""

CHANGED_PARTS = 16
"""This many words or tokens at the beginning of a prompt are reordered."""

FEWEST_PARTS = 4

_OK = 200
_TRIES = 8
_MOST_CHARACTERS = 200


def probe(
    backend: RemoteBackend, dataset: Dataset, loaded: Sequence[int], most_s: float
) -> Mapping[str, Any]:
    """Returns the times of each round in ns. Returns a `reason` instead if the probe is impossible.

    If the server refused most changed prompts but no other prompts, also returns the server's error message. loaded:
    samples that the dataset has loaded. most_s: time in which FEWEST_ROUNDS rounds must fit; raised to LEAST_S if it is
    shorter. After twice this time, the probe ends in any case.
    """
    try:
        return _Probe(backend, dataset, loaded).run(most_s)
    except Exception as e:  # noqa: BLE001 - the run is over and must not be lost
        return {"reason": type_and_text(e)[:_MOST_CHARACTERS]}


class _Probe:
    def __init__(self, backend: RemoteBackend, dataset: Dataset, loaded: Sequence[int]) -> None:
        self._backend, self._dataset, self._loaded = backend, dataset, loaded
        # The generator is not seeded, so that a server cannot predict the changed prompts.
        self._random = Random()
        self._used: set[bytes] = set()
        self._refused = ""

    def run(self, most_s: float) -> Mapping[str, Any]:
        most_s = max(LEAST_S, most_s)
        begin_s = monotonic()
        took_ns = self._took_ns(self._loaded[0], _one_token(self._prompt(self._loaded[0])))
        if took_ns is None:
            return {
                "reason": f"the server refused a prompt that requests one token: {self._refused}"
            }
        if 3 * FEWEST_ROUNDS * took_ns > most_s * NS_PER_S:
            return {"reason": "a token takes too long for a run of this length"}
        times: dict[str, list[int]] = {"changed_ns": [], "seen_ns": [], "again_ns": []}
        unchanged = refusals = 0
        for number in range(ROUNDS):
            spent_s = monotonic() - begin_s
            if spent_s > 2 * most_s or (number >= FEWEST_ROUNDS and spent_s > LIMIT_S):
                break
            index = self._loaded[number % len(self._loaded)]
            seen = self._prompt(index)
            changed = self._changed(seen)
            if changed is None:
                unchanged += 1
                continue
            row = [self._took_ns(index, p) for p in (changed, _one_token(seen), changed)]
            taken_ns = [ns for ns in row if ns is not None]
            if row[1] is None:
                return {"reason": f"the server refused a prompt of the run: {self._refused}"}
            # A round with a refused prompt is left out, because the changed prompt may exceed the context.
            if len(taken_ns) < len(row):
                refusals += 1
                continue
            for spent_ns, ns in zip(times.values(), taken_ns, strict=True):
                spent_ns.append(ns)
        if unchanged and not times["seen_ns"] and not refusals:
            return {"reason": "the prompts are too short for their beginning to be changed"}
        return {**times, "refused": self._refused if refusals > len(times["seen_ns"]) else ""}

    def _prompt(self, index: int) -> dict[str, Any]:
        (rows,) = self._dataset.batch([index]).inputs.values()
        content: dict[str, Any] = json.loads(rows.reshape(-1)[0])
        return content

    def _changed(self, content: Mapping[str, Any]) -> bytes | None:
        """Returns a changed prompt that has not been sent yet; None if the beginning of the prompt cannot be changed."""
        for _ in range(_TRIES):
            found = _one_token(_with_new_begin(content, self._random))
            if found != _one_token(content) and found not in self._used:
                self._used.add(found)
                return found
        return None

    def _took_ns(self, index: int, prompt: bytes) -> int | None:
        """Returns the time of one request in ns; None if the server refused it."""
        batch = self._dataset.batch([index])
        (name,) = batch.inputs
        rows = np.empty(1, object)
        rows[0] = prompt
        batch = batch._replace(inputs={name: rows})
        begin_ns = perf_counter_ns()
        reply = self._backend.reply(batch)
        took_ns = perf_counter_ns() - begin_ns
        if reply.status != _OK:
            text = bytes(reply.body[:_MOST_CHARACTERS]).decode("utf-8", "replace")
            self._refused = f"{reply.status}: {text}"
            return None
        return took_ns


def _one_token(content: Mapping[str, Any]) -> bytes:
    """Returns the prompt as a dataset's sample, limited to one token."""
    kind = "messages" if "messages" in content else "prompt"
    left_out = (kind, "fields", "max_tokens", "min_tokens")
    further = {name: value for name, value in content.items() if name not in left_out}
    sample = framed(further, {"max_tokens": 1, kind: content[kind]})
    return json.dumps(sample, ensure_ascii=False, separators=(",", ":")).encode()


def _with_new_begin(content: Mapping[str, Any], random: Random) -> Mapping[str, Any]:
    """Returns the prompt with its first parts in a different order. Keeps the number of tokens (nearly) the same."""
    if "prompt" in content:
        return {**content, "prompt": _shuffled(content["prompt"], random)}
    messages = [*content["messages"]]
    for place, message in enumerate(messages):
        text = message.get("content")
        if message.get("role") == "user" and isinstance(text, str):
            messages[place] = {**message, "content": _shuffled(text, random)}
            break
    return {**content, "messages": messages}


def _shuffled(prompt: Any, random: Random) -> Any:
    if isinstance(prompt, str):
        words = prompt.split(" ")
        if len(words) >= FEWEST_PARTS:
            return " ".join(_begin_shuffled(words, random))
        return "".join(_digits_shuffled(prompt, random))
    return _begin_shuffled(prompt, random)


def _begin_shuffled(parts: Sequence[Any], random: Random) -> list[Any]:
    """Shuffles the first parts until a different part comes first. Returns `parts` unchanged if that is impossible."""
    begin, rest = [*parts[:CHANGED_PARTS]], parts[CHANGED_PARTS:]
    if len(begin) < FEWEST_PARTS or all(part == begin[0] for part in begin):
        return [*parts]
    first = begin[0]
    while begin[0] == first:
        random.shuffle(begin)
    return [*begin, *rest]


def _digits_shuffled(text: str, random: Random) -> list[str]:
    """Returns the characters, with each digit replaced by a random digit."""
    return [str(random.randrange(10)) if "0" <= c <= "9" else c for c in text]
