"""Lists the runs that a submission needs, and the state and expected duration of each run."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from harness.core import registry
from harness.core.config.run_config import RunConfig, to_plain
from harness.core.files import read_json
from harness.core.formats.strict_yaml import load_yaml
from harness.core.stats import queries_needed
from harness.errors import ConfigError
from harness.loadgen import user_conf
from harness.loadgen.official import whole_sets
from harness.machine.power.meters.ptdaemon import PtdaemonMeter
from harness.models.manifest.defaults import default_metric
from harness.models.manifest.lookup import load_model
from harness.models.opened.loading import missing_data, unknown_names
from harness.models.opened.remote import server_problems
from harness.results.pages.tables import Cell, Column, aligned
from harness.results.power import OFFICIAL
from harness.results.rescore import is_pending
from harness.results.run_folder import RESULT
from harness.results.verdict.score import lacking_program
from harness.submit.plan import network, rate
from harness.submit.plan.attempts import asked_file, attempts
from harness.submit.plan.checked import fault
from harness.submit.plan.finished_run import FinishedRun
from harness.submit.plan.request import AT_A_RATE, Request

PERFORMANCE, ACCURACY, SEARCH = "performance", "accuracy", "peak"
DONE, MISSING, STALE, FAILED, UNSCORED = "done", "missing", "stale", "failed", "unscored"
ANSWERS_RUN_S = 10.0
"""Duration of the short performance run whose answers are compared with an accuracy run's answers. The duration
includes the run's start.
"""

START_S = 5.0
"""Expected time, in s, for loading a small model, measuring the noise floor, and calibrating. A large model takes
longer.
"""

OFFLINE_FACTOR = 1.1 * 1.3
"""Expected duration of an Offline run, as a multiple of the minimum duration. This factor is the product of LoadGen's
and the harness's safety margins.
"""

SESSION_PAUSES_S = 40.0
"""Total length of the pauses that power-dev's client makes around a session's two runs."""

MOST_RUNS, PROBE_S = 12, 3.0
"""Limits for a search (harness/search/peak/job.py). Most searches need fewer runs."""

OF_SHORTENED = ({"too-short"}, {"too-short", "loadgen-invalid"})
"""Reason codes of a run that is too short because of its audit.config. The audit judges only the answers, so the run
counts even if LoadGen calls its times INVALID.
"""

_SAME = ("model_sha256", "dataset_digest", "plugin_sha256", "loadgen_version", "backend")
"""Settings that must be equal in all runs of a result."""


class PlannedRun(NamedTuple):
    scenario: str
    kind: str
    """`performance`, `accuracy`, an audit such as `TEST01`, or `peak`."""
    config: RunConfig
    state: str
    """`done`, `missing`, `stale`, `failed` or `unscored`."""
    why: str = ""
    """Reason why the state is stale, failed or unscored, or why `pack` refuses a finished run."""
    folder: Path | None = None
    """Result folder of the newest attempt."""
    expected_s: float | None = None
    """Expected duration, or the measured duration of a finished run; None if no calibration is known."""
    queries: int | None = None
    """Expected number of queries, or the measured number in a finished run; None if no calibration is known."""

    @property
    def name(self) -> str:
        return f"{self.scenario}-{self.kind}"


def plan(request: Request, work: Path) -> list[PlannedRun]:
    """Returns all runs in execution order. An audit follows the performance run that it checks."""
    rows: list[PlannedRun] = []
    searches = request.searches
    searched_rate = rate.searched(work, request.search_config()) if searches else None
    for scenario in request.chosen_scenarios:
        made: dict[str, FinishedRun] = {}
        for kind in (PERFORMANCE, ACCURACY, *request.audits):
            audit = audit_file(work, kind) if kind in request.audits else None
            mode = ACCURACY if kind == ACCURACY else PERFORMANCE
            conf = conf_file(request, scenario, work)
            config = request.run_config(scenario, mode, audit, searched_rate, conf)
            row, run = _judged(PlannedRun(scenario, kind, config, MISSING), request, work, made)
            if run is not None:
                made[kind] = run
            known = _calibration(rows, row, run.result if run is not None else None)
            row = _timed(row, request, known)
            rows.append(_measured(row, run) if run is not None and row.state == DONE else row)
    return rows


def search(request: Request, work: Path) -> PlannedRun | None:
    """Returns the `peak` search for Server's rate; None if the request does not need a search."""
    if not request.searches:
        return None
    config = request.search_config()
    state = MISSING if rate.searched(work, config) is None else DONE
    half = MOST_RUNS / 2  # assumes that half of the runs are probes and half are confirmation runs
    expected_s = MOST_RUNS * START_S + half * (PROBE_S + config.duration_ns / 1e9)
    return PlannedRun("Server", SEARCH, config, state, expected_s=expected_s)


