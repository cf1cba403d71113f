"""Collects private texts in result folders, and replaces them."""

import html
import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from harness.core import registry
from harness.core.formats.strict_yaml import parse_yaml, yaml_of
from harness.core.shown import private
from harness.loadgen.logs import DETAIL, FILES, SUMMARY

_OTHER_HOMES = r"/(?:home|Users)/[\w.-]*\w"
"""Matches other users' home folders, because the run may come from another machine."""

_SCHEMA = Path(__file__).parents[1] / "result.schema.json"
_LEAST_LETTERS = 3
"""A name with fewer letters than this, or a name that is also a word in results, is replaced only within paths and
addresses.
"""

_LEAST_ARGUMENT = 8
"""A meter's argument is replaced everywhere only if it has at least this many characters. A shorter argument may be a
number.
"""

_LARGEST_BYTES = 16 * 2**20
"""Files larger than this are not searched for settings."""

_SPELLINGS: tuple[Callable[[str], str], ...] = (
    str,
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    html.escape,
)
"""Ways in which a log, a JSON file or a page may spell a text."""


_PARSERS: Mapping[str, Callable[[str], Any]] = {
    ".json": json.loads,
    ".yaml": parse_yaml,
    ".yml": parse_yaml,
}


class Replaced(NamedTuple):
    """A kind of private text, and the text that replaces it."""

    what: str
    new: str


HOME = Replaced("home folder", "~")


class Replacements:
    """Private texts in result folders: file paths, meters' arguments, home folder, user and host."""

    def __init__(self, folders: Iterable[Path]) -> None:
        """Collects the private texts. folders: result folders, whose settings reveal which texts are private."""
        self._texts: dict[str, Replaced] = {}
        names = dict.fromkeys(private.users(), Replaced("user name", private.USER))
        names |= dict.fromkeys(private.hosts(), Replaced("host name", str(private.host_id())))
        words = {*_words(_SCHEMA.read_text(encoding="utf-8"))}
        for plugins in registry.KINDS.values():
            words |= {word for name in plugins for word in _words(name)}
        for folder in folders:
            for path in {folder.absolute(), folder.resolve()}:
                self._add(str(path), Replaced("result folder", path.name))
            words |= {word for text in _texts_of_results(folder) for word in _words(text)}
            for settings in _settings(folder):
                words |= {word for value in settings.values() for word in _words_of_name(value)}
                names |= _meters_hosts(settings) | _servers_hosts(settings)
                self._add_settings(settings, folder)
        for home in private.homes():
            self._add(home, HOME)
        self._names = names
        patterns = [
            _anywhere(name) if _is_distinct(name, words) else private.name_pattern(name)
            for name in names
        ]
        named = re.compile("|".join(patterns) or "(?!)")
        for old, one in self._texts.items():
            # The path's replacement keeps the last folder of the path, which may contain the user's name.
            new = named.sub(lambda found: names[found[0]].new, one.new)
            self._texts[old] = one._replace(new=new)
        self._pattern = re.compile("|".join([*self._alternatives(), *patterns]))

    def file(self, content: bytes, name: str) -> tuple[bytes, Counter[Replaced]]:
        """Returns a text file's content without private texts, and how often each kind of text was replaced.

        Parses and rewrites YAML files, because YAML folds long texts over several lines.
        """
        counts: Counter[Replaced] = Counter()
        text = content.decode("utf-8", "surrogateescape")
        if name.endswith((".yaml", ".yml")):
            with suppress(ValueError):
                plain = parse_yaml(text)
                changed = self._value(plain, counts)
                if counts:
                    text = yaml_of(changed, allow_unicode=True)
                    return text.encode("utf-8", "surrogateescape"), counts
        return self.text(text, counts).encode("utf-8", "surrogateescape"), counts

    def text(self, text: str, counts: Counter[Replaced]) -> str:
        def new(found: re.Match[str]) -> str:
            known = self._texts.get(found[0]) or self._names.get(found[0], HOME)
            counts[known] += 1
            return known.new

        return self._pattern.sub(new, text)

    def stand_in(self, content: bytes) -> bool:
        """Returns whether a binary file contains a private text. In NumPy archives, only arrays of texts are searched,
        because numbers may happen to contain the same bytes as a short name.
        """
        known = [*self._texts, *(name for name in self._names if len(name) >= _LEAST_LETTERS)]
        with suppress(ValueError, TypeError, AttributeError, OSError, zipfile.BadZipFile):
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                arrays = [file[name] for name in file.files]
            texts = [str(one) for array in arrays if array.dtype.kind in "SU" for one in array.flat]
            return any(old in text for old in known for text in [*texts, *file.files])
        encodings = ("utf-8", "utf-16-le", "utf-32-le")
        return any(old.encode(coding, "ignore") in content for old in known for coding in encodings)

    def _value(self, value: Any, counts: Counter[Replaced]) -> Any:
        if isinstance(value, str):
            return self.text(value, counts)
        if isinstance(value, Mapping):
            return {self._value(k, counts): self._value(one, counts) for k, one in value.items()}
        return [self._value(one, counts) for one in value] if isinstance(value, list) else value

    def _add(self, old: str, replaced: Replaced) -> None:
        for spelling in _SPELLINGS:
            self._texts.setdefault(spelling(old), replaced._replace(new=spelling(replaced.new)))

    def _add_path(self, path: str, replaced: Replaced) -> None:
        if Path(path).is_absolute() and path != "/":
            # Both forms of the path are replaced, because results show home folders as ~.
            for text in dict.fromkeys((path, private.hide(path))):
                self._add(text, replaced)

    def _add_settings(self, settings: Mapping[str, Any], folder: Path) -> None:
        """Adds the private texts in `settings`, which is a run's configuration or a LoadGen run's plan."""
        for key, value in settings.items():
            for text in value if isinstance(value, list) else [value]:
                if not isinstance(text, str):
                    continue
                if key == "meter":
                    self._add_meter(text)
                elif "backend" not in settings:
                    self._add_path(
                        text.partition("/performance/")[0], Replaced("result folder", folder.name)
                    )
                else:
                    self._add_path(*_file(key, text))

    def _add_meter(self, text: str) -> None:
        replaced = Replaced("arguments of a meter", private.meter(text))
        if replaced.new == text:
            return
        self._add(text, replaced)
        name, _, argument = text.partition("=")
        self._add_path(*_file("meter", name))
        if len(argument) >= _LEAST_ARGUMENT:
            self._add(argument, replaced._replace(new=replaced.new.partition("=")[2]))

    def _alternatives(self) -> Iterator[str]:
        """Yields regular expressions for all private texts, longest text first."""
        for text in sorted(self._texts, key=len, reverse=True):
            pattern = private.home_pattern if self._texts[text] == HOME else private.path_pattern
            yield pattern(text) if text[0] in "/~" else _anywhere(text)
        yield _OTHER_HOMES


