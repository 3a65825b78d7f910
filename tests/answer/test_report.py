"""The report: one file that loads nothing, the same parts in a notebook, and a page for keyboards, in light and dark."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from sonde.answer import Answer, Cell, Chart, Code, Fact, Grid, Line, Mark, Part, Report, facts_of_findings
from sonde.errors import ArgumentError
from sonde.rules import Finding

HOSTILE = "\"'><img src=x onerror=alert(1)></script><script>alert(2)</script>$title"


def report(text: str = "plain words") -> Report:
    """A report with each kind of part, *text* in every string."""
    table = Grid(text, ["layer", text], [[Cell(text, "strong"), Cell(text)], [Cell(""), Cell(text, "bad")]], [text])
    chart = Chart([0, 1, 2], [Line(text, [1.0, 0.0, 3.0]), Line(text, [2.0] * 3, "limit")], text, text, True, [Mark(1, text)])
    code = Code([f"    {text}\n", "pass\n"], 7, 8, text)
    parts = [
        Part("", [Fact(text, text, "bad"), Fact("", text), Fact("run", text, is_code=True)]),
        Part(text, table, text),
        Part("chart", chart),
        Part("code", code, folded=True),
    ]
    return Report(text, text, "bad", text, parts, [text])


class Made(Answer):
    notes = ("a note",)
    findings = ()

    def _grid(self) -> Grid:
        return Grid("a table", ["layer"], [[Cell("fc")]])

    def _report(self) -> Report:
        return report()


class Elements(HTMLParser):
    """The elements of a page, and its texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_page_loads_nothing_and_no_text_becomes_markup() -> None:
    page = report(HOSTILE).to_html()
    found = Elements(page)
    assert found.tags.count("script") == 1
    assert "img" not in found.tags
    assert not {name for name, _ in found.attributes} & {"src", "onerror", "onclick"}
    assert not re.search(r"(url\(|@import|https?://)", page)
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', page)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "blob:;" not in policy.partition("script-src")[2].partition(";")[0] + ";"
    assert any(HOSTILE.partition("\n")[0] in text for text in found.texts)


def test_a_notebook_gets_the_same_parts_without_a_script() -> None:
    found, page = Elements(Made()._repr_html_()), Elements(Made().to_html())
    assert "script" not in found.tags
    for tag in ("dl", "table", "svg", "pre", "details", "h1"):
        assert found.tags.count(tag) == page.tags.count(tag) >= 1


def test_a_table_in_a_report_has_no_second_title_and_rows_that_continue_are_marked() -> None:
    page = report().to_html()
    assert "<caption" not in page
    assert page.count("<tr class=more>") == 1


def test_the_ending_of_the_file_chooses_page_or_text(tmp_path: Path) -> None:
    assert Made().save(tmp_path / "r.html").read_text().startswith("<!doctype html>")
    assert Made().save(str(tmp_path / "r.txt")).read_text() == f"{Made().to_text()}\n"
    with pytest.raises(ArgumentError, match=r"'r.pdf' cannot be written: give a file that ends in .html"):
        Made().save(tmp_path / "r.pdf")


def test_code_is_shown_only_where_the_file_still_holds_it(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("".join(f"line {number}\n" for number in range(1, 21)))
    found = Code.around(str(file), 10, "line 10", context=2)
    assert found is not None
    assert ([line.strip() for line in found.lines], found.first) == ([f"line {number}" for number in range(8, 13)], 8)
    assert Code.around(str(file), 10, "another line") is None
    assert Code.around(str(tmp_path / "none.py"), 1, "x") is None
    assert Code.around("<stdin>", 1, "") is None


def dots(chart: Chart) -> list[tuple[float, float]]:
    """The centres of the dots of a chart's line."""
    return [
        (float(x), float(y))
        for x, y in re.findall(r'<circle class="dot one" cx="([\d.]+)" cy="([\d.]+)" r="2.8"><title', chart.to_svg())
    ]


def test_equal_factors_are_equal_distances_on_a_logarithmic_axis_and_equal_steps_on_a_plain_one() -> None:
    heights = [y for _, y in dots(Chart([0, 1, 2], [Line("v", [1e-4, 1e-2, 1.0])], "x", "y", log=True))]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.11)  # two rounded to a tenth
    assert heights[0] > heights[2]
    heights = [y for _, y in dots(Chart([0, 1, 2], [Line("v", [-1.0, 0.0, 1.0])], "x", "y"))]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.11)


def test_zero_and_what_is_not_finite_have_lanes_of_their_own_away_from_the_line() -> None:
    chart = Chart([0, 1, 2, 3], [Line("v", [1.0, 0.0, float("nan"), float("inf")])], "x", "y", log=True)
    (_, one), (_, zero), (_, nan), (_, inf) = dots(chart)
    assert nan == inf < one < zero
    svg = chart.to_svg()
    assert ">0</text>" in svg
    assert ">not finite</text>" in svg
    (path,) = re.findall(r'class="line one" d="(M[^"H]*)"', svg)
    assert path.count("L") == 0  # the line connects values of the axis alone
    assert ">not finite<" not in Chart([0, 1], [Line("v", [1.0, 2.0])], "x", "y").to_svg()


@pytest.mark.parametrize("values", [[], [0.0], [5.0], [float("nan")], [2.0, 2.0, 2.0], [1e-320, 1e300], [-1e308, 1e308]])
@pytest.mark.parametrize("log", [False, True])
def test_any_values_can_be_drawn(values: list[float], log: bool) -> None:
    svg = Chart(range(len(values)), [Line("v", [abs(value) for value in values] if log else values)], "x", "y", log=log).to_svg()
    assert not re.search(r'="[^"]*(nan|inf|e[+-])', svg.replace("not finite", ""))


@pytest.mark.slow
def test_the_page_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """Light and dark, keys, a button that copies, no scroll bar at 800 pixels; on paper light, and no parts that are closed."""
    wide = Grid("", ["layer", "words"], [[Cell("l" * 90), Cell("w" * 90)]])
    made = report()
    held = Report("sonde.x", "Net", "bad", "a verdict " * 9, [*made.parts, Part("wide", wide)])
    (tmp_path / "r.html").write_text(held.to_html(), encoding="utf-8")
    context = browser.new_context(offline=True, viewport={"width": 800, "height": 600}, color_scheme="dark")
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto((tmp_path / "r.html").as_uri())
    ink = "getComputedStyle(document.querySelector('h1')).color"
    dark = page.evaluate(ink)
    page.keyboard.press("t")
    assert page.evaluate(ink) != dark
    assert page.locator("details").get_attribute("open") is None
    page.keyboard.press("o")
    assert page.locator("details").get_attribute("open") is not None
    assert page.locator("button.copy").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 800
    sizes = page.locator("svg text").evaluate_all("all => all.map((one) => one.getBoundingClientRect().height)")
    assert min(sizes) >= 10
    page.keyboard.press("o")
    page.keyboard.press("t")
    assert page.evaluate(ink) == dark
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(ink) != dark
    assert not page.locator("details").is_visible()
    context.close()
    assert problems == []


def test_what_follows_from_a_finding_stands_behind_its_advice_in_a_line() -> None:
    root = Finding("dead", "all dead", "1:output", advice="lower the rate")
    behind = Finding("gradient_zero", "no gradient", severity="bad", advice="another", follows="dead")
    told = [(fact.label, fact.text) for fact in facts_of_findings([root, behind])]
    assert told == [("dead", "1:output: all dead"), ("", "lower the rate"), ("", "gradient_zero follows from dead: no gradient")]
