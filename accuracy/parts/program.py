"""Runs the reference's scoring program that the user names in an environment variable.

Some scores need a judge: a language model, or a model of images. Such a program runs once, at the end of the
accuracy run. `check` never runs it: the stored score counts (BY_PROGRAM in harness/core/registry.py).
"""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from harness.accuracy.parts.text import TextLabels
from harness.core.child import run_program
from harness.errors import one_line

LIMIT_S = 24 * 3600.0
"""Timeout of a program; 824 answers take a judge about an hour."""

_SHOWN_LINES = 3


class Program(NamedTuple):
    variable: str
    """The environment variable."""
    words: tuple[str, ...]
    """The command, without the arguments that the harness adds."""
    script: Path
    """The program's file, whose digest is its version."""

    @property
    def scorer(self) -> str:
        """Returns the file's name and its SHA-256, for the result."""
        return f"{self.script.name} {hashlib.sha256(self.script.read_bytes()).hexdigest()}"

    @property
    def version(self) -> str:
        """Returns the file's name and the beginning of its SHA-256, for accuracy.txt."""
        name, _, digest = self.scorer.rpartition(" ")
        return f"{name} {digest[:16]}"


def named(variable: str, script: str) -> Program:
    """Returns the program in the variable. Raises a ValueError if it does not name a program.

    script: the usual file, named in messages.
    """
    how = f"export {variable}='python PATH/{script} …', in an environment that has its packages"
    try:
        words = [_expanded(word) for word in shlex.split(os.environ.get(variable, ""))]
    except ValueError as e:
        raise ValueError(f"{variable} is not a command ({one_line(e)}): {how}") from e
    if not words:
        raise ValueError(
            f"{variable} is not set, but MLCommons' {script} computes the score: {how}"
        )
    first = shutil.which(words[0])
    scripts = [word for word in words if word.endswith(".py") and not word.startswith("-")]
    lost = [word for word in scripts if not Path(word).is_file()]
    if first is None and not Path(words[0]).is_file():
        lost.insert(0, words[0])
    if lost:
        raise ValueError(f"{variable} names {lost[0]}, which is not a file: {how}")
    return Program(variable, tuple(words), Path(scripts[0] if scripts else str(first)).absolute())


def _expanded(word: str) -> str:
    """Returns a path with the home folder for `~`, which a shell leaves inside quotes."""
    return str(Path(word).expanduser()) if word.startswith("~/") else word


class ByProgram:
    """The base of metrics that need a program."""

    variable: ClassVar[str]
    script: ClassVar[str]

    @classmethod
    def program(cls) -> Program:
        """Raises a ValueError if the variable does not name a program."""
        return named(cls.variable, cls.script)

    @classmethod
    def missing(cls) -> Iterator[str]:
        """Yields the reason why the program cannot run."""
        try:
            cls.program()
        except ValueError as e:
            yield str(e)


def run(program: Program, arguments: Sequence[str], folder: Path) -> str:
    """Runs the program in `folder` and returns its output. Raises a ValueError if it fails."""
    words = [str(Path(word).absolute()) if Path(word).is_file() else word for word in program.words]
    try:
        done = run_program([*words, *arguments], LIMIT_S, cwd=folder)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise ValueError(f"{program.variable}: the program did not end: {one_line(e)}") from e
    if done.returncode:
        last = "; ".join(done.stdout.strip().splitlines()[-_SHOWN_LINES:])
        raise ValueError(
            f"{program.variable}: the program ended with status {done.returncode}: {one_line(last)}"
        )
    return done.stdout


def write_log(path: Path, answers: Iterable[tuple[int, bytes]], *, token_bytes: int = 0) -> int:
    """Writes (sample, answer) as LoadGen's accuracy log, one row at a time; returns the number of rows.

    token_bytes: the size of a token; with it, the rows also have the number of tokens.
    """
    total = 0
    with path.open("w", encoding="utf-8") as file:
        file.write("[")
        for index, payload in answers:
            row: dict[str, object] = {
                "seq_id": total,
                "qsl_idx": index,
                "data": payload.hex().upper(),
            }
            if token_bytes:
                row["token_count"] = len(payload) // token_bytes
            file.write(f"{',' if total else ''}\n{json.dumps(row)}")
            total += 1
        file.write("\n]\n")
    return total


class ScoredFiles(TextLabels, ByProgram):
    """The base of metrics whose answers are files as uint8. A program scores them against the labels, which are strings."""

    metric: ClassVar[str]
    content: ClassVar[str]
    """The content of an answer, in the plural."""

    def __init__(self, dtype: str) -> None:
        if dtype != "uint8":
            raise ValueError(
                f"{self.metric} needs {self.content} as uint8, but the answers are {dtype}"
            )

    def check_labels(self, labels: Mapping[int, object]) -> None:
        """Refuses labels that are not strings, and a run that could not be scored at its end."""
        super().check_labels(labels)
        self.program()
