"""Every code that a reason or a doubt can have, with its subject, its meaning and the advice for it.

A code that is not in `CODES` cannot be used: `Reason` refuses it. `compare`, `peak` and the other
searches take their sets of codes from here, and `scripts/docs.py` writes docs/verdict.md from here.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, Self


class Kind(StrEnum):
    """Whether a code makes a run INVALID or only calls for caution."""

    REASON = "reason"
    DOUBT = "doubt"


class About(StrEnum):
    """The part of a run that a code is about; `ABOUT` explains each."""

    LOAD = "load"
    LOAD_GENERATOR = "load generator"
    MODEL = "model"
    ACCURACY = "accuracy"
    MACHINE = "machine"
    SETTINGS = "machine settings"
    CLOCK = "clock"
    POWER = "power"
    RULES = "rules"
    PROCESS = "process"
    FILES = "files"


ABOUT: Mapping[About, str] = MappingProxyType(
    {
        About.LOAD: "the rate, the number of queries, or the length of the run",
        About.LOAD_GENERATOR: "LoadGen, or the part of the harness that hands out its queries",
        About.MODEL: "the model file, or the backend that runs it",
        About.ACCURACY: "the answers, their score, and the data they are scored on",
        About.MACHINE: "something that changed the speed of the machine during the run",
        About.SETTINGS: "how the machine is set up",
        About.CLOCK: "the wall clock, which LoadGen measures with",
        About.POWER: "the power meters",
        About.RULES: "the official rules of MLPerf",
        About.PROCESS: "the start and the end of the process that is measured",
        About.FILES: "the logs and the other files of the run",
    }
)


class Code(NamedTuple):
    """One row of the table."""

    kind: Kind
    about: About
    meaning: str
    """A full sentence, with the limit where there is one."""
    advice: str
    """The next step of the user, as a full sentence."""


def _reason(about: About, meaning: str, advice: str) -> Code:
    return Code(Kind.REASON, about, meaning, advice)


def _doubt(about: About, meaning: str, advice: str) -> Code:
    return Code(Kind.DOUBT, about, meaning, advice)


_RUN_AGAIN = "Run again."
_DISK = "Check that the result folder is writable and the disk is not full, then run again."
_REPORT = "Run again; report a bug if it happens again."
_QUIET = "Stop other programs on this machine and run again."

CODES: Mapping[str, Code] = MappingProxyType(
    {
        "slo-missed": _reason(
            About.LOAD,
            "The latency at the percentile of the SLO is above its bound.",
            "Lower `--target-qps` or `--concurrency`, or raise `--slo`.",
        ),
        "early-stopping": _reason(
            About.LOAD,
            "There were too few queries to prove the percentile, given how many of them were late.",
            "Run longer: the text says how many queries and seconds are needed.",
        ),
        "loadgen-invalid": _reason(
            About.LOAD,
            "LoadGen's own verdict is INVALID; the text names the constraints that were not met.",
            "Lower the rate or run longer, as the text says.",
        ),
        "hopeless": _reason(
            About.LOAD,
            "A search ended the run early because too many queries were late already.",
            "Do nothing: this run was one step of a search.",
        ),
        "too-few-queries": _reason(
            About.LOAD_GENERATOR, "LoadGen counted fewer queries than were planned.", _REPORT
        ),
        "loadgen-errors": _reason(
            About.LOAD_GENERATOR,
            "LoadGen wrote errors into its detail log.",
            "Read `mlperf_log_detail.txt`.",
        ),
        "samples-lost": _reason(
            About.LOAD_GENERATOR,
            "A sample was not answered exactly once, or LoadGen and the harness counted different "
            "numbers of samples.",
            "Report a bug, with the result folder.",
        ),
        "batch-failed": _reason(
            About.MODEL,
            "The backend raised an exception, or returned a wrong shape, a wrong type or NaN.",
            "Correct the model or the plug-in: `run.json` has the first traceback.",
        ),
        "accuracy-below-target": _reason(
            About.ACCURACY,
            "The score does not reach the target in the manifest.",
            "Use another precision or another model file.",
        ),
        "accuracy-incomplete": _reason(
            About.ACCURACY,
            "LoadGen's accuracy log does not hold one answer for each sample.",
            _DISK,
        ),
        "accuracy-failed": _reason(
            About.ACCURACY,
            "The answers could not be scored: the dataset or the metric raised an exception, the "
            "accuracy run did not start, or the data or the model changed during the run.",
            "Read the text and `accuracy.log`.",
        ),
        "answers-differ": _reason(
            About.ACCURACY,
            "Answers of the performance run are not those that the accuracy run gave for the same "
            "samples.",
            "Look for a model that answers differently under load or in larger batches; "
            "`accuracy.tolerance` and `accuracy.sampling_tolerance` in the manifest set what is "
            "allowed.",
        ),
        "clock-jumped": _reason(
            About.CLOCK,
            "The wall clock was set forward or back by more than 1 ms, so LoadGen's latencies are "
            "wrong.",
            _RUN_AGAIN,
        ),
        "too-short": _reason(
            About.RULES,
            "The minimum duration of an official run is below what the rules ask for.",
            "Correct `min_duration` in the file of `--user-conf`.",
        ),
        "did-not-start": _reason(
            About.PROCESS,
            "A plug-in raised an exception before the first query.",
            "Read the text and `performance.log`.",
        ),
        "died": _reason(
            About.PROCESS,
            "The measured process was killed or ended before the run was over.",
            "Read `performance.log`; often there was not enough memory.",
        ),
        "hung": _reason(
            About.PROCESS,
            "No sample was completed for as long as `--hang-timeout` allows.",
            "The text says what the process waited for.",
        ),
        "interrupted": _reason(
            About.PROCESS, "A signal stopped the run, for example Ctrl-C.", _RUN_AGAIN
        ),
        "did-not-finish": _reason(
            About.PROCESS, "The harness ended before it wrote a result.", _RUN_AGAIN
        ),
        "log-missing": _reason(About.FILES, "LoadGen's detail log is missing.", _DISK),
        "log-incomplete": _reason(
            About.FILES, "LoadGen's detail log is cut off, or LoadGen did not write it.", _DISK
        ),
        "log-mixed": _reason(
            About.FILES, "LoadGen's detail log holds more than one run.", "Run into a new folder."
        ),
        "wrong-run": _reason(
            About.FILES,
            "The log belongs to another scenario or mode than the run.",
            "Do not move files between result folders; run again.",
        ),
        "wrong-seed": _reason(
            About.FILES,
            "A random seed in the log is not the one that was planned.",
            "Do not move files between result folders; run again.",
        ),
        "wrong-sample-count": _reason(
            About.FILES,
            "The number of samples held in memory is not the one that was planned.",
            "Do not move files between result folders; run again.",
        ),
        "journal-missing": _reason(
            About.FILES, "The harness's own record of the samples is missing.", _DISK
        ),
        "not-saved": _reason(
            About.FILES,
            "The result folder could not be written, so the printed table is all there is.",
            "Free disk space or pass another `--out`, then run again.",
        ),
        "few-samples": _doubt(
            About.LOAD,
            "There were fewer queries than the percentile needs even if none of them is late.",
            "Run longer, with `--duration` or `--queries`.",
        ),
        "short-run": _doubt(
            About.LOAD,
            "An Offline run took less than 1 s, so its rate is mostly start and end.",
            "Run longer, with `--duration` or `--queries`.",
        ),
        "generator-late": _doubt(
            About.LOAD_GENERATOR,
            "LoadGen issued 1 % of the queries late by more than 10 % of the SLO, so part of their "
            "latency is not the model's.",
            "Leave a core free for LoadGen, with fewer `--instances` or `--threads`; stop other "
            "programs.",
        ),
        "percentiles-disagree": _doubt(
            About.LOAD_GENERATOR,
            "The p50 or p99 that the harness recorded differs from LoadGen's by more than 1 % and "
            "more than 20 us.",
            _QUIET,
        ),
        "loadgen-warnings": _doubt(
            About.LOAD_GENERATOR,
            "LoadGen wrote a warning that is not known to be harmless.",
            "Read `mlperf_log_detail.txt`.",
        ),
        "model-not-pinned": _doubt(
            About.MODEL,
            "The manifest names no SHA-256 for the model file, so nothing proves which file ran.",
            "Compare the recorded SHA-256 with the publisher's and write it into the manifest.",
        ),
        "padded": _doubt(
            About.MODEL,
            "The model file has a fixed batch size, and more than 10 % of the computed rows were "
            "padding.",
            "Export the model with a symbolic batch dimension.",
        ),
        "close-raised": _doubt(
            About.MODEL,
            "The backend raised an exception after the last answer.",
            "Correct the plug-in's `__exit__`.",
        ),
        "few-compared": _doubt(
            About.ACCURACY,
            "Fewer than 100 answers of the performance run could be compared with the accuracy run's.",
            "Run longer; where answers are large, add a postprocess step that makes them smaller.",
        ),
        "target-not-checked": _doubt(
            About.ACCURACY,
            "The manifest has an accuracy target, and the run was not held against it.",
            "Run with the manifest's own dataset and metric.",
        ),
        "noisy-machine": _doubt(
            About.MACHINE,
            "Before the run, timed sleeps woke up late (p99) by more than 10 % of the SLO.",
            _QUIET,
        ),
        "busy-machine": _doubt(
            About.MACHINE,
            "Other processes used more than 10 % of all cores during the run.",
            _QUIET,
        ),
        "steal": _doubt(
            About.MACHINE,
            "The host of this virtual machine gave more than 2 % of the CPU time to others.",
            "Use a machine with dedicated cores, or run again at another time.",
        ),
        "throttled": _doubt(
            About.MACHINE,
            "The CPU quota of the container stopped the run for some time.",
            "Raise the quota, or use fewer `--instances` or `--threads`.",
        ),
        "preempted": _doubt(
            About.MACHINE,
            "Threads of the measured process lost their cores to other threads at least 200 times "
            "per second of CPU time, and at least 100 times in all.",
            "Use fewer `--instances` or `--threads`, or stop other programs.",
        ),
        "paged": _doubt(
            About.MACHINE,
            "The measured process read its memory or files from the disk more often than once in "
            "100 samples.",
            "Free memory, or hold fewer samples with `--performance-count`.",
        ),
        "stalled": _doubt(
            About.MACHINE,
            "No sample was completed for more than 1 s and 20 times the slowest batch although "
            "samples were waiting.",
            "Look for what stopped the process, and run again.",
        ),
        "drift": _doubt(
            About.MACHINE,
            "The median of the last third of the run differs from that of the first by more than "
            "10 % and by more than the noise within each third.",
            "Run longer, or let the machine settle first.",
        ),
        "frequency-dropped": _doubt(
            About.MACHINE,
            "The fastest core was more than 10 % slower in the last third of the run than in the "
            "first (checked in runs of 9 s or more).",
            "Let the machine settle with a longer run, or fix the frequency of its cores.",
        ),
        "thermal-throttled": _doubt(
            About.MACHINE,
            "The processor slowed itself down because it was too hot.",
            "Cool the machine, or quote only runs that are hot from beginning to end.",
        ),
        "settings-changed": _doubt(
            About.MACHINE,
            "The frequency governor, turbo, SMT or the CPU quota of the container changed during "
            "the run.",
            "Find the program that changed it, such as a power daemon, and run again.",
        ),
        "governor": _doubt(
            About.SETTINGS,
            "A frequency governor may slow cores down while they wait for the next query (not "
            "checked in Offline).",
            "Run `cpupower frequency-set -g performance`.",
        ),
        "not-pinned": _doubt(
            About.SETTINGS,
            "`--pin` was given, and a thread that computes may run outside its instance's cores.",
            "Add `--backend-option processes=on`.",
        ),
        "clock-slewed": _doubt(
            About.CLOCK,
            "Time synchronisation made the wall clock run more than 100 ppm too fast or too slow.",
            "Wait until the clock is synchronised, and run again.",
        ),
        "power-missing": _doubt(
            About.POWER,
            "`--meter` was given, and no meter has readings for the whole run.",
            "Read the text; [power.md](power.md) explains each meter.",
        ),
    }
)
"""Code -> its row. The order within a kind is the order of the documentation."""

INTERRUPTED = "interrupted"
HOPELESS = "hopeless"


def codes(kind: Kind, about: About) -> frozenset[str]:
    """All codes of that kind about that part of a run."""
    return frozenset(code for code, row in CODES.items() if (row.kind, row.about) == (kind, about))


class _Reason(NamedTuple):
    code: str
    text: str


class Reason(_Reason):
    """Why a run is INVALID or doubtful.

    code: a stable word for programs, one of harness/core/codes.py. text: for people, with the numbers of
    the run.
    """

    __slots__ = ()

    def __new__(cls, code: str, text: str) -> Self:
        if code not in CODES:
            raise ValueError(
                f"{code!r} is not a code of harness/core/codes.py: add it to the table"
            )
        return super().__new__(cls, code, text)

    @classmethod
    def stored(cls, content: Mapping[str, str]) -> Self:
        """From a result file, which another version may have written: its code may be unknown here."""
        return cls._make((content["code"], content["text"]))
