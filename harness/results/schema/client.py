"""Documents the section of result.json about the client of a server."""

from collections.abc import Mapping, Sequence
from typing import NotRequired

from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from harness.results.schema.performance import NotProbed, PromptProbe


class Peer(TypedDict):
    """A server that received queries."""

    url: str
    """URL from --url."""
    address: str
    """Its IP address; empty for a Unix socket."""
    local: bool
    """Whether it runs on this machine."""
    name: str
    """Name that the server reported before the run; empty without --qdl."""
    round_trip_ns: int | None
    """Time in ns to get the name; null without --qdl."""


class ServerTimes(TypedDict):
    """Time that the server reports for one request."""

    source: str
    """`Server-Timing`: medians over the replies' headers; `statistics`: means from the server's totals
    before and after the run."""
    requests: int
    """Requests that were averaged."""
    queue_ns: int
    """Time in ns until the model started on the request."""
    compute_ns: int
    """Time in ns inside the model."""
    total_ns: int
    """Time in ns inside the server, including `queue_ns` and `compute_ns`."""


class Client(TypedDict):
    """The harness as the client of a server in the performance run: shows whether it was the bottleneck."""

    peers: Sequence[Peer]
    """The servers in the order of --url."""
    sut_name: str
    """Name of the servers, which LoadGen requested at the end of the run; empty without --qdl."""
    connections: int
    """Connections to each server; for gRPC, calls in flight on one connection."""
    dispatcher: str
    """`direct`: one thread sends and one receives; `inline`: LoadGen's thread does both."""
    request_timeout_s: float
    """Longest time for one request in s."""
    ceiling_per_s: float | None
    """Samples/s that this client reached before the run with a null server in a separate process on this machine;
    null if the measurement failed."""
    floor_p50_ns: int | None
    """Median time in ns of a single request to the null server; null if the measurement failed."""
    no_ceiling: str
    """Why the null server was not measured; empty if it was measured."""
    busy_max: float | None
    """Largest share of a second in which the receiving thread did not wait; null for `inline` and in runs under 1 s."""
    busy_seconds: float | None
    """Share of seconds in which the receiving thread was busy for more than 95 % of the time; null if `busy_max` is
    null."""
    notice_p99_ns: int | None
    """99th percentile of the time in ns from a reply's arrival in the kernel until it was read; null without kernel
    stamps."""
    no_notice: str
    """Why the kernel stamps and the stage `notice` are missing; empty if they are not."""
    waited: int
    """Requests for which no connection was free."""
    resent: int
    """Requests sent again because the server had just closed the idle connection."""
    reopened: int
    """Connections replaced because they had been idle for too long."""
    replies_per_connection: int | None
    """Number of replies after which the server closes a connection without announcing it; null if it does not do so."""
    outage_s: float
    """Longest time in s in which a server accepted no connection before it accepted one again; 0 without an outage."""
    failures: Mapping[str, int]
    """Kind -> samples that failed: refused, reset, timeout, bad-reply, bad-answer, server-gone, encode."""
    json_ns: int | None
    """Median time in ns to encode a request and decode its reply; null unless tensors are sent as JSON."""
    server_times: ServerTimes | None
    """Times that the server reports; null if it reports none."""


class OtherSeries(TypedDict):
    """A series of --server-metric in LoadGen's window."""

    first: float
    """First reading."""
    last: float
    """Last reading. For a counter, last - first is the growth."""
    largest: float
    """Largest reading."""


