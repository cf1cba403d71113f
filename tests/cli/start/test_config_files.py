"""Files for --config: presets, several files, options of other verbs, and which value wins."""

import re
from pathlib import Path
from typing import Any

import pytest

from harness.cli.start.config_files import CONFIG_FLAG, presets
from harness.cli.verbs import VERBS
from harness.core.config.options import option_key
from harness.core.config.run_config import RunConfig
from harness.core.units import NS_PER_S
from tests.builders.refusals import refused
from tests.faults.command import run_here

SERVER = ("--scenario", "server")


class Called:
    """Calls `run` with the words; returns the run's configuration, and keeps the output."""

    def __init__(self) -> None:
        self.configs: list[RunConfig] = []
        self.said = ""

    def execute(self, config: RunConfig, *_: Any, **__: Any) -> int:
        self.configs.append(config)
        return 0

    def __call__(self, *words: str) -> RunConfig:
        status, _, self.said = run_here(*words)
        assert status == 0
        return self.configs.pop()


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Called:
    """Runs in an empty folder."""
    monkeypatch.chdir(tmp_path)
    made = Called()
    monkeypatch.setattr("harness.run.supervisor.job.execute", made.execute)
    monkeypatch.setattr("harness.search.repeats.repeat", made.execute)
    return made


def write(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


@pytest.mark.parametrize(
    ("preset", "values"),
    [
        ("quick", {"duration_ns": 2 * NS_PER_S, "mode": "performance"}),
        ("ci", {"duration_ns": 3 * NS_PER_S, "no_report": True, "no_metrics": True}),
        ("thorough", {"duration_ns": 60 * NS_PER_S, "mode": "both"}),
        ("mlperf", {"mlperf": True}),
    ],
)
def test_a_preset_sets_its_options(preset: str, values: dict[str, object], called: Called) -> None:
    config = called(CONFIG_FLAG, preset, *SERVER)
    assert {name: getattr(config, name) for name in values} == values


def test_an_unknown_preset_is_reported_with_the_known_ones(called: Called) -> None:
    """Bug: the message was "quik cannot be read: No such file or directory"."""
    assert refused(CONFIG_FLAG, "quik", *SERVER) == [
        "--config quik is neither a file nor a preset: the presets are ci, mlperf, quick, thorough"
    ]
    Path("quik").write_text("duration: 5s\n")
    assert called(CONFIG_FLAG, "quik", *SERVER).duration_ns == 5 * NS_PER_S


def test_the_command_line_wins_over_a_preset(called: Called) -> None:
    config = called(CONFIG_FLAG, "quick", *SERVER, "--duration", "5s")
    assert (config.duration_ns, config.mode) == (5 * NS_PER_S, "performance")


def test_every_preset_is_named_by_list_and_in_the_help() -> None:
    assert [*presets()] == ["ci", "mlperf", "quick", "thorough"]
    status, listed, _ = run_here("list")
    assert status == 0
    for name, about in presets().items():
        assert about[0].islower()
        assert re.search(rf"^  {name} +{re.escape(about)}$", listed, re.MULTILINE)
    page = " ".join(VERBS["run"].parser().format_help().split())
    assert "preset (ci, mlperf, quick, thorough)" in page


def test_the_last_of_several_files_wins_and_resets_dependent_options(called: Called) -> None:
    """A run's config.yaml contains the count as well as the duration, and a later duration replaces both."""
    write("run.yaml", "scenario: server\nbackend: 'null'\nqueries: 5000\nmax_batch: 4\n")
    config = called(CONFIG_FLAG, "run.yaml", CONFIG_FLAG, "quick")
    assert (config.backend, config.max_batch) == ("null", 4)
    assert (config.queries, config.duration_ns) == (None, 2 * NS_PER_S)
    config = called(CONFIG_FLAG, "quick", CONFIG_FLAG, "run.yaml")
    assert (config.queries, config.mode) == (5000, "performance")
    config = called(CONFIG_FLAG, "quick", CONFIG_FLAG, "mlperf", *SERVER)
    assert (config.mlperf, config.duration_ns) == (True, RunConfig(scenario="server").duration_ns)


def test_a_file_named_like_a_preset_needs_its_folder(called: Called) -> None:
    write("quick", "duration: 7s\n")
    assert called(CONFIG_FLAG, "quick", *SERVER).duration_ns == 2 * NS_PER_S
    told = "harness: --config quick is the preset: write ./quick for the file here\n"
    assert called.said == told
    assert called(CONFIG_FLAG, "./quick", *SERVER).duration_ns == 7 * NS_PER_S
    assert called.said == ""


def test_options_of_another_verb_in_a_file_are_skipped_with_a_message(
    called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []

    def find(config: RunConfig, own: Any, *_: Any, **__: Any) -> int:
        found.append((config.scenario, own.probe_ns))
        return 0

    monkeypatch.setattr("harness.search.peak.job.find", find)
    file = write("my.yaml", "scenario: server\nslo: p99=10ms\nprobe: 1s\nrepeats: 3\n")
    told = "harness: my.yaml: repeats is skipped: it is an option of `run`\n"
    assert run_here("peak", CONFIG_FLAG, file) == (0, "", told)
    assert run_here("peak", CONFIG_FLAG, file, "--probe", "2s", "--quiet") == (0, "", "")
    assert found == [("server", NS_PER_S), ("server", 2 * NS_PER_S)]
    called(CONFIG_FLAG, file)
    assert "my.yaml: probe is skipped: it is an option of `peak`" in called.said


def test_a_wrong_value_of_a_verb_option_is_reported_in_one_line(called: Called) -> None:
    assert refused(CONFIG_FLAG, write("my.yaml", "scenario: server\nrepeats: 1\n")) == [
        "--repeats: 1 must be between 2 and 1,000 (my.yaml sets --repeats)"
    ]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("--config", "mlperf", *SERVER, "--duration", "3s"),
            "--duration cannot be set with --mlperf: a run takes 600 s (the preset mlperf sets --mlperf)",
        ),
        (
            # The user typed --mlperf, so the message names no file.
            ("--config=mlperf", *SERVER, "--time", "3", "--mlperf"),
            "--duration cannot be set with --mlperf: a run takes 600 s",
        ),
        (
            ("--config", "a.yaml", "--config", "b.yaml", *SERVER),
            ("--pin gives each thread a separate core, --oversubscribe shares cores: drop one "
            "(b.yaml sets --pin and --oversubscribe)"),
        ),
        (
            ("--config", "a.yaml", "--config", "c.yaml"),
            ("--target-qps belongs to --scenario server: drop it for offline (c.yaml sets --target-qps "
            "and --scenario)"),
        ),
        (
            ("peak", "--config", "mlperf", *SERVER),
            "peak makes quick runs: drop --mlperf, and use --write-user-conf FILE for an official run (the preset mlperf sets --mlperf)",
        ),
    ],
)  # fmt: skip
def test_a_problem_names_the_file_that_set_the_option(
    words: tuple[str, ...], line: str, called: Called
) -> None:
    """Bug: with several files, the message did not name the file to change."""
    write("a.yaml", "pin: true\ntarget_qps: 5\n")
    write("b.yaml", "oversubscribe: true\npin: true\n")
    write("c.yaml", "scenario: offline\ntarget_qps: 7\npin: null\n")
    assert refused(*words) == [line]


