"""A server of OpenAI's API that generates known tokens in a known dialect, at known times.

    with TokenServer(Dialect(per_chunk=4, usage="last")) as server:
        ...  # server.url; server.sent has the wall clock in ns of each chunk of each stream

Token i of the answer to prompt p is `ids_of(p, ...)[i]`; its text is WORDS[id % len(WORDS)]. Some words contain
characters of several bytes. Each connection uses a thread, because clear code matters more than speed here.
"""

import hashlib
import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple, Self
from uuid import uuid4

MODEL = "tiny"
WORDS = (" a", " né", " 日本", "\n", ' "q"', " 🙂", " word", " {}")
DEFAULT_TOKENS = 16

PAUSE_S = 1.2
FEWEST_BEFORE = 16
"""A pause follows this number of requests, because the client measures a null server before the run."""


Chunk = tuple[dict[str, Any] | str, bool]
"""The JSON of an event, or its text, and whether the event contains tokens."""


class Ask(NamedTuple):
    """One received request."""

    body: Mapping[str, Any]
    prompt: Any
    """The prompt as text, token ids, or messages."""
    number: int
    """Number of the request; see `TokenServer.came`."""
    ids: list[int]
    """The ids of the right answer."""
    most: int
    """Maximum number of tokens in the answer, from the request."""


@dataclass(frozen=True)
class Dialect:
    """The features and the reply format of a server."""

    name: str = "vllm"
    version: str | None = "0.32.0"
    apis: tuple[str, ...] = ("completions", "chat/completions")
    lists_models: bool = True
    """If true, the server lists its models; otherwise the request fails, as in transformers' server without a download
    cache.
    """
    ids: bool = True
    """If true, the server supports return_token_ids; otherwise the server refuses the field."""
    texts: bool = True
    """If true, the server has a tokenizer; otherwise the server refuses texts and chats."""
    logs_ids: bool = False
    """If true, the log probabilities that a request asks for contain token ids, as in llama.cpp."""
    usage: str = "chunk"
    """The part of a stream that contains the usage: each `chunk`, a separate `last` chunk, or the chunk without text
    that states how the answer ended (`finish`). With `none`, replies without streams lack the usage, too.
    """
    stream_options: bool = True
    """If true, the server supports stream_options; otherwise the server refuses the field."""
    per_chunk: int = 1
    """Number of tokens per chunk."""
    role_chunk: bool = True
    """If true, a chat begins with a chunk that contains only the role."""
    newline: str = "\n"
    piece_bytes: int | None = None
    """Size of the pieces in which a stream is written."""
    done: bool = True
    """If true, a stream ends with [DONE]."""
    closes: bool = False
    """If true, the connection is closed after each stream, although no header says so."""
    http: str = "1.1"
    """1.0: the connection is closed after each reply, and streams have no chunks."""
    tokens: int | None = None
    """Number of tokens in each answer, as if the model ended it; None: max_tokens."""
    begin: int = 0
    """Number of tokens that the server inserts before each prompt."""
    cached: int = 0
    """Number of tokens of each prompt that are cached."""
    first_s: float = 0.0
    gap_s: float = 0.0
    """Times before the first chunk and between chunks."""
    fault: str = ""
    """The fault after two chunks: an `error` in the stream, a `cut` of the connection, or a `stall`; or a faulty reply:
    `error-200`, `busy`.
    """
    every: int = 1
    """The fault occurs at each request whose number, counted from 1, is a multiple of `every`."""
    finish: str | None = "by the model"
    """A finish_reason that replaces the usual one; None: no finish_reason."""
    factor: int = 1
    """`usage` reports this multiple of the answer's tokens."""
    lead: str | None = None
    """Text of an event that is sent before the first token is due, with one token in its `usage`."""
    change: Callable[[str, bytes], bytes] = lambda _path, data: data
    """Changes the data of a reply or event. Takes the request's path and the data."""
    reply: Callable[[Ask], list[int]] = lambda ask: ask.ids
    """Returns the ids of the answer."""
    wait_s: Callable[[Ask], float] | None = None
    """Returns the time to the first chunk, in place of `first_s`."""
    stream: Callable[[Ask, Iterator[Chunk]], Iterator[Chunk]] = lambda _ask, chunks: chunks
    """Replaces the events of a stream."""
    model: str = ""
    """The model's name in replies; the default is MODEL."""
    about: Callable[[Ask], Mapping[str, Any]] = lambda _ask: {"id": f"cmpl-{uuid4().hex}"}
    """Returns additional fields for each reply and event."""
    page: Callable[[], str] | None = None
    """Returns the metrics page."""
    in_run: bool = False
    """If true, only the run's requests are numbered; these requests come after the pause in which the client measures
    itself.
    """


VLLM = Dialect()
LLAMA_CPP = Dialect(name="llamacpp", version=None, ids=False, usage="finish", closes=True)
TRANSFORMERS = Dialect(
    name="transformers",
    version=None,
    apis=("chat/completions",),
    ids=False,
    usage="finish",
    stream_options=False,
)


