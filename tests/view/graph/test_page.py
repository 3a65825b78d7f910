"""The page of a graph: its text, and what it does in a real browser without a network."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from tests.view.graph.opened_page import drawn, fill, settle
from torch import Tensor, nn

from sonde.errors import ArgumentError, MissingExtraError, UnknownSiteError
from sonde.graph import Graph, capture
from sonde.testing.zoo import Net

pytest.importorskip("easydot")


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(4), nn.Sequential(nn.Linear(4, width), nn.GELU(), nn.Linear(width, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))


def stack(count: int = 3, *, alike: bool = False) -> nn.Module:
    model = nn.Sequential(*(Block(8 if alike else 8 + block) for block in range(count)), nn.Linear(4, 2))
    model.register_buffer("unused", torch.ones(1))
    return model


@pytest.fixture(scope="module")
def graph() -> Graph:
    return capture(stack(), torch.ones(2, 4))


VALUES = {
    "rms": {f"{block}:output": [(0, 1.0), (10, 10.0 ** (block + 1)), (20, 1000.0)] for block in range(3)},
    "gradient norm": {"0:grad_output": [(10, 0.5)], "1.mlp.0.weight:grad": [(10, math.nan), (20, 0.1)]},
}


def data_of(page: str) -> dict[str, Any]:
    """The data in a page, as its script reads it."""
    found = re.search(r'<script id="graph" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    held: dict[str, Any] = json.loads(found[1])
    return held


# The text


def test_the_page_is_one_file_that_loads_nothing(graph: Graph) -> None:
    """No address to fetch from, a policy that forbids it, and the engine as the package ships it."""
    from importlib import resources

    page = graph.to_html()
    engine = (resources.files("easydot") / "assets" / "index.js").read_text(encoding="utf-8")
    assert engine in page
    own = page.replace(engine, "")
    assert not re.search(r"(src|href)\s*=\s*[\"']", own)
    assert set(re.findall(r"https?://[\w./-]+", own)) <= {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in own
    assert "plotly" not in page


def test_it_holds_the_whole_graph(graph: Graph) -> None:
    """Whatever is open at first."""
    for depth in (None, 0, 1):
        data = data_of(graph.to_html(depth))
        assert data["depth"] == depth
        assert [node["id"] for node in data["nodes"]] == [node.id for node in graph.nodes]
        assert [tuple(edge) for edge in data["edges"]] == [(edge.source, edge.target, edge.value) for edge in graph.edges]


def test_the_page_of_twelve_blocks_is_below_three_megabytes() -> None:
    """Engine included."""
    assert len(capture(stack(12), torch.ones(2, 4)).to_html().encode()) < 3_000_000


def test_names_cannot_break_out_of_the_page() -> None:
    """A module may be called anything."""
    model = nn.Sequential()
    model._modules["</script><script>alert(1)</script>"] = nn.Identity()
    page = capture(model, torch.ones(1)).to_html(title="<b>&")
    assert page.count("<script") == 3
    assert "<title>&lt;b&gt;&amp;</title>" in page
    assert "</script><script>alert(1)</script>" in {node.get("path") for node in data_of(page)["nodes"]}


def test_values_join_by_site(graph: Graph) -> None:
    """Modules at any port, parameters; steps are the union; a number of two ports is two."""
    rms, gradient, weight = data_of(graph.to_html(values=VALUES))["series"]
    assert rms == {
        "name": "rms",
        "label": "rms of outputs",
        "unit": "unit of the output",
        "steps": [0, 10, 20],
        "of": {f"module {block}": [1.0, 10.0 ** (block + 1), 1000.0] for block in range(3)},
        "scale": {"log": True, "signed": False, "low": 1.0, "high": 1000.0, "least": None, "most": None},
    }
    assert gradient.items() >= {"name": "gradient norm (grad_output)", "steps": [10], "of": {"module 0": [0.5]}}.items()
    assert (
        weight.items() >= {"name": "gradient norm (grad)", "steps": [10, 20], "of": {"tensor 1.mlp.0.weight": ["NaN", 0.1]}}.items()
    )


def test_what_a_run_s_series_gives_can_be_handed_on(graph: Graph) -> None:
    """Two arrays, steps and values, in place of pairs."""
    series = np.array([0, 5]), np.array([1.5, np.nan], np.float32)
    (held,) = data_of(graph.to_html(values={"rms": {"0:output": series}}))["series"]
    assert (held["name"], held["steps"], held["of"]) == ("rms", [0, 5], {"module 0": [1.5, "NaN"]})


def test_paths_leaves_and_models_are_understood(graph: Graph) -> None:
    """`G/0.mlp:output[0]`, `(root)` and a plain path."""
    values = {"n": {"G/0.mlp:output[0]": [(0, 1)], "(root)": [(0, 2)], "1.mlp.0.bias": [(0, 3)], "gone:output": [(0, 4)]}}
    module, tensor = data_of(graph.to_html(values=values))["series"]
    assert module["of"] == {"module 0.mlp": [1.0], "module ": [2.0]}
    assert tensor["of"] == {"tensor 1.mlp.0.bias": [3.0]}


def test_the_scale_leaves_out_far_outliers_and_follows_the_kind_of_number(graph: Graph) -> None:
    """As that of a heat-map: a run that diverges at its end keeps its colours; shares are from 0 to 1, cosines from -1 to 1."""
    sizes = {f"{block}:output": [(step, 1.0 + block if step < 99 else 1e30) for step in range(100)] for block in range(3)}
    values = {
        "rms": sizes,
        "call_death": {"0:output": [(0, 0.25)]},
        "cosine": {"0:output": [(0, 0.5)]},
        "g": {"0:output": [(0, math.nan)]},
    }
    rms, death, cosine, none = (entry["scale"] for entry in data_of(graph.to_html(values=values))["series"])
    assert rms["log"]
    assert rms["low"] == 1.0
    assert rms["high"] < 1e6
    assert (rms["least"], rms["most"]) == (None, 1e30)
    assert (death["low"], death["high"]) == (0.0, 1.0)
    assert (cosine["low"], cosine["high"]) == (-1.0, 1.0)
    assert none is None


@pytest.mark.parametrize(
    ("values", "error", "text"),
    [
        ({"rms": {"0.mpl:output": [(0, 1.0)]}}, UnknownSiteError, "Nearest: 0.mlp"),
        ({"rms": [1, 2]}, ArgumentError, r"values\['rms'\] must be a mapping"),
        ([("rms", {})], ArgumentError, "values must be a mapping"),
        ({"rms": {"0:output": [1.0]}}, ArgumentError, "must be pairs"),
    ],
)
def test_values_that_cannot_be_read(graph: Graph, values: Any, error: type[Exception], text: str) -> None:
    """Say what was given and what is wanted."""
    with pytest.raises(error, match=text):
        graph.to_html(values=values)


def test_in_a_notebook_it_is_a_frame(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed off from the notebook; without easydot there is text instead, and an error where a page is asked for."""
    frame = graph._repr_html_()
    assert frame is not None
    assert frame.startswith("<iframe")
    assert 'sandbox="allow-scripts allow-downloads"' in frame
    monkeypatch.setitem(__import__("sys").modules, "easydot", None)
    assert graph._repr_html_() is None
    with pytest.raises(MissingExtraError, match=r"sonde\[graph\]"):
        graph.to_html()


