"""Finds the model that --model names: a shipped model, a generated model, a file on the HuggingFace Hub, a file in a
package, a manifest, or a bare file.
"""

import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from harness.core.config.parse import ELSEWHERE, HUB
from harness.core.console import program
from harness.core.formats.strict_yaml import load_yaml
from harness.errors import ConfigError, one_line, some_of
from harness.models.made import onnx_light, zoo
from harness.models.manifest.hub_model import hub_model, hub_model_from_json
from harness.models.manifest.model import MODELS_DIR, Model
from harness.models.manifest.package_model import package_model, package_model_from_json
from harness.models.manifest.schema import Manifest, ModelFile
from harness.models.packages.name import is_package
from harness.models.steps import steps


class Maker(Protocol):
    """A module that generates models: harness/models/made/onnx_light.py or zoo.py."""

    PREFIX: str

    def names(self) -> tuple[str, ...]: ...

    def manifest_of(self, name: str) -> dict[str, Any]: ...

    def made_path(self, name: str) -> Path: ...

    def make(self, name: str) -> Path: ...


_MAKERS: tuple[Maker, ...] = (onnx_light, zoo)


class MadeModel(Model):
    """A model whose file a maker generates."""

    def __init__(self, maker: Maker, short: str):
        manifest = parse_manifest(maker.manifest_of(short), maker.PREFIX + short)
        super().__init__(manifest.name, manifest, MODELS_DIR, None)
        self._maker, self._short = maker, short

    def to_json(self) -> dict[str, Any]:
        return {"made": self._maker.PREFIX + self._short}

    def obtain(self, formats: tuple[str, ...], say: Callable[[str], None]) -> None:
        if formats and self._existing(self._declared(formats)) is None:
            say(f"making {self._maker.made_path(self._short)}, once")
            self._maker.make(self._short)

    @property
    def may_have_to_be_obtained(self) -> bool:
        return not self._maker.made_path(self._short).is_file()

    def _existing(self, _file: ModelFile, /) -> Path | None:
        path = self._maker.made_path(self._short)
        return path if path.is_file() else None


def parse_manifest(content: object, source: str) -> Manifest:
    """Parses the content of a manifest. Raises ConfigError with a list of every wrong field."""
    if not isinstance(content, dict):
        raise ConfigError(
            f"{source} is not a manifest: write a mapping of fields, as in digits.yaml"
        )
    try:
        return Manifest.model_validate(content)
    except ValidationError as e:
        problems = some_of([f"{source}: {field_problem(p)}" for p in e.errors()])
        raise ConfigError(problems) from None


def field_problem(error: Any) -> str:
    """Describes the fault in a field of a file. error: an item of `ValidationError.errors()`."""
    field = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"unknown field {field!r:.100}"
    if error["type"] == "missing":
        return f"field {field!r} is missing"
    text = one_line(steps.problem(error))
    return f"field {field!r}: {text}" if field else text


def load_model(text: str) -> Model:
    """Loads a model. text: a shipped manifest's name, light/<topology>, zoo/<network>, hf:ORG/NAME@REV[:FILE], a file
    in a package, or a path.
    """
    if text.startswith(HUB):
        return hub_model(text)
    if is_package(text):
        return package_model(text)
    if (model := _made_model(text)) is not None:
        return model
    path = Path(text)
    if path.suffix in (".yaml", ".yml"):
        return _from_manifest(path)
    if is_path(text):
        if not path.exists():
            raise ConfigError(f"--model {text} does not exist")
        if not path.is_file() and not path.is_dir():
            raise ConfigError(f"--model {text} is neither a file nor a folder")
        return Model(path.stem, None, path.parent, path.absolute())
    shipped = MODELS_DIR / f"{text}.yaml"
    if not shipped.is_file():
        near = get_close_matches(text, named_models(), n=1)
        hint = f"see `{program()} list`, or give a path to a file"
        if near:
            hint = f"did you mean {near[0]!r}?"
        raise ConfigError(f"no model named {text!r}: {hint}")
    return _from_manifest(shipped)


def model_from_json(values: Mapping[str, Any]) -> Model:
    """Creates a model from the result of `Model.to_json`, without a look-up and without reading a manifest."""
    if "made" in values:
        model = _made_model(values["made"])
        assert model is not None
        return model
    if "hub" in values:
        return hub_model_from_json(values)
    if "package" in values:
        return package_model_from_json(values)
    content, bare = values["manifest"], values["bare"]
    return Model(
        values["name"],
        parse_manifest(content, values["name"]) if content is not None else None,
        Path(values["folder"]),
        Path(bare) if bare is not None else None,
        content,
    )


def _made_model(text: str) -> MadeModel | None:
    for maker in _MAKERS:
        short = text.removeprefix(maker.PREFIX)
        if short != text and short in maker.names():
            return MadeModel(maker, short)
    return None


def is_path(text: str) -> bool:
    """Returns whether the value of --model is a file or folder, not the name of a shipped, generated or fetched model."""
    if text.startswith(ELSEWHERE) or text in named_models():
        return False  # a name may contain a dot: zoo/resnet50_v1.5 does not have the suffix .5
    of_a_maker = text.startswith(tuple(maker.PREFIX for maker in _MAKERS))
    looks_so = bool(Path(text).suffix) or ("/" in text and not of_a_maker)
    return looks_so or os.path.exists(text)  # noqa: PTH110 - False, not an OSError, for a long name


def shipped_models() -> list[str]:
    """Returns the names of the manifests in harness/models/shipped."""
    return sorted(p.stem for p in MODELS_DIR.glob("*.yaml"))


def named_models() -> list[str]:
    """Returns every name that --model accepts."""
    return [*shipped_models(), *made_models()]


def made_models() -> list[str]:
    """Returns the names of the models that are generated with random weights."""
    return [maker.PREFIX + short for maker in _MAKERS for short in maker.names()]


def _from_manifest(path: Path) -> Model:
    content: Any = load_yaml(path)
    manifest = parse_manifest(content, str(path))
    return Model(manifest.name, manifest, path.parent, None, content)
