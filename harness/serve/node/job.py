"""Opens a node with its instances, cores and data, warms it up, measures its rate, and connects it to a server loop."""

import os
import platform
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle
from secrets import token_hex
from typing import NamedTuple

import numpy as np

from harness import __version__
from harness.core.batch_rule import BatchRule, batch_times
from harness.core.config.run_config import RunConfig
from harness.core.console import frameworks_output, say
from harness.core.formats.kserve_tensors import datatype_of
from harness.core.registry import load
from harness.errors import ConfigError
from harness.machine.cores import available
from harness.machine.host_log import HOST_PERIOD_S
from harness.machine.kernel import boot_id
from harness.machine.sampler import Repeated
from harness.models.manifest.defaults import default_dataset
from harness.models.manifest.files import size_bytes
from harness.models.manifest.hook import load_hook, postprocessor_of
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import Model
from harness.models.opened import instances
from harness.models.opened.loading import declared, described, open_model, samples_held
from harness.models.opened.node import ANSWER, RUN_BYTES, NodeFacts, code_sha256
from harness.models.steps.steps import OF_ANY_LENGTH
from harness.run.measured.answerer import Answerer
from harness.run.measured.calibration import calibrate_rate
from harness.run.measured.placement.openmp import end_own_threads
from harness.run.measured.preparation import Preparation
from harness.serve.loop import Loop
from harness.serve.node.handler import NodeHandler
from harness.serve.node.instances import Instances
from harness.serve.served import ANY, TensorInfo, tensors_of
from harness.types import Array, Backend, HasOutputs, Outputs

CALIBRATE_S = 0.5
"""All instances are kept busy for this time to measure the node's rate."""


class OpenNode(NamedTuple):
    """A node that is ready but is not listening on a port yet."""

    facts: NodeFacts
    answerers: Sequence[Answerer]
    handler: NodeHandler
    rule: BatchRule | None
    """Rule for the batch size; None if batches take so little time that their size does not matter."""


def open_node(config: RunConfig, name: str, stack: ExitStack) -> OpenNode:
    """Opens the node that a configuration describes, and registers the node with `stack`, which closes it. name: the
    node's name.

    Propagates the plug-ins' errors, and raises ConfigError for a model that a node cannot run.
    """
    model = load_model(config.model)
    _refuse(model)
    if model.may_have_to_be_obtained:
        model.obtain(declared(config).formats, say)
    scenario = load("scenario", config.scenario)
    # A node uses all cores, as an Offline run does. A Server run would leave a core to LoadGen, but a node does not
    # need to, because LoadGen runs on the driver.
    if not scenario.streams:
        scenario = load("scenario", "offline")
    group = instances.plan(config, scenario, model, available())
    data = config.dataset or default_dataset(model)
    path, backends, inputs, fixed, dataset = open_model(config, model, data, group, stack)
    max_batch = group.max_batch if fixed is None else min(fixed, group.max_batch)
    postprocess = postprocessor_of(
        model.output, load_hook(model, config.hook), has_states=model.has_states
    )
    cpus = group.pinned or [()] * len(backends)
    preparation = Preparation(
        config,
        "queued",
        [Answerer(each, dataset, postprocess, cpus[i]) for i, each in enumerate(backends)],
        dataset,
        data,
        held=samples_held(dataset, data, config.performance_count or model.performance_count),
        max_batch=max_batch,
        query_samples=1,
    )
    with frameworks_output():
        calibrated = preparation.run(0)
        rate = calibrate_rate(
            preparation.answerers, max_batch, _batches(preparation.loaded), CALIBRATE_S
        )
        end_own_threads()
    about = described(backends[0], config.backend, dataset, data)
    facts = NodeFacts(
        machine=platform.node(),
        boot=boot_id(),
        process=token_hex(RUN_BYTES),
        version=__version__,
        code=code_sha256(),
        backend=config.backend,
        backend_description=about["backend"],
        model=model.name,
        model_sha256=model.sha256(path) if path is not None else None,
        model_bytes=size_bytes(path) if path is not None else 0,
        dataset=data,
        dataset_description=about["dataset"],
        total_count=len(dataset),
        inputs=[[spec.name, spec.dtype, list(spec.shape)] for spec in inputs],
        instances=group.instances,
        threads=group.threads,
        max_batch=max_batch,
        rate_per_s=rate["rate_per_s"],
        slowest_batch_ns=calibrated["slowest_batch_ns"],
        cpus=sorted(os.sched_getaffinity(0)),
        pid=os.getpid(),
    )
    row = preparation.row
    datatype = datatype_of(str(row.dtype))
    if datatype is None:
        raise ConfigError(f"the protocol between nodes has no type for {row.dtype} answers")
    answers = TensorInfo(ANSWER, datatype, (ANY, *(ANY if n is None else n for n in row.shape)))
    handler = NodeHandler(
        facts,
        name,
        tensors_of(inputs),
        answers,
        _namer(backends[0], model),
        dataset,
        preparation.loaded,
    )
    curve, count = preparation.curve, len(preparation.answerers)
    rule = BatchRule(batch_times(curve, max_batch), count) if curve else None
    return OpenNode(facts, preparation.answerers, handler, rule)


def _batches(loaded: Sequence[int]) -> Callable[[int], list[int]]:
    """Returns a function that selects the requested number of loaded samples and returns their indices; each call
    selects different samples.
    """
    turn = cycle(range(len(loaded)))

    def batch(size: int) -> list[int]:
        begin = next(turn)
        return [loaded[(begin + i) % len(loaded)] for i in range(size)]

    return batch


def _refuse(model: Model) -> None:
    if model.generation is not None:
        raise ConfigError(
            f"nodes cannot run model {model.name!r}, which generates token by token: serve it with `serve`, then "
            "measure it with --backend openai --url"
        )
    if model.transcription is not None:
        raise ConfigError(
            f"nodes cannot run model {model.name!r}, which transcribes token by token: measure it without --nodes"
        )
    for step in model.postprocess:
        if step.name in OF_ANY_LENGTH:
            raise ConfigError(
                f"the step {step.name!r} of model {model.name!r} gives answers of different lengths, which nodes "
                "cannot send: measure it without --nodes"
            )


def _namer(backend: Backend, model: Model) -> Callable[[Outputs], Mapping[str, Array]]:
    names = backend.outputs() if isinstance(backend, HasOutputs) else ()
    name = names[0] if names else model.output.name if model.output else "output"

    def named(outputs: Outputs) -> Mapping[str, Array]:
        if isinstance(outputs, Mapping):
            return {key: np.asarray(rows) for key, rows in outputs.items()}
        return {name: outputs if isinstance(outputs, np.ndarray) else np.stack(list(outputs))}

    return named


@contextmanager
def answering(opened: OpenNode, listening: socket.socket) -> Iterator[Loop]:
    """Runs a node's instances, and yields the loop that serves the port."""
    loop = Loop(listening, opened.handler.handle, opened.handler.work)
    running = Instances(opened.answerers, opened.facts.max_batch, loop.wake, opened.rule)
    opened.handler.start(running)
    try:
        with Repeated(opened.handler.host.look, HOST_PERIOD_S, "host"):
            yield loop
    finally:
        running.stop()
