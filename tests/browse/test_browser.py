"""Tests `browse` in a real Chromium, with a real server and a real run."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from harness.cli.main import main
from harness.results.run_folder import ENDPOINT, ResultFolder
from tests.browse.folders import curve, curve_point, golden_results
from tests.stand_ins.chromium import CHROMIUM, needs_chromium

pytestmark = [pytest.mark.slow, needs_chromium()]

ROOT = Path(__file__).parents[2]
ODD = "odd <b>&name #1?%2e"
PAGES = {
    "list": "/",
    "nothing found": "/?text=nothing",
    "run": "/run/server",
    "compare": "/compare?run=closed-loop&run=closed-loop-again&run=server",
    "history": "/history",
    "pareto": "/pareto",
    "studies": "/studies",
    "study": "/study/again",
    "machines": "/machines?run=offline&run=server",
    "broken": "/run/broken",
    "missing": "/run/nothing",
}
LIMIT_MS = 60_000
# The limit is long, because a busy machine must not fail the test.
expect.set_options(timeout=LIMIT_MS)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = golden_results(tmp_path_factory.mktemp("browse") / "results")
    shutil.copytree(made / "closed-loop", made / ODD)
    again = made / "again"
    again.mkdir()
    (again / "repeats.json").write_text('{"scenario": "server", "verdicts": ["VALID", "VALID"]}')
    for number, name in enumerate(("closed-loop", "closed-loop-again"), 1):
        shutil.copytree(made / name, again / f"run-{number}")
    (made / "broken").mkdir()
    (made / "broken/result.json").write_text("{")
    assert main(["report", str(made / "server")]) == 0
    return made


@contextmanager
def serving(results: Path, *more: str) -> Iterator[str]:
    """Yields the address that `browse` printed."""
    words = [sys.executable, "-m", "harness", "browse", str(results), "--port", "0", *more]
    environment = {**os.environ, "XDG_CACHE_HOME": str(results.parent / "cache")}
    with subprocess.Popen(
        words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.terminate()
            _, err = server.communicate(timeout=60)
            assert "Traceback" not in err


@pytest.fixture(scope="module")
def address(results: Path) -> Iterator[str]:
    with serving(results) as at:
        yield at.rstrip("/")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Fails a test if a script on a page failed, if the policy of a page forbade a style, or if a page sent a request to
    a different machine.
    """
    opened = browser.new_page(viewport={"width": 1200, "height": 900})
    opened.set_default_timeout(LIMIT_MS)
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("console", lambda message: faults.extend(_forbidden(message.text)))
    opened.on("request", lambda request: faults.extend(_elsewhere(request.url)))
    yield opened
    opened.close()
    assert faults == []


def _forbidden(message: str) -> list[str]:
    return [message] if "inline style" in message else []


def _elsewhere(url: str) -> list[str]:
    return [] if re.match(r"(http://127\.0\.0\.1:|data:|blob:)", url) else [url]


def test_marks_of_an_axis_do_not_cause_new_marks(page: Page, address: str) -> None:
    """Bug: on a phone, marks that changed the margins were replaced without end, and the page never loaded."""
    page.goto(f"{address}{PAGES['compare']}")
    axis = "document.getElementById('plot-0')._fullLayout.xaxis"
    page.wait_for_function(f"{axis}.ticktext")
    changed = """async () => {
        const place = document.getElementById("plot-0");
        await Plotly.relayout(place, {"xaxis.tickvals": [1], "xaxis.ticktext": ["one"]});
        await new Promise((done) => setTimeout(done, 500));
        return place._fullLayout.xaxis.ticktext;
    }"""
    assert page.evaluate(changed) == ["one"]


def test_a_head_of_the_table_of_pareto_sorts_its_rows(page: Page, address: str) -> None:
    page.goto(f"{address}/pareto?text=closed")
    table = page.locator("table.sortable").first
    # The runs are repeats, so the table has one row: a second one is larger, and a third one lacks the number.
    table.evaluate("""table => {
        for (const value of ["1e12", ""]) {
            const row = table.rows[1].cloneNode(true);
            row.cells[3].innerHTML = value ? `<data value="${value}">most</data>` : "-";
            table.tBodies[0].append(row);
        }
    }""")
    head = table.locator("th").nth(3)
    order = "table => [...table.rows].slice(1).map(row => row.cells[3].textContent)"
    for direction, place in (("ascending", 1), ("descending", 0)):
        head.get_by_role("button").click()
        expect(head).to_have_attribute("aria-sort", direction)
        texts = table.evaluate(order)
        assert (texts[place], texts[2]) == ("most", "-")