class Servers(TypedDict):
    """The servers' Prometheus metrics, read once per second in LoadGen's window, from server.csv: the largest
    reading, or the growth of a counter. A value that the servers do not report is null. docs/remote.md names the
    servers that are known; harness/wire/server_series.yaml has the names of their series.
    """

    rows: int
    """Rows of server.csv. Each row covers all servers."""
    absent: str
    """Why server.csv is missing; empty if it exists."""
    running_requests_max: float | None
    """Requests that ran at the same time (e.g. `vllm:num_requests_running`)."""
    waiting_requests_max: float | None
    """Requests that waited in the servers (e.g. `sglang:num_queue_reqs`)."""
    kv_cache_share_max: float | None
    """Share in use of the fullest key-value cache, in [0, 1] (e.g. `vllm:kv_cache_usage_perc`)."""
    gpu_share_max: float | None
    """Share of time in which the busiest GPU worked, in [0, 1] (`nv_gpu_utilization`)."""
    answered_requests: float | None
    """Answered requests, also from other clients (e.g. `vllm:request_success_total`)."""
    prompt_tokens: float | None
    """Tokens of prompts (e.g. `vllm:prompt_tokens_total`)."""
    generated_tokens: float | None
    """Tokens of answers (e.g. `vllm:generation_tokens_total`)."""
    cached_tokens: float | None
    """Tokens of prompts that a server had computed before (e.g. `vllm:prefix_cache_hits_total`)."""
    cache_queried_tokens: float | None
    """Tokens of prompts that a server looked up in its cache (`vllm:prefix_cache_queries_total`)."""
    cache_hit_share: float | None
    """`cached_tokens` / `cache_queried_tokens`, or / `prompt_tokens` if a server reports no lookups."""
    preemptions: float | None
    """Requests whose work was discarded for lack of memory (e.g. `vllm:num_preemptions_total`)."""
    drafts: float | None
    """Steps of speculative decoding that had a draft (e.g. `vllm:spec_decode_num_drafts_total`)."""
    drafted_tokens: float | None
    """Tokens in drafts (e.g. `vllm:spec_decode_num_draft_tokens_total`)."""
    accepted_tokens: float | None
    """Drafted tokens that the model accepted (e.g. `vllm:spec_decode_num_accepted_tokens_total`)."""
    acceptance_share: float | None
    """`accepted_tokens` / `drafted_tokens`."""
    acceptance_length: float | None
    """Tokens per step with a draft: 1 + `accepted_tokens` / `drafts`; else the server's largest
    `sglang:spec_accept_length`."""
    acceptance_by_position: list[float] | None
    """Share of the drafts with an accepted token at this position, in the order of the positions."""
    inferences: float | None
    """Samples computed (`nv_inference_count`)."""
    executions: float | None
    """Batches computed (`nv_inference_exec_count`)."""
    batch_mean: float | None
    """Samples per batch: `inferences` / `executions`."""
    series: dict[str, OtherSeries]
    """Series of --server-metric that the servers reported, by name."""


class LoadHost(TypedDict):
    """One of the hosts that shared the load."""

    name: str
    """`local-N`: a process of this machine; else the address of the host."""
    queries: int
    """Queries in the host's share of the schedule."""
    answered: int
    """Answered queries, including failed queries."""
    per_s: float | None
    """Answers per s, from the first query of the run to the host's last answer; null without answers."""
    p50_ns: int | None
    """Median latency of the host's queries in ns; null without answers."""
    p99_ns: int | None
    """99th percentile of the latency in ns; null without answers."""
    start_skew_ns: int | None
    """Delay of the host's first query in ns, not counting the error of its clock."""
    clock_offset_ns: int
    """Lead of the host's clock over the coordinator's in ns; 0 for a process of this machine."""
    clock_error_ns: int
    """Largest error of the offset in ns: half of the shortest round trip of the pings."""
    clock_drift_ns: int | None
    """Lead in ns that the host's clock gained over the coordinator's clock during the run; null for a process of
    this machine."""
    busy_max: float | None
    """The host's `busy_max`, defined as in `client`."""
    ceiling_per_s: float | None
    """The host's `ceiling_per_s`, defined as in `client`. All hosts measure it at the same time."""
    lost: str
    """Why the host was lost, which ended the run; empty if it was not lost."""


class Witness(TypedDict):
    """The coordinator's own queries, in addition to the schedule, in a run with load hosts on other machines."""

    queries: int
    """Queries that the coordinator sent."""
    answered: int
    """Queries that did not fail."""
    p50_ns: int | None
    """Median time in ns from sending a query to the arrival of its reply; null without answers."""
    p99_ns: int | None
    """99th percentile of the time in ns from sending a query to the arrival of its reply; null without answers."""


