"""Divides a run's window by what its requests were doing: waiting for a first token, or for later tokens. Has no side
effects.

At each moment, the machines' time is shared equally among the requests in flight, regardless of how much each request
needs. The shares are therefore a rule for dividing costs, not a measurement of the model.
"""

from typing import NamedTuple

import numpy as np

from harness.results.evidence.stages import Completions


class Phases(NamedTuple):
    """Shares of the window. The three shares add up to 1."""

    input: float
    """Share for requests that waited for their first token, while their prompts were being computed or queued."""
    output: float
    """Share for requests whose later tokens were generated."""
    idle: float
    """Share of the time when no request was in flight."""


def phases(done: Completions | None, window_ns: tuple[int, int] | None) -> Phases | None:
    """Returns the shares; None without streams, or if the rows do not show every request in the window."""
    if not done or window_ns is None or done.before is not None or done.cancelled is not None:
        return None
    columns, (begin_ns, end_ns) = done.columns, window_ns
    first_ns = columns.get("first_token_ns")
    sent_ns = columns.get("sent_ns", columns.get("taken_ns"))
    if first_ns is None or sent_ns is None or not first_ns.any():
        return None
    right = (first_ns > 0) & (columns["failed"] == 0)
    stamps = (sent_ns, first_ns, first_ns, columns["completed_ns"])
    times_ns = np.concatenate([np.clip(column[right], begin_ns, end_ns) for column in stamps])
    count = int(right.sum())
    order = np.argsort(times_ns, kind="stable")
    waiting, generating = (
        np.cumsum(np.repeat(steps, count)[order])[:-1] for steps in ((1, -1, 0, 0), (0, 0, 1, -1))
    )
    spans_ns, busy = np.diff(times_ns[order]), np.maximum(waiting + generating, 1)
    whole_ns = end_ns - begin_ns
    input_ = float((spans_ns * waiting / busy).sum()) / whole_ns
    output = float((spans_ns * generating / busy).sum()) / whole_ns
    return Phases(input_, output, max(0.0, 1 - input_ - output))
