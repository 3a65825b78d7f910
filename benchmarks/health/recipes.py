"""Make many healthy trainings, each drawn by its number, and count what the rules say of them: all of it is false.

``python -m benchmarks.health.recipes --count 300`` trains them and prints the findings for 100,000 steps. A kind of training (an
architecture with its loss) and the number draw the sizes, the optimizer, its learning rate within what is usual for it, the
schedule and the size of batches. Nothing here was chosen by what the rules say. A training that has not learnt is no healthy one:
where the loss has not fallen as far as that of its kind, it is counted apart, and so is what is found in it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from benchmarks.health import data, lasting, networks
from benchmarks.health.drawn import ACTIVATIONS, KINDS, Draw, kind, made, optimized, size
from benchmarks.health.outcome import of_sonde
from benchmarks.health.training import Training, of_classes, run
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import LBFGS

assert lasting  # imported to list its kinds


@kind(guess=math.log(3))
def perceptron(draw: Draw, seed: int) -> Training:
    depth, width = draw.randint(1, 6), draw.choice((16, 48, 96))
    layers: list[nn.Module] = []
    act, norm = draw.choice(ACTIVATIONS), draw.choice((None, None, nn.LayerNorm, nn.BatchNorm1d))
    for place in range(depth):
        layers += [nn.Linear(width if place else 20, width), *([norm(width)] if norm else []), act()]
        layers += [nn.Dropout(draw.choice((0.1, 0.5)))] if draw.random() < 0.2 else []
    return optimized(draw, made(nn.Sequential(*layers, nn.Linear(width, 3)), data.blobs(seed, size(draw, 16, 64, 256))))


@kind(guess=math.log(4))
def convolutions(draw: Draw, seed: int) -> Training:
    model = networks.cnn(draw.randint(2, 5), draw.choice(ACTIVATIONS), norm=draw.random() < 0.7, channels=draw.choice((8, 16)))
    return optimized(draw, made(model, data.images(seed, size(draw, 16, 32))))


@kind(guess=math.log(4))
def residual(draw: Draw, seed: int) -> Training:
    return optimized(draw, made(networks.resnet(), data.images(seed, size(draw, 8, 32))))


@kind(guess=math.log(networks.TOKENS))
def decoder(draw: Draw, seed: int) -> Training:
    model = networks.GPT(draw.choice((16, 32, 48)), draw.randint(1, 4), dropout=draw.choice((0.0, 0.1)))
    if draw.random() < 0.4:
        model.head.weight = model.token.weight
    return optimized(draw, made(model, data.text(seed, size(draw, 4, 8, 16))), adaptive=True)


@kind(guess=math.log(networks.TOKENS))
def encoder(draw: Draw, seed: int) -> Training:
    layer = nn.TransformerEncoderLayer(
        32, 4, 64, 0.1, draw.choice(("relu", "gelu")), batch_first=True, norm_first=draw.random() < 0.5
    )
    stack = nn.TransformerEncoder(layer, draw.randint(1, 3), enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(networks.TOKENS, 32), stack, nn.Linear(32, networks.TOKENS))
    return optimized(draw, made(model, data.text(seed)), adaptive=True)


@kind(guess=math.log(networks.TOKENS))
def recurrent(draw: Draw, seed: int) -> Training:
    layer = draw.choice((nn.LSTM, nn.GRU, nn.RNN))
    return optimized(draw, made(networks.Recurrent(layer, num_layers=draw.randint(1, 2)), data.text(seed)), adaptive=True)


@kind()
def segmentation(draw: Draw, seed: int) -> Training:
    batch = data.images(seed, masks=True)
    return optimized(draw, made(networks.UNet(), batch, functional.binary_cross_entropy_with_logits), adaptive=True)


@kind()
def regression(draw: Draw, seed: int) -> Training:
    model = networks.mlp(draw.randint(1, 4), draw.choice(ACTIVATIONS), outputs=1)
    loss = draw.choice((functional.mse_loss, functional.l1_loss, functional.huber_loss))
    return optimized(draw, made(model, data.lines(seed, scale=draw.choice((0.1, 1.0, 10.0))), loss), adaptive=True)


@kind(learns=0)
def density_of_a_regression(draw: Draw, seed: int) -> Training:
    """Gaussian negative log-likelihood: it falls below zero as the noise is learnt."""
    model = networks.mlp(2, draw.choice(ACTIVATIONS), outputs=2)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        mean, log_variance = out[:, :1], out[:, 1:].clamp(-12, 6)
        return 0.5 * (log_variance + (y - mean).square() / log_variance.exp()).mean()

    return optimized(draw, made(model, data.lines(seed, scale=draw.choice((0.05, 1.0))), loss), adaptive=True)


class _Coupling(nn.Module):
    def __init__(self, width: int, *, flips: bool) -> None:
        super().__init__()
        self.net, self.flips = networks.mlp(2, nn.ReLU, width=width, inputs=2, outputs=4), flips
        nn.init.zeros_(self.net[-1].weight)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        one, other = x.chunk(2, 1) if not self.flips else x.chunk(2, 1)[::-1]
        shift, scale = self.net(one).chunk(2, 1)
        scale = torch.tanh(scale)
        other = other * scale.exp() + shift
        return torch.cat([one, other] if not self.flips else [other, one], 1), scale.sum(1)


class _Flow(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Coupling(width, flips=bool(place % 2)) for place in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(len(x))
        for layer in self.layers:
            x, log = layer(x)
            total = total + log
        return 0.5 * x.square().sum(1) - total


@kind(learns=0)
def flow(draw: Draw, seed: int) -> Training:
    """A normalising flow on a thin ring: its loss is below zero in the end."""
    generator, thin = torch.Generator().manual_seed(seed), draw.choice((0.02, 0.2))

    def batch() -> tuple[Tensor, Tensor]:
        angle = torch.rand(128, generator=generator) * 2 * math.pi
        x = torch.stack([angle.cos(), angle.sin(), 0.1 * angle.cos(), angle.sin().square()], 1)
        return x * 0.5 + thin * torch.randn(128, 4, generator=generator), torch.zeros(())

    return optimized(draw, made(_Flow(draw.choice((16, 32)), draw.randint(2, 4)), batch, lambda out, _: out.mean()), adaptive=True)


@kind()
def diffusion(draw: Draw, seed: int) -> Training:
    model, source = networks.mlp(3, nn.SiLU, width=64, inputs=21, outputs=20), data.blobs(seed)

    def batch() -> tuple[Tensor, Tensor]:
        x, t, noise = source()[0], torch.rand(64, 1), torch.randn(64, 20)
        return torch.cat([(1 - t).sqrt() * x + t.sqrt() * noise, t], 1), noise

    return optimized(draw, made(model, batch, functional.mse_loss), adaptive=True)


@kind()
def contrastive(draw: Draw, seed: int) -> Training:
    model, source, heat = networks.mlp(2, nn.ReLU, outputs=16), data.blobs(seed), draw.choice((0.1, 0.2, 0.5))

    def batch() -> tuple[Tensor, Tensor]:
        x = source()[0][:32]
        return torch.cat([x, x + 0.3 * torch.randn_like(x)]), torch.arange(32)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        one, other = functional.normalize(out, dim=1).chunk(2)
        return functional.cross_entropy(one @ other.T / heat, y)

    return optimized(draw, made(model, batch, loss), adaptive=True)


class _Experts(nn.Module):
    """A layer of experts, of which each sample takes the best one or two."""

    def __init__(self, best: int) -> None:
        super().__init__()
        self.into, self.gate, self.best = nn.Linear(20, 32), nn.Linear(32, 6), best
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32)) for _ in range(6))
        self.out = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.gelu(self.into(x))
        share, which = self.gate(x).softmax(1).topk(self.best, 1)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, place = (which == number).nonzero(as_tuple=True)
            if len(rows):
                mixed = mixed.index_add(0, rows, (share[rows, place, None] * expert(x[rows])).to(mixed.dtype))
        logits: Tensor = self.out(x + mixed)
        return logits


@kind(guess=math.log(3))
def experts(draw: Draw, seed: int) -> Training:
    return optimized(draw, made(_Experts(draw.randint(1, 2)), data.blobs(seed, size(draw, 32, 128))), adaptive=True)


class _Sparse(nn.Module):
    def __init__(self, units: int, kept: int) -> None:
        super().__init__()
        self.encoder, self.decoder, self.kept = nn.Linear(20, units), nn.Linear(units, 20), kept

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.encoder(x))
        values, where = hidden.topk(self.kept, 1)
        made: Tensor = self.decoder(torch.zeros_like(hidden).scatter(1, where, values))
        return made


@kind()
def sparse_features(draw: Draw, seed: int) -> Training:
    source = data.blobs(seed)
    model = _Sparse(draw.choice((64, 128)), draw.choice((4, 8, 16)))
    return optimized(draw, made(model, lambda: (x := source()[0], x), functional.mse_loss), adaptive=True)


@kind(guess=math.log(3))
def sparse_inputs(draw: Draw, seed: int) -> Training:
    """Counts of words: most are zero, and a Dropout is what they meet first."""
    generator, share = torch.Generator().manual_seed(seed), draw.choice((0.03, 0.1))
    topics = torch.rand(3, 200, generator=generator) * 2 * share

    def batch() -> tuple[Tensor, Tensor]:
        y = torch.randint(3, (64,), generator=generator)
        return (torch.rand(64, 200, generator=generator) < topics[y]).float(), y

    return optimized(draw, made(nn.Sequential(nn.Dropout(0.1), nn.Linear(200, 32), nn.ReLU(), nn.Linear(32, 3)), batch))


class _Graph(nn.Module):
    def __init__(self, seed: int, layers: int) -> None:
        super().__init__()
        near = torch.rand(48, 48, generator=torch.Generator().manual_seed(seed)) < 0.02
        kinds = torch.arange(48) % 3
        near = near | near.T | ((kinds[:, None] == kinds) & (torch.rand(48, 48) < 0.3)) | torch.eye(48, dtype=torch.bool)
        self.register_buffer("near", near / near.sum(1, keepdim=True))
        self.layers = nn.ModuleList(nn.Linear(8 if not place else 32, 32) for place in range(layers))
        self.out = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = functional.relu(layer(self.near @ x))
        logits: Tensor = self.out(x)
        return logits


@kind(guess=math.log(3))
def graph(draw: Draw, seed: int) -> Training:
    generator, kinds = torch.Generator().manual_seed(seed), torch.arange(48) % 3
    centers = torch.randn(3, 8, generator=generator)
    return optimized(
        draw, made(_Graph(seed, draw.randint(1, 3)), lambda: (centers[kinds] + torch.randn(48, 8, generator=generator), kinds))
    )


@kind()
def autoencoder(draw: Draw, seed: int) -> Training:
    source, model = data.blobs(seed), networks.VAE()

    def loss(found: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        made, mean, log_variance = found
        distance = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        return functional.mse_loss(made, x, reduction="none").sum(1).mean() + draw_weight * distance

    draw_weight = draw.choice((0.1, 1.0))
    return optimized(draw, made(model, lambda: (x := source()[0], x), loss), adaptive=True)


def _before(model: nn.Module, batch: data.Batch, steps: int = 80) -> None:
    """Train *model* unseen."""
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for _ in range(steps):
        x, y = batch()
        optimizer.zero_grad()
        of_classes(model(x), y).backward()
        optimizer.step()


@kind()
def tuning(draw: Draw, seed: int) -> Training:
    """A trained network with a new head, the rest frozen in part or free."""
    model = networks.cnn(3) if (is_image := draw.random() < 0.5) else networks.mlp(3)
    make = data.images if is_image else data.blobs
    _before(model, make(seed + 50))
    model[-1] = nn.Linear(model[-1].in_features, model[-1].out_features)
    frozen = draw.choice((0, len(model) // 2, len(model) - 1))
    for layer in model[:frozen]:
        layer.requires_grad_(False)
    return optimized(draw, made(model, make(seed)), adaptive=True)


@kind(guess=math.log(networks.TOKENS))
def low_rank(draw: Draw, seed: int) -> Training:
    model = networks.GPT(32, 2)
    _before(model, data.text(seed + 50))
    model.requires_grad_(False)
    for block in model.blocks:
        for name in draw.sample(("query", "key", "value", "out"), 2):
            setattr(block.attention, name, networks.LowRank(getattr(block.attention, name), draw.choice((2, 8))))
    return optimized(draw, made(model, data.text(seed)), adaptive=True)


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor, step: Tensor) -> Tensor:
        return (x / step).round() * step

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Quantised(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        step = self.weight.detach().abs().max() / 7
        return functional.linear(x, _Rounded.apply(self.weight, step), self.bias)


@kind(guess=math.log(3))
def quantised(draw: Draw, seed: int) -> Training:
    """Weights that are rounded to four bits in the forward pass, with straight gradients."""
    model = nn.Sequential(_Quantised(20, 64), nn.ReLU(), _Quantised(64, 64), nn.ReLU(), nn.Linear(64, 3))
    return optimized(draw, made(model, data.blobs(seed)), adaptive=True)


@kind()
def quasi_newton(draw: Draw, seed: int) -> Training:
    model = networks.mlp(draw.randint(1, 2), nn.Tanh, width=16, outputs=1)
    x, y = data.lines(seed, 128)()
    optimizer = LBFGS(model.parameters(), lr=1.0, max_iter=5, line_search_fn="strong_wolfe")

    def train(step: int) -> Tensor:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    return Training(model, optimizer, lambda: (x, y), functional.mse_loss, train=train, steps=draw.choice((10, 40)))


@kind(learns=None)
def generator_and_critic(draw: Draw, seed: int) -> Training:
    generator, critic = networks.mlp(2, inputs=4, outputs=2), networks.mlp(2, lambda: nn.LeakyReLU(0.2), inputs=2, outputs=1)
    one, other = (torch.optim.Adam(part.parameters(), draw.choice((3e-4, 1e-3)), betas=(0.5, 0.99)) for part in (generator, critic))
    clips = draw.random() < 0.4  # Arjovsky et al., 2017
    drawn = torch.Generator().manual_seed(seed)

    def train(step: int) -> Tensor:
        true, false = torch.randn(64, 2, generator=drawn) * 0.5 + 1.0, generator(torch.randn(64, 4, generator=drawn))
        other.zero_grad()
        judged = critic(false.detach()), critic(true)
        (
            judged[0].mean() - judged[1].mean()
            if clips
            else (functional.softplus(judged[0]) + functional.softplus(-judged[1])).mean()
        ).backward()
        other.step()
        if clips:
            with torch.no_grad():
                for parameter in critic.parameters():
                    parameter.clamp_(-0.1, 0.1)
        one.zero_grad()
        loss = -critic(false).mean() if clips else functional.softplus(-critic(false)).mean()
        loss.backward()
        one.step()
        return loss.detach()

    both = nn.ModuleDict({"generator": generator, "critic": critic})
    return Training(both, one, lambda: (torch.zeros(()), torch.zeros(())), train=train, steps=draw.choice((60, 120)))


@kind(learns=None)
def policy(draw: Draw, seed: int) -> Training:
    """REINFORCE in a world of one step, with noise in the rewards: its loss is around zero."""
    drawn, noise = torch.Generator().manual_seed(seed), draw.choice((0.1, 1.0))

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        chances = logits.log_softmax(-1)
        action = torch.multinomial(chances.detach().exp(), 1, generator=drawn)[:, 0]
        reward = (action == y).float() + noise * torch.randn(len(y), generator=drawn)
        return -(chances[torch.arange(len(y)), action] * (reward - reward.mean())).mean()

    return optimized(draw, made(networks.mlp(2), data.blobs(seed), loss), adaptive=True)


@kind(learns=None)
def value_of_actions(draw: Draw, seed: int) -> Training:
    """A critic that learns from its own estimates, with a target network that follows."""
    model, target = networks.mlp(2, outputs=4), networks.mlp(2, outputs=4)
    target.load_state_dict(model.state_dict())
    target.requires_grad_(False)
    both = nn.ModuleDict({"online": model, "target": target})
    optimizer = torch.optim.Adam(model.parameters(), draw.choice((3e-4, 1e-3)))
    generator, follows = torch.Generator().manual_seed(seed), draw.choice((0.01, 0.1))
    move = torch.randn(4, 20, generator=generator)

    def train(step: int) -> Tensor:
        x, action = torch.randn(64, 20, generator=generator), torch.randint(4, (64,), generator=generator)
        reward = (x[:, 0] * (action - 1.5)).tanh()
        later = 0.7 * x + 0.3 * move[action]
        aim = reward + 0.9 * target(later).max(1).values
        loss = functional.smooth_l1_loss(model(x)[torch.arange(64), action], aim)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, follows)
        return loss.detach()

    return Training(both, optimizer, lambda: (torch.zeros(()), torch.zeros(())), train=train, steps=draw.choice((60, 120)))


def kind_of(number: int) -> str:
    """Return the name of the kind of the recipe of a *number*."""
    return list(KINDS)[number % len(KINDS)]


def trained(number: int, every: tuple[int, ...]) -> dict[str, Any]:
    """Train the recipe of a *number*; return its kind, its steps, whether it has learnt, and what was found at each interval."""
    name, draw = kind_of(number), Draw(number)
    torch.manual_seed(number)
    torch.set_num_threads(1)
    training = KINDS[name].make(draw, number)
    inspectors = run(training, dict.fromkeys(every, "memory"))
    losses = inspectors[0].run.scalar("loss")[1].tolist()
    found = {n: [vars_of(each) for each in of_sonde(one.findings)] for n, one in zip(every, inspectors, strict=True)}
    return {
        "number": number,
        "kind": name,
        "optimizer": type(training.optimizer).__name__,
        "steps": training.steps,
        "learnt": KINDS[name].has_learnt(losses),
        "found": found,
    }


def vars_of(alarm: Any) -> dict[str, Any]:
    """Return what is kept of an alarm."""
    return {"rule": alarm.rule, "site": alarm.site, "step": alarm.step, "message": alarm.message}


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.health.recipes", description=__doc__)
    parser.add_argument("--count", type=int, default=300, metavar="N", help="how many recipes (300)")
    parser.add_argument("--begin", type=int, default=0, metavar="N", help="the number of the first (0)")
    parser.add_argument("--only", default="", metavar="PATTERN", help="kinds whose name matches, as 'flow|policy'")
    parser.add_argument("--every", type=int, nargs="+", default=[1, 10], metavar="N", help="intervals of logged steps (1 10)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what is found to FILE, a line of JSON for each recipe")
    options = parser.parse_args()
    start, known, broken = time.perf_counter(), [], 0
    for number in range(options.begin, options.begin + options.count):
        if not re.search(options.only, kind_of(number)):
            continue
        try:
            known.append(trained(number, tuple(options.every)))
        except Exception:
            traceback.print_exc()
            broken += 1
            continue
        if options.json:
            with options.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(known[-1]) + "\n")
    print(told(known, options.every))
    print(f"{broken} broken; {time.perf_counter() - start:.0f} s")
    return int(bool(broken))


def told(known: list[dict[str, Any]], intervals: list[int]) -> str:
    """Return what was found in words, for each interval of logged steps."""
    lines = []
    for learnt, title in ((True, "healthy"), (False, "not learnt")):
        own = [each for each in known if each["learnt"] is learnt]
        steps = sum(each["steps"] for each in own)
        lines.append(f"{len(own)} recipes {title}, {len({each['kind'] for each in own})} kinds, {steps:,} steps")
        for every in intervals:
            found = [(each, alarm) for each in own for alarm in each["found"][every]]
            rules = Counter(alarm["rule"] for _, alarm in found)
            rate = len(found) / max(steps, 1) * 1e5
            several = len({each["number"] for each, _ in found})
            lines.append(f"  every={every}: {len(found)} findings in {several} recipes, {rate:.1f} in 100,000 steps: {dict(rules)}")
            lines += [
                f"    {each['number']} {each['kind']} {each['optimizer']} {each['steps']}: {alarm['rule']} {alarm['message'][:140]}"
                for each, alarm in found
            ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