def test_no_verb_option_shares_a_key_with_a_run_option() -> None:
    """With a shared key, a file could not say which of the two options it sets."""
    run = {option_key(field): field for field in RunConfig.__dataclass_fields__.values()}
    for verb in VERBS.values():
        parser = verb.parser()
        if parser.has(CONFIG_FLAG):
            own = {key for key, field in parser.fields.items() if run.get(key) is not field}
            assert own & run.keys() == set()


PLAN = "instances: 1\nthreads: 1\nmax_batch: 4\n"


def of_run(text: str) -> str:
    """Puts the text where a run's config.yaml would be, and returns the path."""
    folder = Path("run")
    folder.mkdir()
    (folder / "result.json").write_text("{}")
    return write("run/config.yaml", text)


@pytest.mark.parametrize(
    ("text", "words", "kept", "told"),
    [
        # The values in the user's file stay unless the command line sets the option.
        (f"scenario: offline\n{PLAN}", "--scenario server", (1, 1, 4), ""),
        (f"scenario: offline\n{PLAN}", "--scenario offline", (1, 1, 4), ""),
        (PLAN, "--scenario server", (1, 1, 4), ""),
        (f"model: digits\n{PLAN}", "--scenario server --model light/squeezenet", (1, 1, 4), ""),
        (PLAN, "--scenario server --instances 2", (2, 1, 4), ""),
        (f"backend: ort\n{PLAN}", "--scenario server --backend null", (1, 1, 4), ""),
        (f"slo: p99=5ms\nqueries: 700\n{PLAN}", "--scenario server --slo p99=9ms", (1, 1, 4), ""),
        # If the command line excludes an option of the file, the message must name both options.
        (
            f"queries: 700\n{PLAN}",
            "--scenario server --duration 5s",
            (1, 1, 4),
            "my.yaml: --queries left out, because the command line sets --duration",
        ),
        (
            f"duration: 5s\n{PLAN}",
            "--scenario server --queries 700",
            (1, 1, 4),
            "my.yaml: --duration left out, because the command line sets --queries",
        ),
        (
            f"concurrency: 3\n{PLAN}",
            "--scenario server --target-qps 9",
            (1, 1, 4),
            "my.yaml: --concurrency left out, because the command line sets --target-qps",
        ),
    ],
)
def test_values_of_a_file_survive_unrelated_options(
    called: Called, text: str, words: str, kept: tuple[int, int, int], told: str
) -> None:
    """Bug: instances, threads and max_batch were lost if the command line had --scenario or --model."""
    config = called(CONFIG_FLAG, write("my.yaml", text), *words.split())
    assert (config.instances, config.threads, config.max_batch) == kept
    assert called.said == (f"harness: {told}\n" if told else "")