def test_a_point_in_the_history_opens_its_run(page: Page, address: str) -> None:
    page.goto(f"{address}/history?text=closed")
    page.wait_for_selector(".plot[data-follows]")
    page.evaluate("""() => {
        const place = document.querySelector(".plot[data-follows]");
        place.emit("plotly_click", {points: [{data: place.data[0], pointIndex: 0}]});
    }""")
    page.wait_for_url("**/run/**")


def test_tips_have_units_and_the_colours_of_their_series(page: Page, address: str) -> None:
    page.goto(f"{address}/run/server")
    bars = """[...document.querySelectorAll(".plot")].map(place => place._fullData && place._fullData[0])
        .find(trace => trace && trace.type === "bar" && trace.xaxis === "x")"""
    page.wait_for_function(bars)
    trace = page.evaluate(
        f"(t => [t.customdata[0][1], t.hoverlabel.bordercolor === t.marker.color])({bars})"
    )
    assert re.fullmatch(r"[\d.]+ %", trace[0])
    assert trace[1]


@pytest.mark.parametrize("width", [1280, 420])
def test_tiles_fill_their_rows_and_keep_units_beside_numbers(
    page: Page, address: str, width: int
) -> None:
    """Bug: the last row of tiles had a gap, and `queries/s` was below its number."""
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(f"{address}/run/server")
    box = page.locator(".tiles").bounding_box()
    rows: dict[int, float] = {}
    for tile in page.locator(".tiles > div").all():
        edges = tile.bounding_box()
        assert edges is not None
        top, right = round(edges["y"]), edges["x"] + edges["width"]
        rows[top] = max(rows.get(top, 0), right)
    assert box is not None
    assert all(abs(right - box["x"] - box["width"]) < 1 for right in rows.values())
    for number in page.locator(".tiles dt + dd").all():
        height = number.bounding_box()
        assert height is not None
        assert height["height"] < 40  # one line


@pytest.mark.parametrize("width", [1000, 1280])
def test_each_run_of_the_list_has_one_line(page: Page, address: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(address)
    heights = page.locator("table.list tbody tr").evaluate_all(
        "rows => rows.map(r => r.clientHeight)"
    )
    assert max(heights) < 36
    over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(over) <= 0


def test_the_bar_of_picked_runs_stays_in_view_and_counts(page: Page, address: str) -> None:
    """Bug: the button that compares the picked runs scrolled out of view, and did not show how many runs were picked."""
    page.set_viewport_size({"width": 420, "height": 500})
    page.goto(address)
    bar = page.locator(".picked")
    expect(bar).to_be_hidden()
    row = page.locator("table.list tbody tr").first
    plain = row.evaluate("row => getComputedStyle(row).backgroundColor")
    row.get_by_role("checkbox").check()
    expect(bar).to_be_in_viewport()
    expect(page.locator("#picked")).to_have_text("1 picked")
    assert row.evaluate("row => getComputedStyle(row).backgroundColor") != plain
    bar.get_by_role("link", name="Clear").click()
    expect(bar).to_be_hidden()


def test_the_verdict_covers_no_link_to_a_study(browser: Browser, results: Path) -> None:
    """Bug: on a phone, the badge lay over the chip that leads to the study of a peak."""
    study = results / "2026-11-28T10-00-00Z-peak-server-a_model_with_a_very_long_name"
    shutil.copytree(results / "server", study)
    (study / "peak.json").write_text("{}")
    with serving(results) as at:
        opened = browser.new_page(viewport={"width": 420, "height": 800})
        opened.goto(at)
        opened.locator("a.chip", has_text="peak").first.click(timeout=LIMIT_MS)
        expect(opened).to_have_url(re.compile("/study/"))
        opened.close()
    shutil.rmtree(study)


def test_filters_are_folded_on_a_phone_only(page: Page, address: str) -> None:
    page.set_viewport_size({"width": 420, "height": 860})
    page.goto(f"{address}/?scenario=server")
    expect(page.get_by_label("Text")).to_be_hidden()
    page.get_by_text("Filters: scenario server").click()
    expect(page.get_by_label("Text")).to_be_visible()
    page.set_viewport_size({"width": 420, "height": 861})
    expect(page.get_by_label("Text")).to_be_visible()  # a keyboard on the screen changes the height
    page.goto(address)
    four = page.locator("table.list tbody tr").nth(3).bounding_box()
    assert four is not None
    assert four["y"] + four["height"] < 860
    page.set_viewport_size({"width": 1280, "height": 800})
    expect(page.get_by_label("Text")).to_be_visible()


def test_a_user_filters_sorts_and_compares_runs(page: Page, address: str) -> None:
    page.goto(address)
    expect(page.get_by_role("status")).to_have_text(
        "6 runs. The studies have 2 more. Pick two or more to compare."
    )
    page.get_by_label("Text").fill("loop")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_role("link", name="Samples/s").click()
    expect(page.locator("th[aria-sort=descending]")).to_contain_text("Samples/s")
    assert "text=loop" in page.url
    compare = page.get_by_role("button", name="Compare picked")
    page.get_by_label("Pick closed-loop", exact=True).check()
    expect(compare).to_be_disabled()  # one run is picked
    page.get_by_label("Text").fill("offline")
    # The run must stay selected after the filter hides it.
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_role("group", name="Picked, not on this page")).to_be_visible()
    page.get_by_label("Text").fill("")
    page.get_by_role("button", name="Filter").click()
    page.get_by_label("Pick closed-loop-again").check()
    compare.click()
    expect(page.locator("p.headline")).to_contain_text("interval")
    first = page.locator("p.headline").inner_text()
    page.get_by_role("link", name="put first").click()
    expect(page.locator("ul.sides li").first).to_contain_text("closed-loop-again")
    assert page.locator("p.headline").inner_text() != first
    page.get_by_role("link", name="Machines side by side").click()
    expect(page.get_by_text("No setting differs.")).to_be_visible()
    page.get_by_role("link", name="show all settings").click()
    expect(page.get_by_role("columnheader", name="closed-loop", exact=True)).to_be_visible()
    page.go_back()
    page.go_back()
    page.get_by_role("link", name="Pick other runs").click()
    expect(page.get_by_label("Pick closed-loop", exact=True)).to_be_checked()


