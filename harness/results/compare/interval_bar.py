"""Draws each change in a comparison as an interval on a common scale. Each table row gets a small image."""

import math
from collections.abc import Sequence

from harness.core.units import show_percent
from harness.results.compare.compare import Change

_WIDTH, _HEIGHT = 180, 16
_LEAST, _MOST = math.log(1.05), math.log(20)
"""Smallest and largest extent of the scale, as logarithms of a factor."""

_WITHIN, _SQUEEZE = 0.75, 4.0
"""The scale contains at least this share of the rows. A row that needs more than _SQUEEZE times that scale would squeeze
the other rows, so its interval is cut off with an arrow.
"""


class Scale:
    """Logarithmic scale with `no change` in the middle."""

    def __init__(self, changes: Sequence[Change]) -> None:
        ends = sorted(_end(change) for change in changes if change.has_ratio)
        most = _SQUEEZE * ends[math.ceil(len(ends) * _WITHIN) - 1] if ends else 0.0
        self._end = min(max([_LEAST, *(end for end in ends if end <= most)]), _MOST)

    @property
    def head(self) -> str:
        """Heading of the image column."""
        low, high = (show_percent(math.expm1(end), signed=True) for end in (-self._end, self._end))
        return f"{low} to {high}"

    def image(self, change: Change) -> str:
        """Returns an SVG in the colour of the surrounding text; '' if the change has no ratio. The table row repeats
        the numbers as text.
        """
        if not change.has_ratio:
            return ""
        low, high = (self._x(s) if s is not None else None for s in (change.low, change.high))
        value = self._x(change.change)
        middle = _HEIGHT / 2
        parts = [f'<path d="M{_WIDTH / 2:g} 0v{_HEIGHT}" opacity="0.5"/>']
        if low is not None and high is not None:
            parts.append(f'<path d="M{low:.1f} {middle:g}H{high:.1f}" stroke-width="3"/>')
        shares = (change.change, change.low, change.high)
        known = [share for share in shares if share is not None]
        if abs(_log(change.change)) <= self._end:
            parts.append(f'<circle cx="{value:.1f}" cy="{middle:g}" r="4" fill="currentColor"/>')
        for beyond, tip, back in (
            (_log(min(known)) < -self._end, 0, 8),
            (_log(max(known)) > self._end, _WIDTH, _WIDTH - 8),
        ):
            if beyond:
                arrow = f"M{back} 3L{tip} {middle:g}L{back} 13z"
                parts.append(f'<path d="{arrow}" fill="currentColor"/>')
        return (
            f'<svg class="interval" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
            f'stroke="currentColor" aria-hidden="true">{"".join(parts)}</svg>'
        )

    def _x(self, share: float) -> float:
        """Returns the horizontal position of a share, from 0 to _WIDTH."""
        return _WIDTH / 2 * (1 + max(-1.0, min(1.0, _log(share) / self._end)))


def _log(share: float) -> float:
    """Returns the change as the logarithm of a factor; -inf for a change to 0."""
    return math.log1p(share) if share > -1 else -math.inf


def _end(change: Change) -> float:
    """Returns the known end of a row that is farthest from `no change`, as a logarithm of a factor."""
    shares = (change.change, change.low, change.high)
    known = [share for share in shares if share is not None and -1 < share < math.inf]
    return max((abs(math.log1p(share)) for share in known), default=0.0)