class JudgedSlo(TypedDict):
    """One SLO, judged by the journal."""

    slo: str
    """The SLO in the notation of --slo."""
    value_ns: int | None
    """The percentile in ns, without failures; null for `itl`: only late tokens are counted."""
    late: int
    """Number of the `of` items that took longer than the bound, or failed."""
    of: int
    """Number of items: queries; answers for `ttft`; answers of several or of an unknown number of tokens for `tpot`; further
    tokens for `itl`.
    """
    met: bool
    """Whether the percentile is within the bound. The verdict may require more queries to be certain."""
    unknown: NotRequired[int]
    """Number of the `of` answers whose tokens nobody counted: none of them is known to be in time. Only if above 0."""


class Goodput(TypedDict):
    """Queries that met every SLO and did not fail, from the journal of the performance run."""

    per_s: float | None
    """Queries per s that met every SLO: their share of the completed rate; null if the run took no time."""
    share: float
    """Share of all queries."""
    slos: Sequence[JudgedSlo]
    """The SLOs in the order of --slo."""


class TokenTimes(TypedDict):
    """Percentiles of times in ns, from the kernel's stamps of arrivals."""

    p50: int
    """ns."""
    p90: int
    """ns."""
    p99: int
    """ns."""


class TokenBounds(TypedDict):
    """Bounds that LoadGen applies to an official Server run of a language task, from its log."""

    percentile: str
    """p50, p90 or p99, for both times. The rules require p99."""
    ttft_ns: int
    """Bound of `ttft_ns`."""
    tpot_ns: int
    """Bound of `tpot_ns`."""


class LoadGenTokens(TypedDict):
    """LoadGen's measurements of tokens. The harness reports a first token to LoadGen when it is read."""

    ttft_ns: TokenTimes | None
    """Time from the schedule to the report of the first token to LoadGen."""
    tpot_ns: TokenTimes | None
    """Time from the first token to the whole answer, divided by the tokens minus one; null if an answer had a single
    token or failed: LoadGen then has no such number."""
    tokens_per_s: float | None
    """Tokens of the answers per s, until the last issued query was answered; null if `tpot_ns` is null."""
    bounds: TokenBounds | None
    """Bounds of the times; null except in an official Server run. `goodput` has the SLOs of a quick run."""


class ChunkGaps(TypedDict):
    """Times between arrivals, with OpenTelemetry's boundaries of generative AI."""

    bounds_ns: list[int]
    """Upper boundaries in ns, inclusive."""
    counts: list[int]
    """Gaps up to each boundary and above the previous one; the last number counts gaps above all boundaries."""
    sum_ns: int
    """Sum of the gaps in ns."""


class ItlAtPosition(TypedDict):
    """Time between tokens, for the tokens at some positions in their answers."""

    first: int
    """Place of the first of these tokens, from 1."""
    last: int
    """Place of the last of these tokens. A chunk counts at its last token."""
    tokens: int
    """Tokens at these places."""
    p50_ns: int
    """Median in ns, as in `itl_ns`."""
    p99_ns: int
    """99th percentile in ns."""


class GapsSection(TypedDict):
    """The keys of `Tokens` that are missing without gaps."""

    chunk_gaps: NotRequired[ChunkGaps]
    itl_by_position: NotRequired[list[ItlAtPosition]]


