"""Checks a remote backend's setup: known options, and no setting that only a local backend can use."""

from collections.abc import Iterator, Mapping

from harness.types import BackendSetup


def setup_problems(backend: str, setup: BackendSetup, known: Mapping[str, str]) -> Iterator[str]:
    """Yields the settings that the backend cannot use. known: option -> its values, for messages."""
    have = " ".join(f"{option}={values}" for option, values in known.items())
    for option, value in setup.options.items():
        if option not in known:
            yield f"backend {backend!r} has no option {option!r}: it has {have}"
        elif not value:
            yield f"--backend-option {option}: the value is empty: it takes {known[option]}"
    if setup.device != "cpu":
        yield (
            f"backend {backend!r} has no --device {setup.device}: the server chooses what computes"
        )
    if setup.provider is not None:
        yield f"backend {backend!r} has no providers: drop --provider {setup.provider}"
