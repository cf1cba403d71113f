"""The official client is run point by point and can be resumed; its checkout must stay unmodified."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from harness.cli.main import main
from harness.errors import ConfigError
from harness.submit.endpoints import points, runs
from harness.submit.endpoints.client import checkout
from harness.submit.endpoints.client.config import Template, client_config, mode_of, passes
from harness.submit.endpoints.points import Point
from harness.submit.endpoints.request import make_request
from harness.submit.plan.attempts import RUNS
from tests.builders.refusals import refusal
from tests.builders.submit.endpoints import REQUEST, SAMPLES, TEMPLATE

CLIENT = """\
#!{python}
import json, pathlib, sys, yaml
asked = yaml.safe_load(pathlib.Path(sys.argv[sys.argv.index("--config") + 1]).read_text())
wanted = pathlib.Path("{control}").read_text().split()
if "refuse" in wanted:
    print("ERROR - Config error: no such model")
    sys.exit(2)
if "touch" in wanted:
    pathlib.Path("{source}").write_text("x = 3\\n")
out = pathlib.Path(asked["report_dir"]) / "performance"
if "orphan" in wanted:
    import subprocess
    pathlib.Path("{control}.pid").write_text(str(subprocess.Popen(["sleep", "60"]).pid))
if "late" in wanted:
    pathlib.Path("{control}").write_text(" ".join(word for word in wanted if word != "late"))
    sys.exit("1 service(s) crashed during startup")
if "never" in wanted:
    print("2026-11-27 15:07:13,123 - main - ERROR - no system prompt")
    sys.exit(4)
out.mkdir(parents=True)
(out.parent / "events.jsonl").write_text('{{"event_type":"sample.issued"}}')
if asked["name"].rpartition("-")[2] in wanted:
    print("Traceback: the server is gone")
    sys.exit(1)
content = {{"state": "complete", "complete": True, "mode": sys.argv[-1], "issued": asked["settings"]}}
if "reject" in wanted:
    error = {{"event_type": "error.generic", "data": ["ErrorData", "error", "HTTP 400: no temperature"]}}
    (out.parent / "events.jsonl").write_text('{{"event_type":"sample.issued"}}\\n' + json.dumps(error))
    content |= {{"n_samples_issued": 9, "n_samples_failed": 9}}
(out / "result_summary.json").write_text(json.dumps(content))
"""


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Makes a checkout that looks like the client's checkout."""
    folder = tmp_path / "source"
    package = folder / "src" / "inference_endpoint"
    package.mkdir(parents=True)
    (package / "main.py").write_text("x = 1\n")
    (folder / "link").symlink_to("src")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    return folder


def test_a_clean_checkout_has_a_digest_of_its_files(source: Path) -> None:
    proof = checkout.prove(source)
    assert (proof.changed, proof.files, len(proof.commit)) == ((), 2, 40)
    assert proof == checkout.prove(source)
    assert not proof.is_known


def test_changes_are_found_even_if_size_and_time_stay(source: Path) -> None:
    path = source / "src" / "inference_endpoint" / "main.py"
    times = path.stat()
    before = checkout.prove(source).digest
    path.write_text("x = 2\n")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    proof = checkout.prove(source)
    assert proof.digest != before
    assert any("main.py" in line for line in proof.changed)
    with pytest.raises(ConfigError, match="the rules require the unmodified client, but "):
        checkout.refuse_changed(proof, source)


def test_a_file_that_git_is_asked_to_ignore_is_still_compared(source: Path) -> None:
    git(source, "update-index", "--assume-unchanged", "src/inference_endpoint/main.py")
    (source / "src" / "inference_endpoint" / "main.py").write_text("x = 2\n")
    assert checkout.prove(source).changed == (
        "differs from the commit: src/inference_endpoint/main.py",
    )


def test_an_added_file_is_a_change(source: Path) -> None:
    (source / "src" / "inference_endpoint" / "more.py").write_text("")
    assert checkout.prove(source).changed == ("?? src/inference_endpoint/more.py",)


def test_other_folders_are_not_the_client(tmp_path: Path, source: Path) -> None:
    with pytest.raises(ConfigError, match="is not a git checkout"):
        checkout.prove(tmp_path)
    git(source, "rm", "-r", "-q", "src")
    with pytest.raises(ConfigError, match="pass a checkout of mlcommons/endpoints"):
        checkout.prove(source)


@pytest.fixture
def template(tmp_path: Path) -> Template:
    (tmp_path / "template.yaml").write_text(yaml.safe_dump(dict(TEMPLATE)))
    return Template(tmp_path / "template.yaml")


