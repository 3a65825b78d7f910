"""Kinds of healthy trainings that look ill: those that go on after their end, end below zero, change on the way, or never settle.

Long ones come to rest: their loss is at its floor or exactly 0, their learning rate at 0, their gradients are noise. Others change
what they learn from, learn in stages, or have a loss that need not fall.
"""

from __future__ import annotations

import copy
import math

import torch
from benchmarks.health import data, networks
from benchmarks.health.drawn import ACTIVATIONS, Draw, kind, made, optimized, size
from benchmarks.health.training import Training, of_classes
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

_LONG = (300, 600, 1200, 2500)
_NONE = torch.zeros(())


@kind(guess=math.log(3))
def learnt_by_heart(draw: Draw, seed: int) -> Training:
    """A few batches again and again, far beyond the step at which nothing is left to learn."""
    model = networks.mlp(draw.randint(1, 4), draw.choice(ACTIVATIONS), width=64)
    batch = data.few(data.blobs(seed, size(draw, 8, 32)), draw.randint(1, 4))
    loss = draw.choice((of_classes, functional.multi_margin_loss))
    return optimized(draw, made(model, batch, loss), lasts=draw.choice(_LONG))


@kind(guess=math.log(3))
def at_rest(draw: Draw, seed: int) -> Training:
    """The learning rate falls to 0, and the loop goes on."""
    lasts = draw.choice(_LONG)
    training = optimized(draw, made(networks.mlp(draw.randint(1, 3)), data.blobs(seed)), adaptive=True, lasts=lasts)
    training.rate = lambda step: max(0.0, 1 - 2 * step / lasts)
    return training


@kind(learns=0.0)
def noise_at_the_floor(draw: Draw, seed: int) -> Training:
    """Targets are mostly noise, so that the loss is at its floor soon."""
    source, noise = data.lines(seed), draw.choice((0.5, 1.0, 2.0))

    def batch() -> tuple[Tensor, Tensor]:
        x, y = source()
        return x, y + noise * torch.randn_like(y)

    model = networks.mlp(draw.randint(1, 3), draw.choice(ACTIVATIONS), outputs=1)
    loss = draw.choice((functional.mse_loss, functional.smooth_l1_loss))
    return optimized(draw, made(model, batch, loss), adaptive=True, lasts=draw.choice(_LONG))


@kind(learns=0.02, guess=math.log(3))
def labels_with_noise(draw: Draw, seed: int) -> Training:
    source, wrong = data.blobs(seed), draw.choice((0.2, 0.4))

    def batch() -> tuple[Tensor, Tensor]:
        x, y = source()
        return x, torch.where(torch.rand(len(y)) < wrong, torch.randint(3, (len(y),)), y)

    return optimized(draw, made(networks.mlp(2), batch), lasts=draw.choice(_LONG))


@kind(guess=math.log(3))
def warm_restarts(draw: Draw, seed: int) -> Training:
    """The learning rate jumps back to its beginning, each period twice as long (Loshchilov and Hutter, 2017), or goes in cycles."""
    training = optimized(draw, made(networks.mlp(3), data.blobs(seed)), adaptive=True, lasts=draw.choice(_LONG))
    first, grows = draw.choice((20, 60)), draw.random() < 0.5

    def rate(step: int) -> float:
        period = first
        while step >= period:
            step -= period
            period *= 2 if grows else 1
        return 0.5 * (1 + math.cos(math.pi * step / period)) if grows else 1 - abs(2 * step / period - 1) + 0.01

    training.rate = rate
    return training


