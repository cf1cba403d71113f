"""Decides whether runs may be ranked, and lists their differences."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.core import registry
from harness.core.config.parse import RAMP
from harness.core.number_types import number_type
from harness.core.registry import SCENARIOS
from harness.core.units import counted, show_percent
from harness.loadgen.scenario import Scenario, scenario_named
from harness.models.opened.loading import FORMAT_OPTION
from harness.results import run_folder
from harness.results.agreement import Agreement, limits
from harness.results.compare.finished import FinishedRun
from harness.results.pages.words import plain


class Difference(NamedTuple):
    """A setting that differs between the sides; `before` and `after` are texts."""

    name: str
    before: str
    after: str


class Refusal(NamedTuple):
    """Reason why the sides must not be ranked."""

    what: str
    """Name of the fact that forbids a ranking."""
    before: str
    after: str
    remedy: str
    text: str
    """The reason in one line, with the names of the runs."""


_MISSED = "slo-missed"
_DISTURBED = (
    "the machine disturbed the run that misses the SLO, so run it again on a machine at rest"
)

_OPTIMISED = frozenset(("model", "precision", "largest batch"))
"""Settings that an optimisation may change."""


def refusals(
    before: Sequence[FinishedRun],
    after: Sequence[FinishedRun],
    answers: Agreement | None = None,
    *,
    optimised: bool = False,
    only_speed: bool = False,
) -> Iterator[Refusal]:
    """Yields each reason why the sides must not be ranked.

    answers: agreement of the answers in the sides' first runs; None without answers.
    optimised: whether the second side is a faster version of the first. If optimised is set, the model file and the
    settings may differ, but the accuracy must be known, unless only_speed is set. If an accuracy is unknown, the models
    must have the same name. only_speed: whether the user chose the numbers to judge and left out the accuracy.
    """
    misses = one_misses(before, after)
    for run in {run.folder: run for run in (*before, *after)}.values():
        if run.result["verdict"] != "VALID" and misses is None:
            ours, theirs = (_texts(map(_verdict, one)) for one in (before, after))
            is_disturbed = _codes(run) == [_MISSED] and run.disturbances
            remedy = _DISTURBED if is_disturbed else ""
            text = f"{run.name} is {_verdict(run)}"
            yield Refusal("verdict", ours, theirs, remedy, f"{text}: {remedy}" if remedy else text)
    unscored = [run for run in (*before, *after) if "accuracy" not in run.numbers]
    may_differ = _OPTIMISED - {"model"} if unscored else _OPTIMISED
    yield from _workload_refusals(before, after, may_differ if optimised else frozenset())
    if not optimised:
        yield from _model_refusals(before, after, answers)
    elif unscored and not only_speed:
        ours, theirs = (_texts(map(_has_score, one)) for one in (before, after))
        yield Refusal(
            "accuracy",
            ours,
            theirs,
            _SCORED_OR_SPEED,
            f"accuracy: {label(unscored)} {'have' if unscored[1:] else 'has'} no score, so the accuracy lost for the speed is unknown: "
            f"{_SCORED_OR_SPEED}",
        )
    yield from _arrival_refusals(before, after)
    yield from (Refusal("configuration", *one) for one in _configurations(before, after))


def one_misses(
    before: Sequence[FinishedRun], after: Sequence[FinishedRun]
) -> Sequence[FinishedRun] | None:
    """Returns the losing side if each of its runs misses the SLO while each run of the other side is VALID under the
    same SLO.

    Otherwise returns None, for example if a run is INVALID for other reasons or if the machine disturbed a run.
    """
    if len({run.result.get("slo") for run in (*before, *after)}) > 1:
        return None
    for side, other in ((before, after), (after, before)):
        missed = all(_codes(run) == [_MISSED] and not run.disturbances for run in side)
        if missed and not any(map(_codes, other)):
            return side
    return None


def _verdict(run: FinishedRun) -> str:
    codes = ", ".join(_codes(run))
    return f"{run.result['verdict']} ({codes})" if codes else str(run.result["verdict"])


def _has_score(run: FinishedRun) -> str:
    return "scored" if "accuracy" in run.numbers else "no score"


def _codes(run: FinishedRun) -> list[str]:
    """Returns the codes of the reasons of an INVALID run; [] for a VALID run."""
    if run.result["verdict"] == "VALID":
        return []
    return list(dict.fromkeys(reason["code"] for reason in run.result["reasons"]))


def label(side: Sequence[FinishedRun]) -> str:
    more = f" and {len(side) - 1} more" if len(side) > 1 else ""
    return f"{side[0].name}{more}"


def _workload_refusals(
    before: Sequence[FinishedRun], after: Sequence[FinishedRun], may_differ: Collection[str]
) -> Iterator[Refusal]:
    ours, theirs = ([_workload(run) for run in side] for side in (before, after))
    for name in ours[0]:
        if name in may_differ or not all(name in one for one in (*ours, *theirs)):
            continue
        values = [_texts(one[name] for one in side) for side in (ours, theirs)]
        if values[0] != values[1]:
            unknown = f"unknown {name}" if "-" in values else name
            hint = _HINTS.get(unknown) or _HINTS.get(name) or ""
            line = f"{name}: {label(before)} {values[0]}, {label(after)} {values[1]}"
            yield Refusal(name, values[0], values[1], hint, f"{line}: {hint}" if hint else line)


def _configurations(
    before: Sequence[FinishedRun], after: Sequence[FinishedRun]
) -> Iterator[tuple[str, str, str, str]]:
    """Yields the fields of a refusal after its name for each run with other settings than its side's first run."""
    remedy = "the runs of one side need the same settings"
    for is_before, side in ((True, before), (False, after)):
        for run in side[1:]:
            ours, theirs = settings(side[0].config), settings(run.config)
            differ = [n for n in {**ours, **theirs} if ours.get(n) != theirs.get(n)]
            if differ:
                names = ", ".join(differ)
                text = f"{side[0].name} and {run.name} have different configurations: {names}"
                found = f"differs in {names}"
                yield (found, "-", remedy, text) if is_before else ("-", found, remedy, text)


