"""The layout: what lies where, what is missing, what does not belong."""

from collections.abc import Iterator

from harness.submit.rules.findings import Finding
from harness.submit.rules.tree.rounds import Benchmark, Round
from harness.submit.rules.tree.submission import MAPPING, Result, Submitter
from harness.submit.rules.tree.tree import MOST_ENTRIES, Entry, Tree, join, shown

MARK = "REHEARSAL.md"
REHEARSAL_SUBMITTER = "Rehearsal"
REHEARSAL_SUFFIX = "_REHEARSAL"
_SIDECARS = ("energy.json", "power.csv", "power.json", "host.csv")
_SCENARIO_FOLDERS = ("performance", "accuracy")
_PERFORMANCE_FOLDERS = ("run_1", "power", "ranging")
_MEDIA = ("images", "videos")


def mark(tree: Tree) -> Iterator[Finding]:
    """At most one: where the tree first says that it is a rehearsal."""
    for path, _ in ((MARK, None), *tree.all()):
        name = path.rsplit("/", 1)[-1]
        named = path.count("/") == 1 and name == REHEARSAL_SUBMITTER
        if (path == MARK and tree.kind(MARK)) or named or name.endswith(REHEARSAL_SUFFIX):
            yield Finding(
                "rehearsal", shown(path), "the mark of a rehearsal", "a submission of real runs"
            )
            return


def whole_tree(tree: Tree, found: Round) -> Iterator[Finding]:
    """Names, links, sizes and permissions of everything, and what lies outside of submitters."""
    if tree.is_cut:
        yield Finding(
            "too-many-files", ".", f"more than {MOST_ENTRIES:,} entries", "a submission's tree"
        )
    for path, entry in tree.all():
        yield from _entry_findings(tree, path, entry, found)
    for name in tree.folders(""):
        if name not in (*found.divisions, *found.beside_divisions):
            wanted = f"one of {', '.join(found.divisions)}"
            yield Finding("stray-folder", shown(name), "a folder at the root", wanted)
    for name in tree.files(""):
        if not name.endswith(found.root_suffixes):
            wanted = f"only {' and '.join(found.root_suffixes)} files at the root"
            yield Finding("stray-file", shown(name), "a file at the root", wanted)
    for division in tree.folders(""):
        if division in found.divisions:
            for name in tree.files(division):
                path = shown(join(division, name))
                yield Finding("stray-file", path, "a file", "only submitters' folders here")


def unreadable(tree: Tree) -> Iterator[Finding]:
    """Last: reading goes on while the other rules look."""
    for path in dict.fromkeys(tree.unreadable):
        yield Finding("unreadable", shown(path), "it cannot be read", "a readable file or folder")


def _entry_findings(tree: Tree, path: str, entry: Entry, found: Round) -> Iterator[Finding]:
    top, _, rest = path.partition("/")
    if top in found.beside_divisions:
        return
    name = path.rsplit("/", 1)[-1]
    if entry.kind in ("link", "other"):
        what = "a symbolic link" if entry.kind == "link" else "neither file nor folder"
        yield Finding("special-file", shown(path), what, "a regular file or folder")
    if name == "__pycache__":
        yield Finding("pycache", shown(path), "Python's cache", "sources only")
    elif rest and _is_bad(name):
        yield Finding("bad-name", shown(path), repr(shown(name)), "printable ASCII, no space")
    if entry.size_bytes > found.largest_file_bytes:
        limit = f"at most {found.largest_file_bytes / 2**20:.0f} MiB"
        yield Finding("large-file", shown(path), f"{entry.size_bytes / 2**20:.1f} MiB", limit)
    if entry.kind == "folder" and not tree.names(path) and path not in tree.unreadable:
        yield Finding("empty-folder", shown(path), "nothing in it", "files, or no folder")
    if name in _SIDECARS:
        yield Finding("energy-sidecar", shown(path), "readings of our own", "nothing of the kind")


def _is_bad(name: str) -> bool:
    return (
        name.startswith(".")
        or not name.isascii()
        or any(c.isspace() for c in name)
        or (not name.isprintable())
    )


def submitter_folder(who: Submitter) -> Iterator[Finding]:
    """systems/ and results/ must name the same systems; src/ and, if closed, calibration.md exist."""
    tree, path = who.tree, who.path
    for folder in ("results", "src"):
        if tree.kind(join(path, folder)) != "folder":
            yield Finding("missing-folder", shown(join(path, folder)), "nothing", "a folder")
    places = [join(path, "calibration.md"), join(path, "documentation", "calibration.md")]
    if not who.is_open and not any(tree.has(p) for p in places):
        yield Finding("missing-file", shown(places[0]), "nothing", "how weights were calibrated")
    described = {
        n.removesuffix(".json") for n in tree.files(join(path, "systems")) if n.endswith(".json")
    }
    for system in sorted(described - set(who.systems())):
        yield Finding("unused-system", shown(who.system_file(system)), "no results", "results/")
    yield from _mapping(who)


