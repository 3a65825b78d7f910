"""The live page in a real browser: what it shows is what the run holds, it follows a training, and nothing in a run runs code."""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from tests.view.app import made_runs

from sonde.rows import Layout
from sonde.run import check
from sonde.run.store.open import start_run
from sonde.run.tensors.writers import write_tensors

pytest.importorskip("uvicorn")
sync_api = pytest.importorskip("playwright.sync_api")

from sonde.view.app.serving import LivePage  # noqa: E402 (only where it can be served)

slow = pytest.mark.slow
VIEWS = ("", "/layers", "/flow", "/updates", "/distribution", "/graph", "/findings", "/coverage")


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    """Where the folder of runs is served."""
    with LivePage(runs) as served:
        yield served.address


@contextmanager
def opened(browser: Any, address: str, *, width: int = 1400, scheme: str = "light") -> Iterator[Any]:
    """A page at *address*. It fails at the end if a dialog opened, a script failed, or anything but the server was asked."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    wrong: list[str] = []
    server = urlsplit(address).netloc
    page.on("dialog", lambda dialog: (wrong.append(f"dialog {dialog.message}"), dialog.dismiss()))
    page.on("pageerror", lambda error: wrong.append(f"error {error}"))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" and "Failed to load" not in said.text else None)
    page.on("request", lambda asked: wrong.append(asked.url) if urlsplit(asked.url).netloc not in (server, "") else None)
    page.goto(address)
    page.locator("html[data-ready]").wait_for(state="attached")
    yield page
    context.close()
    assert wrong == []


def ids(page: Any) -> dict[str, str]:
    """The ids of the runs in the list, by name."""
    links = page.locator("td a.name").evaluate_all("all => all.map((one) => [one.textContent, one.getAttribute('href')])")
    return {name: href.removeprefix("#/run/") for name, href in links}


BOTH_BOXES = """() => {
    const both = [".heat .cross .cell", ".heat canvas"].map((one) => document.querySelector(one));
    return both.every(Boolean) && both.map((one) => one.getBoundingClientRect().toJSON());
}"""


def marked(page: Any) -> tuple[dict[str, float], dict[str, float]]:
    """The boxes of the marked cell and of the heat map, read in one script: the page may paint anew between two."""
    cell, heat = page.wait_for_function(BOTH_BOXES).json_value()
    return cell, heat


def go(page: Any, route: str) -> None:
    """Show another view, and wait until it has what it shows."""
    page.locator("#view .view").evaluate_all("all => all.forEach((one) => one.remove())")
    page.evaluate("(route) => { location.hash = route; }", route)
    page.locator("#view .view:not([aria-busy])").wait_for(state="attached")


def test_a_run_is_listed_judged_and_its_cells_tell_the_recorded_values(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        row = page.locator("tr", has_text="defects")
        assert "2 findings" in row.inner_text()
        go(page, f"#/run/{ids(page)['small']}/layers")
        assert page.locator("figcaption h2").inner_text().startswith("Root mean square")
        assert "logarithmic" in page.locator(".legend").first.inner_text()
        heat = page.locator(".heat")
        heat.focus()
        for key in ("ArrowRight", "ArrowDown", "ArrowRight", "ArrowRight"):  # from the first cell: row 1, the third logged step, 4
            page.keyboard.press(key)
        tip = page.locator("#tip").inner_text()
        assert "blocks.1.fc" in tip
        assert "0.5" in tip
        assert "step 4" in tip
        page.keyboard.press("Enter")
        sync_api.expect(page).to_have_url(f"{address}#/run/{ids_of(page)}/layer/blocks.1.fc?number=moments.rms%40output&step=4")
        page.locator(".layer .numbers").first.wait_for()
        assert "null" not in page.locator(".view.layer").inner_text()
        assert page.locator("tr.picked").evaluate_all("all => all.map((row) => getComputedStyle(row).display)") == ["table-row"]


def ids_of(page: Any) -> str:
    """The id of the run that is shown."""
    return str(page.evaluate("location.hash.split('/')[2]"))


@slow
def test_several_runs_are_overlaid_and_their_layers_stand_beside_each_other(browser: Any, tmp_path: Path) -> None:
    """Three runs of three lengths; one has a layer more. One scale, one cursor, a line for each run."""
    expect = sync_api.expect
    for name, steps in (("a", range(0, 20, 2)), ("b", range(0, 40, 2)), ("c", range(0, 10, 2))):
        writer = made_runs.small_run(tmp_path / "runs" / name, steps, closed=False)
        if name == "b":
            for step in steps:
                writer.append("moments", Layout(["extra:output"]), {"rms": np.array([100.0 + step])}, step=step)
        writer.close()
    with LivePage(tmp_path / "runs") as served, opened(browser, served.address) as page:
        for box in page.locator("tbody input[type=checkbox]").all():
            box.check()
        page.locator("a.button", has_text="Compare 3 runs").click()
        expect(page.locator(".verdict")).to_have_count(2)
        expect(page.locator(".maps .heat")).to_have_count(3)
        assert page.locator("figure", has_text="loss").first.locator("path.line").count() == 3
        assert "not in all: extra" in page.locator(".beside-each-other").inner_text()
        assert "hatched: the run has no such layer" in page.locator(".beside-each-other .legend").inner_text()
        names = [each.locator("figcaption").inner_text() for each in page.locator(".maps figure").all()]
        page.locator(".maps .heat").nth(names.index("b")).focus()
        for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowRight"):  # behind the added one, blocks.1.fc at the second step
            page.keyboard.press(key)
        tip = page.locator("#tip").inner_text()
        assert "blocks.1.fc" in tip
        assert "step 2" in tip
        assert [line for line in tip.split() if line == "0.3"] == ["0.3"] * 3  # 0.1 * (1 + 2) in each run
        assert page.locator(".maps .cross .row").count() == 3
        assert page.locator(".beside-each-other figure").last.locator("path.line").count() == 3
        page.keyboard.press("Enter")
        page.wait_for_url("**site=blocks.1.fc*")
        page.get_by_label("Time axis").select_option("share")
        expect(page.locator("figure", has_text="loss").first.locator(".axis")).to_contain_text("% of the training")
        page.locator(".choice", has_text="a").first.locator("button").first.click()
        expect(page.locator(".maps .heat")).to_have_count(2)
        expect(page.locator("figure", has_text="loss").first.locator("path.line")).to_have_count(2)
        page.reload()
        expect(page.locator(".maps .heat")).to_have_count(2)
        assert page.get_by_label("Time axis").input_value() == "share"


@slow
def test_a_step_that_stands_out_in_a_column_has_its_colour(browser: Any, tmp_path: Path) -> None:
    """Of 4,000 logged steps one is a thousand times larger: its cell has the colour of the scale's end, its neighbours have not."""
    with start_run(tmp_path / "runs" / "spike") as writer:
        for step in range(4000):
            writer.append(
                "moments",
                Layout(["a:output", "b:output"]),
                {"rms": np.array([1.0 + step / 4000, 1000.0 if step == 2203 else 1.5])},
                step=step,
            )
    with LivePage(tmp_path / "runs") as served, opened(browser, served.address) as page:
        go(page, f"#/run/{ids(page)['spike']}/layers")
        sync_api.expect(page.locator(".legend").first).to_contain_text("a step that stands out has its own colour (1 cell)")
        colours = page.locator(".heat canvas").evaluate("""(canvas) => {
            const { data, width } = canvas.getContext("2d").getImageData(0, Math.floor(canvas.height * 0.75), canvas.width, 1);
            return Array.from({ length: width }, (_, at) => data.slice(4 * at, 4 * at + 3).join(" "));
        }""")
        usual = max(set(colours), key=colours.count)
        odd = [place / len(colours) for place, colour in enumerate(colours) if colour != usual]
        assert odd
        assert all(abs(place - 2203 / 4000) < 0.01 for place in odd)


@slow
def test_new_data_appears_while_the_run_is_written(browser: Any, tmp_path: Path) -> None:
    with made_runs.growing_run(tmp_path / "runs" / "growing") as writer:
        made_runs.small(writer, range(0, 10, 2))
        writer.flush()
        with LivePage(tmp_path / "runs") as served, opened(browser, served.address) as page:
            expect = sync_api.expect
            expect(page.locator("tbody tr td").nth(4)).to_have_text("8")
            go(page, f"#/run/{ids(page)['growing']}/layers")
            expect(page.locator("#state")).to_contain_text("step 8")
            expect(page.locator("figcaption p").first).to_contain_text("5 logged steps")
            made_runs.small(writer, range(10, 40, 2))
            writer.flush()
            expect(page.locator("#state")).to_contain_text("step 38", timeout=10_000)
            expect(page.locator("figcaption p").first).to_contain_text("20 logged steps", timeout=10_000)


