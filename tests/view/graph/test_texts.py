"""No text of a graph's page lies on another, at any depth, on wide, small and narrow screens; and the page's picture as a file."""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from tests.view.graph.opened_page import settle
from tests.view.graph.test_first_look import Gpt, UNet, Wide
from torch import Tensor, nn

from sonde.graph import Graph, capture

pytest.importorskip("easydot")

SIZES = [(1300, 850), (800, 600), (390, 800)]
IDS = torch.arange(12).reshape(2, 6)
IMAGE = torch.ones(1, 3, 32, 32)

OVERLAPS = """() => {
    const area = (one) => {
        const { left, right, top, bottom } = one.getBoundingClientRect();
        return { left, right, top, bottom };
    };
    const texts = [...document.querySelectorAll("#canvas text")].map((one) => ({
        text: one.textContent, of: one.parentNode, ...area(one) }));
    const boxes = [...document.querySelectorAll("#canvas g.node")].map((one) => ({
        text: `the box of ${one.textContent}`, of: one, ...area(one.querySelector(".box")) }));
    const isOn = (one, other) => Math.min(one.right, other.right) - Math.max(one.left, other.left) > 0.5
        && Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > 0.5;
    const found = [];
    texts.forEach((one, at) => {
        for (const other of texts.slice(at + 1)) if (isOn(one, other)) found.push([one.text, other.text]);
        for (const other of boxes) if (!other.of.contains(one.of) && isOn(one, other)) found.push([one.text, other.text]);
    });
    for (const one of document.querySelectorAll("#canvas .title.struck")) found.push([one.textContent, "an edge"]);
    return found;
}"""


