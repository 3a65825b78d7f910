"""The first look at a graph's page: blocks that repeat are one, text can be read, nothing strikes through a title."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from tests.view.graph.opened_page import boxes, drawn, fill, scale, settle
from tests.view.graph.test_page import data_of
from torch import Tensor, nn

from sonde.graph import Graph, capture
from sonde.testing.zoo import Net

pytest.importorskip("easydot")


class Block(nn.Module):
    """A transformer's block: attention and a network of two layers, each with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + self.attn(y, y, y)[0]
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """Two embeddings, blocks, a norm and a head."""

    def __init__(self, blocks: int = 12, width: int = 8) -> None:
        super().__init__()
        self.wte, self.wpe, self.drop = nn.Embedding(50, width), nn.Embedding(16, width), nn.Dropout(0.0)
        self.h = nn.ModuleList(Block(width) for _ in range(blocks))
        self.ln_f, self.head = nn.LayerNorm(width), nn.Linear(width, 50, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.drop(self.wte(ids) + self.wpe(torch.arange(ids.shape[1])))
        for block in self.h:
            x = block(x)
        out: Tensor = self.head(self.ln_f(x))
        return out


@pytest.fixture(scope="module")
def gpt() -> Graph:
    return capture(Gpt(), torch.randint(50, (2, 6)))


def folded_by_hand(graph: Graph, depth: int) -> tuple[set[int], set[tuple[int, int]]]:
    """The nodes and edges that the library's passes leave: folded, closed from *depth* on, layers closed, sources and views hidden.

    The library keeps the positions, a constant, since the embedding of positions would otherwise read nothing.
    """
    left = graph.fold()
    layers = [node.site for node in left.modules() if all(child.kind != "module" for child in left.children.get(node.id, ()))]
    left = left.collapse(at=layers if depth < graph.depth else ()).collapse(depth).hide(views=True, constants=True, parameters=True)
    frames = {node.parent for node in left.nodes if node.kind in ("operation", "module")}
    (positions,) = (node.id for node in left.nodes if node.name == "arange")
    edges = {(edge.source, edge.target) for edge in left.edges if edge.source != positions}
    return {node.id for node in left.nodes} - frames - {positions}, edges


@pytest.mark.parametrize("depth", [2, *(pytest.param(depth, marks=pytest.mark.slow) for depth in (1, 3))])
def test_equal_blocks_are_drawn_once_as_the_library_folds_them(opened: Any, gpt: Graph, depth: int) -> None:
    page = opened(gpt, depth)
    nodes, edges = folded_by_hand(gpt, depth)
    assert drawn(page) == nodes
    joined = page.locator(".edge").evaluate_all("all => all.map((one) => one.id.slice(1).split('_').map(Number))")
    assert {tuple(ends) for ends in joined} == edges


def test_blocks_inside_blocks_fold_in_every_copy() -> None:
    """Four stages of three blocks: the stages are a group, and so are the blocks of each stage."""
    stages = nn.Sequential(*(nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(3))) for _ in range(4)))
    graph = capture(stages, torch.ones(2, 3))
    repeats = data_of(graph.to_html())["repeats"]
    paths = [[count, *(graph.by_id[number].path for number in numbers)] for count, *numbers in repeats]
    assert paths == [[4, "0", "1", "2", "3"], *([3, f"{at}.0", f"{at}.1", f"{at}.2"] for at in range(4))]


