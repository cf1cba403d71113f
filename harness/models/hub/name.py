"""Parses `hf:ORG/NAME@REV:FILE`, the name of a model file on the HuggingFace Hub."""

import re
from pathlib import PurePosixPath
from typing import NamedTuple

from harness.core.config.parse import HUB
from harness.errors import ConfigError

_COMMIT = re.compile(r"[0-9a-f]{40}")
_PATTERN = re.compile(r"hf:((?:[\w.-]+/)?[\w.-]+)(?:@([^\s:@]+))?(?::([^\s:@]+))?", re.ASCII)


class HubName(NamedTuple):
    """A file in a repository. `str` returns the name in the syntax of --model."""

    repository: str
    """ORG/NAME, or only NAME for a few old repositories."""
    revision: str | None = None
    """A commit, a branch or a tag."""
    file: str | None = None
    """The file's path in the repository."""

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{HUB}{self.repository}{revision}" + (f":{self.file}" if self.file else "")

    @property
    def is_pinned(self) -> bool:
        """Whether the name always refers to the same content, because it contains a commit and a file."""
        return self.file is not None and is_commit(self.revision)


def is_commit(revision: str | None) -> bool:
    """Returns whether the revision is the full hash of a commit, so that no push can change the content."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def parse_hub_model(text: str) -> HubName:
    """Parses 'hf:ORG/NAME[@REV][:FILE]'. Raises ConfigError for any other text."""
    match = _PATTERN.fullmatch(text)
    file = match[3] if match else None
    if match is None or (file and (file.startswith("/") or ".." in PurePosixPath(file).parts)):
        raise ConfigError(f"--model {text}: write hf:ORG/NAME@COMMIT or hf:ORG/NAME@COMMIT:FILE")
    return HubName(match[1], match[2], file)
