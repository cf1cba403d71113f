"""Writes the tables of docs/tampering.md. Run it with `python -m tests.adversaries.tampering_page`."""

from collections.abc import Iterable
from pathlib import Path

from tests.adversaries.edits import EDITS, Edit
from tests.adversaries.forgeries import FORGERIES, Forgery

PAGE = Path(__file__).parents[2] / "docs/tampering.md"


def _table(heads: str, rows: Iterable[tuple[str, Edit | Forgery]], alone: str) -> str:
    """rows: for each row, its cells except the last, and its edit. alone: what reveals an edit that no file
    contradicts.
    """
    lines = [f"| {heads} | found by |", "|---" * (heads.count("|") + 2) + "|"]
    for cells, one in rows:
        found = f"`{one.found}`" if one.found else f"{alone} alone: {one.why}"
        lines.append(f"| {cells} | {found} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """Returns the page with its tables updated."""
    edits = ((f"{edit.run} | `{edit.file}` | `{edit.about}`", edit) for edit in EDITS)
    forgeries = ((f"{one.run} | {one.about}", one) for one in FORGERIES)
    tables = {
        "edits": _table("run | file | edit", edits, "the seal"),
        "forgeries": _table("run | forgery", forgeries, "a signature"),
    }
    for name, table in tables.items():
        begin, end = (
            f"<!-- {name}: made by tests/adversaries/tampering_page.py -->",
            f"<!-- {name} end -->",
        )
        head, _, rest = text.partition(begin)
        text = f"{head}{begin}\n{table}\n{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
