"""Reads the list of utterances in MLPerf's download for Whisper. The list is a JSON file with WAV files next to it.

Source: mlcommons/inference, speech2text/manifest.py and utils/repackage_librispeech.py.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.files import parse_json
from harness.datasets.parts.sound import checked_frames
from harness.datasets.parts.sources import refuse, unreadable
from harness.errors import ConfigError

LETTERS = frozenset(" abcdefghijklmnopqrstuvwxyz'0123456789$%+-")
"""Characters that MLPerf's texts may contain. All other characters are dropped."""

LONGEST_S = 30.0
"""Maximum length of an utterance. Longer utterances are omitted."""


class Utterance(NamedTuple):
    name: str
    """Name of the utterance."""
    path: Path
    transcript: str
    frames: int
    """Number of audio samples in the file."""


def list_in(given: Path | None) -> Path | None:
    """Returns the file with the list: the given JSON file, or the only JSON file in the folder. Returns None if the
    folder does not contain exactly one JSON file.
    """
    if given is None or (given.is_file() and given.suffix == ".json"):
        return given
    found = sorted(given.glob("*.json"))
    return found[0] if len(found) == 1 else None


def listed_utterances(path: Path, rate: int) -> list[Utterance]:
    """Returns the utterances in the order of the list. Raises a ConfigError that lists all problems."""
    problems: list[str] = []
    found = []
    for number, entry in enumerate(_entries(path)):
        try:
            utterance = _utterance(entry, path, rate)
        except ConfigError as e:
            problems.append(str(e))
        except (LookupError, TypeError, ValueError) as e:
            problems.append(f"{path}: entry {number} is not an utterance: {e!r:.60}")
        else:
            found += [utterance] if utterance else []
    refuse(problems)
    if not found:
        raise ConfigError(f"{path} has no utterances: nothing can be measured")
    return found


def _entries(path: Path) -> list[Any]:
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise unreadable(path, e) from e
    if not isinstance(content, list):
        raise ConfigError(f"{path} is not a list of utterances")
    return content


def _utterance(entry: Any, path: Path, rate: int) -> Utterance | None:
    """Returns an utterance, or None if the utterance is too long."""
    if entry["original_duration"] > LONGEST_S:
        return None
    name = next(file["fname"] for file in entry["files"] if file["speed"] == 1)
    sound = next((place for place in _places(path, Path(name)) if place.is_file()), None)
    if sound is None:
        raise ConfigError(f"{path}: the file {name} does not exist")
    text = "".join(character for character in entry["transcript"] if character in LETTERS)
    return Utterance(sound.stem, sound, text, checked_frames(sound, rate))


def _places(path: Path, name: Path) -> Iterator[Path]:
    """Yields the possible locations of a file. The recorded path may be relative to the data folder, or come from
    another machine.
    """
    yield path.parent / name
    yield path.parent / Path(*name.parts[-2:])
    yield path.parent / name.name
