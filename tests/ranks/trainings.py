"""Trainings on several ranks, each as its users write it: how the model is wrapped, which rank gets what, how a step goes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

STEPS, SAMPLES, WIDTH, CLASSES, LAYERS = 2, 16, 16, 3, 2
"""Three classes: the last layer is cut unevenly on two ranks, and one of four ranks has nothing of it."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.act, self.down = nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(self.norm(x))))


class Net(nn.Module):
    """A small network that can be cut into stages: a stage lacks the layers of the others, and keeps the names of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed: nn.Module | None = nn.Linear(8, WIDTH)
        self.blocks = nn.ModuleDict({str(number): Block() for number in range(LAYERS)})
        self.head: nn.Module | None = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        if self.embed is not None:
            x = self.embed(x)
        for block in self.blocks.values():
            x = block(x)
        return x if self.head is None else self.head(x)


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net().double()


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Return the joined batch of a step: what all ranks see together."""
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.randn(SAMPLES, 8, generator=generator, dtype=torch.float64)
    return x, torch.randint(CLASSES, (SAMPLES,), generator=generator)


def sgd(parameters: Any, **more: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, **more)


@dataclass
class Training:
    """One rank's part of a training.

    Attributes:
        model: as the rank runs and watches it.
        optimizer: of the rank.
        share: which of how many equal parts of the batch the rank gets.
        accumulate: into how many micro-batches the rank divides its part.
        last_only: called with whether a micro-batch is the last one; gives the block in which the micro-batch runs.
        run: runs the forward and backward passes of one step in another way; returns the loss, or None where the rank has none.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    share: tuple[int, int]
    accumulate: int = 1
    last_only: Callable[[bool], Any] = field(default=lambda last: contextlib.nullcontext())
    run: Callable[[Tensor, Tensor], Tensor | None] | None = None

    def step(self, step: int) -> Tensor | None:
        """Train one step; return the loss of this rank's part."""
        x, y = (part.chunk(self.share[1])[self.share[0]] for part in batch(step))
        self.optimizer.zero_grad()
        loss = self._accumulated(x, y) if self.run is None else self.run(x, y)
        self.optimizer.step()
        return loss

    def _accumulated(self, x: Tensor, y: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        parts = list(zip(x.chunk(self.accumulate), y.chunk(self.accumulate), strict=True))
        for number, (inputs, labels) in enumerate(parts):
            with self.last_only(number == len(parts) - 1):
                loss = nn.functional.cross_entropy(self.model(inputs), labels) / len(parts)
                loss.backward()
            total += loss.detach()
        return total


def _own_share() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def one_process() -> Training:
    model = net()
    return Training(model, sgd(model.parameters()), (0, 1))


def plain() -> Training:
    """Ranks that share nothing but the batch."""
    model = net(dist.get_rank())
    return Training(model, sgd(model.parameters()), _own_share())


def local_sgd() -> Training:
    """Equal models that each rank trains on its own batch, and that are averaged between steps."""
    model = net()
    training = Training(model, sgd(model.parameters()), _own_share())
    steps = iter(range(STEPS))

    def run(x: Tensor, y: Tensor) -> Tensor:
        for parameter in model.parameters() if next(steps) else ():
            dist.all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss.detach()

    training.run = run
    return training


def averaged_by_hand() -> Training:
    """Equal models, whose gradients the loop averages."""
    model = net()
    training = Training(model, sgd(model.parameters()), _own_share())

    def run(x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        return loss.detach()

    training.run = run
    return training


def ddp(accumulate: int = 1, zero: bool = False, compiled: bool = False, **options: Any) -> Training:
    model: Any = DistributedDataParallel(net(), **options)
    if compiled:
        model.compile(backend="aot_eager")
    optimizer: Any = sgd(model.parameters())
    if zero:
        from torch.distributed.optim import ZeroRedundancyOptimizer  # warns of torch's own deprecations

        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    return Training(model, optimizer, _own_share(), accumulate, lambda last: contextlib.nullcontext() if last else model.no_sync())


def _sharded(model: nn.Module, **options: Any) -> nn.Module:
    for block in model.blocks.values():  # type: ignore[union-attr, operator]
        fully_shard(block, **options)
    return fully_shard(model, **options)


def fsdp(
    accumulate: int = 1,
    checkpoint: bool | None = None,
    half: bool = False,
    compiled: bool = False,
    evaluated: bool = False,
    **options: Any,
) -> Training:
    """FSDP2. *checkpoint*: whether blocks are checkpointed reentrantly. *compiled*: each block. *evaluated*: before each step."""
    model: Any = net().float() if half else net()
    if compiled:
        for block in model.blocks.values():
            block.compile(backend="aot_eager")
    if checkpoint is not None:
        kind = checkpoint_wrapper.CheckpointImpl.REENTRANT if checkpoint else checkpoint_wrapper.CheckpointImpl.NO_REENTRANT
        for name, block in list(model.blocks.items()):
            model.blocks[name] = checkpoint_wrapper.checkpoint_wrapper(block, checkpoint_impl=kind)
    if half:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    _sharded(model, **options)

    @contextlib.contextmanager
    def last_only(last: bool) -> Iterator[None]:
        model.set_requires_gradient_sync(last)
        yield

    training = Training(model, sgd(model.parameters()), _own_share(), accumulate, last_only)
    if evaluated:
        _evaluate(model)

        def run(x: Tensor, y: Tensor) -> Tensor:
            _evaluate(model)
            return _backward(nn.functional.cross_entropy(model(x), y))

        training.run = run
    if half:
        training.run = lambda x, y: _backward(nn.functional.cross_entropy(model(x.float()).float(), y))
    return training


def _evaluate(model: nn.Module) -> None:
    """Run a forward that no backward follows: the root's parameters stay gathered."""
    model.eval()
    with torch.no_grad():
        model(batch(0)[0])
    model.train()
    assert not any(hasattr(parameter, "device_mesh") for parameter in model.head.parameters())  # type: ignore[union-attr, operator]


def _backward(loss: Tensor) -> Tensor:
    loss.backward()
    return loss.detach()


def hsdp() -> Training:
    return fsdp(mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))


def _parallel_blocks(model: Net, mesh: Any) -> None:
    for block in model.blocks.values():
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def tensor_parallel() -> Training:
    model = net()
    _parallel_blocks(model, init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",)))
    return Training(model, sgd(model.parameters(), foreach=False), (0, 1))


def fsdp_and_tensor_parallel() -> Training:
    model = net()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    _parallel_blocks(model, mesh["tp"])
    _sharded(model, mesh=mesh["dp"])
    return Training(model, sgd(model.parameters(), foreach=False), (mesh["dp"].get_local_rank(), 2))


MICRO_BATCHES = 4


def pipeline(schedule: type[ScheduleGPipe | Schedule1F1B], data_parallel: bool = False) -> Training:
    """Two stages of one block each; each stage keeps the names of the whole model."""
    stages = 2
    mesh = init_device_mesh("cpu", (dist.get_world_size() // stages, stages), mesh_dim_names=("dp", "pp"))
    stage = mesh["pp"].get_local_rank()
    model = net()
    del model.blocks[str(1 - stage)]
    if stage == 0:
        model.head = None
    else:
        model.embed = None
    wrapped: nn.Module = DistributedDataParallel(model, process_group=mesh["dp"].get_group()) if data_parallel else model
    piped = PipelineStage(wrapped, stage, stages, torch.device("cpu"), group=mesh["pp"].get_group())
    made = schedule(piped, MICRO_BATCHES, loss_fn=nn.functional.cross_entropy)

    def run(x: Tensor, y: Tensor) -> Tensor | None:
        losses: list[Tensor] = []
        if stage == 0:
            made.step(x)
            return None
        made.step(target=y, losses=losses)
        return torch.stack(losses).mean().detach()

    training = Training(wrapped, sgd(model.parameters()), (mesh["dp"].get_local_rank(), mesh["dp"].size()))
    training.run = run
    return training


TRAININGS: dict[str, tuple[int, Callable[[], Training]]] = {
    "one process": (1, one_process),
    "plain ranks": (2, plain),
    "local SGD": (2, local_sgd),
    "gradients averaged by hand": (2, averaged_by_hand),
    "DDP": (2, ddp),
    "DDP, accumulation": (2, partial(ddp, accumulate=2)),
    "DDP, ZeRO": (2, partial(ddp, zero=True)),
    "DDP, buckets are gradients": (2, partial(ddp, gradient_as_bucket_view=True, static_graph=True)),
    "DDP, compiled": (2, partial(ddp, compiled=True)),
    "FSDP2": (2, fsdp),
    "FSDP2, 4 ranks": (4, fsdp),
    "FSDP2, accumulation": (2, partial(fsdp, accumulate=2)),
    "FSDP2, bfloat16": (2, partial(fsdp, half=True)),
    "FSDP2, checkpoint": (2, partial(fsdp, checkpoint=False)),
    "FSDP2, reentrant checkpoint": (2, partial(fsdp, checkpoint=True)),
    "FSDP2, parameters stay gathered": (2, partial(fsdp, reshard_after_forward=False)),
    "FSDP2, evaluated before each step": (2, partial(fsdp, evaluated=True)),
    "FSDP2, compiled blocks": (2, partial(fsdp, compiled=True)),
    "HSDP, 2 × 2": (4, hsdp),
    "tensor parallel": (2, tensor_parallel),
    "FSDP2 × tensor parallel, 2 × 2": (4, fsdp_and_tensor_parallel),
    "pipeline, GPipe": (2, partial(pipeline, ScheduleGPipe)),
    "pipeline, 1F1B": (2, partial(pipeline, Schedule1F1B)),
    "pipeline × DDP, 2 × 2": (4, partial(pipeline, Schedule1F1B, data_parallel=True)),
}
"""Of each training its number of ranks, and what each rank builds."""
