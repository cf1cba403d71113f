"""Measures how many workers a set of models needs (`sweep --models`), and how much time a cache costs if every request
misses.

Performs one run per number of workers. Each run keeps one query in flight per worker, so that queries do not wait. Then
compares the time of loads through the cache with the time of plain loads. The folder contains workers.json, and the
runs in `workers/`.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import cast

from harness.core import files
from harness.core.child import call
from harness.core.config.run_config import SCHEMA_VERSION, RunConfig, to_plain
from harness.errors import RunInvalid
from harness.loadgen.scenario import scenario_named
from harness.models.cache.model_set import ModelSet, load_model_set
from harness.results import run_folder
from harness.run.study import Study, unfit_options
from harness.search.options import WorkersOptions
from harness.search.workers import table
from harness.search.workers.content import Content, Misses, WorkersRow

LOG = "libraries.log"


def problems(config: RunConfig, _options: WorkersOptions) -> Iterator[str]:
    if config.models is None:
        yield "--workers is for a set of models: pass --models FILE"
        return
    if not scenario_named(config.scenario).scheduled:
        return  # in other scenarios, `run` itself refuses a set of models
    if config.instances is not None:
        yield "--instances sets a single number of workers: sweep takes --workers, e.g. --workers 1,2,4"
    if config.target_qps is not None:
        yield "sweep keeps a query in flight for each worker: drop --target-qps"
    if len(load_model_set(config.models).members) < 2:
        yield f"{config.models} has one model, which a cache never evicts: name two, or copies"
    yield from unfit_options(config, "sweep", "sweep makes quick runs: drop --mlperf")


class _WorkersJob(Study[WorkersOptions]):
    file = run_folder.WORKERS

    @cached_property
    def _model(self) -> ModelSet:
        assert self._config.models is not None
        return load_model_set(self._config.models)

    def _begin(self) -> None:
        self._threads = self._config.threads or 1
        self._rows: list[WorkersRow] = []
        self._misses: Misses | None = None
        self._results = self._new_folder("sweep-workers", self._config.backend, self._model.name)

    def run(self) -> int:
        """Performs the runs. Returns 4 if no run was VALID, and 0 otherwise."""
        counts = self._options.workers
        planned_s = [self._config.duration_ns / 1e9] * len(counts)
        for number, workers in enumerate(counts, 1):
            config = replace(
                self._config,
                instances=workers,
                concurrency=workers,
                threads=self._threads,
                oversubscribe=True,
                out=self.folder / "workers" / str(workers),
            )
            text = f"{number} of {len(counts)}, {workers} workers"
            finished = self.make_run(config, text, planned_s[number - 1 :])
            self._check_answered(finished, "the sweep ends here")
            self._rows.append(table.row_of(finished.result, workers, finished.folder, self.folder))
            self._save()
        self._say(f"worst case: {self._options.pairs} pairs of loads")
        request = {
            "config": to_plain(replace(self._config, out=None)),
            "threads": self._threads,
            "pairs": self._options.pairs,
        }
        self._misses = cast(
            "Misses", call("harness.models.cache.misses:measure", request, self.folder / LOG)
        )
        self._save()
        self.folder = self._results.finish(newest=False)
        valid = any(row["verdict"] == "VALID" for row in self._rows)
        return 0 if valid else RunInvalid.exit_status

    def content(self) -> Content:
        return {
            "schema_version": SCHEMA_VERSION,
            "config": to_plain(replace(self._config, out=None)),
            "model": self._model.name,
            "models": len(self._model.members),
            "capacity_bytes": self._model.capacity_bytes,
            "policy": self._model.content.policy,
            "threads": self._threads,
            "workers": self._rows,
            "misses": self._misses,
        }

    def lines(self) -> Iterator[str]:
        return table.lines(self.content(), self.folder)


sweep = _WorkersJob.execute


def show_stored(folder: Path, *, as_json: bool = False) -> int:
    """Prints the table from workers.json (--from)."""
    from harness.run.study import show_result

    file = folder / run_folder.WORKERS
    content = cast("Content", files.read_json(file))
    with files.reading(f"{file} was not written by `sweep --workers`"):
        lines = list(table.lines(content, folder))
    show_result(lambda: content, lambda: lines, as_json=as_json)
    return 0
