"""Defines the protocol of remote plug-ins, which encode requests for a server and decode its replies.

A remote plug-in does not open sockets. The harness sends the request that `request` returns, records its time stamps,
and passes the reply to `answer`. Each remote plug-in therefore works with both engines of harness/wire and can be
tested without a server.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable

from harness.types import BackendSetup, Batch, Outputs

Buffer = bytes | bytearray | memoryview
"""Bytes in C order; an array's `array.data` is sent without a copy."""

Headers = tuple[tuple[str, str], ...]
"""Names and values; the harness adds Host, Content-Length and the user's --header."""


class Request(NamedTuple):
    """One HTTP request, or a unary call over gRPC.

    Requests that differ only in their body share one HTTP head for each body length. Over gRPC, the body is the
    message, and the request has no headers or method.
    """

    path: str
    """Path below the path of --url, e.g. `/v2/models/digits/infer`; over gRPC `/SERVICE/METHOD`."""
    headers: Headers = ()
    body: Sequence[Buffer] = ()
    """Parts of the body, which are sent one after another without a copy."""
    method: str = "POST"


class Reply(NamedTuple):
    """The whole reply to one request."""

    status: int
    """HTTP status, or gRPC status code: 0 is OK; with any other code, the body is the error message."""
    head: bytes
    """Status line and headers, as received; empty over gRPC."""
    body: memoryview
    """Valid only until the call that received the reply returns."""

    def header(self, name: str) -> str | None:
        """Returns the value of the first header with that name, ignoring case, or None if the reply has no such header."""
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
    """The reply does not fit the request, because its shape, type, count or number of bytes is wrong."""


class CutOff(BadAnswer):
    """The server ended the answer before it was complete, or did not report why the answer ended."""


class Sign(StrEnum):
    """Something suspicious about an answer. A single answer proves nothing, so the verdict counts the answers that show
    each sign.
    """

    FEWER = "fewer tokens than chunks with text"
    UNSEEN = "most tokens came in chunks without text"
    LATE_COUNT = "`usage` did not grow with the text"
    REPEATED = "its second half repeats at most four tokens"
    NO_ANSWER = "its reasoning ended, and no answer followed"


class Usage(NamedTuple):
    """Token counts and related facts that a reply reports with the answer. A field is None if the server does not
    report the fact.
    """

    input: int | None = None
    """Number of tokens in the prompt."""
    output: int | None = None
    """Number of tokens in the answer."""
    source: str = ""
    """Source of `output`: `usage` (from the reply) or `token ids` (counted); '' if `output` is None."""
    finish_reason: str = ""
    """Finish reason as the server reports it, e.g. `length` or `stop`."""
    cached: int | None = None
    """Number of prompt tokens that the server took from its cache."""
    contradiction: str = ""
    """Reason why the counts cannot be right, from a fixed set of texts. Any such reason makes a run INVALID."""
    doubt: str = ""
    """Reason why the counts may be wrong, from a fixed set of texts."""
    reasoning: int | None = None
    """Number of tokens of `output` that precede the answer itself."""
    signs: Sequence[Sign] = ()
    reply_id: str = ""
    """The ID that the server gave the reply; '' if it has none."""
    has_call: bool = False
    """Whether the answer calls a tool."""
    media_ns: int | None = None
    """Duration of the audio in the answer."""
    silent: int = 0
    """Number of tokens without text that follow the first text in a stream, if the request demands tokens beyond the
    natural end of the answer; otherwise 0.
    """
    texts_at: Sequence[int] = ()
    """Number of tokens so far at each chunk with text. Filled only if `silent` is not 0 and the server counts tokens.
    """


class Reader(Protocol):
    """Reads one reply of a language model.

    If the plug-in's `streams` is true, the reader is also a StreamReader and gets the reply while it arrives.
    """

    def answer(self, reply: Reply, /) -> Outputs:
        """Returns the outputs of one sample, as Remote.answer does."""

    @property
    def usage(self) -> Usage:
        """Returns the reply's token counts and related facts. Called after `answer` has returned."""

    @property
    def first_token(self) -> int | None:
        """ID of the answer's first token, once the token has arrived; None if the server does not send token IDs."""


class StreamReader(Reader, Protocol):
    """A Reader of a reply that arrives in timestamped pieces.

    The optional attribute answer_starts, an int, counts how often the answer has begun after reasoning. It is 0 while
    the model is still reasoning.
    """

    def feed(self, piece: bytes, /) -> int:
        """Takes a piece of a body with status 200, and returns the number of tokens so far. Never raises."""

    @property
    def is_exact(self) -> bool:
        """Whether the server reports the number of tokens in each chunk; if not, `feed` counts the chunks that contain
        tokens.
        """

    @property
    def chunks(self) -> int:
        """Number of chunks with tokens so far, as the server sent them; one piece may contain several chunks."""


