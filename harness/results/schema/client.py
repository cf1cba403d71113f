"""Documents the section of result.json about the client that sends requests to a server."""

from collections.abc import Mapping, Sequence
from typing import NotRequired

from typing_extensions import TypedDict  # pydantic requires this TypedDict before Python 3.12

from harness.results.schema.performance import NotProbed, PromptProbe


class Peer(TypedDict):
    """A server to which the run sent queries."""

    url: str
    """URL from --url."""
    address: str
    """IP address of the server; empty for a Unix socket."""
    local: bool
    """Whether the server runs on this machine."""
    name: str
    """Name that the server reported before the run; empty without --qdl."""
    round_trip_ns: int | None
    """Time in ns to request the name; null without --qdl."""


class ServerTimes(TypedDict):
    """Time that the server reports for a request."""

    source: str
    """`Server-Timing`: medians over the headers of the replies. `statistics`: means from the server's totals before and
    after the run.
    """
    requests: int
    """Number of requests over which the times are averaged."""
    queue_ns: int
    """Time in ns before the model started on the request."""
    compute_ns: int
    """Time in ns inside the model."""
    total_ns: int
    """Time in ns inside the server, including `queue_ns` and `compute_ns`."""


class Client(TypedDict):
    """The harness as the client of a server in the performance run. Shows whether the client was the bottleneck."""

    peers: Sequence[Peer]
    """The servers in the order of --url."""
    sut_name: str
    """Name of the servers, which LoadGen requests at the end of the run; empty without --qdl."""
    connections: int
    """Number of connections to each server. For gRPC, number of calls in flight on one connection."""
    dispatcher: str
    """`direct`: one thread sends and one receives; `inline`: LoadGen's thread does both."""
    request_timeout_s: float
    """Time limit for one request in s."""
    ceiling_per_s: float | None
    """Samples/s that this client reached with a null server before the run; the null server ran in a separate process
    on this machine. Null if the measurement failed.
    """
    floor_p50_ns: int | None
    """Median time in ns of a single request to the null server; null if the measurement failed."""
    no_ceiling: str
    """Reason why the null server was not measured; empty if it was measured."""
    busy_max: float | None
    """Largest share of any second in which the receiving thread was busy; null for `inline`, or if the run took less
    than 1 s.
    """
    busy_seconds: float | None
    """Share of seconds in which the receiving thread was busy for more than 95 % of the time;
    null if `busy_max` is null.
    """
    notice_p99_ns: int | None
    """99th percentile of the time in ns from a reply's arrival in the kernel until the client read it; null without
    kernel timestamps.
    """
    no_notice: str
    """Reason why the kernel timestamps and the stage `notice` are missing; empty if they are present."""
    waited: int
    """Number of requests that found no free connection."""
    resent: int
    """Number of requests that were sent again because the server had just closed the idle connection."""
    reopened: int
    """Number of connections that were replaced because they had been idle for too long."""
    replies_per_connection: int | None
    """Number of replies after which the server closes a connection without notice; null for a server that keeps
    connections open.
    """
    outage_s: float
    """Longest time in s in which a server accepted no connection and then recovered; 0 without an outage."""
    failures: Mapping[str, int]
    """Number of failed samples per kind: refused, reset, timeout, bad-reply, bad-answer, server-gone, encode."""
    json_ns: int | None
    """Median time in ns to encode a request and to decode its reply; null unless tensors are sent as JSON."""
    server_times: ServerTimes | None
    """Times that the server reports; null if it does not report any."""


class OtherSeries(TypedDict):
    """A series of --server-metric within LoadGen's window."""

    first: float
    """First reading."""
    last: float
    """Last reading. The growth of a counter is last - first."""
    largest: float
    """Largest reading."""


