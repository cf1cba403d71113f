"""Lists cohorts, which are publication dates on the first and third Wednesday of each month."""

import re
from collections.abc import Sequence
from typing import NamedTuple

_NAME = re.compile(r"(\d{4})-(0[1-9]|1[0-2])-C([01])")


class Cohort(NamedTuple):
    """A publication date. Cohorts are ordered by date."""

    year: int
    month: int
    half: int

    @classmethod
    def parse(cls, text: str) -> "Cohort":
        """Raises a ValueError if the text is not a cohort name."""
        match = _NAME.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a cohort: write e.g. 2026-10-C1 (C0 or C1)")
        return cls(*map(int, match.groups()))

    def __str__(self) -> str:
        return f"{self.year:04}-{self.month:02}-C{self.half}"

    def next(self) -> "Cohort":
        if self.half == 0:
            return self._replace(half=1)
        return Cohort(self.year + self.month // 12, self.month % 12 + 1, 0)

    def following(self, count: int) -> Sequence["Cohort"]:
        """Returns `count` consecutive cohorts, beginning with this one."""
        found = [self]
        while len(found) < count:
            found.append(found[-1].next())
        return found


def cohort_or_none(text: object) -> Cohort | None:
    try:
        return Cohort.parse(text) if isinstance(text, str) else None
    except ValueError:
        return None