def audit_file(work: Path, audit: str) -> Path:
    return (work / f"{audit}.config").absolute()


def conf_file(request: Request, scenario: str, work: Path) -> Path | None:
    """Returns the user.conf that contains the round's settings; None if the scenario does not need it."""
    if request.is_short or scenario not in request.of_round.user_conf:
        return None
    return (work / f"{scenario}.user.conf").absolute()


def write_audits(request: Request, work: Path) -> None:
    """Writes LoadGen's audit.config for each audit, with the settings in compliance/ of mlcommons/inference. Writes
    user.conf for each scenario that has settings in the round.
    """
    texts = {audit_file(work, name): _audit_text(request, name) for name in request.audits}
    for scenario in request.chosen_scenarios:
        if conf := conf_file(request, scenario, work):
            texts[conf] = _conf_text(request, scenario)
    for path, text in texts.items():
        try:
            work.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as e:
            raise ConfigError(
                f"{path} cannot be written ({e.strerror}): pass a different --work"
            ) from e


def _conf_text(request: Request, scenario: str) -> str:
    """Returns the round's settings, followed by the lines from the user's file."""
    given, key = request.options.get("user_conf"), request.loadgen_model(scenario)
    settings = request.of_round.user_conf[scenario]
    lines = [f"{key}.{scenario}.{name} = {value}\n" for name, value in settings.items()]
    return "".join(lines) + (user_conf.lint(Path(str(given))) if given else "")


def _audit_text(request: Request, name: str) -> str:
    settings = request.rules.audit_settings(name, request.benchmark)
    return "".join(f"*.*.{key} = {value}\n" for key, value in settings.items())


def _judged(
    row: PlannedRun, request: Request, work: Path, made: Mapping[str, FinishedRun]
) -> tuple[PlannedRun, FinishedRun | None]:
    """Returns the row with its state, and the newest attempt if it is valid or stale.

    made: earlier runs of the same scenario, by kind.
    """
    folders = attempts(work, row.name)
    if not folders:
        return row, None
    run = FinishedRun(row.scenario, row.kind, folders[-1])
    try:
        state, why = _state(row, request, run, made)
    except ConfigError as e:
        return row._replace(state=FAILED, why=str(e)), None
    row = row._replace(state=state, why=why, folder=run.folder)
    return row, run if state in (DONE, STALE) else None


def _state(
    row: PlannedRun, request: Request, run: FinishedRun, made: Mapping[str, FinishedRun]
) -> tuple[str, str]:
    """Returns the newest attempt's state, and the reason for this state."""
    result, stale = run.result, _stale(row, request, run, made.get(PERFORMANCE))
    if run.folder.name.endswith(".partial") or not _counts(row, request, result):
        return _unfinished(request, run, made, is_stale=bool(stale))
    if why := _powerless(row.config, result, rehearsal=request.rehearsal):
        return FAILED, why
    if stale:
        return STALE, stale
    wrong = run.wrong_size(request.of_round) if request.is_closed else ""
    if why := wrong or fault(run, made, request):
        return FAILED, why
    if why := next(run.unscorable(), ""):
        return DONE, f"`submit pack` refuses it: {why}"
    return DONE, "" if request.rehearsal else _refused(request, run)