class Decoder(nn.Module):
    """Four steps of one module, which attends to all tokens so far: the first makes its own state, the others read that before."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.mix, self.head = nn.LSTMCell(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        state, cache = None, x.new_zeros(1, 3, 4)
        for step in range(4):
            state = self.cell(x[step], state)
            cache = torch.cat([cache, self.mix(state[0])[None]], 1)
        out: Tensor = self.head(cache.sum(1))
        return out


def test_a_loop_is_one_step_with_all_its_sizes_and_counters(opened: Any) -> None:
    """As the library folds it: one cell, though the first call makes zeros; sizes and numbers from the first to the last."""
    graph = capture(Decoder(), torch.randn(4, 1, 4))
    page = opened(graph, 9)
    folded = graph.fold()
    assert [len(run.alone) for run in graph.repeated()] == [1]
    left = folded.hide(views=True, constants=True, parameters=True)
    assert drawn(page) == {node.id for node in left.nodes} - {node.parent for node in left.nodes if node.kind == "operation"}
    (cell, later) = (node for node in folded.nodes if node.path in ("cell", "mix") and node.kind == "module")
    assert page.locator(f"#t{cell.id}").text_content() == "▾ cell (calls 0 … 3)LSTMCell"
    assert page.locator(f"#t{later.id}").text_content() == "▾ mix (calls 0 … 3)Linear"
    assert "1×7×4" in page.locator(".shapes").text_content()  # what flows out comes from the last copy
    cat = next(node for node in folded.nodes if node.name == "cat")
    page.locator(f"#n{cat.id}").click()
    assert str(folded.values[cat.outputs[0]]) == "1×4…7×4"
    assert "1×4…7×4 float32" in page.locator("#details").inner_text()
    page.keyboard.press("/")
    page.keyboard.type("getitem")
    page.keyboard.press("Enter")
    settle(page)
    page.locator("#details h3", has_text="getitem").wait_for()
    assert "0…3" in page.locator("#details").inner_text()
    assert next(node.arguments for node in folded.nodes if node.name == "getitem") == "0…3"


def test_one_click_shows_all_copies_of_a_block_and_one_folds_them(opened: Any, gpt: Graph) -> None:
    page = opened(gpt, 1)
    (block,) = gpt["h.0"]
    assert page.locator(f"#n{block.id}").text_content() == "h.0 … 11Block872 params · 8.64 kFLOP each× 12".replace(
        "872 params · 8.64 kFLOP", cost(block)
    )
    page.locator(f"#n{block.id} .badge").click()
    settle(page)
    blocks = {gpt[f"h.{number}"][0].id for number in range(12)}
    assert blocks <= drawn(page)
    assert page.locator(f"#n{block.id} .badge").text_content() == "1 of 12"
    page.keyboard.press("Escape")
    page.locator(f"#n{block.id} .badge").click()
    settle(page)
    assert drawn(page) & blocks == {block.id}


def cost(node: Any) -> str:
    return f"{node.parameters} params · {node.flops / 1000:.3g} kFLOP"


@pytest.mark.parametrize("size", [(1400, 850), *(pytest.param(size, marks=pytest.mark.slow) for size in ((800, 850), (700, 400)))])
def test_all_of_a_gpt_fits_and_can_be_read(opened: Any, gpt: Graph, size: tuple[int, int]) -> None:
    """Every box lies on the stage, texts have 12 pixels or more, and no text overlaps another."""
    page = opened(gpt, size=size)
    (left, top, right, bottom) = boxes(page, "#stage")[0]
    for box in boxes(page, "#canvas g.node, #canvas .cluster, #canvas .edge"):
        assert left <= box[0] < box[2] <= right + 1
        assert top <= box[1] < box[3] <= bottom + 1
    sizes = page.locator("#canvas text").evaluate_all("all => all.map((one) => parseFloat(getComputedStyle(one).fontSize))")
    assert min(sizes) * scale(page) >= 12
    texts = boxes(page, "#canvas text")
    assert not [(one, other) for at, one in enumerate(texts) for other in texts[:at] if overlap(one, other)]


class Wide(nn.Module):
    """Ten branches of different widths side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(8, 8), nn.Linear(40, 2)
        self.branches = nn.ModuleList(nn.Sequential(nn.Linear(8, 8 + i), nn.ReLU(), nn.Linear(8 + i, 4)) for i in range(10))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        out: Tensor = self.head(torch.cat([branch(x) for branch in self.branches], -1))
        return out


class UNet(nn.Module):
    """Four levels down and up again, each joined with its counterpart."""

    def __init__(self, width: int = 2) -> None:
        super().__init__()
        sizes = [width * 2**level for level in range(5)]
        self.inc, self.pool, self.out = double(1, width), nn.MaxPool2d(2), nn.Conv2d(width, 1, 1)
        self.down = nn.ModuleList(double(one, other) for one, other in pairwise(sizes))
        self.up = nn.ModuleList(nn.ConvTranspose2d(other, one, 2, 2) for one, other in reversed(list(pairwise(sizes))))
        self.merge = nn.ModuleList(double(2 * one, one) for one in reversed(sizes[:-1]))

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.inc(x)]
        for down in self.down:
            kept.append(down(self.pool(kept[-1])))
        x = kept.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([up(x), kept.pop()], 1))
        out: Tensor = self.out(x)
        return out


def double(one: int, other: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(one, other, 3, padding=1), nn.ReLU(), nn.Conv2d(other, other, 3, padding=1), nn.ReLU())


