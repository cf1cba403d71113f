"""Instructions counted by valgrind: its output is parsed and labelled as simulated."""

import json
import shutil
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.errors import ConfigError
from harness.explain.profile.measure import valgrind
from harness.explain.profile.tables.library_tables import library_tables
from tests.builders.refusals import Said

DUMP = """# callgrind format
version: 1
creator: callgrind-3.19.0
desc: I1 cache: 32768 B, 64 B, 8-way associative
desc: D1 cache: 49152 B, 64 B, 12-way associative
desc: LL cache: 1048576 B, 64 B, 16-way associative
desc: Trigger: --dump-before=getpgrp
positions: line
events: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw
summary: 1000 300 90 5 6

ob=/usr/lib/libframework.so
fl=???
fn=0x0000000001234560
0 600 200 50 1 2
cob=/usr/lib/libc.so.6
cfi=???
cfn=memcpy
calls=2 0
0 150 40 20 1 3
0 200 60

ob=/usr/lib/libc.so.6
fl=???
fn=memcpy
0 150 40 20 1 3

ob=???
fl=???
fn=0x0000000004936720
+3 50
"""


def test_a_dump_gives_totals_and_instructions_per_library(tmp_path: Path) -> None:
    """Each function is counted without the functions that it calls; the dump omits zeros at the end of a line."""
    file = tmp_path / "counts.2"
    file.write_text(DUMP)
    found = valgrind.read_dump(file)
    assert found.counts["Ir"] == 1000
    assert (found.counts["D1mr"], found.counts["D1mw"], found.counts["DLmw"]) == (6, 0, 0)
    assert found.libraries == {"libframework.so": 800, "libc.so.6": 150, "": 50}
    assert found.caches[0] == "I1 cache: 32768 B, 64 B, 8-way associative"
    assert len(found.caches) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "counts.2 is not callgrind output"),
        (DUMP.replace("summary: 1000", "summary: x"), "counts.2 is not callgrind output"),
        (DUMP.replace("0 600", "0 700"), "add up to 1,100 instructions, but its summary has 1,000"),
    ],
)
def test_output_that_does_not_fit_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "counts.2").write_text(text)
    with pytest.raises(ConfigError, match=message):
        valgrind.read_dump(tmp_path / "counts.2")


def test_each_call_has_its_own_output(tmp_path: Path) -> None:
    """Marks made by the framework's threads or libraries would shift the calls, so such marks are refused."""
    out = tmp_path / "counts"
    for i in (1, 2, 3):
        (tmp_path / f"counts.{i}").write_text(DUMP)
    out.write_text(DUMP)
    assert [dump.counts["Ir"] for dump in valgrind._of_calls(out)] == [1000, 1000]
    (tmp_path / "counts.4").write_text(DUMP)
    with pytest.raises(ConfigError, match="valgrind wrote 4 outputs for 2 calls"):
        valgrind._of_calls(out)


def test_the_table_says_that_nothing_was_measured() -> None:
    counted = ("Ir", "Dr", "Dw", "D1mr", "D1mw", "ILmr", "DLmr", "DLmw")
    counts = dict(zip(counted, range(10, 90, 10), strict=True))
    call = {"counts": counts, "libraries": {"libframework.so": 8, "": 2}}
    found = {"calls": [call, call], "caches": ["LL cache: 1 B"], "not_simulated": ["X86_V4"]}
    (table,) = library_tables({"simulated": found})
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["instructions"] == [10, None]
    assert rows["last-level misses"] == [60 + 70 + 80, None]
    assert rows["instructions in generated code"] == [2, 0.2]
    assert "simulated by valgrind" in table.about
    assert "nothing was measured" in table.notes[0]
    assert table.notes[1:] == [
        "simulated LL cache: 1 B",
        "valgrind does not simulate X86_V4: this machine may run other code",
    ]


def test_without_valgrind_it_is_not_supported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prints: Said
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    arguments = ["--backend", "null", "--levels", "library", "--counters", "valgrind"]
    out = tmp_path / "p"
    shown = prints("profile", *arguments, "--no-report", "--out", out)
    assert "missing valgrind: not supported: valgrind is not on the PATH" in shown
    assert "hardware" not in json.loads((out / "tables.json").read_text())


def test_mistakes_are_reported_in_one_line_each(refuses: Said) -> None:
    assert "is not one of perf, valgrind" in refuses("profile", "--counters", "perf,pin")
    assert "--counters valgrind needs the library level" in refuses(
        "profile", "--counters", "valgrind", "--levels", "model"
    )


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind here")
def test_valgrind_counts_the_same_for_the_same_call(tmp_path: Path) -> None:
    """Uses the null backend, because it starts the fastest, within a minute."""
    out = tmp_path / "p"
    arguments = ["--backend", "null", "--levels", "library", "--counters", "valgrind", "--quiet"]
    assert main(["profile", *arguments, "--no-report", "--out", str(out)]) == 0
    found = json.loads((out / "profile.json").read_text())
    assert found["missing"] == {}
    first, second = (call["counts"]["Ir"] for call in found["simulated"]["calls"])
    assert 0 < first == pytest.approx(second, rel=0.2)
    rows = json.loads((out / "tables.json").read_text())["simulated"]["rows"]
    shares = [row["of_instructions_share"] for row in rows if row["of_instructions_share"]]
    assert sum(shares) == pytest.approx(1, abs=1e-3)
