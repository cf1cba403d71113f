"""A run's model: its manifest, and its files with their pinned digests.

A file is refused if its SHA-256 differs from the manifest, or if the file lies outside the manifest's folder.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from harness.core.config.parse import Slo, parse_slo
from harness.core.files import cache_dir
from harness.core.units import NS_PER_MS
from harness.errors import ConfigError
from harness.models.manifest.fetch import fetch_source
from harness.models.manifest.files import files_of, sha256_alone, sha256_of, size_bytes
from harness.models.manifest.formats import (
    MADE_OF,
    USUAL_BACKEND,
    check,
    format_of,
    may_have,
)
from harness.models.manifest.layout import Layout, layout_of
from harness.models.manifest.schema import (
    Accuracy,
    Generation,
    Manifest,
    ModelFile,
    Output,
    Transcription,
)
from harness.types import Step, TensorSpec, declared_shape

MODELS_DIR = Path(__file__).parents[1] / "shipped"
_OF_A_SERVER = "a server has the model, so pass its --backend and --url"

V = TypeVar("V")


class Model:
    """A run's model: a manifest, or a bare file without a manifest.

    A manifest's file lies in the manifest's folder, or in the model's folder in the cache.
    """

    def __init__(
        self,
        name: str,
        manifest: Manifest | None,
        folder: Path,
        bare: Path | None,
        content: Mapping[str, Any] | None = None,
    ):
        """content: the mapping from which `manifest` was parsed, for `to_json`."""
        self.name = name
        self.manifest = manifest
        self._folder = folder
        self._bare = bare
        self._content = content

    def to_json(self) -> dict[str, Any]:
        """Returns this model as JSON for another process. `model_from_json` recreates the model from this JSON."""
        folder, bare = (str(p.absolute()) if p else None for p in (self._folder, self._bare))
        return {"name": self.name, "manifest": self._content, "folder": folder, "bare": bare}

    @property
    def resolved_name(self) -> str | None:
        """A value of --model that always refers to the same content, or None if the user's value already refers to
        fixed content.
        """
        return None

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs of a sample, with the batch axis first, or () without a manifest."""
        if self.layout is not None:
            return self.layout.samples()
        return self.file_inputs

    @property
    def file_inputs(self) -> tuple[TensorSpec, ...]:
        """All inputs as the file stores them, or () without a manifest."""
        if self.manifest is None:
            return ()
        states = self.manifest.states.items()
        return (
            *(i.spec for i in self.manifest.inputs),
            *(TensorSpec(name, one.dtype, declared_shape(one.shape)) for name, one in states),
        )

    @property
    def layout(self) -> Layout | None:
        """Batch axes, constants and states, or None if each input and output is a batch of samples with the batch axis
        first.
        """
        return layout_of(self.manifest) if self.manifest is not None else None

    @property
    def has_states(self) -> bool:
        """Whether a sample is a sequence of frames that pass through the model one after the other."""
        return self.manifest is not None and bool(self.manifest.states)

    @property
    def frame_period_ns(self) -> int | None:
        """Time between two frames of a sequence in real time, or None if the manifest does not state it."""
        period_ms = self.manifest.frame_period_ms if self.manifest else None
        return None if period_ms is None else round(period_ms * NS_PER_MS)

    @property
    def dataset(self) -> str:
        """The name of the model's dataset, or of synthetic data if the model has no manifest."""
        return self.manifest.dataset if self.manifest else "synthetic"

    @property
    def datasets(self) -> tuple[str, ...]:
        """Datasets of the models in a set, or () for a single model."""
        return ()

    @property
    def workers(self) -> int | None:
        """Number of threads that run queries for a set of models, or None for a single model."""
        return None

    @property
    def steps(self) -> dict[str, tuple[Step, ...]]:
        """The declared preprocessing steps, by input name."""
        inputs = self.manifest.inputs if self.manifest else ()
        return {i.name: i.preprocess for i in inputs if i.value is None}

    @property
    def folder(self) -> Path:
        """The manifest's folder."""
        return self._folder

    @property
    def output(self) -> Output | None:
        return self.manifest.outputs[0] if self.manifest else None

    @property
    def postprocess(self) -> tuple[Step, ...]:
        """The steps that convert the outputs to the answer."""
        return self.output.postprocess if self.output else ()

    @property
    def accuracy(self) -> Accuracy | None:
        return self.manifest.accuracy if self.manifest else None

    def symbols(self, answer_dtype: str) -> tuple[str, ...]:
        """Returns the text for each integer in an answer, or () if answers do not consist of such integers.

        A language model's answers are token ids, or texts (uint8) if a server sends them.
        """
        if self.accuracy is not None and self.accuracy.symbols:
            return self.accuracy.symbols
        if self.generation is None or answer_dtype == "uint8":
            return ()
        return self.generation.pieces

    @property
    def generation(self) -> Generation | None:
        return self.manifest.generation if self.manifest else None

    @property
    def transcription(self) -> Transcription | None:
        return self.manifest.transcription if self.manifest else None

    @property
    def generates(self) -> bool:
        """Whether the model generates token by token, like a language model or a speech model."""
        return self.generation is not None or self.transcription is not None

    @property
    def slo(self) -> Slo | None:
        return parse_slo(self.manifest.slo) if self.manifest and self.manifest.slo else None

    @property
    def performance_count(self) -> int | None:
        """Number of samples that a performance run holds in memory, or None if the manifest does not set it."""
        return self.manifest.performance_count if self.manifest else None

    @property
    def has_random_weights(self) -> bool:
        """Whether the weights are untrained, so that the speed is meaningful but the answers are not."""
        return self.manifest is not None and self.manifest.weights == "random"

    def may_have(self, file_format: str) -> bool:
        """Returns whether the model can have a file in this format."""
        if self._bare is not None:
            return may_have(self._bare, file_format)
        return self.manifest is not None and file_format in self.manifest.files

    def check_formats(self, formats: tuple[str, ...]) -> None:
        """Raises ConfigError if the names and first bytes of the model's files show that a backend with these formats
        reads none of them. Does not read a whole file, and the files of a manifest may be missing.
        """
        if self._bare is not None:
            check(self._bare, formats)
        elif self.manifest is not None:
            self._declared(formats)

    def path(self, formats: tuple[str, ...]) -> Path | None:
        """Returns the model's file in the first format of `formats` that is available, or None for a backend that does
        not read a file.
        """
        if not formats:
            return None
        if self._bare is not None:
            # Reports a bad file before a framework reads it.
            files_of(self._bare)
            check(self._bare, formats)
            return self._bare
        file = self._declared(formats)
        path = self._existing(file)
        if path is None:
            known = file.obtain or file.source
            how = f" ({known})" if known else ""
            raise ConfigError(
                f"model {self.name!r} has no file {file.path} here: put it at "
                f"{self._home(file)}{how}"
            )
        return self._checked(path, file)

    def obtain(self, formats: tuple[str, ...], say: Callable[[str], None]) -> None:
        """Fetches or creates the file that `path` will return, if the file is missing and can be obtained."""
        if not formats or self._bare is not None:
            return
        for address, sha256, place in self._to_fetch(self._declared(formats)):
            fetch_source(address, sha256, place, say)

    @property
    def may_have_to_be_obtained(self) -> bool:
        """Whether a file of the model is missing but can be fetched or created on this machine."""
        files = self.manifest.files.values() if self.manifest else ()
        return any(True for file in files for _ in self._to_fetch(file))

    @property
    def is_here(self) -> bool:
        """Whether all files that the manifest names are on this disk."""
        files = self.manifest.files.values() if self.manifest else ()
        return bool(files) and all(self._existing(file) is not None for file in files)

    @property
    def file_bytes(self) -> int | None:
        """The size of the manifest's first file, measured on this disk or stated in the manifest; None if unknown."""
        file = next(iter(self.manifest.files.values()), None) if self.manifest else None
        if file is None:
            return None
        path = self._existing(file)
        return file.bytes if path is None else size_bytes(path)

    def _to_fetch(self, file: ModelFile) -> Iterator[tuple[str, str, Path]]:
        """Yields (address, SHA-256, destination) for each missing file that has an address."""
        path = self._existing(file)
        if path is None:
            path = self._home(file)
            if file.source is not None and file.sha256 is not None:
                yield file.source, file.sha256, path
        for part in file.external:
            place = self._inside(path.parent, part.path)
            if part.source is not None and not place.exists():
                yield part.source, part.sha256, place

    def names_in(self, path: Path) -> Mapping[str, str]:
        """Maps names of inputs and outputs in the manifest to names in the file, for names that differ.

        path: a file of the model, or a converted copy of such a file in another format or precision.
        """
        files = self.manifest.files if self.manifest else {}
        for file in files.values():
            there = self._existing(file)
            if there is not None and there.resolve() == path.resolve():
                return file.names
        kind = format_of(path)
        # A file of unknown format can only be ONNX Runtime's .ort.
        own = kind.name if kind is not None else "onnx"
        source = files.get(MADE_OF.get(own, own)) or files.get(own)
        return source.names if source is not None else {}

    def in_file(self, path: Path, values: Mapping[str, V]) -> dict[str, V]:
        """Renames the keys of `values` from the manifest's input names to the file's input names."""
        names = self.names_in(path)
        return {names.get(name, name): value for name, value in values.items()}

    def sha256(self, path: Path) -> str:
        """Returns the digest of a file and of all files that it reads. A previous call of `path` must have returned and
        checked the file.
        """
        files = self.manifest.files.values() if self.manifest else ()
        known = {self._existing(file): file.digest for file in files}
        return known.get(path) or sha256_of(path)

    @property
    def manifest_sha256(self) -> str | None:
        """The SHA-256 of the manifest's content without comments and with sorted keys, or None for a bare file."""
        if self.manifest is None:
            return None
        content = json.dumps(self.manifest.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def is_pinned(self, sha256: str | None, /) -> bool:
        """Returns False if the manifest pins files, but not the file with this digest."""
        if self.manifest is None or self.has_random_weights or sha256 is None:
            return True
        return sha256 in {file.digest for file in self.manifest.files.values()}

    @property
    def unpinned_own(self) -> list[str]:
        """The unpinned files, if all of them are the user's own files, for which the manifest omits checksums."""
        files = self.manifest.files.values() if self.manifest else ()
        unpinned = [file for file in files if file.sha256 is None and not self.has_random_weights]
        return [file.path for file in unpinned] if all(file.is_own for file in unpinned) else []

    def unstated(self) -> Iterator[str]:
        """Yields a line for each field that a submission needs but the manifest omits."""
        if self.manifest is not None and not self.manifest.licence:
            yield f"model {self.name!r} does not state a licence: add `licence` to its manifest"
        for path in self.unpinned_own:
            yield f"model {self.name!r} does not pin {path}: add its `sha256` to the manifest"

    def _declared(self, formats: tuple[str, ...]) -> ModelFile:
        assert self.manifest is not None
        for name in formats:
            if name in self.manifest.files:
                return self.manifest.files[name]
        have = ", ".join(
            f"{name} (--backend {USUAL_BACKEND[name]})" if name in USUAL_BACKEND else name
            for name in self.manifest.files
        )
        raise ConfigError(
            f"model {self.name!r} has no file in a format this backend reads "
            f"({', '.join(formats)}): {f'it has {have}' if have else _OF_A_SERVER}"
        )

    @property
    def _cached(self) -> Path:
        return cache_dir() / "models" / self.name

    def _existing(self, file: ModelFile, /) -> Path | None:
        for folder in (self._folder, self._cached):
            path = self._inside(folder, file.path)
            if path.exists():
                return path
        return None

    def _inside(self, folder: Path, name: str) -> Path:
        path = folder / name
        try:
            inside = path.resolve().is_relative_to(folder.resolve())
            path.exists()
        # the path is too long, contains a NUL or is a loop of links
        except (OSError, ValueError, RuntimeError) as e:
            raise ConfigError(f"model {self.name!r}: file {name!r}: {e}") from None
        if not inside:
            raise ConfigError(f"model {self.name!r}: file {name} is outside the manifest's folder")
        return path

    def _home(self, file: ModelFile) -> Path:
        """Returns the path to which a missing file will be written. The path is never inside the installed package,
        because users may not have write access there.
        """
        fetched = file.source is not None or self._folder == MODELS_DIR
        return (self._cached if fetched else self._folder) / file.path

    def _checked(self, path: Path, file: ModelFile) -> Path:
        """Checks a pinned file, and every file that it reads, against the manifest."""
        files = {path.name: path} if path.is_dir() else files_of(path)
        if file.sha256 is None:
            return path
        pinned = file.pinned
        for name in sorted(files.keys() | pinned.keys()):
            if name not in pinned:
                raise ConfigError(
                    f"{path} reads {name!r}, which the manifest of {self.name!r} does not pin: "
                    "add it, with its SHA-256, to `external` of this file"
                )
            if name not in files:
                raise ConfigError(
                    f"{path} does not read {name!r}, which the manifest of {self.name!r} lists "
                    "in `external` of this file: remove it there"
                )
            actual = sha256_of(path) if path.is_dir() else sha256_alone(files[name])
            if actual != pinned[name]:
                raise ConfigError(
                    f"{files[name]}: SHA-256 is {actual[:12]}…, but the manifest of {self.name!r} has "
                    f"{pinned[name][:12]}…: restore the file, or update the manifest if you changed it"
                )
        return path
