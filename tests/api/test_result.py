"""A finished run read in Python returns the numbers of result.json and escapes the texts."""

import builtins
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import harness
from harness import read_run
from harness.core.units import show_ns
from harness.errors import ConfigError, PluginUnavailable
from harness.results.pages.run_table import show_quantity
from tests.builders.finished import REASON, RUNS, invalid


@pytest.mark.parametrize("name", ["server", "single-stream", "offline"])
def test_every_number_equals_result_json(name: str) -> None:
    run, content = read_run(RUNS / name), json.loads((RUNS / name / "result.json").read_text())
    assert run.content == content
    assert (run.verdict, run.is_valid, run.folder) == ("VALID", True, RUNS / name)
    assert {**run.latency_ns, "source": content["latency_ns"]["source"]} == content["latency_ns"]
    assert run.throughput_per_s["completed"] == content["throughput_per_s"]["completed"]
    assert run.stages_ns == content["stages_ns"]
    assert run.accuracy == content["accuracy"]
    assert [one._asdict() for one in run.doubts] == content["doubts"]
    assert run.reasons == ()


@pytest.mark.parametrize(
    ("name", "change", "number"),
    [
        ("server", {"slo": None}, "p99 latency"),
        ("server", {}, "p90 latency"),
        ("single-stream", {}, "p90 latency"),
        ("single-stream", {"slo": "p99.5=2ms"}, "p90 latency, early-stopping estimate"),
        ("closed-loop", {}, "p90 latency"),
        ("offline", {}, "throughput"),
    ],
)
def test_the_headline_is_the_first_number_of_the_answer(
    name: str, change: dict[str, Any], number: str
) -> None:
    run = read_run(RUNS / name)
    run.content.update(change)  # type: ignore[attr-defined]
    found = run.headline
    assert found is not None
    assert found.name == number
    shown = show_quantity(found._asdict())
    assert re.match(
        rf"(?:{number.removesuffix(' latency')} )?{re.escape(shown)}\b", run.answer.headline
    )
    entry: Any = run.content
    for key in () if "estimate" in number else found.source.split(".", 1):
        entry = entry[key]
    assert "estimate" in number or entry == found.value


@pytest.mark.parametrize("change", [{"latency_ns": None}, {"slo": "p99.5=2ms", "headline": None}])
def test_a_run_without_the_number_has_no_headline(change: dict[str, Any]) -> None:
    run = read_run(RUNS / "server")
    run.content.update(change)  # type: ignore[attr-defined]
    assert run.headline is None


def test_latencies_and_samples_equal_completions_npz() -> None:
    run = read_run(str(RUNS / "server"))
    with np.load(RUNS / "server/performance/run_1/completions.npz") as file:
        stored = dict(file)
    assert run.latencies_ns.dtype == np.int64
    assert (run.latencies_ns == stored["completed_ns"] - stored["scheduled_ns"]).all()
    assert run.samples.keys() == stored.keys()
    assert all((run.samples[name] == column).all() for name, column in stored.items())
    assert all(run.samples[name].dtype == column.dtype for name, column in stored.items())


def test_a_frame_has_one_row_per_sample_with_integer_times() -> None:
    run = read_run(RUNS / "server")
    frame = run.frame()
    assert len(frame) == 64
    assert (frame["latency_ns"].to_numpy() == run.latencies_ns).all()
    assert str(frame["completed_ns"].dtype) == "int64"
    assert frame.attrs == {"folder": str(RUNS / "server"), "verdict": "VALID", "reasons": []}


def test_a_frame_without_pandas_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = builtins.__import__

    def without_pandas(name: str, *arguments: Any) -> Any:
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")
        return usual(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    with pytest.raises(PluginUnavailable, match=r"^frame\(\) needs the module 'pandas': .*pandas"):
        read_run(RUNS / "server").frame()


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_of_a_notebook_is_escaped_and_loads_nothing(tmp_path: Path) -> None:
    page = _Page()
    html = read_run(invalid("server", tmp_path))._repr_html_()
    assert "\x1b" not in html
    page.feed(html)
    assert page.texts[0] == "INVALID"
    assert {*page.tags} <= {"p", "b", "ul", "li", "div", "table", "tr", "th", "td"}
    assert "<LoadGen> says" in "".join(page.texts)
    assert "src=" not in html
    assert "http" not in html


def test_the_repr_is_one_line_with_verdict_and_folder(tmp_path: Path) -> None:
    run = read_run(invalid("server", tmp_path))
    number = f"p90 latency {show_ns(run.latency_ns['p90'])}"
    words = f"INVALID ({REASON['code']}): server ort digits, {number}, {run.folder}"
    assert repr(run) == f"<Result {words}>"


def test_a_folder_without_a_run_raises_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no result\.json: check that it is a run's folder$"):
        read_run(tmp_path)
    run = invalid("offline", tmp_path)
    (run / "performance/run_1/run.json").unlink()
    with pytest.raises(ConfigError, match=r"has no completed performance run$"):
        _ = read_run(run).latencies_ns


def test_import_harness_imports_no_other_module_and_offers_its_names() -> None:
    code = (
        "import sys, harness\n"
        "print([m for m in sys.modules if m.startswith(('harness.', 'numpy', 'pydantic'))])\n"
        "print(sorted(harness.__all__) == sorted(set(harness.__all__) & set(dir(harness))))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "True"]
    assert all(hasattr(harness, name) for name in harness.__all__)
    with pytest.raises(AttributeError, match=r"has no attribute 'run_the_harness'$"):
        _ = harness.run_the_harness


def test_columns_of_different_lengths_raise_a_config_error(tmp_path: Path) -> None:
    """Bug: frame() raised a pandas error for a damaged completions.npz."""
    run = invalid("server", tmp_path)
    path = run / "performance/run_1/completions.npz"
    with np.load(path) as file:
        columns = dict(file)
    np.savez(path, **{**columns, "worker": columns["worker"][:-1]})
    with pytest.raises(
        ConfigError, match=r"column worker of completions\.npz is not one integer per sample"
    ):
        read_run(run).frame()


def test_a_result_json_that_no_run_wrote_is_refused_at_once(tmp_path: Path) -> None:
    run = invalid("server", tmp_path)
    content = json.loads((run / "result.json").read_text())
    latency_ns = {**content["latency_ns"], "p90": "many"}
    (run / "result.json").write_text(json.dumps({**content, "latency_ns": latency_ns}))
    with pytest.raises(
        ConfigError, match=r"its files do not fit together: .*run `check` for details$"
    ):
        read_run(run)