class Tokens(TypedDict):
    """Tokens of a language model's answers in the performance run, as reported in a server's replies, or as counted if
    the model runs here.
    """

    answers: int
    """Answers that were read; failed samples have none."""
    input: int | None
    """Tokens of all prompts; null without answers, or if the server does not report the tokens of each prompt."""
    output: int | None
    """Tokens of all answers; null without answers, or if the server does not report the tokens of each answer."""
    source: str
    """Source of `output`: `usage` of each reply, or its `token ids`; `the engine` for a model that runs here; empty if
    `output` is null."""
    output_per_s: float | None
    """Tokens of the answers per s, from the first scheduled query to the last answer; null if `output` is null."""
    output_mean: float | None
    """Mean tokens per answer; null if `output` is null."""
    cached: int | None
    """Prompt tokens that the server had computed before; null if it does not report them for each prompt."""
    cached_answers: int
    """Answers for which the server reports that it had computed a part of the prompt before."""
    distinct_prompts: int
    """Different samples among the answers. LoadGen draws with replacement, so a prompt may be sent several times, and a
    server that keeps prompts then answers it faster."""
    reusable: int | None
    """Prompt tokens that an unlimited cache could have kept from earlier prompts of the run, in whole blocks of
    `cache_block_tokens`: `cached` should be as large. Null if prompts are texts, whose tokens are unknown, or if their
    history is live."""
    cache_block_tokens: int | None
    """--backend-option cache_block; null if `reusable` is null."""
    bodies_sha256: str | None
    """SHA-256 of the SHA-256 digests of all request bodies, in the order of issue; in sessions, session by session in the
    order in which they began. Two runs with equal digests have sent the same bytes. Null if the history is live."""
    reasoning: int | None
    """Tokens of `output` that precede the answers themselves (`reasoning_tokens`); null if no reply reports them."""
    compared_prompts: int
    """Prompts for which the server's token count was compared with the ids that were sent."""
    changed_prompts: int
    """Prompts for which the server's token count differs from the ids that were sent."""
    varied_prompts: int
    """Answers for which the server's count of prompt tokens differs from its first count of the same prompt."""
    long_prompts: int
    """Prompts with an impossible count from the server: more tokens than bytes, plus 16, or 1,024 for a chat."""
    long_answers: int
    """Prompts with an answer that has more tokens, by the server's count, than the `max_tokens` that was sent."""
    contradictions: Mapping[str, int]
    """Cause -> answers whose counts cannot be right."""
    doubts: Mapping[str, int]
    """Cause -> answers whose counts may not be right."""
    signs: Mapping[str, int]
    """Sign of a dishonest server -> answers that have it. One answer with a sign proves nothing."""
    repeated_answers: int
    """Answers to prompts that were answered before in the run."""
    varied_answers: int
    """`repeated_answers` that begin differently from the first answer to the prompt."""
    alike_prompts: int
    """Different prompts whose long answers are equal."""
    prompt_probe: PromptProbe | NotProbed | None
    """Whether the server answered repeated prompts faster, as measured with requests after the run; null without a
    server."""
    several_token_answers: int | None
    """Streams of two or more tokens; null without streams."""
    at_once_answers: int | None
    """Streams of two or more tokens that all came in one chunk; null without streams."""
    is_exact: bool
    """Whether the server reported the tokens of each chunk in a stream, by `usage` or token ids."""
    ttft_ns: TokenTimes | None
    """Time from the schedule to the kernel's stamp of the first token, or to the end of its step if the model runs
    here; null without streams."""
    answer_ttft_ns: TokenTimes | None
    """Time from the schedule to the first token after the model's reasoning; null if no stream had reasoning. Answers
    that ended within their reasoning do not count."""
    tpot_ns: TokenTimes | None
    """(answer complete - first token) / (tokens - 1), for answers of two or more tokens; null if `ttft_ns` is null, or
    if no answer's tokens are known."""
    itl_ns: TokenTimes | None
    """Time between tokens: the gap between two arrivals / the tokens of the later arrival, once per token; null if
    those tokens are unknown and `tokens_per_chunk` is above 1.25 or below 0.8."""
    second_gap_ns: TokenTimes | None
    """Time from the first to the second arrival, for streams with four or more arrivals; null without such streams."""
    chunk_gap_ns: TokenTimes | None
    """Time between arrivals. Chunks that arrived at once count as one. Null without streams."""
    chunk_gaps: NotRequired[ChunkGaps]
    """`chunk_gap_ns` as a histogram; missing without streams, and in runs of older versions."""
    itl_by_position: NotRequired[list[ItlAtPosition]]
    """`itl_ns` by the position of the later token in its answer; missing if `itl_ns` is null."""
    loadgen: LoadGenTokens | None
    """LoadGen's measurements of these times; null in Offline, and if neither an SLO nor a rule bounds them."""
    tokens_per_chunk: float | None
    """Mean tokens per chunk from the server, without empty chunks; null without streams, or if `output` is null."""
    one_token_answers: int
    """Answers of a single token."""
    finish_reasons: Mapping[str, int]
    """Server's reason for the end of an answer -> answers: `length` at max_tokens, `stop` by the model, empty if the
    server reports no reason."""


