"""Counts how often `compare` calls equal runs different, and how often it detects a model that was made 10 % slower.

    python benchmarks/equal_runs.py [--rounds 45] [--minutes 30] [--folder DIR] [--only NAME ...]

Each round makes four runs of each workload: `a`, `b` and `c` with the unchanged model, and `slow` with 10 % added to
each inference. Every second round uses the reverse order. The workload with a sleeping model shows what `compare` finds
if the machine's speed does not drift. Then the script compares all groups of 1, 3 and 5 rounds. As alternating runs, it
compares `a`, `b` and `c` with each other, and each of them with `slow`. As consecutive runs, it compares each of `a`,
`b` and `c` with the same side in the next rounds. The pairs of a group share runs, so the counts vary more than if all
pairs were independent. --minutes limits the duration; only finished rounds are counted. With --folder, the script keeps
the runs, and uses finished runs again.
"""

import argparse
import io
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import cache
from itertools import combinations
from pathlib import Path
from time import monotonic

from harness.cli.main import main as harness
from harness.core.console import say, show
from harness.core.units import show_percent
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
    "digits offline": ("--scenario", "offline", "--max-batch", "64"),
    "squeezenet single-stream": ("--scenario", "single-stream", *_SQUEEZENET),
    "squeezenet offline": ("--scenario", "offline", "--max-batch", "8", *_SQUEEZENET),
    "squeezenet server": ("--scenario", "server", "--target-qps", "40", *_SQUEEZENET),
    "sleeper single-stream": ("--scenario", "single-stream"),
    "sleeper offline": ("--scenario", "offline", "--max-batch", "1"),
    "sleeper server": ("--scenario", "server", "--target-qps", "100"),
}
"""Maps a workload's name to its options. Offline uses a fixed batch size, because runs whose warm-ups chose different
sizes are not comparable.
"""

SLEEP_MS = 5.0

SHORT = (
    *("digits multi-stream", "digits offline"),
    *("squeezenet single-stream", "squeezenet offline"),
)
"""Short workloads whose main number depends mostly on the model's time. On two idle cores, the short workloads give 100
pairs of each kind at DEFAULT_RUNS within half an hour.
"""

EQUAL = ("a", "b", "c")
SLOWER_SIDE = "slow"

GROUPS = (1, 3, 5)
DEFAULT_RUNS = 5
"""Number of runs per side of `rerun A B` without --repeats."""

IN_TURNS, ONE_AFTER_OTHER, SLOWER_PAIRS = (
    "equal, in turns",
    "equal, one side after the other",
    "10 % slower, in turns",
)
_BARS = {IN_TURNS: (0.0, 0.05), SLOWER_PAIRS: (0.90, 1.0)}
"""Maps a kind of pairs to the smallest and largest share of its pairs that may be called faster or slower at
DEFAULT_RUNS.
"""

_VERDICTS = (BETTER, WORSE, SAME, UNDECIDED, "not comparable")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=45)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=tuple(WORKLOADS), default=SHORT)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "slower.py").write_text(SLOWER, encoding="utf-8")
        begun_s, made = monotonic(), 0
        for number in range(options.rounds):
            spent_s = monotonic() - begun_s
            if made and spent_s * (made + 1) / made > options.minutes * 60:
                say(f"ended after {made} rounds: {options.minutes:g} minutes are over")
                break
            for name in options.only:
                _make_round(folder, name, number)
            made += 1
            say(f"round {made} of {options.rounds}")
        _show(folder, options.only, made)


def _make_round(folder: Path, name: str, number: int) -> None:
    usual: Sequence[str] = ()
    slower: Sequence[str] = ("--backend", f"{folder / 'slower.py'}:Slower")
    if name.startswith("sleeper"):
        usual, slower = _sleeping(SLEEP_MS), _sleeping(1.1 * SLEEP_MS)
    sides = [(side, usual) for side in EQUAL]
    sides += [(SLOWER_SIDE, slower)] if "null" not in name else []
    for side, more in reversed(sides) if number % 2 else sides:
        out = _run(folder, name, side, number)
        if (out / run_folder.RESULT).is_file():
            continue
        words = [*WORKLOADS[name], "--duration", "1s", "--mode", "performance", "--no-report"]
        with redirect_stdout(io.StringIO()):
            harness([*words, "--no-metrics", "--quiet", "--out", str(out), *more])


def _sleeping(service_ms: float) -> Sequence[str]:
    backend = f"{Path(__file__).with_name('sleeper.py')}:Sleeper"
    return "--backend", backend, "--backend-option", f"service_ms={service_ms:g}"


def _run(folder: Path, name: str, side: str, number: int) -> Path:
    return folder / name.replace(" ", "-") / f"{side}-{number + 1}"


def _show(folder: Path, names: Sequence[str], rounds: int) -> None:
    """Prints one row per workload, number of runs per side and order, with the number of pairs and their verdicts."""
    rows = []
    for name in names:
        for runs in GROUPS:
            for title, pairs in _PAIRS.items():
                counts: Counter[str] = Counter()
                for pair in pairs:
                    counts += _verdicts(folder, name, pair, runs, rounds)
                if counts:
                    rows.append((name, runs, title, counts))
    heads = [Column("workload"), Column("runs a side", "count"), Column("sides")]
    columns = [*heads, Column("pairs", "count"), *map(Column, _VERDICTS)]
    cells = [
        (name, str(runs), title, str(counts.total()), *(str(counts[v]) for v in _VERDICTS))
        for name, runs, title, counts in rows
    ]
    show("\n".join(aligned(columns, cells)))
    for runs in GROUPS:
        for title in _PAIRS:
            found = [counts for _, number, kind, counts in rows if (number, kind) == (runs, title)]
            show(_sum_line(title, runs, sum(found, Counter())))


_PAIRS = {
    IN_TURNS: tuple(combinations(EQUAL, 2)),
    ONE_AFTER_OTHER: tuple((side, side) for side in EQUAL),
    SLOWER_PAIRS: tuple((side, SLOWER_SIDE) for side in EQUAL),
}


def _sum_line(title: str, runs: int, counts: Counter[str]) -> str:
    """Returns the share of pairs that were called faster or slower (for pairs with `slow`, only slower), next to its
    bar.
    """
    judged = counts[WORSE] + (0 if title == SLOWER_PAIRS else counts[BETTER])
    words = "slower" if title == SLOWER_PAIRS else "faster or slower"
    line = f"{title}, {runs} a side: {judged} of {counts.total()} pairs {words}"
    if runs != DEFAULT_RUNS or title not in _BARS or not counts:
        return line
    least, most = _BARS[title]
    bar = f"at least {show_percent(least)}" if least else f"at most {show_percent(most)}"
    is_met = least <= judged / counts.total() <= most
    return f"{line}; the bar is {bar}: {'met' if is_met else 'missed'}"


def _verdicts(
    folder: Path, name: str, sides: tuple[str, str], runs: int, rounds: int
) -> Counter[str]:
    """Returns the verdicts of groups that do not overlap, and skips groups with a missing run."""
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
