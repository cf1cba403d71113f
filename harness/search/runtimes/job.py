"""Finds the fastest backend for a model (`sweep --backend all`). First compares the answers, and then performs
alternating runs.

The folder contains the runs in `runs/`, the compared answers in `answers/`, and a summary in runtimes.json,
runtimes.csv and runtimes.html. The same command with the same --out continues a stopped comparison: it answers again,
and makes only the runs that are missing.
"""

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.core import files
from harness.core.child import call
from harness.core.codes import INTERRUPTED
from harness.core.config.run_config import SCHEMA_VERSION, to_plain
from harness.core.config.schema import MAX_SEED
from harness.core.stats import queries_needed
from harness.core.units import NS_PER_S, show_wait
from harness.errors import ConfigError, HarnessError, PluginUnavailable, RunInvalid, one_line
from harness.loadgen.scenario import scenario_named
from harness.loadgen.versions import seeds_of
from harness.results import run_folder
from harness.results.compare.finished import read
from harness.results.outcome import Finished
from harness.run.study import Ended, Study, other_reason, show_result, write_csv, write_page
from harness.run.supervisor import preflight
from harness.search.grid.cells.cells import Cell, config_of, labels
from harness.search.grid.variants import Variants
from harness.search.runtimes import standing, table
from harness.search.runtimes.answers import Compared, compared
from harness.search.runtimes.choice import CELL_S, Contest, Plan
from harness.search.runtimes.reference import Doubt, doubt_of
from harness.search.runtimes.standing import Entry

ANSWERS = "answers"
RUNS = "runs"
CSV = "runtimes.csv"
LOG = "answers.log"
"""File with the output of the child processes that compute the answers."""

NOISE_PROBE_S = 0.2
"""Length of the noise probe before each run. The noise probe before an ordinary run takes one second."""

SURE_ROUNDS = 2
"""This many rounds are always made, because one run per cell does not show noise."""

HOPELESS = 4.0
"""A cell may be dropped if it is slower than the fastest cell by more than this factor. A cell is not run at all if its
samples took more than this many times as long as the fastest cell's samples when answers were compared, and its first
run would take longer than CELL_S.
"""


def show_stored(folder: Path, *, as_json: bool = False) -> int:
    """Prints the table from runtimes.json (--from)."""
    content = files.read_json(folder / run_folder.RUNTIMES)
    with files.reading(f"{folder / run_folder.RUNTIMES} was not written by `sweep --backend`"):
        lines = list(table.lines(content, folder))
    show_result(lambda: content, lambda: lines, as_json=as_json)
    return 0


def _key(cell: Cell) -> str:
    """Returns the name of the cell's files."""
    return cell.key.removesuffix(f"-b{cell.batch}")


class _Standing:
    """One model's cells while they are measured."""

    def __init__(self, contest: Contest, name: str) -> None:
        self.contest = contest
        self.name = name
        """The model's name in tables."""
        self.label = standing.labels(contest.cells)
        self.entries = [Entry(cell) for cell in contest.cells]
        self.first: Entry | None = None
        """The cell whose answers serve as the reference for all other cells."""
        self.doubt: Doubt | None = None
        """Reason to doubt the first cell's answers."""
        self.dataset_digest: str | None = None
        self.ended = ""
        """Reason why the rounds ended: decided, time or rounds; '' before the rounds end."""

    def to_json(self) -> dict[str, Any]:
        name = standing.decides(self.entries)
        return {
            "model": self.name,
            "decides": name,
            "ended": self.ended or None,
            "compared_with": self.label[self.first.cell] if self.first else None,
            "reference_doubt": self.doubt._asdict() if self.doubt else None,
            "left_out": dict(self.contest.left_out),
            "unread": {name: list(formats) for name, formats in self.contest.unread.items()},
            "ahead": standing.ahead(self.entries, self.label),
            "cells": table.cells_of(self.entries, self.label),
        }

    @property
    def is_answered(self) -> bool:
        """Returns whether a cell is ranked whose answers no other backend contradicts, or one other confirms."""
        is_contradicted = self.doubt is not None and not self.doubt.is_confirmed
        return any(entry.is_ranked for entry in self.entries) and not is_contradicted


