"""Runs the verb `profile`: measures one model at several levels of the stack, with a separate run for each level."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.core.config.run_config import SCHEMA_VERSION, RunConfig, to_plain
from harness.core.console import frameworks_output, keep_output, say
from harness.core.otlp.collector import Collector, from_environment, post
from harness.errors import ConfigError, PluginUnavailable, RunInvalid
from harness.explain.profile.measure import layer_level as pl
from harness.explain.profile.measure import measure as pm
from harness.explain.profile.measure import valgrind
from harness.explain.profile.options import FROM_ENVIRONMENT, ProfileOptions
from harness.explain.profile.page import write
from harness.explain.profile.spans import otlp
from harness.explain.profile.tables import folder as files
from harness.explain.profile.tables.layer_tables import Profiled
from harness.explain.profile.tables.tables import contended
from harness.machine import cores, host
from harness.machine.characterise.here import stored_or_none
from harness.models.manifest.defaults import default_dataset
from harness.models.opened import instances
from harness.results import run_folder
from harness.results.outcome import Measure
from harness.results.pages.tables import Table
from harness.results.run_files import reading_run
from harness.run.study import Study, keep_or_remove, show_result, write_page
from harness.run.supervisor.preflight import obtain_model

RUN_LEVELS = frozenset(("query", "batch", "stage"))
EVENTS = "ort_events.json"
_BATCHES = (1, 2, 4, 8)


def problems(config: RunConfig, options: ProfileOptions) -> Iterator[str]:
    if config.mode != "performance":
        yield "profile measures speed: drop --mode"
    if config.mlperf:
        yield "profile makes quick runs: drop --mlperf"
    if "valgrind" in options.counters and "library" not in options.levels:
        yield "--counters valgrind needs the library level: add it to --levels"
    if options.source is not None and not options.source.is_dir():
        yield f"--from {options.source} does not exist"
    if isinstance(options.otlp, Path):
        if options.otlp.exists():
            yield f"--otlp {options.otlp} already exists: pass a different file"
        elif not options.otlp.absolute().parent.is_dir():
            yield f"--otlp {options.otlp}: the folder {options.otlp.parent} does not exist"
    elif options.otlp is not None:
        try:
            _collector(options.otlp)
        except ConfigError as e:
            yield str(e)


def profile(
    config: RunConfig,
    options: ProfileOptions,
    measure: Measure,
    *,
    as_json: bool = False,
    quiet: bool = False,
) -> int:
    """Measures a profile or reads a stored profile (--from), prints the tables, and returns the exit status."""
    if options.source is None:
        return _ProfileJob.execute(config, options, measure, as_json=as_json, quiet=quiet)
    folder = options.source
    profiled = files.read(folder)
    if config.out is not None:
        new = run_folder.new_folder(config.out, "", "", "")
        with keep_or_remove(lambda: new.path, lambda: False), reading_run(folder):
            files.write(profiled, files.profile_tables(profiled, folder), new.path)
            write_page(write, profiled, new.path)
            new.finish(newest=False)
    with reading_run(folder):
        tables = _tables(profiled, folder, options.table)
        lines = partial(_lines, profiled, tables, options.table)
        show_result(partial(files.to_json, tables), lines, as_json=as_json)
    _export(profiled, folder, options.otlp)
    return 0


def _tables(profiled: Profiled, folder: Path, name: str | None) -> list[Table]:
    tables = files.profile_tables(profiled, folder)
    if name is None:
        return tables
    chosen = [table for table in tables if table.key == name]
    if not chosen:
        keys = ", ".join(table.key for table in tables)
        raise ConfigError(f"--table {name}: {folder} has only {keys}")
    return chosen


def _lines(profiled: Profiled, tables: Sequence[Table], name: str | None) -> Iterator[str]:
    if name is None:
        yield from files.headline(profiled)
    yield files.text(tables, files.SHOWN_ROWS if name is None else None)
    if name is not None:  # because without a name, the table of levels already shows this note
        yield from contended(profiled.content)


def _export(profiled: Profiled, folder: Path, target: Path | str | None) -> None:
    """Exports the spans as the last step. If the export fails, no result is lost, and --from can repeat the export."""
    if target is None:
        return
    spans = files.spans(profiled, folder)
    with reading_run(folder):
        messages = otlp.messages(spans, profiled.content["started"], profiled.content["model_name"])
    if isinstance(target, Path):
        otlp.write(messages, target)
        say(f"{len(spans):,} spans to {target}")
    else:
        collector = _collector(target)
        post(messages, collector)
        say(f"{len(spans):,} spans to {collector}")


def _collector(target: str) -> Collector:
    """Returns the collector. Headers that are set in the environment are sent only to the collector that the
    environment names.
    """
    if target == FROM_ENVIRONMENT:
        return from_environment(os.environ)
    return Collector(url=target)


class _ProfileJob(Study[ProfileOptions]):
    file = files.PROFILE
    continuation = "profile --from {folder} shows the results so far"

    def _begin(self) -> None:
        config, options = self._config, self._options
        self._levels = set(options.levels)
        self._profiled: Profiled | None = None
        self._steps_begun = 0
        obtain_model(config, self._model)
        self._results = self._new_folder("profile", config.backend, self._model.name)
        self._content: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "started": self._started,
            "model_name": self._model.name,
            "config": to_plain(replace(config, out=None)),
            "levels": list(options.levels),
            "batch": options.batch,
            "missing": {},
        }

    def has_measured(self) -> bool:
        return (self.folder / self.file).exists()

    def content(self) -> Mapping[str, Any]:
        return self._content

    def run(self) -> int:
        """Returns 0 or the exit status of the harness run. The files of that run stay even if a later step fails."""
        with self._stopping.allowed():
            status = self._measure_levels()
        self._save()
        profiled = files.read(self.folder)
        files.write(profiled, files.profile_tables(profiled, self.folder), self.folder)
        if not self._config.no_report:
            write_page(write, profiled, self.folder)
        self.folder = self._results.finish(newest=False)
        self._profiled = profiled
        return status

    def to_json(self) -> dict[str, Any]:
        assert self._profiled is not None  # because `show` returns early if no profile exists
        return files.to_json(_tables(self._profiled, self.folder, self._options.table))

    def lines(self) -> Iterator[str]:
        assert self._profiled is not None
        name = self._options.table
        yield from _lines(self._profiled, _tables(self._profiled, self.folder, name), name)
        yield from ("", f"{'results':<12}{self.folder}")
        if (self.folder / files.PAGE).is_file():
            yield f"{'page':<12}{self.folder / files.PAGE}"

    def show(self, *, as_json: bool) -> None:
        if self._profiled is None:  # the run was stopped
            return
        try:
            super().show(as_json=as_json)
        except ConfigError as e:  # --table is unknown, but the measurements are stored anyway
            say(str(e))
        _export(self._profiled, self.folder, self._options.otlp)

    def _measure_levels(self) -> int:
        load = os.getloadavg()
        status = self._harness_run() if self._levels & RUN_LEVELS else 0
        if self._levels - RUN_LEVELS:
            with frameworks_output() as log:
                try:
                    self._below_the_harness()
                finally:
                    keep_output(log, self.folder / files.LOG)
        self._content["environment"] = host.fingerprint()
        self._content["load_average"] = {"before": load[0], "after": os.getloadavg()[0]}
        self._save()
        return status

    def _begin_step(self, text: str) -> None:
        """Begins a step. Shows no remaining time, because the duration of one step does not predict the next."""
        counters = self._options.counters if "library" in self._levels else ()
        of = (
            bool(self._levels & RUN_LEVELS) + len(self._levels & {"model", "layer"}) + len(counters)
        )
        self._steps_begun += 1
        self._progress.series(f"step {self._steps_begun} of {of}", None)
        self._say(f"step {self._steps_begun} of {of}: {text}")

    def _harness_run(self) -> int:
        self._begin_step("query, batch, stage: a run of the harness")
        out = self.folder / files.RUN
        config = replace(self._config, out=out, no_report=True)
        with self._stopping.allowed(False):  # Ctrl-C stops the run, and the run's results are kept
            finished = self._measure(config, quiet=self._quiet, progress=self._progress)
            # The run wrote these two entries, but only a folder of many runs needs them.
            for left in ("latest", "runs.sqlite"):
                (self.folder / left).unlink(missing_ok=True)
            self._content["run"] = files.about_run(finished.result)
            self._save()
        if finished.folder != out:
            reasons = [reason["text"] for reason in finished.result["reasons"]]
            raise RunInvalid(f"{finished.folder}: the harness run did not finish: {reasons[0]}")
        return finished.status

    def _below_the_harness(self) -> None:
        options = self._options
        batches: Sequence[int] = options.batches or _BATCHES
        with ExitStack() as stack:
            try:
                subject = self._opened(max(options.batch, *batches), stack)
            except ConfigError as e:
                if options.batches:
                    raise
                batches = (options.batch,)  # because a server may refuse a larger batch
                subject = self._opened(options.batch, stack)
                self._say(f"only batch {options.batch} is measured: {e}")
            if subject.fixed is not None and {options.batch, *batches} != {subject.fixed}:
                self._say(
                    f"the file fixes the batch at {subject.fixed}: no other batch is measured"
                )
                self._content["batch"] = subject.fixed
                batches = (subject.fixed,)
            batch = self._content["batch"]
            self._content["threads"] = subject.spec.threads
            if "model" in self._levels:
                self._begin_step("model: bare calls, by batch; samples against noise")
                self._content["model"] = pm.model_level(subject, batch, batches, options.runs)
                self._content["data"] = pm.real_or_synthetic(subject, batch, options.runs)
                self._save()
            if "layer" in self._levels:
                self._layer_level(subject, batch, batches if options.batches else ())
            if "library" in self._levels:
                self._library_level(subject, batch)

    def _opened(self, most: int, stack: ExitStack) -> pm.Subject:
        """Opens the model; `stack` closes it. most: samples per batch."""
        spec = instances.plan(self._config, self._scenario, self._model, cores.available())
        # A server gets one connection; a model on this machine gets none.
        alone = min(1, spec.connections)
        spec = spec._replace(instances=1, connections=alone, max_batch=most)
        dataset = self._config.dataset or default_dataset(self._model)
        return pm.opened(self._config, self._model, dataset, spec, most, stack)

    def _library_level(self, subject: Any, batch: int) -> None:
        if "perf" in self._options.counters:
            self._begin_step("library: counters of the processor and the kernel")
            self._content["hardware"] = pm.hardware(subject, batch, self._options.runs)
            self._save()
        if "valgrind" in self._options.counters:
            self._begin_step("library: valgrind simulates a call, which takes minutes")
            config, spec = subject.config, subject.spec._replace(max_batch=batch)
            try:
                counts = valgrind.simulate(config, subject.dataset_name, spec, self.folder)
                self._content["simulated"] = counts
            except PluginUnavailable as e:
                self._content["missing"]["valgrind"] = str(e)
            self._save()

    def _layer_level(self, subject: Any, batch: int, batches: Sequence[int]) -> None:
        """Measures the layer level. batches: further batch sizes."""
        self._begin_step("layer: calls without and with the framework's profiler, in turn")
        events = self.folder / EVENTS
        before = pm.peaks(subject.spec.threads)
        try:
            layer, graph = pl.layer_level(subject, batch, self._options.runs, events)
        except pl.Unprofiled as e:
            self._content["missing"]["layer"] = str(e)
            say(f"layer: {e}")
            return
        self._content["layer"] = layer
        self._save()
        others = [size for size in batches if size != batch]
        if others:
            self._say(f"layer: again at batch {', '.join(map(str, others))}")
            levels = pl.layer_batches(subject, others, self._options.runs)
            self._content["layer_batches"] = levels
            self._save()
        self._say("layer: memory from shapes, peaks of this machine")
        self._content["memory"] = memory = pm.memory_of(subject, graph, batch)
        if "missing" in memory:
            self._content["missing"]["memory"] = layer["no_costs"] or memory["missing"]
        self._content["peaks"] = pm.highest(
            before, pm.peaks(subject.spec.threads), stored_or_none(subject.spec.threads)
        )
