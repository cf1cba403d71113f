"""Checks a power result, which consists of the PTDaemon session's files, against the rules for a session."""

from collections.abc import Callable, Iterator, Mapping

from harness.core.files import WRONG_CONTENT
from harness.errors import one_line
from harness.submit.rules import run as rules_run
from harness.submit.rules.findings import Finding
from harness.submit.rules.layout import exactly, must_have
from harness.submit.rules.power import session as power_session
from harness.submit.rules.power.session import Fault, Session
from harness.submit.rules.tree.submission import RANGING, Result, read_run
from harness.submit.rules.tree.tree import LOG_LIMIT_BYTES, join

_DESCRIPTIONS = ("analyzer_table", "power_settings")
"""Beginnings of the names of two files, which contain the analyser's table and the table of settings. The files are in
the scenario's folder or in a folder above it.
"""

_CHECKS: tuple[tuple[str, Callable[[Session], Iterator[Fault]]], ...] = (
    ("power-session", power_session.described),
    ("power-session", power_session.talked),
    ("power-sources", power_session.sources),
    ("power-clock", power_session.clocks),
    ("power-hash", power_session.hashes),
    ("power-meter", power_session.meter),
    ("power-log", power_session.complained),
    ("power-samples", power_session.samples),
)


def power(result: Result) -> Iterator[Finding]:
    tree, rules = result.tree, result.round
    folder, ranging = result.inside("performance/power"), result.inside("performance/ranging")
    if tree.kind(folder) is None:
        if tree.kind(ranging) is not None:
            actual = "ranging without power"
            yield Finding("power-files", ranging, actual, "both folders or neither")
        return
    logs = (*rules.performance_files, rules.power_log)
    faults = (
        *exactly(tree, folder, rules.power_files, rules),
        *exactly(tree, ranging, logs, rules),
    )
    yield from (fault._replace(rule="power-files") for fault in faults)
    places = [result.path.rsplit("/", level)[0] for level in range(1, 4)]
    for name in _DESCRIPTIONS:
        there = [(p, f) for p in (result.path, *places) for f in tree.files(p)]
        files = [join(place, file) for place, file in there if file.startswith(name)]
        for file in files:
            yield from must_have(tree, file)
        if not files:
            path, expected = join(result.path, f"{name}.*"), "tables of analyser and settings"
            yield Finding("power-files", path, "no such file", expected)
    yield from _ranging(result)
    yield from _session(result)


_LOAD = (
    "effective_target_qps",
    "effective_samples_per_query",
    "effective_target_latency_ns",
    "effective_performance_sample_count",
    "qsl_reported_total_count",
)
"""Keys of the settings that define the load."""


def _ranging(result: Result) -> Iterator[Finding]:
    """Checks LoadGen's log of the ranging run in the same way as a performance run's log with the same load."""
    run, testing = read_run(result.tree, result.inside(RANGING)), result.performance
    if run is None:
        return  # the layout check reports the missing log
    yield from rules_run.performance(result, run)
    for key in _LOAD:
        if testing is not None and run.detail.get(key) != testing.detail.get(key):
            expected = f"{testing.text(key)}, as in the testing run"
            yield Finding("power-ranging", run.file, f"{key}: {run.text(key)}", expected)


def _session(result: Result) -> Iterator[Finding]:
    """Checks the session, if both of its descriptions exist. The layout check reports a missing description."""
    descriptions: list[Mapping[str, object]] = []
    for name in ("client.json", "server.json"):
        path = result.inside("performance/power", name)
        content = result.tree.json(path, LOG_LIMIT_BYTES)
        if isinstance(content, dict):
            descriptions.append(content)
        elif result.tree.has(path):
            yield Finding("power-session", path, "not a JSON object", "one JSON object")
    if len(descriptions) == 2:
        for rule, check in _CHECKS:
            yield from _checked(rule, check, Session(result, *descriptions))


def _checked(
    rule: str, check: Callable[[Session], Iterator[Fault]], session: Session
) -> Iterator[Finding]:
    """Converts faults to findings. Also converts exceptions to findings, because malformed descriptions raise
    exceptions.
    """
    place = session.result.inside("performance")
    try:
        for file, actual, expected in check(session):
            texts = (one_line(text) for text in (actual, expected))
            yield Finding(rule, join(place, file), *texts)
    except WRONG_CONTENT as e:
        actual = one_line(f"{type(e).__name__}: {e}")
        yield Finding(rule, join(place, "power"), actual, "the files of a complete session")