@kind(learns=0.0)
def grokking(draw: Draw, seed: int) -> Training:
    """Addition modulo a small prime, of a part of all pairs, with much weight decay (Power et al., 2022)."""
    prime = draw.choice((11, 17))
    pairs = torch.cartesian_prod(torch.arange(prime), torch.arange(prime))
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed))
    known = pairs[order[: len(pairs) // 2]]
    model = nn.Sequential(nn.Embedding(prime, 32), nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, prime))
    training = made(model, lambda: (known, known.sum(1) % prime))
    training.use(torch.optim.AdamW, lr=draw.choice((1e-3, 3e-3)), weight_decay=draw.choice((0.3, 1.0)))
    training.steps = draw.choice((600, 1500, 3000))
    return training


@kind()
def quantiles(draw: Draw, seed: int) -> Training:
    source, shares = data.lines(seed), torch.tensor([0.1, 0.5, 0.9])

    def loss(out: Tensor, y: Tensor) -> Tensor:
        miss = y - out
        return torch.maximum(shares * miss, (shares - 1) * miss).mean()

    model = networks.mlp(2, draw.choice(ACTIVATIONS), outputs=3)
    return optimized(draw, made(model, source, loss), adaptive=True, lasts=draw.choice((0, 300, 1200)))


@kind(learns=0.0)
def triplets(draw: Draw, seed: int) -> Training:
    """A margin: most batches have no loss in the end, and no gradient."""
    source = data.blobs(seed, 48)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        out = functional.normalize(out, dim=1)
        far = torch.cdist(out, out)
        same = y[:, None] == y
        worst = torch.where(same, far, -1.0).max(1).values
        nearest = torch.where(same, 9.0, far).min(1).values
        return functional.relu(worst - nearest + 0.2).mean()

    return optimized(draw, made(networks.mlp(2, outputs=16), source, loss), adaptive=True, lasts=draw.choice((60, 300, 900)))


@kind(learns=0.0)
def twins(draw: Draw, seed: int) -> Training:
    """Two views of a sample, a predictor and a stopped gradient: the loss is a cosine with a minus (Chen and He, 2021)."""
    source = data.blobs(seed)
    model = nn.ModuleDict(
        {
            "encoder": nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32), nn.BatchNorm1d(32)),
            "predictor": nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 32)),
        }
    )
    training = optimized(draw, made(model, source), adaptive=True, lasts=draw.choice((100, 300, 900)))

    def train(step: int) -> Tensor:
        x = source()[0]
        made_of = [model["encoder"](x + 0.3 * torch.randn_like(x)) for _ in range(2)]
        told = [model["predictor"](each) for each in made_of]
        loss = -sum(functional.cosine_similarity(p, z.detach()).mean() for p, z in zip(told, made_of[::-1], strict=True)) / 2
        assert isinstance(loss, Tensor)
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
        return loss.detach()

    training.train = train
    return training


@kind(learns=0.0)
def overlap(draw: Draw, seed: int) -> Training:
    """Minus the Dice score, or with the cross-entropy added to it."""
    batch, both = data.images(seed, masks=True), draw.random() < 0.5

    def loss(out: Tensor, y: Tensor) -> Tensor:
        share = out.sigmoid()
        score = 2 * (share * y).sum() / (share + y).sum()
        return -score + (functional.binary_cross_entropy_with_logits(out, y) if both else 0.0)

    return optimized(draw, made(networks.UNet(), batch, loss), adaptive=True, lasts=draw.choice((0, 0, 300)))