def test_values_that_a_scenario_does_not_take_are_left_out_of_files(called: Called) -> None:
    """Bug: `target_qps` in a file made the harness refuse `--scenario offline`, although a file may be used with any
    scenario.
    """
    file = write("o.yaml", "scenario: server\ntarget_qps: 100\nslo: p99=9ms\n")
    config = called(CONFIG_FLAG, file, "--scenario", "offline")
    assert (config.target_qps, config.slo) == (None, ())
    told = "--target-qps, --slo left out, because the command line sets --scenario offline"
    assert called.said == f"harness: {file}: {told}\n"
    config = called(CONFIG_FLAG, file, "--scenario", "single-stream")
    assert (config.target_qps, len(config.slo)) == (None, 1)
    later = write("p.yaml", "scenario: offline\n")
    config = called(CONFIG_FLAG, file, CONFIG_FLAG, later, "--slo", "p99=5ms")
    assert (config.target_qps, len(config.slo)) == (None, 1)
    assert called.said == (
        f"harness: {file}: --target-qps left out, because {later} sets --scenario offline\n"
    )
    own = write("q.yaml", "scenario: offline\ntarget_qps: 100\n")
    assert refused(CONFIG_FLAG, own)[0].startswith("--target-qps belongs to")


@pytest.mark.parametrize(
    ("words", "kept", "told"),
    [
        ("", (1, 1, 4, 900), ""),
        # The command line sets the same value as the file, so nothing changes.
        ("--scenario server", (1, 1, 4, 900), ""),
        ("--slo p99=9ms", (1, 1, 4, None), "--queries left out, because the command line sets --slo"),
        ("--instances 2", (2, None, 4, 900), "--threads left out, because the command line sets --instances"),
        (
            "--scenario offline",
            (None, None, None, None),
            "--queries, --slo, --instances, --threads, --max-batch left out, because the command line sets --scenario",
        ),
        ("--scenario offline --threads 1 --quiet", (None, 1, None, None), ""),
    ],
)  # fmt: skip
def test_a_run_file_reports_which_resolved_values_it_drops(
    called: Called, words: str, kept: tuple[int | None, ...], told: str
) -> None:
    file = of_run(f"scenario: server\nslo: p99=5ms\nqueries: 900\n{PLAN}")
    config = called(CONFIG_FLAG, file, *words.split())
    assert (config.instances, config.threads, config.max_batch, config.queries) == kept
    assert called.said == (f"harness: {file}: {told}\n" if told else "")


