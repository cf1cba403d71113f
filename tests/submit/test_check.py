"""Our validator finds nothing in a good tree, finds each single fault by the right rule, and never raises an exception."""

import json
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from harness.loadgen.logs import DETAIL
from harness.submit.rules.findings import RULES, Finding
from harness.submit.rules.tree import tree as tree_module
from harness.submit.rules.validate import Checked, validate
from tests.builders.refusals import refused
from tests.builders.submission.mutations import MUTATIONS
from tests.builders.submission.power import session
from tests.builders.submission.trees import (
    CLOSED,
    OPEN,
    ROUND,
    RUN,
    SERVER,
    all_of,
    changed_log,
    put,
    sub,
    value,
    write,
    write_accuracy_logs,
)
from tests.faults.command import run_here

SYSTEM = "closed/LabOrg/systems/box.json"


def rules(findings: Sequence[Finding]) -> list[str]:
    return [f"{f.rule}: {f.file}: {f.actual}" for f in findings]


def test_a_submission_that_keeps_the_rules_has_no_finding(golden: Path) -> None:
    checked = validate(golden, ROUND)
    assert rules(checked.findings) == []
    assert len(checked.results) == 6
    assert {f"{CLOSED}/Server", f"{OPEN}/Offline"} <= set(checked.results)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(session, id="a PTDaemon session"),
        *(
            pytest.param(value(SYSTEM, host_processor_core_count=cores), id=f"cores {cores!r}")
            for cores in ("64", "64 (128 threads)", 64, "N/A")
        ),
        pytest.param(
            all_of(
                sub(f"{SERVER}/TEST01/verify_accuracy.txt", "TEST PASS", "TEST FAIL"),
                put(f"{SERVER}/TEST01/accuracy/baseline_accuracy.txt", "accuracy=76.500%\n"),
                put(f"{SERVER}/TEST01/accuracy/compliance_accuracy.txt", "accuracy=76.000%\n"),
            ),
            id="scores within one percent for answers that differ",
        ),
    ],
)
def test_content_allowed_by_the_rules_gives_no_finding(
    change: Callable[[Path], object], tree: Path
) -> None:
    change(tree)
    assert rules(validate(tree, ROUND).findings) == []


def test_there_are_more_than_a_hundred_mutations() -> None:
    assert len(MUTATIONS) > 100


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_fault_is_found_by_its_rule(name: str, tree: Path) -> None:
    rule, mutate = MUTATIONS[name]
    mutate(tree)
    found = validate(tree, ROUND).findings
    assert rule in {f.rule for f in found}, rules(found)
    for finding in found:
        assert all(finding), finding
        assert finding.fix
        assert all("\n" not in line for line in finding.lines())


SINGLES = ("INVALID run", "error in the log", "stale TEST04", "subset", "below the target")


@pytest.mark.parametrize("name", SINGLES)
def test_a_fault_of_one_result_does_not_count_for_another_result(name: str, tree: Path) -> None:
    MUTATIONS[name][1](tree)
    checked = validate(tree, ROUND)
    assert checked.of_result(SERVER) == checked.findings
    assert checked.of_result(f"{CLOSED}/Offline") == []


def test_every_rule_is_found_in_some_tree_and_explained() -> None:
    untested = {"too-many-files", "unreadable"}  # other tests in this file break these two rules
    assert {rule for rule, _ in MUTATIONS.values()} | untested == set(RULES)
    text = (Path(__file__).parents[2] / "docs" / "submit.md").read_text()
    listed = {
        word
        for line in text.splitlines()
        if line.startswith("| `")
        for word in line.split("|")[1].replace("`", "").replace(",", " ").split()
    }
    assert set(RULES) <= listed


def test_the_rehearsal_mark_is_the_first_finding(tree: Path) -> None:
    all_of(MUTATIONS["INVALID run"][1], MUTATIONS["rehearsal mark"][1])(tree)
    checked = validate(tree, ROUND)
    assert checked.findings[0].rule == "rehearsal"
    counted = {f.rule for f in checked.counted(shortened=True)}
    assert counted == {"invalid-result", "audit-score"}