@kind(learns=0.0)
def several_tasks(draw: Draw, seed: int) -> Training:
    """Losses weighed by uncertainties that are learnt, whose logarithms are added: it ends below zero (Kendall et al., 2018)."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.one, self.other = networks.mlp(2, outputs=32), nn.Linear(32, 1), nn.Linear(32, 3)
            self.uncertain = nn.Parameter(torch.zeros(2))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            x = functional.relu(self.trunk(x))
            return self.one(x), self.other(x), self.uncertain

    source = data.blobs(seed)

    def loss(out: tuple[Tensor, Tensor, Tensor], y: Tensor) -> Tensor:
        losses = torch.stack([functional.mse_loss(out[0][:, 0], y.float()), functional.cross_entropy(out[1], y)])
        return (losses * (-out[2]).exp() + out[2]).sum()

    return optimized(draw, made(Heads(), source, loss), adaptive=True, lasts=draw.choice((100, 600, 2500)))


@kind(learns=0.0)
def mixture(draw: Draw, seed: int) -> Training:
    """The density of targets as a mixture of normal ones (Bishop, 1994)."""
    source, parts = data.lines(seed, scale=draw.choice((0.1, 1.0))), 3

    def loss(out: Tensor, y: Tensor) -> Tensor:
        share, mean, log = out.chunk(3, 1)
        log = log.clamp(-5, 3)
        each = share.log_softmax(1) - log - 0.5 * ((y - mean) / log.exp()).square()
        return -each.logsumexp(1).mean()

    model = networks.mlp(2, draw.choice(ACTIVATIONS), outputs=3 * parts)
    return optimized(draw, made(model, source, loss), adaptive=True, lasts=draw.choice((100, 600, 1500)))


@kind(learns=0.0)
def scores(draw: Draw, seed: int) -> Training:
    """Score matching (Hyvarinen, 2005): a loss around zero that ends below it, with two backward passes through the model."""
    model, source = networks.mlp(2, draw.choice((nn.Tanh, nn.SiLU)), inputs=2, outputs=2), torch.Generator().manual_seed(seed)

    def batch() -> tuple[Tensor, Tensor]:
        x = torch.randn(64, 2, generator=source) * 0.7 + 1.0
        return x.requires_grad_(), x

    def loss(out: Tensor, x: Tensor) -> Tensor:
        slope = sum(torch.autograd.grad(out[:, each].sum(), x, create_graph=True)[0][:, each] for each in range(2))
        return (slope + 0.5 * out.square().sum(1)).mean()

    training = optimized(draw, made(model, batch, loss), adaptive=True, lasts=draw.choice((100, 600)))
    training.context = type(training).context
    return training


@kind(learns=None)
def critic_with_penalty(draw: Draw, seed: int) -> Training:
    """A critic whose slope is drawn to one (Gulrajani et al., 2017), several steps of it for one of the generator."""
    generator, critic = networks.mlp(2, inputs=4, outputs=2), networks.mlp(2, lambda: nn.LeakyReLU(0.2), inputs=2, outputs=1)
    one, other = (torch.optim.Adam(part.parameters(), 5e-4, betas=(0.0, 0.9)) for part in (generator, critic))
    random, times = torch.Generator().manual_seed(seed), draw.choice((1, 3, 5))

    def train(step: int) -> Tensor:
        for _ in range(times):
            true, false = torch.randn(64, 2, generator=random) + 1.0, generator(torch.randn(64, 4, generator=random)).detach()
            between = torch.lerp(true, false, torch.rand(64, 1, generator=random)).requires_grad_()
            (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            other.zero_grad()
            loss = critic(false).mean() - critic(true).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()
            loss.backward()
            other.step()
        one.zero_grad()
        (-critic(generator(torch.randn(64, 4, generator=random))).mean()).backward()
        one.step()
        return loss.detach()

    both = nn.ModuleDict({"generator": generator, "critic": critic})
    return Training(both, one, lambda: (_NONE, _NONE), train=train, steps=draw.choice((60, 200)))


@kind(learns=None)
def actor_and_critic(draw: Draw, seed: int) -> Training:
    """A policy with a bonus for its entropy and a clipped ratio, and a critic, in one network."""
    random, noise = torch.Generator().manual_seed(seed), draw.choice((0.1, 1.0))

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.actor, self.critic = networks.mlp(2, nn.Tanh, outputs=32), nn.Linear(32, 3), nn.Linear(32, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = torch.tanh(self.trunk(x))
            return self.actor(x), self.critic(x)[:, 0]

    def loss(out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        chances = out[0].log_softmax(-1)
        action = torch.multinomial(chances.detach().exp(), 1, generator=random)[:, 0]
        reward = (action == y).float() + noise * torch.randn(len(y), generator=random)
        better = reward - out[1].detach()
        taken = chances[torch.arange(len(y)), action]
        ratio = (taken - taken.detach()).exp()
        surrogate = torch.minimum(ratio * better, ratio.clamp(0.8, 1.2) * better).mean()
        entropy = -(chances.exp() * chances).sum(1).mean()
        return -surrogate + 0.5 * (out[1] - reward).square().mean() - 0.01 * entropy

    return optimized(draw, made(Both(), data.blobs(seed), loss), adaptive=True, lasts=draw.choice((200, 600, 1500)))


@kind(learns=None)
def grows_harder(draw: Draw, seed: int) -> Training:
    """Longer sequences, larger batches and noisier samples as the training goes on."""
    model, source = networks.GPT(32, 2), data.text(seed, 32)
    training = optimized(draw, made(model, source), adaptive=True, lasts=draw.choice((120, 300)))
    steps, count = training.steps, iter(range(10**9))

    def batch() -> tuple[Tensor, Tensor]:
        share = min(1.0, next(count) / (training.accumulate * steps) + 0.25)
        x, y = source()
        return x[: int(32 * share), : int(x.shape[1] * share)], y[: int(32 * share), : int(x.shape[1] * share)]

    training.batch = batch
    return training


@kind(learns=None)
def in_stages(draw: Draw, seed: int) -> Training:
    """The head alone first, then layer after layer from the end (Howard and Ruder, 2018)."""
    model = networks.mlp(3)
    training = optimized(draw, made(model, data.blobs(seed)), adaptive=True, lasts=draw.choice((120, 300)))
    layers = [layer for layer in model if any(True for _ in layer.parameters())]

    def stage(step: int) -> None:
        for place, layer in enumerate(reversed(layers)):
            layer.requires_grad_(step * len(layers) >= place * training.steps // 2)

    training.before.append(stage)
    return training


@kind(guess=math.log(3))
def averaged(draw: Draw, seed: int) -> Training:
    """A copy of the model follows it as a moving average, and is watched, too."""
    model = networks.mlp(draw.randint(1, 3))
    slow = AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99))
    slow.requires_grad_(False)
    both, source = nn.ModuleDict({"model": model, "average": slow}), data.blobs(seed)
    training = optimized(draw, made(both, source), adaptive=True, lasts=draw.choice((100, 600)))

    def train(step: int) -> Tensor:
        x, y = source()
        training.optimizer.zero_grad()
        loss = of_classes(model(x), y)
        loss.backward()
        training.optimizer.step()
        slow.update_parameters(model)
        return loss.detach()

    training.train = train
    return training


@kind()
def taught(draw: Draw, seed: int) -> Training:
    """A student learns what a frozen teacher says."""
    teacher, source = networks.mlp(3), data.blobs(seed)
    teacher.requires_grad_(False)
    model = networks.mlp(2, draw.choice(ACTIVATIONS))

    both = nn.ModuleDict({"teacher": teacher, "student": model})
    training = optimized(draw, made(both, source), adaptive=True, lasts=draw.choice((100, 600, 1500)))

    def train(step: int) -> Tensor:
        x, _ = source()
        told = (4 * teacher(x)).log_softmax(1)
        training.optimizer.zero_grad()
        found = functional.kl_div(model(x).log_softmax(1), told, log_target=True, reduction="batchmean")
        found.backward()
        training.optimizer.step()
        return found.detach()

    training.train = train
    return training


class _Repeated(nn.Module):
    """One layer that runs many times, its input added each time."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.into, self.layer, self.out, self.times = nn.Linear(20, 32), nn.Linear(32, 32), nn.Linear(32, 3), times

    def forward(self, x: Tensor) -> Tensor:
        x = z = self.into(x)
        for _ in range(self.times):
            z = torch.tanh(self.layer(z) + x)
        logits: Tensor = self.out(z)
        return logits