@pytest.mark.slow
@pytest.mark.parametrize("width", [800, 1400])
@pytest.mark.parametrize(("model", "x"), [(Wide(), torch.ones(2, 8)), (UNet(), torch.ones(1, 1, 16, 16))])
def test_a_wide_and_a_tall_model_are_whole_at_first(opened: Any, model: nn.Module, x: Tensor, width: int) -> None:
    """From left to right, or with names alone, where that is legible: texts have 10 pixels or more."""
    page = opened(capture(model, x), size=(width, 900))
    (left, top, right, bottom) = boxes(page, "#stage")[0]
    for box in boxes(page, "#canvas g.node, #canvas .edge"):
        assert left <= box[0] < box[2] <= right + 1
        assert top <= box[1] < box[3] <= bottom + 1
    assert 12.5 * scale(page) >= 10
    before = boxes(page, "#stage")
    page.locator("#canvas g.node.holds").first.click()  # what is opened keeps the way in which the rest was laid out
    settle(page)
    assert (page.locator("#canvas svg").get_attribute("data-way") == "down") == (width == 1400 and isinstance(model, UNet))
    assert boxes(page, "#stage") == before


@pytest.mark.slow
def test_frames_beside_each_other_do_not_touch(opened: Any) -> None:
    """Of an encoder and a decoder, each a frame of its own."""

    def forward(net: Net, x: Tensor) -> Tensor:
        kept = net.encoder(x)
        out: Tensor = net.decoder(x) + kept
        return out

    parts = [nn.Sequential(nn.Linear(3, 3 + each), nn.ReLU(), nn.Linear(3 + each, 3)) for each in (1, 2)]
    page = opened(capture(Net(forward, encoder=parts[0], decoder=parts[1]), torch.ones(2, 3)), 2)
    one, other = boxes(page, "#canvas .cluster")
    assert max(one[0], other[0]) - min(one[2], other[2]) >= 4 or max(one[1], other[1]) - min(one[3], other[3]) >= 4


def overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether two boxes share more than a pixel in both directions."""
    return min(one[2], other[2]) - max(one[0], other[0]) > 1 and min(one[3], other[3]) - max(one[1], other[1]) > 1


@pytest.mark.slow
def test_fit_shows_all_of_an_opened_model(opened: Any, gpt: Graph) -> None:
    """However small the text becomes."""
    page = opened(gpt, gpt.depth)
    page.keyboard.press("r")
    settle(page)
    page.locator("#fit").click()
    (left, top, right, bottom) = boxes(page, "#stage")[0]
    for box in boxes(page, "#canvas g.node"):
        assert left <= box[0] < box[2] <= right
        assert top <= box[1] < box[3] <= bottom


@pytest.mark.parametrize("depth", [3, *(pytest.param(depth, marks=pytest.mark.slow) for depth in (2, 5))])
def test_no_edge_strikes_through_a_title(opened: Any, gpt: Graph, depth: int) -> None:
    """No point of an edge lies on the text of a frame's title."""
    page = opened(gpt, depth)
    struck = page.evaluate("""() => {
        const titles = [...document.querySelectorAll(".title text")].map((one) => [one.textContent, one.getBoundingClientRect()]);
        const found = [];
        for (const edge of document.querySelectorAll(".edge")) {
            const [length, onScreen] = [edge.getTotalLength(), edge.getScreenCTM()];
            for (let at = 0; at <= length; at += 3) {
                const { x, y } = edge.getPointAtLength(at).matrixTransform(onScreen);
                const inside = ({ left, right, top, bottom }) => x > left && x < right && y > top && y < bottom;
                for (const [text, box] of titles) if (inside(box)) found.push(text);
            }
        }
        return [...new Set(found)];
    }""")
    assert struck == []


@pytest.mark.slow
def test_layers_are_closed_until_their_operations_are_asked_for(opened: Any, gpt: Graph) -> None:
    """The slider's last level is that of operations."""
    page = opened(gpt)
    assert page.locator("#level").inner_text().startswith("level ")
    assert page.locator("#canvas .title").all_text_contents() == ["▾ h.0 … 11Block× 12", "▾ mlpSequential"]
    page.locator("#depth").fill(page.locator("#depth").get_attribute("max"))
    settle(page)
    assert page.locator("#level").inner_text() == "operations"
    assert gpt["h.0.ln_1"][0].id not in drawn(page)


@pytest.mark.slow
def test_bookkeeping_of_batch_norm_is_not_drawn(opened: Any) -> None:
    """In training mode it counts batches in a buffer that nothing reads; with buffers and constants shown, it is there."""
    graph = capture(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU()), torch.ones(2, 3))
    counted = next(node.id for node in graph.nodes if node.name == "add_")
    page = opened(graph, graph.depth)
    assert counted not in drawn(page)
    page.locator("#show summary").click()
    page.locator("#constants").check()
    settle(page)
    assert counted in drawn(page)


