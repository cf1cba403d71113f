"""Draws each change in a comparison as an interval on a common scale. Each table row gets a small image."""

import math
from collections.abc import Sequence

from harness.core.units import show_percent
from harness.results.compare.change_text import size
from harness.results.compare.compare import Change

_WIDTH, _HEIGHT = 180, 16

_ENDS = (1.05, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100)
"""Factors at which a scale may end, because readers know them."""

_AT_FACTOR = 2
"""From this factor on, the scale is labelled with factors, as the column `change` is."""

_ROUNDING = 1e-9

_WITHIN, _SQUEEZE = 0.75, 4.0
"""The scale contains about this share of the rows. A row that needs more than _SQUEEZE times that scale would squeeze
the other rows, so it is cut off with an arrow, and the image states its value.
"""


class Scale:
    """Logarithmic scale with `no change` in the middle."""

    def __init__(self, changes: Sequence[Change]) -> None:
        ends = sorted(_end(change) for change in changes if change.has_ratio)
        # Rounded down, so that the larger one of two or three rows may be cut off, too.
        most = _SQUEEZE * ends[max(0, int(len(ends) * _WITHIN) - 1)] if ends else 0.0
        widest = max((end for end in ends if end <= most), default=0.0) - _ROUNDING
        self._factor = next((end for end in _ENDS if math.log(end) >= widest), _ENDS[-1])
        self._end = math.log(self._factor)

    @property
    def marks(self) -> Sequence[str]:
        """Labels of the left end, the middle and the right end."""
        if self._factor >= _AT_FACTOR:
            return f"x {1 / self._factor:.2g}", "x 1", f"x {self._factor:g}"
        low, high = (show_percent(math.expm1(end), signed=True) for end in (-self._end, self._end))
        return low, "0 %", high

    @property
    def axis(self) -> str:
        """Heading of the image column: an SVG with the axis of all images."""
        low, middle, high = self.marks
        half = _WIDTH / 2
        places = ((0, "start", low), (half, "middle", middle), (_WIDTH, "end", high))
        texts = "".join(
            f'<text x="{x:g}" y="10" text-anchor="{anchor}">{text}</text>'
            for x, anchor, text in places
        )
        ticks = f"M0 13v5M{half:g} 13v5M{_WIDTH} 13v5M0 17.5H{_WIDTH}"
        return (
            f'<svg class="interval" viewBox="0 0 {_WIDTH} 18" width="{_WIDTH}" height="18" role="img" '
            f'aria-label="scale of the change, {low} to {high}" font-size="11" fill="currentColor">'
            f'<path d="{ticks}" stroke="currentColor" fill="none"/>{texts}</svg>'
        )

    def image(self, change: Change) -> str:
        """Returns an SVG in the colour of the surrounding text; '' if the change has no ratio. The table row repeats
        the numbers as text. An estimate beyond the scale stands next to its arrow.
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
        if abs(_log(change.change)) > self._end:
            x, anchor = (12, "start") if change.change < 0 else (_WIDTH - 12, "end")
            parts.append(f'<text x="{x}" y="12" text-anchor="{anchor}">{size(change)}</text>')
        return (
            f'<svg class="interval" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
            f'stroke="currentColor" font-size="12" aria-hidden="true">{"".join(parts)}</svg>'
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
