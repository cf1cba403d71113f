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
    name: str
    """Its own name, asked for before the run; empty without --qdl."""
    round_trip_ns: int | None
    """Time in ns that this took; null without --qdl."""


class ServerTimes(TypedDict):
    """The server's account of its time for one request."""

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
    sut_name: str
    """LoadGen's name of the servers, which it asked for at the end of the run; empty without --qdl."""
    connections: int
    """Connections to each server; over gRPC calls in flight, which share one connection."""
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
    """99th percentile of ns from a reply's arrival in the kernel until it was read; null without kernel stamps."""
    no_notice: str
    """Why those stamps are missing, and with them the stage `notice`; empty where they are there."""
    waited: int
    """Requests for which no connection was free."""
    resent: int
    """Requests sent again, because the server closed an idle connection at that moment."""
    reopened: int
    """Connections replaced because they had been idle for too long."""
    replies_per_connection: int | None
    """Replies after which the server closes each connection without saying so; null where it does not."""
    outage_s: float
    """Longest time in which a server took no connection, before it took one again; 0 without such a time."""
    failures: Mapping[str, int]
    """Kind -> samples that failed: refused, reset, timeout, bad-reply, bad-answer, server-gone, encode."""
    json_ns: int | None
    """Median ns in which the client encodes a request and decodes its reply; only where tensors are sent as JSON."""
    server_times: ServerTimes | None
    """The server's own account; null where it gives none."""


class Servers(TypedDict):
    """The servers' own Prometheus metrics, read once a second in LoadGen's window, from server.csv: the largest
    reading, or how much a counter grew. A value that the servers do not report is null.
    """

    rows: int
    """Rows of server.csv, each of all servers together."""
    absent: str
    """Why there is no such file; empty where there is one."""
    running_requests_max: float | None
    """Requests in work at the same time (`vllm:num_requests_running`)."""
    waiting_requests_max: float | None
    """Requests that waited in the servers (`vllm:num_requests_waiting`, `nv_inference_pending_request_count`)."""
    kv_cache_share_max: float | None
    """Share of the cache of keys and values that was taken, in [0, 1], of the fullest (`vllm:kv_cache_usage_perc`)."""
    gpu_share_max: float | None
    """Share of time in which the busiest GPU worked, in [0, 1] (`nv_gpu_utilization`)."""
    answered_requests: float | None
    """Requests, of other clients, too (`vllm:request_success_total`, `nv_inference_request_success`)."""
    prompt_tokens: float | None
    """Tokens of prompts (`vllm:prompt_tokens_total`)."""
    generated_tokens: float | None
    """Tokens of answers (`vllm:generation_tokens_total`)."""
    cached_tokens: float | None
    """Tokens of prompts that a server had computed before (`vllm:prefix_cache_hits_total`)."""
    preemptions: float | None
    """Requests whose work was thrown away for want of memory (`vllm:num_preemptions_total`)."""
    inferences: float | None
    """Samples computed (`nv_inference_count`)."""
    executions: float | None
    """Batches computed (`nv_inference_exec_count`)."""
    batch_mean: float | None
    """Samples a batch: `inferences` by `executions`."""


class LoadHost(TypedDict):
    """One of the hosts that shared the load."""

    name: str
    """`local-N`: a process of this machine; else the address of the host."""
    queries: int
    """Queries that the schedule gives it."""
    answered: int
    """Queries that were answered, failed ones included."""
    per_s: float | None
    """Answers per s, from the first query of the run to its own last answer; null without one."""
    p50_ns: int | None
    """Median latency of its queries in ns; null without one."""
    p99_ns: int | None
    """99th percentile of it in ns."""
    start_skew_ns: int | None
    """Delay of its first query in ns; its clock's error comes on top."""
    clock_offset_ns: int
    """Ns that its clock showed more than the coordinator's; 0 for a process of this machine."""
    clock_error_ns: int
    """Largest error of the offset in ns: half of the shortest round trip of its pings."""
    clock_drift_ns: int | None
    """Ns that its clock gained on the coordinator's in the run, by pings; null for a process of this machine."""
    busy_max: float | None
    """The host's `busy_max`, defined as in `client`."""
    ceiling_per_s: float | None
    """The host's `ceiling_per_s`, defined as in `client`, measured while the other hosts measured theirs."""
    lost: str
    """Why the run was ended, where this host was lost; empty otherwise."""


class Witness(TypedDict):
    """The coordinator's own queries, on top of the schedule, of a run with load hosts on other machines."""

    queries: int
    """Queries that it asked."""
    answered: int
    """Queries that did not fail."""
    p50_ns: int | None
    """Median time of the server for them, from the sending to the reply's arrival, in ns; null without one."""
    p99_ns: int | None
    """99th percentile of it in ns."""


