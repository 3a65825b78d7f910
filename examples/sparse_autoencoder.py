"""Train a sparse autoencoder on the residual stream of a small transformer, from a store and from a stream of activations.

``pip install matplotlib``; writes ``reconstruction.png`` and ``paths.png`` into the present folder. The text is Python's own help.
"""

from __future__ import annotations

from collections.abc import Iterable
from pydoc_data.topics import topics

import matplotlib as mpl
import torch
from matplotlib import pyplot as plt
from torch import Tensor, nn

import sonde

WIDTH, CONTEXT, LAYERS, FEATURES = 64, 64, 3, 256
SITE = f"layers.{LAYERS - 2}:output"


class Transformer(nn.Module):
    """Says the next character."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(characters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        options = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, **options) for _ in range(LAYERS)])
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters))

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        hidden = self.embed(ids) + self.place.weight[: ids.shape[1]]
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return self.head(hidden)


class Autoencoder(nn.Module):
    """Writes a vector as a sum of few of many directions: of the largest 16 features."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(WIDTH, FEATURES), nn.Linear(FEATURES, WIDTH)
        with torch.no_grad():
            self.encode.weight.copy_(self.decode.weight.T)

    def forward(self, x: Tensor) -> Tensor:
        features = torch.relu(self.encode(x - self.decode.bias))
        kept = features.topk(16, dim=-1)
        return self.decode(torch.zeros_like(features).scatter(-1, kept.indices, kept.values))


def trained_transformer(text: Tensor, characters: int) -> Transformer:
    model = Transformer(characters)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(300):
        starts = torch.randint(len(text) - CONTEXT - 1, (24, 1))
        windows = text[starts + torch.arange(CONTEXT + 1)]
        loss = nn.functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 99:
            print(f"transformer: loss {loss.item():.2f} at step {step + 1}")
    return model.eval()


def trained_autoencoder(name: str, batches: Iterable[dict[str, Tensor]]) -> Autoencoder:
    torch.manual_seed(0)
    coder = Autoencoder()
    optimizer = torch.optim.Adam(coder.parameters(), lr=2e-3)
    for step, rows in enumerate(batches):
        x = rows[SITE]
        if not step:
            with torch.no_grad():
                coder.decode.bias.copy_(x.mean(0))
        loss = nn.functional.mse_loss(coder(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 99:
            print(f"autoencoder from the {name}: loss {loss.item():.4f} at step {step + 1}")
    return coder


def explained(coder: Autoencoder, x: Tensor) -> float:
    """Return the share of the variance of *x* that its reconstruction has."""
    with torch.no_grad():
        return 1 - ((coder(x) - x).square().sum() / (x - x.mean(0)).square().sum()).item()


def draw_reconstruction(text: str, x: Tensor, coders: dict[str, Autoencoder]) -> None:
    with torch.no_grad():
        pictures = {"residual stream": x} | {f"autoencoder from the {name}": coder(x) for name, coder in coders.items()}
    limit = x.abs().quantile(0.99).item()
    figure, axes = plt.subplots(1, len(pictures), figsize=(12, 7), sharey=True, layout="constrained")
    for axis, (title, picture) in zip(axes, pictures.items(), strict=True):
        image = axis.imshow(picture, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
        axis.set(title=title, xlabel="unit")
    axes[0].set_yticks(range(len(text)), [repr(each)[1:-1] for each in text], family="monospace", fontsize=7)
    axes[0].set_ylabel("character")
    figure.colorbar(image, ax=axes)
    figure.savefig("reconstruction.png", dpi=100)


def draw_paths(text: str, layers: list[Tensor]) -> None:
    """Draw the way of each token through the layers, in the two directions in which the tokens of all layers differ most."""
    states = torch.stack(layers)  # layers × tokens × units
    flat = states.flatten(0, 1)
    _, _, directions = torch.pca_lowrank(flat, q=2)
    points = (states - flat.mean(0)) @ directions
    figure, axis = plt.subplots(figsize=(9, 7), layout="constrained")
    for token, character in enumerate(text):
        colour = plt.get_cmap("viridis")(token / len(text))
        axis.plot(*points[:, token].T, color=colour, linewidth=1, alpha=0.7, marker=".")
        axis.annotate(repr(character)[1:-1], points[-1, token].tolist(), color=colour, family="monospace", fontsize=11)
    axis.set(title="Paths of tokens through the layers, to the last one", xlabel="first component", ylabel="second component")
    figure.savefig("paths.png", dpi=100)


def main() -> None:
    mpl.use("Agg")
    torch.manual_seed(0)
    whole = "".join(topics.values())
    characters = sorted(set(whole))
    numbers = {character: number for number, character in enumerate(characters)}
    text = torch.tensor([numbers[character] for character in whole])
    model = trained_transformer(text, len(characters))

    windows = text[: len(text) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    training, held_out = windows[:1600].split(32), windows[-64:]
    sites = r"^layers\.\d$"
    store = sonde.extract(model, training, sites, "acts", positions="all", columns={"ids": lambda batch: batch})
    print(store)
    epochs = store.shuffled(512, columns=[SITE])
    stream = sonde.stream(model, training * 2, sites, positions="all", buffer="16 MB", rows=512)
    coders = {
        "store": trained_autoencoder("store", (rows for epoch in range(2) for rows in (epochs.set_epoch(epoch), *epochs) if rows)),
        "stream": trained_autoencoder("stream", stream),
    }

    test = sonde.extract(model, [held_out], sites, "held-out", positions="all")
    x = test[SITE][:]
    for name, coder in coders.items():
        print(f"autoencoder from the {name}: {explained(coder, x):.1%} of the variance of text it has not seen")
    sentence = "".join(characters[number] for number in held_out[0])
    draw_reconstruction(sentence, test[SITE].item(0), coders)
    draw_paths(sentence[:24], [test[f"layers.{layer}:output"].item(0)[:24] for layer in range(LAYERS)])
    print("reconstruction.png, paths.png")


if __name__ == "__main__":
    main()
