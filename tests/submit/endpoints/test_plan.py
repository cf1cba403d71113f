"""The verbs plan and pack: what a request stores, what the plan prints, and what pack refuses."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.cli.main import main
from harness.core.formats.strict_yaml import write_yaml
from harness.errors import ConfigError
from harness.results.run_folder import PEAK, RESULT
from harness.submit.endpoints import runs
from harness.submit.endpoints.pack.description import read_description
from harness.submit.endpoints.pack.pack import pack
from harness.submit.endpoints.plan import own
from harness.submit.endpoints.plan.alone import alone
from harness.submit.endpoints.plan.c_max import FOLDER
from harness.submit.endpoints.plan.rehearse import Rehearsed, warnings
from harness.submit.endpoints.plan.saturation import known_saturation
from harness.submit.endpoints.points import Point
from harness.submit.endpoints.request import make_request, read_request, write_request
from tests.builders.submit.endpoints import DESCRIBE, REQUEST, TEMPLATE, made_work, put_json


@pytest.fixture
def template(tmp_path: Path) -> Path:
    path = tmp_path / "template.yaml"
    path.write_text(yaml.safe_dump(dict(TEMPLATE)))
    return path


def words(work: Path, file: Path, **changes: str) -> list[str]:
    """Returns the words of `endpoints plan` for the request that the other tests use."""
    options = {
        **{
            key: str(REQUEST[key]) for key in ("submitter", "system", "division", "model", "cohort")
        },
        "url": "http://10.0.0.2:8000",
        "served": "llama",
        "template": str(file),
        "c-max": "64",
        **changes,
    }
    return [
        "endpoints",
        "plan",
        "--work",
        str(work),
        *(f"--{k}={v}" for k, v in options.items() if v),
    ]


def test_the_plan_prints_regions_points_and_seeds(
    template: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(tmp_path / "w", template)) == 0
    out, err = capsys.readouterr()
    assert "regions     ultra-low 1-32, low 2-5, medium 6-17, high 18-64, margin 65-71" in out
    assert "seeds       set A of 2026-10-C1, for cohort 2026-10-C1" in out
    assert "7 of 7 points remain" in out
    assert "r64" in out
    assert "high and Offline" in out
    assert "no approved drafter" in err
    assert "model_seed is above 2^63 - 1" in err


def test_later_calls_need_only_the_folder(
    template: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(tmp_path / "w", template)) == 0
    assert main(["endpoints", "plan", "--work", str(tmp_path / "w")]) == 0
    assert main(["endpoints", "plan", "--work", str(tmp_path / "w"), "--c-max", "128"]) == 2
    assert "edit the file, or pass a different --work" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"c-max": "32"}, "the rules require more than 32"),
        ({"c-max": "x"}, "write a whole number"),
        ({"c-max": "9" * 5000}, "write a whole number"),
        ({"c-max": "2000000"}, "at most 1,000,000"),
        ({"points": "1,4,2000000"}, "at most 1,000,000"),
        ({"model": "llama3.1-8b"}, "choose from llama3_1-8b"),
        ({"division": "closed"}, "choose from standardized"),
        ({"cohort": "2026-10"}, "write the cohort as"),
        ({"cohort": "2028-01-C0"}, "has no seed set"),
        ({"duration": "2s"}, "is for a rehearsal"),
        ({"points": "1,1,2"}, "write different numbers"),
        ({"c-max": "", "url": ""}, "pass --c-max N, or --url"),
        ({"template": ""}, "--template is missing"),
        ({"submitter": "a b"}, "is not a folder name"),
        ({"url": "ftp://box"}, "--url: 'ftp://box' is not a server URL"),
        ({"c-max": "", "slo": "fast"}, "--slo: 'fast' is not an SLO"),
    ],
)
def test_a_wrong_request_is_refused(
    changes: dict[str, str],
    text: str,
    template: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(words(tmp_path / "w", template, **changes)) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [{"template": "typo.yaml"}, {"points": "1,2,3"}])
def test_a_refused_request_is_not_stored(
    wrong: dict[str, str], template: Path, tmp_path: Path
) -> None:
    assert main(words(tmp_path / "w", template, **wrong)) == 2
    assert main(words(tmp_path / "w", template)) == 0


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("c_max", 64.5, "c_max is 64.5: write a whole number"),
        ("c_max", True, "c_max is True: write a whole number"),
        ("system", 5, "system is 5: write a string"),
        ("rehearsal", "maybe", "rehearsal is 'maybe': write true or false"),
        ("url", "http://x", "url is 'http://x': write a list in which each entry is a string"),
        (
            "points",
            [1, "a"],
            "points is [1, 'a']: write a list in which each entry is a whole number",
        ),
        ("duration_s", "2s", "duration_s is '2s': write a number"),
    ],
)
def test_an_edited_request_of_a_wrong_type_is_refused(
    key: str, value: object, text: str, tmp_path: Path
) -> None:
    write_yaml(tmp_path / "request.yaml", {**REQUEST, key: value})
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path / 'request.yaml'}: {text}")):
        read_request(tmp_path)


def test_rates_of_a_rehearsal_give_passes_and_hours(
    template: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "w"
    assert main(words(work, template, points="1,4,8,16,32,48,64")) == 0
    for concurrency, rate in ((1, 0.5), (64, 500.0)):
        folder = own.point_folder(work, f"r{concurrency}")
        put_json(folder / RESULT, {"verdict": "VALID", "throughput_per_s": {"completed": rate}})
    assert main(["endpoints", "plan", "--work", str(work)]) == 0
    out, err = capsys.readouterr()
    row = [line.split() for line in out.splitlines() if line.startswith("r64")][-1]
    # At 500/s, the 1,200 s after the first pass take 44.9 passes of 13,368 samples.
    assert row[5:8] == ["missing", "46", "614,928"]
    assert "r1 takes 44:33:46, because the rules require at least 5 passes of the data set" in err


@pytest.mark.parametrize("rate", ["fast", -3, 0, True, None])
def test_a_rehearsal_without_a_number_as_rate_gives_no_hours(
    rate: object, template: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "w"
    assert main(words(work, template)) == 0
    content = {
        "verdict": "VALID",
        "throughput_per_s": {"completed": rate},
        "tokens": {"ttft_ns": {"p90": "x"}, "output_per_s": [1]},
    }
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("r") and line[1].isdigit():
            put_json(own.point_folder(work, line.split()[0]) / RESULT, content)
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n')
    assert main(["endpoints", "plan", "--work", str(work)]) == 0
    assert "7 of unknown length" in capsys.readouterr().out
    assert main(["endpoints", "rehearse", "--work", str(work), "--prompts", str(tmp_path / "p.jsonl")]) == 0  # fmt: skip
    row = next(one for one in capsys.readouterr().out.splitlines() if one.startswith("r64"))
    assert row.split() == ["r64", "VALID", "-", "-", "-", "-", "-"]


def test_a_folder_with_another_name_than_attempts_is_ignored(tmp_path: Path) -> None:
    for name in ("attempt-old", "attempt-2", "attempt-10", "attempt-"):
        (runs.point_folder(tmp_path, "r1") / name).mkdir(parents=True)
    assert runs.newest(tmp_path, "r1") == runs.Attempt(tmp_path / "runs/r1/attempt-10")
    assert runs.next_attempt(tmp_path, "r1").folder.name == "attempt-11"


@pytest.mark.parametrize("content", [{}, {"c_max": "64"}])
def test_an_edited_result_of_the_search_is_refused(content: object, tmp_path: Path) -> None:
    put_json(tmp_path / "saturation.json", content)
    with pytest.raises(ConfigError, match="is not a whole number: remove the file"):
        known_saturation(tmp_path)


def test_a_rehearsal_without_a_server_ends_with_one_error(
    template: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n')
    options = {"url": "http://127.0.0.1:1", "prompts": str(tmp_path / "p.jsonl")}
    work = tmp_path / "w"
    assert main(words(work, template, **options)) == 0
    for verb, more in (("rehearse", ["--each", "0s"]), ("rehearse", [])):
        capsys.readouterr()
        assert main(["endpoints", verb, "--work", str(work), "--quiet", *more]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        expected = "--each 0s is too short" if more else "r1 was not measured: --url http://127.0.0.1:1 cannot be reached"  # fmt: skip
        assert expected in line
    for slo, what in (("", "r34"), ("p99=1s", "the search for C_max")):
        again = words(tmp_path / f"search{slo}", template, **options, **{"c-max": "", "slo": slo})
        assert main([*again, "--quiet"]) == 2
        assert f"{what} was not measured: --url" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verb", "c_max"), [("plan", ""), ("rehearse", "64"), ("run", "64")], ids=lambda one: one
)
def test_verbs_that_measure_wait_for_each_other(
    verb: str, c_max: str, template: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n')
    options = {"prompts": str(tmp_path / "p.jsonl"), "c-max": c_max}
    command = words(tmp_path / "w", template, **options)
    with alone(tmp_path / "w"):
        assert main([command[0], verb, *command[2:]]) == 2
    assert "is locked by another `endpoints` verb that is measuring" in capsys.readouterr().err
    (tmp_path / "w" / "run.lock").unlink()
    (tmp_path / "w" / "run.lock").mkdir()
    assert main([command[0], verb, *command[2:]]) == 2
    assert "run.lock cannot be written (Is a directory)" in capsys.readouterr().err


def test_c_max_comes_from_a_finished_search(
    template: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "w"
    values = {**REQUEST, "template": template, "c_max": None, "slo": "tpot:p99=50ms", "points": ()}
    write_request(work, make_request({k: v for k, v in values.items() if v is not None}))
    put_json(work / FOLDER / PEAK, {"unit": "in flight", "peak": 100})
    assert main(["endpoints", "plan", "--work", str(work)]) == 0
    assert "C_max       100" in capsys.readouterr().out
    put_json(work / FOLDER / PEAK, {"unit": "in flight", "peak": None})
    assert main(["endpoints", "plan", "--work", str(work)]) == 2
    assert "found no concurrency that meets" in capsys.readouterr().err


def test_prompts_of_the_template_become_chats_of_our_client(tmp_path: Path) -> None:
    rows = [{"q": "sort 21=", "a": "12"}, {"q": "sort 3=", "a": "3"}]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {"eval_method": "string_match", "ground_truth": "a"}
    sets = [
        {"type": "performance", "path": "d.jsonl", "parser": {"prompt": "q"}},
        {
            "type": "accuracy",
            "path": "d.jsonl",
            "parser": {"prompt": "q"},
            "accuracy_config": config,
        },
    ]
    content = {"model_params": {"temperature": 0.0, "max_new_tokens": 24}, "datasets": sets}
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(content))
    from harness.submit.endpoints.client.config import Template

    request = make_request({**REQUEST, "template": tmp_path / "t.yaml"})
    found = own.prepare(request, Template(tmp_path / "t.yaml"), tmp_path / "w")
    lines = (tmp_path / "w" / own.FOLDER / "prompts.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {
        "messages": [{"role": "user", "content": "sort 21="}],
        "reference": "12",
        "temperature": 0.0,
        "max_tokens": 24,
    }
    assert found.metric == "exact_match"
    assert found.words[-2:] == ["--url", "http://10.0.0.2:8000"]


def rehearsed(concurrency: int, tokens: float, **changes: Any) -> Rehearsed:
    rates = own.Rates("VALID", 1.0, tokens, {"p90": 1.0}, {"p90": 1.0}, None, (), ())
    return Rehearsed(Point(concurrency, "", False), rates._replace(**changes))


@pytest.mark.parametrize(
    ("found", "texts"),
    [
        ([rehearsed(1, 10), rehearsed(4, 30)], []),
        ([rehearsed(4, 30), rehearsed(8, 20)], ["smaller C_max"]),
        ([rehearsed(4, 30, verdict="INVALID", reasons=("late",))], ["r4 is INVALID: late"]),
        ([rehearsed(4, 30, codes=("client-bound",))], ["the client limits the rate"]),
        ([rehearsed(4, 30, tpot_ns={})], ["has no TPOT"]),
        ([Rehearsed(Point(4, "", False), None)], ["no result"]),
    ],
)
def test_a_rehearsal_warns_of_what_will_fail(found: list[Rehearsed], texts: list[str]) -> None:
    lines = list(warnings(found))
    assert len(lines) == len(texts)
    assert all(text in line for text, line in zip(texts, lines, strict=True))


def described(work: Path, **changes: object) -> Path:
    path = work / "describe.yaml"
    content = {**DESCRIBE, **changes}
    write_yaml(path, {key: value for key, value in content.items() if value is not None})
    return path


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"driver": None}, "driver cannot be read from the machine"),
        ({"power": None}, "the standardized division requires power"),
        ({"power": {"cooling": "steam", "node_sets": []}}, "cooling is 'steam'"),
        ({"colour": "red"}, "unknown keys colour"),
        ({"data_parallel": "four"}, "write a whole number"),
        ({"batch": True}, "batch is True: write a whole number"),
        ({"readme": "nowhere.md"}, "the file .*nowhere.md does not exist: correct readme"),
        ({"readme": "documents"}, "the file .*documents does not exist"),
        ({"docs": "nowhere"}, "the folder .*nowhere does not exist: correct docs"),
        ({"server_configs": "readme.md"}, "the folder .*readme.md does not exist"),
        ({"readme": "binary.md"}, "binary.md is not a text file"),
        ({"points": [1]}, "points must map concurrencies to values"),
        ({"points": {16: 4}}, "points.16 must map keys to values"),
        ({"points": {16: {"btch": 64}}}, "points.16 has unknown keys btch"),
        ({"points": {16: {"number_of_nodes": "two"}}}, "number_of_nodes is 'two': write"),
        (
            {"points": {17: {"batch": 64}}},
            "points.17 in the --describe file is not a point of the submission: choose from 1, 4",
        ),
    ],
)
def test_pack_refuses_an_incomplete_description(
    changes: dict[str, object], text: str, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    request, template, curve = made_work(work)
    (work / "binary.md").write_bytes(b"\xff\x00")
    with pytest.raises(ConfigError, match=text):
        pack(
            request,
            template,
            curve,
            read_description([described(work, **changes)], request),
            work,
            tmp_path / "tree",
        )
    assert not (tmp_path / "tree").exists()


def edit(path: Path, **changes: object) -> None:
    put_json(path, {**json.loads(path.read_text()), **changes})


def without_accuracy(attempt: runs.Attempt) -> None:
    """Makes a witnessed run without an accuracy result."""
    attempt.accuracy.unlink()
    edit(attempt.folder / runs.WITNESS, accuracy_sha256=None)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda a: (a.folder / runs.WITNESS).unlink(), "run `endpoints witness` first"),
        (lambda a: put_json(a.summary, {"duration_ns": 1}), "belongs to another result"),
        (lambda a: put_json(a.accuracy, {"accuracy_scores": []}), "belongs to another result"),
        (without_accuracy, "has no accuracy result"),
        (lambda a: put_json(a.folder / runs.RUN, {"status": 1, "asked": {}}), "status 1"),
        (lambda a: put_json(a.folder / runs.RUN, {"status": 0}), "has no configuration"),
        (lambda a: edit(a.folder / runs.RUN, asked={}), "has a file with invalid content"),
        (lambda a: edit(a.folder / runs.WITNESS, rows=None), "run `endpoints witness` again"),
        (lambda a: a.summary.unlink(), "the client wrote no result"),
        (lambda a: (a.report / "config.yaml").write_text("["), "config.yaml is not valid YAML"),
        (
            lambda a: edit(
                a.folder / runs.WITNESS,
                rows=[{"name": "tps", "agrees": False, "recomputed": 1.0}],
            ),
            "1 numbers differ from the events, e.g. tps",
        ),
    ],
)
def test_pack_refuses_a_run_that_does_not_count(change: object, text: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    request, template, curve = made_work(work)
    attempt = runs.newest(work, "r64")
    assert attempt is not None
    assert callable(change)
    change(attempt)
    with pytest.raises(ConfigError, match=text):
        pack(
            request,
            template,
            curve,
            read_description([work / "describe.yaml"], request),
            work,
            tmp_path / "tree",
        )


def test_the_tree_has_no_secret_and_no_path_of_the_machine(tmp_path: Path) -> None:
    from tests.builders.submit.endpoints import made_tree

    tree = made_tree(tmp_path)
    texts = "".join(p.read_text() for p in tree.rglob("*") if p.is_file())
    assert "k-secret" not in texts
    assert str(tmp_path) not in texts


def test_facts_of_mlperf_sysinfo_are_taken_without_empty_values(tmp_path: Path) -> None:
    node = {
        "host_memory_configuration": "8x 32 GB",
        "driver": "N/A",
        "filesystem": "ext4",
        "cooling": "",
    }
    put_json(tmp_path / "system_desc.json", {"node_types": [node], "config_summary": "", "mlperf_sysinfo": {"user": "x"}})  # fmt: skip
    request = make_request({**REQUEST, "rehearsal": True, "template": tmp_path})
    found = read_description([tmp_path / "system_desc.json"], request).system_desc(request, 64, 16)
    assert found["node_types"] == [{"host_memory_configuration": "8x 32 GB", "filesystem": "ext4"}]
    assert "config_summary" not in found
    assert "mlperf_sysinfo" not in found
