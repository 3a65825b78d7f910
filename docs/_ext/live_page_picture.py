"""Take ``docs/live-page.png`` anew: ``python docs/_ext/live_page_picture.py``, with playwright and chromium.

It is the overview of a small GPT that diverges, in a window of 1400 x 1000 pixels, with the cursor at the first step of its story.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import torch
from playwright.sync_api import sync_playwright
from torch import nn

import sonde
from sonde.view import LivePage

PICTURE = Path(__file__).parents[1] / "live-page.png"
VOCABULARY, WIDTH, LENGTH = 64, 64, 32


class Block(nn.Module):
    """One block of the GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add attention, then the two linear layers."""
        normed = self.ln1(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return x + self.down(nn.functional.gelu(self.up(self.ln2(x))))


class GPT(nn.Module):
    """Four blocks between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits of shape (batch, length, vocabulary)."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train(folder: Path) -> None:
    """Train with a learning rate that is far too large from step 60 on."""
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with sonde.watch(model, optimizer, every=1, to=folder, verbose=False) as inspector:
        for step in range(150):
            optimizer.param_groups[0]["lr"] = 0.6 if step >= 60 else 1e-3
            tokens = torch.randint(VOCABULARY, (8, LENGTH))
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            inspector.push_loss(loss, train=True)


def main() -> None:
    """Train, serve the run, and take the picture."""
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder) / "gpt")
        with LivePage(Path(folder)) as served, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1400, "height": 1000})
            (run,) = json.loads(page.request.get(f"{served.address}api/runs").text())["runs"]
            page.goto(f"{served.address}#/run/{run['id']}")
            page.locator("#view .view:not([aria-busy]) .legend").first.wait_for()
            page.locator(".clause").first.click()
            page.locator(".heat .cross .cell").wait_for()
            page.mouse.move(700, 5)
            page.screenshot(path=PICTURE)
            browser.close()


if __name__ == "__main__":
    main()
