"""Reads speech in LibriSpeech's layout: files <speaker>/<chapter>/<utterance>.flac or .wav, and transcripts.

Each chapter's folder contains <speaker>-<chapter>.trans.txt, with one line "<utterance> <TEXT>" per sound file
(Panayotov et al., "Librispeech: an ASR corpus based on public domain audio books", 2015). MLPerf's download for Whisper
instead contains dev-all-repack.json, a list of utterances.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from harness.datasets.parts import numbers, sources
from harness.datasets.parts.rows import LoadedRows
from harness.datasets.parts.sound import checked_frames, decode
from harness.datasets.parts.sources import IN_MANIFEST, own_step, refuse
from harness.datasets.parts.utterances import Utterance, list_in, listed_utterances
from harness.errors import ConfigError
from harness.types import Dataset, DatasetSetup, Step, TensorSpec

MEMORY_LIMIT_BYTES = 1 << 30
"""A run holds as many utterances in memory as fit into this limit. Half a minute at 16 kHz takes 2 MB."""


class LibrispeechDataset(LoadedRows):
    """Speech as mono float32 in [-1, 1], for each input with an `audio` step. The label is the transcript.

    An input whose step sets `gives: length` receives the number of audio samples without padding.
    """

    def __init__(self, setup: DatasetSetup) -> None:
        sources.check_steps(setup, "librispeech", ("audio", *numbers.STEPS))
        self._setup = setup
        audio = _audio_step(setup)
        self._rate = int(audio.options["rate"])
        self._frames = round(self._rate * audio.options["max_seconds"])
        refuse([p for spec in setup.inputs for p in self._shape_problems(spec)])
        self._list = list_in(setup.data_dir)
        if self._list is not None:
            self._root = self._list.parent
            self._utterances = listed_utterances(self._list, self._rate)
        else:
            self._root = sources.given_folder(setup, "librispeech", "folders <speaker>/<chapter>")
            self._utterances = read_utterances(self._root, self._rate)
        held = MEMORY_LIMIT_BYTES // (4 * self._frames)
        self.performance_count = max(1, min(held, len(self._utterances)))
        super().__init__(len(self._utterances))

    def _takes_length(self, spec: TensorSpec) -> bool:
        step = own_step(self._setup, spec.name, "audio")
        return step is not None and step.options["gives"] == "length"

    def _shape_problems(self, spec: TensorSpec) -> Iterator[str]:
        length = self._takes_length(spec)
        if numbers.row_shape(() if length else (self._frames,), spec) is None:
            what = "one number" if length else f"{self._frames:,} audio samples"
            yield f"input {spec.name!r} takes {numbers.shown_shape(spec.shape[1:])}, but its step gives {what}"

    def load(self, indices: Sequence[int]) -> None:
        """Loads samples. Raises a ConfigError if a file is damaged."""
        samples = np.zeros((len(indices), self._frames), np.float32)
        lengths = np.zeros(len(indices), np.int64)
        for row, index in enumerate(indices):
            sound = decode(self._utterances[index].path)[: self._frames]
            samples[row, : len(sound)] = sound
            lengths[row] = len(sound)
        held = {}
        for spec in self._setup.inputs:
            rows = lengths if self._takes_length(spec) else samples
            shape = numbers.row_shape(rows.shape[1:], spec)
            assert shape is not None  # `__init__` has checked the shape
            if rows is samples:
                rows = numbers.apply(rows, self._setup.steps[spec.name])
            held[spec.name] = rows.reshape(len(indices), *shape).astype(spec.dtype)
        self.hold(indices, held)

    def label(self, index: int) -> str:
        return self._utterances[index].transcript

    def describe(self) -> Mapping[str, object]:
        files = {u.name: u.path for u in self._utterances}
        lists = [self._list] if self._list else sorted(self._root.rglob("*.trans.txt"))
        texts = {p.name: p for p in lists}
        frames = sum(u.frames for u in self._utterances)
        return {
            "name": "librispeech",
            "count": len(self),
            "source": str(self._root),
            "hours": round(frames / self._rate / 3600, 4),
            "cut": sum(u.frames > self._frames for u in self._utterances),
            "steps": sources.shown_steps(self._setup),
            "digest": sources.digest(files | texts, self._setup),
        }


def _audio_step(setup: DatasetSetup) -> Step:
    """Returns the `audio` step of the inputs. Raises a ConfigError if the inputs' steps differ in more than `gives`."""
    by_input = {spec.name: own_step(setup, spec.name, "audio") for spec in setup.inputs}
    refuse(
        [
            f"dataset 'librispeech' needs an `audio` step for input {name!r}: declare it {IN_MANIFEST}"
            for name, step in by_input.items()
            if step is None
        ]
    )
    steps = [step for step in by_input.values() if step is not None]
    if len({(s.options["rate"], s.options["max_seconds"]) for s in steps}) > 1:
        raise ConfigError("the inputs' audio steps differ in rate or max_seconds: make them equal")
    return steps[0]


def read_utterances(root: Path, rate: int) -> list[Utterance]:
    """Returns the utterances, sorted by name. Every file needs a transcript, and every transcript needs a file.

    Raises a ConfigError that lists all problems.
    """
    problems: list[str] = []
    sounds: dict[str, Path] = {}
    for path in sorted(
        p for p in root.rglob("*") if p.suffix.lower() in (".flac", ".wav") and p.name[0] != "."
    ):
        if path.stem in sounds:
            problems.append(f"{path} and {sounds[path.stem]} have the same name: rename one")
        sounds[path.stem] = path
    transcripts = dict(_transcripts(root, problems))
    problems += [f"{p} has no transcript" for n, p in sounds.items() if n not in transcripts]
    utterances = []
    for name in sorted(transcripts):
        where, text = transcripts[name]
        if name not in sounds:
            problems.append(f"{where}: neither {name}.flac nor {name}.wav exists")
            continue
        try:
            frames = checked_frames(sounds[name], rate)
        except ConfigError as e:
            problems.append(str(e))
        else:
            utterances.append(Utterance(name, sounds[name], text, frames))
    if not sounds and not transcripts:
        problems.append(f"{root} has no .flac or .wav files and no *.trans.txt: name their folder")
    refuse(problems)
    return utterances


def _transcripts(root: Path, problems: list[str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yields (utterance, (file:line, text)). Adds a problem for each repeated utterance."""
    seen: dict[str, str] = {}
    for path in sorted(root.rglob("*.trans.txt")):
        try:
            lines = path.read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeError) as e:
            problems.append(str(sources.unreadable(path, e)))
            continue
        for number, line in enumerate(lines, 1):
            name, _, text = line.partition(" ")
            where = f"{path}:{number}"
            if not line.strip():
                continue
            if not text.strip():
                problems.append(f"{where}: no transcript after {name!r}")
            elif name in seen:
                problems.append(f"{where}: {name!r} is also in {seen[name]}")
            seen[name] = where
            yield name, (where, text.strip())


_: type[Dataset] = LibrispeechDataset
