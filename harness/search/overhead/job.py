"""Measures the cost of serving a model (`overhead`). In-process runs alternate with runs through a server.

First, both sides run the whole dataset, and their answers must agree. Then, one Offline run per side shows what share
of the throughput remains through the server. Pairs of single-stream runs, in the order ABBA, show how much time the
server adds to a query. The folder contains the runs in `runs/` and a summary of them in overhead.json. The same command
with the same --out continues a study that was stopped.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from harness.core import files, registry
from harness.core.codes import CLIENT_BOUND, INTERRUPTED, Reason
from harness.core.config.run_config import SCHEMA_VERSION, RunConfig, to_plain
from harness.core.number_types import number_type
from harness.core.stats import LEVEL
from harness.core.units import NS_PER_S, show_percent
from harness.errors import RunInvalid
from harness.machine.cores import available
from harness.results import run_folder
from harness.results.agreement import Agreement, agreement, limits
from harness.results.outcome import Finished
from harness.run.study import Ended, Study, write_page
from harness.search.options import OverheadOptions
from harness.search.overhead import page, table
from harness.search.overhead.content import AnswersEntry, Content, PairEntry, ThroughputEntry
from harness.search.overhead.parts import Pair, overhead_of, pair_of, tells

IN_PROCESS, SERVED = "in-process", "served"
_ANSWERS, _THROUGHPUT = "answers", "throughput"
_NOISE_PROBE_S = 0.2

_OF_THE_SERVER = (
    *("url", "connections", "request_timeout_ns", "header"),
    *("insecure", "no_resend", "yes_load_this_host"),
)


def problems(config: RunConfig, options: OverheadOptions) -> Iterator[str]:
    from harness.models.opened.remote import server_problems

    yield from server_problems(config)
    if options.local_backend in registry.REMOTE_BACKENDS:
        yield (
            f"--local-backend {options.local_backend} sends requests to a server: name a backend that runs the model here"
        )
    most = available().threads
    if options.threads is not None and options.threads > most:
        yield f"--threads {options.threads} is too high, because only {most} threads can compute at the same time on this machine: lower it"


class _OverheadJob(Study[OverheadOptions]):
    file = run_folder.OVERHEAD
    continuation = "the same command with --out {folder} continues it"

    def _begin(self) -> None:
        config = self._config
        self._plain = {
            "served": to_plain(replace(config, out=None)),
            "in_process": to_plain(self._local(config, None)),
            "threads": self._options.threads,
            "throughput": not self._options.no_throughput,
        }
        self._runs: dict[str, Finished] = {}
        """Maps a run's name to the run that counts. The folder may also contain discarded runs with the same name."""
        self._compared: tuple[Agreement | None, float] | None = None
        if self._open_folder("overhead", config.backend, self._model.name):
            self._take_stored(cast("Content", files.read_json(self.folder / self.file)))

    def _take_stored(self, stored: Content) -> None:
        with files.reading(f"{self.folder / self.file} is not valid `overhead` output"):
            self._check_same("study of the overhead", self._plain, stored["config"])
            for run in stored["runs"]:
                folder = self.folder / run["folder"]
                result = files.read_json(folder / run_folder.RESULT)
                self._runs[run["name"]] = Finished(run["status"], folder, result)
        for names in self._turns():  # the two runs of a pair follow each other directly
            if any(name not in self._runs or self._reasons(name) for name in names):
                for name in names:
                    self._runs.pop(name, None)

    def _local(self, config: RunConfig, told_threads: int | None) -> RunConfig:
        """Returns the configuration of the in-process run that corresponds to the served run `config`. The in-process
        run uses one instance, because the served run sends one request at a time.
        """
        options = self._options
        defaults = {name: getattr(_DEFAULTS, name) for name in _OF_THE_SERVER}
        return replace(
            config,
            **defaults,
            out=None,
            backend=options.local_backend,
            backend_option=options.local_option,
            instances=1,
            threads=options.threads or told_threads,
        )

    def run(self) -> int:
        """Performs the runs. Returns 4 if the study found no overhead to report, and 0 otherwise."""
        # The file is written first, because the same command later uses it to recognise its folder.
        self._save()
        left = [name for names in self._turns() for name in names if name not in self._runs]
        for number, name in enumerate(left, 1):
            self._make(name, number, len(left))
            if self._hopeless() is not None:
                break
        write_page(page.write, self.content(), self.folder)
        return 0 if self._withheld() is None else RunInvalid.exit_status

    def _turns(self) -> list[tuple[str, str]]:
        """Returns the names of the runs in the order in which they are made, ABBA."""
        # The served run comes first, because the server may report its number of threads, which the in-process run then
        # uses.
        kinds = [_ANSWERS] if self._options.no_throughput else [_ANSWERS, _THROUGHPUT]
        turns = [(f"{kind}-{SERVED}", f"{kind}-{IN_PROCESS}") for kind in kinds]
        for pair in range(1, self._options.pairs + 1):
            order = (IN_PROCESS, SERVED) if pair % 2 else (SERVED, IN_PROCESS)
            turns.append((f"{pair}-{order[0]}", f"{pair}-{order[1]}"))
        return turns

    def _make(self, name: str, number: int, count: int) -> None:
        """Performs one run. number: position among the remaining `count` runs, counted from 1."""
        config = replace(self._config, scenario="single-stream", mode="performance", max_batch=None)
        if name.startswith((_ANSWERS, _THROUGHPUT)):
            mode = "accuracy" if name.startswith(_ANSWERS) else "performance"
            batch = self._config.max_batch or 1
            config = replace(self._config, scenario="offline", mode=mode, max_batch=batch)
        if name.endswith(IN_PROCESS):
            config = self._local(config, self._told_threads())
        out = files.free_name(self.folder / "runs" / name)
        planned_s = [self._config.duration_ns / NS_PER_S] * (count - number + 1)
        text = f"run {number} of {count}, {name}"
        run = self.make_run(
            replace(config, out=out), text, planned_s, quiet=True, probe_s=_NOISE_PROBE_S
        )
        codes = {reason["code"] for reason in run.result["reasons"]}
        if run.status not in (0, RunInvalid.exit_status) or INTERRUPTED in codes:
            self._check_answered(run, "the study ends here")
            raise Ended(run.status, "a run was stopped")
        self._runs[name] = run
        self._save()
        self._say(f"{text}: {run.in_short('throughput', 'p50')}{self.time_left(planned_s[1:])}")

    def _told_threads(self) -> int | None:
        """Returns the number of threads that the server reports; None if this number is unknown or exceeds the number
        of threads on this machine.
        """
        told = _described(self._runs[f"{_ANSWERS}-{SERVED}"].result).get("threads")
        if not str(told).isdecimal():
            return None
        return int(str(told)) if 1 <= int(str(told)) <= available().threads else None

    def _reasons(self, name: str) -> Sequence[Reason]:
        return [Reason.stored(reason) for reason in self._runs[name].result["reasons"]]

    def _hopeless(self) -> str | None:
        """Returns the reason why further runs cannot yield an overhead; None if they can.

        A client-bound run does not end the study, because the client may be the bottleneck in only one run of the pair.
        """
        for name in self._runs:
            for reason in self._reasons(name):
                if reason.code != CLIENT_BOUND:
                    return f"{self._folder_of(name)} is INVALID: {reason.code}: {reason.text}"
        return self._answers_differ()

    def _withheld(self) -> str | None:
        """Returns the reason why the overhead is withheld; None if the overhead is reported."""
        if hopeless := self._hopeless():
            return hopeless
        names = [name for names in self._turns() for name in names]
        if missing := [name for name in names if name not in self._runs]:
            return f"{len(missing)} of {len(names)} runs were not made"
        single = [name for name in names if not name.startswith((_ANSWERS, _THROUGHPUT))]
        bound = [name for name in single if self._reasons(name)]
        if bound:
            first = self._reasons(bound[0])[0]
            return (
                f"{len(bound)} of {len(single)} runs of single-stream are INVALID; the first is "
                f"{self._folder_of(bound[0])}: {first.code}: {first.text}; the same command with --out "
                f"{self.folder} repeats their pairs"
            )
        for name in single:
            client = self._runs[name].result.get("client")
            if client is not None and client["floor_p50_ns"] is None:
                return f"the client's floor is missing in {self._folder_of(name)}: {client['no_ceiling']}"
        return None

    def _folder_of(self, name: str) -> str:
        return str(self._runs[name].folder.relative_to(self.folder))

    def _sides(self, kind: str) -> tuple[Finished, Finished] | None:
        """Returns the in-process run and the served run of this kind; None until both exist."""
        here, there = (self._runs.get(f"{kind}-{side}") for side in (IN_PROCESS, SERVED))
        return (here, there) if here is not None and there is not None else None

    def _answers(self) -> tuple[Agreement | None, float] | None:
        """Returns the agreement between the answers of both sides, and the minimum share of answers that must agree."""
        sides = self._sides(_ANSWERS)
        if sides is None or self._compared is not None:
            return self._compared
        limit = limits(number_type(str(_described(sides[0].result).get("precision"))))
        self._compared = agreement(sides[0].folder, sides[1].folder, limit.far), limit.share
        return self._compared

    def _answers_differ(self) -> str | None:
        found = self._answers()
        if found is None:
            return None
        answers, least = found
        if answers is None:
            return "the logs have no samples that both sides answered, so the answers cannot be compared"
        if answers.alike < least:
            return (
                f"{show_percent(answers.alike, 2)} of {answers.samples:,} answers agree, fewer than "
                f"{show_percent(least)}: the server computes another model, or uses other data"
            )
        return None

    def _pairs(self) -> Sequence[Pair]:
        """Returns the pairs; empty if the overhead is withheld."""
        if self._withheld() is not None:
            return []
        numbers = range(1, self._options.pairs + 1)
        sides = [
            [self._runs[f"{i}-{side}"].result for side in (IN_PROCESS, SERVED)] for i in numbers
        ]
        told = all(tells(served) for _, served in sides)
        return [pair_of(here, served, reported=told) for here, served in sides]

    def _throughput(self) -> ThroughputEntry | None:
        sides = self._sides(_THROUGHPUT)
        if sides is None or self._withheld() is not None:
            return None
        reasons = [
            r for side in (SERVED, IN_PROCESS) for r in self._reasons(f"{_THROUGHPUT}-{side}")
        ]
        here, there = ((run.result["throughput_per_s"] or {}).get("completed") for run in sides)
        kept = there / here if here and there and not reasons else None
        no_kept = f"{reasons[0].code}: {reasons[0].text}" if reasons else ""
        return {
            "in_process_per_s": here,
            "served_per_s": there,
            "kept": kept,
            "no_kept": no_kept,
            "max_batch": self._config.max_batch or 1,
        }

    def content(self) -> Content:
        pairs = self._pairs()
        found = overhead_of(pairs) if pairs else None
        answers, least = self._answers() or (None, None)
        sides = self._sides(_ANSWERS)
        return {
            "schema_version": SCHEMA_VERSION,
            "started": self._started,
            "config": self._plain,
            "model": self._model.name,
            "level": LEVEL,
            "withheld": self._withheld(),
            "overhead": table.plain(found) if found else None,
            "server_times": self._source(),
            "pairs": [
                cast("PairEntry", {**pair._asdict(), "overhead_ns": pair.overhead_ns})
                for pair in pairs
            ],
            "throughput": self._throughput(),
            "answers": cast("AnswersEntry", {**answers._asdict(), "least_alike": least})
            if answers
            else None,
            "described": {
                side: {key: _described(run.result).get(key) for key in ("precision", "threads")}
                for side, run in zip((IN_PROCESS, SERVED), sides or (), strict=False)
            },
            "runs": [
                {
                    "name": name,
                    "folder": self._folder_of(name),
                    "status": run.status,
                    "verdict": run.result["verdict"],
                    "reasons": [reason["code"] for reason in run.result["reasons"]],
                    "doubts": [doubt["code"] for doubt in run.result["doubts"]],
                }
                for name, run in self._runs.items()
            ],
        }

    def _source(self) -> str | None:
        """Returns the source of the server's times; None unless every served run reports times."""
        names = [f"{i}-{SERVED}" for i in range(1, self._options.pairs + 1)]
        clients = [self._runs[name].result["client"] or {} for name in names if name in self._runs]
        told = [client.get("server_times") or {} for client in clients]
        return told[-1]["source"] if told and all(told) else None

    def lines(self) -> Iterator[str]:
        return table.lines(self.content(), self.folder)


_DEFAULTS = RunConfig(scenario="offline")

measure = _OverheadJob.execute


def _described(result: Mapping[str, Any]) -> Mapping[str, Any]:
    return result.get("backend_description") or {}
