"""Healthy trainings: whatever a rule says of one of these is a false alarm."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.health import data, networks
from benchmarks.health.case import control
from benchmarks.health.training import Training, base, of_classes
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, Optimizer, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts

from sonde import lens

Make = Callable[[int], Training]


def cosine(steps: int, warm: int = 10) -> Callable[[int], float]:
    """Return a factor that rises for *warm* steps and falls as half a cosine."""
    return lambda step: min(1.0, (step + 1) / warm) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))


def _with(kind: str, optimizer: Callable[..., Optimizer] | None = None, **settings: Any) -> Make:
    """Return what makes the base training of *kind* with another optimizer; settings of the training begin with ``t_``."""
    own = {name[2:]: value for name, value in settings.items() if name.startswith("t_")}
    rest = {name: value for name, value in settings.items() if not name.startswith("t_")}

    def make(seed: int) -> Training:
        training = base(kind, seed)
        if optimizer is not None:
            training.use(optimizer, **rest)
        for name, value in own.items():
            setattr(training, name, value)
        return training

    return make


def _of(model: Callable[[], nn.Module], kind: str, optimizer: Callable[..., Optimizer], **settings: Any) -> Make:
    """As :func:`_with`, with another model."""
    made = _with(kind, **{name: value for name, value in settings.items() if name.startswith("t_")})
    rest = {name: value for name, value in settings.items() if not name.startswith("t_")}

    def make(seed: int) -> Training:
        training = made(seed)
        training.model = model()
        training.use(optimizer, **rest)
        return training

    return make


def _sized(kind: str, size: int, optimizer: Callable[..., Optimizer], lr: float, steps: int) -> Make:
    def make(seed: int) -> Training:
        training = base(kind, seed)
        training.batch = {"mlp": data.blobs, "cnn": data.images, "gpt": data.text, "rnn": data.text}[kind](seed, size)
        training.use(optimizer, lr=lr)
        training.steps = steps
        return training

    return make


def _pairs() -> list[tuple[str, str, Make]]:
    bf16 = lambda: torch.autocast("cpu", torch.bfloat16)  # noqa: E731
    return [
        ("as it comes: SGD", "mlp", _with("mlp")),
        ("as it comes: SGD with momentum", "cnn", _with("cnn")),
        ("as it comes: AdamW, clipped", "rnn", _with("rnn")),
        ("as it comes: AdamW", "gpt", _with("gpt")),
        ("Adam", "mlp", _with("mlp", Adam, lr=1e-3)),
        ("AdamW, a large weight decay of 0.1", "gpt", _with("gpt", AdamW, lr=1e-3, weight_decay=0.1)),
        ("RMSprop", "mlp", _with("mlp", RMSprop, lr=1e-3)),
        ("Adagrad", "cnn", _with("cnn", Adagrad, lr=1e-2)),
        ("NAdam", "rnn", _with("rnn", NAdam, lr=2e-3)),
        ("Nesterov momentum, weight decay", "cnn", _with("cnn", SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)),
        ("warm-up and cosine", "gpt", _with("gpt", AdamW, lr=2e-3, t_rate=cosine(200), t_steps=200)),
        ("warm-up and cosine", "cnn", _with("cnn", SGD, lr=0.1, momentum=0.9, t_rate=cosine(150), t_steps=150)),
        ("a long warm-up from zero", "gpt", _with("gpt", AdamW, lr=1e-3, t_rate=lambda step: min(1.0, step / 100), t_steps=160)),
        (
            "learning rate divided by ten, twice",
            "mlp",
            _with("mlp", SGD, lr=0.1, t_rate=lambda step: 0.1 ** (step // 60), t_steps=180),
        ),
        ("clipped at 1", "gpt", _with("gpt", AdamW, lr=1e-3, t_clip=1.0)),
        ("clipped at 0.1", "mlp", _with("mlp", AdamW, lr=1e-3, t_clip=0.1)),
        ("accumulation of 4 micro-batches", "gpt", _with("gpt", AdamW, lr=1e-3, t_accumulate=4, t_steps=60)),
        ("bfloat16 autocast", "gpt", _with("gpt", AdamW, lr=1e-3, t_context=bf16)),
        ("bfloat16 autocast", "cnn", _with("cnn", t_context=bf16)),
        ("batches of 2", "mlp", _sized("mlp", 2, AdamW, 1e-3, 300)),
        ("batches of 4, momentum", "mlp", _sized("mlp", 4, lambda held, lr: SGD(held, lr, momentum=0.9), 0.01, 300)),
        ("batches of 1", "gpt", _sized("gpt", 1, AdamW, 1e-3, 200)),
        ("batches of 4", "cnn", _sized("cnn", 4, AdamW, 1e-3, 200)),
        ("batches of 512", "mlp", _sized("mlp", 512, SGD, 0.3, 100)),
        ("a long training that converges", "mlp", _with("mlp", AdamW, lr=1e-3, t_steps=900)),
        ("tanh", "mlp", _of(lambda: networks.mlp(4, nn.Tanh), "mlp", SGD, lr=0.1)),
        ("sigmoid, three layers", "mlp", _of(lambda: networks.mlp(3, nn.Sigmoid), "mlp", AdamW, lr=3e-3, t_steps=200)),
        ("GELU, dropout 0.1", "gpt", _of(lambda: networks.GPT(dropout=0.1), "gpt", AdamW, lr=1e-3)),
        ("dropout 0.5", "mlp", _of(lambda: nn.Sequential(*_dropped(0.5)), "mlp", AdamW, lr=1e-3, t_steps=200)),
        ("a wider, deeper GPT", "gpt", _of(lambda: networks.GPT(64, 6), "gpt", AdamW, lr=1e-3, t_rate=cosine(100), t_steps=100)),
        ("a GPT at the default initialisation of PyTorch", "gpt", _of(lambda: _plain(networks.GPT()), "gpt", AdamW, lr=1e-3)),
        ("a residual network", "resnet", _of(networks.resnet, "cnn", SGD, lr=0.1, momentum=0.9, t_rate=cosine(120))),
        ("a residual network whose branches begin as zero", "resnet", _of(_zero_branches, "cnn", AdamW, lr=2e-3)),
        ("an Elman network", "rnn", _of(lambda: networks.Recurrent(nn.RNN), "rnn", AdamW, lr=1e-3)),
        ("a GRU of two layers", "rnn", _of(lambda: networks.Recurrent(nn.GRU, num_layers=2, dropout=0.1), "rnn", AdamW, lr=2e-3)),
        ("a linear model", "mlp", _of(lambda: networks.mlp(0), "mlp", SGD, lr=0.1)),
        (
            "a label smoothed by 0.1",
            "mlp",
            _with("mlp", AdamW, lr=1e-3, t_loss=lambda p, y: functional.cross_entropy(p, y, label_smoothing=0.1)),
        ),
    ]


def _dropped(rate: float) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for layer in networks.mlp():
        layers += [layer, nn.Dropout(rate)] if isinstance(layer, nn.ReLU) else [layer]
    return layers


def _plain(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.reset_parameters()
    return model


def _zero_branches() -> nn.Module:
    model = networks.resnet()
    for block in model[:2]:
        nn.init.zeros_(block.norm2.weight)
    return model


class _BothWays(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(networks.TOKENS, 32), nn.Linear(64, networks.TOKENS)
        self.layer = nn.LSTM(32, 32, batch_first=True, bidirectional=True)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(self.embedding(tokens))[0])
        return logits


for _name, _kind, _make in _pairs():
    control(_name, _kind)(_make)


@control("an LSTM in both directions, SGD", "rnn")
def both_ways(seed: int) -> Training:
    """It reads tokens on both sides, and is asked for those that are hidden: the next one it would see."""
    training = _of(_BothWays, "rnn", SGD, lr=1.0, t_clip=1.0)(seed)
    shown, generator = training.batch, torch.Generator().manual_seed(seed)

    def batch() -> tuple[Tensor, Tensor]:
        tokens, _ = shown()
        is_hidden = torch.rand(tokens.shape, generator=generator) < 0.3
        return tokens.masked_fill(is_hidden, 0), tokens.masked_fill(~is_hidden, -100)

    training.batch = batch
    return training


@control("restarts of the learning rate", "mlp")
def restarts(seed: int) -> Training:
    training = _of(lambda: networks.mlp(4, nn.Tanh), "mlp", SGD, lr=0.1)(seed)
    schedule = CosineAnnealingWarmRestarts(training.optimizer, 70, eta_min=1e-3)
    training.after_backward.append(lambda step: schedule.step() if step else None)
    training.steps = 220
    return training


def _trained(kind: str, seed: int, steps: int = 120) -> nn.Module:
    """Return a network that was trained unseen."""
    training = base(kind, seed + 100)
    for _ in range(steps):
        x, y = training.batch()
        training.optimizer.zero_grad()
        training.loss(training.model(x), y).backward()
        training.optimizer.step()
    return training.model


@control("fine-tuning a trained network with a head of zeros", "mlp")
def tuned(seed: int) -> Training:
    training = base("mlp", seed)
    training.model = _trained("mlp", seed)
    nn.init.zeros_(training.model[8].weight)
    training.use(AdamW, lr=2e-4)
    return training


@control("fine-tuning with the backbone frozen on purpose", "cnn")
def frozen_backbone(seed: int) -> Training:
    training = base("cnn", seed)
    training.model = _trained("cnn", seed)
    training.model[:-1].requires_grad_(False)
    training.model[-1] = nn.Linear(48, 4)
    training.optimizer = AdamW(training.model[-1].parameters(), lr=1e-3)
    return training


@control("fine-tuning with the lower blocks frozen on purpose", "gpt")
def frozen_blocks(seed: int) -> Training:
    training = base("gpt", seed)
    training.model = _trained("gpt", seed)
    for part in (training.model.token, training.model.place, training.model.blocks[0]):
        part.requires_grad_(False)
    training.use(AdamW, lr=3e-4)
    return training


@control("paths of low rank beside frozen weights (LoRA)", "gpt")
def low_rank(seed: int) -> Training:
    training = base("gpt", seed)
    model = training.model = _trained("gpt", seed).requires_grad_(False)
    for block in model.blocks:
        block.attention.query = networks.LowRank(block.attention.query)
        block.attention.value = networks.LowRank(block.attention.value)
    training.optimizer = AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-3)
    return training


@control("tied weights of embedding and head", "gpt")
def tied(seed: int) -> Training:
    training = base("gpt", seed)
    training.model.head.weight = training.model.token.weight
    training.use(AdamW, lr=1e-3)
    return training


@control("regression", "mlp")
def regression(seed: int) -> Training:
    model = networks.mlp(outputs=1)
    return Training(model, AdamW(model.parameters(), 1e-3), data.lines(seed), functional.mse_loss, steps=200)


@control("regression towards targets of size 100", "mlp")
def large_targets(seed: int) -> Training:
    model = networks.mlp(outputs=1)
    return Training(model, AdamW(model.parameters(), 1e-3), data.lines(seed, scale=100.0), functional.mse_loss, steps=300)


@control("float16 with a GradScaler", "mlp")
def scaled(seed: int) -> Training:
    training = base("mlp", seed)
    training.context = lambda: torch.autocast("cpu", torch.float16)
    training.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    return training


@control("validation beside the training, no overfitting", "mlp")
def validated(seed: int) -> Training:
    training = base("mlp", seed)
    training.validation = training.batch
    training.use(AdamW, lr=1e-3)
    return training


@control("a mask of an image (U-Net)", "unet")
def unet(seed: int) -> Training:
    model = networks.UNet()
    return Training(
        model, AdamW(model.parameters(), 2e-3), data.images(seed, masks=True), functional.binary_cross_entropy_with_logits, 100
    )


@control("an autoencoder", "mlp")
def autoencoder(seed: int) -> Training:
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4), nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 20))
    batch = data.blobs(seed)
    training = Training(model, AdamW(model.parameters(), 2e-3), batch, functional.mse_loss, 200)
    training.spoil = lambda step, x, y: (x, x)
    return training


@control("a variational autoencoder", "vae")
def vae(seed: int) -> Training:
    model, batch = networks.VAE(), data.blobs(seed)

    def loss(found: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        made, mean, log_variance = found
        distance = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        return functional.mse_loss(made, x, reduction="none").sum(1).mean() + 0.5 * distance

    training = Training(model, AdamW(model.parameters(), 2e-3), batch, loss, 200)
    training.spoil = lambda step, x, y: (x, x)
    return training


@control("a generator and a discriminator", "gan")
def gan(seed: int) -> Training:
    generator, critic = networks.mlp(2, inputs=4, outputs=2), networks.mlp(2, lambda: nn.LeakyReLU(0.2), inputs=2, outputs=1)
    both = nn.ModuleDict({"generator": generator, "discriminator": critic})
    one, other = (Adam(part.parameters(), 1e-3, betas=(0.5, 0.99)) for part in (generator, critic))
    draw = torch.Generator().manual_seed(seed)

    def train(step: int) -> Tensor:
        true = torch.randn(64, 2, generator=draw) * 0.5 + 1.0
        made = generator(torch.randn(64, 4, generator=draw))
        other.zero_grad()
        (functional.softplus(-critic(true)).mean() + functional.softplus(critic(made.detach())).mean()).backward()
        other.step()
        one.zero_grad()
        loss = functional.softplus(-critic(made)).mean()
        loss.backward()
        one.step()
        return loss.detach()

    return Training(both, one, lambda: (torch.zeros(()), torch.zeros(())), train=train, steps=150)


@control("a policy gradient with noisy rewards", "mlp")
def policy(seed: int) -> Training:
    training = base("mlp", seed)
    draw = torch.Generator().manual_seed(seed)

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        chances = logits.log_softmax(-1)
        action = torch.multinomial(chances.detach().exp(), 1, generator=draw)[:, 0]
        reward = (action == y).float() + 0.5 * torch.randn(len(y), generator=draw)
        return -(chances[torch.arange(len(y)), action] * (reward - 0.33)).mean()

    training.loss = loss
    training.use(AdamW, lr=1e-3)
    training.steps = 250
    return training


@control("contrastive pairs", "mlp")
def contrastive(seed: int) -> Training:
    model = networks.mlp(2, outputs=16)
    draw = torch.Generator().manual_seed(seed)

    def loss(embedded: Tensor, y: Tensor) -> Tensor:
        one, other = functional.normalize(embedded, dim=-1).chunk(2)
        return of_classes(one @ other.T / 0.2, torch.arange(len(one)))

    training = Training(model, AdamW(model.parameters(), 1e-3), data.blobs(seed), loss)
    training.spoil = lambda step, x, y: (torch.cat([x[:32], x[:32] + 0.3 * torch.randn(32, 20, generator=draw)]), y)
    return training


@control("a teacher and its student", "mlp")
def distilled(seed: int) -> Training:
    training = base("mlp", seed)
    teacher = copy.deepcopy(_trained("mlp", seed)).requires_grad_(False)
    training.spoil = lambda step, x, y: (x, teacher(x))
    training.loss = lambda prediction, aim: functional.kl_div(prediction.log_softmax(-1), aim.softmax(-1), reduction="batchmean")
    training.use(AdamW, lr=1e-3)
    return training


@control("an encoder over patches of images (ViT)", "vit")
def vit(seed: int) -> Training:
    class ViT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 32, 2, 2)
            self.place, self.token = nn.Parameter(torch.zeros(1, 17, 32)), nn.Parameter(torch.zeros(1, 1, 32))
            layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)
            self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
            self.head = nn.Linear(32, 4)
            nn.init.normal_(self.place, std=0.02)

        def forward(self, x: Tensor) -> Tensor:
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.place
            logits: Tensor = self.head(self.encoder(x)[:, 0])
            return logits

    model = ViT()
    return Training(model, AdamW(model.parameters(), 1e-3), data.images(seed), rate=cosine(120), steps=120)


@control("heads without work at first: their weights begin as zero", "gpt")
def zero_heads(seed: int) -> Training:
    training = base("gpt", seed)
    nn.init.zeros_(training.model.head.weight)
    for block in training.model.blocks:
        nn.init.zeros_(block.down.weight)
        nn.init.zeros_(block.attention.out.weight)
    return training


# Trainings that tempt single rules


def _ranked(training: Training) -> Training:
    """Record effective ranks, too."""
    training.lenses = [lens.EffectiveRank(one_in=1)]
    return training


@control("effective ranks of a classifier that converges", "mlp")
def ranked_classifier(seed: int) -> Training:
    training = base("mlp", seed)
    training.steps = 300
    return _ranked(training)


@control("effective ranks of a regression towards one number", "mlp")
def ranked_regression(seed: int) -> Training:
    return _ranked(regression(seed))


@control("effective ranks of a GPT", "gpt")
def ranked_gpt(seed: int) -> Training:
    return _ranked(base("gpt", seed))


@control("effective ranks of contrastive pairs", "mlp")
def ranked_pairs(seed: int) -> Training:
    return _ranked(contrastive(seed))


@control("a training that goes on after it has converged", "mlp")
def resumed(seed: int) -> Training:
    training = base("mlp", seed)
    for _ in range(300):
        x, y = training.batch()
        training.optimizer.zero_grad()
        training.loss(training.model(x), y).backward()
        training.optimizer.step()
    training.steps = 200
    return training


@control("a backbone that is trained from step 60 on", "cnn")
def unfrozen(seed: int) -> Training:
    training = base("cnn", seed)
    training.model = _trained("cnn", seed)
    training.model[-1] = nn.Linear(48, 4)
    training.use(AdamW, lr=1e-3)
    backbone = training.model[:-1].requires_grad_(False)
    training.before.append(lambda step: backbone.requires_grad_(True) if step == 60 else None)
    return training


class _NormedAttention(networks.Attention):
    """Attention whose queries and keys are normalised."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__(width, heads)
        self.q_norm, self.k_norm = nn.LayerNorm(width // heads), nn.LayerNorm(width // heads)
        for layer in (self.query, self.key):
            nn.init.normal_(layer.weight, std=2.0)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, is_causal=True)
        y: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return y


