"""Stores a verb's measurements in a folder, and shows them using only the folder's JSON file."""

import errno
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from harness.core import files
from harness.core.console import say, show
from harness.core.shown.private import own_command
from harness.errors import ConfigError, HarnessError, RunInvalid, one_line
from harness.results import run_folder
from harness.results.run_folder import ResultFolder
from harness.run.study import show_result

Content = Mapping[str, Any]

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


class Report(NamedTuple):
    """The JSON file of a verb, and the functions that show it."""

    verb: str
    file: str
    """Name of the JSON file in the folder."""
    schema: Mapping[str, int]
    """Maps a key in the file to the version of the format that this harness reads."""
    lines: Callable[[Any], Iterable[str]]
    """Makes the tables for readers."""
    write_page: Callable[[Any, Path], Path]
    """Draws the page into a folder and returns its path."""
    derive: Callable[[Content], Any] = lambda content: content
    """Computes, from the file's content, the content that the other functions take."""
    to_json: Callable[[Content], Content] = lambda content: content
    """Makes the output of --json."""

    @contextmanager
    def measuring(self, out: Path | None, backend: str, subject: str) -> Iterator[ResultFolder]:
        """Creates the folder, and renames it to its final name after the last measurement.

        After an error, the folder stays if measurements were saved, or if a log may show the cause.
        """
        new = run_folder.new_folder(out, self.verb, backend, subject)
        try:
            try:
                yield new
            finally:
                (new.path / run_folder.PROGRESS).unlink(missing_ok=True)
        except BaseException as e:
            is_clear = isinstance(e, ConfigError | KeyboardInterrupt)
            if (new.path / self.file).exists():
                if isinstance(e, KeyboardInterrupt):
                    say(f"stopped: {self.verb} --from {new.path} shows the results so far")
            elif is_clear or not any(file.stat().st_size for file in new.path.glob("*")):
                shutil.rmtree(new.path, ignore_errors=True)
            if isinstance(e, OSError) and e.errno in _NO_ROOM:
                where = e.filename or new.path
                raise RunInvalid(
                    f"{where} cannot be written ({e.strerror}): free some space there"
                ) from e
            raise
        new.finish(newest=False)

    def save(self, content: Content, folder: Path) -> None:
        if (command := own_command(Path(self.file).stem)) is not None:
            content = {"command": command, **content}
        files.write_json(folder / self.file, content)

    def read(self, path: Path) -> Content:
        """Reads the JSON file. path: a folder, or the file. Raises ConfigError if another version wrote the file."""
        file = path if path.is_file() else path / self.file
        content = files.read_json(file, self.verb)
        if any(content.get(key) != version for key, version in self.schema.items()):
            raise ConfigError(
                f"{file} was written by another version of `{self.verb}`: its schema differs"
            )
        with files.reading(f"{file} is not valid `{self.verb}` output"):
            tuple(self.lines(self.derive(content)))
        return content

    def show_again(self, folder: Path, *, as_json: bool) -> Any:
        """Shows a folder using only its file. Returns the result of `derive`."""
        content = self.read(folder)
        with files.reading(f"{folder / self.file} is not valid `{self.verb}` output"):
            return self.show(content, folder, as_json=as_json)

    def show(self, content: Content, folder: Path, *, as_json: bool) -> Any:
        """Draws the page, and prints the tables or the JSON, and the paths of the page and the folder.

        Returns the result of `derive`.
        """
        shown = self.derive(content)
        page = self.draw(shown, folder)
        show_result(partial(self.to_json, shown), partial(self.lines, shown), as_json=as_json)
        places = {"page": page, "results": folder}
        text = "\n".join(f"{name:<12}{path}" for name, path in places.items() if path is not None)
        if as_json:
            say(text)
        else:
            show(f"\n{text}")
        return shown

    def draw(self, shown: Content, folder: Path) -> Path | None:
        """Draws the page. If drawing fails, prints the reason and returns None. shown: the result of `derive`."""
        try:
            return self.write_page(shown, folder)
        except (HarnessError, OSError) as e:
            say(f"no page was written: {one_line(e)}")
            return None
