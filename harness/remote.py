"""Defines the protocol of remote plug-ins: they encode requests for a server and decode its replies.

A remote plug-in opens no socket. The harness sends what `request` returns, stamps it, and hands what came
back to `answer`. So each remote plug-in gets both engines of harness/wire, and is tried without a server.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from harness.types import BackendSetup, Batch, Outputs

Buffer = bytes | bytearray | memoryview
"""Bytes in C order; `array.data` is an array's, sent from where they lie."""

Headers = tuple[tuple[str, str], ...]
"""Names and values; Host, Content-Length and the user's --header are added by the harness."""


class Request(NamedTuple):
    """One HTTP request, or a unary call over gRPC.

    Requests that differ only in their body share one head, made once a length. Over gRPC the body is the
    message, and there are neither headers nor methods.
    """

    path: str
    """Below the path of --url, e.g. `/v2/models/digits/infer`; of gRPC `/SERVICE/METHOD`."""
    headers: Headers = ()
    body: Sequence[Buffer] = ()
    """Parts, sent one after another without a copy."""
    method: str = "POST"


class Reply(NamedTuple):
    """The whole reply to one request."""

    status: int
    """Over gRPC the code that the server gave: 0 is OK, and with another one the body is its text."""
    head: bytes
    """Status line and headers, as they came; empty over gRPC."""
    body: memoryview
    """Valid until the call that got it returns."""

    def header(self, name: str) -> str | None:
        """The value of the first header of that name, in any case; None where the reply has none."""
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.strip().lower() == name.lower().encode():
                return value.strip().decode("latin-1")
        return None


class Refused(Exception):
    """The server answered without a result: an HTTP error, or an error inside a reply."""

    def __init__(self, status: int, text: str) -> None:
        """text: what the server said; its first 300 characters are kept."""
        super().__init__(f"the server answered {status}: {text[:300]}")
        self.status = status


class BadAnswer(ValueError):
    """The reply is not what was asked for: another shape, type or count, or bytes too many or too few."""


class CutOff(BadAnswer):
    """The server ended the answer before it was whole, or does not say why it ended."""


class Usage(NamedTuple):
    """Token facts that a reply reports beside the answer. None: the server does not report the fact."""

    input: int | None = None
    """Tokens of the prompt."""
    output: int | None = None
    """Tokens of the answer."""
    source: str = ""
    """Source of `output`: `usage` of the reply, or the number of its `token ids`; '' if `output` is None."""
    finish_reason: str = ""
    """In the server's words, e.g. `length` or `stop`."""
    cached: int | None = None
    """Tokens of the prompt that the server had computed before."""
    contradiction: str = ""
    """Why the counts cannot be right, one of a few texts: it makes a run INVALID."""
    doubt: str = ""
    """Why they may not be right, one of a few texts."""


class Reader(Protocol):
    """Reads one reply of a language model.

    Where the plug-in's `streams` is true, it is also a StreamReader, and gets the reply while it arrives.
    """

    def answer(self, reply: Reply, /) -> Outputs:
        """Returns the outputs of one sample, like Remote.answer."""

    @property
    def usage(self) -> Usage:
        """Once `answer` has returned."""

    @property
    def first_token(self) -> int | None:
        """Id of the answer's first token, once it has come; None if the server sends no ids."""


class StreamReader(Reader, Protocol):
    """A Reader of a reply that arrives in pieces, each with a stamp."""

    def feed(self, piece: bytes, /) -> int:
        """Takes a piece of the body of a reply of status 200; returns the tokens so far. Raises nothing."""

    @property
    def is_exact(self) -> bool:
        """Whether the server reports the tokens of each chunk; if not, `feed` counts the chunks that have tokens."""

    @property
    def chunks(self) -> int:
        """Chunks with tokens so far, as the server sent them; several of them may arrive in one piece."""


@runtime_checkable
class HasReader(Protocol):
    """A remote plug-in whose replies report tokens. In the run, a reader of each reply replaces `answer`."""

    @property
    def streams(self) -> bool: ...

    def reader(self) -> Reader: ...


class Sent(NamedTuple):
    """Token numbers in the request of one prompt."""

    prompt_tokens: int | None
    """Token ids of the prompt; None where it is a text."""
    most_prompt_tokens: int
    """Tokens that a server can count of it, at most: the bytes of the prompt, and what it puts around it."""
    max_tokens: int | None
    """The most tokens of the answer; None without a bound."""


@runtime_checkable
class HasSent(Protocol):
    """A Remote whose server counts tokens."""

    def sent(self, batch: Batch, /) -> Sent:
        """Returns the token numbers of a batch of one sample."""


Exchange = Callable[[Request], Reply]
"""Sends one request and waits for its reply. Raises a ConfigError where the server cannot be reached."""


class ServerTotals(NamedTuple):
    """Sums since a server's start, over the requests that it answered."""

    requests: int
    queue_ns: int
    """Until the model took them up."""
    compute_ns: int
    """Inside the model."""
    total_ns: int
    """Inside the server, the two above included."""


@runtime_checkable
class HasTotals(Protocol):
    """A Remote whose server may have statistics."""

    def totals(self, exchange: Exchange, /) -> ServerTotals | None:
        """None where the server has none. Called before and after a run."""


@runtime_checkable
class HasName(Protocol):
    """A Remote whose server reports its name, which MLPerf's Network division asks of every node."""

    def name(self, exchange: Exchange, /) -> str:
        """Returns the name, '' if the server has none. Called before a run, and by LoadGen at its begin and its end."""


@runtime_checkable
class SharesSamples(Protocol):
    """A Remote that can name samples in memory that this machine's server reads, instead of sending them.

    The harness makes the memory, a region of /dev/shm, and each request has one sample.
    """

    @property
    def shares(self) -> bool:
        """Whether the options ask for it."""

    def parts(self, batch: Batch, /) -> Sequence[Buffer]:
        """The bytes of a sample as the server reads them, an input each."""

    def request_at(self, region: str, batch: Batch, offset: int, /) -> Request:
        """The request for a sample whose parts follow each other from `offset` on."""

    @staticmethod
    def attach(region: str, size_bytes: int, transport: str, /) -> Request:
        """Makes the server map the region. transport: http or grpc."""

    @staticmethod
    def detach(region: str, transport: str, /) -> Request:
        """The opposite; asked of the class, too, where the process that attached has died."""


@runtime_checkable
class Remote(Protocol):
    """A protocol for asking a model on a server. Built as `Remote(setup)`; `setup.model` is None.

    `open` is called once in each process, before anything else. Then any thread may call `request`, while
    another thread calls `answer`. Optional attributes: signature() and outputs() as in Backend, totals(),
    name(), transports (a tuple of `http` and `grpc`; without it `http` alone).
    """

    def __init__(self, setup: BackendSetup, /) -> None: ...

    def open(self, exchange: Exchange, /) -> None:
        """Ask the server for what the requests need, and try one where its dialect is not known.

        Raise a ConfigError where the server has no such model, or speaks another protocol.
        """

    def request(self, batch: Batch, /) -> Request:
        """The request for a batch.

        Made when the sample is loaded, and sent each time that it is asked for; or made for one query, which
        is part of the stage `send`.
        """

    def answer(self, reply: Reply, samples: int, /) -> Outputs:
        """`samples` outputs, in the order of the batch. Timed: it is part of the stage `decode`.

        Raises Refused or BadAnswer.
        """

    def describe(self) -> Mapping[str, object]:
        """Describes the server like Backend: device begins with `remote`; precision `unknown` means not reported."""