def _unfinished(
    request: Request, run: FinishedRun, made: Mapping[str, FinishedRun], *, is_stale: bool
) -> tuple[str, str]:
    """Returns the state of an attempt that has no valid result. If the run's files are unchanged, the attempt may need
    only a score.
    """
    why = _first_reason(run.result)
    if is_stale or not is_pending(run.folder):
        return FAILED, why
    different = fault(run, made, request)
    return (FAILED, different) if different else (UNSCORED, why)


def _refused(request: Request, run: FinishedRun) -> str:
    """Returns why `pack` refuses a finished run; '' if `pack` accepts it. Some runs are acceptable
    only if --describe names an accelerator.
    """
    for accelerated, does in (
        (True, "refuses it"),
        (False, "accepts it only if the system has an accelerator"),
    ):
        if why := next(run.forbidden(request, accelerated=accelerated), ""):
            return f"`submit pack` {does}: {why}"
    return ""


def counts(row: PlannedRun, request: Request, work: Path) -> bool:
    """Returns whether the verdict of the newest attempt allows the run to count."""
    folders = attempts(work, row.name)
    with suppress(ConfigError):
        return bool(folders) and _counts(row, request, read_json(folders[-1] / RESULT))
    return False


def _counts(row: PlannedRun, request: Request, result: Mapping[str, Any]) -> bool:
    """Returns whether the run is VALID, or audits answers and is too short only because of its audit.config."""
    codes = {reason.get("code") for reason in result.get("reasons") or ()}
    return result.get("verdict") == "VALID" or (
        row.kind in request.audits and _is_shortened(row, request) and codes in OF_SHORTENED
    )


def _is_shortened(row: PlannedRun, request: Request) -> bool:
    if not request.of_round.timed:
        return True
    return row.kind in request.audits and _audit_settings(row, request).get("min_duration") == 0


def _audit_settings(row: PlannedRun, request: Request) -> Mapping[str, int | float]:
    return request.rules.audit_settings(row.kind, request.benchmark)


def _first_reason(result: Mapping[str, Any]) -> str:
    reasons = result.get("reasons")
    if isinstance(reasons, list) and reasons and isinstance(reasons[0], dict):
        return str(reasons[0].get("text", "no reason recorded"))
    return "the run did not finish, or is still running"


def _powerless(config: RunConfig, result: Mapping[str, Any], *, rehearsal: bool) -> str:
    """Returns why the power result of a run cannot be submitted; '' if the result can be submitted. rehearsal: whether
    any reading is accepted.
    """
    if not config.meter:
        return ""
    power = result.get("power")
    if not isinstance(power, dict):
        return f"no power reading: {result.get('power_reason')}"
    note = str(power.get("note"))
    return "" if rehearsal or note.startswith(OFFICIAL) else note


def _stale(
    row: PlannedRun, request: Request, run: FinishedRun, performance: FinishedRun | None
) -> str:
    """Returns why a valid run is stale; '' if the run is not stale."""
    settings = run.settings
    if not _is_as_requested(row, request, run):
        return "the run was made with other options"
    if row.kind == PERFORMANCE:
        return ""
    if performance is None:
        return "it has no finished performance run"
    own_data = row.kind == ACCURACY and request.accuracy_data
    for key in _SAME:
        if key == "dataset_digest" and own_data:
            continue
        if settings.get(key) != performance.settings.get(key):
            return f"its {key} differs from the performance run"
    if row.kind in request.audits:
        started = (str(one.result.get("started")) for one in (run, performance))
        return "the performance run is newer" if next(started) < next(started) else ""
    return ""


def _is_as_requested(row: PlannedRun, request: Request, run: FinishedRun) -> bool:
    """Returns whether the run's settings match the requested settings. The paths of audit.config and of the round's
    user.conf may differ.
    """
    asked, expected = load_yaml(asked_file(run.folder)), to_plain(row.config)
    if isinstance(asked, dict) and row.scenario in request.of_round.user_conf:
        names = [Path(str(one.get("user_conf"))).name for one in (asked, expected)]
        asked, expected = (
            {**one, "user_conf": name} for one, name in zip((asked, expected), names, strict=True)
        )
    if row.kind not in request.audits:
        return bool(asked == expected)
    copy = run.logs / user_conf.AUDIT
    text = copy.read_text(encoding="utf-8", errors="replace") if copy.is_file() else ""
    same = isinstance(asked, dict) and {**asked, "audit": ""} == {**expected, "audit": ""}
    return same and text == _audit_text(request, row.kind)