@pytest.mark.slow
def test_hidden_operations_leave_no_gap(opened: Any) -> None:
    """What a view reads is joined with what reads the view; shown, the view stands between them."""

    def forward(net: Net, x: Tensor) -> Tensor:
        out: Tensor = net.last(net.first(x).view(3, 2).transpose(0, 1))
        return out

    graph = capture(Net(forward, first=nn.Linear(3, 3), last=nn.Linear(3, 1)), torch.ones(2, 3))
    (first,), (last,) = graph["first"], graph["last"]
    page = opened(graph, 1)
    assert page.locator(f"#e{first.id}_{last.id}").count() == 1
    page.locator("#stage").press("v")
    settle(page)
    assert page.locator(f"#e{first.id}_{last.id}").count() == 0
    assert {graph.by_id[number].name for number in drawn(page)} >= {"view", "transpose"}


def test_a_closed_sequential_is_named_by_what_it_holds(opened: Any) -> None:
    """Its own class says nothing of the network."""
    stages = nn.Sequential(
        nn.Sequential(*(Block(8) for _ in range(3))),
        nn.Sequential(nn.Linear(8, 8), nn.ReLU()),
        nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8), nn.Tanh(), nn.Sigmoid()),
    )
    page = opened(capture(stages, torch.randn(2, 3, 8)), depth=1)
    texts = [each.text_content() for each in page.locator("g.node.module").all()]
    assert [
        text.startswith(words) for text, words in zip(texts, ("03 × Block", "1Linear, ReLU", "2Sequential of 5"), strict=True)
    ] == [True] * 3


def test_a_layer_without_flops_is_not_coloured_and_the_legend_says_so(opened: Any, gpt: Graph) -> None:
    page = opened(gpt, 1)
    page.locator("#number").select_option("FLOPs")
    assert page.locator("#marks").inner_text() == "no FLOPs counted"
    assert page.locator("#unit").inner_text() == "multiplications and additions of one forward"
    assert page.locator("g.node.zero").count() == 5  # two embeddings, an addition, the dropout, the norm
    assert page.locator("g.node.tinted").count() == 2


def test_each_copy_of_a_folded_block_has_a_cell_of_its_own_colour(opened: Any, gpt: Graph) -> None:
    """Twelve values, of which one is NaN and one was not recorded; the box itself has none of the twelve colours."""
    values = {f"h.{number}:output": [(0, float("nan") if number == 3 else 10.0**number)] for number in range(11)}
    page = opened(gpt, 1, values={"rms": values})
    (block,) = gpt["h.0"]
    cells = page.locator(f"#n{block.id} .strip rect")
    colours = cells.evaluate_all("all => all.map((one) => getComputedStyle(one).fill)")
    assert len(set(colours)) == 12
    assert cells.nth(3).get_attribute("class") == "nan"
    assert cells.nth(11).get_attribute("class") == "missing"
    assert page.locator("#marks").inner_text().split("\n") == ["NaN", "not recorded"]
    assert page.locator(f"#n{block.id}.tinted").count() == 0


@pytest.mark.slow
def test_the_curve_under_the_pointer_has_numbers(opened: Any, gpt: Graph) -> None:
    page = opened(gpt, 1, values={"rms": {"head:output": [(0, 0.5), (10, 2.0), (20, 64.0)]}})
    page.locator(f"#n{gpt['head'][0].id}").hover()
    assert page.locator("#tip svg.line text").all_text_contents() == ["64", "0.5", "step 0", "20", "logarithmic"]


@pytest.mark.slow
def test_steps_play_and_the_number_is_chosen_by_key(opened: Any, gpt: Graph) -> None:
    """From the first step to the last, and then they stop."""
    page = opened(gpt, 1, values={"rms": {"head:output": [(0, 1.0), (5, 2.0), (9, 3.0)]}})
    page.locator("#speed").select_option("4")
    page.locator("#stage").press("Space")
    page.locator("#at", has_text="step 9").wait_for()
    page.locator('#play[aria-label="Play"]').wait_for()
    page.locator("#stage").press("n")
    assert page.locator("#number").input_value() == "FLOPs"
    assert page.locator("#steps").is_hidden()


@pytest.mark.slow
def test_a_frame_that_is_too_tall_goes_on_in_the_next_column(opened: Any) -> None:
    """Sixteen different layers in one module: text of 12 pixels, every node on the stage, the frame in parts."""
    layers = nn.Sequential(*(nn.Linear(2 + at, 3 + at) for at in range(16)))
    graph = capture(nn.Sequential(layers, nn.Linear(18, 1)), torch.ones(2, 2))
    page = opened(graph)
    assert scale(page) >= 0.96
    assert page.locator("#canvas .cluster rect").count() > 1
    (left, top, right, bottom) = boxes(page, "#stage")[0]
    for box in boxes(page, "#canvas g.node"):
        assert left <= box[0] < box[2] <= right
        assert top <= box[1] < box[3] <= bottom


