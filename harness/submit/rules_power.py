"""A power result has exactly the files of a PTDaemon session."""

from collections.abc import Iterator

from harness.submit.findings import Finding
from harness.submit.rules_tree import exactly
from harness.submit.submission import Result
from harness.submit.tree import join, shown

_DESCRIPTIONS = ("analyzer_table", "power_settings")
"""Tables of the power analyser and of the settings, in the scenario's folder or above it."""


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
        files = [f for p in (result.path, *places) for f in tree.files(p) if f.startswith(name)]
        if not files:
            path = shown(join(result.path, f"{name}.*"))
            yield Finding(
                "power-files", path, "nothing", "the analyser's and power settings' tables"
            )