@slow
def test_a_run_that_an_error_has_ended_is_not_called_healthy(browser: Any, tmp_path: Path) -> None:
    with start_run(tmp_path / "runs" / "failed") as writer:
        made_runs.small(writer, range(1))
        writer.note_end(ValueError("the batch has no labels"))
    with LivePage(tmp_path / "runs") as served, opened(browser, served.address) as page:
        assert "healthy" not in page.locator("tbody tr").inner_text()
        go(page, f"#/run/{ids(page)['failed']}")
        told = page.locator(".verdict").inner_text()
        assert "Failed" in told
        assert "Healthy" not in told
        assert "the batch has no labels" in told
        assert "0.0" not in page.locator(".chart svg").first.text_content()  # an axis of steps has whole numbers


@slow
def test_a_run_that_begins_later_appears_in_the_list(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with LivePage(tmp_path / "runs") as served, opened(browser, served.address) as page:
        assert "sonde.watch(" in page.locator(".notice").inner_text()
        made_runs.small_run(tmp_path / "runs" / "late")
        sync_api.expect(page.locator("td a.name")).to_have_text("late", timeout=10_000)


@slow
def test_nothing_in_a_run_becomes_markup_or_runs(browser: Any, address: str) -> None:
    """Hostile text in every string of a run, in every view."""
    with opened(browser, address) as page:
        run = ids(page)["hostile"]
        for view in VIEWS:
            go(page, f"#/run/{run}{view}")
            assert page.locator("#view img, #view script").count() == 0
        go(page, f"#/run/{run}/layers")
        assert "onerror=alert(1)" in page.locator(".heat").inner_html() + page.locator("#view").inner_text()
        page.locator(".heat").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        page.locator(".view.layer").wait_for()
        assert page.locator("#view img, #view script").count() == 0


@slow
def test_a_reload_shows_the_same_view(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        go(page, f"#/run/{ids(page)['small']}/layers")
        page.locator("select[aria-label=Number]").select_option("moments.rms@grad")
        page.locator("input[type=search]").fill("blocks")
        sync_api.expect(page.locator("figcaption p").first).to_contain_text("2 rows")
        box = page.locator(".heat canvas").bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 5)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.95, box["y"] + 5)
        page.mouse.up()
        sync_api.expect(page.locator("button", has_text="whole training")).to_be_visible()
        page.wait_for_url("**from=9*")
        page.reload()
        page.locator(".view.layers").wait_for()
        assert page.locator("select[aria-label=Number]").input_value() == "moments.rms@grad"
        assert page.locator("input[type=search]").input_value() == "blocks"
        sync_api.expect(page.locator("figcaption p").first).to_contain_text("2 rows")
        sync_api.expect(page.locator("button", has_text="whole training")).to_be_visible()


@slow
def test_the_page_says_that_the_server_is_gone_and_comes_back(browser: Any, runs: Path) -> None:
    served = LivePage(runs).start()
    port = int(urlsplit(served.address).port or 0)
    with opened(browser, served.address) as page:
        served.close()
        lost = page.locator("#lost")
        sync_api.expect(lost).to_contain_text("The server does not answer", timeout=10_000)
        assert page.locator("td a.name").count() == 3  # what was there stays
        with LivePage(runs, port=port):
            sync_api.expect(lost).to_be_hidden(timeout=15_000)


