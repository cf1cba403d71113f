"""Writes the text files in the tree, such as the instructions to reproduce a point and the witness's results."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness import __version__
from harness.submit.endpoints.points import Point
from harness.submit.endpoints.request import Request

REHEARSAL = """\
# Rehearsal

This folder was made by `endpoints pack` from a rehearsal. It is not a submission, and no number in it
is a result: its runs may be short and may use any data and any model. Only MLCommons can call a
result an MLPerf result.
"""

CLIENT = "client.md"


def readme(request: Request, proof: Mapping[str, Any]) -> str:
    """Returns src/<implementation>/README.md for a rehearsal whose user wrote no README."""
    return (
        f"# {request.tree_names[1]}\n\n"
        f"{REHEARSAL.partition(chr(10))[2].strip()}\n\n"
        f"{reproduce(proof)}"
    )


def reproduce(proof: Mapping[str, Any]) -> str:
    return (
        "## Reproduce a point\n\n"
        f"1. Check out mlcommons/endpoints at commit {proof.get('commit')}, and install it with Python 3.12.\n"
        "2. Correct the address of the server in `results/<system>/<model>/r<C>/config.yaml`.\n"
        "3. Run `inference-endpoint benchmark from-config --config config.yaml --mode perf`, "
        "or `--mode both` for a point with an accuracy result.\n"
    )


def client(proof: Mapping[str, Any], points: Sequence[tuple[Point, Mapping[str, Any]]]) -> str:
    """Returns docs/client.md, which shows the client's commit and digest, and the witness's result for each point."""
    lines = [
        "# Client",
        "",
        f"The runs were made by the unmodified client of mlcommons/endpoints, driven by mlperf-harness {__version__}.",
        "",
        "| fact | value |",
        "|---|---|",
        f"| commit | {proof.get('commit')} |",
        f"| `git status` before and after each point | {'clean' if not proof.get('changed') else 'changed'} |",
        f"| files | {proof.get('files')} |",
        f"| SHA-256 over all files | {proof.get('digest')} |",
        "",
        "`endpoints witness` recomputed the numbers of each result_summary.json from the client's events:",
        "",
        "| point | numbers | equal | doubts |",
        "|---|---|---|---|",
        *_rows(points),
        "",
    ]
    return "\n".join(lines)


def _rows(points: Sequence[tuple[Point, Mapping[str, Any]]]) -> Iterator[str]:
    for point, found in points:
        rows = found["rows"]
        equal = sum(bool(row["agrees"]) for row in rows)
        doubts = "; ".join(one["text"] for one in found["doubts"]) or "none"
        yield f"| {point.name} | {len(rows)} | {equal} | {doubts} |"