def test_a_run_links_to_its_report_and_its_history(page: Page, address: str) -> None:
    page.goto(f"{address}/?text=name")
    page.get_by_role("row", name=ODD).get_by_role("link", name="server").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("server")
    page.goto(f"{address}/run/server")
    expect(page.locator(".plot .main-svg").first).to_be_visible()
    page.get_by_role("link", name="report.html").click()
    expect(page.locator(".plot .main-svg").first).to_be_visible()
    page.go_back()
    page.get_by_role("link", name="History of this workload").click()
    expect(page.locator(".plot .main-svg").first).to_be_visible()
    page.locator("summary", has_text="with a single run").click()
    page.locator('article .scroll a[href="/run/server"]').first.click()
    expect(page).to_have_url(f"{address}/run/server")


def test_runs_can_be_compared_by_keyboard_alone(page: Page, address: str) -> None:
    page.goto(f"{address}/?text=closed-loop&sort=run")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    picked = 0
    for _ in range(60):
        page.keyboard.press("Tab")
        label = page.evaluate("document.activeElement.getAttribute('aria-label') || ''")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", page.evaluate("document.activeElement.outerHTML")
        if str(label).startswith("Pick "):
            page.keyboard.press("Space")
            picked += 1
        if picked == 2:
            break
    page.get_by_label("Text").focus()
    page.keyboard.press("Enter")  # filtering must keep the selected runs
    expect(page.locator("input[name=run]:checked")).to_have_count(2)
    page.get_by_role("button", name="Compare picked").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="B against A")).to_be_visible()


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (420, "dark")])
def test_no_page_scrolls_sideways_or_fails_axe(
    browser: Browser, address: str, width: int, scheme: str
) -> None:
    page = browser.new_page(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    paper = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 28)"}[scheme]
    for name, path in PAGES.items():
        page.goto(address + path)
        if name == "history":  # no task of Pareto has two configurations
            expect(page.locator(".plot .main-svg").first).to_be_visible()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
        over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(over) <= 0, name
        found = Axe().run(page).response["violations"]
        bad = {
            v["id"]: v["nodes"][0]["html"] for v in found if v["impact"] in ("serious", "critical")
        }
        assert bad == {}, name
    page.close()


