"""The situations in which a training can be on a device, each a training that ``watch`` or hooks by hand look at, or nobody.

Nothing here is of one kind of accelerator, where it need not be: a device is what ``torch.accelerator`` names, or the CPU. A
situation that a device does not offer says what it needs.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import sonde

STEPS, ROWS, WIDTH = 4, 6, 8

Site = tuple[str, int]
"""Site and step."""


class Block(nn.Module):
    """A layer, two nonlinearities, and a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.relu, self.norm = nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.relu(self.linear(self.norm(x))).tanh()
        return out


class Tower(nn.Module):
    """Two blocks and a head. The blocks may be on two devices, or be run in two streams.

    Attributes:
        devices: of the first block, and of the second and the head.
        streams: in which these run; those after them wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = Block(), Block(), nn.Linear(WIDTH, 3)
        self.devices: tuple[torch.device, torch.device] | None = None
        self.streams: tuple[torch.Stream, torch.Stream] | None = None

    def put(self, first: torch.device, second: torch.device) -> Tower:
        self.first.to(first)
        self.second.to(second)
        self.head.to(second)
        self.devices = first, second
        return self

    def forward(self, x: Tensor) -> Tensor:
        assert self.devices is not None
        if self.streams is None:
            hidden = self.first(x).to(self.devices[1])
            out: Tensor = self.head(self.second(hidden))
            return out
        ahead, behind = self.streams
        now = torch.accelerator.current_stream(self.devices[0])
        ahead.wait_stream(now)
        with ahead:
            hidden = self.first(x)
        behind.wait_stream(ahead)
        with behind:
            out = self.head(self.second(hidden))
        now.wait_stream(behind)
        return out


@dataclass
class Looks:
    """What a training is looked at with.

    Attributes:
        way: ``"watch"``, ``"hooks"``, or nothing.
        kept: by site and step, copies on the host of what hooks by hand have seen.
        rows: by site and step, the numbers that ``watch`` has recorded.
        parameters: of the model, at the end.
        step: that runs, as hooks by hand count.
        scale: of the loss.
    """

    way: str = ""
    kept: dict[Site, Tensor] = field(default_factory=dict)
    rows: dict[Site, dict[str, float]] = field(default_factory=dict)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    step: int = 0
    scale: float = 1.0
    _inspector: sonde.Inspector | None = None
    _model: nn.Module | None = None

    def begin(self, model: nn.Module, optimizer: torch.optim.Optimizer, **how: Any) -> None:
        self._model = model
        if self.way == "watch":
            self._inspector = sonde.watch(model, optimizer, every=1, to="memory", verbose=False, rules=False, **how)
        if self.way == "hooks":
            for name, module in model.named_modules():
                module.register_forward_hook(self._hook(name or "(root)"))
            optimizer.register_step_post_hook(self._stepped)

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            self._keep(f"{name}:output", output)
            if output.requires_grad:
                output.register_hook(lambda gradient: self._keep(f"{name}:grad_output", gradient, self.scale))

        return hook

    def _keep(self, site: str, tensor: Tensor, scale: float = 1.0) -> None:
        self.kept[site, self.step] = tensor.detach().cpu().double() / scale

    def _stepped(self, *_: Any) -> None:
        assert self._model is not None
        for name, parameter in self._model.named_parameters():
            self._keep(f"{name}:param", parameter)
            assert parameter.grad is not None
            self._keep(f"{name}:grad", parameter.grad)
        self.step += 1

    def end(self) -> None:
        """Put what the training has left into the attributes."""
        assert self._model is not None
        self.parameters = {name: parameter.detach().cpu() for name, parameter in self._model.named_parameters()}
        if self._inspector is not None:
            self._inspector.detach()
            names = ("count", "mean", "rms", "absmax", "nan")
            asked = f"SELECT site, step, {', '.join(names)} FROM moments"
            found = self._inspector.run.sql(asked).fetchall()
            self.rows = {(site, step): dict(zip(names, values, strict=True)) for site, step, *values in found}


class NotOfferedError(Exception):
    """The device does not offer a situation; the message says what it needs."""


def batch(step: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the input and the target of a step, the same on every device."""
    drawn = torch.Generator("cpu").manual_seed(step)
    x, y = (torch.randn(ROWS, width, generator=drawn, device="cpu") for width in (WIDTH, 3))
    return x.to(device), y.to(device)


def made(device: torch.device, second: torch.device | None = None) -> Tower:
    torch.manual_seed(0)
    return Tower().put(device, second or device)


def train(
    looks: Looks,
    model: nn.Module,
    device: torch.device,
    *,
    called: Callable[[Tensor], Tensor] | None = None,
    within: Callable[[], AbstractContextManager[Any]] = nullcontext,
    scaler: torch.amp.GradScaler | None = None,
    steps_by: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
) -> None:
    """Train *model* under *looks*, which begin here."""
    optimizer = steps_by(model.parameters(), lr=0.01)
    looks.begin(model, optimizer, **({} if scaler is None else {"scaler": scaler}))
    for step in range(STEPS):
        x, y = batch(step, device)
        optimizer.zero_grad()
        with within():
            out = (model if called is None else called)(x)
            loss = (out.float() - y.to(out.device)).square().mean()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            looks.scale = scaler.get_scale()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()