class JudgedSlo(TypedDict):
    """One SLO, judged by the journal."""

    slo: str
    """The SLO in the notation of --slo."""
    value_ns: int | None
    """The percentile in ns, of what did not fail; null for `itl`, of which only the late ones are counted."""
    late: int
    """Number out of `of` that took longer than the bound, or failed."""
    of: int
    """Queries; for `ttft` answers, for `tpot` answers of two tokens and more, for `itl` tokens after the first."""
    met: bool
    """Whether the percentile is within the bound. The verdict may want more queries to be sure of it."""


class Goodput(TypedDict):
    """Queries that met every SLO and did not fail, from the journal of the performance run."""

    per_s: float | None
    """Such queries per s, from the first scheduled one to the last answer; null where that took no time."""
    share: float
    """Share of all queries."""
    slos: Sequence[JudgedSlo]
    """In the order of --slo."""


class TokenTimes(TypedDict):
    """Percentiles of times in ns, taken from the kernel's stamps of what arrived."""

    p50: int
    """ns."""
    p90: int
    """ns."""
    p99: int
    """ns."""


class TokenBounds(TypedDict):
    """Bounds that LoadGen applies to an official Server run of a language task, as its log has them."""

    percentile: str
    """p50, p90 or p99, of both times: the rules have p99."""
    ttft_ns: int
    """Bound of `ttft_ns`."""
    tpot_ns: int
    """Bound of `tpot_ns`."""


class LoadGenTokens(TypedDict):
    """LoadGen's measurements of tokens. The harness reports a first token to LoadGen when it is read."""

    ttft_ns: TokenTimes | None
    """Schedule -> report of the first token to LoadGen."""
    tpot_ns: TokenTimes | None
    """From there to the whole answer, divided by the tokens less one; null where an answer had a single token or
    failed: LoadGen has no such number then."""
    tokens_per_s: float | None
    """Tokens of the answers per s, until the query that was issued last was answered; null where `tpot_ns` is."""
    bounds: TokenBounds | None
    """Null in a quick run, whose SLOs are in `goodput`, and but in Server."""


class Tokens(TypedDict):
    """Tokens of a language model's answers in the performance run, as a server's replies report them, or counted if the
    model runs here.
    """

    answers: int
    """Answers that were read; failed samples have none."""
    input: int | None
    """Tokens of all prompts; null if the server does not report them for each prompt, and without answers."""
    output: int | None
    """Tokens of all answers; null if the server does not report them for each answer, and without answers."""
    source: str
    """Source of `output`: `usage` of each reply, or its `token ids`; `the engine` for a model that runs here; empty if
    `output` is null."""
    output_per_s: float | None
    """Tokens of the answers per s, from the first scheduled query to the last answer; null where `output` is."""
    output_mean: float | None
    """Mean tokens of an answer; null where `output` is."""
    cached: int | None
    """Tokens of the prompts that the server had computed before; null if it does not report them for each prompt."""
    cached_answers: int
    """Answers for which the server reports that it had computed a part of the prompt before."""
    compared_prompts: int
    """Prompts of which the tokens that the server counted were compared with the ids that were sent."""
    changed_prompts: int
    """Prompts whose counted tokens differ from the ids that were sent."""
    varied_prompts: int
    """Answers of which the server counted the prompt's tokens otherwise than at the first answer to the same prompt."""
    long_prompts: int
    """Prompts that cannot have as many tokens as the server counted: more than their bytes, and 16, or 1,024 of a chat."""
    long_answers: int
    """Prompts with an answer that has more tokens, by the server's count, than the `max_tokens` that was sent."""
    contradictions: Mapping[str, int]
    """Answers whose counts cannot be right, by why."""
    doubts: Mapping[str, int]
    """Answers whose counts may not be right, by why."""
    several_token_answers: int | None
    """Streams of two tokens and more; null without streams."""
    at_once_answers: int | None
    """Streams of two tokens and more whose tokens all came in one chunk; null without streams."""
    is_exact: bool
    """Whether the server reported the tokens of each chunk in a stream, by `usage` or token ids."""
    ttft_ns: TokenTimes | None
    """Schedule -> the kernel's stamp of the first token, or the end of its step in a model that runs here; null without
    streams."""
    tpot_ns: TokenTimes | None
    """(answer complete - first token) / (tokens - 1), of answers of two tokens and more; null where `ttft_ns` is, and
    where the tokens of no answer are known."""
    itl_ns: TokenTimes | None
    """Between tokens: the gap between two arrivals / the tokens of the later one, once for each of these; null where
    these are unknown and `tokens_per_chunk` is above 1.25 or below 0.8."""
    chunk_gap_ns: TokenTimes | None
    """Between arrivals: chunks that arrived at once are one. Null without streams."""
    loadgen: LoadGenTokens | None
    """LoadGen's measurements of these times; null in Offline, and if neither an SLO nor the rules are about them."""
    tokens_per_chunk: float | None
    """Mean of the chunks that the server sent, without those that had none; null without streams, and where
    `output` is."""
    one_token_answers: int
    """Answers of a single token."""
    finish_reasons: Mapping[str, int]
    """Why answers ended, in the server's words -> answers: `length` at max_tokens, `stop` by the model, an empty text
    if the server reports no reason."""