@slow
def test_everything_can_be_reached_by_keys(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        run = ids(page)["small"]
        go(page, f"#/run/{run}")
        for key, view in (
            ("2", "layers"),
            ("3", "flow"),
            ("4", "updates"),
            ("7", "findings"),
            ("8", "coverage"),
            ("1", "overview"),
        ):
            page.keyboard.press(key)
            page.locator(f".view.{view}").wait_for()
        page.keyboard.press("?")
        sync_api.expect(page.locator("#keys")).to_be_visible()
        page.keyboard.press("Escape")
        before = page.evaluate("document.documentElement.dataset.theme")
        page.keyboard.press("t")
        assert page.evaluate("document.documentElement.dataset.theme") != before
        page.keyboard.press("3")
        page.locator(".view.flow output").wait_for()
        sync_api.expect(page.locator("output")).to_have_text("step 18")
        page.keyboard.press("[")
        sync_api.expect(page.locator("output")).to_have_text("step 16")
        page.keyboard.press("2")
        page.locator(".heat").focus()
        page.keyboard.press("+")
        page.wait_for_url("**from=*")
        page.keyboard.press("0")
        sync_api.expect(page.locator("button", has_text="whole training")).to_be_hidden()
        page.keyboard.press("r")
        page.locator(".view.runs").wait_for()


def focused(page: Any) -> str:
    """What the element that has the focus is called."""
    return str(page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent.trim()"))


@slow
def test_a_long_list_has_all_names_at_once_and_fills_by_itself(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sonde.view.app.server._PATIENCE", 0.0)
    for name in ("first", "second"):
        made_runs.small_run(tmp_path / name)
    with LivePage(tmp_path) as served, opened(browser, served.address) as page:
        page.locator("td.health", has_text="reading").nth(1).wait_for()
        assert page.locator("td a.name").count() == 2
        monkeypatch.setattr("sonde.view.app.server._PATIENCE", 60.0)
        page.locator("td.health", has_text="reading").first.wait_for(state="detached")


@slow
def test_the_list_keeps_the_focus_while_it_is_filtered_sorted_and_filled_anew(browser: Any, tmp_path: Path) -> None:
    made_runs.small_run(tmp_path / "runs" / "first")
    with LivePage(tmp_path / "runs") as served, opened(browser, served.address) as page:
        page.keyboard.press("/")
        page.keyboard.type("firs")
        assert page.get_by_label("Filter runs").input_value() == "firs"
        assert focused(page) == "Filter runs"
        page.keyboard.press("Control+a")
        page.keyboard.press("Delete")
        page.locator("th button", has_text="state").focus()
        page.keyboard.press("Enter")
        assert focused(page).startswith("state")
        page.get_by_label("Choose first for a comparison").focus()
        made_runs.small_run(tmp_path / "runs" / "second")
        sync_api.expect(page.locator("td a.name")).to_have_count(2, timeout=10_000)
        assert focused(page) == "Choose first for a comparison"


@slow
def test_what_has_the_focus_or_was_opened_stays_so_as_new_data_comes(browser: Any, tmp_path: Path) -> None:
    expect = sync_api.expect
    made_runs.small_run(tmp_path / "runs" / "other")
    with made_runs.growing_run(tmp_path / "runs" / "growing") as writer:
        made_runs.small(writer, range(0, 10, 2))
        writer.flush()
        with LivePage(tmp_path / "runs") as served, opened(browser, served.address) as page:
            found = ids(page)
            go(page, f"#/run/{found['growing']}")
            page.locator("details", has_text="Environment").locator("summary").click()
            page.locator("#which select").focus()
            made_runs.small(writer, range(10, 40, 2))
            writer.flush()
            expect(page.locator("#state")).to_contain_text("step 38", timeout=10_000)
            expect(page.locator(".verdict")).to_contain_text("steps 0 to 38", timeout=10_000)
            assert focused(page) == "Run"
            assert page.locator("details", has_text="Environment").get_attribute("open") is not None

            go(page, f"#/compare?runs={found['growing']},{found['other']}")
            chosen = page.locator(".chosen")
            expect(chosen).to_contain_text("running · step 38")
            page.get_by_label("Time axis").focus()
            made_runs.small(writer, range(40, 50, 2))
            writer.flush()
            expect(chosen).to_contain_text("running · step 48", timeout=10_000)
            assert focused(page) == "Time axis"
            link = chosen.locator("a", has_text="running").first
            link.focus()
            made_runs.small(writer, range(50, 60, 2))
            writer.flush()
            expect(chosen).to_contain_text("running · step 58", timeout=10_000)
            assert page.evaluate("document.activeElement.textContent").endswith("step 58")  # one that was made anew
            shutil.rmtree(tmp_path / "runs" / "other")
            expect(page.locator(".notice")).to_contain_text("Fewer than two of the runs", timeout=10_000)


@slow
def test_the_flow_answers_to_keys(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        go(page, f"#/run/{ids(page)['small']}/flow?number=moments.rms%40output")
        page.locator(".flow[role=application]").focus()
        for key in ("ArrowDown", "ArrowDown"):
            page.keyboard.press(key)
        sync_api.expect(page.locator("#tip")).to_contain_text("blocks.1.fc")
        sync_api.expect(page.locator("#tip")).to_contain_text("1.9")  # 0.1 * (1 + 18)
        assert page.locator(".flow .cross .row").count() == 1
        page.keyboard.press("Enter")
        page.locator(".view.layer").wait_for()
        assert page.locator("h1").inner_text() == "blocks.1.fc"


@slow
def test_a_long_name_makes_no_view_wider_than_the_window(browser: Any, tmp_path: Path) -> None:
    for name in ("a", "b", "x" * 200):
        made_runs.small_run(tmp_path / "runs" / name)
    with start_run(tmp_path / "runs" / "model", about={"model": [{"name": "", "type": "y" * 200}]}) as writer:
        writer.scalar("loss", 1.0, step=0)
    with LivePage(tmp_path / "runs") as served, opened(browser, served.address) as page:
        for width in (1400, 800):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert page.locator(".table-wrap").evaluate("(table) => table.scrollWidth <= table.clientWidth")
        found = ids(page)
        go(page, f"#/compare?runs={found['a']},{found['b']}")
        page.get_by_label("Add a run").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 800, 1400])
def test_every_view_fits_and_can_be_read(browser: Any, address: str, width: int, scheme: str) -> None:
    """Nothing is wider than the window, and no text is smaller than 12 pixels."""
    small_text = """all => all.filter((one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim())
        && parseFloat(getComputedStyle(one).fontSize) < 12).map((one) => one.outerHTML)"""
    with opened(browser, address, width=width, scheme=scheme) as page:
        found = ids(page)
        for run in (found["small"], found["deep/defects"]):
            for view in VIEWS:
                go(page, f"#/run/{run}{view}")
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
                assert page.locator("main *, header *").evaluate_all(small_text) == [], view


@slow
def test_a_printed_view_is_light_and_as_wide_as_paper(browser: Any, address: str) -> None:
    """A4 and letter with margins of 12 mm have 703 pixels or more; the screen is dark and twice as wide."""
    ends = """() => [...document.querySelectorAll("figure text, figure canvas, figure path.line, .finding, .verdict")]
        .map((one) => one.getBoundingClientRect().right)"""
    with opened(browser, address, scheme="dark") as page:
        run = ids(page)["deep/defects"]
        for view in ("", "/layers", "/flow"):
            go(page, f"#/run/{run}{view}")
            page.locator("figure text").first.wait_for()
            assert max(page.evaluate(ends)) > 703
            page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
            assert page.locator("html").get_attribute("data-theme") == "light"
            # a view that is drawn anew for the colours may be on its way when a script has sent the event
            page.wait_for_function(f"() => {{ const found = ({ends})(); return found.length > 0 && Math.max(...found) <= 703; }}")
            page.evaluate("window.dispatchEvent(new Event('afterprint'))")
            sync_api.expect(page.locator("html")).to_have_attribute("data-theme", "dark")
            page.evaluate("new Promise(requestAnimationFrame)")


@slow
def test_a_loss_that_ended_as_nan_is_shown_as_nan(browser: Any, address: str) -> None:
    """In the list and in the overview: not as a dash, and not as the last finite value."""
    with opened(browser, address) as page:
        assert "NaN" in page.locator("tr", has_text="defects").inner_text()
        go(page, f"#/run/{ids(page)['deep/defects']}")
        assert "last NaN" in page.locator("figure", has_text="loss").first.inner_text()


@slow
def test_a_damaged_part_and_a_pruned_run_are_said_on_the_overview(browser: Any, tmp_path: Path) -> None:
    from sonde.run.pruning import prune

    for name in ("damaged", "pruned"):
        made_runs.small_run(tmp_path / "runs" / name)
    part = next((tmp_path / "runs" / "damaged" / "moments").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-50])
    prune(tmp_path / "runs" / "pruned", every=4)
    with (
        pytest.warns(UserWarning, match="is damaged and is left out"),
        LivePage(tmp_path / "runs") as served,
        opened(browser, served.address) as page,
    ):
        found = ids(page)
        assert "ended, pruned" in page.locator("tr", has_text="pruned").inner_text()
        go(page, f"#/run/{found['pruned']}")
        assert "pruned" in page.locator(".verdict").inner_text()
        go(page, f"#/run/{found['damaged']}")
        sync_api.expect(page.locator("#losses")).to_contain_text(
            "This run is not whole, nor are its pictures and findings: moments: "
        )
        page.locator("a", has_text="what is lost").click()
        sync_api.expect(page.locator("#view")).to_contain_text("moments: ")
        page.goto(served.address)  # the list knows of damage once the part was to be read
        page.reload()
        sync_api.expect(page.locator("tr", has_text="damaged")).to_contain_text("1 part of the run cannot be read")


@slow
def test_marks_are_named_beside_the_rows_and_in_the_legend(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        go(page, f"#/run/{ids(page)['deep/defects']}/layers")
        legend = page.locator(".legend").first.inner_text()
        assert all(name in legend for name in ("NaN", "infinite", "exactly 0", "not recorded"))
        sync_api.expect(page.locator(".heat text.glyph")).to_have_text(["NaN", "0"])  # waits until the heat-map is drawn


@slow
@pytest.mark.parametrize(
    ("route", "words"),
    [("#/run/unknown", "there is no run"), ("#/run//layers", "there is no run"), ("#/compare?a=1", "Choose two runs or more")],
)
def test_an_address_that_leads_nowhere_says_so(browser: Any, address: str, route: str, words: str) -> None:
    with opened(browser, address) as page:
        page.evaluate("(route) => { location.hash = route; }", route)
        sync_api.expect(page.locator(".notice")).to_contain_text(words)


@slow
def test_flow_shows_the_values_of_one_step_where_columns_join_several(browser: Any, tmp_path: Path) -> None:
    """The slider has at most 600 places for 1,300 logged steps: dots are medians while it moves, values of a step when it rests."""
    made_runs.small_run(tmp_path / "runs" / "long", range(1300))
    with LivePage(tmp_path / "runs") as served, opened(browser, served.address) as page:
        go(page, f"#/run/{ids(page)['long']}/flow?number=moments.rms%40output&step=600")
        facts = page.locator("figcaption p").first
        sync_api.expect(facts).to_contain_text("dots: step ", timeout=10_000)
        step = int(facts.inner_text().partition("dots: step ")[2].split()[0].replace(",", ""))
        box = page.locator(".flow[role=application]").bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 8 + 10)  # the first row: rms is 1 + step
        sync_api.expect(page.locator("#tip")).to_contain_text(f"{1 + step:,}")


@slow
def test_the_graph_follows_the_colours_of_the_page_around_it(browser: Any, tmp_path: Path) -> None:
    pytest.importorskip("easydot")
    import torch
    from torch import nn

    import sonde

    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with sonde.watch(model, every=1, to=tmp_path / "runs" / "graph", graph=torch.ones(2, 3), verbose=False) as inspector:
        for _ in range(3):
            model(torch.ones(2, 3)).sum().backward()
            inspector.step()
    with LivePage(tmp_path / "runs") as served, opened(browser, served.address) as page:
        go(page, f"#/run/{ids(page)['graph']}/graph")
        frame = page.frame_locator("iframe.graph")
        frame.locator("html[data-ready]").wait_for(state="attached", timeout=20_000)
        for scheme in ("dark", "light"):
            page.keyboard.press("t")
            sync_api.expect(page.locator("html")).to_have_attribute("data-theme", scheme)
            sync_api.expect(frame.locator("html")).to_have_attribute("data-theme", scheme)
        assert page.locator("main select").count() == 0  # one chooser of numbers, that of the graph
        chooser = frame.locator("#number")
        assert "rms of outputs" in chooser.inner_text()
        assert "step 2" in frame.locator("#at").inner_text()  # the last step, as in the other views
        assert frame.locator("#theme").is_hidden()  # the page around has this button
        with page.expect_download() as saved:  # the frame may do so: the view is saved as other pictures are
            frame.locator("#save summary").click()
            frame.locator("#save-png").click()
        assert saved.value.suggested_filename == "Sequential-run-graph.png"
        same = """async () => (await import("/assets/app/scales.js")).gradient("sequential")"""
        ramp = frame.locator("#ramp i").evaluate("(one) => one.style.background")
        assert re.findall(r"\d+", ramp)[1:] == re.findall(r"\d+", page.evaluate(same))[1:]  # one palette
        chooser.select_option(label="std …")
        sync_api.expect(chooser.locator("option:checked")).to_have_text("std of outputs", timeout=20_000)
        page.wait_for_url("**number=*std*")


def test_a_root_stands_alone_and_what_follows_from_it_is_folded_below(browser: Any, tmp_path: Path) -> None:
    layout = Layout(["0.weight:param", "0.weight:grad", "0.weight:update"])
    with start_run(tmp_path / "runs" / "lr") as writer:
        for step in range(8):
            writer.append("moments", layout, {"rms": np.array([1.0, 1.0, 0.9])}, step=step)
            writer.scalar("grad_norm", 1e4**step, step=step)
    check(tmp_path / "runs" / "lr")
    with LivePage(tmp_path / "runs") as served, opened(browser, served.address) as page:
        assert "update_large" in page.locator("tr", has_text="lr").inner_text()
        run = ids_of_list(served.address, page)["lr"]
        go(page, f"#/run/{run}/findings")
        folded = page.locator(".findings details.behind")
        sync_api.expect(folded).to_have_count(1)
        assert folded.locator("summary").inner_text().startswith("from it follow")
        assert page.locator(".findings article.finding").filter(visible=True).count() == 1
        folded.locator("summary").click()
        assert page.locator(".findings article.finding").filter(visible=True).count() == 3
        go(page, f"#/run/{run}")
        sync_api.expect(page.locator(".sentence")).to_have_count(1)
        assert page.locator(".sentence .clause").count() == 3
        assert "0.weight: each step moves it" in page.locator(".sentence .clause").first.inner_text()


@slow
def test_a_clause_of_the_story_moves_the_cursor_and_it_goes_along_to_other_views(browser: Any, address: str) -> None:
    expect = sync_api.expect
    with opened(browser, address) as page:
        run = ids(page)["deep/defects"]
        go(page, f"#/run/{run}")
        clause = page.locator(".clause", has_text="broken").first
        step = int(clause.locator("b").inner_text().removeprefix("step ").removesuffix(": ").removesuffix(":"))
        clause.click()
        page.wait_for_url(f"**step={step}*")
        expect(page.locator(".heat .cross .cell")).to_have_count(1)
        expect(page.locator(".chart .cursor line").first).to_be_attached()
        for view in ("layers", "flow"):
            page.locator("#views a", has_text=view.title()).click()
            page.locator(f"#view .view.{view}:not([aria-busy])").wait_for(state="attached")
            assert f"step={step}" in page.url
        expect(page.locator(".player output")).to_have_text(f"step {step}")


@slow
def test_where_it_began_shows_the_steps_around_and_folds_those_without_a_number(browser: Any, tmp_path: Path) -> None:
    """200 steps, of which the loss is NaN from step 50 on, where an output is not finite."""
    with start_run(tmp_path / "runs" / "late") as writer:
        for step in range(200):
            rms = np.array([1.0, np.nan if step >= 50 else 1.0])
            writer.append("moments", Layout(["a:output", "b:output"]), {"rms": rms, "nan": np.isnan(rms) * 1.0}, step=step)
            writer.scalar("loss", np.nan if step >= 50 else 1.0, step=step)
    check(tmp_path / "runs" / "late")
    with LivePage(tmp_path / "runs") as served, opened(browser, served.address) as page:
        go(page, f"#/run/{ids(page)['late']}")
        page.locator("button", has_text="Where it began").click()
        page.wait_for_url("**from=10*")  # 50, less a fifth of 199
        sync_api.expect(page.locator(".part")).to_contain_text("the loss is no number from step 50 on")
        assert "step=50" in page.url
        assert 52 < int(page.evaluate("new URLSearchParams(location.hash.split('?')[1]).get('to')")) < 70
        page.locator(".part button").click()
        sync_api.expect(page.locator(".part")).to_be_hidden()


@slow
def test_runs_are_chosen_by_a_query_coloured_by_a_setting_and_noted(browser: Any, tmp_path: Path) -> None:
    expect = sync_api.expect
    for name, rate, accuracy in (("one", 0.1, 0.5), ("two", 0.01, 0.9), ("three", 0.001, 0.7)):
        with start_run(tmp_path / "runs" / name, about={"config": {"lr": rate, "kind": "same"}}) as writer:
            for step in range(3):
                writer.scalar("val_accuracy", accuracy - 0.1 * step, step=step)
    with LivePage(tmp_path / "runs") as served, opened(browser, served.address) as page:
        names = page.locator("td a.name")
        heads = page.locator("thead").inner_text()
        assert "lr" in heads
        assert "best val_accuracy" in heads
        assert "kind" not in heads
        expect(page.locator("tbody tr", has_text="two")).to_contain_text("0.9")
        page.locator("button[data-sort=lr]").click()
        expect(names).to_have_text(["three", "two", "one"])
        page.locator("button[data-sort=lr]").click()
        expect(names).to_have_text(["one", "two", "three"])
        page.get_by_label("Keep three on top").click()
        expect(names).to_have_text(["three", "one", "two"])
        page.get_by_label("Write a note beside two").click()
        page.get_by_label("Note beside two").fill("the best #keep")
        page.keyboard.press("Enter")
        page.reload()
        expect(names).to_have_text(["three", "one", "two"])
        for query, chosen in (("lr>0.001 val_accuracy>=0.9", ["two"]), ("tag:keep", ["two"]), ("state:ended lr<0.01", ["three"])):
            page.get_by_label("Filter runs").fill(query)
            expect(names).to_have_text(chosen)
        page.get_by_label("Filter runs").fill("depth>2")
        expect(page.locator("p.error[role=status]")).to_contain_text("no run has depth")
        page.get_by_label("Filter runs").fill("")
        page.get_by_label("Colour by").select_option("lr")
        expect(page.locator("i.group")).to_have_count(3)
        page.locator("button", has_text="Sweep").click()
        expect(page.locator(".dot-of-run")).to_have_count(3)
        expect(page.locator("path.of-run")).to_have_count(3)
        assert page.evaluate(NO_NUMBER) == []


@slow
def test_a_picture_is_saved_as_numbers_and_as_it_is_seen(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        go(page, f"#/run/{ids(page)['small']}/layers?number=moments.rms%40output&show=size")
        page.locator(".heat .axis text").first.wait_for()
        for picture, head, row in (
            (".heat", "row,first step,last step,value,mark", "blocks.0.fc,0,0,1,"),
            (".chart", "name,step,", "blocks.0.fc,0,1,"),
        ):
            page.locator(picture).hover()
            with page.expect_download() as saved:
                page.locator(f"{picture} .save button", has_text="CSV").click()
            lines = Path(saved.value.path()).read_text(encoding="utf-8").splitlines()
            assert lines[0].startswith(head)
            assert any(line.startswith(row) for line in lines)
            with page.expect_download() as saved:
                page.locator(f"{picture} .save button", has_text="PNG").click()
            assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")


@slow
def test_a_picture_of_change_is_grey_where_a_layer_is_at_its_median_and_sizes_are_one_click_away(
    browser: Any, tmp_path: Path
) -> None:
    """Twenty steps of two layers of other sizes; the second is ten times its size at step 15."""
    with start_run(tmp_path / "runs" / "moves") as writer:
        for step in range(20):
            rms = np.array([1.0, 1e-3 * (10 if step == 15 else 1)])
            writer.append("moments", Layout(["a:output", "b:output"]), {"rms": rms}, step=step)
    colour = """(canvas, [column, row]) => {
        const [x, y] = [canvas.width * (column + 0.5) / 19, canvas.height * (row + 0.5) / 2].map(Math.round);
        return Array.from(canvas.getContext("2d").getImageData(x, y, 1, 1).data.slice(0, 3));
    }"""
    with LivePage(tmp_path / "runs") as served, opened(browser, served.address) as page:
        go(page, f"#/run/{ids(page)['moves']}/layers")
        sync_api.expect(page.locator(".legend").first).to_contain_text("the median of its row")
        canvas = page.locator(".heat canvas")
        calm, other, moved = (canvas.evaluate(colour, place) for place in ([3, 0], [3, 1], [15, 1]))
        assert calm == other
        assert max(calm) - min(calm) < 12  # grey
        assert max(moved) - min(moved) > 60
        page.get_by_label("What is shown").select_option("size")
        sync_api.expect(page.locator(".legend").first).not_to_contain_text("median of its row")
        page.wait_for_function("""() => {
            const canvas = document.querySelector(".heat canvas");
            const at = (row) => String(canvas.getContext("2d").getImageData(20, canvas.height * (row + 0.5) / 2, 1, 1).data);
            return at(0) !== at(1);
        }""")


def ids_of_list(address: str, page: Any) -> dict[str, str]:
    """The ids of the runs, from the list."""
    page.goto(address)
    page.locator("td a.name").first.wait_for()
    return ids(page)


NO_NUMBER = """() => [...document.querySelectorAll("svg *")].flatMap((one) => [...one.attributes])
    .filter(({ name, value }) => name !== "aria-label" && /NaN|undefined|Infinity/.test(value))
    .map(({ name, value }) => `${name}=${value}`)"""


@slow
def test_see_it_marks_the_cell_and_the_step_until_escape(browser: Any, address: str) -> None:
    """Also after the pointer has been elsewhere, and after a reload. The page of the layer has the values of that step."""
    expect = sync_api.expect
    with opened(browser, address) as page:
        go(page, f"#/run/{ids(page)['deep/defects']}/findings")
        page.locator(".finding", has_text="broken:output").locator("a.button").first.click()
        page.locator(".view.layers:not([aria-busy])").wait_for()
        step = int(page.evaluate("new URLSearchParams(location.hash.split('?')[1]).get('step')"))
        cell, label = page.locator(".heat .cross .cell"), page.locator(".legend").first
        for turn in range(3):
            expect(cell).to_have_count(1)
            box, heat = marked(page)
            assert abs(box["x"] - heat["x"] - heat["width"] * step / 11) < 2  # the span is of the steps 0 to 11
            assert abs(box["y"] - heat["y"] - heat["height"] / 4) < 2  # the second of four rows
            if turn == 0:
                page.mouse.move(heat["x"] + 5, heat["y"] + 5)
                label.hover()
            elif turn == 1:
                page.reload()
                page.locator(".view.layers:not([aria-busy])").wait_for()
        page.locator(".heat").focus()
        page.keyboard.press("Enter")
        expect(page.locator(".layer .bar")).to_contain_text(f"at step {step}")
        page.go_back()
        expect(cell).to_have_count(1)
        page.locator(".heat").focus()
        page.keyboard.press("Escape")
        expect(cell).to_have_count(0)
        assert "step=" not in page.url


@slow
def test_a_link_to_an_output_of_several_tensors_marks_the_first(browser: Any, tmp_path: Path) -> None:
    """Findings name the output, rows its tensors."""
    with start_run(tmp_path / "runs" / "attention") as writer:
        for step in range(5):
            writer.append("moments", Layout(["fc:output", "att:output[0]", "att:output[1]"]), {"rms": [1.0, 2.0, 3.0]}, step=step)
    with LivePage(tmp_path / "runs") as served, opened(browser, served.address) as page:
        go(page, f"#/run/{ids(page)['attention']}/layers?site=att%3Aoutput&step=2")
        sync_api.expect(page.locator(".heat .cross .cell")).to_have_count(1)
        box, heat = marked(page)
        assert abs(box["y"] - heat["y"] - heat["height"] / 3) < 2


@slow
def test_the_page_of_a_layer_shows_the_values_of_the_step_in_its_address(browser: Any, address: str) -> None:
    expect = sync_api.expect
    with opened(browser, address) as page:
        go(page, f"#/run/{ids(page)['small']}/layer/head?step=8")
        picked = page.locator("tr.picked td").nth(1)
        expect(picked).to_have_text("0.09")  # 0.01 (1 + 8)
        page.locator("button", has_text="the last step").click()
        expect(picked).to_have_text("0.19")


@slow
def test_the_way_back_and_a_reload_restore_the_rows_and_steps_that_are_shown(browser: Any, address: str) -> None:
    expect = sync_api.expect
    with opened(browser, address) as page:
        go(page, f"#/run/{ids(page)['small']}/layers?number=moments.rms%40output")
        names = page.locator(".heat .axis text", has_text="fc")
        expect(names).to_have_count(2)
        box = page.locator(".heat canvas").bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 2)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] * 0.3)
        page.mouse.up()
        page.wait_for_url("**rows=0-1*")
        page.wait_for_url("**from=*")
        page.reload()
        expect(names).to_have_count(1)
        expect(page.locator("button", has_text="whole training")).to_be_visible()
        page.go_back()
        expect(names).to_have_count(2)
        assert "/layers" in page.url
        assert "from=" not in page.url