def test_a_configuration_keeps_sampling_and_sets_the_run(
    template: Template, tmp_path: Path
) -> None:
    request = make_request({**REQUEST, "template": template.path, "tokenizer": tmp_path})
    curve = points.curve(request, 64, SAMPLES)
    found = client_config(request, template, curve.points[3], 66840, tmp_path / "report")
    assert found["settings"]["load_pattern"] == {"type": "concurrency", "target_concurrency": 16}
    runtime = found["settings"]["runtime"]
    assert runtime["n_samples_to_issue"] == 66840
    assert runtime["scheduler_random_seed"] == 10487924139932647040
    assert runtime["dataloader_random_seed"] == 586478644936801402
    assert found["model_params"]["temperature"] == 0.0
    assert found["model_params"]["seed"] == 9315206023656308754
    assert found["endpoint_config"]["endpoints"] == ["http://10.0.0.2:8000"]
    assert mode_of(found) == "both"
    assert mode_of(client_config(request, template, curve.points[2], 1, tmp_path)) == "perf"
    assert template.content["model_params"] == TEMPLATE["model_params"]


def test_a_dedicated_offline_run_issues_the_data_at_once(
    template: Template, tmp_path: Path
) -> None:
    request = make_request({**REQUEST, "template": template.path, "offline": "dedicated"})
    last = points.curve(request, 64, SAMPLES).points[-1]
    found = client_config(request, template, last, 13368, tmp_path)
    assert (found["type"], found["settings"]["load_pattern"]) == (
        "offline",
        {"type": "max_throughput"},
    )


@pytest.mark.parametrize(("rate", "expected"), [(None, 5), (1.0, 5), (100.0, 6), (1000.0, 46)])
def test_passes_fill_the_window_after_the_first_pass(rate: float | None, expected: int) -> None:
    assert passes(Point(16, "", False, least_s=600), 13368, rate) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[", "is not valid YAML"),
        ("- 1", "is not a configuration"),
        ("datasets: []", "needs exactly one data set"),
        ("datasets: [{type: performance}, {type: performance}]", "needs exactly one data set"),
        ("{model_params: a, datasets: [{}]}", "model_params must map keys to values"),
        ("{settings: [1], datasets: [{}]}", "settings must map keys to values"),
        ("{endpoint_config: 5, datasets: [{}]}", "endpoint_config must map keys to values"),
    ],
)
def test_a_template_that_is_not_the_clients_is_refused(
    text: str, problem: str, tmp_path: Path
) -> None:
    (tmp_path / "t.yaml").write_text(text)
    with pytest.raises(ConfigError, match=problem):
        Template(tmp_path / "t.yaml")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"samples": 0}, "samples is 0: write a whole number above 0"),
        ({"samples": -5}, "samples is -5: write"),
        ({"samples": True}, "samples is True: write"),
        ({"samples": "10"}, "samples is '10': write"),
        ({"path": "empty.jsonl"}, "empty.jsonl has no samples: correct `path`"),
    ],
)
def test_a_data_set_without_samples_is_refused(
    row: dict[str, object], problem: str, tmp_path: Path
) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "t.yaml").write_text(yaml.safe_dump({"datasets": [row]}))
    request = make_request({**REQUEST, "rehearsal": True})
    with pytest.raises(ConfigError, match=problem):
        Template(tmp_path / "t.yaml").samples(request)


@pytest.fixture
def work(source: Path, tmp_path: Path) -> Path:
    """Makes a work folder whose client is a stand-in."""
    work, prompts = tmp_path / "work", tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a"}\n' * 10)
    rows = [
        {"name": "d", "type": kind, "path": str(prompts), "accuracy_config": {"eval_method": "string_match"}}
        for kind in ("performance", "accuracy")
    ]  # fmt: skip
    (tmp_path / "template.yaml").write_text(yaml.safe_dump({"datasets": rows}))
    environment = work / checkout.ENVIRONMENT / "bin"
    environment.mkdir(parents=True)
    (environment / "python").symlink_to(sys.executable)
    program = environment / "inference-endpoint"
    control = tmp_path / "control"
    control.write_text("")
    changed = work / checkout.CHECKOUT / "src" / "inference_endpoint" / "main.py"
    program.write_text(CLIENT.format(python=sys.executable, control=control, source=changed))
    program.chmod(0o755)
    options = ["--rehearsal", "--submitter", "Lab", "--system", "box", "--division", "rdi"]
    options += ["--model", "tinylm", "--cohort", "2026-10-C1", "--url", "http://127.0.0.1:9"]
    options += ["--served", "tinylm", "--template", str(tmp_path / "template.yaml")]
    options += ["--c-max", "40", "--duration", "1s"]
    assert main(["endpoints", "plan", "--work", str(work), *options, "--quiet"]) == 0
    return work


def run(work: Path, *words: str) -> int:
    return main(["endpoints", "run", "--work", str(work), "--quiet", *words])