@pytest.mark.parametrize(
    "path", ["open/Rehearsal/src/x.md", "open/LabOrg/results/box_REHEARSAL/resnet/a.md"]
)
def test_a_rehearsal_is_known_by_its_names_too(path: str, tree: Path) -> None:
    put(path, "x\n")(tree)
    assert validate(tree, ROUND).findings[0].rule == "rehearsal"


@pytest.mark.slow
def test_hashes_are_compared_with_the_raw_logs(golden: Path, tree: Path, tmp_path: Path) -> None:
    file = f"{SERVER}/accuracy/accuracy.txt"
    sub(file, "hash=.", "hash=0")(tree)
    raw = tmp_path / "raw"
    for log in tree.rglob("mlperf_log_accuracy.json"):
        name = "some.json" if "TEST01" in log.parts else log.name
        write(raw / log.relative_to(tree), (golden.parent / "raw" / name).read_bytes())
    # Without the raw logs, a truncated log cannot be judged.
    assert validate(tree, ROUND).findings == []
    assert [(f.rule, f.file) for f in validate(tree, ROUND, raw=raw).findings] == [
        ("accuracy-hash", file)
    ]
    sub(file, "hash=0", "hash=1")(tree)
    gone = f"{SERVER}/TEST01/accuracy/mlperf_log_accuracy.json"
    (raw / gone).unlink()
    assert [(f.rule, f.file) for f in validate(tree, ROUND, raw=raw).findings] == [
        ("accuracy-hash", file), ("accuracy-hash", gone)
    ]  # fmt: skip


def test_an_edge_system_may_infer_offline_from_single_stream(tree: Path) -> None:
    """The rules allow an edge system to infer Offline from SingleStream, and both logs then are single-stream logs."""
    for part in ("performance", "accuracy"):
        for source in (tree / OPEN / "SingleStream" / part).rglob("*"):
            if source.is_file():
                inside = source.relative_to(tree / OPEN / "SingleStream")
                write(tree / OPEN / "Offline" / inside, source.read_bytes())
    assert rules(validate(tree, ROUND).findings) == []
    value("open/LabOrg/systems/box.json", system_type="datacenter")(tree)
    assert "wrong-scenario" in {f.rule for f in validate(tree, ROUND).findings}


def test_only_one_submitter_is_checked_on_request(tree: Path) -> None:
    put("closed/Other/results/x/y/z/a.txt", "a")(tree)
    assert rules(validate(tree, ROUND, "LabOrg").findings) == []
    assert validate(tree, ROUND).findings


@pytest.mark.parametrize("seed", range(8))
def test_any_content_of_a_file_raises_nothing(seed: int, tree: Path) -> None:
    """Puts garbage, truncations and wrong types into a few files at a time."""
    draw = random.Random(seed)
    junk = [
        *(b"", b"\x00\xff\xfe", b"[", b"{}", b"null", b"[[[" * 5000, b'{"a": 1e999}', b"\n" * 99),
        *(b":::MLLOG {}", b":::MLLOG " + b"[" * 3000, b'{"key": []}', b"hash=", b"9" * 5000),
    ]
    files = sorted(p for p in tree.rglob("*") if p.is_file())
    for file in draw.sample(files, 12):
        content = file.read_bytes()
        cut_at = draw.randrange(len(content) + 1)
        write(file, draw.choice([*junk, content[:cut_at], content[cut_at:], content[::-1]]))
    checked = validate(tree, ROUND)
    assert checked.findings
    for path in checked.results:
        checked.of_result(path)