def _arrival_refusals(
    before: Sequence[FinishedRun], after: Sequence[FinishedRun]
) -> Iterator[Refusal]:
    """Refuses different schedule seeds if the seed determines the arrivals. Each run of --repeats uses a different
    seed, so both sides must use the same set of seeds.
    """
    first = before[0]
    if not has_schedule(first):
        return
    ours, theirs = (
        sorted({str(_seeds(run).get("schedule", "-")) for run in side}) for side in (before, after)
    )
    if ours != theirs:
        ours_shown, theirs_shown = (counted(len(side), "seed") for side in (ours, theirs))
        if len(ours) == len(theirs):  # the last digits differ; the rest would only fill the line
            ours_shown, theirs_shown = (
                ", ".join(f"…{seed[-6:]}" for seed in side) for side in (ours, theirs)
            )
        remedy = "make the same number of --repeats on both sides"
        folders = {run.folder.parent for run in (*before, *after)}
        if len(folders) == 1 and (folders.pop() / run_folder.REPEATS).is_file():
            remedy = "these are repeats of one study, whose interval shows how much they differ"
        text = f"arrivals: schedule seeds differ ({ours_shown} and {theirs_shown}): {remedy}"
        yield Refusal("schedule seeds", ours_shown, theirs_shown, remedy, text)


def _model_refusals(
    before: Sequence[FinishedRun], after: Sequence[FinishedRun], answers: Agreement | None
) -> Iterator[Refusal]:
    """Refuses different model files, unless one manifest lists them and their answers agree."""
    digests = [_texts(run.config.get("model_sha256") for run in side) for side in (before, after)]
    differ = digests[0] != digests[1]
    if differ and not _are_of_one_manifest(before[0], after[0]):
        line = f"model digest: {label(before)} {digests[0]}, {label(after)} {digests[1]}"
        remedy = _ONE_MANIFEST if _reader(before[0]) != _reader(after[0]) else _MADE_FASTER
        yield Refusal("model digest", digests[0], digests[1], remedy, f"{line}: {remedy}")
    elif differ and answers is None:
        remedy = "run both with --mode both"
        yield Refusal(
            "answers",
            "not compared",
            "not compared",
            remedy,
            f"answers: {label(before)} and {label(after)} read different files of the model, whose "
            f"answers were not compared: {remedy}",
        )
    elif answers is not None and _reader(before[0]) != _reader(after[0]):
        share = limits(precision_of(before[0])).share
        if answers.alike < share:
            equal = f"{show_percent(answers.alike, 2)} of {answers.samples:,} are equal"
            remedy = "one backend or one file does not compute this model"
            text = f"answers: {equal}, fewer than {show_percent(share)}: {remedy}"
            yield Refusal("answers", equal, equal, remedy, text)