def test_everything_except_live_updates_works_without_javascript(
    browser: Browser, address: str
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{address}/?text=closed-loop")
    for name in ("closed-loop", "closed-loop-again"):
        page.get_by_label(f"Pick {name}", exact=True).check()
    page.get_by_role("button", name="Compare picked").click()
    expect(page.get_by_role("row", name="throughput", exact=False).first).to_be_visible()
    page.get_by_role("link", name="History", exact=True).click()
    expect(page.locator("article table").first).to_be_visible()
    context.close()


def test_a_run_is_watched_until_it_ends(page: Page, address: str, results: Path) -> None:
    words = (
        "--scenario server --target-qps 300 --mode performance --duration 20s --metrics 127.0.0.1:0"
    )
    command = [sys.executable, "-m", "harness", *words.split(), "--out", str(results / "live")]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as run:
        link = page.locator("#running + ul a")
        for _ in range(60):
            page.goto(address)
            if link.count():
                break
            page.wait_for_timeout(500)
        link.click()
        expect(page.locator("#status")).to_have_text("In progress")
        for text in ("Completed rate", "p99 latency"):
            expect(page.locator(".tiles")).to_contain_text(text)
        expect(page.locator("#panel")).to_contain_text(re.compile(r"about \d+\ss left"))
        page.get_by_text("Stages since the start").click()
        expect(page.get_by_role("row", name="issue delay")).to_be_visible()
        for name in ("rate", "latency", "queue", "stages", "cores"):
            expect(page.locator(f".chart[data-name={name}] path").first).to_be_visible()
        for name in ("tokens", "nodes", "watts"):
            expect(page.locator(f".chart[data-name={name}]")).to_be_hidden()
        legend = page.locator(".chart[data-name=rate] .legend")
        page.locator(".chart[data-name=latency] svg").hover()
        expect(legend).to_contain_text(re.compile(r"answered [\d.,]+.*requested 300.*at [\d.]+ s"))
        found = Axe().run(page).response["violations"]
        assert [v["id"] for v in found if v["impact"] in ("serious", "critical")] == []
        # A value has the colour of a doubt from 90 % of its bound on, and is red beyond the bound.
        kinds = page.evaluate("[judged(1.1, 1), judged(0.95, 1), judged(0.5, 1), judged(5)]")
        assert kinds == ["reason", "doubt", "", ""]
        page.reload()  # after a reload, the page must still show the earlier points
        expect(page.locator(".chart[data-name=latency] path").first).to_be_visible()
        expect(page.locator("#status")).to_be_visible()
        expect(page.get_by_role("status")).to_contain_text(
            "The run has ended: open its page (opens in 5 s)"
        )
        expect(page.locator(".chart[data-name=rate] path").first).to_be_visible()
        # The browser opens the result without a reload by the user.
        page.wait_for_url(f"{address}/run/live")
        expect(page.locator(".plot .main-svg").first).to_be_visible()
        run.communicate(timeout=120)
    assert not (results / "live" / ENDPOINT).exists()


def test_the_live_page_of_a_search_draws_the_loads_tried(
    page: Page, address: str, results: Path
) -> None:
    study = ResultFolder(results / "curve")
    curve(results, curve_point(100, 4), curve_point(200, 40))
    page.goto(f"{address}/live/curve.partial")
    plot = page.locator("#tried")
    expect(plot.locator("svg .cross").first).to_be_visible()
    expect(plot.locator("svg .bound")).to_have_count(1)
    expect(plot.locator(".dot")).to_have_count(6)  # p50, p90 and p99 of two runs
    curve(results, curve_point(100, 4), curve_point(150, 5), curve_point(200, 40))
    expect(plot.locator(".dot")).to_have_count(9)
    assert [tick.text_content() for tick in plot.locator(".left:not(.allowed)").all()] == [
        "2 ms",
        "5 ms",
        "10 ms",
        "20 ms",
    ]
    shutil.rmtree(study.path)


def test_another_address_needs_the_token(browser: Browser, results: Path) -> None:
    with serving(results, "--host", "0.0.0.0") as printed:
        port, token = re.fullmatch(r"http://.*:(\d+)/\?token=([\w-]{32})", printed).groups()  # type: ignore[union-attr]
        at = f"http://127.0.0.1:{port}"
        context = browser.new_context()
        page = context.new_page()
        refused = page.goto(f"{at}/run/server")
        assert refused is not None
        assert refused.status == 401
        page.goto(f"{at}/run/server?token={token}")
        expect(page).to_have_url(f"{at}/run/server")
        (cookie,) = context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        page.get_by_role("link", name="report.html").click()
        expect(page.locator(".plot .main-svg").first).to_be_visible()
        context.close()
