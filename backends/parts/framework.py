"""The base class for framework backends: refuses unknown options and devices, and pads batches."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from harness.core.formats.impostors import impostor
from harness.core.units import counted
from harness.errors import ConfigError, HarnessError, PluginUnavailable, one_line
from harness.profiler import Executed
from harness.types import Array, Backend, BackendSetup, Batch, Outputs, TensorSpec, fixed_batch

Choices = Mapping[str, tuple[str, ...]]
"""Maps the name of an option to its values, the default first."""

_STEPS = (
    *("build", "convert", "declare", "export", "fetch", "load", "name", "pass", "pip", "put"),
    *("rename", "run", "save", "unpack", "use"),
)
"""The first words of a next step in an error, after its last colon."""


def with_next_step(why: str) -> str:
    """Returns the reason why a file cannot be loaded, with advice if the text contains none, because most texts of
    frameworks state only what they found.
    """
    if why.rpartition(": ")[2].partition(" ")[0] in _STEPS:
        return why
    return f"{why.rstrip(' .:!')}: fetch it again, or convert it again"


class FrameworkBackend(ABC):
    """One model on one framework. A subclass loads the model, computes arrays and describes itself."""

    name: ClassVar[str]
    """The backend's name in the registry."""
    title: ClassVar[str]
    """The name that the framework uses for itself."""
    formats: ClassVar[tuple[str, ...]]
    """The manifest's file formats that the backend reads, in order of preference."""
    options: ClassVar[Choices] = {}
    """The permitted values for --backend-option."""
    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    """The permitted values for --device."""
    has_providers: ClassVar[bool] = False

    def __init__(self, setup: BackendSetup) -> None:
        problems = list(self._problems(setup))
        if problems:
            raise ConfigError("\n".join(problems))
        assert setup.model is not None
        self._setup = setup
        self._path: Path = setup.model
        self._option = {
            key: setup.options.get(key, values[0]) for key, values in self.options.items()
        }

    def _problems(self, setup: BackendSetup) -> Iterator[str]:
        have = " ".join(f"{key}={'|'.join(values)}" for key, values in self.options.items())
        for key, value in setup.options.items():
            if key not in self.options:
                hint = f"choose from {have}" if have else "it has no options"
                yield f"backend {self.name!r} has no option {key!r}: {hint}"
            elif value not in self.options[key]:
                values = ", ".join(self.options[key])
                yield f"--backend-option {key}: {value!r} is not one of {values}"
        if setup.device.partition(":")[0] not in self.devices:
            yield f"backend {self.name!r} does not support --device {setup.device}: choose from {', '.join(self.devices)}"
        if setup.provider is not None and not self.has_providers:
            yield f"backend {self.name!r} has no providers: drop --provider {setup.provider}"
        if setup.provider_options and not self.has_providers:
            yield f"backend {self.name!r} has no providers: drop --provider-option"

    def __enter__(self) -> Self:
        try:
            self._inputs, self._outputs = self._load()
        except (HarnessError, ImportError, MemoryError):
            raise
        except Exception as e:  # catches all, because frameworks' exceptions share no base class
            why = impostor(self._path) or _no_text(self._path) or one_line(e) or type(e).__name__
            said = with_next_step(why)
            raise ConfigError(f"{self._path}: {self.title} cannot load it: {said}") from e
        if not self._inputs:
            raise ConfigError(f"{self._path} has no inputs: export it with at least one")
        self._check_names()
        self._fixed = None if self._setup.batch_axes is not None else fixed_batch(self._inputs)
        return self

    @abstractmethod
    def _load(self) -> tuple[tuple[TensorSpec, ...], tuple[str, ...]]:
        """Loads the model. Returns the inputs and the output names, which are () if the file does not name its outputs."""

    @abstractmethod
    def __exit__(self, *exc: object) -> None:
        """Frees the model and its memory."""

    @abstractmethod
    def _answer(self, inputs: Mapping[str, Array]) -> Outputs:
        """Returns n rows, or n rows per output name.

        inputs: (n, ...) arrays; if the file has a fixed batch, n is this batch. BackendSetup.batch_axes lists inputs
        whose batch is not the first dimension.
        """

    @property
    def tunable(self) -> Choices:
        """Options that change only speed, with the values that `tune` tries in addition to the configured value."""
        return {}

    @abstractmethod
    def describe(self) -> Mapping[str, object]:
        """Returns versions, device, precision and threads as they actually are, not as requested."""

    def _check_names(self) -> None:
        """Refuses names from the manifest's `names` that the file does not contain."""
        have = [*(spec.name for spec in self._inputs), *self._outputs]
        for name, own in self._setup.names.items():
            is_output = name not in {spec.name for spec in self._setup.inputs}
            if own not in have and (self._outputs or not is_output):
                raise ConfigError(
                    f"{self._path}: {name!r} is {own!r} in the manifest's `names`, but the file has "
                    f"{', '.join(have)}: use one of these names"
                )

    def _batch_axis(self, name: str) -> int | None:
        """Returns the batch axis of an input in the file; None if the input has no batch."""
        axes = self._setup.batch_axes
        if axes is None:
            return 0
        return axes.get(self._of_file(are_inputs=True).get(name, name))

    def signature(self) -> tuple[TensorSpec, ...]:
        """Returns the inputs with the manifest's names."""
        of_file = self._of_file(are_inputs=True)
        return tuple(s._replace(name=of_file.get(s.name, s.name)) for s in self._inputs)

    def outputs(self) -> tuple[str, ...]:
        of_file = self._of_file(are_inputs=False)
        return tuple(of_file.get(name, name) for name in self._outputs)

    def _of_file(self, *, are_inputs: bool) -> Mapping[str, str]:
        """Maps the file's name of an input or output to the manifest's name, if the two differ."""
        inputs = {spec.name for spec in self._setup.inputs}
        names = self._setup.names.items()
        return {own: name for name, own in names if (name in inputs) == are_inputs}

    def _in_file(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Returns the arrays under the names in the file. inputs: the arrays under the names in the manifest."""
        names = self._setup.names
        return {names.get(n, n): rows for n, rows in inputs.items()} if names else inputs

    def infer(self, batch: Batch) -> Outputs:
        if not self._setup.names:
            return self._infer(batch)
        outputs = self._infer(Batch(batch.size, self._in_file(batch.inputs)))
        if not isinstance(outputs, Mapping):
            return outputs
        of_file = self._of_file(are_inputs=False)
        return {of_file.get(name, name): rows for name, rows in outputs.items()}

    def _infer(self, batch: Batch) -> Outputs:
        """Runs a batch whose inputs and outputs use the file's names."""
        size = self._fixed
        try:
            if size is None or batch.size == size:
                return self._answer(batch.inputs)
            return self._answer_padded(batch, size)
        except (HarnessError, MemoryError):
            raise
        except Exception as e:
            why = one_line(e) or type(e).__name__
            samples = counted(batch.size, "sample")
            alone = "; if it can answer one, use --max-batch 1" if batch.size > 1 else ""
            raise PluginUnavailable(
                f"{self.title} cannot answer {samples} at once: {why}{alone}"
            ) from e

    def _answer_padded(self, batch: Batch, size: int) -> Outputs:
        """Pads the batch to the file's fixed size with copies of its last sample, and drops the surplus answers."""
        count = batch.size
        if count > size:
            raise ConfigError(
                f"the file fixes the batch at {size}, but {count} samples arrived at once: use --max-batch {size}"
            )
        outputs = self._answer(
            {
                name: np.concatenate([rows, np.repeat(rows[-1:], size - count, axis=0)])
                for name, rows in batch.inputs.items()
            }
        )
        if isinstance(outputs, Mapping):
            return {name: _first(count, rows, size) for name, rows in outputs.items()}
        only: Array = _first(count, outputs, size)
        return only


class TwinProfiler(ABC):
    """Profiles a second instance of the same model, which needs as much memory as the first.

    A subclass implements the recording (harness/profiler.py, Profiler).
    """

    def __init__(self, twin: Backend) -> None:
        self._twin = twin

    def __enter__(self) -> Self:
        self._twin.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._twin.__exit__(None, None, None)

    def infer(self, batch: Batch) -> Outputs:
        return self._twin.infer(batch)

    @abstractmethod
    def recording(self) -> AbstractContextManager[object]: ...

    @abstractmethod
    def executed(self, calls: int) -> Executed: ...


def _no_text(path: Path) -> str:
    """Returns advice for a name that frameworks cannot read, or '' for other names."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return "its name or a folder name is not valid UTF-8: rename it"
    return ""


def _first(count: int, rows: Any, size: int) -> Any:
    """Returns the first `count` rows. An output whose length differs from the batch is returned unchanged, so that the
    caller refuses it.
    """
    return rows[:count] if np.shape(rows)[:1] == (size,) else rows


def named(names: Sequence[str], arrays: Sequence[Array]) -> Outputs:
    """Returns a single output unchanged, and several outputs as a mapping from name to output."""
    return arrays[0] if len(arrays) == 1 else dict(zip(names, arrays, strict=True))