class Servers(TypedDict):
    """The servers' Prometheus metrics, read once per second in LoadGen's window, from server.csv. A value is the
    largest reading, or the growth of a counter; it is null if the servers do not report it. docs/remote.md names the
    known servers, and harness/wire/server_series.yaml lists the names of their series.
    """

    rows: int
    """Number of rows in server.csv. Each row covers all servers."""
    absent: str
    """Reason why server.csv is missing; empty if it exists."""
    running_requests_max: float | None
    """Largest number of requests that ran at the same time (for example `vllm:num_requests_running`)."""
    waiting_requests_max: float | None
    """Largest number of requests that waited in the servers (for example `sglang:num_queue_reqs`)."""
    kv_cache_share_max: float | None
    """Largest share of a key-value cache that was in use, in [0, 1], for the fullest cache (for example
    `vllm:kv_cache_usage_perc`).
    """
    gpu_share_max: float | None
    """Largest share of time in which a GPU worked, in [0, 1], for the busiest GPU (`nv_gpu_utilization`)."""
    answered_requests: float | None
    """Number of answered requests, including requests of other clients (for example `vllm:request_success_total`)."""
    prompt_tokens: float | None
    """Number of prompt tokens (for example `vllm:prompt_tokens_total`)."""
    generated_tokens: float | None
    """Number of answer tokens (for example `vllm:generation_tokens_total`)."""
    cached_tokens: float | None
    """Number of prompt tokens that a server had computed before (for example `vllm:prefix_cache_hits_total`)."""
    cache_queried_tokens: float | None
    """Number of prompt tokens that a server looked up in its cache (`vllm:prefix_cache_queries_total`)."""
    cache_hit_share: float | None
    """`cached_tokens` / `cache_queried_tokens`; if a server reports no lookups, `cached_tokens` / `prompt_tokens`."""
    preemptions: float | None
    """Number of requests whose work was discarded because memory ran out (for example `vllm:num_preemptions_total`)."""
    drafts: float | None
    """Number of steps of speculative decoding that had a draft (for example `vllm:spec_decode_num_drafts_total`)."""
    drafted_tokens: float | None
    """Number of tokens in drafts (for example `vllm:spec_decode_num_draft_tokens_total`)."""
    accepted_tokens: float | None
    """Number of drafted tokens that the model accepted (for example `vllm:spec_decode_num_accepted_tokens_total`)."""
    acceptance_share: float | None
    """`accepted_tokens` / `drafted_tokens`."""
    acceptance_length: float | None
    """Tokens per step with a draft: 1 + `accepted_tokens` / `drafts`. If the servers do not report these counters, the
    value is the largest `sglang:spec_accept_length`.
    """
    acceptance_by_position: list[float] | None
    """Share of the drafts whose token at a position was accepted, for each position in order."""
    inferences: float | None
    """Number of computed samples (`nv_inference_count`)."""
    executions: float | None
    """Number of computed batches (`nv_inference_exec_count`)."""
    batch_mean: float | None
    """Samples per batch: `inferences` / `executions`."""
    series: dict[str, OtherSeries]
    """Series of --server-metric that the servers reported, by name."""


class LoadHost(TypedDict):
    """One of the hosts that shared the load."""

    name: str
    """`local-N` for a process on this machine; otherwise the address of the host."""
    queries: int
    """Queries in the host's share of the schedule."""
    answered: int
    """Answered queries, including failed queries."""
    per_s: float | None
    """Answers per s, from the first query of the run to the last answer that this host received;
    null without answers.
    """
    p50_ns: int | None
    """Median latency of the host's queries in ns; null without answers."""
    p99_ns: int | None
    """99th percentile of the latency in ns; null without answers."""
    start_skew_ns: int | None
    """Delay of the host's first query in ns, not including the error of the host's clock."""
    clock_offset_ns: int
    """Lead of the host's clock over the coordinator's in ns; 0 for a process on this machine."""
    clock_error_ns: int
    """Largest error of the offset in ns, which is half of the shortest round trip of the pings."""
    clock_drift_ns: int | None
    """Time in ns that the host's clock gained on the coordinator's clock during the run; null for a process on this
    machine.
    """
    busy_max: float | None
    """`busy_max` of the host, defined as in `client`."""
    ceiling_per_s: float | None
    """`ceiling_per_s` of the host, defined as in `client`. All hosts measure this rate at the same time."""
    lost: str
    """Reason why the host was lost, which ended the run; empty if it was not lost."""


class Witness(TypedDict):
    """The coordinator's own queries in a run with load hosts on other machines. These queries are sent in addition to
    the schedule.
    """

    queries: int
    """Queries that the coordinator sent."""
    answered: int
    """Number of queries that did not fail."""
    p50_ns: int | None
    """Median time in ns from the sending of a query to the arrival of its reply; null without answers."""
    p99_ns: int | None
    """99th percentile of the time in ns from the sending of a query to the arrival of its reply;
    null without answers.
    """


