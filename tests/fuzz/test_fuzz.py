"""Each broken file causes one line at most: no traceback, no hang, no large use of memory.

corpus/TARGET/ contains the files that once failed; every test run reads them again. The search with new files is slow;
run it with `pytest tests/fuzz -m slow`. FUZZ_SEED and FUZZ_ROUNDS set the first seed and the number of rounds.
"""

import contextlib
import hashlib
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from harness.errors import PluginUnavailable
from tests.fuzz.targets import OWN_ERRORS, TARGETS

CORPUS = Path(__file__).parent / "corpus"
SEED = int(os.environ.get("FUZZ_SEED", "0"))
ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "300"))
FAST_ROUNDS = 20
LIMIT_S = 10
"""Maximum processor time per file, in s."""

MOST_BYTES = 3 << 30
"""Address space that a reader may add, including the threads of a framework."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Stops a reader that takes too much time or memory."""

    def stop(*_: object) -> None:
        raise AssertionError(f"it took more than {LIMIT_S} s of processor time")

    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    resource.setrlimit(
        resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGESIZE") + MOST_BYTES, limits[1])
    )
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def read(target: str, content: bytes, folder: Path) -> None:
    folder.mkdir()
    with limited(), contextlib.suppress(*OWN_ERRORS):
        TARGETS[target].read(content, folder)


def search(target: str, rounds: int, folder: Path) -> None:
    """Reads files broken with the seeds from SEED on, and adds each file that fails to the corpus."""
    seeds = TARGETS[target].seeds()
    for number in range(SEED, SEED + max(1, int(rounds * TARGETS[target].share))):
        random = Random(f"{target} {number}")
        content = TARGETS[target].mutate(random.choice(seeds), random)
        try:
            read(target, content, folder / str(number))
        except BaseException as e:
            name = hashlib.sha256(content).hexdigest()[:12]
            (CORPUS / target.replace("/", "+")).mkdir(exist_ok=True)
            (CORPUS / target.replace("/", "+") / name).write_bytes(content)
            e.add_note(f"{target}, seed {number}: kept as {name}")
            raise


KEPT = sorted(path for path in CORPUS.glob("*/*") if path.is_file())


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_file_that_once_failed_is_refused_in_one_line(path: Path, tmp_path: Path) -> None:
    read(path.parent.name.replace("+", "/"), path.read_bytes(), tmp_path / "one")


@pytest.mark.parametrize("target", TARGETS)
def test_a_whole_file_is_read(target: str, tmp_path: Path) -> None:
    for number, content in enumerate(TARGETS[target].seeds()):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            TARGETS[target].read(content, folder)
        except PluginUnavailable as e:
            pytest.skip(str(e))


@pytest.mark.parametrize("target", TARGETS)
def test_a_few_broken_files_are_read_or_refused(target: str, tmp_path: Path) -> None:
    search(target, FAST_ROUNDS, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_many_broken_files_are_read_or_refused(target: str, tmp_path: Path) -> None:
    search(target, ROUNDS, tmp_path)
