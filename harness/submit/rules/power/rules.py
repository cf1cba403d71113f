"""A power result: exactly the files of a PTDaemon session, and a session that keeps its rules."""

from collections.abc import Callable, Iterator, Mapping

from harness.core.files import WRONG_CONTENT
from harness.errors import one_line
from harness.submit.rules.findings import Finding
from harness.submit.rules.layout import exactly, must_have
from harness.submit.rules.power import session as power_session
from harness.submit.rules.power.session import Fault, Session
from harness.submit.rules.tree.submission import Result
from harness.submit.rules.tree.tree import LOG_LIMIT_BYTES, join, shown

_DESCRIPTIONS = ("analyzer_table", "power_settings")
"""Tables of the power analyser and of the settings, in the scenario's folder or above it."""

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
            found = "ranging without power"
            yield Finding("power-files", shown(ranging), found, "both folders, or neither")
        return
    yield from (
        f._replace(rule="power-files")
        for f in (
            *exactly(tree, folder, rules.power_files, rules),
            *exactly(tree, ranging, (*rules.performance_files, rules.power_log), rules),
        )
    )
    places = [result.path.rsplit("/", level)[0] for level in range(1, 4)]
    for name in _DESCRIPTIONS:
        there = [(p, f) for p in (result.path, *places) for f in tree.files(p)]
        files = [join(place, file) for place, file in there if file.startswith(name)]
        for file in files:
            yield from must_have(tree, file)
        if not files:
            path = shown(join(result.path, f"{name}.*"))
            yield Finding(
                "power-files", path, "nothing", "the analyser's and power settings' tables"
            )
    yield from _session(result)


def _session(result: Result) -> Iterator[Finding]:
    """Nothing where a description is missing, which the layout tells."""
    said: list[Mapping[str, object]] = []
    for name in ("client.json", "server.json"):
        path = result.inside("performance/power", name)
        content = result.tree.json(path, LOG_LIMIT_BYTES)
        if isinstance(content, dict):
            said.append(content)
        elif result.tree.has(path):
            yield Finding("power-session", shown(path), "no JSON object", "one JSON object")
    if len(said) == 2:
        for rule, check in _CHECKS:
            yield from _checked(rule, check, Session(result, *said))


def _checked(
    rule: str, check: Callable[[Session], Iterator[Fault]], session: Session
) -> Iterator[Finding]:
    """Whatever a description holds: what cannot be looked at is a finding."""
    place = session.result.inside("performance")
    try:
        for file, found, wanted in check(session):
            told = (shown(one_line(text)) for text in (found, wanted))
            yield Finding(rule, shown(join(place, file)), *told)
    except WRONG_CONTENT as e:
        found = one_line(f"{type(e).__name__}: {e}")
        yield Finding(rule, shown(join(place, "power")), shown(found), "what a session leaves")
