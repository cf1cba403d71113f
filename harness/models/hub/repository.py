"""Lists and downloads the files of a repository of the HuggingFace Hub, and finds downloaded files in the hub's cache.

The package `huggingface-hub` sends the requests. The documentation of that package explains HF_ENDPOINT, HF_HOME,
HF_TOKEN and HF_HUB_OFFLINE. The harness also caches the lists of files, so that the same command later works without a
network. Downloaded files are not executed.
"""

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from urllib.parse import quote

from harness.core.console import say
from harness.core.extras import how_to_install
from harness.core.files import cache_dir, cached_file, parse_json, reading, sha256, write_json
from harness.errors import ConfigError, PluginUnavailable, one_line
from harness.models.hub.name import HubName, is_commit


class Listing(NamedTuple):
    """The files of one commit."""

    commit: str
    digests: Mapping[str, str]
    """Maps a path in the repository to a digest: the SHA-256 for a file in Git LFS, or the blob's SHA-1 in Git for any
    other file.
    """


@functools.cache
def listing(repository: str, revision: str | None) -> Listing:
    """Returns the files at a revision; None means the default branch. Repeated calls in one process return the same
    list.

    The list of a commit is stored on disk, so it can be read later without a network. If the hub is not reachable, a
    branch or tag refers to the same commit as at the last successful access. Raises ConfigError if no access has ever
    succeeded.
    """
    name = HubName(repository, revision)
    stored = _stored_at(name)
    if is_commit(revision) and stored.is_file():
        return _read(stored)
    hub = _hub(name)
    try:
        found = hub.HfApi(endpoint=hub.constants.ENDPOINT).model_info(
            repository, revision=revision, files_metadata=True
        )
    except hub.errors.HfHubHTTPError as e:
        raise ConfigError(f"--model {name}: the hub refused it: {_refusal(e)}") from e
    except Exception as e:
        if not stored.is_file():
            raise ConfigError(
                f"--model {name}: the hub cannot be reached ({one_line(e)}), and the model was not fetched before: "
                "connect once, or pass the path of a file"
            ) from e
        last = _read(stored)
        say(f"the hub cannot be reached: {name} is assumed to be still at commit {last.commit}")
        return last
    files = {s.rfilename: s.lfs.sha256 if s.lfs else s.blob_id for s in found.siblings or ()}
    result = Listing(found.sha, {file: digest for file, digest in files.items() if digest})
    for kept in {stored, _stored_at(name._replace(revision=result.commit))}:
        with cached_file(kept) as temporary:
            write_json(temporary, result._asdict())
    return result


def in_cache(repository: str, commit: str, file: str) -> Path | None:
    """Returns the file in the hub's cache, or None if it is missing."""
    hub = _hub(HubName(repository, commit, file))
    path = hub.try_to_load_from_cache(
        repository, file, cache_dir=hub.constants.HF_HUB_CACHE, revision=commit
    )
    return Path(path) if isinstance(path, str) else None


def download(repository: str, commit: str, file: str) -> Path:
    """Returns the file's path in the hub's cache. Downloads the file if it is missing, and checks its digest against
    the commit's list.
    """
    name = HubName(repository, commit, file)
    expected = listing(repository, commit).digests.get(file)
    if expected is None:
        raise ConfigError(f"--model {name}: this commit has no file {file}")
    hub = _hub(name)
    try:
        path = Path(
            hub.hf_hub_download(
                repository,
                file,
                revision=commit,
                cache_dir=hub.constants.HF_HUB_CACHE,
                endpoint=hub.constants.ENDPOINT,
            )
        )
    except Exception as e:
        raise ConfigError(f"--model {name} cannot be fetched: {_refusal(e)}") from e
    check(path, expected)
    return path


def check(path: Path, expected: str | None = None) -> None:
    """Raises ConfigError if a file differs from the file on the hub.

    expected: the digest, by default the name of the link's target in the hub's cache.
    """
    blob = path.resolve()
    digest = expected or blob.name
    try:
        actual = sha256(blob) if len(digest) == 64 else _git_sha1(blob)
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}") from e
    if actual != digest:
        raise ConfigError(
            f"{path}: its digest is {actual[:12]}…, but the hub's is {digest[:12]}…: remove {blob} and fetch it again"
        )


def _git_sha1(path: Path) -> str:
    """Returns Git's SHA-1 of a file. Only small files outside Git LFS need this digest, because Git LFS files have a
    SHA-256.
    """
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    digest.update(path.read_bytes())
    return digest.hexdigest()


def _stored_at(name: HubName) -> Path:
    folder = cache_dir() / "hub" / name.repository.replace("/", "--")
    return folder / f"{quote(name.revision or 'HEAD', safe='')}.json"


def _read(path: Path) -> Listing:
    with reading(f"{path} is damaged", "remove it", (OSError,)):
        content = parse_json(path.read_text(encoding="utf-8"))
        return Listing(str(content["commit"]), dict(content["digests"]))


def _refusal(error: Exception) -> str:
    """Returns only the first sentence of the client's message, because the other sentences give advice about the
    client's functions.
    """
    return one_line(getattr(error, "server_message", None) or error).partition(". ")[0]


def _hub(name: HubName) -> Any:
    """Imports the module at its first use, because the import takes half a second."""
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ModuleNotFoundError as e:
        raise PluginUnavailable(
            f"--model {name} needs the module {e.name!r}: {how_to_install('hf')}"
        ) from e
    module: ModuleType = huggingface_hub
    return module
