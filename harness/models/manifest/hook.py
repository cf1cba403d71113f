"""Creates the postprocessing that a manifest describes. Loads the manifest's Python file only if the user names exactly
this file.
"""

from pathlib import Path
from typing import Any

from harness.core import registry
from harness.errors import ConfigError
from harness.models.manifest.model import Model
from harness.models.manifest.schema import Output
from harness.models.steps.postprocess import Hook, Postprocess, by_frame, postprocessor


def check_hook(model: Model, named: Path | None) -> tuple[Path, str] | None:
    """Returns the file and the function of the manifest's hook, or None if the manifest has no hook. Does not run the
    file.

    named: the file of --hook. Raises ConfigError if `named` is not the manifest's file.
    """
    hooks = [step.options for step in model.postprocess if step.name == "hook"]
    if not hooks:
        if named is not None:
            raise ConfigError(f"--hook {named}: model {model.name!r} declares no hook: drop --hook")
        return None
    if len(hooks) > 1:
        raise ConfigError(f"model {model.name!r} declares {len(hooks)} hooks: one is allowed")
    path = model.folder / hooks[0]["file"]
    if not path.resolve().is_relative_to(model.folder.resolve()):
        raise ConfigError(f"model {model.name!r}: hook {path} is outside the manifest's folder")
    if named is None:
        raise ConfigError(
            f"model {model.name!r} runs Python code from {path}: read it, and name it with "
            f"--hook {path} if you trust it"
        )
    if named.resolve() != path.resolve():
        raise ConfigError(
            f"--hook {named}: the hook of model {model.name!r} is another file: {path}"
        )
    if not path.is_file():
        raise ConfigError(f"--hook {named} does not exist")
    return path, hooks[0]["function"]


def load_hook(model: Model, named: Path | None) -> Any:
    """Runs the hook's file and returns its function. Raises PluginUnavailable if the file fails."""
    hook = check_hook(model, named)
    return registry.load_function(*hook) if hook else None


def postprocessor_of(
    output: Output | None, hook: Hook | None = None, *, has_states: bool = False
) -> Postprocess:
    """Creates the steps that a manifest declares for its output. Returns no steps if the manifest has no output.
    has_states: whether samples are sequences, so that the steps apply to each frame.
    """
    if output is None:
        return postprocessor((), None, hook)
    steps = postprocessor(output.postprocess, output.name, hook)
    return by_frame(steps) if has_states and output.postprocess else steps