class JudgedSlo(TypedDict):
    """Result for one SLO, judged from the journal."""

    slo: str
    """The SLO in the notation of --slo."""
    value_ns: int | None
    """The percentile in ns, without failures; null for `itl`, which only counts late tokens."""
    late: int
    """Number of items, out of `of`, that took longer than the bound or failed."""
    of: int
    """Number of items. The items are queries; for `ttft`, answers; for `tpot`, answers with several or an unknown
    number of tokens; for `itl`, tokens after the first.
    """
    met: bool
    """Whether the percentile is within the bound. The verdict may require more queries."""
    unknown: NotRequired[int]
    """Number of answers, out of `of`, whose tokens nobody counted. These answers do not count as on time. Present only
    if above 0.
    """


class Goodput(TypedDict):
    """Queries that met every SLO and did not fail, derived from the journal of the performance run."""

    per_s: float | None
    """Queries per s that met every SLO, computed as `share` times the completed rate; null if the run took no time."""
    share: float
    """Share of all queries that met every SLO."""
    slos: Sequence[JudgedSlo]
    """The SLOs in the order of --slo."""


class TokenTimes(TypedDict):
    """Percentiles of times in ns, from the kernel's timestamps of arrivals."""

    p50: int
    """ns."""
    p90: int
    """ns."""
    p99: int
    """ns."""


class TokenBounds(TypedDict):
    """Bounds that LoadGen applies to an official Server run of a language task, as its log shows them."""

    percentile: str
    """p50, p90 or p99, used for both times. The rules require p99."""
    ttft_ns: int
    """Bound of `ttft_ns`."""
    tpot_ns: int
    """Bound of `tpot_ns`."""


class LoadGenTokens(TypedDict):
    """LoadGen's measurements of tokens.
    The harness reports a first token to LoadGen as soon as it has read the token.
    """

    ttft_ns: TokenTimes | None
    """Time from a query's scheduled time to the report of its first token to LoadGen."""
    tpot_ns: TokenTimes | None
    """Time from the first token to the whole answer, divided by the number of tokens minus one. Null if an answer had a
    single token or failed, because LoadGen then lacks this number.
    """
    tokens_per_s: float | None
    """Answer tokens per s, until the last issued query was answered; null if `tpot_ns` is null."""
    bounds: TokenBounds | None
    """Bounds of the times; null except in an official Server run. The SLOs of a quick run are in `goodput`."""


class ChunkGaps(TypedDict):
    """Histogram of the times between arrivals, with OpenTelemetry's boundaries for generative AI."""

    bounds_ns: list[int]
    """Inclusive upper boundaries in ns."""
    counts: list[int]
    """Number of gaps up to each boundary and above the previous boundary. The last number counts gaps above all
    boundaries.
    """
    sum_ns: int
    """Sum of the gaps in ns."""


class ItlAtPosition(TypedDict):
    """Time between tokens, for the tokens in a range of positions in their answers."""

    first: int
    """First position of the range, counted from 1."""
    last: int
    """Last position of the range. A chunk counts at the position of its last token."""
    tokens: int
    """Number of tokens in the range."""
    p50_ns: int
    """Median in ns, as in `itl_ns`."""
    p99_ns: int
    """99th percentile in ns."""


class GapsSection(TypedDict):
    """Keys of `Tokens` that are missing if no gaps between chunks were recorded."""

    chunk_gaps: NotRequired[ChunkGaps]
    itl_by_position: NotRequired[list[ItlAtPosition]]


