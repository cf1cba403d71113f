"""Reads PTDaemon's log, power/ptd_logs.txt, and yields the warnings and errors that matter.

Source: mlcommons/power-dev c4b3ad8, compliance/check.py, check_ptd_logs.
"""

import re
from collections.abc import Iterator, Sequence

from harness.core.units import NS_PER_MS
from harness.machine.power.energy import utc_ns
from harness.submit.rules.tree.rounds import Power

_STAMP = re.compile(r"\d\d-\d\d-\d{4} \d\d:\d\d:\d\d\.\d{3}")
_UNCERTAINTY = re.compile(r"Uncertainty checking for Yokogawa\S+ is activated")

Complaint = tuple[str, str]
"""Pair of texts: actual and expected."""


def complaints(
    text: str, session: str, load_ns: tuple[int, int], rules: Power
) -> Iterator[Complaint]:
    """Yields the complaints about the log. load_ns: LoadGen's start and end.

    Raises ValueError if a relevant line has no timestamp.
    """
    lines = text.splitlines()
    ranging_ns = _ranging_ns(lines, session)
    if ranging_ns is None:
        yield "no ranging phase", f"'Go with mark {session}_ranging' and 'Completed test' after it"
        return
    yield from _uncertainty(lines, ranging_ns[0])
    for line in lines:
        yield from _warning(line, load_ns, rules)
        yield from _error(line, ranging_ns, rules)


def _ranging_ns(lines: Sequence[str], session: str) -> tuple[int, int] | None:
    begin_ns = None
    for line in lines:
        stamp = _STAMP.match(line)
        message = line[stamp.end() :].strip() if stamp else ""
        if begin_ns is None and message == f": Go with mark '{session}_ranging'":
            begin_ns = _at_ns(line)
        elif begin_ns is not None and message == ": Completed test":
            return begin_ns, _at_ns(line)
    return None


def _at_ns(line: str) -> int:
    stamp = _STAMP.match(line)
    if stamp is None:
        raise ValueError(f"no timestamp in {line.strip()[:100]!r}")
    return utc_ns(stamp[0])


def _uncertainty(lines: Sequence[str], ranging_begin_ns: int) -> Iterator[Complaint]:
    line = next((x for x in lines if _UNCERTAINTY.search(x)), None)
    if line is None or _at_ns(line) >= ranging_begin_ns:
        actual = (
            f"uncertainty checking was {'not activated' if line is None else 'activated too late'}"
        )
        yield actual, "'Uncertainty checking for Yokogawa... is activated' before ranging"


def _warning(line: str, load_ns: tuple[int, int], rules: Power) -> Iterator[Complaint]:
    """Yields complaints about uncertain samples under load. power-dev's checker misses most of these samples, because
    it compares ms with s.
    """
    _, mark, message = line.partition("WARNING:")
    if not mark or not message:
        return
    slack_ns = rules.clock_tolerance_ms * NS_PER_MS
    in_load = load_ns[0] + slack_ns < _at_ns(line) < load_ns[1] - slack_ns
    if in_load and re.search(rules.uncertain, message):
        yield line.strip()[:200], "no sample above 1 % uncertainty in the testing run"


def _error(line: str, ranging_ns: tuple[int, int], rules: Power) -> Iterator[Complaint]:
    """Yields complaints about errors outside the ranging phase. During the ranging phase, PTDaemon searches for its
    ranges and reports harmless errors.
    """
    _, mark, message = line.partition("ERROR:")
    if not mark or not message:
        return
    at_ns = _at_ns(line)
    if message.strip() not in rules.harmless and not ranging_ns[0] < at_ns < ranging_ns[1]:
        yield line.strip()[:200], "no error outside the ranging phase"