def _is_distinct(name: str, words: set[str]) -> bool:
    return len(name) >= _LEAST_LETTERS and name.lower() not in words


def _anywhere(text: str) -> str:
    return rf"(?<![A-Za-z0-9]){re.escape(text)}(?![A-Za-z0-9])"


def _small_files(folder: Path) -> list[Path]:
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return sorted(path for path in paths if path.stat().st_size <= _LARGEST_BYTES)


def _texts_of_results(folder: Path) -> Iterator[str]:
    """Yields the texts in the folder that programs read: table headings, JSON keys, LoadGen's logs."""
    for path in _small_files(folder):
        if path.suffix == ".csv":
            yield path.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
        elif path.name in (DETAIL, SUMMARY):
            yield path.read_text(encoding="utf-8", errors="replace")
        elif path.suffix == ".json" and path.name not in FILES:
            text = path.read_text(encoding="utf-8", errors="replace")
            yield " ".join(re.findall(r'"(\w+)":', text))


def _settings(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Yields the settings of runs and the plans of LoadGen runs, from all YAML and JSON files in the folder."""
    for path in _small_files(folder):
        if path.suffix in _PARSERS and path.name not in FILES:
            with suppress(ValueError, RecursionError):
                yield from _settings_in(_PARSERS[path.suffix](path.read_text(encoding="utf-8")))


def _settings_in(content: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(content, dict):
        if {"scenario", "backend"} <= content.keys() or {"schedule", "user_conf"} <= content.keys():
            yield content
        for value in content.values():
            yield from _settings_in(value)
    elif isinstance(content, list):
        for value in content:
            yield from _settings_in(value)


_ADDRESSES = ("path", "answers", "answer")
"""Backend options whose values look like paths but belong to a server's address or replies."""


def _file(key: str, text: str) -> tuple[str, Replaced]:
    """Returns the path in an option's value, and the path's replacement. Drops the class name that may follow a
    plug-in's file name.
    """
    name, _, value = text.partition("=")
    if key == "backend_option" and name in _ADDRESSES:
        return "", Replaced("", "")
    path = value if key in ("lengths", "backend_option") else text
    file, is_plugin, _ = path.rpartition(".py:")
    path = f"{file}.py" if is_plugin else path
    name = Path(path).name
    if key == "model" and not Path(path).suffix:
        name = f"./{name}"  # because a name without a slash would mean a shipped model
    return path, Replaced(f"path of {key}", name)


def _meters_hosts(settings: Mapping[str, Any]) -> dict[str, Replaced]:
    """Returns the machines named in the arguments of `--meter ptdaemon`."""
    meters = settings.get("meter")
    words = (
        (word for meter in meters for word in str(meter).split(","))
        if isinstance(meters, list)
        else ()
    )
    hosts = (word.strip().partition("=") for word in words)
    return {
        host.partition(":")[0]: Replaced("host of a meter", role)
        for role, _, host in hosts
        if role in ("director", "ntp") and not host.startswith(("localhost", "127."))
    }


def _servers_hosts(settings: Mapping[str, Any]) -> dict[str, Replaced]:
    """Returns the servers named by `--url` and `--server-metrics`, and their addresses in result.json."""
    client = settings.get("client")
    peers = client.get("peers") if isinstance(client, dict) else None
    named = [settings.get(option) for option in ("url", "server_metrics")]
    urls = [url for option in named if isinstance(option, list) for url in option]
    hosts = [urlsplit(str(url)).hostname or "" for url in urls]
    if isinstance(peers, list):
        hosts += [str(peer.get("address") or "") for peer in peers if isinstance(peer, dict)]
    return {
        host: Replaced("host of a server", "server")
        for host in hosts
        if host and host != "localhost" and not host.startswith("127.")
    }


def _words_of_name(value: object) -> list[str]:
    return _words(value) if isinstance(value, str) and "/" not in value else []


def _words(text: str) -> list[str]:
    return re.findall("[a-z0-9]+", text.lower())
