"""Resolves a run's names and reports every problem that can be found before anything starts."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from operator import attrgetter

from harness.core import registry
from harness.core.config.parse import Ramp
from harness.core.config.run_config import RunConfig
from harness.core.console import say
from harness.core.extras import how_to_install_packages
from harness.core.units import show_duration
from harness.errors import ConfigError, PluginUnavailable
from harness.loadgen import arrivals, user_conf
from harness.loadgen.arrivals import Arrivals
from harness.loadgen.plan import Loaded
from harness.loadgen.scenario import Scenario
from harness.loadgen.versions import PINNED_VERSION, ROUNDS, installed_version
from harness.machine import cores
from harness.machine.power import opening
from harness.models.cache.members import places_of, residents_of
from harness.models.cache.model_set import ModelSet, load_model_set
from harness.models.manifest import requirements
from harness.models.manifest.defaults import default_dataset, default_metric, slos_of
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import Model
from harness.models.opened import instances
from harness.models.opened.formats_read import file_problems, formats_of
from harness.models.opened.loading import missing_data, unknown_names
from harness.models.opened.remote import server_problems, without_token_times
from harness.models.opened.resolved_run import ResolvedRun
from harness.results import resolved
from harness.results.seal import signature
from harness.run.supervisor import before_run


def resolve(config: RunConfig) -> ResolvedRun:
    """Returns the run with names looked up, paths made absolute and defaults filled in. Does not start anything."""
    model = load_model(config.model) if config.models is None else load_model_set(config.models)
    scenario: Scenario = registry.load("scenario", config.scenario)
    defaults = (default_dataset(model), default_metric(model))
    names = (config.dataset or defaults[0], config.metric or defaults[1])
    arrivals = check(config, model, *names)
    # Paths become absolute after the check, because the check's messages quote the paths that the user typed.
    values = resolved.absolute(config)
    values["model"] = model.resolved_name or values["model"]
    config = replace(config, **values)
    return ResolvedRun(
        config=config,
        model=model,
        scenario=scenario,
        dataset=config.dataset or defaults[0],
        metric=config.metric or defaults[1],
        arrivals=arrivals,
        slos=() if config.mlperf else slos_of(scenario, config, model),
        instances=instances.plan(config, scenario, model, cores.available()),
    )


def check(config: RunConfig, model: Model, dataset: str, metric: str | None) -> Arrivals | None:
    """Raises one ConfigError that lists every problem that can be found before anything starts.

    Returns the arrivals of --arrivals; None without this option.
    """
    entry = registry.BACKENDS.get(config.backend)
    names = {"backend": config.backend, "dataset": dataset, "metric": metric}
    names = {**names, "dataset": None} if model.datasets else names
    problems = [*unknown_names(names), *opening.unknown(config.meter)]
    for name in model.datasets:
        problems += unknown_names({"dataset": name})
    problems += missing_data(config.data_dir)
    problems += server_problems(config)
    problems += _version_problems(config)
    problems += _unmet(model, entry)
    problems += file_problems(config, model)
    if config.mode == "accuracy" and model.has_random_weights:
        problems.append(
            f"--mode accuracy: model {model.name!r} has random weights, whose answers have no "
            "accuracy: use --mode performance"
        )
    if config.audit is not None and not config.audit.is_file():
        problems.append(f"--audit {config.audit} does not exist")
    problems += _closed_loop_problems(config)
    problems += before_run.problems(config)
    problems += _token_problems(config, model)
    problems += _stream_problems(config, model)
    problems += _batch_wait_problems(config, model)
    if config.sign is not None and (problem := signature.problem(config.sign)):
        problems.append(problem)
    if config.user_conf is not None:
        try:
            user_conf.lint(config.user_conf)
        except ConfigError as e:
            problems.append(str(e))
    replayed = None
    try:
        replayed = _read_arrivals(config, model)
    except ConfigError as e:
        problems.append(str(e))
    if problems:
        raise ConfigError("\n".join(problems))
    _check_extras(config, metric)
    return replayed


def _unmet(model: Model, entry: registry.Entry | None) -> Iterator[str]:
    """Yields one problem per package that a manifest requires and that is missing or too old on this machine."""
    for each in [m.model for m in model.members] if isinstance(model, ModelSet) else [model]:
        if each.manifest is not None:
            have = requirements.read_environment(entry.needs if entry is not None else None)
            yield from requirements.problems(each.name, each.manifest.requires, have)


def _read_arrivals(config: RunConfig, model: Model) -> Arrivals | None:
    if config.arrivals is None or isinstance(config.arrivals, Ramp):
        return None
    replayed = arrivals.read(config.arrivals, config.arrivals_sha256)
    load = replayed.load(config.queries)
    held = config.performance_count or model.performance_count
    # If `held` is None, the dataset sets the number of samples when it is loaded.
    if held is not None:
        replayed.check_samples(load.query_count, held)
    return replayed


def _closed_loop_problems(config: RunConfig) -> Iterator[str]:
    in_flight, queries = config.concurrency, config.queries
    if in_flight is not None and queries is not None and queries < in_flight:
        yield (
            f"--queries {queries:,} is less than --concurrency {in_flight:,}: raise it, or lower --concurrency"
        )
    if in_flight is not None and config.batch_wait_ns and in_flight < (config.max_batch or inf):
        yield (
            f"--concurrency {in_flight:,} never fills a larger batch, so each batch would wait for --batch-wait: drop it, "
            f"or add --max-batch {in_flight}"
        )


def _token_problems(config: RunConfig, model: Model) -> Iterator[str]:
    of_tokens = [slo for slo in config.slo if slo.of]
    if of_tokens and not config.url and not model.generates:
        yield (
            f"--slo {of_tokens[0].name} needs a language model, but model {model.name!r} generates no tokens: "
            "drop it, or add --url for a language model on a server"
        )
    if of_tokens and config.backend == "openai" and ("stream", "off") in config.backend_option:
        yield without_token_times(config, of_tokens[0])


def _batch_wait_problems(config: RunConfig, model: Model) -> Iterator[str]:
    if config.batch_wait_ns and config.max_batch == 1:
        yield "--batch-wait has no effect with --max-batch 1: drop it"
    if config.mlperf or config.dispatch == "deadline":  # with deadline, the SLO limits the wait
        return
    scenario = registry.load("scenario", config.scenario)
    slo = min(
        (s for s in slos_of(scenario, config, model) if not s.of),
        key=attrgetter("bound_ns"),
        default=None,
    )
    if slo is not None and config.batch_wait_ns >= slo.bound_ns:
        yield (
            f"--batch-wait {show_duration(config.batch_wait_ns)} is not shorter than the SLO {slo}, so a query could miss the SLO "
            "while its batch waits: set a shorter --batch-wait"
        )


def _stream_problems(config: RunConfig, model: Model) -> Iterator[str]:
    if config.streams is None or model.frame_period_ns is not None:
        return
    need = "`frame_period_ms`" if model.has_states else "`states` and `frame_period_ms`"
    yield (
        f"--streams needs a model whose frames come in real time, but the manifest of {model.name!r} has no {need}: "
        "add it (docs/streams.md), or drop --streams"
    )


def _check_extras(config: RunConfig, metric: str | None) -> None:
    """Raises PluginUnavailable with all missing extras. If a meter's extra is missing, also lists all problems of the
    meters.
    """
    needed = [("backend", config.backend), ("metric", metric if config.runs_accuracy else None)]
    missing = list(registry.missing_extras(needed))
    if any(registry.missing_extras([("meter", name) for name, _ in config.meter])):
        missing += opening.refusal(config.meter)
    if missing:
        raise PluginUnavailable("\n".join(missing))


def obtain_model(config: RunConfig, model: Model) -> None:
    """Downloads or creates the model's file if it is missing, so that the measured process can load the file.

    The formats that the backend reads are looked up only if the file may be missing, because the look-up may import the
    backend.
    """
    if model.may_have_to_be_obtained:
        model.obtain(formats_of(config), say)


def check_always_resident(config: RunConfig, model: Model) -> None:
    """Raises ConfigError if the cache cannot hold all models that must always be resident. All model files must exist."""
    if isinstance(model, ModelSet) and any(member.always for member in model.members):
        residents_of(model, places_of(config, model))


def _version_problems(config: RunConfig) -> list[str]:
    """Returns problems with LoadGen's version, because each version implements the rules of one MLPerf round."""
    have = installed_version()
    if config.loadgen_version not in (None, have):
        say(
            f"this configuration was written for LoadGen {config.loadgen_version}, but {have} is installed"
        )
    if have in ROUNDS:
        return []
    advice = how_to_install_packages(f"mlcommons-loadgen=={PINNED_VERSION}")
    if config.mlperf:
        return [f"--mlperf needs LoadGen {PINNED_VERSION}, but {have} is installed: {advice}"]
    say(f"LoadGen {have} is installed, but this harness was tested with {PINNED_VERSION}: {advice}")
    return []


