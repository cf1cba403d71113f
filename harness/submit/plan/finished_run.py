"""Reads a finished run: its files, its facts, and the reasons why the run cannot be submitted."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.core.config.run_config import RunConfig, from_plain
from harness.core.files import read_json
from harness.core.units import counted
from harness.errors import ConfigError, HarnessError, UnusableAnswer
from harness.loadgen.logs import ACCURACY, read_answers
from harness.loadgen.plan import Loaded
from harness.models.manifest.defaults import default_dataset, default_metric
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import Model
from harness.models.opened.loading import model_file, open_dataset
from harness.results import recheck
from harness.results.records import read_findings
from harness.results.run_files import read_config
from harness.results.run_folder import ACCURACY_TEXT, CONFIG, FOLDERS, RESULT, RUN
from harness.results.verdict.busy import WAITED, waited
from harness.results.verdict.score import lacking_program, of_some
from harness.submit.plan import network
from harness.submit.plan.request import Request
from harness.submit.rules.accuracy import out_of_bounds
from harness.submit.rules.tree.rounds import Benchmark, Round
from harness.submit.rules.tree.verify import TEST01
from harness.types import Answer, Score

_OF_WAITING = ("measured_process", "stages_ns", "queries")


@dataclass(frozen=True)
class FinishedRun:
    """A finished run. folder: its result folder. scenario, kind: from the planned run."""

    scenario: str
    kind: str
    folder: Path

    @property
    def logs(self) -> Path:
        return self.folder / FOLDERS["accuracy" if self.kind == "accuracy" else "performance"]

    @property
    def accuracy_log(self) -> Path:
        return self.logs / ACCURACY

    @cached_property
    def result(self) -> Mapping[str, Any]:
        return read_json(self.folder / RESULT)

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """Contents of config.yaml."""
        return read_config(self.folder)

    @cached_property
    def config(self) -> RunConfig:
        return from_plain(self.settings, str(self.folder / CONFIG))

    @cached_property
    def model(self) -> Model:
        return load_model(self.config.model)

    @cached_property
    def loaded(self) -> Loaded:
        values, _ = read_findings(self.folder)
        loaded = values["loaded"]
        if not isinstance(loaded, Loaded):
            raise ConfigError(f"{self.folder} does not record a loaded model: repeat the run")
        return loaded

    @property
    def answer_dtype(self) -> str:
        ended = read_json(self.logs / RUN).get("ended")
        dtype = ended.get("answer_dtype") if isinstance(ended, dict) else None
        if not isinstance(dtype, str):
            raise ConfigError(
                f"{self.logs / RUN} does not record the type of answers: repeat the run"
            )
        return dtype

    @property
    def queries(self) -> int | None:
        """Number of queries in a performance run, or number of samples in an accuracy run; None if not recorded."""
        if self.kind == "accuracy":
            return self.loaded.total_count
        recorded = _part(self.result, "queries")
        issued, each = (recorded.get(key) for key in ("samples_issued", "samples_per_query"))
        return (
            issued // each if isinstance(issued, int) and isinstance(each, int) and each else None
        )

    @property
    def took_s(self) -> float | None:
        """Time from the first query to the last answer, in s; None if not recorded."""
        took_s = _part(_part(read_json(self.logs / RUN), "ended"), "used").get("wall_s")
        return took_s if isinstance(took_s, float) else None

    @property
    def score_text(self) -> str:
        """Contents of accuracy.txt; '' if nothing was scored."""
        path = self.folder / "accuracy" / ACCURACY_TEXT
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    @property
    def weights_file(self) -> str | None:
        try:
            path = model_file(self.config, self.model)
        except HarnessError:  # the model file was removed after the run
            return None
        return path.name if path is not None else None

    @property
    def backend(self) -> Mapping[str, Any]:
        return self.result.get("backend_description") or {}

    def differences(self, trusted: Collection[str] = (), *, scores: bool = True) -> list[str]:
        """Returns the differences that `check RUN` finds in the run's files. trusted, scores: as in `recheck.check`."""
        if recheck.is_published(self.config):
            return [
                f"{self.folder} is a published copy, which cannot be scored again: use the original run"
            ]
        return recheck.check(self.folder, trusted, scores=scores)

    def forbidden(self, request: Request, *, accelerated: bool) -> Iterator[str]:
        """Yields the reasons why this VALID run cannot be submitted.

        accelerated: whether the system has an accelerator, in which case CPU time proves nothing and is ignored.
        """
        benchmark = request.of_round
        notes = self.result.get("not_for_submission") or ()
        yield from (note for note in notes if not note.startswith(WAITED))
        yield from network.forbidden(self.config, self.result.get("client"))
        if self.backend.get("framework") == "none":
            yield "its backend reports no framework, so it runs no model"
        if self.config.device == "cpu" and not accelerated:
            yield from waited(*(self.result.get(k) for k in _OF_WAITING))
        if why := self.wrong_size(benchmark):
            yield why
        if self.kind == "accuracy":
            yield from self._unscored()
            if request.division != "open":
                yield from self._out_of_bounds(request.rules, benchmark)

    def wrong_size(self, benchmark: Benchmark) -> str:
        """Describes how the data set's size differs from the size in the round; '' if both are equal."""
        count, expected = self.loaded.total_count, benchmark.samples_in(self.scenario)
        if self.kind != "accuracy" and benchmark.has_accuracy_data:
            expected = benchmark.performance_samples
        return (
            ""
            if count == expected
            else f"its data set has {counted(count, 'sample')} instead of the round's {expected:,}"
        )

    def _unscored(self) -> Iterator[str]:
        accuracy = self.result.get("accuracy")
        accuracy = accuracy if isinstance(accuracy, dict) else {}
        if not self.score_text:
            yield f"it has no score: {accuracy.get('reason', 'not measured')}"
        elif not accuracy.get("compared"):
            yield "its answers were not compared with the answers of a performance run"

    def _out_of_bounds(self, rules: Round, benchmark: Benchmark) -> Iterator[str]:
        """Yields faults in other metrics and in the number of tokens per answer, which the manifest's target does not
        cover.
        """
        targets, limits = benchmark.targets_in(self.scenario), benchmark.limits
        scores = rules.scores(self.score_text, {**targets, **limits})
        for actual, expected in out_of_bounds(scores, targets, limits):
            yield f"its score is {actual}, but the rules require a {expected}"

    def scored(self, audit: "FinishedRun") -> tuple[Score, Score] | None:
        """Returns two scores for the audit's samples, one from this run and one from the audit; None if a score or
        metric is missing.
        """
        metric = self.config.metric or default_metric(self.model)
        if not self.score_text or metric is None:
            return None
        audited = list(read_answers(audit.accuracy_log))
        samples = {answer.sample for answer in audited}
        own = [a for a in read_answers(self.accuracy_log) if a.sample in samples]
        name = self.config.dataset or default_dataset(self.model)
        dataset = open_dataset(self.config, self.model, name, self.loaded.inputs)
        labels = {sample: dataset.label(sample) for sample in samples}
        return (
            _score_of(self, own, metric, labels),
            _score_of(audit, audited, metric, labels),
        )

    def unscorable(self) -> Iterator[str]:
        """Yields the reasons why `pack` cannot score this audit's samples and compare the score with the accuracy run's
        score.
        """
        if self.kind == TEST01:
            lacking = lacking_program(self.config.metric or default_metric(self.model))
            yield from (f"its samples need a score: {why}" for why in lacking)


def _score_of(
    run: FinishedRun, answers: list[Answer], metric: str, labels: Mapping[int, object]
) -> Score:
    """Returns the score for these answers. Raises a ConfigError that names the run if the answers cannot be scored."""
    try:
        return of_some(answers, metric, run.answer_dtype, labels)
    except UnusableAnswer as e:
        hint = f"remove {run.folder} and repeat `submit run`"
        raise ConfigError(f"{run.scenario}-{run.kind}: {e}: {hint}") from e
    except ValueError as e:
        raise ConfigError(f"{run.scenario}-{run.kind}: its samples have no score: {e}") from e


def _part(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = content.get(key)
    return part if isinstance(part, dict) else {}
