"""Finds events that also appear in another attempt, by comparing small digests ("sketches") of the runs."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.core.files import read_json
from harness.errors import ConfigError
from harness.submit.endpoints.runs import WITNESS, Attempt
from harness.submit.endpoints.witness.doubts import Doubt
from harness.submit.endpoints.witness.events import Events, digest
from harness.submit.plan.attempts import RUNS

SIZE = 64
_FEWEST = 2
"""Two runs whose sketches share this many entries count as copies, because such matches do not arise by chance."""


def sketch(events: Events) -> Sequence[int]:
    """Digests the requests' times in ns, and returns the smallest digests. Two runs share entries only if they share
    many requests.
    """
    times = {
        digest(f"{s.first_ns - s.issued_ns} {s.complete_ns - s.issued_ns}")
        for s in events.samples
        if s.first_ns is not None and s.complete_ns is not None
    }
    return sorted(times)[:SIZE]


def copies(work: Path, attempt: Attempt, own: Sequence[int]) -> Iterator[Doubt]:
    """Compares this attempt's sketch with the sketches of all other witnessed attempts, at all points."""
    for path in sorted((work / RUNS).glob(f"*/attempt-*/{WITNESS}")):
        if path.parent.resolve() == attempt.folder.resolve():
            continue
        try:
            known = read_json(path).get("sketch")
        except ConfigError:
            continue
        shared = {*own} & {*known} if isinstance(known, list) else set()
        if len(shared) >= _FEWEST:
            name = f"{path.parent.parent.name}/{path.parent.name}"
            yield Doubt(
                "events-copied", f"requests have the same times, to the ns, as requests of {name}"
            )