@kind(guess=math.log(3))
def repeated(draw: Draw, seed: int) -> Training:
    return optimized(draw, made(_Repeated(draw.choice((3, 8, 15))), data.blobs(seed)), adaptive=True)


class _Scaled(nn.Module):
    """A residual network whose branches begin at nothing: a factor of 0 or 1e-4, or a last layer of zeros."""

    def __init__(self, begin: float | None) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(20, 32), nn.Linear(32, 3)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(6)
        )
        self.scales = nn.ParameterList(torch.full((32,), 1.0 if begin is None else begin) for _ in range(6))
        for block in self.blocks if begin is None else ():
            nn.init.zeros_(block[-1].weight)
            nn.init.zeros_(block[-1].bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        for block, scale in zip(self.blocks, self.scales, strict=True):
            x = x + scale * block(x)
        logits: Tensor = self.out(x)
        return logits


@kind(guess=math.log(3))
def begins_at_nothing(draw: Draw, seed: int) -> Training:
    return optimized(draw, made(_Scaled(draw.choice((None, 0.0, 1e-4))), data.blobs(seed)), adaptive=True)


@kind(guess=math.log(16))
def recomputed(draw: Draw, seed: int) -> Training:
    """A decoder whose blocks run again in the backward pass."""
    model = networks.GPT(32, draw.randint(1, 3))
    for block in model.blocks:
        runs = block.forward
        block.forward = lambda x, runs=runs: checkpoint(runs, x, use_reentrant=False)  # type: ignore[misc]
    return optimized(draw, made(model, data.text(seed)), adaptive=True)


@kind()
def differential_equation(draw: Draw, seed: int) -> Training:
    """A network that solves u'' = -u on an interval, by its own derivatives (Raissi et al., 2019)."""
    model, random = networks.mlp(3, nn.Tanh, inputs=1, outputs=1), torch.Generator().manual_seed(seed)

    def batch() -> tuple[Tensor, Tensor]:
        x = (torch.rand(64, 1, generator=random) * 3).requires_grad_()
        return x, x

    def loss(out: Tensor, x: Tensor) -> Tensor:
        (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        return (second + out).square().mean() + 10 * (out - x.detach().sin()).square().mean()

    training = optimized(draw, made(model, batch, loss), adaptive=True, lasts=draw.choice((100, 600)))
    training.context = type(training).context
    return training


@kind()
def annealed(draw: Draw, seed: int) -> Training:
    """An autoencoder whose distance from the prior counts more and more, and may fall to nothing."""
    source, model, warm = data.blobs(seed), networks.VAE(), draw.choice((50, 200))
    seen = iter(range(10**9))

    def loss(found: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        image, mean, log_variance = found
        distance = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        return functional.mse_loss(image, x, reduction="none").sum(1).mean() + min(1.0, next(seen) / warm) * 4 * distance

    return optimized(draw, made(model, lambda: (x := source()[0], x), loss), adaptive=True, lasts=draw.choice((120, 600)))


@kind(learns=0.0)
def preferred(draw: Draw, seed: int) -> Training:
    """A network that is tuned on preferences against a frozen copy of itself: the loss begins at ln 2 (Rafailov et al., 2023)."""
    model, source = networks.GPT(32, 2), data.text(seed)
    before = copy.deepcopy(model).requires_grad_(False)
    both = nn.ModuleDict({"model": model, "before": before})
    training = optimized(draw, made(both, source), adaptive=True, lasts=draw.choice((40, 150)))

    def chance(of: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return of(x).log_softmax(-1).gather(-1, y[..., None]).sum((1, 2))

    def train(step: int) -> Tensor:
        x, y = source()
        worse = torch.randint_like(y, networks.TOKENS)
        gain = [chance(model, x, each) - chance(before, x, each).detach() for each in (y, worse)]
        found = -functional.logsigmoid(0.1 * (gain[0] - gain[1])).mean()
        training.optimizer.zero_grad()
        found.backward()
        training.optimizer.step()
        return found.detach()

    training.train = train
    return training


@kind(learns=0.0)
def tiny(draw: Draw, seed: int) -> Training:
    """A few units that learn a few points, with all of them in each step, for a long time."""
    x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    y = torch.tensor([[0.0], [1.0], [1.0], [0.0]])
    width = draw.choice((4, 8))
    model = nn.Sequential(nn.Linear(2, width), draw.choice((nn.Tanh, nn.Sigmoid))(), nn.Linear(width, 1))
    loss = draw.choice((functional.mse_loss, functional.binary_cross_entropy_with_logits))
    training = made(model, lambda: (x, y), loss)
    training.use(*((torch.optim.SGD,) if draw.random() < 0.5 else (torch.optim.Adam,)), lr=draw.choice((0.02, 0.1)))
    training.steps = draw.choice((1000, 4000))
    return training


@kind()
def sharp_aware(draw: Draw, seed: int) -> Training:
    """Two backward passes of a step: the first one moves to where the loss is worst nearby (Foret et al., 2021)."""
    model, source, radius = networks.mlp(2), data.blobs(seed), draw.choice((0.02, 0.05))
    training = optimized(draw, made(model, source), adaptive=True, lasts=draw.choice((100, 300)))

    def train(step: int) -> Tensor:
        x, y = source()
        training.optimizer.zero_grad()
        loss = of_classes(model(x), y)
        loss.backward()
        held = [each for each in model.parameters() if each.grad is not None]
        size = torch.stack([each.grad.norm() for each in held if each.grad is not None]).norm() + 1e-12
        moves = [radius * each.grad / size for each in held if each.grad is not None]
        with torch.no_grad():
            for each, move in zip(held, moves, strict=True):
                each.add_(move)
        training.optimizer.zero_grad()
        of_classes(model(x), y).backward()
        with torch.no_grad():
            for each, move in zip(held, moves, strict=True):
                each.sub_(move)
        training.optimizer.step()
        return loss.detach()

    training.train = train
    return training


@kind()
def factors(draw: Draw, seed: int) -> Training:
    """Two large tables whose rows are multiplied: each step uses a few rows of them."""

    class Tables(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = nn.Embedding(400, 8), nn.Embedding(300, 8)
            for table in (self.users, self.items):
                nn.init.normal_(table.weight, std=0.1)

        def forward(self, pair: Tensor) -> Tensor:
            return (self.users(pair[:, 0]) * self.items(pair[:, 1])).sum(1)

    random = torch.Generator().manual_seed(seed)
    true = torch.randn(400, 3, generator=random), torch.randn(300, 3, generator=random)

    def batch() -> tuple[Tensor, Tensor]:
        pair = torch.stack([torch.randint(400, (256,), generator=random), torch.randint(300, (256,), generator=random)], 1)
        return pair, (true[0][pair[:, 0]] * true[1][pair[:, 1]]).sum(1)

    return optimized(draw, made(Tables(), batch, functional.mse_loss), adaptive=True, lasts=draw.choice((300, 1200)))


@kind(learns=None)
def split_over_optimizers(draw: Draw, seed: int) -> Training:
    """Matrices under one optimizer and the rest under another: one loss, one backward pass, two steps."""
    model, source = networks.mlp(3), data.blobs(seed)
    parts = [[each for each in model.parameters() if (each.dim() > 1) is wide] for wide in (True, False)]
    both = torch.optim.SGD(parts[0], 0.05, momentum=0.9), torch.optim.AdamW(parts[1], 2e-3)

    def train(step: int) -> Tensor:
        x, y = source()
        loss = of_classes(model(x), y)
        loss.backward()
        for each in both:
            each.step()
            each.zero_grad()
        return loss.detach()

    return Training(model, both[0], source, train=train, steps=draw.choice((60, 200)))
