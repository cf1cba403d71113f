"""Looks up a backend's model formats without importing the backend, because importing a framework takes seconds and
memory.
"""

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from harness.core import registry
from harness.core.config.run_config import RunConfig
from harness.errors import ConfigError
from harness.models.manifest.model import Model
from harness.models.opened.loading import declared, wanted_formats


def formats_in_source(name: str) -> tuple[str, ...] | None:
    """Returns the attribute `formats` of a built-in backend as written in its class.

    Returns None for other plug-ins, and for a class whose formats are known only after an import, such as inherited
    formats.
    """
    entry = registry.BACKENDS.get(name)
    if entry is None:
        return None
    module, _, wanted = entry.target.partition(":")
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == wanted:
            return _formats(node)
    return None


def _formats(node: ast.ClassDef) -> tuple[str, ...] | None:
    for line in node.body:
        target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
        if isinstance(target, ast.Name) and target.id == "formats":
            assert isinstance(line, ast.Assign | ast.AnnAssign)
            try:
                return tuple(ast.literal_eval(line.value)) if line.value is not None else None
            except (ValueError, TypeError):  # the class computes the value of `formats`
                return None
    return None


def formats_of(config: RunConfig) -> tuple[str, ...]:
    """Returns the formats that the configuration's backend reads. Imports the backend only if the source does not show
    its formats.
    """
    return formats_in_source(config.backend) or declared(config).formats


def file_problems(config: RunConfig, model: Model) -> Iterator[str]:
    """Yields a problem if the backend reads neither the model's files nor the format of its option. Only a backend whose
    source shows its formats is checked, because the check must not wait for a framework.
    """
    formats = formats_in_source(config.backend)
    if not formats or config.model_file is not None:
        return
    try:
        model.check_formats(wanted_formats(config, formats))
    except ConfigError as e:
        yield str(e)
