"""--repeats: the same run several times, each in a fresh process, and how far the numbers lie apart.

Run i has the schedule seed s + i: what the arrivals of one seed do is no property of the system.
Everything else is the same, sample order included. Each is a result folder of its own, so that
`compare` takes them all as one side; repeats.json and the table say what they have in common.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.core import files
from harness.core.config.run_config import MAX_SEED, SCHEMA_VERSION, RunConfig
from harness.core.console import say, show
from harness.core.signals import stoppable
from harness.core.units import show_ns, show_percent, show_rate
from harness.errors import RunInvalid
from harness.loadgen.scenario import scenario_named
from harness.loadgen.versions import seeds_of
from harness.models.manifest.lookup import load_model
from harness.results import run_folder
from harness.results.evidence import bootstrap
from harness.results.evidence.stages import PERCENTILES
from harness.results.outcome import Finished, Measure
from harness.run.jobs import keep_or_remove
from harness.search.peak.probe import other_reason

_ENDED = (0, RunInvalid.exit_status)
"""Exit statuses of runs that came to their end."""

_LEAST_TOLD = 2
"""An interval takes so many runs that measured the number."""


def problems(config: RunConfig, repeats: int) -> Iterator[str]:
    if repeats < _LEAST_TOLD:
        yield f"--repeats {repeats}: how runs differ takes at least {_LEAST_TOLD}"
    if config.mlperf:
        yield "--repeats takes other seeds each time: drop --mlperf, whose round sets them"
    if config.mode == "accuracy":
        yield "--repeats is about performance runs: drop --mode accuracy"
    if config.metrics_linger_ns:
        yield "--metrics-linger waits after one run, --repeats makes many: drop it"


def repeat(config: RunConfig, repeats: int, measure: Measure, *, as_json: bool, quiet: bool) -> int:
    """Prints the table (or repeats.json). 0 where every run was VALID, else the worst's status."""
    model = load_model(config.model).name
    names = (f"repeats-{config.scenario}", config.backend, model)
    reserved = run_folder.new_folder(config.out, *names)
    first_seed = seeds_of(config).schedule
    made: list[Finished] = []
    with stoppable(), keep_or_remove(lambda: reserved.path, lambda: bool(made)):
        for number in range(1, repeats + 1):
            seed = (first_seed + number - 1) & MAX_SEED
            out = reserved.path / f"run-{number}"
            made.append(measure(replace(config, out=out, schedule_seed=seed), quiet=True))
            _save(reserved.path, config, model, first_seed, made)
            if not quiet:
                say(f"run {number} of {repeats}: {_told(made[-1].result)}")
            if made[-1].status not in _ENDED:
                break  # it was stopped, died or hung: so would the others
            config = _sized_as(config, made[0].result)
        whole = len(made) == repeats and made[-1].status in _ENDED
        folder = reserved.finish(newest=False) if whole else reserved.path
    status = max(finished.status for finished in made)
    content = files.read_json(folder / run_folder.REPEATS)
    show(json.dumps(content, indent=2) if as_json else "\n".join(_lines(content, folder)))
    return status


def _sized_as(config: RunConfig, result: Mapping[str, Any]) -> RunConfig:
    """Of a calibrated rate or count, that of the first run: others would not be the same run."""
    sizes = {
        "queries": (result["queries"] or {}).get("planned"),
        "target_qps": (result["throughput_per_s"] or {}).get("asked"),
    }
    return replace(config, **{name: size for name, size in sizes.items() if size is not None})


def _save(
    folder: Path, config: RunConfig, model: str, first_seed: int, made: Sequence[Finished]
) -> None:
    """model: its name."""
    files.write_json(
        folder / run_folder.REPEATS,
        {
            "schema_version": SCHEMA_VERSION,
            "scenario": config.scenario,
            "backend": config.backend,
            "model": model,
            "schedule_seeds": [(first_seed + i) & MAX_SEED for i in range(len(made))],
            "verdicts": [finished.result["verdict"] for finished in made],
            "reasons": [[r["code"] for r in finished.result["reasons"]] for finished in made],
            "doubts": [[d["code"] for d in finished.result["doubts"]] for finished in made],
            "left_out": [_failure(finished.result) for finished in made],
            "level": bootstrap.LEVEL,
            "numbers": dict(_numbers([finished.result for finished in made])),
        },
    )


def _failure(result: Mapping[str, Any]) -> str | None:
    """Why a run is left out of the numbers: one that was stopped has those of its beginning, and
    samples that failed were answered at once. None of one that was VALID or only missed its SLO.
    """
    other = other_reason(result)
    return other.code if other is not None else None


def _numbers(found: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """name -> unit, each run's value (None where it is left out), their geometric mean and its
    interval; not of Offline's latencies, which only say how much was asked for at once.
    """
    offline = scenario_named(found[0]["scenario"]).all_at_once
    names = () if offline else ("mean", *PERCENTILES)
    kinds = [("throughput", "throughput_per_s", "completed", "samples/s")]
    kinds += [(name, "latency_ns", name, "ns") for name in names]
    for name, group, key, unit in kinds:
        values = [
            (result[group] or {}).get(key) if _failure(result) is None else None for result in found
        ]
        known = [float(value) for value in values if value is not None]
        over = bootstrap.over_runs(known)
        yield (
            name,
            {
                "unit": unit,
                "values": values,
                "mean": over[0] if over else None,
                "interval": list(over[1]) if over and over[1] else None,
            },
        )


def _told(result: Mapping[str, Any]) -> str:
    rate = (result["throughput_per_s"] or {}).get("completed")
    p99 = (result["latency_ns"] or {}).get("p99")
    parts = [result["verdict"], *(r["code"] for r in result["reasons"])]
    parts += [f"{show_rate(rate)} samples/s"] if rate is not None else []
    parts += [f"p99 {show_ns(p99)}"] if p99 is not None else []
    return ", ".join(parts)


def _lines(content: Mapping[str, Any], folder: Path) -> Iterator[str]:
    verdicts = content["verdicts"]
    valid = verdicts.count("VALID")
    words = "  ".join((content["scenario"], content["backend"], content["model"]))
    yield f"{valid} of {len(verdicts)} VALID  {words}"
    doubts = sorted({code for codes in content["doubts"] for code in codes})
    for code in doubts:
        count = sum(code in codes for codes in content["doubts"])
        yield f"  doubt   {code} in {count} of {len(verdicts)} runs"
    yield from _left_out(content["left_out"])
    yield ""
    level = f"{show_percent(content['level'])} interval over runs"
    yield f"{'':<12}{'mean':>12}{level:>30}{'least':>12}{'most':>12}"
    for name, number in content["numbers"].items():
        if number["mean"] is not None:
            write = show_ns if number["unit"] == "ns" else show_rate
            known = [value for value in number["values"] if value is not None]
            within = f"needs {bootstrap.LEAST_RUNS} runs or more"
            if number["interval"] is not None:
                within = " to ".join(write(end) for end in number["interval"])
            yield (
                f"{name:<12}{write(number['mean']):>12}{within:>30}"
                f"{write(min(known)):>12}{write(max(known)):>12}"
            )
    yield ""
    yield f"{'results':<12}{folder}"


def _left_out(codes: Sequence[str | None]) -> Iterator[str]:
    """Where the table is not over all runs."""
    if why := sorted({code for code in codes if code is not None}):
        yield f"  over    {codes.count(None)} of {len(codes)} runs; left out: {', '.join(why)}"
