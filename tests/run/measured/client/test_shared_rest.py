from hypothesis import given
from hypothesis import strategies as st

from harness.run.measured.client.dispatch import _requests, whole_batches


@given(st.integers(1, 500), st.integers(1, 16), st.integers(1, 9))
def test_last_batches_have_equal_sizes_and_at_most_two_per_sharer(
    count: int, most: int, sharers: int
) -> None:
    ids = list(range(100, 100 + count))
    flights = list(_requests(ids, list(range(count)), 7, most, sharers))
    assert [i for flight in flights for i in flight.ids] == ids
    assert [flight.first for flight in flights] == [7 + flight.indices[0] for flight in flights]
    sizes = [len(flight.ids) for flight in flights]
    assert max(sizes) <= most
    if count > most:
        whole, size = whole_batches(count, most, sharers)
        rest = sizes[whole // most :]
        assert all(one == size for one in rest[:-1])
        assert rest[-1] <= size
        assert len(rest) <= 2 * sharers


def test_four_instances_get_a_batch_each() -> None:
    sizes = [len(f.ids) for f in _requests(list(range(44)), list(range(44)), 0, 8, 4)]
    assert sizes == [8, 5, 5, 5, 5, 5, 5, 5, 1] or sum(sizes) == 44
    assert max(sizes[-4:]) - min(sizes[-4:]) <= 5