@slow
@pytest.mark.parametrize("view", ["", "/layers", "/flow", "/layer/head"])
def test_a_run_that_is_deleted_while_it_is_shown_is_said_to_be_gone(browser: Any, tmp_path: Path, view: str) -> None:
    expect = sync_api.expect
    for name in ("stays", "goes"):
        made_runs.small_run(tmp_path / "runs" / name)
    with LivePage(tmp_path / "runs") as served, opened(browser, served.address) as page:
        go(page, f"#/run/{ids(page)['goes']}{view}")
        shutil.rmtree(tmp_path / "runs" / "goes")
        expect(page.locator(".notice")).to_contain_text("the run goes is gone", timeout=10_000)
        expect(page.locator("#which")).to_have_text("goes")
        assert page.evaluate(NO_NUMBER) == []
        page.locator(".notice a").click()
        expect(page.locator("td a.name")).to_have_text("stays")


@slow
def test_a_view_that_is_loading_is_shown_before_newer_data_is_asked_for(browser: Any, tmp_path: Path) -> None:
    """The first answer comes only after the news of more data; the answers after it do not come at all."""
    expect = sync_api.expect
    with made_runs.growing_run(tmp_path / "runs" / "growing") as writer:
        made_runs.small(writer, range(0, 10, 2))
        writer.flush()
        with LivePage(tmp_path / "runs") as served, opened(browser, served.address) as page:
            run = ids(page)["growing"]
            held: list[Any] = []

            def hold(route: Any) -> None:
                held.append(route)

            page.route("**/overview*", hold)
            with page.expect_request("**/overview*"):
                page.evaluate("(route) => { location.hash = route; }", f"#/run/{run}")
            with page.expect_response("**/api/runs"):
                made_runs.small(writer, range(10, 40, 2))
                writer.flush()
            held[0].continue_()
            expect(page.locator(".verdict")).to_contain_text("step")
            expect(page.locator(".chart .line").first).to_be_attached()
            for each in held[1:]:
                each.abort()
            page.unroute_all(behavior="ignoreErrors")


