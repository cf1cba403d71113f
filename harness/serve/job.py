"""Opens the model and the port, and serves until a signal arrives."""

import gc
import ipaddress
import platform
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

from harness.core.config.parse import Endpoint
from harness.core.config.run_config import RunConfig
from harness.core.console import frameworks_output, say, show
from harness.core.units import counted
from harness.errors import ConfigError
from harness.models.generation.prefixes import PrefixCache
from harness.serve.grpc.server import GrpcHandler
from harness.serve.grpc.server import answering as over_grpc
from harness.serve.kserve import OpenInference
from harness.serve.listening import BACKLOG, bound, in_use
from harness.serve.loop import Loop
from harness.serve.node.handler import NodeHandler
from harness.serve.node.job import answering, open_node
from harness.serve.openai.completions import Completions
from harness.serve.openai.replies import problem
from harness.serve.options import DEFAULT_NAME, ServeOptions
from harness.serve.served import ServedGeneration, ServedModel, open_served


def serve(config: RunConfig, options: ServeOptions) -> int:
    """Serves until a signal arrives. Returns the exit status. Raises ConfigError if the address cannot be used."""
    listen = options.listen
    with ExitStack() as stack:
        listening = stack.enter_context(bound(listen))
        if options.node:
            return _serve_node(config, options, stack, listening)
        with frameworks_output():
            names = [] if options.name == DEFAULT_NAME else options.name.split(",")
            served = open_served(config, stack, postprocess=options.postprocess, names=names)
        with in_use(listen):
            listening.listen(BACKLOG)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        loop, inference = _loop_of(served, options, listening, stack)
        name = served.name if isinstance(served, ServedModel) else ", ".join(served.names)
        _serve(inference, loop, name, served.backend_name, listen)
    return 0


def _serve_node(
    config: RunConfig, options: ServeOptions, stack: ExitStack, listening: socket.socket
) -> int:
    name = options.name if options.name != DEFAULT_NAME else platform.node()
    if options.postprocess:
        raise ConfigError(
            "--postprocess has no effect on a node, which always postprocesses: drop --postprocess"
        )
    if options.grpc is not None:
        raise ConfigError(
            "--grpc cannot be used with --node, which answers only over HTTP: drop --grpc"
        )
    if options.prefix_cache is not None:
        raise ConfigError("--prefix-cache cannot be used with --node: drop one of them")
    opened = open_node(config, name, stack)
    with in_use(options.listen):
        listening.listen(BACKLOG)
    with answering(opened, listening) as loop:
        _serve(opened.handler, loop, opened.facts.model, config.backend, options.listen)
    return 0


def _loop_of(
    served: ServedModel | ServedGeneration,
    options: ServeOptions,
    listening: socket.socket,
    stack: ExitStack,
) -> tuple[Loop, Completions | OpenInference]:
    """Returns the loop and its handler; `stack` closes the resources of both.

    Raises ConfigError if options of the Open Inference Protocol are set for a language model.
    """
    if isinstance(served, ServedModel):
        if options.prefix_cache is not None:
            raise ConfigError(
                f"--prefix-cache is for language models, but {served.name!r} is not one: drop --prefix-cache"
            )
        inference = OpenInference(served, options.name)
        if options.grpc is None:
            return Loop(listening, inference.handle), inference
        calls = GrpcHandler(inference)
        loop = Loop(listening, inference.handle, calls.work)
        at = stack.enter_context(over_grpc(calls, loop, options.grpc))
        (_, _, _, _, (address, *_)), *_ = socket.getaddrinfo(at.host, at.port)
        say(exposure(str(address), at))
        show(f"serving {served.name} ({served.backend_name}) on grpc://{at}")
        return loop, inference
    given = {
        "--postprocess": options.postprocess,
        "--grpc": options.grpc is not None,
    }
    for option in (option for option, is_given in given.items() if is_given):
        raise ConfigError(
            f"{option} belongs to the Open Inference Protocol, but {served.name!r} is served with "
            f"OpenAI's API: drop {option}"
        )
    if options.prefix_cache is not None:
        served.generator.keep_prefixes(PrefixCache(*options.prefix_cache))
    completions = Completions(served)
    loop = Loop(listening, completions.handle, completions.batching.step, problem)
    return loop, completions


def _serve(
    inference: Completions | OpenInference | NodeHandler,
    loop: Loop,
    name: str,
    backend: str,
    listen: Endpoint,
) -> None:
    address, port = loop.address
    at = listen._replace(port=port)
    say(exposure(address, at))
    gc.collect()
    gc.freeze()  # so that the garbage collector no longer scans the frameworks' objects
    with stopping(loop):
        show(f"serving {name} ({backend}) on http://{at}")
        loop.run()
    counts = f"{counted(inference.answered, 'request')} answered, {inference.refused:,} refused"
    if inference.unknown:
        counts += f" ({inference.unknown:,} of them for paths that this server does not have)"
    say(
        f"{counts}; the first failure: {inference.first_failure}"
        if inference.first_failure
        else counts
    )


def exposure(address: str, at: Endpoint) -> str:
    """Returns a warning if other machines may be able to reach the address, or "" if only this machine can."""
    if is_loopback(address):
        return ""
    return f"anyone who reaches {at} can use the model, without a password or encryption"


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


class Stoppable(Protocol):
    def stop(self) -> None: ...


@contextmanager
def stopping(loop: Stoppable) -> Iterator[None]:
    """Makes SIGINT and SIGTERM stop the loop. A second signal ends the process immediately."""

    def stop(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        loop.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