def test_missing_points_are_made_and_finished_ones_are_kept(
    work: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "control").write_text("r40")
    assert run(work, "--client", str(source)) == 4
    assert "exit status 1" in capsys.readouterr().err
    (tmp_path / "control").write_text("")
    assert run(work) == 0
    found = {path.parent.name for path in (work / RUNS).glob("*/attempt-1")}
    assert len(found) == 7
    assert [p.parent.name for p in (work / RUNS).glob("*/attempt-2")] == ["r40"]
    attempt = runs.newest(work, "r40")
    assert attempt is not None
    content = json.loads((attempt.folder / runs.RUN).read_text())
    assert content["client"]["commit"] == checkout.prove(source).commit
    assert content["changed"] is False
    assert (attempt.folder / "host.csv").is_file()
    assert json.loads(attempt.summary.read_text())["mode"] == "both"


def test_a_client_that_did_not_start_is_started_again(
    work: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "control").write_text("late")
    assert run(work, "--client", str(source), "--only", "r1") == 0
    assert "r1 exit status 1" in capsys.readouterr().err
    assert runs.newest(work, "r1") == runs.Attempt(work / RUNS / "r1" / "attempt-2")


def test_a_client_that_never_sends_a_request_ends_the_run(
    work: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "control").write_text("never")
    assert run(work, "--client", str(source)) == 2
    log = work / RUNS / "r1" / "attempt-3" / runs.LOG
    expected = f"ended 3 times before its first request: no system prompt ({log})"
    assert expected in capsys.readouterr().err
    assert len(list((work / RUNS).glob("*/*"))) == 3


def test_a_server_that_fails_every_request_ends_the_run(
    work: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The client reports a point as complete even if all requests of the point failed, and measuring the remaining
    points would take hours.
    """
    (tmp_path / "control").write_text("reject")
    assert run(work, "--client", str(source)) == 2
    expected = "r1: all 9 requests failed, e.g. HTTP 400: no temperature: correct the template"
    assert expected in capsys.readouterr().err
    assert len(list((work / RUNS).glob("*"))) == 1
    assert main(["endpoints", "plan", "--work", str(work)]) == 0
    assert "all 9 requests failed" in capsys.readouterr().out


def test_services_that_outlive_the_client_are_ended(
    work: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.submit.endpoints.client.process._SERVICES_END_S", 0.2)
    (tmp_path / "control").write_text("orphan")
    assert run(work, "--client", str(source), "--only", "r1") == 0
    pid = int((tmp_path / "control.pid").read_text())
    deadline_s = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not is_alive(pid)


def is_alive(pid: int) -> bool:
    """Returns whether the process is running; a zombie process counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_configuration_that_the_client_refuses_ends_the_run(
    work: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "control").write_text("refuse")
    assert run(work, "--client", str(source)) == 2
    assert (
        "refuses its configuration: ERROR - Config error: no such model" in capsys.readouterr().err
    )
    assert len(list((work / RUNS).glob("*"))) == 1


def test_a_client_that_changes_during_a_run_makes_it_failed(
    work: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "control").write_text("touch")
    assert run(work, "--client", str(source), "--only", "r1") == 4
    assert "the client was modified during the run" in capsys.readouterr().err
    assert run(work, "--only", "r1") == 2
    assert "the rules require the unmodified client, but " in capsys.readouterr().err


def test_another_setting_makes_a_point_stale(work: Path, source: Path) -> None:
    assert run(work, "--client", str(source), "--only", "r1") == 0
    attempt = runs.newest(work, "r1")
    assert attempt is not None
    asked = attempt.run()["asked"]
    assert runs.state(work, "r1", asked) == (runs.DONE, "")
    other = {**asked, "model_params": {**asked["model_params"], "seed": 1}}
    assert runs.state(work, "r1", other) == (
        runs.STALE,
        "the run was made with a different model_params.seed",
    )
    assert runs.state(work, "r2", asked) == (runs.MISSING, "")


def test_a_first_run_without_the_client_says_what_to_pass(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(work) == 2
    assert "pass --client, a checkout of mlcommons/endpoints" in capsys.readouterr().err


def test_an_unknown_point_is_refused(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(work, "--only", "r99") == 2
    assert "--only r99: choose from r1" in capsys.readouterr().err


def test_a_template_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    assert refusal(Template, path) == (
        f"--template {path} cannot be read (No such file or directory: {str(path)!r}): pass an example from "
        "mlcommons/endpoints"
    )
    path.write_text("#" * (1 << 20) + "\ndatasets: []\n")
    assert refusal(Template, path) == (
        f"--template {path} is larger than 1 MiB: pass an example from mlcommons/endpoints"
    )
