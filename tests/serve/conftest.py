"""A language model that is served by a loop in this process."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from harness.core.config.run_config import RunConfig
from harness.core.formats.sse import DONE, EventParser
from harness.models.generation.prefixes import PrefixCache
from harness.serve.loop import Loop
from harness.serve.openai.completions import Completions
from harness.serve.openai.replies import problem
from harness.serve.served import ServedGeneration, open_served

TIMEOUT_S = 20
CHAT = "/v1/chat/completions"


class Server:
    """Runs a loop in a thread of this process."""

    def __init__(self, served: ServedGeneration) -> None:
        self.served = served
        self.completions = Completions(served)
        listening = socket.create_server(("127.0.0.1", 0))
        self.loop = Loop(
            listening, self.completions.handle, self.completions.batching.step, problem
        )
        self._thread = threading.Thread(target=self.loop.run)
        self._thread.start()

    def stop(self) -> None:
        self.loop.stop()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()

    def ask(
        self, path: str, body: object = None, *, method: str | None = None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(*self.loop.address, timeout=TIMEOUT_S)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method or ("GET" if body is None else "POST"), path, text)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def complete(self, prompt: object, path: str = "/v1/completions", **fields: Any) -> Any:
        status, text = self.ask(path, {"model": "tinylm", "prompt": prompt, **fields})
        assert status == 200, text
        return json.loads(text)

    def stream(self, body: object, path: str = "/v1/completions") -> list[Any]:
        """Returns the decoded events except the last."""
        status, text = self.ask(path, body)
        assert status == 200, text
        parser = EventParser()
        *events, last = parser.feed(text)
        assert last == DONE
        assert parser.is_whole
        return [json.loads(event) for event in events]


@contextmanager
def tinylm(*names: str, prefixes: PrefixCache | None = None) -> Iterator[Server]:
    """Serves until the block ends. names: names of the model for its clients."""
    pytest.importorskip("onnxruntime")
    config = RunConfig.of(
        scenario="offline", backend="ort", model="tinylm", instances=1, threads=1, max_batch=4
    )
    with ExitStack() as stack:
        served = open_served(config, stack, names=names)
        assert isinstance(served, ServedGeneration)
        if prefixes is not None:
            served.generator.keep_prefixes(prefixes)
        server = Server(served)
        stack.callback(server.stop)
        yield server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with tinylm() as server:
        yield server