# In the browser


def shown_by_hand(graph: Graph, depth: int) -> tuple[set[int], set[tuple[int, int]]]:
    """What should be drawn with modules open down to a depth and sources hidden: nodes that are no frames, and edges.

    Layers, which hold no module, are open only at the depth of all operations.
    """
    layers = [node.site for node in graph.modules() if all(child.kind != "module" for child in graph.children.get(node.id, ()))]
    closed = graph.collapse(at=layers if depth < graph.depth else ()).collapse(depth)
    sources = {node.id for node in closed.nodes if node.kind in ("parameter", "buffer", "constant")}
    frames = {node.parent for node in closed.nodes if node.kind in ("operation", "module")}
    nodes = {node.id for node in closed.nodes if node.id not in frames | sources}
    return nodes, {(edge.source, edge.target) for edge in closed.edges if edge.source not in sources}


@pytest.mark.parametrize("depth", [2, *(pytest.param(depth, marks=pytest.mark.slow) for depth in (0, 1, 3, 4))])
def test_what_is_drawn_is_the_collapsed_graph(opened: Any, graph: Graph, depth: int) -> None:
    """The page's own collapsing agrees with the library's, node by node and edge by edge."""
    page = opened(graph, depth)
    nodes, edges = shown_by_hand(graph, depth)
    assert drawn(page) == nodes
    joined = page.locator(".edge").evaluate_all("all => all.map((one) => one.id.slice(1).split('_').map(Number))")
    assert {tuple(ends) for ends in joined} == edges


