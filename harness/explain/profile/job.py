"""Runs the verb `profile`: one model at several levels of the stack, each number from its own run."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.core import registry
from harness.core.config.run_config import SCHEMA_VERSION, RunConfig, to_plain
from harness.core.console import frameworks_output, keep_output, say, show
from harness.core.files import write_json
from harness.core.signals import Stopped, Stopping, stoppable
from harness.errors import ConfigError, HarnessError, PluginUnavailable, RunInvalid, one_line
from harness.explain.profile.options import ProfileOptions
from harness.explain.profile.spans.spans import LEVELS
from harness.explain.profile.tables import folder as files
from harness.explain.profile.tables.folder import Profiled
from harness.machine import cores, host
from harness.models.manifest.defaults import default_dataset
from harness.models.manifest.lookup import load_model
from harness.models.opened import instances
from harness.results import run_folder
from harness.results.outcome import Measure
from harness.results.run_files import reading_run
from harness.run.jobs import keep_or_remove
from harness.run.supervisor.preflight import obtain_model

RUN_LEVELS = frozenset(("query", "batch", "stage"))
EVENTS = "ort_events.json"
_BATCHES = (1, 2, 4, 8)


def problems(config: RunConfig, options: ProfileOptions) -> Iterator[str]:
    """All objections to a profile with these options."""
    unknown = [level for level in options.levels if level not in LEVELS]
    if unknown:
        yield f"--levels {','.join(unknown)}: choose from {', '.join(LEVELS)}"
    if config.mode != "performance":
        yield "profile measures speed: drop --mode"
    if config.mlperf:
        yield "profile makes quick runs: drop --mlperf"
    if "valgrind" in options.counters and "library" not in options.levels:
        yield "--counters valgrind needs the library level: add it to --levels"
    if options.source is not None and not options.source.is_dir():
        yield f"--from {options.source}: there is no such folder"
    if isinstance(options.otlp, Path):
        if options.otlp.exists():
            yield f"--otlp {options.otlp} exists: pass another"
        elif not options.otlp.absolute().parent.is_dir():
            yield f"--otlp {options.otlp}: there is no folder {options.otlp.parent}"


def profile(
    config: RunConfig,
    options: ProfileOptions,
    measure: Measure,
    *,
    as_json: bool = False,
    quiet: bool = False,
) -> int:
    """Measures, or reads stored measurements (--from); prints the tables; returns the exit
    status.
    """
    if options.source is not None:
        return _again(options, config.out, as_json=as_json)
    job = _ProfileJob(config, options, measure, quiet=quiet)
    try:
        with stoppable() as stopping, keep_or_remove(lambda: job.folder, lambda: job.has_measured):
            with stopping.allowed():
                status = job.run(stopping)
            folder = job.finish()
    except Stopped as e:
        if job.folder.exists():
            say(f"stopped: profile --from {job.folder} shows the results so far")
        return e.exit_status
    profiled = files.read(folder)
    try:
        _show(profiled, folder, options, as_json=as_json)
    except (
        ConfigError
    ) as e:  # of --table: what was measured is there, and the status says how it went
        say(str(e))
    if not as_json:
        show(f"\n{'results':<12}{folder}")
        if (folder / files.PAGE).is_file():
            show(f"{'page':<12}{folder / files.PAGE}")
    _export(profiled, folder, options.otlp)
    return status


def _again(options: ProfileOptions, out: Path | None, *, as_json: bool) -> int:
    """Uses stored files alone. out: for the files derived from them."""
    assert options.source is not None
    profiled = files.read(options.source)
    if out is not None:
        new = run_folder.new_folder(out, "", "", "")
        with keep_or_remove(lambda: new.path, lambda: False), reading_run(options.source):
            files.write(profiled, files.profile_tables(profiled, options.source), new.path)
            _page(profiled, new.path)
            new.finish(newest=False)
    _show(profiled, options.source, options, as_json=as_json)
    _export(profiled, options.source, options.otlp)
    return 0


def _export(profiled: Profiled, folder: Path, target: Path | str | None) -> None:
    """Comes last: a failure loses nothing, and --from can repeat it."""
    if target is None:
        return
    from harness.explain.profile.spans import otlp

    spans = files.spans(profiled, folder)
    with reading_run(folder):
        messages = otlp.messages(spans, profiled.content["started"], profiled.content["model_name"])
    if isinstance(target, Path):
        otlp.write(messages, target)
    else:
        otlp.post(messages, target)
    say(f"{len(spans):,} spans to {target}")


def _show(profiled: Profiled, folder: Path, options: ProfileOptions, *, as_json: bool) -> None:
    shown = files.profile_tables(profiled, folder)
    if options.table is not None:
        keys = [table.key for table in shown]
        if options.table not in keys:
            raise ConfigError(f"--table {options.table}: {folder} has {', '.join(keys)}")
        shown = [table for table in shown if table.key == options.table]
    with reading_run(folder):
        if as_json:
            text = json.dumps({t.key: t.to_json() for t in shown}, indent=2, allow_nan=False)
        else:
            head = [] if options.table else ["\n".join(files.headline(profiled.content))]
            text = "\n".join(
                [*head, files.text(shown, None if options.table else files.SHOWN_ROWS)]
            )
    show(text)


def _page(profiled: Profiled, folder: Path) -> None:
    from harness.explain.profile.pages.page import write

    try:
        write(profiled, folder)
    except PluginUnavailable as e:
        say(f"no page was made: {e}")


class _ProfileJob:
    def __init__(
        self, config: RunConfig, options: ProfileOptions, measure: Measure, *, quiet: bool
    ) -> None:
        self._options = options
        self._measure = measure
        self._quiet = quiet
        self._config = config
        self._levels = set(options.levels)
        self._model = load_model(config.model)
        obtain_model(config, self._model)
        self._made = run_folder.new_folder(config.out, "profile", config.backend, self._model.name)
        self.folder = self._made.path
        self._content: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "model_name": self._model.name,
            "config": to_plain(replace(config, out=None)),
            "levels": list(options.levels),
            "batch": options.batch,
            "missing": {},
        }

    @property
    def has_measured(self) -> bool:
        return (self.folder / files.PROFILE).exists()

    def run(self, stopping: Stopping) -> int:
        """Returns 0 or the exit status of the harness run. What was measured stays, whatever fails
        later.
        """
        load = os.getloadavg()
        status = self._harness_run(stopping) if self._levels & RUN_LEVELS else 0
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

    def finish(self) -> Path:
        """Writes tables, trace and page from the files; gives the folder its final name."""
        self._save()
        profiled = files.read(self.folder)
        files.write(profiled, files.profile_tables(profiled, self.folder), self.folder)
        if not self._config.no_report:
            _page(profiled, self.folder)
        return self._made.finish(newest=False)

    def _save(self) -> None:
        write_json(self.folder / files.PROFILE, self._content)

    def _say(self, what: str) -> None:
        if not self._quiet:
            say(what)

    def _harness_run(self, stopping: Stopping) -> int:
        self._say("query, batch, stage: a run of the harness")
        out = self.folder / files.RUN
        config = replace(self._config, out=out, no_report=True)
        with stopping.allowed(False):  # the run stops itself, and is kept
            finished = self._measure(config, quiet=self._quiet)
            for left in ("latest", "runs.sqlite"):  # of a folder of runs, which this is not
                (self.folder / left).unlink(missing_ok=True)
            self._content["run"] = files.about_run(finished.result)
            self._save()
        if finished.folder != out:
            reasons = [reason["text"] for reason in finished.result["reasons"]]
            raise RunInvalid(f"{finished.folder}: the harness run did not finish: {reasons[0]}")
        return finished.status

    def _below_the_harness(self) -> None:
        from harness.explain.profile.measure import measure as pm

        config, options = self._config, self._options
        scenario = registry.load("scenario", config.scenario)
        spec = instances.plan(config, scenario, self._model, cores.available())
        batches = options.batches or _BATCHES
        most = max(options.batch, *batches)
        spec = spec._replace(instances=1, max_batch=most)
        dataset = config.dataset or default_dataset(self._model)
        with ExitStack() as stack:
            subject = pm.opened(config, self._model, dataset, spec, most, stack)
            if subject.fixed is not None and subject.fixed != options.batch:
                self._say(f"the model file fixes the batch: {subject.fixed}")
                self._content["batch"] = subject.fixed
                batches = (subject.fixed,)
            batch = self._content["batch"]
            self._content["threads"] = spec.threads
            if "model" in self._levels:
                self._say("model: bare calls, by batch; samples against noise")
                self._content["model"] = pm.model_level(subject, batch, batches, options.runs)
                self._content["data"] = pm.real_or_synthetic(subject, batch, options.runs)
                self._save()
            if "layer" in self._levels:
                self._layer_level(subject, batch, batches if options.batches else ())
            if "library" in self._levels:
                self._library_level(subject, batch)

    def _library_level(self, subject: Any, batch: int) -> None:
        from harness.explain.profile.measure import measure as pm
        from harness.explain.profile.measure import valgrind

        if "perf" in self._options.counters:
            self._say("library: counters of the processor and the kernel")
            self._content["hardware"] = pm.hardware(subject, batch, self._options.runs)
            self._save()
        if "valgrind" in self._options.counters:
            self._say("library: valgrind simulates a call, which takes minutes")
            config, spec = subject.config, subject.spec._replace(max_batch=batch)
            try:
                counts = valgrind.simulate(config, subject.dataset_name, spec, self.folder)
                self._content["simulated"] = counts
            except PluginUnavailable as e:
                self._content["missing"]["valgrind"] = str(e)
            self._save()

    def _layer_level(self, subject: Any, batch: int, batches: Sequence[int]) -> None:
        """batches: further batch sizes."""
        from harness.explain.profile.measure import layer_level as pl
        from harness.explain.profile.measure import measure as pm

        self._say("layer: calls without and with the framework's profiler, in turn")
        events = self.folder / EVENTS
        before = self._peaks(subject)
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
        self._content["peaks"] = pm.highest(before, self._peaks(subject))

    def _peaks(self, subject: Any) -> dict[str, Any]:
        from harness.explain.profile.measure import measure as pm

        try:
            return pm.peaks(subject.spec.threads)
        except HarnessError:
            raise
        except Exception as e:  # noqa: BLE001 - of a framework: the roofline is missing, no more
            return {"missing": one_line(e)}