class Tokens(TypedDict):
    """Tokens of a language model's answers in the performance run. The counts come from a server's replies or, if the
    harness runs the model, from the harness.
    """

    answers: int
    """Number of answers that were read. Failed samples have no answer."""
    input: int | None
    """Tokens of all prompts; null without answers, or if the server does not report the tokens per prompt."""
    output: int | None
    """Tokens of all answers; null without answers, or if the server does not report the tokens per answer."""
    source: str
    """Source of `output`. `usage` or `token ids` come from each reply; `the engine` means that the harness ran the
    model. Empty if `output` is null.
    """
    output_per_s: float | None
    """Answer tokens per s, from the first scheduled query to the last answer; null if `output` is null."""
    output_mean: float | None
    """Mean number of tokens per answer; null if `output` is null."""
    cached: int | None
    """Prompt tokens that the server had computed before; null if the server does not report them per prompt."""
    cached_answers: int
    """Number of answers for which the server reports that part of the prompt had been computed before."""
    distinct_prompts: int
    """Number of different samples among the answers. LoadGen draws with replacement, so a prompt may be sent several
    times. A server that keeps prompts then answers the repeated prompt faster.
    """
    reusable: int | None
    """Prompt tokens that an unlimited cache could have kept from earlier prompts of the run, in whole blocks of
    `cache_block_tokens`. `cached` should be equally large. Null if prompts are texts, whose tokens are unknown, or if
    the history of the prompts is live.
    """
    cache_block_tokens: int | None
    """Value of --backend-option cache_block; null if `reusable` is null."""
    bodies_sha256: str | None
    """SHA-256 of the SHA-256 digests of all request bodies. The digests are in the order of issue; in sessions, they
    are grouped by session, in the order in which the sessions began. Two runs with equal digests sent the same bytes.
    Null if the history is live.
    """
    reasoning: int | None
    """Tokens of `output` before the actual answers (`reasoning_tokens`); null if no reply reports them."""
    compared_prompts: int
    """Number of prompts for which the server's token count was compared with the token ids that were sent."""
    changed_prompts: int
    """Number of prompts for which the server's token count differs from the token ids that were sent."""
    varied_prompts: int
    """Number of answers for which the server's count of prompt tokens differs from its first count for the prompt."""
    long_prompts: int
    """Number of prompts for which the server's count is impossible. The limit is one token per byte plus 16, or plus
    1,024 for a chat.
    """
    long_answers: int
    """Number of prompts with an answer that has more tokens, by the server's count, than the requested `max_tokens`."""
    contradictions: Mapping[str, int]
    """Number of answers with wrong token counts, per cause."""
    doubts: Mapping[str, int]
    """Number of answers with token counts that may be wrong, per cause."""
    signs: Mapping[str, int]
    """Number of answers with a sign of a dishonest server, per sign. A single answer does not prove anything."""
    repeated_answers: int
    """Number of answers to prompts that the run had already answered."""
    varied_answers: int
    """Number of `repeated_answers` that begin differently from the first answer to the same prompt."""
    alike_prompts: int
    """Number of different prompts whose long answers are equal."""
    prompt_probe: PromptProbe | NotProbed | None
    """Whether the server answered repeated prompts faster, measured with requests after the run;
    null without a server.
    """
    several_token_answers: int | None
    """Number of streams with two or more tokens; null without streams."""
    at_once_answers: int | None
    """Number of streams with two or more tokens that all came in one chunk; null without streams."""
    is_exact: bool
    """Whether the server reported the number of tokens in each chunk of a stream, by `usage` or token ids."""
    ttft_ns: TokenTimes | None
    """Time from a query's scheduled time to the kernel's timestamp of the first token. If the harness runs the model,
    the time ends with the step that made the token. Null without streams.
    """
    answer_ttft_ns: TokenTimes | None
    """Time from a query's scheduled time to the first token after the model's reasoning; null if no stream had
    reasoning. Excludes answers that ended during the reasoning.
    """
    tpot_ns: TokenTimes | None
    """(answer complete - first token) / (tokens - 1), for answers of two or more tokens; null if `ttft_ns` is null, or
    if the tokens of every answer are unknown.
    """
    itl_ns: TokenTimes | None
    """Time between tokens: the gap between two arrivals divided by the number of tokens in the later arrival, counted
    once per token. Null if these tokens are unknown and `tokens_per_chunk` is above 1.25 or below 0.8.
    """
    second_gap_ns: TokenTimes | None
    """Time from the first to the second arrival, for streams with four or more arrivals; null without such streams."""
    chunk_gap_ns: TokenTimes | None
    """Time between arrivals. Chunks that arrived together count as one. Null without streams."""
    chunk_gaps: NotRequired[ChunkGaps]
    """`chunk_gap_ns` as a histogram; missing without streams, and in runs of older versions."""
    itl_by_position: NotRequired[list[ItlAtPosition]]
    """`itl_ns` by the position of the later token in its answer; missing if `itl_ns` is null."""
    loadgen: LoadGenTokens | None
    """LoadGen's measurements of these times; null in Offline, or if neither an SLO nor a rule bounds the times."""
    tokens_per_chunk: float | None
    """Mean number of tokens per chunk from the server, without empty chunks;
    null without streams, or if `output` is null.
    """
    one_token_answers: int
    """Number of answers with a single token."""
    finish_reasons: Mapping[str, int]
    """Number of answers per reason that the server reports for the end of an answer: `length` at max_tokens, `stop` by
    the model, empty without a reason.
    """


