"""Copies a result folder without its private names, and adds a list of the replacements."""

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from harness.core import files
from harness.core.console import say
from harness.core.formats.strict_yaml import load_yaml, yaml_of
from harness.core.units import counted
from harness.errors import ConfigError, HarnessError
from harness.models.manifest.lookup import is_path
from harness.results import recheck, records, run_folder
from harness.results.pages.tables import Column, aligned
from harness.results.publish.replacements import Replaced, Replacements
from harness.results.run_folder import ResultFolder
from harness.results.seal import digests

PUBLISHED = "published.txt"
"""File in the copy that lists the replacements."""

_MOST_FILES = 3
"""A row in the list names at most this many files."""

_SCRIPT = re.compile(r'<script src="(\.\./[^"]*plotly[^"]*\.js)"></script>')
"""Matches a link to plotly's script outside the copied folder."""


def publish(folder: Path, out: Path) -> list[str]:
    """Copies a run's or study's folder to `out`. Returns the list of replacements, one line each.

    Raises a ConfigError if `out` exists, if `folder` is not a result folder, or if `check` finds differences in the
    copy but not in the original. If `check` finds such differences, the copy is removed.
    """
    if not any(folder.rglob(run_folder.RESULT)) and not any(folder.rglob(run_folder.CONFIG)):
        raise ConfigError(
            f"{folder} has no {run_folder.RESULT}: name the folder of a run or a study"
        )
    if out.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{out} lies in {folder}: pass a different folder")
    new = ResultFolder(out, "OUT")
    try:
        lines = _Copy(folder, new.path).make()
        new.finish(newest=False)
    except OSError as e:
        shutil.rmtree(new.path, ignore_errors=True)
        raise ConfigError(f"{e.filename or new.path} cannot be copied: {e.strerror}") from e
    except BaseException:
        shutil.rmtree(new.path, ignore_errors=True)
        raise
    return lines


class _Copy:
    def __init__(self, source: Path, target: Path) -> None:
        self._source, self._target = source, target
        self._replacements = Replacements([source])
        self._changed: dict[str, Counter[Replaced]] = {}
        self._left_out: list[str] = []

    def make(self) -> list[str]:
        for path in sorted(self._source.rglob("*")):
            self._copy(path, self._target / self._renamed(path))
        for path in sorted(self._source.rglob(run_folder.CONFIG)):
            self._copy_manifest(path.parent)
        lines = list(self._lines())
        files.write_text(self._target / PUBLISHED, "\n".join(lines) + "\n")
        # Inner folders come first, because the outer folder's seal contains the digests of the inner folders' seals.
        for path in sorted(self._source.rglob(digests.SEAL), key=lambda path: -len(path.parts)):
            digests.write(self._target / self._renamed(path.parent))
        for path in sorted(self._source.rglob(records.FINDINGS)):
            self._check(path.parent)
        return lines

    def _renamed(self, path: Path) -> Path:
        """Returns the path inside the copy. File names are replaced as well, because they may be private."""
        parts = path.relative_to(self._source).parts
        return Path(*(self._replacements.text(part, Counter()) for part in parts))

    def _copy(self, path: Path, target: Path) -> None:
        if path.is_symlink() and path.name == run_folder.LATEST:
            return  # the harness itself made this link, so it needs no note
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            self._left_out.append(f"{self._renamed(path)}: a link or a device")
        elif path.is_dir():
            target.mkdir(exist_ok=True)
        elif path.name == digests.SIGNATURE:
            self._left_out.append(f"{self._renamed(path)}: it signs the original's files")
        elif path.name not in (PUBLISHED, digests.SEAL):
            self._write(path, target)

    def _write(self, path: Path, target: Path) -> None:
        content = path.read_bytes()
        if b"\0" in content[: 1 << 20]:
            if self._replacements.stand_in(content):
                self._left_out.append(f"{target.name}: a binary file with private texts in it")
                return
        else:
            content, counts = self._replacements.file(content, path.name)
            if counts:
                self._changed[target.relative_to(self._target).as_posix()] = counts
        if path.suffix == ".html":
            content = _with_script(content, path.parent)
        target.write_bytes(content)

    def _copy_manifest(self, run: Path) -> None:
        """Copies the files that `check` reads outside the folder: the manifest, or a set and its manifests."""
        config = recheck.configuration(run)
        if config.models is None:
            self._copy_yaml(run, Path(config.model))
        elif config.models.is_file():
            content: Any = load_yaml(config.models)
            for entry in content["models"]:
                if is_path(entry["model"]):
                    self._copy_yaml(run, config.models.parent / entry["model"])
                    entry["model"] = Path(entry["model"]).name
            self._copy_yaml(run, config.models, yaml_of(content))

    def _copy_yaml(self, run: Path, file: Path, text: str | None = None) -> None:
        """Copies a manifest or a set. text: the copy's content, if it was changed. Skips a model that is not a
        manifest.
        """
        if not (is_path(str(file)) and file.suffix in (".yaml", ".yml") and file.is_file()):
            return
        folder = self._target / self._renamed(run) / recheck.MODEL
        folder.mkdir(exist_ok=True)
        target = folder / self._replacements.text(file.name, Counter())
        if text is None:
            self._write(file, target)
        else:
            target.write_bytes(self._replacements.file(text.encode(), file.name)[0])

    def _check(self, run: Path) -> None:
        copy = self._target / self._renamed(run)
        differences = _differences(copy)
        if not differences:
            return
        of_original = _differences(run)
        if of_original:
            say(f"{run} is published with the differences that `check` reports: {of_original[0]}")
            return
        raise ConfigError(
            f"{run} cannot be published, because `check` refuses its copy: {differences[0]}"
        )

    def _lines(self) -> Iterator[str]:
        total: Counter[Replaced] = Counter()
        for counts in self._changed.values():
            total += counts
        rows = [(one.what, one.new, count, self._files_of(one)) for one, count in total.items()]
        if rows:
            heads = [Column("replaced"), Column("by"), Column("times", "count"), Column("files")]
            yield from aligned(heads, sorted(rows))
        else:
            yield "nothing was replaced"
        yield from (f"left out: {text}" for text in self._left_out)

    def _files_of(self, one: Replaced) -> str:
        names = [name for name, counts in self._changed.items() if one in counts]
        more = counted(len(names) - _MOST_FILES, "more file")
        return ", ".join(names[:_MOST_FILES]) + (f" and {more}" if len(names) > _MOST_FILES else "")


def _differences(run: Path) -> list[str]:
    try:
        return recheck.check(run)
    except HarnessError as e:
        return str(e).splitlines()


def _with_script(page: bytes, folder: Path) -> bytes:
    """Embeds plotly's script into the page if the script is outside the folder."""
    found = _SCRIPT.search(page.decode("utf-8", "surrogateescape"))
    script = folder / unquote(found[1]) if found else None
    if found is None or script is None or not script.is_file():
        return page
    return page.replace(found[0].encode(), b"<script>" + script.read_bytes() + b"</script>")
