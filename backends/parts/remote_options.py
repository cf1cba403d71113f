"""Checks the setup of a remote backend, and reads options that several remote backends share."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from harness.errors import ConfigError
from harness.types import BackendSetup

_MOST_SIZE = 2**31


def setup_problems(backend: str, setup: BackendSetup, known: Mapping[str, str]) -> Iterator[str]:
    """Yields each setting that the backend cannot use. known: maps an option to a description of its values, for
    messages.
    """
    for option, value in setup.options.items():
        if option not in known:
            yield f"backend {backend!r} has no option {option!r}: {_instead(option, known)}"
        elif not value:
            yield f"--backend-option {option}: the value is empty: it takes {known[option]}"
    if setup.device != "cpu":
        yield f"backend {backend!r} does not support --device {setup.device}: the server chooses the device"
    if setup.provider is not None:
        yield f"backend {backend!r} has no providers: drop --provider {setup.provider}"
    if setup.provider_options:
        yield f"backend {backend!r} has no providers: drop --provider-option"


def _instead(option: str, known: Mapping[str, str]) -> str:
    if near := get_close_matches(option, known, n=1):
        return f"did you mean {near[0]!r}?"
    return f"choose from {' '.join(f'{name}={values}' for name, values in known.items())}"


def answer_shape(text: str, *, may_vary: bool = False) -> tuple[int | None, ...]:
    """Parses the shape of one answer, such as `10` or `3x4`. may_vary: whether ? is allowed, which stands for a varying
    size and becomes None.
    """
    sizes = text.split("x")
    if not all(_is_size(size) or (may_vary and size == "?") for size in sizes):
        raise ConfigError(
            f"--backend-option shape: {text!r} is not an answer shape such as 10 or 3x4"
        )
    return tuple(None if size == "?" else int(size) for size in sizes)


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < _MOST_SIZE