@slow
def test_marks_are_seen_without_colours(browser: Any, address: str) -> None:
    """In grey a cell with NaN has light and dark lines, and one with a value has one shade."""
    shades = """(canvas, [column, row]) => {
        const [x, y] = [canvas.width * column / 11, canvas.height * row / 4].map(Math.round);
        const { data } = canvas.getContext("2d").getImageData(x + 3, y + 3, 24, 10);
        const lightness = (at) => 0.21 * data[4 * at] + 0.72 * data[4 * at + 1] + 0.07 * data[4 * at + 2];
        const grey = Array.from({ length: 240 }, (_, at) => lightness(at));
        return [Math.min(...grey), Math.max(...grey)];
    }"""
    with opened(browser, address) as page:
        go(page, f"#/run/{ids(page)['deep/defects']}/layers?number=moments.rms%40output")
        sync_api.expect(page.locator(".heat text.glyph").first).to_be_attached()
        canvas = page.locator(".heat canvas")
        for step, row, is_marked in ((7, 1, True), (3, 1, True), (5, 2, True), (5, 0, False), (9, 3, False)):
            least, most = canvas.evaluate(shades, [step, row])
            assert most - least > 60 if is_marked else most == least, (step, row)


@slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_keeps_the_rules_of_wcag_aa(browser: Any, address: str, scheme: str) -> None:
    """As far as axe judges them: contrasts, names of controls, the order of headings, roles."""
    spec = importlib.util.find_spec("axe_playwright_python")
    if spec is None or spec.origin is None:
        pytest.skip("axe is not installed: pip install axe-playwright-python")
    axe = Path(spec.origin).with_name("axe.min.js").read_text(encoding="utf-8")
    judged = """async () => {
        const found = await axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"] });
        const words = found.violations.flatMap(({ help, nodes }) => nodes.map(({ html }) => `${help}: ${html}`));
        return [found.passes.length, words];
    }"""
    with opened(browser, address, scheme=scheme) as page:
        found = ids(page)
        routes = [f"#/run/{found['deep/defects']}{view}" for view in (*VIEWS, "/layer/broken?step=7", "/layer/broken?smooth=16")]
        routes.append(f"#/run/{found['small']}?against={found['hostile']}")
        for route in ("", *routes, f"#/compare?runs={found['small']},{found['deep/defects']}"):
            if route:  # the list is there
                go(page, route)
            page.evaluate(axe)
            passed, words = page.evaluate(judged)
            assert passed > 5, route
            assert words == [], route


@slow
def test_lines_are_smoothed_and_the_raw_ones_stay_and_the_address_keeps_it(browser: Any, address: str) -> None:
    """Without smoothing there is one line; else a fainter one as it was, and its average, which the tip and the CSV tell."""
    expect = sync_api.expect
    with opened(browser, address) as page:
        run = ids(page)["small"]
        go(page, f"#/run/{run}")
        loss = page.locator("figure.wide .chart").first
        expect(loss.locator("path.line")).to_have_count(2)  # loss and val_loss
        slider = page.get_by_label("Smoothing")
        assert slider.get_attribute("aria-valuetext") == "off"
        slider.focus()
        for _ in range(6):
            page.keyboard.press("ArrowRight")
        page.wait_for_url("**smooth=4*")  # 1000 ** (6 / 30)
        assert slider.get_attribute("aria-valuetext") == "over 4 logged steps"
        expect(loss.locator("path.line.raw")).to_have_count(2)
        expect(loss.locator("path.line.smooth")).to_have_count(2)
        raw, smooth = (float(loss.locator(f"path.{name}").first.get_attribute("opacity") or 0) for name in ("raw", "smooth"))
        assert raw < smooth
        loss.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        average = (1 / 4 * 3 / 4 * 1 + 1 / 4 * 1 / 3) / (
            7 / 16
        )  # of the loss 1 / (1 + s) at the steps 0 and 2, with the weight 1/4
        expect(page.locator("#tip")).to_contain_text(f"{1 / 3:.4} · {average:.4}")
        with page.expect_download() as saved:
            loss.locator("button", has_text="CSV").click()
        head, _, second = Path(saved.value.path()).read_text(encoding="utf-8").splitlines()[:3]
        assert head.split(",")[-1] == "smoothed"
        assert float(second.split(",")[-1]) == pytest.approx(average, rel=1e-12)
        page.locator("nav a", has_text="Layers").click()
        page.locator(".view.layers:not([aria-busy])").wait_for()
        expect(page.locator("path.line.smooth").first).to_be_attached()  # it goes along to other views
        page.reload()
        expect(page.get_by_label("Smoothing")).to_have_attribute("aria-valuetext", "over 4 logged steps")


