"""Checks the folders and files of a result tree of MLPerf Endpoints."""

import re
from collections.abc import Iterator, Sequence

from harness.submit.endpoints.rules.findings import Finding
from harness.submit.endpoints.rules.submission import (
    ACCURACY,
    POWER,
    REQUIRED,
    SERVER_FILES,
    SYSTEM,
    Curve,
    Point,
    mapping,
)
from harness.submit.rules.layout import REHEARSAL_SUFFIX
from harness.submit.rules.tree.tree import MOST_ENTRIES, Entry, Tree, join

MARK = "REHEARSAL.md"
LARGEST_BYTES = 50 << 20
_NAME = re.compile(r"[!-\-/-~][!-~]*")
"""Matches printable ASCII without spaces or a leading dot."""

_ALSO = re.compile(
    r"sample_idx_map\.json|report\.txt|serving_config\.json|results\.json|mlperf-system-info-[\w.-]*\.json"
)
"""The client's files that MLCommons' builder copies in addition to the required files."""

_PRIVATE = re.compile(
    r"w|who|users|ps|pstree|ulimit|env|environ|id_rsa|.*\.pem|.*history|events\.jsonl"
)
"""Names of files in which mlperf-sysinfo and the client record users, processes and requests."""

_SECRETS = ("api_key", "swebench_service_auth_token")


def whole_tree(tree: Tree) -> Iterator[Finding]:
    """Checks the name, type and size of every entry, and looks for the mark of a rehearsal."""
    if tree.is_cut:
        yield Finding("too-many-files", ".", f"more than {MOST_ENTRIES:,} entries", "a submission")
    for path, entry in tree.all():
        yield from _entry(path, entry)
    marks = [path for path, _ in tree.all() if _is_mark(path)]
    if marks:
        yield Finding("rehearsal", marks[0], "the mark of a rehearsal", "a submission of real runs")