def test_skip_connections_run_from_side_to_side_between_columns(opened: Any) -> None:
    """Each keeps its two ends, and no edge crosses a box that it does not belong to."""

    def forward(net: Net, x: Tensor) -> Tensor:
        kept = []
        for at in range(4):
            x = net.get_submodule(f"down{at}")(x)
            kept.append(x)
        for at in range(4):
            x = net.get_submodule(f"up{at}")(x) + kept[3 - at]
        return x

    widths = [4, 5, 6, 7, 8]
    down = {f"down{at}": nn.Linear(widths[at], widths[at + 1]) for at in range(4)}
    up = {f"up{at}": nn.Linear([8, 8, 7, 6][at], [8, 7, 6, 5][at]) for at in range(4)}
    graph = capture(Net(forward, **down, **up), torch.ones(2, 4))
    page = opened(graph, 1, size=(800, 520))
    crossed = page.evaluate("""() => {
        const boxOf = (one) => one.querySelector(".box").getBoundingClientRect();
        const nodes = [...document.querySelectorAll("g.node")].map((one) => [Number(one.id.slice(1)), boxOf(one)]);
        const found = [];
        for (const edge of document.querySelectorAll(".edge")) {
            const ends = edge.id.slice(1).split("_").map(Number);
            const [length, onScreen] = [edge.getTotalLength(), edge.getScreenCTM()];
            for (let at = 0; at <= length; at += 3) {
                const { x, y } = edge.getPointAtLength(at).matrixTransform(onScreen);
                const inside = ({ left, right, top, bottom }) => x > left + 2 && x < right - 2 && y > top + 2 && y < bottom - 2;
                for (const [id, box] of nodes) if (!ends.includes(id) && inside(box)) found.push([edge.id, id]);
            }
        }
        return found;
    }""")
    assert crossed == []
    columns = {round(box[0] // 200) for box in boxes(page, "g.node .box")}
    assert len(columns) > 1


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "shown"), [("?theme=dark", "dark"), ("?theme=light", "light"), ("?theme=green", "light")])
def test_the_theme_can_be_asked_for_in_the_address(opened: Any, gpt: Graph, asked: str, shown: str) -> None:
    page = opened(gpt, 1)
    page.goto(page.url + asked)
    settle(page)
    assert page.evaluate("document.documentElement.dataset.theme") == shown


@pytest.mark.slow
def test_in_a_sandboxed_frame_the_page_works_and_follows_the_theme_around_it(browser: Any, gpt: Graph) -> None:
    """Of 700 by 400 pixels, with scripts allowed and nothing else."""
    page = browser.new_context(offline=True).new_page()
    page.set_content('<iframe sandbox="allow-scripts" width="700" height="400"></iframe>')
    page.evaluate("html => { document.querySelector('iframe').srcdoc = html; }", gpt.to_html())
    inner = page.frame_locator("iframe")
    inner.locator("html[data-ready]").wait_for(state="attached")
    assert inner.locator("g.node").count() > 5
    page.evaluate("document.querySelector('iframe').contentWindow.postMessage({ theme: 'dark' }, '*')")
    inner.locator('html[data-theme="dark"]').wait_for(state="attached")
    page.context.close()


@pytest.mark.slow
def test_a_number_of_parameters_colours_the_layers_that_have_them(opened: Any, gpt: Graph) -> None:
    """Each by its largest parameter, NaN before all; layers without parameters are not called "not recorded"."""
    weight = [(0, 1.0), (1, 8.0)]
    values = {"norm": {"ln_f.weight:grad": weight, "ln_f.bias:grad": [(0, 4.0), (1, float("nan"))], "head.weight:grad": weight}}
    page = opened(gpt, 1, values=values)
    norm, head, drop = (gpt[path][0].id for path in ("ln_f", "head", "drop"))
    page.locator(f"#n{norm}").hover()
    assert page.locator("#tip dd").first.inner_text() == "4"
    assert page.locator("#unit").inner_text() == "loss / unit of the parameter, largest of a layer’s parameters, logarithmic"
    page.locator("#step").fill("1")
    assert fill(page, norm) == "rgb(224, 17, 157)"
    assert fill(page, head) not in ("rgb(224, 17, 157)", fill(page, drop))
    assert page.locator(f"#n{drop}.missing").count() == 0
    assert page.locator(f"#n{gpt['wte'][0].id}.missing").count() == 1