_SCORED_OR_SPEED = "run both sides with --mode both on a dataset with labels, or judge only speed with --fail-on p99:+10%"

_MADE_FASTER = (
    "if one side is a changed or optimised version of the other, add --optimised, and "
    f"{_SCORED_OR_SPEED}"
)

_ONE_MANIFEST = (
    "if both files contain the same network, run both from one manifest that lists both files: "
    "docs/compare.md#the-same-model-on-two-frameworks"
)


def _are_of_one_manifest(ours: FinishedRun, theirs: FinishedRun) -> bool:
    """Returns whether one manifest lists both files, for different backends or format options. Returns False if both
    runs used the same backend and format option, because the file then changed, or if a file comes from --model-file.
    """
    manifests = [run.environment.get("manifest_sha256") for run in (ours, theirs)]
    replaced = any(run.config.get("model_file") for run in (ours, theirs))
    same = manifests[0] is not None and manifests[0] == manifests[1]
    return same and not replaced and _reader(ours) != _reader(theirs)


def _reader(run: FinishedRun) -> tuple[str, str]:
    options = run.config.get("backend_option") or ()
    formats = [text for text in options if text.startswith(f"{FORMAT_OPTION}=")]
    return run.result["backend"], "".join(formats)


def precision_of(run: FinishedRun) -> str:
    """Returns the precision that the backend reports, under its usual name if number_types.py lists it."""
    reported = (run.result.get("backend_description") or {}).get("precision")
    names = reported if isinstance(reported, list) else [reported]
    return " ".join(sorted({number_type(str(name)) for name in names if name is not None})) or "-"


_HINTS = {
    "precision": _MADE_FASTER,
    "unknown precision": "the backend must report its precision as `precision` in describe(), e.g. float32",
    "model runs": "a server's cost is not a difference between models or machines",
    "offered rate": "run both with the same --target-qps",
    "largest batch": "run both with the same --max-batch",
    "samples per query": "run both with the same --samples-per-query",
    "samples held": "run both with the same --performance-count",
    "queries in flight": "run both with the same --concurrency",
    "growing rate": "run both with the same --arrivals ramp",
    "cancelled requests": "cancelling leaves the server more room for the other requests: run both with the same --cancel",
    "probes beside the load": "probes are a load, too: run both with the same --probe-rate",
    "load hosts": "run both with the same --load-hosts",
    "audit": "an audit changes which samples LoadGen issues, and how many",
}
"""Maps the name of a setting to advice."""


_CONFIGURED = {
    "largest batch": "max_batch",
    "samples per query": "samples_per_query",
    "offered rate": "target_qps",
    "arrivals": "arrivals_sha256",
    "queries in flight": "concurrency",
    "cancelled requests": "cancel",
    "probes beside the load": "probe_rate",
    "samples held": "performance_count",
}
"""Maps the name of a setting that must be equal in performance runs to its key in config.yaml."""

_STATED = {
    **_CONFIGURED,
    "growing rate": "arrivals",
    "load hosts": "load_hosts",
    "model digest": "model_sha256",
    "model runs": "url",
    "official rules": "mlperf",
    "schedule seeds": "schedule_seed",
}
"""Maps the name of a refusal to the difference that the refusal already states, if their names differ."""


def unstated(
    differences: Iterable[Difference], refusals: Collection[Refusal]
) -> Sequence[Difference]:
    """Returns the differences that no refusal states."""
    stated = {name.replace(" ", "_") for name in (_STATED.get(r.what, r.what) for r in refusals)}
    return [one for one in differences if one.name not in stated]


def _workload(run: FinishedRun) -> Mapping[str, Any]:
    """Returns the settings that must be equal for runs to be ranked. A setting is compared only if both runs have it."""
    config, result = run.config, run.result
    performance, scored = {}, {}
    if result["throughput_per_s"] is not None:
        performance = {
            **{name: config.get(key) for name, key in _CONFIGURED.items()},
            "growing rate": _ramp_of(config),
            "load hosts": len(result.get("load_hosts") or [None]),
            "audit": Path(config.get("audit") or "-").name,
        }
    if result["accuracy"] and result["accuracy"]["value"] is not None:
        scored = {"metric": result["accuracy"]["metric"]}
    return {
        "scenario": result["scenario"],
        "model runs": "on a server" if config.get("url") else "on this machine",
        "official rules": config.get("mlperf"),
        "model": result["model"],
        "precision": precision_of(run),
        "dataset": result["dataset"],
        "dataset digest": config.get("dataset_digest"),
        "seeds": {k: seed for k, seed in _seeds(run).items() if k != "schedule"},
        **performance,
        **scored,
    }


