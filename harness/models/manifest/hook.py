"""The user's own Python in a manifest: run only when the user names that very file."""

from pathlib import Path
from typing import Any

from harness.core import registry
from harness.errors import ConfigError
from harness.models.manifest.model import Model


def check_hook(model: Model, given: Path | None) -> tuple[Path, str] | None:
    """The file and the function of the manifest's hook, None where it has none. Nothing is run.

    given: what the user named with --hook. A ConfigError when that is not the manifest's file.
    """
    steps = model.output.postprocess if model.output else ()
    hooks = [step.options for step in steps if step.name == "hook"]
    if not hooks:
        if given is not None:
            raise ConfigError(f"--hook {given}: model {model.name!r} declares no hook: drop it")
        return None
    if len(hooks) > 1:
        raise ConfigError(f"model {model.name!r} declares {len(hooks)} hooks: one is allowed")
    path = model.folder / hooks[0]["file"]
    if not path.resolve().is_relative_to(model.folder.resolve()):
        raise ConfigError(f"model {model.name!r}: hook {path} leaves the manifest's folder")
    if given is None:
        raise ConfigError(
            f"model {model.name!r} runs Python of its own, {path}: read it, and name it with "
            f"--hook {path} if you trust it"
        )
    if given.resolve() != path.resolve():
        raise ConfigError(
            f"--hook {given}: the hook of model {model.name!r} is another file, {path}"
        )
    if not path.is_file():
        raise ConfigError(f"--hook {given}: there is no such file")
    return path, hooks[0]["function"]


def load_hook(model: Model, given: Path | None) -> Any:
    """The function; the file is run for it. A PluginUnavailable when that fails."""
    found = check_hook(model, given)
    return registry.load_function(*found) if found else None