@slow
def test_the_page_of_a_layer_shows_its_distribution_at_the_step_and_where_it_is_written(browser: Any, tmp_path: Path) -> None:
    """A click into the history shows the distribution of that step; the address keeps the tensor that was chosen."""
    expect = sync_api.expect
    about = {"model": [{"name": "fc", "type": "Block", "code": "model.py:25"}]}
    with start_run(tmp_path / "runs" / "spread", about=about) as writer:
        for step in range(10):
            counts = np.zeros((2, 278))
            counts[:, 140 + step] = 8
            writer.append("moments", Layout(["fc:output", "fc:grad_output"]), {"rms": [1.0, 2.0]}, step=step)
            writer.append("exponents", Layout(["fc:output", "fc:grad_output"]), {"powers": counts}, step=step)
    with LivePage(tmp_path / "runs") as served, opened(browser, served.address) as page:
        go(page, f"#/run/{ids(page)['spread']}/layer/fc?step=5")
        assert "Block · written in model.py:25" in page.locator(".view.layer").inner_text()
        spread = page.locator("figure", has_text="Distribution of")
        expect(spread).to_contain_text("at step 5 · nine of ten magnitudes lie from 2⁻⁴ to 2⁻³")  # 145 is 2^-4
        page.get_by_label("Tensor").select_option("fc:grad_output")
        page.wait_for_url("**tensor=fc%3Agrad_output*")
        page.locator(".chart").first.focus()
        page.locator("button", has_text="the last step").click()
        expect(spread).to_contain_text("at step 9 · nine of ten magnitudes lie from 2⁰ to 2¹")
        page.reload()
        expect(page.get_by_label("Tensor")).to_have_value("fc:grad_output")
        with page.expect_download() as saved:
            spread.locator("button", has_text="CSV").click()
        lines = Path(saved.value.path()).read_text(encoding="utf-8").splitlines()
        assert "1,2,1,0.1" in lines  # all elements at the step, a tenth of the steps


@slow
def test_the_page_of_a_layer_shows_values_of_the_tensor_kept_last_before_the_step(browser: Any, tmp_path: Path) -> None:
    """The picture has the marks and the values of that tensor; the address keeps the site; damage is a line of text."""
    expect = sync_api.expect
    made_runs.small_run(tmp_path / "runs" / "small")
    folder = tmp_path / "runs" / "small" / "tensors"
    kept = {}
    for place, (port, step) in enumerate((port, step) for port in ("output", "grad_output") for step in (4, 10)):
        values = torch.arange(24.0).reshape(2, 3, 4) - step
        values[0, 0, 1] = torch.nan
        site = f"blocks.1.fc:{port}"
        kept[f"{place:06d}/{site}"] = ({"site": site, "tick": {"step": step}}, values)
    write_tensors(folder, [(record, {key: values}) for key, (record, values) in kept.items()])
    with LivePage(tmp_path / "runs") as served, opened(browser, served.address) as page:
        go(page, f"#/run/{ids(page)['small']}/layer/blocks.1.fc?step=9")
        stored = page.locator("figure.stored")
        words = "of step 4, the last before 9 · kept at 2 steps · 2×3×4 · float32 · values from −4 to 19 · 1 NaN"
        expect(stored.locator("figcaption")).to_contain_text(words)
        expect(stored.locator(".legend")).to_contain_text("NaN")
        expect(stored.locator(".legend")).to_contain_text("of [0, :, :] · down: axis 1 · across: axis 2")
        plot = stored.locator("canvas").bounding_box()
        page.mouse.move(plot["x"] + plot["width"] * 0.9, plot["y"] + plot["height"] * 0.9)
        assert " ".join(page.locator("#tip").inner_text().split()) == "[0, 2, 3] 7"  # 11 of 24 from 0, minus 4
        page.mouse.move(plot["x"] + plot["width"] * 0.3, plot["y"] + 2)
        assert " ".join(page.locator("#tip").inner_text().split()) == "[0, 0, 1] NaN"
        with page.expect_download() as saved:
            stored.locator("button", has_text="CSV").click()
        lines = Path(saved.value.path()).read_text(encoding="utf-8").splitlines()
        assert lines[1:4] == ['"[0, 0, 0]",-4,', '"[0, 0, 1]",,NaN', '"[0, 0, 2]",-2,']
        page.get_by_label("Stored tensor").select_option("blocks.1.fc:grad_output")
        page.wait_for_url("**kept=blocks.1.fc%3Agrad_output*")
        page.locator("button", has_text="the last step").click()
        expect(stored.locator("figcaption")).to_contain_text("at step 10 ·")
        page.reload()
        expect(page.get_by_label("Stored tensor")).to_have_value("blocks.1.fc:grad_output")
        go(page, f"#/run/{ids_of(page)}/layer/head")
        expect(stored).to_contain_text('None was kept. tracker.save(inspector.run.path / "tensors")')
        (shard,) = folder.glob("*.safetensors")
        shard.write_bytes(shard.read_bytes()[:-1])
        page.reload()
        go(page, f"#/run/{ids_of(page)}/layer/blocks.1.fc?step=4")
        expect(stored).to_contain_text("is not whole")
        expect(page.locator(".numbers").first).to_be_visible()


@slow
def test_a_run_is_shown_against_another_one_in_every_view_and_the_address_keeps_it(browser: Any, tmp_path: Path) -> None:
    """Four times as large from step 10 on, which is 2 in powers of two; a layer that the other run lacks is named."""
    expect = sync_api.expect
    for name, factor in (("own", 4.0), ("other", 1.0)):
        writer = made_runs.small_run(tmp_path / "runs" / name, range(0), closed=False)
        layers = [f"{layer}:output" for layer in ("fc", "head", *(["extra"] if name == "own" else []))]
        for step in range(20):
            size = np.full(len(layers), factor if step >= 10 else 1.0)
            writer.append("moments", Layout(layers), {"rms": size, "nan": size * 0, "inf": size * 0}, step=step)
            writer.scalar("loss", float(size[0]), step=step)
        writer.close()
    with LivePage(tmp_path / "runs") as served, opened(browser, served.address) as page:
        found = ids(page)
        go(page, f"#/run/{found['own']}")
        page.get_by_label("against").select_option("other")
        page.wait_for_url(f"**against={found['other']}*")
        said = page.locator("#against")
        expect(said).to_contain_text("only in own: extra:output")
        expect(page.locator("figure", has_text="loss").first).to_contain_text("log₂ of the ratio to other")
        expect(page.locator("figure", has_text="loss").first.locator("b.last")).to_have_text("last 2")
        for key, view in (("3", "flow"), ("2", "layers")):
            page.keyboard.press(key)
            page.locator(f".view.{view}:not([aria-busy])").wait_for()
            expect(said).to_contain_text("own against other")
        page.reload()
        expect(page.locator(".legend .unit").first).to_have_text("log₂ of rms / that of other (powers of two)")
        page.locator(".heat").focus()
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#tip dd").first).to_have_text("2")
        page.keyboard.press("Enter")
        page.locator(".view.layer:not([aria-busy])").wait_for()
        assert page.locator("tr.picked td").all_inner_texts()[1:3] == ["4", "1"]
        page.locator("button", has_text="this run alone").click()
        expect(said).to_be_hidden()
        expect(page.locator("tr.picked td")).to_have_count(3)
        assert "against" not in page.url


