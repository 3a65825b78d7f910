"""The live page in a real browser: what it shows is what the run holds, it follows a training, and nothing in a run runs code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.view.app import made_runs

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


def go(page: Any, route: str) -> None:
    """Show another view, and wait for it."""
    page.locator("#view .view").evaluate_all("all => all.forEach((one) => one.remove())")
    page.evaluate("(route) => { location.hash = route; }", route)
    page.locator("#view .view").wait_for(state="attached")


def test_a_run_is_listed_judged_and_its_cells_tell_the_recorded_values(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        row = page.locator("tr", has_text="defects")
        assert "1 finding" in row.inner_text()
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


def ids_of(page: Any) -> str:
    """The id of the run that is shown."""
    return str(page.evaluate("location.hash.split('/')[2]"))


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


@slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [800, 1400])
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
def test_marks_are_named_beside_the_rows_and_in_the_legend(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        go(page, f"#/run/{ids(page)['deep/defects']}/layers")
        legend = page.locator(".legend").first.inner_text()
        assert all(name in legend for name in ("NaN", "infinite", "exactly 0", "not recorded"))
        assert page.locator(".heat text.glyph").all_text_contents() == ["NaN", "0"]


@slow
@pytest.mark.parametrize(
    ("route", "words"),
    [("#/run/unknown", "there is no run"), ("#/run//layers", "there is no run"), ("#/compare?a=1", "Choose two runs")],
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
        box = page.locator(".flow[role=img]").bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 8 + 10)  # the first row: rms is 1 + step
        sync_api.expect(page.locator("#tip")).to_contain_text(f"{1 + step:,}")


@slow
def test_the_graph_follows_the_colours_of_the_page_around_it(browser: Any, tmp_path: Path) -> None:
    pytest.importorskip("easydot")
    import torch
    from torch import nn

    import sonde

    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with sonde.watch(model, every=1, to=tmp_path / "runs" / "graph", batch=torch.ones(2, 3), quiet=True) as inspector:
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
