"""Writes the tables of docs/tampering.md: python -m tests.adversaries.tampering_page."""

from pathlib import Path

from tests.adversaries.edits import EDITS
from tests.adversaries.forgeries import FORGERIES

PAGE = Path(__file__).parents[2] / "docs/tampering.md"


def _edits() -> str:
    lines = ["| run | file | edit | found by |", "|---|---|---|---|"]
    for edit in EDITS:
        found = f"`{edit.found}`" if edit.found else f"the seal alone: {edit.why}"
        lines.append(f"| {edit.run} | `{edit.file}` | `{edit.about}` | {found} |")
    return "\n".join(lines)


def _forgeries() -> str:
    lines = ["| run | forgery | found by |", "|---|---|---|"]
    for one in FORGERIES:
        found = f"`{one.found}`" if one.found else f"a signature alone: {one.why}"
        lines.append(f"| {one.run} | {one.about} | {found} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with its tables made anew."""
    for name, table in (("edits", _edits()), ("forgeries", _forgeries())):
        begin, end = (
            f"<!-- {name}: made by tests/adversaries/tampering_page.py -->",
            f"<!-- {name} end -->",
        )
        head, _, rest = text.partition(begin)
        text = f"{head}{begin}\n{table}\n{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