def test_a_click_opens_a_module_and_its_name_closes_it(opened: Any, graph: Graph) -> None:
    """Only that one; the rest stays, and it stays where it was on the screen."""
    page = opened(graph, 1)
    page.keyboard.press("-")  # the reader has chosen what is seen
    (block,) = graph["1"]
    before = page.locator(f"#n{block.id}").bounding_box()
    page.locator(f"#n{block.id}").click()
    settle(page)
    assert page.locator(f"#c{block.id}").count() == 1
    inside = {node.id for node in graph.children[block.id] if node.kind in ("module", "operation")}
    assert inside <= drawn(page)
    after = page.locator(f"#c{block.id}").bounding_box()
    assert abs(before["x"] + before["width"] / 2 - after["x"] - after["width"] / 2) < 2
    page.locator(f"#t{block.id} text").first.click()
    settle(page)
    assert drawn(page) == shown_by_hand(graph, 1)[0]


def test_search_opens_what_it_finds(opened: Any, graph: Graph) -> None:
    """Inside closed modules too: enter goes to the first, again to the next."""
    page = opened(graph, 0)
    page.keyboard.press("/")
    page.keyboard.type("gelu")
    assert page.locator("#found li").all_inner_texts()[0].startswith("0.mlp.1")
    page.keyboard.press("Enter")
    settle(page)
    page.locator("#details h3").wait_for()
    assert page.locator("#details h3").inner_text() == "0.mlp.1"
    assert graph["0.mlp.1"][0].id in drawn(page)
    page.keyboard.press("Enter")
    page.locator("#details h3", has_text="1.mlp.1").wait_for()
    page.locator("#search").fill("nowhere")
    assert page.locator("#found").inner_text() == "nothing of that name"


def test_hovering_and_selecting_show_details(opened: Any, graph: Graph) -> None:
    """Shapes, FLOPs, site, neighbours; escape lets go."""
    page = opened(graph, 4)
    linear = next(node for node in graph.nodes if node.name == "linear")
    page.locator(f"#n{linear.id}").hover()
    tip = page.locator("#tip").inner_text()
    assert "operation in 0.mlp.0" in tip
    assert "2×8 float32" in tip
    page.locator(f"#n{linear.id}").click()
    details = page.locator("#details").inner_text()
    assert "0.mlp.0:output" in details
    assert "128" in details  # 2 * 2 * 4 * 8 FLOP
    assert "layer_norm in 0.norm" in details
    assert page.locator(".edge.near").count() == 2
    page.keyboard.press("Escape")
    assert page.locator("#details").is_hidden()


def test_the_keyboard_is_enough(opened: Any, graph: Graph) -> None:
    """Select along the flow, open, close the level, change the theme, show parameters, ask for help."""
    page = opened(graph, 1)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.locator("#details h3").inner_text() == "0"
    page.keyboard.press("Enter")
    settle(page)
    assert page.locator(f"#c{graph['0'][0].id}").count() == 1
    page.keyboard.press("c")
    settle(page)
    assert drawn(page) == shown_by_hand(graph, 1)[0]
    page.keyboard.press("e")
    settle(page)
    assert drawn(page) == shown_by_hand(graph, 2)[0]
    page.keyboard.press("p")
    settle(page)
    assert page.locator("g.node.parameter").count() == 3 * 2 + 2  # of the closed layers; the linear ones in mlp are not drawn
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.keyboard.press("?")
    assert page.locator("#keys").is_visible()


