"""Read what a graph's page has drawn in a browser."""

from __future__ import annotations

from typing import Any

__all__ = ["boxes", "drawn", "fill", "scale", "settle"]


def settle(page: Any) -> None:
    """Wait until all that was asked for is drawn: the page takes its mark away as soon as it begins a picture."""
    page.locator("html[data-ready]").wait_for(state="attached")


def drawn(page: Any, kind: str = "node") -> set[int]:
    """The numbers of what is drawn."""
    return {int(name[1:]) for name in page.locator(f"g.{kind}").evaluate_all("all => all.map((one) => one.id)")}


def fill(page: Any, node: int) -> str:
    """The colour that a node has, once it is drawn. One script finds and reads it: the page may draw it anew between two."""
    script = "node => { const one = document.querySelector(`#n${node} rect`); return one && getComputedStyle(one).fill; }"
    found: str = page.wait_for_function(script, arg=node).json_value()
    return found


def boxes(page: Any, selector: str) -> list[tuple[float, float, float, float]]:
    """The left, top, right and bottom of all elements on the screen that *selector* finds."""
    script = (
        "all => all.map((one) => { const box = one.getBoundingClientRect(); return [box.left, box.top, box.right, box.bottom]; })"
    )
    return [tuple(box) for box in page.locator(selector).evaluate_all(script)]


def scale(page: Any) -> float:
    """How many pixels of the screen a pixel of the picture is."""
    found: float = page.locator("#canvas svg > g").evaluate("one => one.transform.baseVal.consolidate().matrix.a")
    return found
