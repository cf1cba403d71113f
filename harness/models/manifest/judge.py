"""Lists the manifest fields that determine how answers are judged, and compares them with the shipped manifest."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from harness.models.manifest.lookup import load_model, shipped_models
from harness.models.manifest.model import MODELS_DIR, Model
from harness.models.manifest.schema import Manifest

_MOST_SYMBOLS = 256
"""Maximum number of symbols that a result lists. For a longer list, the result records only the number and the digest
of the symbols.
"""


def judged_by(manifest: Manifest) -> Mapping[str, Any]:
    """Returns the field `judge` of environment.json: the dataset, the steps, the metric, its target and the tolerances."""
    content = manifest.model_dump(mode="json")
    steps = {
        f"{kind}.{one['name']}": one[step]
        for kind, step in (("inputs", "preprocess"), ("outputs", "postprocess"))
        for one in content[kind]
    }
    accuracy = {f"accuracy.{name}": value for name, value in (content["accuracy"] or {}).items()}
    symbols = accuracy.get("accuracy.symbols", ())
    if len(symbols) > _MOST_SYMBOLS:
        digest = hashlib.sha256(json.dumps(symbols).encode()).hexdigest()
        accuracy["accuracy.symbols"] = f"{len(symbols):,} symbols, SHA-256 {digest}"
    return {"dataset": content["dataset"], **accuracy, **steps}


def differences(model: Model) -> Iterator[tuple[str, list[str]]]:
    """Yields (shipped model, differing fields) for each shipped model with the same name or file.

    Yields nothing if `model` is a shipped model or if all values are equal.
    """
    if model.manifest is None or model.folder == MODELS_DIR:
        return
    ours, digests = judged_by(model.manifest), _digests(model.manifest)
    for name, shipped in _shipped().items():
        if name != model.name and digests.isdisjoint(_digests(shipped)):
            continue
        theirs = judged_by(shipped)
        differing = [
            f"{key} is {ours.get(key)} instead of {theirs.get(key)}"
            for key in dict.fromkeys([*ours, *theirs])
            if ours.get(key) != theirs.get(key)
        ]
        if differing:
            yield name, differing


def _digests(manifest: Manifest) -> set[str]:
    return {file.sha256 for file in manifest.files.values() if file.sha256 is not None}


@cache
def _shipped() -> Mapping[str, Manifest]:
    models = (load_model(name) for name in shipped_models())
    return {model.name: model.manifest for model in models if model.manifest is not None}