@slow
def test_flow_and_sweep_are_saved_and_the_last_of_a_metric_is_a_column(browser: Any, tmp_path: Path) -> None:
    """The CSV of the flow has a row for each layer at the step that is shown; that of the sweep one for each run."""
    expect = sync_api.expect
    for name, rate in (("a", 0.125), ("b", 0.25)):
        with start_run(tmp_path / "runs" / name, about={"config": {"lr": rate}}) as writer:
            for step in range(3):
                writer.append("moments", Layout(["fc:output", "head:output"]), {"rms": [rate, 2.0 + step]}, step=step)
                writer.scalar("accuracy", rate + [0.1, 0.5, 0.3][step], step=step)

    def saved(page: Any, place: str, kind: str) -> Path:
        with page.expect_download() as download:
            page.locator(place).first.get_by_role("button", name=kind).click()
        return Path(download.value.path())

    with LivePage(tmp_path / "runs") as served, opened(browser, served.address) as page:
        page.locator("summary", has_text="columns").click()
        page.get_by_label("last accuracy").check()
        page.wait_for_url("**columns=*accuracy.last*")
        head = page.locator("thead th").all_inner_texts()
        cells = page.locator("tbody tr", has_text="b").first.locator("td").all_inner_texts()
        assert (cells[head.index("best accuracy")], cells[head.index("last accuracy")]) == ("0.75", "0.55")
        page.get_by_role("button", name="Sweep").click()
        lines = saved(page, ".sweep .chart", "CSV").read_text(encoding="utf-8").splitlines()
        assert lines[0].split(",")[:2] == ["run", "lr"]
        assert sorted(line.split(",")[:2] for line in lines[1:]) == [["a", "0.125"], ["b", "0.25"]]
        assert saved(page, ".sweep .chart", "PNG").read_bytes()[:4] == b"\x89PNG"
        go(page, f"#/run/{ids_of_list(served.address, page)['b']}/flow?step=1")
        expect(page.locator("output")).to_have_text("step 1")
        lines = saved(page, ".flow .save", "CSV").read_text(encoding="utf-8").splitlines()
        assert [line.split(",")[:4] for line in lines[1:]] == [["fc", "fc:output", "1", "0.25"], ["head", "head:output", "1", "3"]]
        assert saved(page, ".flow .save", "PNG").read_bytes()[:4] == b"\x89PNG"
        assert "/flow" in page.url  # a click on a button opens no layer


@slow
def test_a_link_shows_what_its_sender_has_set(browser: Any, tmp_path: Path) -> None:
    """The tensor of several of a kind, counts, the rows of the overview, and the filter of the coverage."""
    expect = sync_api.expect
    parameters = Layout(["fc.bias:param", "fc.weight:param", "head.weight:param"])
    with start_run(tmp_path / "run") as writer:
        for step in range(4):
            writer.append("moments", parameters, {"rms": [1.0, 2.0, 3.0], "count": [4.0, 16.0, 8.0]}, step=step)
        writer.document("coverage", {"missing": [{"site": f"{name}:output", "reason": "never called"} for name in ("fc", "head")]})
    with LivePage(tmp_path) as served, opened(browser, served.address) as page:
        run = ids(page)["run"]
        go(page, f"#/run/{run}/layer/fc")
        page.locator("tr[data-number*='fc.weight']").first.click()
        page.get_by_label("counts, too").check()
        with opened(browser, page.evaluate("location.href")) as other:
            expect(other.locator("tr.picked")).to_have_attribute("data-number", "moments.rms@param fc.weight:param")
            expect(other.get_by_label("counts, too")).to_be_checked()
        go(page, f"#/run/{run}/coverage")
        page.get_by_label("Filter sites").fill("head")
        with opened(browser, page.evaluate("location.href")) as other:
            expect(other.locator("td.name")).to_have_text(["head"])
        go(page, f"#/run/{run}")
        box = page.locator(".heat").bounding_box()
        x, y, high = box["x"] + box["width"] * 0.7, box["y"], box["height"]
        page.mouse.move(x, y + 6)
        page.mouse.down()
        page.mouse.move(x + 2, y + high / 3, steps=4)
        page.mouse.up()
        page.wait_for_url("**rows=*")


@slow
def test_minus_infinity_stands_on_the_lower_edge_of_a_chart_and_infinity_on_the_upper(browser: Any, tmp_path: Path) -> None:
    for name, value in (("down", -np.inf), ("up", np.inf)):
        with start_run(tmp_path / name) as writer:
            for step in range(5):
                writer.scalar("loss", value if step == 2 else 1.0 + step, step=step)
    with LivePage(tmp_path) as served, opened(browser, served.address) as page:
        runs = ids(page)
        for name, is_low in (("down", True), ("up", False)):
            go(page, f"#/run/{runs[name]}")
            chart, mark = (page.locator(place).first.bounding_box() for place in (".chart", ".chart .mark rect"))
            assert (mark["y"] - chart["y"] > chart["height"] / 2) is is_low


@slow
def test_on_a_phone_the_buttons_stand_beside_the_name_of_the_run(browser: Any, address: str) -> None:
    with opened(browser, address, width=390) as page:
        go(page, f"#/run/{ids(page)['small']}")
        name, buttons, against = (page.locator(place).bounding_box() for place in ("#which", "header .buttons", "#sibling"))
        assert buttons["y"] < name["y"] + name["height"] <= against["y"] + 1


@slow
def test_a_picture_has_the_height_that_its_reader_gave_it(browser: Any, address: str) -> None:
    """By keys and by dragging; after a reload and for who follows the link, too; delete gives it back its own."""
    with opened(browser, address) as page:
        go(page, f"#/run/{ids(page)['small']}")
        for place in (".chart", ".heat"):
            picture = page.locator(place).first
            handle = picture.get_by_role("separator")
            is_high = functools.partial(sync_api.expect(picture).to_have_js_property, "offsetHeight")
            before = round(picture.bounding_box()["height"])
            handle.focus()
            for _ in range(3):
                page.keyboard.press("ArrowDown")
            is_high(before + 60)
            box = handle.bounding_box()
            page.mouse.move(box["x"] + 50, box["y"] + 4)
            page.mouse.down()
            page.mouse.move(box["x"] + 50, box["y"] + 44)
            page.mouse.up()
            is_high(before + 100)
            assert "from=" not in page.url  # nothing was zoomed
            page.reload()
            page.locator("#view .view:not([aria-busy])").wait_for(state="attached")
            is_high(before + 100)
            with opened(browser, page.evaluate("location.href")) as other:
                sync_api.expect(other.locator(place).first).to_have_js_property("offsetHeight", before + 100)
            handle.focus()
            page.keyboard.press("Delete")
            is_high(before)
            assert "heights" not in page.url


@slow
def test_an_axis_of_times_names_ticks_by_what_the_run_has_noted(browser: Any, tmp_path: Path) -> None:
    """Ten steps a minute, then one a minute; of steps behind the last time that was noted nothing is said."""
    expect = sync_api.expect
    made_runs.small_run(tmp_path / "runs" / "timed")
    with LivePage(tmp_path / "runs") as served, opened(browser, served.address) as page:
        page.route("**/numbers", lambda route: route.fulfill(json={**route.fetch().json(), "times": [[0, 0], [10, 60], [16, 420]]}))
        run = ids(page)["timed"]
        go(page, f"#/run/{run}")
        axis = page.locator("figure.wide .chart").first.locator(".axis")
        expect(axis).to_contain_text("step")
        page.get_by_label("Time axis").select_option("time")
        page.wait_for_url("**axis=time*")
        expect(axis).to_contain_text("time since the start")
        expect(axis).to_contain_text("5 min")
        expect(page.locator(".time-axis")).to_contain_text("interpolated")
        loss = page.locator("figure.wide .chart").first
        loss.focus()
        for _ in range(6):
            page.keyboard.press("ArrowRight")
        expect(page.locator("#tip")).to_contain_text("step 10 · 1 min 00 s after the start")
        for _ in range(4):
            page.keyboard.press("ArrowRight")
        expect(page.locator("#tip")).to_contain_text("step 18 · its time is not known")
        page.keyboard.press("2")
        page.locator(".view.layers:not([aria-busy])").wait_for()
        expect(page.locator(".heat .axis")).to_contain_text("time since the start")


@slow
def test_rounded_numbers_are_those_of_the_run_within_their_bound(browser: Any, tmp_path: Path) -> None:
    """200 sites x 500 steps: more cells than are sent as they are. 2^-13 of each value."""
    made_runs.large_run(tmp_path / "runs" / "large", 200, 500)
    read = """async (address) => {
        const { matrixOf } = await import("/assets/app/source.js");
        const ask = async (path) => matrixOf(await (await fetch(path)).json());
        const [rounded, exact] = [await ask(`${address}&rounded=1`), await ask(address)];
        let error = 0;
        exact.values.forEach((value, at) => { error = Math.max(error, Math.abs(rounded.values[at] / value - 1)); });
        return [rounded.planes, exact.planes ?? null, error];
    }"""
    with LivePage(tmp_path / "runs") as served, opened(browser, served.address) as page:
        planes, none, error = page.evaluate(read, f"/api/runs/{ids(page)['large']}/heatmap?number=rms&columns=500")
        assert (planes, none) == (True, None)
        assert 0 < error <= 2.0**-13 * (1 + 2.0**-20)