def _mapping(who: Submitter) -> Iterator[Finding]:
    path = join(who.path, MAPPING)
    if not who.tree.has(path):
        return
    if not who.is_open:
        wanted = "no mapping outside the open division"
        yield Finding("model-mapping", shown(path), f"a mapping in {who.division}", wanted)
        return
    content = who.tree.json(path)
    if not isinstance(content, dict):
        yield Finding("bad-json", shown(path), "no JSON object", "one JSON object")
        return
    for name, to in content.items():
        if not isinstance(to, str) or to not in who.round.benchmarks:
            found = f"{name!r}: {to!r}"[:200]
            yield Finding("model-mapping", shown(path), found, f"a benchmark of {who.round.name}")


def benchmark_folders(who: Submitter, seen: list[Result]) -> Iterator[Finding]:
    """Each system has benchmarks, each benchmark of the closed division all its scenarios."""
    tree, top = who.tree, join(who.path, "results")
    if not who.systems():
        yield Finding("no-results", shown(top), "no system", "results/<system>/<benchmark>")
    for system in who.systems():
        if not tree.folders(join(top, system)):
            yield Finding("no-results", shown(join(top, system)), "no benchmark", "one at least")
        for folder in tree.folders(join(top, system)):
            mine = [r for r in seen if (r.system, r.folder) == (system, folder)]
            yield from _benchmark(who, system, folder, mine)


def _benchmark(who: Submitter, system: str, folder: str, mine: list[Result]) -> Iterator[Finding]:
    path = shown(join(who.path, "results", system, folder))
    if not mine:
        yield Finding("no-results", path, "no scenario", "one at least")
        return
    benchmark = mine[0].benchmark
    if benchmark is None:
        yield Finding("unknown-benchmark", path, repr(shown(folder)), f"one of {who.round.name}")
        return
    category = mine[0].category
    if category not in who.round.categories:
        return
    required = benchmark.scenarios(category)
    if not required:
        yield Finding("wrong-category", path, f"{mine[0].name} as {category}", "its category")
    elif not who.is_open:
        yield from _scenarios(path, category, benchmark, mine)


def _scenarios(
    path: str, category: str, benchmark: Benchmark, mine: list[Result]
) -> Iterator[Finding]:
    """Of the closed division: all the required ones, and no others."""
    required = benchmark.scenarios(category)
    there = {r.scenario for r in mine}
    missing = [s for s in required if s not in there]
    optional = benchmark.optional if "datacenter" in category else ()
    if optional and not there & set(optional):
        missing.append(f"one of {' and '.join(optional)}")
    if missing:
        wanted = f"{', '.join(required)} of {category}"
        yield Finding("missing-scenarios", path, f"without {', '.join(missing)}", wanted)
    for result in mine:
        if result.scenario and result.scenario not in (*required, *optional):
            wanted = f"one of {', '.join((*required, *optional))}"
            yield Finding("unknown-scenario", shown(result.path), "not of this category", wanted)


def scenario_folder(result: Result) -> Iterator[Finding]:
    """The files and folders of one result, no more and no fewer."""
    tree, rules = result.tree, result.round
    if result.scenario is None or result.scenario != result.scenario_folder:
        found = repr(shown(result.scenario_folder))
        wanted = result.scenario or f"one of {', '.join(rules.scenarios)}"
        yield Finding("unknown-scenario", shown(result.path), found, wanted)
        if result.scenario is None:
            return
    for name in rules.scenario_files:
        yield from must_have(tree, result.inside(name))
    for name in tree.folders(result.path):
        if name not in _SCENARIO_FOLDERS and name not in rules.audits:
            wanted = "performance, accuracy and the audits"
            yield Finding("stray-folder", shown(result.inside(name)), "a folder", wanted)
    for name in tree.folders(result.inside("performance")):
        if name not in _PERFORMANCE_FOLDERS:
            path = shown(result.inside("performance", name))
            yield Finding("stray-folder", path, "a folder", "run_1, and power folders")
    for name in tree.folders(result.inside("accuracy")):
        if name not in _MEDIA:
            yield Finding(
                "stray-folder", shown(result.inside("accuracy", name)), "a folder", "files"
            )
    power = (rules.power_log,) if tree.kind(result.inside("performance/power")) else ()
    yield from exactly(
        tree, result.inside("performance/run_1"), rules.performance_files, rules, power
    )
    yield from exactly(tree, result.inside("accuracy"), rules.accuracy_files, rules)


def exactly(
    tree: Tree, folder: str, wanted: tuple[str, ...], rules: Round, also: tuple[str, ...] = ()
) -> Iterator[Finding]:
    """All of `wanted` and `also`, and nothing that is not tolerated."""
    for name in (*wanted, *also):
        # an accuracy run's summary may hold nothing
        may_be_empty = name == rules.performance_files[0] and folder.endswith("accuracy")
        yield from must_have(tree, join(folder, name), may_be_empty=may_be_empty)
    for name in tree.files(folder):
        if name not in (*wanted, *also, *rules.tolerated_files):
            listed = ", ".join((*wanted, *also))
            yield Finding("stray-file", shown(join(folder, name)), "a file", f"only {listed}")


def must_have(tree: Tree, path: str, *, may_be_empty: bool = False) -> Iterator[Finding]:
    if not tree.has(path):
        yield Finding("missing-file", shown(path), "nothing", "this file")
    elif not tree.size_bytes(path) and not may_be_empty:
        yield Finding("empty-file", shown(path), "0 bytes", "some content")
