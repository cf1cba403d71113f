"""Handles requests of OpenAI's API with a served language model."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from time import time_ns
from typing import Any, NamedTuple

from harness import __version__
from harness.serve.answers import (
    Refusal,
    check_method,
    connection_header,
    json_answer,
    options_answer,
    route_answer,
)
from harness.serve.loop import Later
from harness.serve.openai import other_forms, vectors
from harness.serve.openai.asked import read
from harness.serve.openai.batching import Batching
from harness.serve.openai.replies import Answer, refused
from harness.serve.openai.statistics import Answers
from harness.serve.requests import Request
from harness.serve.served import ServedGeneration


class _Form(NamedTuple):
    """The format of the requests and replies at one path."""

    is_chat: bool = True
    translate: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    """Converts the request to a chat completion request."""
    answer: type[Answer] = Answer


_ASKED: Mapping[str, _Form] = {
    "/v1/completions": _Form(is_chat=False),
    "/v1/chat/completions": _Form(),
    other_forms.RESPONSES: _Form(True, other_forms.chat_of_response, other_forms.ResponsesAnswer),
    other_forms.MESSAGES: _Form(True, other_forms.chat_of_message, other_forms.MessagesAnswer),
}
"""Maps each path that generates text to the format of its requests and replies."""

RESET = "/reset_prefix_cache"
"""Path that empties the prefix cache, as in vLLM."""


class Completions:
    """Handles the requests for one model; `Loop` calls it, and calls `batching.step` between checks of the sockets."""

    def __init__(self, served: ServedGeneration) -> None:
        self._served = served
        self._numbers = count(1)
        self._prefixes = served.generator.prefixes
        self._statistics = Answers(served.name, self._prefixes)
        self.batching = Batching(served.generator, self._statistics)
        self._routes: dict[str, Callable[[], Mapping[str, Any] | bytes]] = {
            "/v1/models": lambda: {"object": "list", "data": [*map(self._model, served.names)]},
            **{f"/v1/models/{name}": partial(self._model, name) for name in served.names},
            "/version": lambda: {"version": __version__},
            "/health": dict,
            "/metrics": self._statistics.page,
        }
        self._posts: dict[str, Callable[[], Mapping[str, Any] | bytes]] = {}
        if self._prefixes is not None:
            self._posts[RESET] = self._reset_prefixes
        self._told = 0  # number of requests so far that did not need the model

    @property
    def answered(self) -> int:
        return self._told + self._statistics.answered

    @property
    def refused(self) -> int:
        """Number of requests to which the server replied with an error."""
        return self._statistics.refused

    @property
    def unknown(self) -> int:
        """Number of refused requests for a path that does not exist on the server."""
        return self._statistics.unknown

    @property
    def first_failure(self) -> str:
        """The first error that the backend raised."""
        return self.batching.first_failure

    def handle(self, request: Request, arrived_ns: int) -> Sequence[bytes] | Later:
        """Handles a request. Returns the reply, or a Later if the model must first generate the reply."""
        head = request.head
        try:
            return self._answer(request, arrived_ns)
        except Refusal as e:
            self._statistics.refuse(e.status)
            return [refused(head, e.status, str(e), e.headers, e.param)]

    def _answer(self, request: Request, arrived_ns: int) -> Sequence[bytes] | Later:
        head = request.head
        path, route = head.path, self._routes.get(head.path) or self._posts.get(head.path)
        if route is None and path not in (*_ASKED, *vectors.PATHS):
            raise Refusal(404, f"this server has nothing at {path}, only {self._paths()}")
        method = "GET" if path in self._routes else "POST"
        if head.method == "OPTIONS":
            return [options_answer(head, method)]
        check_method(head, method)
        if path in vectors.PATHS:
            return [self._vectors(request, arrived_ns)]
        if route is None:
            return self._begin(request, arrived_ns)
        self._told += 1
        return [route_answer(route(), head)]

    def _begin(self, request: Request, arrived_ns: int) -> Answer:
        head, served, form = request.head, self._served, _ASKED[request.head.path]
        asked = read(
            bytes(request.body),
            is_chat=form.is_chat,
            known=served.known,
            prompts=served.prompts,
            translate=form.translate,
        )
        answer = form.answer(
            asked,
            head,
            asked.model,
            next(self._numbers),
            served.prompts,
            arrived_ns,
            keeps_prefixes=self._prefixes is not None,
        )
        try:
            self.batching.add(answer)
        except ValueError as e:
            raise Refusal(400, str(e), param="messages" if asked.is_chat else "prompt") from None
        return answer

    def _paths(self) -> str:
        """Returns a list of all paths, except the paths of single models."""
        told = [path for path in self._routes if not path.startswith("/v1/models/")]
        return ", ".join((*_ASKED, *vectors.PATHS, *told, *self._posts))

    def _reset_prefixes(self) -> Mapping[str, Any]:
        assert self._prefixes is not None
        self._prefixes.clear()
        return {}

    def _vectors(self, request: Request, arrived_ns: int) -> bytes:
        """Returns the reply to a request for vectors, which takes one step of the model."""
        head, begun_ns = request.head, time_ns()
        content = vectors.answer(head.path, bytes(request.body), self._served)
        self._statistics.add_vectors(
            content["usage"]["prompt_tokens"], arrived_ns, begun_ns, time_ns()
        )
        return json_answer(content, connection_header(head))

    def _model(self, name: str) -> Mapping[str, Any]:
        served = self._served
        about = {"object": "model", "created": 0, "owned_by": "mlperf-harness"}
        model = {"id": name, **about, "max_model_len": served.context}
        return {**model, "properties": served.properties}