def check_digests(config: RunConfig, loaded: Loaded) -> None:
    """Raises ConfigError if the model file or the data changed after config.yaml was written."""
    _raise_changed(
        (config.model_sha256, config.dataset_digest),
        loaded,
        "has changed: its digest is {now}, but this configuration was written for {before}. Restore it, or "
        "remove {key} from the configuration",
    )


def check_unchanged(before: Loaded | None, now: Loaded) -> None:
    """Raises ConfigError if the files of the accuracy run differ from the files of the performance run.

    before: data that the performance run loaded; None if there was no performance run.
    """
    if before is not None:
        _raise_changed(
            (before.model_sha256, before.dataset.get("digest")),
            now,
            "has changed since the performance run: its digest is {now}, but was {before}. Run again",
        )


def _raise_changed(before: tuple[str | None, str | None], now: Loaded, text: str) -> None:
    """Raises ConfigError if a digest differs. before: digests of the model file and the dataset; None if unknown."""
    problems = [
        f"{what} {text.format(key=key, now=f'{str(have)[:12]}…', before=f'{expected[:12]}…')}"
        for what, key, expected, have in (
            ("the model file", "model_sha256", before[0], now.model_sha256),
            ("the dataset", "dataset_digest", before[1], now.dataset.get("digest")),
        )
        if expected is not None and expected != have
    ]
    if problems:
        raise ConfigError("\n".join(problems))