def ids_of(prompt: Any, count: int) -> list[int]:
    """Returns the tokens of an answer."""
    seed = json.dumps(prompt, sort_keys=True)
    return [
        int.from_bytes(hashlib.sha256(f"{seed} {i}".encode()).digest()[:2]) for i in range(count)
    ]


def text_of(ids: list[int]) -> str:
    return "".join(WORDS[i % len(WORDS)] for i in ids)


class TokenServer:
    """Serves until the block ends. requests: the received bodies. port: 0 selects any free port."""

    def __init__(self, dialect: Dialect = VLLM, port: int = 0) -> None:
        self.dialect, self.port = dialect, port
        self.requests: list[dict[str, Any]] = []
        self.sent: list[list[int]] = []
        self.lock = threading.Lock()
        self.ended = threading.Event()
        self._numbered, self._came_s = 0, time.monotonic()

    def came(self, body: dict[str, Any]) -> int:
        """Returns the number of a request, counted from 1; 0 for requests before the run."""
        with self.lock:
            now_s = time.monotonic()
            paused = len(self.requests) > FEWEST_BEFORE and now_s - self._came_s > PAUSE_S
            if self._numbered or paused or not self.dialect.in_run:
                self._numbered += 1
            self._came_s = now_s
            self.requests.append(body)
            return self._numbered

    def __enter__(self) -> Self:
        server: TokenServer = self

        class Handler(_Handler):
            owner = server

        self._server = _Server(("127.0.0.1", self.port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 256

    def handle_error(self, *_: object) -> None:
        """Ignores clients that have closed the connection."""


class Refused(Exception):
    """Raised, with the reason as its text, if the server refuses the request."""


class _Handler(BaseHTTPRequestHandler):
    owner: TokenServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 0
    _number = 1

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        dialect = self.owner.dialect
        if self.path == "/v1/models" and not dialect.lists_models:
            self._json({"error": "Internal Server Error"}, 500)
        elif self.path == "/v1/models":
            self._json({"object": "list", "data": [{"id": MODEL, "owned_by": dialect.name}]})
        elif self.path == "/version" and dialect.version:
            self._json({"version": dialect.version})
        elif self.path == "/metrics" and dialect.page is not None:
            data = dialect.page().encode()
            self.wfile.write(
                self._head("200 OK", "text/plain", f"Content-Length: {len(data)}\r\n") + data
            )
        else:
            self._json({"detail": "Not Found"}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        dialect = self.owner.dialect
        api = self.path.removeprefix("/v1/")
        if api not in dialect.apis:
            self._json({"detail": "Not Found"}, 404)
            return
        self._number = number = self.owner.came(body)
        fault = dialect.fault if number and number % dialect.every == 0 else ""
        try:
            answer = _Answer(dialect, api, body, number)
        except Refused as e:
            self._json({"error": {"message": str(e), "type": "invalid_request_error"}}, 422)
            return
        if fault == "busy":
            self._json({"error": {"message": "too many requests"}}, 429)
        elif fault == "error-200":
            self._json({"error": {"message": "the engine is dead", "code": 500}})
        elif body.get("stream"):
            self._stream(answer, fault)
        else:
            self.owner.ended.wait(answer.wait_s)
            self._json(answer.whole())

    def _json(self, content: Any, status: int = 200) -> None:
        data = self._changed(json.dumps(content))
        length = f"Content-Length: {len(data)}\r\n"
        self.wfile.write(self._head(f"{status} S", "application/json", length) + data)

    def _head(self, status: str, content_type: str, more: str) -> bytes:
        http = self.owner.dialect.http
        self.close_connection |= http == "1.0"
        return f"HTTP/{http} {status}\r\nContent-Type: {content_type}\r\n{more}\r\n".encode()

    def _changed(self, text: str) -> bytes:
        data = text.encode()
        return self.owner.dialect.change(self.path, data) if self._number else data

    def _stream(self, answer: "_Answer", fault: str) -> None:
        dialect = self.owner.dialect
        more = "Transfer-Encoding: chunked\r\n" if dialect.http == "1.1" else ""
        self.wfile.write(self._head("200 OK", "text/event-stream; charset=utf-8", more))
        stamps: list[int] = []
        with self.owner.lock:
            self.owner.sent.append(stamps)
        due_s = time.monotonic() + answer.wait_s
        for number, (content, has_tokens) in enumerate(dialect.stream(answer.ask, answer.chunks())):
            if fault and number == 2:
                if not self._spoil(fault):
                    return
                break
            if has_tokens:
                self._sleep(due_s)
                due_s += dialect.gap_s
                stamps.append(time.time_ns())
            self._event(
                content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
            )
        if dialect.done:
            self._event("[DONE]")
        self._write(b"")
        self.close_connection |= dialect.closes

    def _sleep(self, until_s: float) -> None:
        if (left_s := until_s - time.monotonic()) > 0:
            self.owner.ended.wait(left_s)

    def _spoil(self, fault: str) -> bool:
        """Applies the fault; returns whether the stream must still end in the usual way."""
        if fault == "stall":
            self.owner.ended.wait(60)
        elif fault == "error":
            self._event(json.dumps({"error": {"message": "out of memory", "code": 500}}))
            return True
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
        return False

    def _event(self, text: str) -> None:
        end = self.owner.dialect.newline
        data = b"data: %b%b" % (self._changed(text), 2 * end.encode())
        size = self.owner.dialect.piece_bytes or len(data)
        for begin in range(0, len(data), size):
            piece = data[begin : begin + size]
            self._write(piece)

    def _write(self, piece: bytes) -> None:
        is_chunk = self.owner.dialect.http == "1.1"
        self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunk else piece)


class _Answer:
    """The reply to one request, written in the form of its dialect."""

    def __init__(self, dialect: Dialect, api: str, body: Mapping[str, Any], number: int) -> None:
        """number: see TokenServer.came."""
        self._dialect, self._chat = dialect, api.startswith("chat")
        for field, is_known in (
            ("return_token_ids", dialect.ids),
            ("stream_options", dialect.stream_options),
        ):
            if field in body and not is_known:
                raise Refused(f"Unexpected keys in the request: {{'{field}'}}")
        if body["model"] != MODEL:
            raise Refused(f"the model {body['model']!r} does not exist")
        prompt = body["messages" if self._chat else "prompt"]
        if not dialect.texts and (self._chat or isinstance(prompt, str)):
            raise Refused("the model has no vocabulary")
        self._prompt_tokens = len(prompt) + dialect.begin
        most = body.get("max_tokens", DEFAULT_TOKENS)
        own = dialect.tokens if not body.get("ignore_eos") else None
        right = ids_of(prompt, min(most, own or most))
        self.ask = Ask(body, prompt, number, right, most)
        self.ids = dialect.reply(self.ask)
        self.wait_s = dialect.wait_s(self.ask) if dialect.wait_s else dialect.first_s
        self._about = {"model": dialect.model or MODEL, **dialect.about(self.ask)}
        self._finish = "length" if len(self.ids) == most else "stop"
        if dialect.finish != Dialect.finish and number:
            self._finish = dialect.finish or ""
        self._wants_ids = bool(body.get("return_token_ids"))
        self._logs_ids = dialect.logs_ids and bool(body.get("logprobs"))
        options = body.get("stream_options") or {}
        self._usage = dialect.usage
        if dialect.stream_options and not options.get("include_usage"):
            self._usage = "none"
        if self._usage == "chunk" and not options.get("continuous_usage_stats"):
            self._usage = "last"

    def _counts(self, tokens: int) -> dict[str, Any]:
        counts = {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": tokens * self._dialect.factor,
        }
        if cached := self._dialect.cached:
            return {**counts, "prompt_tokens_details": {"cached_tokens": cached}}
        return counts

    def whole(self) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": self._finish}
        text = text_of(self.ids)
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        self._add_ids(choice, self.ids)
        told = {} if self._dialect.usage == "none" else {"usage": self._counts(len(self.ids))}
        return {**self._about, "choices": [choice], **told}

    def chunks(self) -> Iterator[Chunk]:
        if self._chat and self._dialect.role_chunk:
            delta = {"role": "assistant", "content": ""}
            yield self._chunk({"delta": delta}, 0), False
        if (lead := self._dialect.lead) is not None:
            yield (
                self._chunk({"delta": {"content": lead}} if self._chat else {"text": lead}, 1),
                False,
            )
        step = self._dialect.per_chunk
        for begin in range(0, len(self.ids), step):
            ids = self.ids[begin : begin + step]
            text = text_of(ids)
            choice: dict[str, Any] = {"delta": {"content": text}} if self._chat else {"text": text}
            self._add_ids(choice, ids)
            if begin + step >= len(self.ids) and self._usage != "finish":
                choice["finish_reason"] = self._finish
            yield self._chunk(choice, begin + len(ids)), True
        if self._usage == "finish":
            ending: dict[str, Any] = {"delta": {"content": ""}} if self._chat else {"text": ""}
            ending["finish_reason"] = self._finish
            yield {**self._chunk(ending, 0), "usage": self._counts(len(self.ids))}, False
        elif self._usage != "none":
            yield {**self._about, "choices": [], "usage": self._counts(len(self.ids))}, False

    def _add_ids(self, choice: dict[str, Any], ids: list[int]) -> None:
        if self._wants_ids:
            choice["token_ids"] = ids
        if self._logs_ids:
            choice["logprobs"] = {"content": [{"id": i, "logprob": -0.5} for i in ids]}

    def _chunk(self, choice: dict[str, Any], tokens: int) -> dict[str, Any]:
        told = {"usage": self._counts(tokens)} if self._usage == "chunk" else {}
        return {**self._about, "choices": [{"index": 0, **choice}], **told}