def test_wrong_types_of_every_logged_value_raise_nothing(tree: Path) -> None:
    file = tree / SERVER / RUN / DETAIL
    lines = file.read_text().splitlines()
    values: list[object] = ["text", [], {}, None, True, -1, 1e300, 10**400, 0]
    for junk in values:
        changed = [
            ":::MLLOG " + json.dumps(json.loads(line.removeprefix(":::MLLOG ")) | {"value": junk})
            for line in lines
        ]
        write(file, "\n".join(changed) + "\n")
        assert validate(tree, ROUND).findings


def test_unreadable_and_strange_names_are_findings(tree: Path) -> None:
    (tree / "closed/LabOrg/src/a\udcff\n.py").write_text("x")
    found = [f for f in validate(tree, ROUND).findings if f.rule == "bad-name"]
    assert [f.file for f in found] == ["closed/LabOrg/src/a\\xff\\n.py"]
    if os.geteuid():
        (tree / "closed/LabOrg/src/README.md").chmod(0)
        (tree / SERVER).chmod(0)
        assert "unreadable" in {f.rule for f in validate(tree, ROUND).findings}
        (tree / SERVER).chmod(0o755)


def test_tree_that_is_not_a_submission_is_not_read_to_its_end(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_module, "MOST_ENTRIES", 50)
    assert "too-many-files" in {f.rule for f in validate(tree, ROUND).findings}


def test_an_empty_or_wrong_folder_has_no_results(tmp_path: Path) -> None:
    assert [f.rule for f in validate(tmp_path, ROUND).findings] == ["no-results"]
    (tmp_path / "closed" / "X").mkdir(parents=True)
    assert "no-results" in {f.rule for f in validate(tmp_path, ROUND).findings}


