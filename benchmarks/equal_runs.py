"""Counts how often `compare` calls equal runs different, and how often it detects a model made 10 % slower.

    python benchmarks/equal_runs.py [--rounds 15] [--folder DIR] [--only NAME ...]

Each round makes three runs of each workload: `a` and `b` with the model itself, and `slow` with 10 % added to each
inference. Every second round has the reverse order. A sleeper shows what `compare` finds if the machine's speed does
not drift. Then all groups of 1, 3 and 5 rounds are compared: a with b, in turns; a with the a of the next rounds, one
side after the other; and a with slow, in turns. With --folder, the runs are kept, and finished runs are used again.
"""

import argparse
import io
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

from harness.cli.main import main as harness
from harness.core.console import say, show
from harness.results import run_folder
from harness.results.compare.compare import BETTER, SAME, UNDECIDED, WORSE, compare
from harness.results.compare.finished import FinishedRun, read
from harness.results.pages.tables import Column, aligned

SLOWER = """\
import time
from harness.backends.ort import OrtBackend

class Slower(OrtBackend):
    def infer(self, batch):
        begun_ns = time.perf_counter_ns()
        answers = super().infer(batch)
        end_ns = begun_ns + (time.perf_counter_ns() - begun_ns) * 11 // 10
        while time.perf_counter_ns() < end_ns:
            pass
        return answers
"""

_SQUEEZENET = ("--model", "light/squeezenet")
WORKLOADS = {
    "null single-stream": ("--backend", "null", "--scenario", "single-stream"),
    "digits single-stream": ("--scenario", "single-stream"),
    "digits multi-stream": ("--scenario", "multi-stream"),
    "digits server": ("--scenario", "server", "--target-qps", "2000"),
    "digits offline": ("--scenario", "offline"),
    "squeezenet single-stream": ("--scenario", "single-stream", *_SQUEEZENET),
    "squeezenet offline": ("--scenario", "offline", *_SQUEEZENET),
    "squeezenet server": ("--scenario", "server", "--target-qps", "40", *_SQUEEZENET),
    "sleeper single-stream": ("--scenario", "single-stream"),
    "sleeper offline": ("--scenario", "offline", "--max-batch", "1"),
    "sleeper server": ("--scenario", "server", "--target-qps", "100"),
}
"""Name -> options."""

SLEEP_MS = 5.0

GROUPS = (1, 3, 5)
_VERDICTS = (BETTER, WORSE, SAME, UNDECIDED, "not comparable")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=tuple(WORKLOADS), default=tuple(WORKLOADS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "slower.py").write_text(SLOWER, encoding="utf-8")
        for number in range(options.rounds):
            for name in options.only:
                _make_round(folder, name, number)
            say(f"round {number + 1} of {options.rounds}")
        _show(folder, options.only, options.rounds)


def _make_round(folder: Path, name: str, number: int) -> None:
    sides: list[tuple[str, Sequence[str]]]
    if name.startswith("sleeper"):
        usual = _sleeping(SLEEP_MS)
        sides = [("a", usual), ("b", usual), ("slow", _sleeping(1.1 * SLEEP_MS))]
    else:
        slower = ("--backend", f"{folder / 'slower.py'}:Slower")
        sides = [("a", ()), ("b", ())] + ([("slow", slower)] if "null" not in name else [])
    for side, more in reversed(sides) if number % 2 else sides:
        out = _run(folder, name, side, number)
        if (out / run_folder.RESULT).is_file():
            continue
        words = [*WORKLOADS[name], "--duration", "1s", "--mode", "performance", "--no-report"]
        with redirect_stdout(io.StringIO()):
            harness([*words, "--quiet", "--out", str(out), *more])


def _sleeping(service_ms: float) -> Sequence[str]:
    backend = f"{Path(__file__).with_name('sleeper.py')}:Sleeper"
    return "--backend", backend, "--backend-option", f"service_ms={service_ms:g}"


def _run(folder: Path, name: str, side: str, number: int) -> Path:
    return folder / name.replace(" ", "-") / f"{side}-{number + 1}"


def _show(folder: Path, names: Sequence[str], rounds: int) -> None:
    """Prints a row per workload, number of runs per side, and order: the number of pairs, and their verdicts."""
    rows = []
    for name in names:
        for runs in GROUPS:
            for title, before, after in (
                ("equal, in turns", "a", "b"),
                ("equal, one side after the other", "a", "a"),
                ("10 % slower, in turns", "a", "slow"),
            ):
                counts = _verdicts(folder, name, (before, after), runs, rounds)
                if counts:
                    rows.append((name, str(runs), title, counts))
    heads = [Column("workload"), Column("runs a side", "count"), Column("sides")]
    columns = [*heads, Column("pairs", "count"), *map(Column, _VERDICTS)]
    cells = [
        (*row, str(counts.total()), *(str(counts[verdict]) for verdict in _VERDICTS))
        for *row, counts in rows
    ]
    show("\n".join(aligned(columns, cells)))
    for kind in ("equal", "10 % slower"):
        of_kind = [counts for _, _, title, counts in rows if title.startswith(kind)]
        judged = sum(counts[BETTER] + counts[WORSE] for counts in of_kind)
        show(f"{kind}: {judged} of {sum(c.total() for c in of_kind)} pairs better or worse")


def _verdicts(
    folder: Path, name: str, sides: tuple[str, str], runs: int, rounds: int
) -> Counter[str]:
    """Returns the verdicts of groups that do not overlap; skips groups with a missing run."""
    before, after = sides
    step = 2 * runs if before == after else runs
    counts: Counter[str] = Counter()
    for first in range(0, rounds - step + 1, step):
        shift = runs if before == after else 0
        groups = [
            [_read(_run(folder, name, side, first + moved + i)) for i in range(runs)]
            for side, moved in ((before, 0), (after, shift))
        ]
        ours, theirs = ([run for run in group if run is not None] for group in groups)
        if len(ours) == len(theirs) == runs:
            counts[compare(ours, theirs).verdict or "not comparable"] += 1
    return counts


@cache
def _read(folder: Path) -> FinishedRun | None:
    return read(folder) if (folder / run_folder.RESULT).is_file() else None


if __name__ == "__main__":
    main()
