"""Runs several configurations alternately, in the order A B, B A, A B, ...

A change in the machine's speed then affects all configurations equally, and no configuration always comes first.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.core.config.run_config import RunConfig
from harness.core.config.schema import MAX_SEED
from harness.core.console import say
from harness.core.files import write_json
from harness.errors import RunInvalid
from harness.loadgen.versions import seeds_of
from harness.results import run_folder
from harness.results.outcome import Measure
from harness.results.pages.words import letter_of
from harness.run.progress import Progress


def keep(folder: Path, runs: Sequence[str], tables: Sequence[str], verdicts: Sequence[str]) -> None:
    """Writes the comparisons of `rerun` to the folder that contains its runs, so that `browse` can show them.

    runs: the names that the user gave. tables, verdicts: one entry per comparison.
    """
    content = {"runs": list(runs), "tables": list(tables), "verdicts": list(verdicts)}
    try:
        write_json(folder / run_folder.TURNS, content)
    except OSError as e:
        say(f"{folder / run_folder.TURNS} cannot be written ({e.strerror})")


def run_in_turns(
    configs: Sequence[RunConfig], rounds: int, folder: Path, measure: Measure, *, quiet: bool
) -> tuple[int, list[list[Path]]]:
    """Returns the exit status, and the folders with each configuration's runs in `folder`: a-1, a-2, ...; b-1, ...

    All runs in a round share a schedule seed. If a run is stopped or dies, no more runs are made.
    """
    progress = Progress(quiet=quiet)
    made: list[list[Path]] = [[] for _ in configs]
    status = 0
    for number in range(rounds):
        turn = list(enumerate(configs))
        for side, config in reversed(turn) if number % 2 else turn:
            out = folder / f"{letter_of(side).lower()}-{number + 1}"
            seed = (seeds_of(configs[0]).schedule + number) & MAX_SEED
            seeded = config if config.mlperf else replace(config, schedule_seed=seed)
            progress.series(f"{out.name} of {rounds} rounds", None, "about")
            finished = measure(replace(seeded, out=out), progress=progress, quiet=True)
            status = max(status, finished.status)
            if finished.status not in (0, RunInvalid.exit_status):
                return status, made
            made[side].append(finished.folder)
            if not quiet:
                say(f"{out.name}: {finished.result['verdict']}")
    return status, made