def _calibration(
    rows: Sequence[PlannedRun], row: PlannedRun, own: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Returns this run's calibration, or the calibration of another run in the scenario; {} if neither exists."""
    candidates = [own] if own else []
    for other in rows:
        if other.scenario == row.scenario and other.folder is not None:
            try:
                candidates.append(read_json(other.folder / RESULT))
            except ConfigError:
                continue
    for result in candidates:
        calibration = result.get("calibration")
        known = calibration if isinstance(calibration, dict) else {}
        if known.get("rate_per_s") or known.get("latency_ns"):
            return known
    return {}


def _timed(row: PlannedRun, request: Request, known: Mapping[str, Any]) -> PlannedRun:
    # Only the score is missing, and the time that scoring takes is unknown.
    if row.state == UNSCORED:
        return row
    rate, latency_ns = known.get("rate_per_s"), known.get("latency_ns")
    per_s = 1e9 / latency_ns if latency_ns else rate
    if row.kind == ACCURACY:
        if request.is_short:  # the size of a rehearsal's data set is unknown
            return row
        samples = request.of_round.samples_in(row.scenario)
        seconds = START_S + samples / per_s + ANSWERS_RUN_S if per_s else None
        return row._replace(queries=samples, expected_s=seconds)
    if request.is_short:
        return row._replace(expected_s=_length_s(row, row.config.duration_ns / 1e9))
    least_s = request.rules.min_duration_ms / 1e3
    if _is_shortened(row, request):
        count = _queries_of_shortened(row, request)
        seconds = START_S + count / per_s if per_s else None
        return row._replace(queries=count, expected_s=seconds)
    if row.scenario in AT_A_RATE:
        per_s = row.config.target_qps or request.user_conf_rate(row.scenario)
        if per_s:
            least_s = max(least_s, queries_needed(0, 0.99) / per_s)
    elif row.scenario == "Offline":
        least_s *= OFFLINE_FACTOR
    queries = int(least_s * per_s) if per_s else None
    if per_s and queries and _issues_whole_sets(row, request):
        queries = whole_sets(queries, request.of_round.performance_samples)
        least_s = queries / per_s
    return row._replace(expected_s=_length_s(row, least_s), queries=queries)


def _measured(row: PlannedRun, run: FinishedRun) -> PlannedRun:
    """Returns the row with the number of queries and the time that the finished run recorded."""
    try:
        queries, took_s = run.queries, run.took_s
    except ConfigError:  # `pack` reports the unreadable file
        return row
    seconds = row.expected_s if took_s is None else took_s
    return row._replace(queries=queries or row.queries, expected_s=seconds)


def _issues_whole_sets(row: PlannedRun, request: Request) -> bool:
    audit = _audit_settings(row, request) if row.kind in request.audits else {}
    if audit.get("sample_concatenate_permutation") == 0:
        return False
    return request.of_round.loadgen in request.rules.equal_issue


def _queries_of_shortened(row: PlannedRun, request: Request) -> int:
    least = request.of_round.user_conf.get(row.scenario, {}).get("min_query_count", 0)
    if row.kind not in request.audits:
        return least
    return int(_audit_settings(row, request).get("min_query_count", least))


def _length_s(row: PlannedRun, measured_s: float) -> float:
    """Returns a run's expected duration. A PTDaemon session executes the run twice."""
    once_s = START_S + measured_s
    return 2 * once_s + SESSION_PAUSES_S if row.config.meter else once_s


def problems(request: Request, rows: Sequence[PlannedRun]) -> Iterator[str]:
    if not request.rehearsal:
        yield from _rateless(request, {r.scenario for r in rows if r.state != DONE})
    if any(r.state != DONE for r in rows):
        config = rows[0].config
        named = ("backend", "dataset", "metric", "model", "hook")
        yield from unknown_names({name: getattr(config, name) for name in named})
        for data_dir in dict.fromkeys(row.config.data_dir for row in rows):
            yield from missing_data(data_dir)
        yield from server_problems(config)
        yield from _unscorable(config)
        yield from () if request.rehearsal else _unstated(config.model)
        yield from _of_other_benchmark(request, config) if request.is_closed else ()
    if any(r.config.meter and r.state != DONE for r in rows):
        for _, argument in request.meters:
            yield from PtdaemonMeter(argument).problems()


def _unscorable(config: RunConfig) -> Iterator[str]:
    """Yields the requirements that are missing for the accuracy runs: a package, or the program that scores the
    answers.
    """
    try:
        metric = config.metric or default_metric(load_model(config.model))
    except ConfigError:
        return  # `unknown_names` reports the problem
    lacks = [*registry.missing_extras([("backend", config.backend), ("metric", metric)])]
    yield from lacks
    yield from () if lacks else lacking_program(metric)


def _rateless(request: Request, scenarios: Collection[str]) -> Iterator[str]:
    for scenario in AT_A_RATE:
        searches = scenario == "Server" and request.searches
        if scenario not in scenarios or request.is_rate_given(scenario) or searches:
            continue
        if scenario in (request.of_round.token_limits_ns or {}):
            yield (
                f"{scenario} needs a rate: pass --target-qps or --user-conf with a rate found by `peak --slo ttft:p99=... "
                "--slo tpot:p99=...`"
            )
        else:
            yield (
                f"{scenario} needs a rate: pass --target-qps, --peak with the folder of a `peak` search, "
                "--user-conf, or --slo, e.g. p99=15ms, to search for the rate first"
            )


def notes(request: Request) -> Iterator[str]:
    """Yields notes about options that no row shows and that only a rehearsal accepts."""
    yield from network.notes(request.division, request.options, rehearsal=request.rehearsal)


def _unstated(model: str) -> Iterator[str]:
    try:
        yield from load_model(model).unstated()
    except ConfigError:
        return  # `unknown_names` reports the problem


def _of_other_benchmark(request: Request, config: RunConfig) -> Iterator[str]:
    """Yields a problem if the manifest names another benchmark, or if the model is merely the default model."""
    try:
        manifest = load_model(config.model).manifest
    except ConfigError:
        return  # `unknown_names` reports the problem
    declared, expected = manifest and manifest.mlperf_model, request.of_round.loadgen
    if "model" not in request.options and declared != expected:
        yield (
            f"a run without --model uses {config.model}, which is not the model of {request.benchmark}: pass --model"
        )
    elif declared not in (None, expected):
        names = [n for n, one in request.rules.benchmarks.items() if one.loadgen == declared]
        yield (
            f"--model {config.model} is the model of {' and '.join(names) or declared}, not of {request.benchmark}: pass "
            "a different --model, --division open, or --rehearsal"
        )


def lines(rows: Sequence[PlannedRun]) -> Iterator[str]:
    """Yields one line per run for the terminal, and then the total remaining time."""
    columns = [Column("run"), Column("state"), Column("time", "s"), Column("queries", "count")]
    yield from aligned([*columns, Column("why")], [_cells(row) for row in rows])
    left = [r for r in rows if r.state != DONE]
    seconds = sum(r.expected_s or 0.0 for r in left)
    unknown = sum(r.expected_s is None for r in left)
    more = f" and {unknown} of unknown length" if unknown else ""
    about = "at least" if any(_may_be_longer(r) for r in left) else "about"
    yield f"{len(left)} of {len(rows)} runs remain, {about} {show_s(seconds)}{more}"


def _may_be_longer(row: PlannedRun) -> bool:
    """Returns whether the run's duration is unknown, or known only as the minimum that the rules require."""
    return row.expected_s is None or (row.config.mlperf and row.queries is None)


def _cells(row: PlannedRun) -> Sequence[Cell]:
    time = show_s(row.expected_s) if row.expected_s is not None else "?"
    return row.name, row.state, time, row.queries or "?", row.why


def show_s(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
