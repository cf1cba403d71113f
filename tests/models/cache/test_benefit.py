"""Before the run, popularity x load time / bytes decides which models stay in memory."""

from harness.models.cache.benefit import Benefit, Candidate, benefits, expected_load_ns


def test_models_that_save_most_per_byte_are_kept_within_the_capacity() -> None:
    found = benefits(
        [
            Candidate(0.5, 100, 50, False),  # this model saves 1 per byte
            Candidate(0.3, 1000, 100, False),  # this model saves 3 per byte
            # This model saves 1 per byte, and fits into the remaining space.
            Candidate(0.1, 10, 1, False),
            Candidate(0.1, 10, 10, True),  # this model saves little, but it is always resident
        ],
        111,
    )
    assert found == [Benefit(50, False), Benefit(300, True), Benefit(1, True), Benefit(1, True)]
    assert expected_load_ns(found) == 50


def test_model_without_requests_is_not_kept() -> None:
    (found,) = benefits([Candidate(0.0, 1000, 1, False)], 10)
    assert found == Benefit(0.0, False)


def test_popular_large_model_may_beat_a_tiny_rare_one() -> None:
    """Compares a rarely requested model of 0.5 MB that loads in 1 ms with a model of 528 MB that loads in 1.4 s."""
    tiny, vgg = (
        Candidate(0.001, 1_000_000, 500_000, False),
        Candidate(0.9, 1_400_000_000, 528_000_000, False),
    )
    assert [each.keep for each in benefits([tiny, vgg], 528_000_000)] == [False, True]
