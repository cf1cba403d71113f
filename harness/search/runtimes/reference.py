"""Judges the reference: finds out whether other backends confirm the answers of the first cell, or agree on others."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from harness.core.registry import short_name
from harness.search.runtimes.standing import Entry

Alike = Callable[[Entry, Entry], bool]
"""Returns whether the answers of two cells count as equal."""


class Doubt(NamedTuple):
    """Reason to doubt the reference. It may be the wrong one if other backends give different answers."""

    is_confirmed: bool
    """Whether at least one other backend gives the same answers as the reference."""
    against: tuple[tuple[str, ...], ...]
    """Groups of backends that agree with each other, but not with the reference."""


def doubt_of(entries: Sequence[Entry], first: Entry | None, alike: Alike) -> Doubt | None:
    """Returns the reason to doubt the reference; None without such a reason. first: the cell with the reference.

    Only other backends in the reference's precision count, because a different precision explains different answers.
    """
    if first is None:
        return None
    others = [
        entry
        for entry in entries
        if entry.answers is not None
        and entry.cell.precision == first.cell.precision
        and entry.cell.backend != first.cell.backend
    ]
    differing = [entry for entry in others if entry.differs]
    against = tuple(names for names in _groups(differing, alike) if len(names) > 1)
    is_confirmed = len(differing) < len(others)
    return Doubt(is_confirmed, against) if differing and (against or not is_confirmed) else None


def _groups(entries: Sequence[Entry], alike: Alike) -> list[tuple[str, ...]]:
    """Returns the names of the backends that agree with each other. Each cell is compared with the first cell of each
    group only, because a comparison of all pairs of many cells would take long.
    """
    groups: list[list[Entry]] = []
    for entry in entries:
        group = next((group for group in groups if alike(group[0], entry)), None)
        if group is None:
            groups.append([entry])
        else:
            group.append(entry)
    return [tuple(dict.fromkeys(short_name(e.cell.backend) for e in group)) for group in groups]