def _is_mark(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name == MARK or name.endswith(REHEARSAL_SUFFIX)


def _entry(path: str, entry: Entry) -> Iterator[Finding]:
    name = path.rpartition("/")[2]
    if entry.kind in ("link", "other"):
        what = "a symbolic link" if entry.kind == "link" else "a device, pipe or socket"
        yield Finding("special-file", path, what, "a regular file or folder")
    if not _NAME.fullmatch(name):
        yield Finding("bad-name", path, repr(name), "printable ASCII without spaces")
    if entry.size_bytes > LARGEST_BYTES:
        size = f"{entry.size_bytes / 2**20:.1f} MiB"
        yield Finding("large-file", path, size, f"at most {LARGEST_BYTES / 2**20:.0f} MiB")
    if entry.kind == "file" and _PRIVATE.fullmatch(name):
        yield Finding("private-file", path, "users, processes or requests", "no such file")


def unreadable(tree: Tree) -> Iterator[Finding]:
    """Reports unreadable entries. Call this function last, because the other rules read files and may find more
    unreadable entries.
    """
    for path in dict.fromkeys(tree.unreadable):
        yield Finding("unreadable", path, "not readable", "a readable file or folder")


def root_folders(tree: Tree, root: str) -> Iterator[Finding]:
    """Checks src/, docs/ and the files next to these folders."""
    for name in ("src", "docs", "results"):
        if tree.kind(join(root, name)) != "folder":
            yield Finding("missing-folder", join(root, name), "no such folder", "this folder")
    docs = join(root, "docs")
    if tree.kind(docs) == "folder" and not _has_file(tree, docs):
        expected = "documents: topology, hops and baseline latency"
        yield Finding("empty-docs", docs, "no file", expected)
    yield from _sources(tree, join(root, "src"))
    for name in tree.names(root):
        if name not in ("src", "docs", "results", MARK):
            yield Finding("stray-file", join(root, name), "an entry", "only src, docs and results")


def _has_file(tree: Tree, folder: str) -> bool:
    return any(
        tree.size_bytes(join(folder, name)) or _has_file(tree, join(folder, name))
        for name in tree.names(folder)
    )


def _sources(tree: Tree, src: str) -> Iterator[Finding]:
    folders = tree.folders(src)
    if tree.kind(src) == "folder" and not folders:
        yield Finding("missing-folder", src, "no implementation", "src/<implementation>/README.md")
    for folder in folders:
        readmes = [n for n in tree.files(join(src, folder)) if n.lower() == "readme.md"]
        if not any(tree.size_bytes(join(src, folder, name)) for name in readmes):
            yield Finding("missing-readme", join(src, folder), "no README.md", "this file")


def system_folder(tree: Tree, root: str, system: str) -> Iterator[Finding]:
    path = join(root, "results", system)
    for name in tree.files(path):
        if name != POWER:
            yield Finding("stray-file", join(path, name), "a file", f"only {POWER}")
    for model in tree.folders(path):
        folder = join(path, model)
        if not any(_is_point(name) for name in tree.folders(folder)):
            yield Finding("no-points", folder, "no folder r<concurrency>", "the points of a curve")


def _is_point(name: str) -> bool:
    return re.fullmatch(r"r[1-9]\d*", name) is not None


def curve_folder(curve: Curve) -> Iterator[Finding]:
    tree = curve.tree
    for name in tree.names(curve.path):
        path = join(curve.path, name)
        if tree.kind(path) == "folder" and not _is_point(name):
            yield Finding("point-folder", path, repr(name), "r<concurrency>")
        elif tree.kind(path) == "file":
            yield Finding("stray-file", path, "a file", "only folders r<concurrency>")


def point_folder(point: Point) -> Iterator[Finding]:
    tree = point.tree
    for name in REQUIRED:
        yield from _readable(point, name)
    declared, named = point.yaml.get("concurrency"), point.folder_concurrency
    if declared is not None and declared != named:
        yield Finding("point-folder", point.path, f"concurrency {declared!r}", f"r{declared}")
    for name in tree.names(point.path):
        kind, path = tree.kind(point.file(name)), point.file(name)
        known = name in (*REQUIRED, ACCURACY) or _ALSO.fullmatch(name)
        if kind == "file" and not known:
            yield Finding("stray-file", path, "a file", f"only {', '.join((*REQUIRED, ACCURACY))}")
        if kind == "folder" and name not in (SERVER_FILES, "metrics"):
            yield Finding("stray-file", path, "a folder", f"only {SERVER_FILES}")
    if tree.has(point.file(ACCURACY)) and point.accuracy is None:
        yield Finding("bad-file", point.file(ACCURACY), "not a list of scores", "accuracy_scores")
    if secret := _secret(point.config):
        yield Finding("private-file", point.file("config.yaml"), f"{secret} has a value", "no key")


def _readable(point: Point, name: str) -> Iterator[Finding]:
    contents = {"point.yaml": point.yaml, "config.yaml": point.config, SYSTEM: point.system}
    content = contents.get(name, point.summary)
    if not point.tree.has(point.file(name)):
        yield Finding("missing-file", point.file(name), "no such file", "this file")
    elif not content:
        kind = "YAML" if name.endswith(".yaml") else "JSON"
        yield Finding("bad-file", point.file(name), f"not a mapping in {kind}", "one mapping")


def _secret(value: object) -> str:
    """Returns the name of a key in the configuration whose value is a secret; '' if the configuration contains no
    secret.
    """
    if isinstance(value, list):
        return next(filter(None, map(_secret, value)), "")
    for key, inner in mapping(value).items():
        if key in _SECRETS and inner and not str(inner).startswith("${"):
            return key
        if found := _secret(inner):
            return found
    return ""


def shared_paths(point: Point, root: str) -> Iterator[Finding]:
    """Checks that shared_src and shared_docs name folders in the submission."""
    for key in ("shared_src", "shared_docs"):
        value = point.yaml.get(key)
        if value in (None, ""):
            continue  # another rule reports a missing key
        parts = _parts(str(value))
        if not parts or point.tree.kind(join(root, *parts)) != "folder":
            actual = f"{key}: {value}"
            yield Finding("shared-path", point.file("point.yaml"), actual, "a folder of the tree")


def _parts(text: str) -> Sequence[str]:
    """Returns the parts of a relative path; an empty sequence for an absolute path or a path with '..'."""
    parts = [part for part in text.strip().split("/") if part and part != "."]
    is_inside = not text.strip().startswith(("/", "~")) and ".." not in parts
    return parts if is_inside else []