@control("queries and keys that are normalised, from large projections", "gpt")
def normed_queries(seed: int) -> Training:
    training = base("gpt", seed)
    for block in training.model.blocks:
        block.attention = _NormedAttention(32)
    training.use(AdamW, lr=1e-3)
    return training


class _Segmented(networks.GPT):
    """A GPT whose tokens are all of one kind of segment."""

    def __init__(self) -> None:
        super().__init__()
        self.segment = nn.Embedding(2, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.place.weight + self.segment(torch.zeros_like(tokens))
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


@control("one kind of segment beside the tokens", "gpt")
def segments(seed: int) -> Training:
    training = base("gpt", seed)
    training.model = _Segmented()
    training.use(AdamW, lr=1e-3)
    return training


@control("a head of zeros behind a sigmoid, for one number", "mlp")
def zero_regression(seed: int) -> Training:
    training = regression(seed)
    training.model[7] = nn.Sigmoid()
    nn.init.zeros_(training.model[8].weight)
    return training


@control("a learning rate below zero, and maximize=True", "mlp")
def maximized(seed: int) -> Training:
    training = base("mlp", seed)
    training.use(SGD, lr=0.1, maximize=True)
    training.optimizer.param_groups[0]["lr"] = -0.1
    return training


@control("momentum 0.999 at a rate that is lower by as much", "mlp")
def long_momentum(seed: int) -> Training:
    training = base("mlp", seed)
    training.use(SGD, lr=1e-3, momentum=0.999)
    training.steps = 300
    return training


@control("prices: targets of 200,000, and a bias that begins at their mean", "mlp")
def prices(seed: int) -> Training:
    model, batch = nn.Linear(20, 1), data.lines(seed, scale=8e4)
    nn.init.constant_(model.bias, 2e5)
    loss = functional.mse_loss
    return Training(model, SGD(model.parameters(), 0.1), batch, lambda out, y: loss(out, y + 2e5))


@control("an autoencoder of zeros and ones, with a sigmoid at its end", "mlp")
def binary_autoencoder(seed: int) -> Training:
    training = base("mlp", seed)
    training.model = networks.mlp(2, outputs=20).append(nn.Sigmoid())
    training.use(AdamW, lr=3e-3)
    training.loss = functional.mse_loss
    training.spoil = lambda step, x, y: ((x > 0).float(), (x > 0).float())
    training.steps = 300
    return training


@control("a layer is unfrozen at step 40, and the optimizer holds it from the beginning on", "mlp")
def unfrozen_and_held(seed: int) -> Training:
    training = base("mlp", seed)
    layer = training.model[0].requires_grad_(False)
    training.before.append(lambda step: layer.requires_grad_(step >= 40))
    return training