@runtime_checkable
class HasReader(Protocol):
    """A remote plug-in whose replies report tokens. During a run, the harness uses a Reader for each reply instead of
    `answer`.
    """

    @property
    def streams(self) -> bool: ...

    def reader(self) -> Reader: ...


@runtime_checkable
class HasProbe(Protocol):
    """A Remote whose probe request for --probe-rate is smaller than the request for a sample."""

    def probe(self) -> Request:
        """Returns the smallest request that the model answers, e.g. for one token. Called once, after `open`."""


@runtime_checkable
class HasModels(Protocol):
    """A Remote whose requests may name different models of one server, e.g. LoRA adapters."""

    def model_of(self, batch: Batch, /) -> str:
        """Returns the model's name in the request for a batch of one sample."""


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
    """Maximum number of tokens that a server can count: one per byte of the prompt, plus the tokens that the server
    adds.
    """
    max_tokens: int | None
    """Maximum number of tokens in the answer; None if there is no limit."""
    ids: Sequence[int] | None = None
    """The token IDs; None if the prompt is text."""
    block_tokens: int = 0
    """Number of tokens per block of the server's prompt cache; 0 if unknown."""
    least_prompt_tokens: int = 0
    """Minimum number of tokens that a server can count; 0 if unknown."""
    min_tokens: int = 0
    """Minimum number of tokens in the answer, unless the context limit ends the answer."""
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
    """Sums over all requests that a server has answered since it started."""

    requests: int
    queue_ns: int
    """Total time before the model began."""
    compute_ns: int
    """Total time inside the model."""
    total_ns: int
    """Total time inside the server, including queue and compute time."""


@runtime_checkable
class HasTotals(Protocol):
    """A Remote whose server may report statistics."""

    def totals(self, exchange: Exchange, /) -> ServerTotals | None:
        """Returns the server's sums, or None if the server does not report statistics. Called before and after a run."""


@runtime_checkable
class HasName(Protocol):
    """A Remote whose server reports its name, which MLPerf's Network division requires of every node."""

    def name(self, exchange: Exchange, /) -> str:
        """Returns the server's name, or '' if it has none. Called before a run, and by LoadGen at the beginning and the
        end of the run.
        """


@runtime_checkable
class SharesSamples(Protocol):
    """A Remote that can send a server on this machine the position of a sample in shared memory instead of its bytes.

    The harness creates the shared memory, a region of /dev/shm. Each request contains one sample.
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

        Also called on the class, after the process that attached the region has died.
        """


@runtime_checkable
class JoinsSamples(Protocol):
    """A Remote whose requests consist of byte strings, each of which belongs to one sample.

    The harness makes the pieces when it loads a sample, and joins them when a request is due.
    """

    def pieces(self, batch: Batch, /) -> Sequence[bytes]:
        """Returns the pieces of a batch of one sample."""

    def joined(self, samples: Sequence[Sequence[bytes]], /) -> Request:
        """Returns the request for samples with these pieces, which equals the result of `request` for a batch of these
        samples.
        """


@runtime_checkable
class Remote(Protocol):
    """The protocol for a model on a server. The harness constructs it as `Remote(setup)`, in which `setup.model` is
    None.

    The harness calls `open` once in each process, before any other method. After that, any thread may call `request`
    while another thread calls `answer`. Optional attributes: signature() and outputs() as in Backend, totals(), name(),
    transports (a tuple of `http` and `grpc`; by default only `http`).
    """

    def __init__(self, setup: BackendSetup, /) -> None: ...

    def open(self, exchange: Exchange, /) -> None:
        """Reads the facts about the server that requests need, and sends a trial request if the server's dialect is
        unknown.

        Raises a ConfigError if the server does not have the model, or uses a different protocol.
        """

    def request(self, batch: Batch, /) -> Request:
        """Returns the request for a batch.

        The harness calls it either once per query, or once when it loads the sample and then reuses the request for
        every query of that sample. A call per query counts as part of the stage `send`.
        """

    def answer(self, reply: Reply, samples: int, /) -> Outputs:
        """Returns `samples` outputs, in the order of the batch. This call is timed as part of the stage `decode`.

        Raises Refused or BadAnswer.
        """

    def describe(self) -> Mapping[str, object]:
        """Describes the server, as in Backend. device begins with `remote`; precision is `unknown` if the server does
        not report it.
        """
