"""Checks the tree's layout: missing, misplaced and unknown files and folders."""

import re
from collections.abc import Iterator

from harness.submit.rules.findings import Finding
from harness.submit.rules.tree.rounds import Benchmark, Round
from harness.submit.rules.tree.submission import MAPPING, Result, Submitter
from harness.submit.rules.tree.tree import MOST_ENTRIES, Entry, Tree, join

MARK = "REHEARSAL.md"
REHEARSAL_SUBMITTER = "Rehearsal"
REHEARSAL_SUFFIX = "_REHEARSAL"
_SIDECARS = ("energy.json", "power.csv", "power.json", "host.csv")
_NAME = re.compile(r"[!-\-/-~][!-~]*")
"""Matches printable ASCII without spaces or a leading dot."""


def mark(tree: Tree) -> Iterator[Finding]:
    """Yields at most one finding, which reports the first mark of a rehearsal."""
    for path, _ in ((MARK, None), *tree.all()):
        name = path.rsplit("/", 1)[-1]
        named = path.count("/") == 1 and name == REHEARSAL_SUBMITTER
        if (path == MARK and tree.kind(MARK)) or named or name.endswith(REHEARSAL_SUFFIX):
            yield Finding("rehearsal", path, "the mark of a rehearsal", "a submission of real runs")
            return


def whole_tree(tree: Tree, rules: Round) -> Iterator[Finding]:
    """Checks the name, type and size of every entry, and everything outside the submitters' folders."""
    if tree.is_cut:
        yield Finding(
            "too-many-files", ".", f"more than {MOST_ENTRIES:,} entries", "a submission's tree"
        )
    for path, entry in tree.all():
        yield from _entry_findings(tree, path, entry, rules)
    for name in tree.folders(""):
        if name not in (*rules.divisions, *rules.beside_divisions):
            expected = f"one of {', '.join(rules.divisions)}"
            yield Finding("stray-folder", name, "a folder at the root", expected)
    for name in tree.files(""):
        if not name.endswith(rules.root_suffixes):
            expected = f"only {' and '.join(rules.root_suffixes)} files at the root"
            yield Finding("stray-file", name, "a file at the root", expected)
    for division in tree.folders(""):
        if division in rules.divisions:
            for name in tree.files(division):
                path = join(division, name)
                yield Finding("stray-file", path, "a file", "only submitters' folders here")


def unreadable(tree: Tree) -> Iterator[Finding]:
    """Reports unreadable entries. Call this function last, because the other rules read files and may find more
    unreadable entries.
    """
    for path in dict.fromkeys(tree.unreadable):
        yield Finding("unreadable", path, "not readable", "a readable file or folder")


def _entry_findings(tree: Tree, path: str, entry: Entry, rules: Round) -> Iterator[Finding]:
    top, _, rest = path.partition("/")
    if top in rules.beside_divisions:
        return
    name = path.rsplit("/", 1)[-1]
    if entry.kind in ("link", "other"):
        what = "a symbolic link" if entry.kind == "link" else "a device, pipe or socket"
        yield Finding("special-file", path, what, "a regular file or folder")
    if name == "__pycache__":
        yield Finding("pycache", path, "Python's cache", "sources only")
    elif rest and not _NAME.fullmatch(name):
        yield Finding("bad-name", path, repr(name), "printable ASCII without spaces")
    if entry.size_bytes > rules.largest_file_bytes:
        limit = f"at most {rules.largest_file_bytes / 2**20:.0f} MiB"
        yield Finding("large-file", path, f"{entry.size_bytes / 2**20:.1f} MiB", limit)
    if entry.kind == "folder" and not tree.names(path) and path not in tree.unreadable:
        yield Finding("empty-folder", path, "an empty folder", "files in it, or no folder")
    if name in _SIDECARS:
        yield Finding("energy-sidecar", path, "readings of another meter", "no such file")


def submitter_folder(who: Submitter) -> Iterator[Finding]:
    """Checks that systems/ and results/ name the same systems, and that src/ and calibration.md exist."""
    tree, path = who.tree, who.path
    for folder in ("results", "src"):
        if tree.kind(join(path, folder)) != "folder":
            yield Finding("missing-folder", join(path, folder), "no such folder", "a folder")
    places = [join(path, "calibration.md"), join(path, "documentation", "calibration.md")]
    if not who.is_open and not any(tree.has(p) for p in places):
        yield Finding("missing-file", places[0], "no such file", "the calibration of the weights")
    for place in places:
        if tree.has(place) and not tree.text(place).strip():
            yield Finding("empty-file", place, "no text", "the calibration of the weights")
    described = {
        n.removesuffix(".json") for n in tree.files(join(path, "systems")) if n.endswith(".json")
    }
    for system in sorted(described - set(who.systems())):
        file, expected = who.system_file(system), "a folder of this name in results/"
        yield Finding("unused-system", file, "a system without results", expected)
    yield from _mapping(who)