@slow
def test_functions_of_the_page_give_what_their_names_say(browser: Any, address: str) -> None:
    found = """async () => {
        const module = (name) => import(`/assets/app/${name}.js`);
        const names = ["dom", "scales", "span", "source", "story", "query", "heat", "change", "saving", "smoothing", "histogram",
                       "against", "timeaxis", "chart", "sample"];
        const [dom, scales, span, source, story, query, heat, change, saving, smoothing, histogram, against, timeaxis, chart,
               sample] =
          await Promise.all(names.map(module));
        const runs = [
            { name: "a", state: "ended", settings: { lr: 0.1, kind: "Adam" }, metrics: { loss: { last: 2, best: 1 } } },
            { name: "b", state: "failed", settings: { lr: 0.01, kind: "adamw" }, metrics: { loss: { last: 1, best: 1 } } },
        ].map((run) => ({ ...run, model: run.settings.kind }));
        const part = span.Span.of({ first: 0, last: 100 }, { from: "20", to: "40", step: "30" });
        const odd = span.Span.of({ first: null, last: undefined }, { from: "x", to: "NaN", step: "" });
        return {
            plain: [0.09, 1e-7, -123456789, NaN, -Infinity, null].map((each) => dom.plain(each)),
            short: dom.shortened("blocks.10.attention", 8), parts: dom.partsOf("lstm:output[0]"),
            ticks: scales.ticks(scales.axis(1, 1000, 0, 1, true), 5).map(([value]) => value),
            linear: scales.ticks(scales.axis(0, 10, 0, 1), 5).map(([, text]) => text),
            share: [1, 10, 100].map(scales.shareOn({ low: 1, high: 100, log: true })),
            middles: source.middlesOf([0, 4, 8], [2, 6]),
            csv: saving.csvOf([["a,b", 1, null], ['say "x"', NaN, "=1+1"]]),
            onset: [story.aroundOnset(50, 0, 100), story.aroundOnset(50, 0, 100, 52), story.aroundOnset(0, 0, 100, 100)],
            clause: story.clauseOf("step 4: a: grew (also b and 3 more)"),
            query: ["lr>0.01", "lr<=0.01 adam", "kind=ADAM", "loss:1", "loss.last>1", "nothing>1", "name!=a"].map((text) =>
              query.chosenRuns(runs, text).chosen.map(({ name }) => name).join("")),
            unknown: query.chosenRuns(runs, "nothing>1").unknown,
            places: [...query.placesOf([0.1, 1e-3, 0.01, 0.1])],
            rows: ["b:output", "b.weight:grad", "b.c:output", "z:output"].map((site) =>
              heat.rowOfSite(["a:output", "b:output[0]", "b:output[1]"], site)),
            blocks: ["blocks.0.fc", "model.layers.11", "head", "h.1 to 11", "blocks.0"].map(heat.blockOf),
            change: Array.from(change.changeOf({ rows: 2, columns: 2, reference: [2, 0], label: "rms",
              values: [2, 4, 0, 1], shown: [2, 4, 0, 1], shownMarks: [0, 0, 5, 0] }).values),
            smooth: [[[1, 3, null, NaN, 5], 2], [[4, 4, 4], 7], [[1, 3], 1]].map(([values, window]) =>
              smoothing.smoothed(values, window).map((value) => value && Math.round(value * 1e9) / 1e9)),
            joined: smoothing.smoothed([1, 3], 2, 2), window: ["", "x", "25", "1e9"].map(smoothing.windowOf),
            between: [[0, 1], [1, 0]].map((ways) => [0, 5, 30, 40].map((at) => timeaxis.between([[0, 10], [10, 30]], at, ...ways))),
            times: timeaxis.timeTicks([[0, 0], [10, 60], [16, 420]], scales.axis(0, 18, 0, 1800), 8, "time"),
            unmatched: against.unmatchedWords(
              { matched: { both: 3, own: 5, other: 8 } }, { only_a: ["x", "y"], only_b: [] }, "a", "b"),
            texts: histogram.placedTexts([{ at: 0, text: "abcde" }, { at: 10, text: "abc" }, { at: 99, text: "x" }], 100),
            crowded: histogram.placedTexts(["a low", "b low", "c high", "d", "e"].map((text, at) =>
              ({ at: at && at - 1, text })), 900).map(({ text, line, isShown }) => [text, line, isShown]),
            spread: histogram.spreadWords(
              { powers: [-1, 0, 1, 2], share: [[0.05, 0.4, 0.4, 0.05]], zeros: [0.1], nonfinite: [0] }),
            signs: chart.clustered([0, 1, 18, 40, 56].map((step) => ({ step })), { first: 0, last: 99, at: (x) => x })
              .map(({ all }) => all.map(({ step }) => step)),
            tensorPlaces: [[[5], [0], [4]], [[], [0], [0]], [[2, 3, 4], [0, 2], [1, 3]]].map(([shape, rows, columns]) =>
              sample.placeOf({ shape, rows, columns }, rows.length - 1, columns.length - 1)),
            when: [[{ step: null, steps: [], of: 1 }, 3], [{ step: 4, steps: [4], of: 1 }, null],
                   [{ step: 4, steps: [4, 8], of: 2 }, 6],
                   [{ step: 4, steps: [4], of: 1 }, 1]].map((given) => sample.whenKept(...given)),
            values: [{ shape: [2, 3], dtype: "complex64", low: 0.5, high: 2, nan: 1, inf: 2 },
                     { shape: [], dtype: "int8", low: null, high: null, nan: null, inf: null }].map(sample.valueWords),
            axes: [[[9], [0], [4, 5]], [[3, 2, 2], [0, 1], [0, 1]], [[], [0], [0]]].map(([shape, rows, columns]) =>
              sample.partWords({ shape, rows, columns })),
            part: [part.part, part.cursor, part.isWhole], odd: [odd.part, odd.cursor, odd.first, odd.last],
        };
    }"""
    with opened(browser, address) as page:
        assert page.evaluate(found) == {
            "plain": ["0.09", "1·10⁻⁷", "−1.23·10⁸", "NaN", "−∞", "–"],
            "short": "…tention",
            "parts": ["lstm", "output[0]"],
            "ticks": [1, 10, 100, 1000],
            "linear": ["0", "2", "4", "6", "8", "10"],
            "share": [0, 0.5, 1],
            "middles": [1, 5],
            "csv": '"a,b",1,\n"say ""x""",NaN,\'=1+1\n',
            "onset": [[30, 60], [30, 55.3], [0, 10]],
            "clause": "a: grew",
            "query": ["a", "b", "a", "ab", "a", "", "b"],
            "unknown": ["nothing"],
            "places": [[0.001, 0], [0.01, 0.5], [0.1, 1]],
            "rows": [1, 1, 1, -1],
            "blocks": ["blocks.0", "model.layers.11", "", "h.1", "blocks.0"],
            "change": [1, 2, 1, float("inf")],
            "smooth": [[1, round(7 / 3, 9), None, None, round(27 / 7, 9)], [4, 4, 4], [1, 3]],
            "joined": [1, (1 / 4 * 3 / 4 * 1 + 3 / 4 * 3) / (15 / 16)],
            "window": [1, 1, 25, 1000],
            "between": [[10, 20, None, None], [None, None, 10, None]],
            "times": [
                [0, "0 s"],
                [10, "1 min"],
                [11, "2 min"],
                [12, "3 min"],
                [13, "4 min"],
                [14, "5 min"],
                [15, "6 min"],
                [16, "7 min"],
            ],
            "signs": [[0, 1, 18], [40], [56]],
            "unmatched": "3 logged steps in both: of 5 in a and 8 in b · only in a: x, y",
            "tensorPlaces": ["[4]", "[]", "[0, 2, 3]"],
            "when": [
                "no step is known of it",
                "at step 4",
                "of step 4, the last before 6 · the first of 2 at this step · kept at 2 steps",
                "of step 4, the first",
            ],
            "values": [
                "2×3 · complex64 · magnitudes from 0.5 to 2 · 1 NaN · 2 infinite",
                "one value · int8 · too large to be read whole: only the picture was read, and no checksum compared",
            ],
            "axes": ["across: axis 0: 2 of 9, evenly", "of [0, :, :] · down: axis 1 · across: axis 2", ""],
            "texts": [
                {"at": 0, "text": "abcde", "line": 0, "isLeft": False, "isShown": True},
                {"at": 10, "text": "abc", "line": 1, "isLeft": False, "isShown": True},
                {"at": 99, "text": "x", "line": 0, "isLeft": True, "isShown": True},
            ],
            "crowded": [["a, b low", 0, True], ["c high", 1, True], ["d", 2, True], ["e", 0, False]],
            "spread": "nine of ten magnitudes lie from 2⁻¹ to 2² · 10 % are exactly 0",
            "part": [{"from": 20, "to": 40}, 30, False],
            "odd": [{}, None, 0, 1],
        }