class Lstm(nn.Module):
    """An embedding, a recurrent layer in both directions, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.lstm, self.head = (
            nn.Embedding(20, 8),
            nn.LSTM(8, 8, 2, batch_first=True, bidirectional=True),
            nn.Linear(16, 20),
        )

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(self.emb(ids))[0])
        return out


def of_transformers(name: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    """Makes a small model of transformers; the test is skipped where the package is not installed."""

    def made() -> nn.Module:
        transformers = pytest.importorskip("transformers")
        model: nn.Module = getattr(transformers, name)(getattr(transformers, config)(**settings))
        return model.eval()

    return made


SMALL = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "gpt": (lambda: Gpt(3), IDS),
    "lstm": (Lstm, IDS),
    "unet": (UNet, torch.ones(1, 1, 16, 16)),
    "wide": (Wide, torch.ones(2, 8)),
    "gpt2": (
        of_transformers(
            "GPT2LMHeadModel",
            "GPT2Config",
            vocab_size=20,
            n_embd=8,
            n_layer=3,
            n_head=2,
            n_positions=16,
            bos_token_id=1,
            eos_token_id=2,
        ),
        IDS,
    ),
    "bert": (of_transformers("BertModel", "BertConfig", num_hidden_layers=3, **SMALL), IDS),
    "llama": (of_transformers("LlamaForCausalLM", "LlamaConfig", num_hidden_layers=3, **SMALL), IDS),
    "mixtral": (
        of_transformers(
            "MixtralForCausalLM", "MixtralConfig", num_hidden_layers=2, num_key_value_heads=2, num_local_experts=4, **SMALL
        ),
        IDS,
    ),
    "resnet18": (
        of_transformers(
            "ResNetForImageClassification",
            "ResNetConfig",
            embedding_size=4,
            hidden_sizes=[4, 8, 8, 16],
            depths=[2, 2, 2, 2],
            layer_type="basic",
        ),
        IMAGE,
    ),
    "swin": (
        of_transformers(
            "SwinModel", "SwinConfig", image_size=32, patch_size=4, embed_dim=4, depths=[2, 2], num_heads=[1, 2], window_size=4
        ),
        IMAGE,
    ),
}
QUICK = ("lstm",)


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MODELS])
def test_no_text_lies_on_another_at_any_depth_and_width(opened: Callable[..., Any], name: str) -> None:
    """Names, classes and costs on nodes, titles of frames, badges, shapes beside edges; and no edge runs through a title."""
    make, x = MODELS[name]
    graph = capture(make(), x)
    for size in SIZES:
        page = opened(graph, size=size)
        deepest = int(page.locator("#depth").get_attribute("max"))
        assert page.evaluate(OVERLAPS) == [], (size, "at first")
        for level in range(deepest + 1):
            page.locator("#depth").fill(str(level))
            settle(page)
            assert page.locator("#canvas text").count() > 2
            assert page.evaluate(OVERLAPS) == [], (size, level)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt", "unet"])
def test_no_text_lies_on_another_with_all_copies_and_parameters(opened: Callable[..., Any], name: str) -> None:
    make, x = MODELS[name]
    page = opened(capture(make(), x))
    deepest = int(page.locator("#depth").get_attribute("max"))
    for keys in ("r", "p", "v"):
        page.keyboard.press(keys)
        settle(page)
        for level in range(deepest + 1):
            page.locator("#depth").fill(str(level))
            settle(page)
            assert page.evaluate(OVERLAPS) == [], (keys, level)


@pytest.fixture(scope="module")
def gpt() -> Graph:
    return capture(Gpt(3), IDS)


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_the_whole_picture_is_saved_as_a_file(opened: Callable[..., Any], gpt: Graph, tmp_path: Path, scheme: str) -> None:
    """Whatever part is seen: all its texts, in the colours of the page, on the page's ground; the image has two pixels for each."""
    page = opened(gpt, 2, scheme=scheme)
    texts = page.locator("#canvas text").all_text_contents()
    box = page.locator("g.node.module .box").first.evaluate("one => getComputedStyle(one).fill")
    page.keyboard.press("+")
    page.keyboard.press("+")
    page.keyboard.press("+")
    for kind in ("svg", "png"):
        with page.expect_download() as saved:
            page.locator("#save summary").click()
            page.locator(f"#save-{kind}").click()
        assert saved.value.suggested_filename == f"Gpt.{kind}"
        saved.value.save_as(tmp_path / f"Gpt.{kind}")
    svg = ElementTree.parse(tmp_path / "Gpt.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert [each.text for each in svg.iter(f"{space}text")] == texts
    ground, *rects = svg.iter(f"{space}rect")
    assert box in {each.get("fill") for each in rects}
    assert ground.get("fill") == {"light": "#ffffff", "dark": "#1a1d25"}[scheme]
    width, height = map(float, svg.attrib["viewBox"].split()[2:])
    assert (float(svg.attrib["width"]), float(svg.attrib["height"])) == (width, height)
    image = (tmp_path / "Gpt.png").read_bytes()
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", image[16:24]) == (2 * width, 2 * height)
    page.goto((tmp_path / "Gpt.svg").as_uri())
    for text in page.locator("text").all()[:5]:  # the file shows them by itself
        found = text.bounding_box()
        assert 0 <= found["x"] <= found["x"] + found["width"] <= width
        assert 0 <= found["y"] <= found["y"] + found["height"] <= height


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1300, 850), (390, 800)])
def test_the_page_keeps_the_rules_of_wcag_aa(opened: Callable[..., Any], gpt: Graph, scheme: str, size: tuple[int, int]) -> None:
    """As far as axe judges them, with marks, with details, and with both lists open; and every control lies in the window."""
    spec = importlib.util.find_spec("axe_playwright_python")
    if spec is None or spec.origin is None:
        pytest.skip("axe is not installed: pip install axe-playwright-python")
    values = {
        "rms": {"wte:output": [(0, float("nan"))], "wpe:output": [(0, 0.0)], "ln_f:output": [(0, 1.0)], "head:output": [(0, 9.0)]}
    }
    page = opened(gpt, 1, scheme=scheme, size=size, values=values)
    page.locator("g.node.module").last.click()
    for lists in ("#show summary", "#save summary"):
        page.locator(lists).click()
    page.evaluate(Path(spec.origin).with_name("axe.min.js").read_text(encoding="utf-8"))
    passed, broken = page.evaluate("""async () => {
        const found = await axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"] });
        return [found.passes.length, found.violations.flatMap(({ help, nodes }) => nodes.map(({ html }) => `${help}: ${html}`))];
    }""")
    assert passed > 5
    assert broken == []
    for control in page.locator("header :is(input, button, summary), footer :is(select, button)").all():
        box = control.bounding_box()
        assert box is None or 0 <= box["x"] <= box["x"] + box["width"] <= size[0], control.evaluate("one => one.outerHTML")
