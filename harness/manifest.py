"""Model manifests: what a model is, read from YAML and checked field by field.

The schema is in `Manifest`; unknown or missing fields are errors that name the field, a file whose
SHA-256 differs is refused, and no file may lie outside the manifest's own folder.
"""

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from harness.errors import ConfigError
from harness.parse import Slo, parse_slo
from harness.steps import PostprocessSteps, PreprocessSteps
from harness.types import Step, TensorSpec

MODELS_DIR = Path(__file__).parent / "models"
MAX_MANIFEST_BYTES = 1 << 20
"""YAML aliases can grow a small file a millionfold; they are refused, and so are large files."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelFile(_Strict):
    """path: a file or a folder. sha256: of the file, or of the folder's listing (`sha256_of`)."""

    path: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def _check_shape(shape: tuple[int | str | None, ...]) -> tuple[int | str | None, ...]:
    if any(size in (0, "") or (isinstance(size, int) and size < 0) for size in shape):
        raise ValueError("a size is a number of at least 1, a name, or null")
    return shape


class Input(_Strict):
    name: str
    dtype: Literal["float32", "float16", "float64", "uint8", "int8", "int32", "int64", "bool"]
    shape: Annotated[tuple[int | str | None, ...], AfterValidator(_check_shape)]
    preprocess: PreprocessSteps = ()

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.name, self.dtype, self.shape)


class Output(_Strict):
    """postprocess: what turns the output's rows into answers, applied inside the timed part."""

    name: str
    postprocess: PostprocessSteps = ()


class Accuracy(_Strict):
    """target: the least score that may be quoted, in the metric's unit."""

    metric: str
    target: Annotated[float, Field(allow_inf_nan=False)]


def _check_slo(text: str) -> str:
    parse_slo(text)
    return text


class Manifest(_Strict):
    """One model. files: format name -> file, relative to the manifest."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    version: str
    description: str
    licence: str
    references: tuple[str, ...] = ()
    task: Literal[
        "image-classification",
        "object-detection",
        "segmentation",
        "image-to-image",
        "question-answering",
        "text-classification",
        "embedding",
        "speech-recognition",
        "table",
        "none",
    ]
    files: dict[str, ModelFile]
    inputs: tuple[Input, ...]
    outputs: Annotated[tuple[Output, ...], Field(min_length=1)]
    dataset: str
    accuracy: Accuracy | None = None
    slo: Annotated[str, AfterValidator(_check_slo)] | None = None
    max_batch: Annotated[int, Field(ge=1)] | None = None
    mlperf_model: str | None = None


class Model:
    """The model of a run: a manifest, or a bare file about which nothing is known."""

    def __init__(self, name: str, manifest: Manifest | None, folder: Path, bare: Path | None):
        self.name = name
        self.manifest = manifest
        self._folder = folder
        self._bare = bare

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return tuple(i.spec for i in self.manifest.inputs) if self.manifest else ()

    @property
    def steps(self) -> dict[str, tuple[Step, ...]]:
        """What is declared for each input, by its name."""
        return {i.name: i.preprocess for i in self.manifest.inputs} if self.manifest else {}

    @property
    def folder(self) -> Path:
        """Where the manifest lies."""
        return self._folder

    @property
    def output(self) -> Output | None:
        return self.manifest.outputs[0] if self.manifest else None

    @property
    def slo(self) -> Slo | None:
        return parse_slo(self.manifest.slo) if self.manifest and self.manifest.slo else None

    def path(self, formats: tuple[str, ...]) -> Path | None:
        """The file in the first of `formats` there is; None for a backend that reads none."""
        if not formats:
            return None
        if self._bare is not None:
            return self._bare
        assert self.manifest is not None
        for name in formats:
            if name in self.manifest.files:
                return self._checked(self.manifest.files[name])
        have = ", ".join(self.manifest.files)
        raise ConfigError(
            f"model {self.name!r} has no file in a format this backend reads "
            f"({', '.join(formats)}): it has {have}"
        )

    def sha256(self, path: Path) -> str:
        """Of a file that `path` gave: the manifest's was checked then."""
        files = self.manifest.files.values() if self.manifest else ()
        known = {self._folder / f.path: f.sha256 for f in files}
        return known.get(path) or sha256_of(path)

    def _checked(self, file: ModelFile) -> Path:
        path = self._folder / file.path
        if not path.resolve().is_relative_to(self._folder.resolve()):
            raise ConfigError(f"model {self.name!r}: file {file.path} leaves the manifest's folder")
        found = sha256_of(path)
        if found != file.sha256:
            raise ConfigError(
                f"{path}: SHA-256 is {found[:12]}…, the manifest of {self.name!r} says "
                f"{file.sha256[:12]}…: restore the file, or update the manifest if you changed it"
            )
        return path


def sha256_of(path: Path) -> str:
    """Of a file; of a folder: of the lines "<SHA-256>  <relative path>" of its files, by path."""
    try:
        if path.is_dir():
            files = sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())
            listing = "".join(f"{sha256_of(path / name)}  {name}\n" for name in files)
            return hashlib.sha256(listing.encode()).hexdigest()
        with path.open("rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest()
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}") from e


def size_bytes(path: Path) -> int:
    """Of a file; of a folder: of all files in it."""
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(p.stat().st_size for p in files if p.is_file())


def load_model(text: str) -> Model:
    """A shipped manifest's name, a .yaml path, or a path to a model file."""
    path = Path(text)
    if path.suffix in (".yaml", ".yml"):
        return _from_manifest(path)
    if path.suffix or "/" in text:
        if not path.exists():
            raise ConfigError(f"--model {text}: there is no such file")
        return Model(path.stem, None, path.parent, path.absolute())
    shipped = MODELS_DIR / f"{text}.yaml"
    if not shipped.is_file():
        raise ConfigError(
            f"no model named {text!r}: choose from {', '.join(shipped_models())}, "
            "or give a path to a manifest or model file"
        )
    return _from_manifest(shipped)


def shipped_models() -> list[str]:
    return sorted(p.stem for p in MODELS_DIR.glob("*.yaml"))


def _from_manifest(path: Path) -> Model:
    manifest = parse_manifest(load_yaml(path), str(path))
    return Model(manifest.name, manifest, path.parent, None)


def parse_manifest(content: object, source: str) -> Manifest:
    if not isinstance(content, dict):
        raise ConfigError(f"{source}: a manifest is a mapping of fields, see digits.yaml")
    try:
        return Manifest.model_validate(content)
    except ValidationError as e:
        raise ConfigError("\n".join(f"{source}: {_problem(p)}" for p in e.errors())) from None


def _problem(error: Any) -> str:
    field = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"unknown field {field!r}"
    if error["type"] == "missing":
        return f"field {field!r} is missing"
    return f"field {field!r}: {error['msg'].removeprefix('Value error, ')}"


class _NoAliasLoader(yaml.SafeLoader):
    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed here")
        return super().compose_node(parent, index)


def load_yaml(path: Path) -> object:
    """safe_load of a small file; a ConfigError names the file and the line."""
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise ConfigError(f"{path} is larger than 1 MiB: not a configuration or manifest")
        return yaml.load(path.read_text(encoding="utf-8"), _NoAliasLoader)  # noqa: S506 - is safe
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}") from e
    except (yaml.YAMLError, ValueError, RecursionError) as e:  # ValueError: an impossible date
        reason = " ".join(str(e).split())
        raise ConfigError(f"{path} is not YAML: {reason}") from None
