"""The type of the fixtures `prints` and `refuses`, which call the command in the test's own process."""

from collections.abc import Callable

Said = Callable[..., str]
"""(*words, status=STATUS) -> what the command said."""
