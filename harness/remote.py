"""Defines the protocol of remote plug-ins: they encode requests for a server and decode its replies.

A remote plug-in does not open sockets. The harness sends the request that `request` returns, stamps it, and passes
the reply to `answer`. Each remote plug-in therefore works with both engines of harness/wire and can be tested
without a server.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable

from harness.types import BackendSetup, Batch, Outputs

Buffer = bytes | bytearray | memoryview
"""Bytes in C order; an array's `array.data` is sent without a copy."""

Headers = tuple[tuple[str, str], ...]
"""Names and values; Host, Content-Length and the user's --header are added by the harness."""


class Request(NamedTuple):
    """One HTTP request, or a unary call over gRPC.

    Requests that differ only in their body share one head per length. Over gRPC the body is the
    message, and there are neither headers nor methods.
    """

    path: str
    """Below the path of --url, e.g. `/v2/models/digits/infer`; over gRPC `/SERVICE/METHOD`."""
    headers: Headers = ()
    body: Sequence[Buffer] = ()
    """Parts, sent one after another without a copy."""
    method: str = "POST"


class Reply(NamedTuple):
    """The whole reply to one request."""

    status: int
    """HTTP status, or gRPC status code: 0 is OK; with any other code, the body is the error message."""
    head: bytes
    """Status line and headers, as they came; empty over gRPC."""
    body: memoryview
    """Valid until the call that received it returns."""

    def header(self, name: str) -> str | None:
        """Returns the value of the first header with that name, ignoring case; None if the reply has no such header."""
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.strip().lower() == name.lower().encode():
                return value.strip().decode("latin-1")
        return None


class Refused(Exception):
    """The server answered without a result: an HTTP error, or an error inside a reply."""

    def __init__(self, status: int, text: str) -> None:
        """text: the server's error message; the first 300 characters are kept."""
        super().__init__(f"the server answered {status}: {text[:300]}")
        self.status = status


class BadAnswer(ValueError):
    """The reply does not fit the request: a different shape, type or count, or too many or too few bytes."""


class CutOff(BadAnswer):
    """The server ended the answer before it was complete, or did not report why the answer ended."""


class Sign(StrEnum):
    """Something suspicious about an answer. A single answer proves nothing, so the verdict counts the answers with each
    sign.
    """

    FEWER = "fewer tokens than chunks with text"
    UNSEEN = "most tokens came in chunks without text"
    LATE_COUNT = "`usage` did not grow with the text"
    REPEATED = "its second half repeats at most four tokens"
    NO_ANSWER = "its reasoning ended, and no answer followed"


class Usage(NamedTuple):
    """Token facts that a reply reports with the answer. A field is None if the server does not report the fact."""

    input: int | None = None
    """Tokens of the prompt."""
    output: int | None = None
    """Tokens of the answer."""
    source: str = ""
    """Source of `output`: `usage` of the reply, or the number of its `token ids`; '' if `output` is None."""
    finish_reason: str = ""
    """Finish reason as the server reports it, e.g. `length` or `stop`."""
    cached: int | None = None
    """Prompt tokens that the server took from its cache."""
    contradiction: str = ""
    """Reason why the counts cannot be right, from a small set of texts; it makes a run INVALID."""
    doubt: str = ""
    """Reason why the counts may be wrong, from a small set of texts."""
    reasoning: int | None = None
    """Tokens of `output` that precede the answer itself."""
    signs: Sequence[Sign] = ()
    reply_id: str = ""
    """The server's name for the reply; '' if it has none."""
    has_call: bool = False
    """Whether the answer calls a tool."""
    media_ns: int | None = None
    """Duration of the audio in the answer."""
    silent: int = 0
    """Tokens without text after the first text of a stream whose request demands more tokens than the model needs."""
    texts_at: Sequence[int] = ()
    """In a stream as described at `silent`: number of tokens so far at each chunk with text, if the server counts them.
    """


class Reader(Protocol):
    """Reads one reply of a language model.

    If the plug-in's `streams` is true, the reader is also a StreamReader and gets the reply while it arrives.
    """

    def answer(self, reply: Reply, /) -> Outputs:
        """Returns the outputs of one sample, like Remote.answer."""

    @property
    def usage(self) -> Usage:
        """Returns the token facts of the reply. Called after `answer` has returned."""

    @property
    def first_token(self) -> int | None:
        """ID of the first token of the answer, once it has arrived; None if the server sends no token IDs."""


class StreamReader(Reader, Protocol):
    """A Reader of a reply that arrives in timestamped pieces.

    Optional attribute: answer_starts, an int. It counts how often an answer has begun after the reasoning so far; it
    is 0 while the reasoning goes on.
    """

    def feed(self, piece: bytes, /) -> int:
        """Takes a piece of a body with status 200; returns the number of tokens so far. Never raises."""

    @property
    def is_exact(self) -> bool:
        """Whether the server reports the tokens of each chunk; if not, `feed` counts the chunks that have tokens."""

    @property
    def chunks(self) -> int:
        """Number of chunks with tokens so far, as the server sent them; one piece may contain several."""


@runtime_checkable
class HasReader(Protocol):
    """A remote plug-in whose replies report tokens. In a run, a Reader of each reply replaces `answer`."""

    @property
    def streams(self) -> bool: ...

    def reader(self) -> Reader: ...