class TurnTimes(TypedDict):
    """The turns at one position in their sessions."""

    answers: int
    """Number of turns that were answered and did not fail."""
    latency_ns: TokenTimes | None
    """Time from the due time to the answer; null without answers."""
    ttft_ns: TokenTimes | None
    """Time from the due time to the first token; null without streams."""
    tpot_ns: TokenTimes | None
    """Time per token after the first, defined as in `tokens`;
    null without streams or without answers of several tokens.
    """


class TokenRates(TypedDict):
    """Percentiles of tokens/s. One in ten sessions is slower than `p10`."""

    p50: float
    """Tokens/s."""
    p10: float
    """Tokens/s."""
    p1: float
    """Tokens/s."""


class Sessions(TypedDict):
    """The sessions of a Server run whose dataset has sessions. A turn is due once the answers it depends on have
    arrived and its delay has then elapsed.
    """

    begun: int
    """Number of sessions with at least one answer."""
    complete: int
    """Number of sessions in which all turns were answered."""
    broken: int
    """Number of sessions with a failed turn. The later turns of these sessions were not sent."""
    cut: int
    """Number of sessions that were still running when the run ended."""
    turns_mean: float
    """Mean number of answered turns per session."""
    length_ns: TokenTimes | None
    """Time from the first turn's due time to the last answer, over complete sessions;
    null without a complete session.
    """
    busy_ns: TokenTimes | None
    """Time in which a session waited for answers, which is `length_ns` minus `idle_ns`; null without a complete
    session.
    """
    idle_ns: TokenTimes | None
    """Time of a session in which no turn was due or in flight, because a person or a tool caused a delay; null without
    a complete session.
    """
    idle_share: float | None
    """Mean share of `length_ns` in which no turn was due or in flight."""
    tokens_per_s: TokenRates | None
    """Tokens/s that one user sees: the tokens in a session's answers divided by the session's `busy_ns`, over complete
    sessions. Null without a complete session, or without streams.
    """
    send_lag_ns: TokenTimes
    """Time from a turn's due time until it was sent, spent in the harness or waiting for a connection."""
    broken_at: Mapping[str, int]
    """Number of sessions per position of the failed turn, counted from 0."""
    turns: list[TurnTimes]
    """Times by the turn's position in its session, in the order of due times; at most 100 positions."""


class Probes(TypedDict):
    """Small requests at random times during the load, on separate connections. The probes show how long other clients
    wait. A probe of a language model requests a single token.
    """

    rate_per_s: float
    """Rate from --probe-rate."""
    sent: int
    """Number of probes that were due before the load's last answer."""
    answered: int
    """Number of probes that were answered."""
    failed: int
    """Number of probes that were refused, cut off or answered wrongly. Failed probes do not make the run INVALID."""
    unanswered: int
    """Number of probes that got no answer within 10 s after the load."""
    latency_ns: TokenTimes | None
    """Time from the due time to the whole answer; null without answers."""
    first_token_ns: TokenTimes | None
    """Time from the due time to the first token; null without answers."""
    send_lag_ns: TokenTimes | None
    """Time from a probe's due time until it was sent, spent in the harness or waiting for a connection."""
    alone_ns: TokenTimes | None
    """Times of at most 20 probes that were sent one after another before the load."""