def _outcome(one: _Standing, entry: Entry) -> str:
    if entry is one.first:
        return "the others are compared with these"
    return entry.differs or "equal"


class _RuntimesJob(Study[Plan]):
    file = run_folder.RUNTIMES
    continuation = "the same command with --out {folder} continues it"

    def _begin(self) -> None:
        config, plan = self._config, self._options
        self._since_s = time.monotonic()
        self._took_s: float | None = None
        names = labels([one.model for one in plan.contests])
        self._standings = [_Standing(one, names[one.model]) for one in plan.contests]
        self._precisions: dict[str, Any] = {}
        self._plugins_missing = 0
        self._first_seed = seeds_of(config).schedule
        models = "models" if len(names) > 1 else next(iter(names.values()))
        scenario = f"runtimes-{config.scenario}"
        self._plain = to_plain(replace(config, out=None))
        if self._open_folder(scenario, "+".join(plan.backends), models):
            self._take_stored(files.read_json(self.folder / self.file))

    def _take_stored(self, stored: Mapping[str, Any]) -> None:
        """Continues an earlier call in this folder. Its time counts towards the time limit."""
        with files.reading(f"{self.folder / self.file} was not written by `sweep --backend`"):
            before = {**stored["config"], **stored["axes"]}
            self._check_same(
                "comparison of backends", {**self._plain, **self._options.axes}, before
            )
            self._precisions |= stored["precisions"]
            self._since_s -= float(stored["took_s"])

    def has_measured(self) -> bool:
        return any((self.folder / RUNS).glob("*"))

    def lines(self) -> Iterator[str]:
        return table.lines(self.content(), self.folder)

    def run(self) -> int:
        """Performs the runs. Returns 4 if no cell is ranked, or if all backends contradict the reference, and 0 otherwise. If
        every cell failed to run, raises an error with the reasons.
        """
        for name in (ANSWERS, RUNS):
            (self.folder / name).mkdir(exist_ok=True)
        if not (self.folder / self.file).is_file():
            # The file is written first, because the same command later recognises its folder by it.
            self._save()
        cells = sum(len(one.entries) for one in self._standings)
        done = 0
        for one in self._standings:
            done += len(one.entries)
            deadline_s = self._since_s + self._options.limit_s * done / cells
            try:
                self._prepare_all(one)
                self._rounds(one, deadline_s)
            finally:
                self._save()
        self._raise_if_nothing_ran()
        self._took_s = time.monotonic() - self._since_s
        self._save()
        content = self.content()
        write_csv(self.folder / CSV, *table.csv_of(content))
        if not self._config.no_report:
            from harness.search.runtimes.page import write

            write_page(write, content, self.folder)
        is_answered = any(one.is_answered for one in self._standings)
        return 0 if is_answered else RunInvalid.exit_status

    def _raise_if_nothing_ran(self) -> None:
        entries = [entry for one in self._standings for entry in one.entries]
        if all(entry.absent for entry in entries):
            shutil.rmtree(self.folder / ANSWERS, ignore_errors=True)
            reasons = [
                f"{one.label[entry.cell]}: {entry.absent}"
                for one in self._standings
                for entry in one.entries
            ]
            all_need_plugins = self._plugins_missing == len(entries)
            error = PluginUnavailable if all_need_plugins else ConfigError
            raise error("\n".join(dict.fromkeys(reasons)))

    def _prepare_all(self, one: _Standing) -> None:
        """Runs the same samples in every cell, and compares the answers with the first cell's answers."""
        real = any(entry.cell.data == "real" for entry in one.entries)
        variants = Variants(
            common=replace(self._config, out=None),
            folder=self.folder,
            precisions=self._precisions,
            calibration_dir=self._options.calibration_dir,
            real=real,
            quiet=self._quiet,
        )
        for number, entry in enumerate(one.entries, 1):
            text = f"{one.name}: answers {number} of {len(one.entries)}: {one.label[entry.cell]}"
            self._progress.series(text, None)
            self._progress.show("comparing answers")
            try:
                self._prepare(one, entry, variants)
            except HarnessError as e:
                entry.absent = one_line(e)
                self._plugins_missing += isinstance(e, PluginUnavailable)
                self._say(f"{text}: absent: {entry.absent}")
            else:
                self._say(f"{text}: {_outcome(one, entry)}")
        one.doubt = doubt_of(one.entries, one.first, self._alike)
        self._drop_hopeless(one)

    def _prepare(self, one: _Standing, entry: Entry, variants: Variants) -> None:
        """Builds the configuration for the cell's runs, and runs the samples with it to collect the answers. Raises
        HarnessError if the cell cannot run.
        """
        cell = entry.cell
        with self._stopping.allowed():
            way, file = variants.made(cell)
            config = config_of(cell, variants.common, way, file)
            config = replace(
                config,
                max_batch=variants.common.max_batch,
                samples_per_query=variants.common.samples_per_query,
            )
            run = preflight.resolve(config)
            preflight.obtain_model(config, run.model)
            request = {
                "config": to_plain(config),
                "spec": run.instances._asdict(),
                "dataset": run.dataset,
                "out": str(self._answers(entry).absolute()),
            }
            reply = call("harness.search.runtimes.answers:answer", request, self.folder / LOG)
        entry.config, entry.about, entry.sample_ns = config, reply["backend"], reply["sample_ns"]
        if one.first is None:
            one.first = entry
            return
        entry.answers = self._compared(one.first, entry)

    def _answers(self, entry: Entry) -> Path:
        """Returns the file with a cell's answers."""
        return self.folder / ANSWERS / f"{_key(entry.cell)}.npz"

    def _compared(self, first: Entry, other: Entry) -> Compared | None:
        precisions = [entry.about.get("precision") for entry in (first, other)]
        return compared(self._answers(first), self._answers(other), precisions)

    def _alike(self, first: Entry, other: Entry) -> bool:
        found = self._compared(first, other)
        return found is not None and not found.differs

    def _drop_hopeless(self, one: _Standing) -> None:
        scenario = scenario_named(self._config.scenario)
        known = [entry for entry in one.entries if entry.sample_ns]
        if not known or scenario.all_at_once or self._config.queries is not None:
            return
        fastest = min(known, key=lambda entry: entry.sample_ns or 0.0)
        query = scenario.samples_per_query(self._config)
        least = queries_needed(1, scenario.percentile) * query
        for entry in known:
            sample_ns, least_ns = entry.sample_ns or 0.0, fastest.sample_ns or 1.0
            run_s = sample_ns * least / NS_PER_S
            if entry is not fastest and sample_ns > HOPELESS * least_ns and run_s > CELL_S:
                entry.dropped = (
                    f"about {sample_ns / least_ns:.0f} times the time of {one.label[fastest.cell]} in the compared "
                    f"answers, and a run would take {show_wait(run_s)}"
                )

    def _rounds(self, one: _Standing, deadline_s: float) -> None:
        """Performs the rounds for one model. In each round, every cell that may still be the fastest runs once. Each
        round reverses the previous round's order.
        """
        for number in range(self._options.rounds):
            now = standing.running(one.entries)
            if not now or standing.is_decided(one.entries):
                one.ended = "decided"
                return
            if self._is_late(now, number, deadline_s):
                one.ended = "time"
                return
            turn = now if number % 2 == 0 else now[::-1]
            for place, entry in enumerate(turn, 1):
                text = f"{one.name}: round {number + 1}, run {place} of {len(turn)}: {one.label[entry.cell]}"
                self._run(one, entry, number, text, deadline_s)
                self._save()
            standing.drop(one.entries, one.label)
        one.ended = "decided" if standing.is_decided(one.entries) else "rounds"

    def _is_late(self, now: Sequence[Entry], number: int, deadline_s: float) -> bool:
        """Returns whether a round's missing runs would end after the deadline."""
        missing = [entry for entry in now if self._kept(entry, number) is None]
        if number < SURE_ROUNDS or not missing:
            return False
        return sum(entry.took_s for entry in missing) > deadline_s - time.monotonic()

    def _kept(self, entry: Entry, number: int) -> Finished | None:
        """Returns the VALID run that an earlier call made in this round; None without such a run."""
        first = self._out(entry, number)
        for path in sorted(first.parent.glob(f"*/{run_folder.RESULT}")):
            name = path.parent.name
            is_of_round = name == first.name or name.startswith(f"{first.name}-")
            if is_of_round and not name.endswith(files.PARTIAL):
                result = files.read_json(path)
                if result.get("verdict") == "VALID":
                    return Finished(0, path.parent, result)
        return None

    def _out(self, entry: Entry, number: int) -> Path:
        """Returns the folder of a cell's first run in a round. A repeated run adds `-2` to this name."""
        return self.folder / RUNS / f"{_key(entry.cell)}-{number + 1}"

    def _run(self, one: _Standing, entry: Entry, number: int, text: str, deadline_s: float) -> None:
        if (kept := self._kept(entry, number)) is not None:
            self._note(one, entry, number, kept)
            return
        assert entry.config is not None
        config = replace(
            entry.config,
            out=files.free_name(self._out(entry, number)),
            schedule_seed=(self._first_seed + number) & MAX_SEED,
            dataset_digest=one.dataset_digest or entry.config.dataset_digest,
        )
        begun_s = time.monotonic()
        left_s = deadline_s - begun_s
        self._progress.series(text, left_s if left_s > 0 else None, "at most")
        try:
            finished = self._measure(config, progress=self._progress, probe_s=NOISE_PROBE_S)
        except HarnessError as e:
            entry.failed = one_line(e)
            self._say(f"{text}: failed: {entry.failed}")
            return
        entry.took_s = time.monotonic() - begun_s
        self._note(one, entry, number, finished)
        left_s = deadline_s - time.monotonic()
        left = f"; at most {show_wait(left_s)} left for {one.name}" if left_s > 0 else ""
        self._say(f"{text}: {finished.in_short('throughput', 'p50', 'p99')}{left}")

    def _note(self, one: _Standing, entry: Entry, number: int, finished: Finished) -> None:
        """Adds a VALID run to the cell. For any other run, records the reason. Raises Ended if the user stopped the
        run.
        """
        result = finished.result
        other = other_reason(result)
        if other is not None and other.code == INTERRUPTED:
            raise Ended(finished.status or RunInvalid.exit_status, other.text)
        if result["verdict"] != "VALID":
            reasons = "; ".join(f"{each['code']}: {each['text']}" for each in result["reasons"])
            entry.failed = one_line(f"INVALID in round {number + 1}: {reasons}")
            return
        found = read(finished.folder)
        entry.runs[number] = found
        entry.doubts.append([doubt["code"] for doubt in result["doubts"]])
        assert entry.config is not None
        entry.config = replace(entry.config, model_sha256=found.config.get("model_sha256"))
        one.dataset_digest = one.dataset_digest or found.config.get("dataset_digest")

    def content(self) -> Mapping[str, Any]:
        """Returns the content of runtimes.json. took_s: duration of the study so far."""
        plan = self._options
        return {
            "schema_version": SCHEMA_VERSION,
            "started": self._started,
            "command": plan.command,
            "scenario": self._config.scenario,
            "config": self._plain,
            "axes": plan.axes,
            "limit_s": plan.limit_s,
            "took_s": self._took_s or time.monotonic() - self._since_s,
            "rounds": plan.rounds,
            "precisions": self._precisions,
            "models": [one.to_json() for one in self._standings],
        }


measure = _RuntimesJob.execute
