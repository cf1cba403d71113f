"""The harness distinguishes steps of the wall clock from slewing."""

import pytest

from harness.core.clock import ClockWatch
from harness.core.units import NS_PER_MS, NS_PER_S


@pytest.mark.parametrize(
    ("gap_ns", "moved_ns", "step_ns"),
    [
        (NS_PER_S // 4, 2 * NS_PER_MS, 2 * NS_PER_MS),
        (NS_PER_S // 4, -2 * NS_PER_MS, -2 * NS_PER_MS),
        (NS_PER_S // 4, 100_000, 0),  # a slew of 400 ppm is not a step
        # The kernel slewed the clock by 400 ppm while the supervisor was stopped.
        (3 * NS_PER_S, 1_200_000, 0),
        (3 * NS_PER_S, 2 * NS_PER_MS, 2 * NS_PER_MS),
    ],
)
def test_a_step_is_more_than_the_kernel_slews(gap_ns: int, moved_ns: int, step_ns: int) -> None:
    """Bug: a run whose supervisor was stopped for 3 s became INVALID if the clock was slewed at the same time."""
    clock = ClockWatch()
    clock.add(0, 5)
    clock.add(gap_ns, 5 + moved_ns)
    assert clock.largest_step_ns == step_ns
