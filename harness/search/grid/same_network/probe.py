"""Probes a model in one framework and precision. The probe stores the model's outputs and the network in its file.

The probe runs in a child process (harness/core/child.py) and is not timed. Because the probe stores the raw outputs,
any two ways to run a model can later be compared from files alone.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from harness.core.config.run_config import from_plain
from harness.core.registry import plugin
from harness.errors import ConfigError, PluginUnavailable
from harness.loadgen.plan import InstanceGroup
from harness.models.manifest.defaults import default_dataset
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import Model
from harness.models.network.files import of_onnx, of_openvino, onnx_macs
from harness.models.network.network import Structure, of_shapes
from harness.models.network.tflite import of_tflite
from harness.models.opened.loading import open_model
from harness.types import Array, Batch, Dataset, HasNetwork, Outputs

SAMPLES = 64
"""At most this many samples, spread evenly over the dataset, are probed."""

_BATCH = 8


def probe(request: Mapping[str, Any]) -> dict[str, Any]:
    """Probes a model. request: a run's `config`, and `out`, the .npz file for the outputs.

    Returns four values: the `structure` of the model's file or the reason why it is `unknown`, the number of
    `samples`, and the backend's description of itself (`backend`).
    """
    config = from_plain(request["config"])
    model = load_model(config.model)
    with ExitStack() as stack:
        spec = InstanceGroup(1, config.threads or 1, _BATCH)
        data = config.dataset or default_dataset(model)
        path, (backend,), _, fixed, dataset = open_model(config, model, data, spec, stack)
        size = fixed or _BATCH
        output = model.output.name if model.output else None
        rows = []
        total = len(dataset)
        chosen = sorted({i * total // SAMPLES for i in range(SAMPLES)})
        first = [chosen[i % len(chosen)] for i in range(fixed or 1)]
        structure, unknown = _structure(path, model, backend, _loaded(dataset, first))
        for at in range(0, len(chosen), size):
            batch = _loaded(dataset, chosen[at : at + size])
            with plugin(f"backend {config.backend!r}: infer"):
                rows += _rows(backend.infer(batch), output)
        about = {key: str(value) for key, value in backend.describe().items()}
    alike = len({row.shape for row in rows}) == 1 and rows[0].dtype.kind in "fiu"
    np.savez(request["out"], outputs=np.stack(rows) if alike else np.zeros(0, np.float32))
    return {
        "structure": structure._asdict() if structure else None,
        "unknown": unknown,
        "samples": len(rows),
        "backend": about,
    }


def _loaded(dataset: Dataset, indices: list[int]) -> Batch:
    with plugin("the dataset"):
        dataset.load(indices)
        batch = dataset.batch(indices)
        kept = Batch(len(indices), {name: np.array(rows) for name, rows in batch.inputs.items()})
        dataset.unload(indices)
    return kept


def _rows(outputs: Outputs, name: str | None) -> list[Array]:
    """Returns the output `name` for each sample; if `name` is None, returns the first output."""
    if isinstance(outputs, Mapping):
        outputs = outputs.get(name or "", next(iter(outputs.values())))
    return [np.asarray(row) for row in outputs]


def _structure(
    path: Path | None, model: Model, backend: object, batch: Batch
) -> tuple[Structure | None, str]:
    """Returns the network, or None and the reason why the network is unknown. batch: smallest batch size that the model
    file accepts.
    """
    if path is None:
        return None, "it has no file"
    try:
        network = _read(path, model, backend, batch)
    except (ConfigError, PluginUnavailable) as e:
        return None, str(e)
    return network, "" if network else f"the weights of {path.name} are not read here"


def _read(path: Path, model: Model, backend: object, batch: Batch) -> Structure | None:
    if isinstance(backend, HasNetwork):
        with plugin("the backend: network"):
            weights, strides, macs = backend.network(batch)
        return of_shapes(weights, strides, macs // batch.size if macs else None)
    if path.suffix == ".tflite":
        return of_tflite(path)
    if path.suffix == ".onnx":
        shapes = {n: rows.shape for n, rows in model.in_file(path, batch.inputs).items()}
        macs = onnx_macs(path, shapes)
        return of_onnx(path)._replace(macs=macs // batch.size if macs else None)
    ir = [path] if path.suffix == ".xml" else sorted(path.glob("*.xml"))
    return of_openvino(ir[0]) if len(ir) == 1 else None
