"""A finished run's result, for Python programs. The result exposes result.json as attributes, and latencies as arrays."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from harness.core.codes import Reason
from harness.core.config.options import user_path
from harness.core.extras import how_to_install_packages
from harness.core.shown.escapes import visible
from harness.core.shown.private import hide
from harness.core.units import show_ns
from harness.errors import ConfigError, PluginUnavailable
from harness.results.answer import Answer, answer_of, answer_rows, number_of
from harness.results.evidence.stages import PERCENTILES, query_latency_ns
from harness.results.export.samples import sample_columns
from harness.results.pages.heading import workload
from harness.results.pages.page import table
from harness.results.pages.run_table import show_quantity
from harness.results.run_files import RunFiles, read_files, reading_run
from harness.types import Array, Quantity

_BADGE = "padding:0.1em 0.5em;border-radius:0.3em;color:#fff;background:"
_GREEN, _RED = "#1a7f37", "#cf222e"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Result:
    """A finished run, which is VALID or INVALID. Every number comes from the run's result.json."""

    files: RunFiles
    """Contents of the run's files: `files.result`, `files.config`, `files.environment`."""

    @property
    def folder(self) -> Path:
        return self.files.folder

    @property
    def content(self) -> Mapping[str, Any]:
        """The whole content of result.json (docs/result.md)."""
        return self.files.result

    @property
    def verdict(self) -> str:
        """Either VALID or INVALID."""
        return str(self.content["verdict"])

    @property
    def is_valid(self) -> bool:
        return self.verdict == "VALID"

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Reasons why the numbers must not be published, or () if the run is VALID."""
        return tuple(map(Reason.stored, self.content["reasons"]))

    @property
    def doubts(self) -> tuple[Reason, ...]:
        """Reasons to check the numbers before using them. Even a VALID run may have doubts."""
        return tuple(map(Reason.stored, self.content["doubts"]))

    @property
    def answer(self) -> Answer:
        """The result that the run was meant to find, as plain text."""
        return answer_of(self.content)

    @property
    def headline(self) -> Quantity | None:
        """The number with which `answer` begins, or None if the performance run is missing or incomplete.

        `content["headline"]` is MLPerf's metric for the scenario, such as the early-stopping estimate.
        """
        return number_of(self.content)

    @property
    def latency_ns(self) -> Mapping[str, float]:
        """LoadGen's min, max, mean and percentiles (p50, p90, ... p99.9) of the query latency in ns, or {} if
        unknown.
        """
        stored = self.content.get("latency_ns") or {}
        names = ("min", "max", "mean", *PERCENTILES)
        return {name: stored[name] for name in names if stored.get(name) is not None}

    @property
    def throughput_per_s(self) -> Mapping[str, float]:
        """Samples/s: `completed`, and also `asked` and `scheduled` if the scenario defines them; {} if the run has no
        throughput.
        """
        stored = self.content.get("throughput_per_s") or {}
        return {name: rate for name, rate in stored.items() if isinstance(rate, int | float)}

    @property
    def accuracy(self) -> Mapping[str, Any]:
        """Keys: `metric`, `value`, `unit`, `target`, `samples`. If the run has no score, `value` is None and `reason`
        explains why.
        """
        accuracy: Mapping[str, Any] = self.content["accuracy"]
        return accuracy

    @property
    def stages_ns(self) -> Mapping[str, Mapping[str, float]]:
        """Maps a stage to its `p50` and `p99` in ns, and to its `share` of the total time of all samples; {} if no
        stages were measured.
        """
        return self.content.get("stages_ns") or {}

    @property
    def latencies_ns(self) -> Array:
        """(queries,) int64: latency of each completed query in ns, in the order of issue.

        The values come from the journal, whose clock readings may differ from LoadGen's readings by a few us. Raises
        ConfigError if the run has no performance part.
        """
        run = self.files.performance
        if run is None or run.done is None:
            raise ConfigError(f"{self.folder} has no completed performance run")
        with reading_run(self.folder):
            return query_latency_ns(run.done, run.plan.samples_per_query)

    @property
    def samples(self) -> Mapping[str, Array]:
        """The columns in completions.npz by name, each with the shape (samples,) and one entry per completed sample."""
        return sample_columns(self.files)

    def frame(self) -> Any:
        """Returns `samples` as a pandas.DataFrame with the additional column `latency_ns`, one row per completed
        sample.

        The frame's `attrs` contain the folder, the verdict and the reasons. Raises PluginUnavailable if pandas is not
        installed.
        """
        try:
            import pandas as pd
        except ModuleNotFoundError as e:
            how = how_to_install_packages("pandas")
            raise PluginUnavailable(f"frame() needs the module 'pandas': {how}") from e
        columns = self.samples
        frame = pd.DataFrame(dict(columns))
        frame["latency_ns"] = columns["completed_ns"] - columns["scheduled_ns"]
        frame.attrs = {
            "folder": str(self.folder),
            "verdict": self.verdict,
            "reasons": [reason.text for reason in self.reasons],
        }
        return frame

    def __repr__(self) -> str:
        words = [self.content[name] for name in ("scenario", "backend", "model")]
        codes = f" ({', '.join(reason.code for reason in self.reasons)})" if self.reasons else ""
        headline = self.headline
        number = f", {headline.name} {show_quantity(headline._asdict())}" if headline else ""
        return visible(f"<Result {self.verdict}{codes}: {' '.join(words)}{number}, {self.folder}>")

    def _repr_html_(self) -> str:
        """Returns the answer and a table as HTML for notebooks, without scripts, style sheets or network access."""
        return visible("\n".join(_html(self)))


def read_run(folder: Path | str) -> Result:
    """Returns a finished run's result. Raises a ConfigError if a file is missing or was not written by a run."""
    result = Result(read_files(user_path(folder)))
    # This block reads all attributes now, so that later reads cannot fail.
    with reading_run(result.folder):
        (
            str(result),
            result._repr_html_(),
            result.doubts,
            result.throughput_per_s,
            dict(result.stages_ns),
        )
    return result


def _html(result: Result) -> Iterator[str]:
    answer, content = result.answer, result.content
    colour = _GREEN if result.is_valid else _RED
    about = " · ".join(workload(content))
    yield f'<p><b style="{_BADGE}{colour}">{escape(answer.verdict)}</b> {escape(about)}</p>'
    yield f"<p>{escape(answer.question)}</p>"
    yield f'<p style="font-size:1.3em"><b>{escape(answer.headline)}</b></p>'
    if result.reasons:
        yield "<p>Do not quote these numbers:</p>"
        items = (
            f"<li><b>{escape(one.code)}</b>: {escape(one.text)}</li>" for one in result.reasons
        )
        yield f"<ul>{''.join(items)}</ul>"
    rows = {
        **answer_rows(content),
        **{name: show_ns(value) for name, value in result.latency_ns.items()},
        "folder": hide(str(result.folder)),
    }
    yield table(("", ""), rows.items())