@runtime_checkable
class HasProbe(Protocol):
    """A Remote that offers a request smaller than the request for a sample, for --probe-rate."""

    def probe(self) -> Request:
        """Returns the smallest request that the model answers, e.g. for one token. Called once, after `open`."""


@runtime_checkable
class HasModels(Protocol):
    """A Remote whose requests may name different models of one server, e.g. LoRA adapters."""

    def model_of(self, batch: Batch, /) -> str:
        """Returns the model that the request for a batch of one sample names."""


@runtime_checkable
class HasMedia(Protocol):
    """A Remote that sends audio."""

    def media_ns(self, batch: Batch, /) -> int:
        """Returns the duration of the audio in a batch of one sample."""


class Sent(NamedTuple):
    """Token counts in the request for one prompt."""

    prompt_tokens: int | None
    """Number of token IDs in the prompt; None if the prompt is text."""
    most_prompt_tokens: int
    """Maximum number of tokens that a server can count: one per byte of the prompt, plus the tokens that it adds."""
    max_tokens: int | None
    """Maximum number of tokens in the answer; None if there is no limit."""
    ids: Sequence[int] | None = None
    """The token IDs; None if the prompt is text."""
    block_tokens: int = 0
    """Number of tokens per block of the server's prompt cache; 0 if unknown."""
    least_prompt_tokens: int = 0
    """Minimum number of tokens that a server can count; 0 if unknown."""
    min_tokens: int = 0
    """Minimum number of tokens in the answer, unless the context limit ends it."""
    wants_call: bool = False
    """Whether the request demands a tool call."""
    prompt_hash: int = 0
    """Hash that is equal for equal prompts; 0 if unknown."""


@runtime_checkable
class HasSent(Protocol):
    """A Remote whose server counts tokens."""

    def sent(self, batch: Batch, /) -> Sent:
        """Returns the token counts of a batch of one sample."""


Exchange = Callable[[Request], Reply]
"""Sends one request and waits for its reply. Raises a ConfigError if the server cannot be reached."""


class ServerTotals(NamedTuple):
    """Sums over the requests that a server answered since its start."""

    requests: int
    queue_ns: int
    """Time before the model began."""
    compute_ns: int
    """Time inside the model."""
    total_ns: int
    """Time inside the server, which includes queue and compute time."""


@runtime_checkable
class HasTotals(Protocol):
    """A Remote whose server may have statistics."""

    def totals(self, exchange: Exchange, /) -> ServerTotals | None:
        """Returns the server's sums; None if it has no statistics. Called before and after a run."""


@runtime_checkable
class HasName(Protocol):
    """A Remote whose server reports its name, which MLPerf's Network division requires of every node."""

    def name(self, exchange: Exchange, /) -> str:
        """Returns the server name; '' if it has none. Called before a run, and by LoadGen when it begins and ends."""


@runtime_checkable
class SharesSamples(Protocol):
    """A Remote that can send a server on this machine the position of a sample in shared memory instead of its bytes.

    The harness creates the shared memory, a region of /dev/shm. Each request has one sample.
    """

    @property
    def shares(self) -> bool:
        """Whether the options turn shared memory on."""

    def parts(self, batch: Batch, /) -> Sequence[Buffer]:
        """Returns the bytes of a sample as the server reads them, one part per input."""

    def request_at(self, region: str, batch: Batch, offset: int, /) -> Request:
        """Returns the request for a sample whose parts are contiguous and begin at `offset`."""

    @staticmethod
    def attach(region: str, size_bytes: int, transport: str, /) -> Request:
        """Returns the request that makes the server map the region. transport: http or grpc."""

    @staticmethod
    def detach(region: str, transport: str, /) -> Request:
        """Returns the request that makes the server release the region.

        Also called on the class, after the process that attached has died.
        """


@runtime_checkable
class JoinsSamples(Protocol):
    """A Remote whose requests consist of byte strings, each of which belongs to one sample.

    The harness makes the pieces of a sample when it is loaded, and joins them when a request is due.
    """

    def pieces(self, batch: Batch, /) -> Sequence[bytes]:
        """Returns the pieces of a batch of one sample."""

    def joined(self, samples: Sequence[Sequence[bytes]], /) -> Request:
        """Returns the request for samples with these pieces, which equals `request` of their batch."""


@runtime_checkable
class Remote(Protocol):
    """The protocol for a model on a server. Built as `Remote(setup)`; `setup.model` is None.

    `open` is called once in each process, before anything else. Then any thread may call `request`, while
    another thread calls `answer`. Optional attributes: signature() and outputs() as in Backend, totals(),
    name(), transports (a tuple of `http` and `grpc`; without it `http` alone).
    """

    def __init__(self, setup: BackendSetup, /) -> None: ...

    def open(self, exchange: Exchange, /) -> None:
        """Reads the server facts that requests need, and sends a trial request if the server's dialect is unknown.

        Raises a ConfigError if the server does not have the model, or uses a different protocol.
        """

    def request(self, batch: Batch, /) -> Request:
        """Returns the request for a batch.

        The harness calls it either once when the sample is loaded, and reuses the request for every query of that
        sample, or once per query. In the second case, the time is part of the stage `send`.
        """

    def answer(self, reply: Reply, samples: int, /) -> Outputs:
        """Returns `samples` outputs, in the order of the batch. Timed, as part of the stage `decode`.

        Raises Refused or BadAnswer.
        """

    def describe(self) -> Mapping[str, object]:
        """Describes the server, as in Backend. device begins with `remote`; precision `unknown` means not reported."""