# Situations


def eager(looks: Looks, device: torch.device) -> None:
    train(looks, made(device), device)


def by_default(looks: Looks, device: torch.device) -> None:
    """Torch makes each new tensor on the device, unless it is told otherwise."""
    torch.set_default_device(device)
    try:
        train(looks, made(device), device)
    finally:
        torch.set_default_device(None)


def scaled(looks: Looks, device: torch.device) -> None:
    """A loss scale, and bfloat16 where torch thinks it right."""
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
    train(looks, made(device), device, within=lambda: torch.autocast(device.type, torch.bfloat16), scaler=scaler)


def fused_optimizer(looks: Looks, device: torch.device) -> None:
    """One kernel steps all parameters, and skips by itself where a gradient is not finite."""
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
    train(looks, made(device), device, scaler=scaler, steps_by=partial(torch.optim.SGD, fused=True))


def _compiled(looks: Looks, device: torch.device, **how: Any) -> None:
    model = made(device)
    train(
        looks, model, device, called=model if looks.way == "hooks" else torch.compile(model, **how)
    )  # the hooks are in eager code


def aot_eager(looks: Looks, device: torch.device) -> None:
    _compiled(looks, device, backend="aot_eager")


def inductor(looks: Looks, device: torch.device) -> None:
    if device.type not in ("cpu", "cuda", "xpu", "mps"):
        raise NotOfferedError(f"inductor has no code for {device.type}")
    _compiled(looks, device, backend="inductor")


def cuda_graphs_of_inductor(looks: Looks, device: torch.device) -> None:
    """The compiled code is recorded, and replayed where nothing in it forbids that."""
    if device.type != "cuda":
        raise NotOfferedError("CUDA graphs need a device of CUDA")
    _compiled(looks, device, mode="reduce-overhead")


def captured_step(looks: Looks, device: torch.device) -> None:
    """A whole step is recorded as a CUDA graph and replayed, after steps that were run plainly.

    Python does not run in a replayed graph: of those steps nothing is recorded, and the training has the same bits.
    """
    if device.type != "cuda":
        raise NotOfferedError("CUDA graphs need a device of CUDA")
    model = made(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, capturable=True)
    looks.begin(model, optimizer)
    x, y = batch(0, device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        (model(x) - y).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for number in range(STEPS):
            for given, new in zip((x, y), batch(number, device), strict=True):
                given.copy_(new)
            step()
    torch.cuda.current_stream(device).wait_stream(side)
    if looks.way == "hooks":  # they copy to the host at once, which no graph can hold
        return
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for number in range(STEPS, 2 * STEPS):
        for given, new in zip((x, y), batch(number, device), strict=True):
            given.copy_(new)
        graph.replay()


def _streams(device: torch.device) -> tuple[torch.Stream, torch.Stream]:
    if device.type == "cpu":
        raise NotOfferedError("the CPU has no streams")
    try:
        return torch.Stream(device), torch.Stream(device)
    except (RuntimeError, NotImplementedError) as error:
        raise NotOfferedError(f"{device.type} has no streams: {error}") from error


def side_stream(looks: Looks, device: torch.device) -> None:
    """The whole training is in a stream that is not the default one."""
    stream, _ = _streams(device)
    model = made(device)
    stream.wait_stream(torch.accelerator.current_stream(device))
    with stream:
        train(looks, model, device)
    torch.accelerator.current_stream(device).wait_stream(stream)


def two_streams(looks: Looks, device: torch.device) -> None:
    """Each half of the model has a stream of its own."""
    model = made(device)
    model.streams = _streams(device)
    train(looks, model, device)


def host_and_device(looks: Looks, device: torch.device) -> None:
    """The first half of the model is on the CPU, the other on the device."""
    train(looks, made(torch.device("cpu"), device), torch.device("cpu"))


def two_devices(looks: Looks, device: torch.device) -> None:
    """Each half of the model is on a device of its own."""
    if device.type == "cpu" or torch.accelerator.device_count() < 2:
        raise NotOfferedError("two accelerators of one kind")
    first, second = (torch.device(device.type, index) for index in range(2))
    train(looks, made(first, second), first)


SITUATIONS: tuple[Callable[[Looks, torch.device], None], ...] = (
    eager,
    by_default,
    scaled,
    fused_optimizer,
    aot_eager,
    inductor,
    cuda_graphs_of_inductor,
    captured_step,
    side_stream,
    two_streams,
    host_and_device,
    two_devices,
)
COMPILED = (aot_eager, inductor, cuda_graphs_of_inductor)
SLOW = (inductor,)


def looked_at(situation: Callable[[Looks, torch.device], None], device: torch.device, way: str) -> Looks:
    """Return what a training in *situation* has left."""
    looks = Looks(way)
    torch.compiler.reset()
    gc.collect()
    situation(looks, device)
    looks.end()
    return looks