class TurnTimes(TypedDict):
    """The turns at one place in their sessions."""

    answers: int
    """Turns that were answered and did not fail."""
    latency_ns: TokenTimes | None
    """Time from the due time to the answer; null without answers."""
    ttft_ns: TokenTimes | None
    """Time from the due time to the first token; null without streams."""
    tpot_ns: TokenTimes | None
    """Time per further token, defined as in `tokens`; null without streams or without answers of several tokens."""


class TokenRates(TypedDict):
    """Percentiles of tokens/s: one in ten sessions is slower than `p10`."""

    p50: float
    """Tokens/s."""
    p10: float
    """Tokens/s."""
    p1: float
    """Tokens/s."""


class Sessions(TypedDict):
    """The sessions of a dataset of sessions in a Server run. A turn is due when the answers that it waits for have
    arrived and its delay is over.
    """

    begun: int
    """Sessions with at least one answer."""
    complete: int
    """Sessions whose turns were all answered."""
    broken: int
    """Sessions with a turn that failed; their further turns were not sent."""
    cut: int
    """Sessions that the end of the run cut short."""
    turns_mean: float
    """Mean number of answered turns per session."""
    length_ns: TokenTimes | None
    """Time from the first turn's due time to the last answer of complete sessions; null without a complete session."""
    busy_ns: TokenTimes | None
    """Time in which a session waited for answers: `length_ns` without `idle_ns`; null without a complete session."""
    idle_ns: TokenTimes | None
    """Time of a session in which no turn was due or in flight: delays of persons and tools; null without a
    complete session."""
    idle_share: float | None
    """Mean share of `length_ns` in which no turn was due or in flight."""
    tokens_per_s: TokenRates | None
    """Tokens/s of one user: the tokens of a session's answers / its `busy_ns`, over complete sessions; null without a
    complete session, or without streams."""
    send_lag_ns: TokenTimes
    """Time from a turn's due time until the turn was sent: the cost of the harness and of waiting for a connection."""
    broken_at: Mapping[str, int]
    """Place of the failed turn in its session, from 0 -> sessions."""
    turns: list[TurnTimes]
    """Times by the turn's position in its session, in the order of the due times; at most 100 positions."""


class Probes(TypedDict):
    """Small requests at random times during the load, on separate connections. They show how long other clients wait. A
    probe of a language model asks for one token.
    """

    rate_per_s: float
    """Rate from --probe-rate."""
    sent: int
    """Probes that were due before the load's last answer."""
    answered: int
    """Probes that were answered."""
    failed: int
    """Probes that were refused, were cut off or got a wrong answer. They do not make the run INVALID."""
    unanswered: int
    """Probes without an answer within 10 s after the load."""
    latency_ns: TokenTimes | None
    """Time from the due time to the whole answer; null without answers."""
    first_token_ns: TokenTimes | None
    """Time from the due time to the first token; null without answers."""
    send_lag_ns: TokenTimes | None
    """Time from the due time until a probe was sent: the cost of the harness and of waiting for a connection."""
    alone_ns: TokenTimes | None
    """Time of at most 20 probes before the load, one after another."""


