"""Runs a scoring program from a reference implementation. The user sets the program's command in an environment
variable.

Some scores require a judge, such as a language model or an image model. A program that uses a judge runs once, at the
end of the accuracy run. `check` does not run the program again, but uses the stored score (see BY_PROGRAM in
harness/core/registry.py).
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
"""Time after which a scoring program is stopped. For comparison, judging 824 answers takes about one hour."""

_SHOWN_LINES = 3


class Program(NamedTuple):
    variable: str
    """Name of the environment variable that contains the command."""
    words: tuple[str, ...]
    """The command, without the arguments that the harness appends."""
    script: Path
    """The program's file. The file's digest is used as the program's version."""

    @property
    def scorer(self) -> str:
        """Returns the file's name and SHA-256, for the result."""
        return f"{self.script.name} {hashlib.sha256(self.script.read_bytes()).hexdigest()}"

    @property
    def version(self) -> str:
        """Returns the file's name and the beginning of its SHA-256, for accuracy.txt."""
        name, _, digest = self.scorer.rpartition(" ")
        return f"{name} {digest[:16]}"


def named(variable: str, script: str) -> Program:
    """Returns the program that an environment variable refers to. Raises a ValueError if the variable does not refer to
    a program.

    script: the usual file name, for messages.
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
    """Replaces a leading `~` in a path with the home folder, because a shell does not replace `~` within quotes."""
    return str(Path(word).expanduser()) if word.startswith("~/") else word


class ByProgram:
    """Base class for metrics that require a program."""

    variable: ClassVar[str]
    script: ClassVar[str]

    @classmethod
    def program(cls) -> Program:
        """Returns the program that the environment variable refers to. Raises a ValueError if the variable does not
        refer to a program.
        """
        return named(cls.variable, cls.script)

    @classmethod
    def missing(cls) -> Iterator[str]:
        """Yields the reason if the program cannot run."""
        try:
            cls.program()
        except ValueError as e:
            yield str(e)


def run(program: Program, arguments: Sequence[str], folder: Path) -> str:
    """Runs the program in `folder` and returns its output. Raises a ValueError if the program fails."""
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
    """Writes (sample, answer) pairs in the format of LoadGen's accuracy log. Returns the number of rows.

    token_bytes: size of a token in bytes; if it is not 0, each row also contains the number of tokens.
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
    """Base class for metrics whose answers are files, stored as uint8. A program compares these files with the labels,
    which are strings.
    """

    metric: ClassVar[str]
    content: ClassVar[str]
    """Word for the answers' content, in the plural."""

    def __init__(self, dtype: str) -> None:
        if dtype != "uint8":
            raise ValueError(
                f"{self.metric} needs {self.content} as uint8, but the answers are {dtype}"
            )

    def check_labels(self, labels: Mapping[int, object]) -> None:
        """Refuses labels that are not strings. Also refuses a run if no program would be available to score the run
        when it ends.
        """
        super().check_labels(labels)
        self.program()
