"""The nodes' stages add up to the driver's own times, whatever the nodes' clocks show."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.results.evidence.stages import NODE_STAGES, NODE_STAMPS, edges_of
from harness.results.nodes.joined import placed
from harness.types import Array
from tests.builders.support import present

_spans = st.lists(st.integers(0, 10**6), min_size=6, max_size=6)


@st.composite
def journals(draw: st.DrawFn) -> tuple[dict[str, Array], dict[str, Array], list[list[int]]]:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=8))
    first = np.r_[0, np.cumsum(sizes)[:-1]]
    spans = [draw(_spans) for _ in sizes]
    offset_ns = draw(st.integers(-(10**12), 10**12))
    batch = np.repeat(np.arange(len(sizes)), sizes)
    sent = 10**18 + np.cumsum([draw(st.integers(0, 10**6)) for _ in sizes])
    arrived = sent + np.array([sum(each) for each in spans])
    columns = {
        "order": np.arange(sum(sizes)),
        "batch": batch,
        "failed": np.zeros(sum(sizes), np.int64),
        "taken_ns": sent[batch] - 7,
        "sent_ns": sent[batch],
        "arrived_ns": arrived[batch],
        "read_ns": arrived[batch] + 5,
    }
    # The first span belongs to the network and not to the node.
    of_node = np.cumsum([each[1:] for each in spans], axis=1)
    received = sent + offset_ns
    names = ("taken_ns", "gathered_ns", "inferred_ns", "postprocessed_ns", "sent_ns")
    rows = {"first": first, "received_ns": received}
    rows |= {name: received + of_node[:, i] for i, name in enumerate(names)}
    shuffled = np.random.default_rng(1).permutation(len(sizes))
    return columns, {name: values[shuffled] for name, values in rows.items()}, spans


@given(journals())
def test_stages_of_a_node_are_its_own_spans_and_the_network_is_the_rest(
    made: tuple[dict[str, Array], dict[str, Array], list[list[int]]],
) -> None:
    columns, rows, spans = made
    found = present(placed(columns, rows))
    assert (found["sent_ns"] == columns["sent_ns"]).all()
    stamps = [columns["sent_ns"], *(found[name] for name in NODE_STAMPS), columns["arrived_ns"]]
    spent = np.array([b - a for a, b in pairwise(stamps)]).T
    assert spent.tolist() == [spans[batch] for batch in columns["batch"].tolist()]


@given(journals())
def test_missing_row_of_an_answered_batch_prevents_node_stages(
    made: tuple[dict[str, Array], dict[str, Array], list[list[int]]],
) -> None:
    columns, rows, _ = made
    less = {name: values[1:] for name, values in rows.items()}
    assert placed(columns, less) is None
    lost = columns["batch"] == int(
        np.searchsorted(np.unique(np.r_[rows["first"]]), rows["first"][0])
    )
    columns["failed"] = lost.astype(np.int64)
    found = present(placed(columns, less))
    assert (found["received_ns"][lost] == columns["arrived_ns"][lost]).all()


@pytest.mark.parametrize(
    ("taken_ns", "expected"),
    [
        (-500, [-150, -150, -100, -50, 0, 50]),
        (-60, [-60, -60, -60, -50, 0, 50]),
        (0, [0, 0, 0, 0, 0, 50]),
    ],
)
def test_a_late_stamp_of_the_sending_takes_no_time_from_the_node(
    taken_ns: int, expected: list[int]
) -> None:
    """Bug: on a busy machine, half of all replies arrived before the sender's time stamp, and p50 of the nodes' infer
    was 0 ns.
    """
    at = np.array([10**9])
    columns = {"order": np.array([0]), "batch": np.array([0]), "failed": np.array([0])}
    columns |= {"taken_ns": at + taken_ns, "sent_ns": at}
    columns |= {"arrived_ns": at + 100, "read_ns": at + 101}
    names = ("received_ns", "taken_ns", "gathered_ns", "inferred_ns", "postprocessed_ns", "sent_ns")
    rows = {"first": np.array([0]), **{name: np.array([i * 50]) for i, name in enumerate(names)}}
    found = present(placed(columns, rows))
    assert [int(found[name][0] - at[0]) for name in ("sent_ns", *NODE_STAMPS)] == expected


def test_edges_of_a_run_on_nodes_are_in_order_and_without_gaps() -> None:
    columns = {"sent_ns", "arrived_ns", *NODE_STAMPS}
    edges = edges_of(columns)
    assert [name for name in edges if name in NODE_STAGES] == [*NODE_STAGES]
    assert all(a[1] == b[0] for a, b in pairwise(edges.values()))
    unstamped = edges_of({"sent_ns", *NODE_STAMPS})
    assert unstamped["reply"] == ("postprocessed_ns", "read_ns")