@pytest.mark.slow
def test_wheel_zooms_at_the_pointer_and_dragging_moves(opened: Any, graph: Graph) -> None:
    """The node under the pointer stays under it."""
    page = opened(graph, 1)
    (block,) = graph["1"]
    node = page.locator(f"#n{block.id} text").first  # the frame around it is wider under the pointer
    before = node.bounding_box()
    x, y = before["x"] + before["width"] / 2, before["y"] + before["height"] / 2
    page.mouse.move(x, y)
    page.mouse.wheel(0, -300)
    page.wait_for_timeout(50)
    after = node.bounding_box()
    assert after["width"] > before["width"] * 1.2
    assert abs(after["x"] + after["width"] / 2 - x) < 2
    page.mouse.move(200, 300)
    page.mouse.down()
    page.mouse.move(260, 340, steps=4)
    page.mouse.up()
    moved = node.bounding_box()
    assert (round(moved["x"] - after["x"]), round(moved["y"] - after["y"])) == (60, 40)
    page.keyboard.press("f")
    assert abs(node.bounding_box()["width"] - before["width"]) < 1


def test_the_slider_colours_by_step(opened: Any, graph: Graph) -> None:
    """At step 0 all blocks have the least value; at 10 they rise by tens; at 20 all have the greatest. One scale for all."""
    page = opened(graph, 1, values=VALUES)
    blocks = [graph[str(number)][0].id for number in range(3)]
    assert page.locator("#at").inner_text() == "step 0"
    least = {fill(page, block) for block in blocks}
    assert len(least) == 1
    page.locator("#step").fill("1")
    page.wait_for_timeout(300)
    assert page.locator("#at").inner_text() == "step 10"
    middle = [fill(page, block) for block in blocks]
    assert len(set(middle)) == 3
    page.keyboard.press("Escape")
    page.locator("#stage").focus()
    page.keyboard.press("]")
    page.wait_for_timeout(300)
    assert {fill(page, block) for block in blocks} == {middle[2]}
    assert not least & set(middle)
    assert page.locator("#low").inner_text() == "1"
    assert page.locator("#high").inner_text() == "1,000"
    page.locator(f"#n{blocks[0]}").hover()
    assert "1,000" in page.locator("#tip").inner_text()
    assert page.locator("#tip svg.line").count() == 1


@pytest.mark.slow
def test_colours_by_what_was_recorded(opened: Any, graph: Graph) -> None:
    """FLOPs need no run; what has none is not coloured, and by kind is back to the legend."""
    page = opened(graph, 2)
    plain = fill(page, graph["0.mlp"][0].id)
    page.locator("#number").select_option("FLOPs")
    page.wait_for_timeout(300)
    assert fill(page, graph["0.mlp"][0].id) != plain
    assert page.locator("#steps").is_hidden()
    page.locator("#number").select_option("")
    page.wait_for_timeout(300)
    assert fill(page, graph["0.mlp"][0].id) == plain
    assert page.locator("#legend").is_visible()


@pytest.mark.slow
def test_a_number_that_is_none_stands_out(opened: Any, graph: Graph) -> None:
    """NaN and infinity are not on the scale: they have a colour of their own, and the details say which it is."""
    values = {"g": {"0:output": [(0, math.nan)], "1:output": [(0, math.inf)], "2:output": [(0, 1.0)]}}
    page = opened(graph, 1, values=values)
    colours = [fill(page, graph[str(block)][0].id) for block in range(3)]
    assert colours[:2] == ["rgb(224, 17, 157)", "rgb(255, 98, 40)"]
    assert colours[2] not in colours[:2]
    page.locator(f"#n{graph['0'][0].id}").hover()
    assert "NaN" in page.locator("#tip").inner_text()


