"""Names of variables and settings as pages show them."""

import pytest

from harness.results.pages.page import command_html, groups_html, typeset
from harness.results.pages.words import GENERAL, groups, settings, words


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("ttft_p50", "TTFT p50"),
        ("issue_delay.p50", "issue delay p50"),
        ("cpu_idle_s", "CPU idle"),
        ("accuracy.exact_match", "accuracy exact match"),
        ("output_per_s", "output per s"),
        ("p99.9", "p99.9"),
        ("OMP_NUM_THREADS", "OMP_NUM_THREADS"),
        ("s", "s"),
    ],
)
def test_names_become_words(name: str, shown: str) -> None:
    assert words(name) == shown


def test_settings_have_units_and_no_powers_of_ten() -> None:
    content = {
        "memory_bytes": 25276514304,
        "switch_interval_s": 0.005,
        "tiny": 1.25e-7,
        "large": 1.5e20,
        "is_on": True,
        "empty": None,
        "parts": [{"name": "a", "took_ns": 1500}, {"name": "b", "took_ns": 2}],
        "inner": {"cores_online": 2},
    }
    assert dict(settings(content)) == {
        "memory": "25.3 GB",
        "switch interval": "5.00 ms",
        "tiny": "0.000000125",
        "large": "150000000000000000000",
        "is on": "yes",
        "parts": "name a, took 1.50 us; name b, took 2 ns",
        "inner cores online": "2",
    }


def test_nested_settings_are_groups_and_their_shares_have_units() -> None:
    """Bug: a flat list repeated the group on each row, and shares had no unit."""
    content = {
        "rows": 11,
        "cpu_shares": {"user": 0.716849, "idle": 0},
        "judge": {"accuracy": {"tolerance": 0.001}},
        "model_sha256": "ab" * 32,
    }
    found = groups(content)
    assert found == {
        GENERAL: [("rows", "11"), ("model SHA-256", "ab" * 32)],
        "CPU shares": [("user", "71.7 %"), ("idle", "0.0 %")],
        "Judge": [("accuracy tolerance", "0.001")],
    }
    html = groups_html(found)
    assert f'<td><span title="{"ab" * 32}">abababababab…</span></td>' in html
    assert html.count("<caption>") == 3


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("anonymous_bytes", [1e6, 2.5e6], ("anonymous", "1.00 MB, 2.50 MB")),
        ("batch_wait_ns", 1_500_000, ("batch wait", "1.50 ms")),
        ("tokens", 25_713.0, ("tokens", "25713")),
        ("gpu_share_max", 0.1234, ("GPU share max", "12.3 %")),
        ("share_weights", False, ("share weights", "no")),
        ("smt_active", "0", ("SMT active", "no")),
        ("turbo", 1.0, ("turbo", "yes")),
        ("is_set", [True, False], ("is set", "yes, no")),  # bug: the text was True, False
        # Bug: the text was {'argmax': {}}.
        ("postprocess", [{"argmax": {}}], ("postprocess", "argmax")),
        ("startup", [{"name": "a.pth", "size_bytes": None}], ("startup", "name a.pth")),
        ("load_s", "slow", ("load", "slow")),
    ],
)
def test_a_setting_has_its_unit_and_no_code(
    name: str, value: object, shown: tuple[str, str]
) -> None:
    assert [*settings({name: value})] == [shown]


@pytest.mark.parametrize(
    ("html", "shown"),
    [
        ("0 to 1.2e+05", "0 to 120,000"),
        ("<td>1.2e-07</td>", "<td>1.2·10⁻⁷</td>"),
        ("run-1e-05", "run-1e-05"),
        ("<td>VALID  &lt;- knee</td><td>&lt;- taken</td>", "<td>VALID · knee</td><td>taken</td>"),
        ('<script type="application/json">[1e-05]', '<script type="application/json">[1e-05]'),
        (command_html("--x 1e-05"), command_html("--x 1e-05")),
    ],
)
def test_powers_of_ten_are_written_out_and_arrows_left_out(html: str, shown: str) -> None:
    assert typeset(html) == shown