class Cancellations(TypedDict):
    """Requests whose connection the client closed before the answer ended. These requests count neither as answers nor
    as failures, and all other numbers leave them out.
    """

    share: float
    """Share of the queries to cancel, from --cancel."""
    after_ns: int
    """Time between sending and cancelling a request, from --cancel, in ns."""
    chosen: int
    """Number of queries that the seed chose. Some of these queries may have been answered before they were due to be
    cancelled.
    """
    cancelled: int
    """Number of requests whose connection was closed."""
    begun: int
    """Number of cancelled requests that had already received a first token."""
    tokens: int
    """Number of tokens that cancelled requests had received; number of chunks if the server does not count tokens."""
    closed_after_ns: TokenTimes | None
    """Time from sending a cancelled request until its connection was closed; null without a cancelled request."""
    next_first_token_ns: TokenTimes | None
    """Time from sending to the first token (without streams: to the reply), for each request that was sent next after a
    cancellation. Longer times than `other_first_token_ns` show that the server still worked on cancelled requests.
    """
    other_first_token_ns: TokenTimes | None
    """Time from sending to the first token (without streams: to the reply), for all other requests; null without such
    requests.
    """


class OfModel(TypedDict):
    """The requests to one model or adapter."""

    model: str
    """Name of the model in the requests."""
    requests: int
    """Number of answered requests, including failed requests."""
    share: float
    """Share of all answered requests."""
    failed: int
    """Number of failed requests."""
    tokens: int | None
    """Number of answer tokens; null if unknown."""
    tokens_per_s: float | None
    """`tokens` per s, from the run's first scheduled query to its last answer; null if `tokens` is null."""
    user_tokens_per_s: float | None
    """Speed that one user sees: the mean of tokens / latency over the answers; null if `tokens` is null."""
    latency_ns: TokenTimes | None
    """Time from the due time to the answer; null without answers."""
    ttft_ns: TokenTimes | None
    """Time from the due time to the first token; null without streams."""
    tpot_ns: TokenTimes | None
    """Time per token after the first; null without streams of several tokens."""


class ByModel(TypedDict):
    """Answers of a run, grouped by the model or adapter that the requests name, with the fairness of the models'
    speeds.
    """

    models: list[OfModel]
    """The models, by name."""
    slowest: str
    """Model with the longest time of the kind in `compared`; empty if a model has no answers."""
    slowest_ratio: float | None
    """Time of the slowest model divided by the time of the fastest; null if `slowest` is empty."""
    compared: str
    """Kind of time that is compared: `ttft_ns p90`, or `latency_ns p90` without streams."""
    fairness: float | None
    """Jain's index of `user_tokens_per_s`, or of 1 / mean latency if tokens are unknown. The index is 1 if all models
    are equally fast, and 1 / (number of models) if one model is much faster than all others. Null if a model has no
    answers.
    """


class Media(TypedDict):
    """Transcribed or spoken sound, compared with the time that the server took to process it. Failed requests do not
    count.
    """

    of: str
    """`requests` for transcription, or `answers` for speech."""
    seconds: float
    """Duration of all sound in s."""
    per_s: float | None
    """Seconds of sound per s, from the first scheduled query to the last answer; null if this time is 0."""
    real_time_factor: float
    """Sum of the latencies divided by the duration of the sound. If the factor is below 1, an answer takes less time
    than its sound lasts.
    """


class RampStep(TypedDict):
    """Queries that were due at the same rate."""

    rate_per_s: float
    """Rate in queries/s."""
    holds: bool
    """Whether this entry is a hold, during which the rate stays constant; otherwise it is a step of the ramp."""
    queries: int
    """Number of answered queries."""
    share: float | None
    """Share of queries that met every SLO and did not fail; null without answers."""
    share_low: float | None
    """Lower end of the share's interval (Wilson, 95 %)."""
    share_high: float | None
    """Upper end of the interval."""
    p50_ns: int | None
    """Median latency in ns."""
    p99_ns: int | None
    """99th percentile of the latency in ns."""
    broken: bool
    """Whether the step missed an SLO with 95 % confidence: the share of answers on time is too small."""


class Ramp(TypedDict):
    """A run that raised its rate until it broke an SLO, and then held a lower rate (--arrivals ramp:RATE). All other
    numbers of the result, except the client's, describe the last hold.
    """

    held_per_s: float
    """Rate of the last hold in queries/s."""
    held: bool
    """False if the last hold missed an SLO with 95 % confidence."""
    broke_per_s: float | None
    """Lowest rate that missed an SLO with 95 % confidence; null without such a rate."""
    holds: int
    """Number of holds. Every hold before the last one missed an SLO."""
    steps: list[RampStep]
    """The steps and holds in order."""