def test_marks_are_named_in_the_legend(opened: Any, graph: Graph) -> None:
    """NaN, exact zero on a logarithmic scale, and modules without a value; only those that are on the picture."""
    values = {"g": {"0:output": [(0, math.nan), (1, 1.0)], "1:output": [(0, 0.0), (1, 9.0)], "2:output": [(0, 900.0), (1, 1.0)]}}
    page = opened(graph, 1, values=values)
    assert page.locator("#marks").inner_text().split("\n") == ["NaN", "exactly 0", "not recorded"]
    assert page.locator("g.node.zero").count() == 1
    page.locator("#step").fill("1")
    assert page.locator("#marks").inner_text() == "not recorded"
    page.locator("#number").select_option("")
    assert page.locator("#marks").inner_text() == ""


@pytest.mark.slow
def test_nodes_beyond_the_scale_are_marked_and_the_legend_says_how_far(opened: Any, graph: Graph) -> None:
    values = {"rms": {f"{block}:output": [(step, 1.0 if step < 99 else 1e30) for step in range(100)] for block in range(3)}}
    page = opened(graph, 1, values=values)
    assert page.locator("#marks").inner_text() == "not recorded"
    assert page.locator("g.node.clipped").count() == 0
    page.locator("#step").fill("99")
    assert page.locator("#marks").inner_text().split("\n") == ["above the scale, up to 1·10³⁰", "not recorded"]
    assert page.locator("g.node.clipped").count() == 3


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_text_can_be_read_in_both_schemes(opened: Any, graph: Graph, scheme: str) -> None:
    """The system's scheme is taken up, and ink and paper of every kind of node differ by a ratio of 4.5 or more."""
    page = opened(graph, 3, scheme=scheme)
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    page.keyboard.press("p")
    settle(page)
    for kind in ("operation", "input", "parameter"):
        node = page.locator(f"g.node.{kind}").first
        ink = node.locator("text").first.evaluate("one => getComputedStyle(one).fill")
        paper = node.locator("rect").first.evaluate("one => getComputedStyle(one).fill")
        assert contrast(ink, paper) >= 4.5


def contrast(one: str, other: str) -> float:
    """The contrast ratio of the web's accessibility guidelines, of two ``rgb(r, g, b)``."""

    def light(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.slow
def test_printed_it_is_the_picture_alone(opened: Any, graph: Graph) -> None:
    """In light colours, without buttons, on one page."""
    page = opened(graph, 1, scheme="dark")
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.locator("nav").is_hidden()
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert len(re.findall(rb"/Type\s*/Page\b", page.pdf())) == 1


def test_a_failed_call_is_open_and_marked(opened: Any) -> None:
    """And the error is on top."""
    graph = capture(nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 3))), torch.ones(2, 4), on_error="partial")
    assert graph.error.startswith("RuntimeError: ")
    page = opened(graph)
    assert page.locator("g.node.failed").count() == 1
    assert graph.error[:40] in page.locator("#totals").inner_text()


def test_names_that_are_markup_are_text(opened: Any) -> None:
    """On nodes, in the search and in the details."""
    model = nn.Sequential()
    model._modules['<img src=x onerror="alert(1)">'] = nn.Identity()
    page = opened(capture(model, torch.ones(1)), 1)
    page.keyboard.press("/")
    page.keyboard.type("<img")
    page.keyboard.press("Enter")
    page.locator("#details h3").wait_for()
    assert page.locator("#details h3").inner_text() == '<img src=x onerror="alert(1)">'
    assert page.locator("img").count() == 0


@pytest.mark.slow
def test_three_thousand_nodes(opened: Any) -> None:
    """All of them are drawn, and the page answers."""
    layers = [layer for _ in range(500) for layer in (nn.Linear(4, 4), nn.ReLU())]
    model = Net(lambda net, x: net.body(x) + 1, body=nn.Sequential(*layers))
    graph = capture(model, torch.ones(2, 4))
    page = opened(graph, 3)
    page.keyboard.press("r")  # all copies of the pair that repeats
    settle(page)
    page.keyboard.press("p")
    settle(page)
    assert len(drawn(page)) == sum(node.kind != "module" for node in graph.nodes)
    page.keyboard.press("p")
    settle(page)
    page.keyboard.press("c")
    settle(page)
    assert len(drawn(page)) == 1000 + 3
