"""The table of nodes: the work of each node, and sentences about nodes that were slow, lost, silent or changed their
clock.
"""

from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any

from harness.results.nodes.section import no_score
from harness.results.pages import run_table
from harness.results.pages.node_table import node_table
from harness.results.pages.tables import aligned
from tests.builders.golden_answers import golden
from tests.builders.support import present

NODE: dict[str, Any] = {
    "node": "10.0.0.1:7000",
    "machine": "first",
    "completed_per_s": 1234.5,
    "samples": 300,
    "batches": 40,
    "failed": 0,
    "infer_p50_ns": 2_000_000,
    "infer_p99_ns": 3_000_000,
    "queue_p50_ns": 100_000,
    "network_p50_ns": 50_000,
    "clock_offset_ns": -1_000,
    "clock_error_ns": 8_000,
    "clock_step_ns": 0,
    "lost": "",
    "lost_samples": 0,
    "no_journal": "",
    "host": {"cpu_shares": {"idle": 0.25, "iowait": 0.05, "user": 0.7}},
    "no_host": "",
}
OTHER = {**NODE, "node": "10.0.0.2:7000", "samples": 100, "batches": 10}


def test_shares_are_of_all_nodes() -> None:
    table = present(node_table({"nodes": [NODE, OTHER], "doubts": []}))
    first, second = ([*row] for row in table.rows)
    assert first[1:5] == ["first", "1,234", 0.75, 0.8]
    assert second[3:5] == [0.25, 0.2]
    assert abs(float(first[-1] or 0) - 0.7) < 1e-9
    assert table.notes == ()
    assert any(
        "70.0 %" in line and "10.0.0.1:7000" in line for line in aligned(table.columns, table.rows)
    )


def test_notes_name_slow_lost_and_silent_nodes() -> None:
    silent = {**OTHER, "no_journal": "it was cut off", "host": None, "no_host": "too old"}
    lost = {**NODE, "node": "c:3", "samples": 0, "lost": "no answer for 2 s", "lost_samples": 8}
    stepped = {**NODE, "node": "d:4", "clock_step_ns": 2_000_000_000}
    slow = {"code": "node-slower", "text": "d:4 takes 9 ms for a batch"}
    table = present(node_table({"nodes": [silent, lost, stepped], "doubts": [slow]}))
    assert table.notes == (
        "10.0.0.2:7000 sent no journal: it was cut off.",
        "10.0.0.2:7000 reported nothing about its machine: too old.",
        "c:3 was lost with 8 samples: no answer for 2 s.",
        "The clock of d:4 was set by 2.00 s in the run.",
        "d:4 takes 9 ms for a batch.",
    )


def test_accuracy_run_does_not_wait_for_a_lost_node() -> None:
    """Bug: the metrics page sent a new request to the lost node, and gave up after 10 s."""
    lost = {"node": "c:3", "lost": "no answer for 2 s"}
    ended: Any = {"client": {"nodes": [{"node": "a:1", "lost": ""}, lost]}}
    assert no_score(Namespace(ended=ended)) == "the performance run lost c:3"  # type: ignore[arg-type]
    ended["client"]["nodes"].pop()
    assert no_score(Namespace(ended=ended)) == no_score(None) == ""  # type: ignore[arg-type]


def test_a_run_without_nodes_has_no_table() -> None:
    assert node_table({}) is None


def test_the_screen_has_the_notes_below_the_table() -> None:
    """Bug: only the page had the notes, so on the screen a lost node looked like the busiest one."""
    lost = {**NODE, "node": "c:3", "lost": "no answer for 2 s", "lost_samples": 8}
    result = golden("offline", nodes=[OTHER, lost])
    lines = [*run_table.lines(result, Path("r"), details=True)]
    assert "c:3 was lost with 8 samples: no answer for 2 s." in lines
