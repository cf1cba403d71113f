"""Documents the section of result.json about the client of a server."""

from collections.abc import Mapping, Sequence

from typing_extensions import TypedDict  # pydantic reads typing's from Python 3.12 on only


class Peer(TypedDict):
    """A server that was asked."""

    url: str
    """--url."""
    address: str
    """Its IP address; empty for a Unix socket."""
    local: bool
    """Whether it runs on this machine."""


class ServerTimes(TypedDict):
    """What the server says of its own time for one request."""

    source: str
    """`Server-Timing`: medians over the header of the replies; `statistics`: means from the server's totals
    before and after the run."""
    requests: int
    """Requests that were averaged."""
    queue_ns: int
    """Ns until the model took the request up."""
    compute_ns: int
    """Ns inside the model."""
    total_ns: int
    """Ns inside the server, those two included."""


class Client(TypedDict):
    """The harness as the client of a server: could it have been the bottleneck? From the performance run."""

    peers: Sequence[Peer]
    """The servers of --url, in its order."""
    connections: int
    """Connections to each server."""
    dispatcher: str
    """`direct`: one thread sends and one receives; `inline`: LoadGen's thread does both."""
    request_timeout_s: float
    """Longest time for one request in s."""
    ceiling_per_s: float | None
    """Samples/s that this client reached before the run against a null server in another process of this machine;
    null where that failed."""
    floor_p50_ns: int | None
    """Median ns of one request alone against that null server; null where that failed."""
    no_ceiling: str
    """Why the null server was not measured; empty where it was."""
    busy_max: float | None
    """Largest share of a second in which the receiving thread did not wait; null for `inline` and under 1 s."""
    busy_seconds: float | None
    """Share of the seconds in which it was busy for more than 95 % of the time; null where `busy_max` is."""
    notice_p99_ns: int | None
    """99 % of the replies were read within so many ns of their arrival in the kernel; null without its stamps."""
    waited: int
    """Requests for which no connection was free."""
    resent: int
    """Requests sent again, because the server closed an idle connection at that moment."""
    reopened: int
    """Connections replaced because they had been idle for too long."""
    failures: Mapping[str, int]
    """Kind -> samples that failed: refused, reset, timeout, bad-reply, bad-answer, server-gone, encode."""
    server_times: ServerTimes | None
    """The server's own account; null where it gives none."""


class TokenTimes(TypedDict):
    """Percentiles of times in ns, taken from the kernel's stamps of what arrived."""

    p50: int
    """ns."""
    p90: int
    """ns."""
    p99: int
    """ns."""


class Tokens(TypedDict):
    """Tokens of the answers of a language model on a server, as its replies tell them. From the performance run."""

    answers: int
    """Answers that were read; failed samples have none."""
    input: int | None
    """Tokens of all prompts; null where the server does not tell them of each."""
    output: int | None
    """Tokens of all answers; null where the server does not tell them of each."""
    source: str
    """What `output` is counted from: `usage` of each reply, or its `token ids`; empty where it is null."""
    output_per_s: float | None
    """Tokens of the answers per s, from the first scheduled query to the last answer; null where `output` is."""
    output_mean: float | None
    """Mean tokens of an answer; null where `output` is, and without answers."""
    cached: int | None
    """Tokens of the prompts that the server had computed before; null where it does not tell them of each."""
    is_exact: bool
    """Whether the server told the tokens of each chunk of a stream, by `usage` or token ids."""
    ttft_ns: TokenTimes | None
    """Schedule -> the kernel's stamp of the first token; null without streams of known tokens."""
    tpot_ns: TokenTimes | None
    """(answer complete - first token) / (tokens - 1), of answers of two tokens and more; null where `ttft_ns` is."""
    itl_ns: TokenTimes | None
    """Between tokens: the gap between two arrivals / the tokens of the later one, once for each of these; null where
    these are unknown and `tokens_per_chunk` is above 1.25."""
    chunk_gap_ns: TokenTimes | None
    """Between arrivals: chunks that arrived at once are one. Null without streams."""
    tokens_per_chunk: float | None
    """Mean of the chunks that the server sent, without those that had none; null without streams, and where
    `output` is."""
    one_token_answers: int
    """Answers of a single token."""
    finish_reasons: Mapping[str, int]
    """Why answers ended, in the server's words -> answers: `length` at max_tokens, `stop` by the model."""