class Cancellations(TypedDict):
    """Requests whose connection the client closed before the end of the answer. They count neither as answers nor as
    failures, and all other numbers leave them out.
    """

    share: float
    """Share of the queries that --cancel names."""
    after_ns: int
    """Time of --cancel in ns, from sending the request."""
    chosen: int
    """Queries that the seed chose. Some may have been answered before their time."""
    cancelled: int
    """Requests whose connection was closed."""
    begun: int
    """Cancelled requests that had a first token."""
    tokens: int
    """Tokens (chunks, if the server does not count) that cancelled requests had received."""
    closed_after_ns: TokenTimes | None
    """Time from sending a cancelled request until its connection was closed; null without a cancelled request."""
    next_first_token_ns: TokenTimes | None
    """Time from sending to the first token (without streams: to the reply) of the requests that were sent next after a
    cancellation. Longer times than `other_first_token_ns` show that the server still worked on cancelled requests."""
    other_first_token_ns: TokenTimes | None
    """The time of `next_first_token_ns` for all other requests; null without such requests."""


class OfModel(TypedDict):
    """The requests to one model or adapter."""

    model: str
    """Name in the requests."""
    requests: int
    """Answered requests, including failed ones."""
    share: float
    """Share of all answered requests."""
    failed: int
    """Requests that failed."""
    tokens: int | None
    """Tokens of the answers; null if they are unknown."""
    tokens_per_s: float | None
    """`tokens` per s, from the first scheduled query of the run to its last answer; null if `tokens` is null."""
    user_tokens_per_s: float | None
    """Mean over the answers of tokens / latency: the speed that one user sees; null if `tokens` is null."""
    latency_ns: TokenTimes | None
    """Time from the due time to the answer; null without answers."""
    ttft_ns: TokenTimes | None
    """Time from the due time to the first token; null without streams."""
    tpot_ns: TokenTimes | None
    """Time per further token; null without streams of several tokens."""


class ByModel(TypedDict):
    """The answers of a run by the model or adapter that the requests name, and how equally they are served."""

    models: list[OfModel]
    """The models, by name."""
    slowest: str
    """The model with the longest time of the kind in `compared`; empty if a model has no answers."""
    slowest_ratio: float | None
    """Time of the slowest model divided by the time of the fastest model; null if `slowest` is empty."""
    compared: str
    """The compared time: `ttft_ns p90`, or `latency_ns p90` without streams."""
    fairness: float | None
    """Jain's index of `user_tokens_per_s`, or of 1 / mean latency if tokens are unknown: 1 if all models are equally
    fast, 1 / (number of models) if one model is much faster than all others; null if a model has no answers."""


class Media(TypedDict):
    """Sound that was transcribed or spoken, compared with the server's time for it. Failed requests do not count."""

    of: str
    """`requests` (transcription) or `answers` (speech)."""
    seconds: float
    """Duration of all sound in s."""
    per_s: float | None
    """Seconds of sound per s, from the first scheduled query to the last answer; null if this took no time."""
    real_time_factor: float
    """Sum of the latencies / duration of the sound: below 1, an answer takes less time than its sound."""


class RampStep(TypedDict):
    """The queries that were due at one rate."""

    rate_per_s: float
    """Rate in queries/s."""
    holds: bool
    """Whether the rate was held; otherwise it was a step of the ramp."""
    queries: int
    """Answered queries."""
    share: float | None
    """Share that met every SLO and did not fail; null without answers."""
    share_low: float | None
    """Lower end of the share's interval (Wilson, 95 %)."""
    share_high: float | None
    """Upper end of the interval."""
    p50_ns: int | None
    """Median latency in ns."""
    p99_ns: int | None
    """99th percentile of the latency in ns."""
    broken: bool
    """Whether the step was shown to miss an SLO: with 95 % confidence, the share of answers in time is too small."""


class Ramp(TypedDict):
    """A run that raised its rate until an SLO broke, and then held a rate below it (--arrivals ramp:RATE). All other
    numbers of the result, except the client's, describe the last hold.
    """

    held_per_s: float
    """Rate of the last hold in queries/s."""
    held: bool
    """True unless the last hold was shown to miss an SLO."""
    broke_per_s: float | None
    """Lowest rate that was shown to miss an SLO; null if none was."""
    holds: int
    """Number of holds. Every hold before the last one missed an SLO."""
    steps: list[RampStep]
    """The steps and holds in order."""