def test_a_25_mb_log_takes_less_than_two_seconds(tree: Path) -> None:
    """Uses a log as large as the log of a run with many warnings; the limit counts only this process's CPU time."""
    file = tree / SERVER / RUN / DETAIL
    lines = file.read_text().splitlines(keepends=True)
    filler = next(line for line in lines if "generic_message" in line)
    write(file, "".join([*lines[:-1], filler * (25_000_000 // len(filler)), lines[-1]]))
    assert file.stat().st_size > 24_900_000
    start = time.process_time()
    assert rules(validate(tree, ROUND).findings) == []
    assert time.process_time() - start < 2.0


def printed(tree: Path, status: int, *words: str) -> str:
    """Returns the text that `submit check` prints, and checks its exit status."""
    ended = run_here("submit", "check", str(tree), *words)
    assert ended.status == status
    return ended.printed


def test_the_command_prints_findings_and_exits_4(golden: Path, tree: Path) -> None:
    assert printed(golden, 0) == "passed: 6 results, 0 findings\n"
    MUTATIONS["INVALID run"][1](tree)
    first = f"invalid-result      {SERVER}/{RUN}/{DETAIL}\n    actual    INVALID\n"
    assert printed(tree, 4).startswith(first)
    assert json.loads(printed(tree, 4, "--json"))["findings"][0]["expected"] == "VALID"


def test_rehearsal_passes_only_as_a_rehearsal(tree: Path) -> None:
    all_of(MUTATIONS["rehearsal mark"][1], MUTATIONS["duration set"][1])(tree)
    out = printed(tree, 4)
    assert out.startswith("rehearsal  ")
    assert out.endswith("\nnot passed: 6 results, 2 findings\n")
    # Bug: the list also contained both findings, without the word "passed".
    assert printed(tree, 0, "--rehearsal") == (
        "passed, as a rehearsal: 6 results, 0 findings; 2 more are allowed in a rehearsal, which is short, "
        "has other data and one machine, and is marked as a rehearsal: rehearsal, too-short\n"
    )
    said = json.loads(printed(tree, 0, "--rehearsal", "--json"))
    assert (said["passed"], said["findings"]) == (True, [])
    assert {finding["rule"] for finding in said["left_out"]} == {"rehearsal", "too-short"}


@pytest.mark.parametrize(
    ("mutations", "counting"),
    [
        (("TEST01 failed",), {"audit-score"}),
        (
            ("score of a subset", "late bound"),
            {"dataset-size", "accuracy-counts", "latency-limit", "audit-score"},
        ),
        (("TEST01 failed", "late bound", "duration set"), set()),
        (("score of a subset", "duration set"), {"dataset-size", "accuracy-counts"}),
    ],
)
def test_rehearsal_is_excused_only_for_marks_in_its_logs(
    mutations: Sequence[str], counting: set[str], tree: Path
) -> None:
    """Bug: a full-length rehearsal passed with an audit that both official checkers refuse."""
    all_of(*(MUTATIONS[name][1] for name in ("rehearsal mark", *mutations)))(tree)
    assert {f.rule for f in validate(tree, ROUND).counted(shortened=True)} == counting


def test_other_data_is_forgiven_in_its_own_result(tree: Path) -> None:
    all_of(MUTATIONS["rehearsal mark"][1], MUTATIONS["score of a subset"][1])(tree)
    log = tree / SERVER / RUN / DETAIL
    write(log, changed_log(log.read_text(), {"qsl_reported_total_count": 1797}))
    counting = {f.rule for f in validate(tree, ROUND).counted(shortened=True)}
    assert "dataset-size" not in counting
    other = f"{CLOSED}/Offline/accuracy/accuracy.txt"
    sub(other, "50000", "1000")(tree)
    assert other in {f.file for f in validate(tree, ROUND).counted(shortened=True)}


@pytest.mark.parametrize(("samples", "missing"), [(248, 10), (100, 6), (12, 0)])
def test_videos_are_required_of_the_samples_that_the_data_has(
    samples: int, missing: int, tmp_path: Path
) -> None:
    """Bug: for a rehearsal with 12 prompts, the check demanded videos of samples up to 238, which `pack` cannot write."""
    result = tmp_path / "closed/LabOrg/results/box/wan-2.2-t2v-a14b/SingleStream"
    write_accuracy_logs(result / "accuracy", "SingleStream")
    log = result / "accuracy" / DETAIL
    log.write_text(changed_log(log.read_text(), {"qsl_reported_total_count": samples}))
    found = [f.file for f in validate(tmp_path, ROUND).findings if "/videos/" in f.file]
    assert len(found) == missing


def test_rehearsal_prints_only_findings_that_it_must_fix(tree: Path) -> None:
    marks = (MUTATIONS[name][1] for name in ("rehearsal mark", "duration set", "INVALID run"))
    all_of(*marks)(tree)
    out = printed(tree, 4, "--rehearsal")
    assert out.startswith("invalid-result  ")
    assert "\nnot passed, as a rehearsal: 6 results, 1 finding; 4 more are allowed" in out
    assert "run it again" not in out.partition("allowed")[2]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("chek x", "no verb 'submit chek': did you mean 'submit check'?"),
        ("check nowhere", "nowhere is not a folder: pass the root of a submission tree"),
        ("check . --round v9", "no round named 'v9': choose from v6.1"),
        ("check . --official nowhere", "--official nowhere has no tools/submission/"),
        ("check . --raw nowhere", "--raw nowhere is not a folder"),
    ],
)
def test_mistakes_in_the_command_are_reported_in_one_line(words: str, told: str) -> None:
    assert any(told in line for line in refused("submit", *words.split()))


def test_result_includes_findings_of_the_folders_above_it() -> None:
    """A fault in the root, in the submitter's folder or in the system counts for each result in the folders below it."""
    path = f"{CLOSED}/Server"
    above = [
        *("results.csv", "closed/x.md", "closed/LabOrg/src", SYSTEM, "closed/LabOrg/results/box"),
        *(path, f"{path}/README.md"),
    ]
    beside = [
        *("open/LabOrg/src", "closed/Other/src", f"{CLOSED}/Offline"),
        *("closed/LabOrg/systems/old.json", "closed/LabOrg/results/old"),
    ]
    found = [Finding("stray-file", file, "a", "b") for file in above + beside]
    assert Checked(found, [path]).of_result(path) == found[: len(above)]
