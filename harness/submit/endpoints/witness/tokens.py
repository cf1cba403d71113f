"""Counts the tokens in answers with the submission's tokenizer, in a separate process."""

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
from harness.submit.endpoints.witness.answers import Part

FILE = "tokenizer.json"


class TokenCounter:
    """Counts tokens with the tokenizer in a folder. Raises a PluginUnavailable if a package is missing."""

    def __init__(
        self, folder: Path, environment: Path | None = None, *, trust: bool = False
    ) -> None:
        """Starts the program. environment: an environment with `tokenizers` and `transformers`, such as the client's;
        None uses the harness's environment.

        trust: whether code in the tokenizer's folder may run.
        """
        own = environment is None or not is_environment(environment)
        python = sys.executable if own or environment is None else str(python_of(environment))
        words = [python, *([] if own else ["-I"]), count_tokens.__file__, str(folder)]
        words += ["--trust"] if trust else []
        self._process = subprocess.Popen(
            words,
            env=None if own else environment_variables(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        self.count(["a"])  # this call fails immediately if tokens cannot be counted

    def count(self, parts: Sequence[Part]) -> list[int]:
        """Returns the number of tokens in each part. Raises a PluginUnavailable if the program cannot count the parts."""
        pipe, answers = self._process.stdin, self._process.stdout
        assert pipe is not None
        assert answers is not None
        try:
            pipe.write(json.dumps(list(parts)) + "\n")
            pipe.flush()
            line = answers.readline()
        except OSError:
            line = ""
        if not line:
            raise PluginUnavailable(f"tokens cannot be counted: {self._fault()}")
        counts: list[int] | dict[str, str] = json.loads(line)
        if isinstance(counts, dict):
            raise PluginUnavailable(f"tokens cannot be counted: {one_line(counts['error'])}")
        return counts

    def _fault(self) -> str:
        self._process.kill()
        _, errors = self._process.communicate()
        last = (errors or "").strip().rpartition("\n")[2]
        return one_line(last or "the token-counting program ended")

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.communicate()


def counter_of(
    tokenizer: str, environment: Path, *, trust: bool = False
) -> tuple[TokenCounter | None, str]:
    """Returns a counter, or None with the reason why tokens cannot be counted. trust: whether the tokenizer's code may
    run.
    """
    if not tokenizer:
        return None, "no --tokenizer was given"
    path = Path(tokenizer)
    folder = path if path.is_dir() else path.parent
    if not folder.is_dir():
        return None, f"{folder} does not exist"
    if not (folder / FILE).is_file() and not trust:
        return (
            None,
            f"{folder} has no {FILE}: pass --trust-tokenizer to run the tokenizer's code",
        )
    try:
        return TokenCounter(folder, environment, trust=trust), ""
    except (PluginUnavailable, OSError) as e:
        return None, one_line(e)