@pytest.mark.parametrize(
    ("words", "keeps", "sets"),
    [
        ("--backend ort", True, ""),  # ort is the default backend, so the file was written for it
        ("--model digits", True, ""),
        ("--backend litert", False, "--backend"),
        ("--model light/squeezenet", False, "--model"),
    ],
)
def test_a_model_file_is_kept_with_the_options_it_was_written_for(
    called: Called, words: str, keeps: bool, sets: str
) -> None:
    """Bug: with `model_file: int8.onnx` and `--backend ort`, the float32 file was silently measured."""
    file = write("my.yaml", "model_file: int8.onnx\n")
    config = called(CONFIG_FLAG, file, "--scenario", "offline", *words.split())
    assert config.model_file == (Path("int8.onnx") if keeps else None)
    told = f"harness: my.yaml: model_file left out, because the command line sets {sets}\n"
    assert called.said == (told if sets else "")


def test_an_option_set_to_false_excludes_nothing(called: Called) -> None:
    """Bug: every config.yaml contains `pin: false` and `mlperf: false`, and these values dropped options from the file
    before it.
    """
    write("a.yaml", "oversubscribe: true\nqueries: 100\n")
    write("b.yaml", "pin: false\nmlperf: false\n")
    config = called(CONFIG_FLAG, "a.yaml", CONFIG_FLAG, "b.yaml", *SERVER)
    assert (config.oversubscribe, config.queries) == (True, 100)
    assert called.said == ""


def test_an_option_restored_by_a_later_file_is_not_reported_as_lost(called: Called) -> None:
    write("q.yaml", "queries: 100\n")
    write("d.yaml", "duration: 5s\n")
    files = [word for name in ("q.yaml", "d.yaml", "q.yaml") for word in (CONFIG_FLAG, name)]
    assert called(*files, *SERVER).queries == 100
    told = "harness: d.yaml: --duration left out, because q.yaml sets --queries\n"
    assert called.said == told


def test_a_seed_replaces_all_seeds_in_a_copy_of_a_run_file(called: Called) -> None:
    """Bug: --seed had no effect, because the copy had no result.json next to it."""
    write("copy.yaml", "scenario: server\nqsl_seed: 1\nsample_index_seed: 2\nschedule_seed: 3\n")
    config = called(CONFIG_FLAG, "copy.yaml", "--seed", "5")
    assert (config.seed, config.qsl_seed, config.schedule_seed) == (5, None, None)


def test_a_search_reports_the_options_that_it_chooses_itself(
    called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.search.tune.job.tune", called.execute)
    config = called("tune", CONFIG_FLAG, write("my.yaml", f"scenario: offline\n{PLAN}"))
    assert (config.instances, config.threads, config.max_batch) == (None, None, None)
    assert called.said == (
        "harness: my.yaml: --instances, --threads, --max-batch left out, because this verb chooses the value itself\n"
    )
