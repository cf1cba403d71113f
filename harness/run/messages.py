"""Checks the messages of the measured process, because a plug-in runs in that process and can send any message.

A message that passes the check contains every value that the supervisor reads, with the expected type.
"""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, NotRequired

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

# TypedDict does not come from typing, because pydantic accepts typing's TypedDict only from Python 3.12 on.
from typing_extensions import TypedDict

from harness.core.service_times import ServiceTimes
from harness.errors import PluginUnavailable, one_line
from harness.loadgen.plan import Calibration, Loaded

_STRICT = ConfigDict(strict=True, allow_inf_nan=False)


class BadMessage(PluginUnavailable):
    """Raised for a message that the harness's code never sends."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the measured process sent a message that the harness does not send ({why}): remove the "
            "plug-in that writes to the harness's connection"
        )


def _is_dtype(name: str) -> str:
    try:
        np.dtype(name)
    except (TypeError, ValueError, SyntaxError) as e:
        raise ValueError(f"{name!r} is not a number type") from e
    return name


Count = Annotated[int, Field(ge=0, lt=2**63)]
Nanoseconds = Annotated[int, Field(gt=-(2**63), lt=2**63)]
Seconds = Annotated[float, Field(ge=0)]


class _Loading(TypedDict):
    done: Count
    total: Count


class _Error(TypedDict):
    status: int
    text: str
    trace: str


class _Reason(TypedDict):
    reason: str


class _Times(TypedDict):
    """Structure that `ServiceTimes.to_json` returns; every time is positive."""

    sizes: Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=1)]
    ns: list[list[Annotated[float, Field(gt=0)]]]
    counts: list[Count]


def _has_times(times: _Times) -> _Times:
    ServiceTimes.from_json(times)
    if times["sizes"] != sorted(set(times["sizes"])):
        raise ValueError("the batch sizes are not in ascending order")
    return times


class _BothTimes(TypedDict):
    before: Annotated[_Times, AfterValidator(_has_times)]
    after: Annotated[_Times, AfterValidator(_has_times)]


def _of_one_sample(both: _BothTimes) -> _BothTimes:
    if any(both[name]["sizes"] != [1] for name in ("before", "after")):
        raise ValueError("the wide instance's times are not times of single samples")
    return both


class _Bare(_BothTimes):
    wide: NotRequired[Annotated[_BothTimes, AfterValidator(_of_one_sample)]]
    """Times of one sample in the wide instance."""


def _share_a_size(bare: _Bare) -> _Bare:
    if not {*bare["before"]["sizes"]} & {*bare["after"]["sizes"]}:
        raise ValueError("no batch size was timed before and after the run")
    return bare


class _Elastic(TypedDict):
    cpus: list[Count] | None
    wide_ns: Count | None
    narrow_ns: Count | None
    reason: str | None


class _Probed(TypedDict):
    samples: Count
    rows: Count
    by_index: Count
    changed_ns: list[Count]
    again_ns: list[Count]
    seen_ns: list[Count]
    raised: str


class _PromptProbe(TypedDict):
    """Structure that `prompt_probe.probe` returns."""

    changed_ns: list[Count]
    seen_ns: list[Count]
    again_ns: list[Count]
    refused: str


class _Used(TypedDict):
    """Structure that `SampleCallbacks.used` returns."""

    cpu_s: float
    wall_s: float
    wall_offset_ns: Nanoseconds
    run_queue_s: NotRequired[float]
    voluntary_switches: Count
    involuntary_switches: Count
    rss_before_bytes: Count
    rss_peak_bytes: Count | None
    rss_run_peak_bytes: Count | None
    rss_run_peak_reason: str | None
    cyclic_garbage_objects: Count | None


class _Peer(TypedDict):
    url: str
    address: str
    local: bool
    name: str
    round_trip_ns: Count | None


class _ServerTimes(TypedDict):
    source: str
    requests: Count
    queue_ns: Count
    compute_ns: Count
    total_ns: Count


class _Position(TypedDict):
    first: Count
    last: Count
    tokens: Count
    p50_ns: Count
    p99_ns: Count


class _Gaps(TypedDict):
    counts: list[Count]
    sum_ns: Count


class _Streams(TypedDict):
    chunks: Count
    several: Count
    at_once: Count
    long: NotRequired[Count]
    held_back: NotRequired[Count]
    tokens_per_chunk: Seconds | None
    exact: bool
    itl_ns: dict[str, Count] | None
    second_gap_ns: NotRequired[dict[str, Count] | None]
    chunk_gap_ns: dict[str, Count] | None
    chunk_gaps: NotRequired[_Gaps]
    itl_by_position: NotRequired[list[_Position]]


class _Tokens(TypedDict):
    """Structure that `Tokens.summary` returns."""

    answers: Count
    input: Count | None
    output: Count | None
    cached: Count | None
    reasoning: Count | None
    media_ns: NotRequired[Count]
    """Duration of the audio in the answers."""
    one_token_answers: Count
    sources: dict[str, Count]
    finish_reasons: dict[str, Count]
    contradictions: dict[str, Count]
    doubts: dict[str, Count]
    varied_prompts: Count
    tails: NotRequired[Count]
    tails_at_once: NotRequired[Count]
    compared_prompts: Count
    changed_prompts: Count
    long_prompts: Count
    long_answers: Count
    bodies_sha256: NotRequired[str | None]
    reusable: NotRequired[Count | None]
    block_tokens: NotRequired[Count | None]
    short_prompts: Count
    short_answers: Count
    bounded_prompts: Count
    uncalled_prompts: Count
    calling_prompts: Count
    long_answered: Count
    alike_prompts: Count
    repeated_answers: Count
    varied_answers: Count
    named_replies: Count
    same_names: Count
    named_repeats: Count
    same_names_of_prompt: Count
    signs: dict[str, Count]
    streams: _Streams | None


class _Client(TypedDict):
    """Structure that `Session.summary` returns."""

    dispatcher: str
    peers: list[_Peer]
    sut_name: str
    connections: Count
    request_timeout_s: Seconds
    ceiling_per_s: Seconds | None
    floor_p50_ns: Count | None
    no_ceiling: str
    busy_shares: list[Annotated[float, Field(ge=0, le=1)]]
    waited: Count
    resent: Count
    reopened: Count
    closes_after: Count
    outage_s: Seconds
    server_gone: str
    failures: dict[str, Count]
    server_times: _ServerTimes | None
    json_ns: Count | None
    tokens: _Tokens | None


class _Counts(TypedDict):
    """Structure of Counts in harness/models/cache/cache.py."""

    hits: Count
    joined: Count
    loads: Count
    alone: Count
    evictions: Count
    failures: Count


class _Models(TypedDict):
    resident: list[_Counts]
    files: list[_Counts] | None


class _Ended(TypedDict):
    used: _Used
    answer_dtype: Annotated[str, AfterValidator(_is_dtype)]
    answer_shape: list[Count | None]
    dispatcher: str
    issuer: list[Count]
    files: dict[str, str]
    bare: Annotated[_Bare, AfterValidator(_share_a_size)] | _Reason | None
    probed: _Probed | _Reason | None
    prompts: NotRequired[_PromptProbe | _Reason | None]
    failed_samples: Count
    first_failure: str
    close_error: str
    client: _Client | None
    tokens: _Tokens | None
    """Token counts of a language model on this machine; `client` contains the counts of a server."""
    models: _Models | None
    """Cache counts of a set of models."""
    elastic: NotRequired[_Elastic | None]
    """The wide instance, or the reason why the run has no wide instance."""
    backend: NotRequired[dict[str, Any] | None]
    """Structure that `HasUse.used` returns."""


for _message in (
    _Loading,
    _Error,
    _Reason,
    _Times,
    _BothTimes,
    _Bare,
    _Elastic,
    _Probed,
    _Used,
    _Peer,
    _ServerTimes,
    _Position,
    _Gaps,
    _Streams,
    _Tokens,
    _Client,
    _Counts,
    _Models,
    _Ended,
):
    _message.__pydantic_config__ = _STRICT  # type: ignore[union-attr]

_MESSAGES: Mapping[str, TypeAdapter[Any]] = {
    "loading": TypeAdapter(_Loading),
    "error": TypeAdapter(_Error),
    "loaded": TypeAdapter(Loaded),
    "calibrated": TypeAdapter(Calibration),
    "ended": TypeAdapter(_Ended),
}
"""Maps an event to the type of the other fields in its message."""


def check(message: object, expected: Collection[str]) -> None:
    """Raises BadMessage if the harness's code never sends this message at this point.

    expected: the events that may come next. The content of `loaded` and `calibrated` depends on the module that the
    measured process runs, so the functions that read this content check it.
    """
    event = message.get("event") if isinstance(message, dict) else None
    if not isinstance(event, str) or event not in expected:
        raise BadMessage(f"expected {' or '.join(map(repr, expected))}")
    if event in ("loading", "error", "ended"):
        _check_content(message)


def loaded(message: Mapping[str, Any]) -> Loaded:
    _check_content(message)
    return Loaded.from_json(_rest(message))


def calibration(message: Mapping[str, Any]) -> Calibration:
    _check_content(message)
    return Calibration(**_rest(message))


def _rest(message: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != "event"}


def _check_content(message: Any) -> None:
    event = message["event"]
    try:
        _MESSAGES[event].validate_python(_rest(message))
    except ValidationError as e:
        first = e.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadMessage(f"{event!r}, {where}: {one_line(first['msg'])}") from None