def _mapping(who: Submitter) -> Iterator[Finding]:
    path = join(who.path, MAPPING)
    if not who.tree.has(path):
        return
    if not who.is_open:
        expected = "no mapping outside the open division"
        yield Finding("model-mapping", path, f"a mapping in {who.division}", expected)
        return
    content = who.tree.json(path)
    if not isinstance(content, dict):
        yield Finding("bad-json", path, "not a JSON object", "one JSON object")
        return
    for name, to in content.items():
        if not isinstance(to, str) or to not in who.round.benchmarks:
            actual = f"{name!r}: {to!r}"[:200]
            yield Finding("model-mapping", path, actual, f"a benchmark of {who.round.name}")


def benchmark_folders(who: Submitter, seen: list[Result]) -> Iterator[Finding]:
    """Checks that each system has benchmarks, and that each benchmark in the closed division has all its scenarios."""
    tree, top = who.tree, join(who.path, "results")
    if not who.systems():
        yield Finding("no-results", top, "no system", "results/<system>/<benchmark>")
    for system in who.systems():
        if not tree.folders(join(top, system)):
            yield Finding("no-results", join(top, system), "no benchmark", "at least one")
        for folder in tree.folders(join(top, system)):
            mine = [r for r in seen if (r.system, r.folder) == (system, folder)]
            yield from _benchmark(who, system, folder, mine)


def _benchmark(who: Submitter, system: str, folder: str, mine: list[Result]) -> Iterator[Finding]:
    path = join(who.path, "results", system, folder)
    if not mine:
        yield Finding("no-results", path, "no scenario", "at least one")
        return
    benchmark = mine[0].benchmark
    if benchmark is None:
        yield Finding("unknown-benchmark", path, repr(folder), f"a benchmark of {who.round.name}")
        return
    category = mine[0].category
    if category not in who.round.categories:
        return
    required = benchmark.scenarios(category)
    if not required:
        actual = f"{mine[0].name} in {category}"
        yield Finding("wrong-category", path, actual, "a category of this benchmark")
    elif not who.is_open:
        yield from _scenarios(path, category, benchmark, mine)


def _scenarios(
    path: str, category: str, benchmark: Benchmark, mine: list[Result]
) -> Iterator[Finding]:
    required = benchmark.scenarios(category)
    there = {r.scenario for r in mine}
    missing = [s for s in required if s not in there]
    optional = benchmark.optional_in(category)
    if optional and not there & set(optional):
        missing.append(f"one of {' and '.join(optional)}")
    if missing:
        expected = f"{', '.join(required)} of {category}"
        yield Finding("missing-scenarios", path, f"without {', '.join(missing)}", expected)
    for result in mine:
        if result.scenario and result.scenario not in (*required, *optional):
            expected = f"one of {', '.join((*required, *optional))}"
            actual = "a scenario of another category"
            yield Finding("unknown-scenario", result.path, actual, expected)


def scenario_folder(result: Result) -> Iterator[Finding]:
    """Checks that a result has exactly the required files and folders."""
    tree, rules = result.tree, result.round
    if result.scenario is None or result.scenario != result.scenario_folder:
        actual = repr(result.scenario_folder)
        expected = result.scenario or f"one of {', '.join(rules.scenarios)}"
        yield Finding("unknown-scenario", result.path, actual, expected)
        if result.scenario is None:
            return
    for name in rules.scenario_files:
        yield from must_have(tree, result.inside(name))
    for place, allowed, expected in (
        ("", ("performance", "accuracy", *rules.audits), "performance, accuracy and the audits"),
        ("performance", ("run_1", "power", "ranging"), "only run_1, power and ranging"),
        ("accuracy", ("images", "videos"), "only files"),
    ):
        for name in tree.folders(result.inside(place)):
            if name not in allowed:
                yield Finding("stray-folder", result.inside(place, name), "a folder", expected)
    power = (rules.power_log,) if tree.kind(result.inside("performance/power")) else ()
    logs = (*rules.performance_files, *power)
    yield from exactly(tree, result.inside("performance/run_1"), logs, rules)
    yield from exactly(tree, result.inside("accuracy"), rules.accuracy_files, rules)


def exactly(tree: Tree, folder: str, expected: tuple[str, ...], rules: Round) -> Iterator[Finding]:
    """Checks that `folder` contains all files in `expected`, and no other files except tolerated files."""
    for name in expected:
        # an accuracy run's summary may be empty
        may_be_empty = name == rules.performance_files[0] and folder.endswith("accuracy")
        yield from must_have(tree, join(folder, name), may_be_empty=may_be_empty)
    for name in tree.files(folder):
        if name not in (*expected, *rules.tolerated_files):
            yield Finding("stray-file", join(folder, name), "a file", f"only {', '.join(expected)}")


def must_have(tree: Tree, path: str, *, may_be_empty: bool = False) -> Iterator[Finding]:
    if not tree.has(path):
        yield Finding("missing-file", path, "no such file", "this file")
    elif not tree.size_bytes(path) and not may_be_empty:
        yield Finding("empty-file", path, "0 bytes", "a file with content")
