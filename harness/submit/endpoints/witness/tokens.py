"""Counts the tokens of answers with the submission's tokenizer, in a separate process."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.errors import PluginUnavailable, one_line
from harness.submit.endpoints.environments import (
    environment_variables,
    is_environment,
    python_of,
)
from harness.submit.endpoints.witness import count_tokens

FILE = "tokenizer.json"


class TokenCounter:
    """Counts tokens by a tokenizer.json. Raises a PluginUnavailable if the package `tokenizers` is missing."""

    def __init__(self, tokenizer: Path, environment: Path | None = None) -> None:
        """environment: an environment with `tokenizers`, e.g. the client's; None: the harness's own."""
        own = environment is None or not is_environment(environment)
        python = sys.executable if own or environment is None else str(python_of(environment))
        words = [python, *([] if own else ["-I"]), count_tokens.__file__, str(tokenizer)]
        self._process = subprocess.Popen(
            words,
            env=None if own else environment_variables(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        self.count(["a"])  # shows at once whether it works

    def count(self, texts: Sequence[str]) -> list[int]:
        pipe, answers = self._process.stdin, self._process.stdout
        assert pipe is not None
        assert answers is not None
        try:
            pipe.write(json.dumps(list(texts)) + "\n")
            pipe.flush()
            line = answers.readline()
        except OSError:
            line = ""
        if not line:
            raise PluginUnavailable(f"tokens cannot be counted: {self._fault()}")
        counts: list[int] = json.loads(line)
        return counts

    def _fault(self) -> str:
        self._process.kill()
        _, errors = self._process.communicate()
        last = (errors or "").strip().rpartition("\n")[2]
        return one_line(last or "the program that counts ended")

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.communicate()


def counter_of(tokenizer: str, environment: Path) -> tuple[TokenCounter | None, str]:
    """Returns a counter, or None and the reason why tokens cannot be counted."""
    if not tokenizer:
        return None, "no --tokenizer was given"
    path = Path(tokenizer)
    path = path / FILE if path.is_dir() else path
    if not path.is_file():
        return None, f"{path} does not exist"
    try:
        return TokenCounter(path, environment), ""
    except (PluginUnavailable, OSError) as e:
        return None, one_line(e)