def _ramp_of(config: Mapping[str, Any]) -> str | None:
    """Returns the value of --arrivals if the value is a ramp. A ramp is not read from a file, so it has no digest."""
    arrivals = str(config.get("arrivals") or "")
    return arrivals if arrivals.startswith(RAMP) else None


def _seeds(run: FinishedRun) -> Mapping[str, Any]:
    return (run.environment.get("loadgen") or {}).get("seeds") or {}


_PER_RUN = frozenset(("queries", "duration", "out", "schedule_seed"))
"""Settings that differ between runs of one configuration, for example because --repeats advances the seed."""


def settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the settings that are the same in all runs of one configuration. config: content of config.yaml."""
    left_out = _PER_RUN.union(_without_effect(config))
    return {name: value for name, value in config.items() if name not in left_out}


def _without_effect(config: Mapping[str, Any]) -> Collection[str]:
    """Returns the settings that the scenario ignores: --dispatch outside Server, and the schedule seed in runs without
    a schedule.
    """
    name = config.get("scenario")
    scenario = registry.load("scenario", name) if name in SCENARIOS else None
    ignored = () if scenario is not None and "dispatch" in scenario.options else ("dispatch",)
    if scenario is None or _has_schedule(scenario, config):
        return ignored
    return (*ignored, "schedule_seed")


def _has_schedule(scenario: Scenario, config: Mapping[str, Any]) -> bool:
    """Returns whether a seed determines when queries arrive. In a closed loop, each answer triggers the next query
    instead.
    """
    return scenario.scheduled and config.get("concurrency") is None


def has_schedule(run: FinishedRun) -> bool:
    """Returns whether a schedule determines when the run's queries arrive."""
    return _has_schedule(scenario_named(run.result["scenario"]), run.config)


def differences(
    before: Sequence[FinishedRun], after: Sequence[FinishedRun]
) -> Iterator[Difference]:
    """Yields differences in config.yaml and environment.json, and doubts that only one side has."""
    doubts = [{d["code"] for run in one for d in run.result["doubts"]} for one in (before, after)]
    if doubts[0] != doubts[1]:
        gone, new = doubts[0] - doubts[1], doubts[1] - doubts[0]
        yield Difference("doubts", *(" ".join(sorted(codes)) or "-" for codes in (gone, new)))
    described = [[_described(run) for run in one] for one in (before, after)]
    for name in dict.fromkeys(n for one in described for run in one for n in run):
        ours, theirs = (sorted({_text(run.get(name)) for run in one}) for one in described)
        if ours != theirs:
            yield Difference(name, " | ".join(ours), " | ".join(theirs))


def _described(run: FinishedRun) -> Mapping[str, Any]:
    environment = {k: v for k, v in run.environment.items() if k != "loadgen"}
    left_out = {"out", *_without_effect(run.config)}
    config = {k: v for k, v in run.config.items() if k not in left_out}
    return {**config, **dict(_flat(environment))}


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _texts(values: Iterable[object]) -> str:
    return " | ".join(sorted({_text(value) for value in values}))


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{k}={v}" if v not in ({}, None) else str(k) for k, v in value.items())
    if isinstance(value, list):
        return " ".join(filter(None, map(_item, value))) or "-"
    if isinstance(value, bool) or value is None:
        return {None: "-", True: "yes", False: "no"}[value]
    if isinstance(value, int):  # a large number is a seed
        return f"{value:,}" if abs(value) < _LEAST_SEED else str(value)
    if isinstance(value, float):  # a calibrated rate has many digits
        whole, point, digits = plain(value).partition(".")
        return f"{int(whole):,}{point}{digits}" if whole.isdecimal() else plain(value)
    return str(value)


def _item(value: object) -> str:
    """Returns an entry of a list, without separators in numbers, because lists contain core numbers and shapes."""
    return (
        _text(value)
        if isinstance(value, Mapping | list) and value
        else ""
        if value == {}
        else str(value)
    )


_LEAST_SEED = 10**9
"""A seed is drawn from the 64-bit numbers, and is written without separators, as in the configuration."""
