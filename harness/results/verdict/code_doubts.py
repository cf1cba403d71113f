"""Derives doubts about the code that ran: the harness's own files, and the code that runs before them. Has no side
effects.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.core.codes import Reason
from harness.core.units import counted


def code(code: Mapping[str, Any] | None) -> Iterator[Reason]:
    """Yields doubts about the code. code: the report of harness.machine.running_code; None without a report."""
    if code is None:
        return
    yield from _harness(code["harness"])
    if code["startup"] is None:
        yield Reason(
            "startup-code",
            "the code that runs when Python starts could not be listed: run `python -c pass`, and read what it "
            "prints",
        )
    elif unknown := foreign(code):
        names = ", ".join(f"{one['name']} (SHA-256 {str(one['sha256'])[:12]}…)" for one in unknown)
        yield Reason(
            "startup-code",
            f"no installed package has {names}, which ran before the harness or hides a module: read it, and run "
            "without it",
        )


def foreign(code: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    """Returns the start-up code that does not belong to a distribution or package; () without a report."""
    return [one for one in code["startup"] or () if one["owner"] is None] if code else ()


def _harness(harness: Mapping[str, Any]) -> Iterator[Reason]:
    digest = f"its files have the SHA-256 {harness['sha256'][:12]}…"
    if harness["known_by"] is None:
        yield Reason(
            "harness-changed",
            f"the harness is neither an installed release nor a checkout that git can read ({digest})",
        )
    elif harness["differing"]:
        yield Reason(
            "harness-changed",
            f"{counted(harness['differing'], 'file')} of the harness differ from the {harness['known_by']}: "
            f"{', '.join(harness['first'])} ({digest})",
        )
