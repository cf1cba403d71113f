"""The thread's time slice is shortened if the kernel allows it; otherwise the reason is returned."""

import os
import threading

import pytest

from harness.machine import slices
from harness.machine.slices import SLICE_NS, shorten_slice

SLICES_FROM = (6, 12)
"""The first Linux version with time slices per thread."""


def in_thread() -> tuple[str, int, int]:
    """Returns the result of shorten_slice in a new thread, and the slices of this thread and of its caller in ns."""
    found: list[tuple[str, int]] = []
    get = slices._GET[os.uname().machine]

    def work() -> None:
        found.append((shorten_slice(), slices._attributes(get)[slices._RUNTIME]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return (*found[0], slices._attributes(get)[slices._RUNTIME])


def test_kernel_shortens_the_slice_or_gives_the_reason() -> None:
    told, mine_ns, other_ns = in_thread()
    version = tuple(int(part) for part in os.uname().release.split(".")[:2])
    if version < SLICES_FROM:
        assert "has one slice for all threads" in told
    else:
        assert (told, mine_ns) == ("", SLICE_NS)
        assert other_ns > SLICE_NS


@pytest.mark.parametrize(
    ("policy", "error", "kept_ns", "told"),
    [
        (0, PermissionError(1, "Operation not permitted"), 0, "Operation not permitted"),
        (0, AttributeError("syscall"), 0, "only Linux has it"),
        (0, None, 3_000_000, "has one slice for all threads, Linux 6.12 and later one per thread"),
        (1, None, 0, "the thread is a real-time thread, which has no slice"),
        (3, None, SLICE_NS, ""),
    ],
)
def test_refusal_to_shorten_the_slice_has_its_reason(
    monkeypatch: pytest.MonkeyPatch, policy: int, error: Exception | None, kept_ns: int, told: str
) -> None:
    def call(*_: object) -> int:
        if error is not None:
            raise error
        return 0

    monkeypatch.setattr(slices, "call", call)
    if error is None:
        kept = (slices._ATTRIBUTES.size, policy, 0, 5, 0, kept_ns, 0, 0)
        monkeypatch.setattr(slices, "_attributes", lambda _get: kept)
    assert shorten_slice().endswith(told)
    assert bool(shorten_slice()) == bool(told)


def test_unknown_architecture_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "_GET", {})
    assert shorten_slice().startswith("the system call is not known for ")


def test_nothing_but_the_slice_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []
    before = (48, 3, 1, 7, 0, 2_800_000, 9, 11)
    monkeypatch.setattr(slices, "_attributes", lambda _get: before)
    monkeypatch.setattr(slices, "call", lambda *words: asked.append(words[3]))
    shorten_slice()
    assert slices._ATTRIBUTES.unpack(asked[0]) == (48, 3, 1, 7, 0, SLICE_NS, 9, 11)
