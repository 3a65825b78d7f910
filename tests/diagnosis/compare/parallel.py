"""A small language model, written for one process and for ranks by hand, and faults of parallel code that can be planted in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import sonde

VOCABULARY, WIDTH, HEADS, LAYERS, TIME, SAMPLES = 24, 16, 4, 2, 6, 8


class Summed(torch.autograd.Function):
    """The sum over the ranks; its gradient is that of each addend."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


class Shared(torch.autograd.Function):
    """The tensor itself; its gradient is the sum of those of all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class Gathered(torch.autograd.Function):
    """Positions of all ranks; the gradient is summed and divided again, or only divided."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sums: bool) -> Tensor:  # type: ignore[override]
        ctx.sums = sums
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        gradient = gradient.clone()
        if ctx.sums:
            dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size(), 1)[dist.get_rank()].clone(), None


class Scattered(torch.autograd.Function):
    """The sum over the ranks, of which each keeps its positions; the gradient is gathered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        x = x.clone()
        dist.all_reduce(x)
        return x.chunk(dist.get_world_size(), 1)[dist.get_rank()].clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        parts = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, gradient.contiguous())
        return torch.cat(parts, 1)


class Cut(torch.autograd.Function):
    """The positions of this rank; the gradient is gathered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return x.chunk(dist.get_world_size(), 1)[dist.get_rank()].clone()

    backward = Scattered.backward


class Row(nn.Linear):
    """A linear layer of which each rank has some inputs; the bias comes behind the sum."""

    join: Any = staticmethod(Summed.apply)
    early_bias = False

    def forward(self, x: Tensor) -> Tensor:
        if self.early_bias:
            return self.join(functional.linear(x, self.weight, self.bias))
        return self.join(functional.linear(x, self.weight)) + self.bias


class Embedding(nn.Embedding):
    """An embedding of which each rank has some rows."""

    first, wrong = 0, False

    def forward(self, tokens: Tensor) -> Tensor:
        own = tokens - self.first
        outside = (own < 0) | (own >= self.num_embeddings)
        found = functional.embedding(own.clamp(0, self.num_embeddings - 1), self.weight)
        if not self.wrong:
            found = found.masked_fill(outside[..., None], 0.0)
        return Summed.apply(found)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.up, self.act, self.down = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 2 * WIDTH),
            nn.GELU(),
            nn.Linear(2 * WIDTH, WIDTH),
        )
        self.enter: Callable[[Tensor], Tensor] = lambda x: x
        self.again = False

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.enter(self.norm1(x)))
        if self.again:
            return x + checkpoint(self.feed, self.enter(self.norm2(x)), use_reentrant=False)
        return x + self.feed(self.enter(self.norm2(x)))

    def feed(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))


class Lm(nn.Module):
    """The model. A stage of a pipeline lacks the layers of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.embed: nn.Module | None = nn.Embedding(VOCABULARY, WIDTH)
        self.position: nn.Module | None = nn.Embedding(TIME, WIDTH)
        self.blocks = nn.ModuleDict({str(number): Block() for number in range(LAYERS)})
        self.norm: nn.Module | None = nn.LayerNorm(WIDTH)
        self.head: nn.Module | None = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.first = 0
        self.cut: Callable[[Tensor], Tensor] = lambda x: x
        self.leave: Callable[[Tensor], Tensor] = lambda x: x

    def forward(self, x: Tensor) -> Tensor:
        if self.embed is not None and self.position is not None:
            x = self.cut(self.embed(x))
            x = x + self.position(torch.arange(self.first, self.first + x.shape[1]))
        for block in self.blocks.values():
            x = block(x)
        if self.norm is None or self.head is None:
            return x
        return self.head(self.leave(self.norm(x)))


def lm(seed: int = 0, *, tied: bool = False) -> Lm:
    torch.manual_seed(seed)
    model = Lm()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:  # weights that are not all alike
                parameter.add_(0.3 * torch.randn_like(parameter))
    if tied:
        model.head.weight = model.embed.weight  # type: ignore[union-attr, assignment]
    return model


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    drawn = torch.randint(VOCABULARY, (SAMPLES, TIME + 1), generator=generator)
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def loss_of(y: Tensor, wanted: Tensor) -> Tensor:
    return functional.cross_entropy(y.flatten(0, 1), wanted.flatten())


def share(of: int, at: int) -> tuple[Tensor, Tensor]:
    x, y = (part.chunk(of)[at] for part in batch())
    return x, y


def kept(
    model: nn.Module, run: Callable[[], object], folder: Path, *, after: Callable[[], object] | None = None, **options: Any
) -> None:
    """Track one step and save it; *after* runs behind the step and is not measured."""
    ports = ("input", "output", "grad_output")
    with sonde.track(model, ports=ports) as tracker:
        run()
        tracker.measure_rounding(run)
        if after is not None:
            after()
    tracker.save(folder, parameters=True, **options)


def single(folder: Path, *, tied: bool = False, stepped: bool = False, clipped: bool = False) -> None:
    model = lm(tied=tied)
    x, y = batch()

    def after() -> None:
        if clipped:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if stepped:
            torch.optim.Adam(model.parameters(), lr=1e-2).step()

    kept(model, lambda: loss_of(model(x), y).backward(), folder / "single", after=after)


# Ranks


def own(folder: Path) -> Path:
    return folder / "ranks" / f"rank{dist.get_rank()}"


def data_parallel(folder: Path, fault: str) -> None:
    rank, of = dist.get_rank(), dist.get_world_size()
    model = lm(rank if fault == "own weights" else 0)
    x, y = share(of, 0 if fault == "same samples" else rank)
    options: dict[str, Any] = {}
    if fault == "strided":
        x, y = (part[rank::of] for part in batch())
        options["ids"] = list(range(rank, SAMPLES, of))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def run() -> None:
        parts = 2 if "accumulated" in fault else 1
        for inputs, wanted in zip(x.chunk(parts), y.chunk(parts), strict=True):
            loss = loss_of(model(inputs), wanted)
            (loss if fault == "accumulated, not divided" else loss / parts).backward()
        for name, parameter in model.named_parameters():
            if fault == "one left out" and name == "blocks.1.up.weight":
                continue
            dist.all_reduce(parameter.grad)
            if fault != "summed":
                parameter.grad /= of  # type: ignore[operator]

    def after() -> None:
        if fault in ("stepped", "not sent"):
            optimizer.step()
            for number, parameter in enumerate(model.parameters()):  # each rank steps some parameters, and sends them
                if number % of != rank:
                    parameter.data.copy_(lm().get_parameter([name for name, _ in model.named_parameters()][number]))
                if not (fault == "not sent" and number == 8):
                    dist.broadcast(parameter.data, number % of)
        if fault.startswith("clipped"):
            if fault == "clipped by a norm of all ranks":
                squares = sum((held.grad.square().sum() for held in model.parameters()), torch.zeros(()))  # type: ignore[union-attr]
                dist.all_reduce(squares)  # of equal gradients: twice as much
                factor = 0.1 / (squares.sqrt() + 1e-6)
                for held in model.parameters():
                    held.grad *= factor  # type: ignore[operator]
            else:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    kept(model, run, own(folder), after=after, **options)


def ddp(folder: Path, fault: str) -> None:
    model = DistributedDataParallel(lm())
    x, y = share(dist.get_world_size(), dist.get_rank())
    kept(model, lambda: loss_of(model(x), y).backward(), own(folder))


def fsdp(folder: Path, fault: str) -> None:
    model = lm()
    for block in model.blocks.values():
        fully_shard(block)
    fully_shard(model)
    x, y = share(dist.get_world_size(), dist.get_rank())
    kept(model, lambda: loss_of(model(x), y).backward(), own(folder))


def dtensors(folder: Path, fault: str) -> None:
    model = lm()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks.values():
        plan = {f"attention.{name}": ColwiseParallel() for name in "qkv"}
        parallelize_module(
            block, mesh, plan | {"attention.out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
        )
    x, y = batch()
    kept(model, lambda: loss_of(model(x), y).backward(), own(folder))


def two_dimensions(folder: Path, fault: str) -> None:
    model = lm()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for block in model.blocks.values():
        plan = {f"attention.{name}": ColwiseParallel() for name in "qkv"}
        parallelize_module(
            block, mesh["tp"], plan | {"attention.out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
        )
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    x, y = share(2, mesh["dp"].get_local_rank())
    kept(model, lambda: loss_of(model(x), y).backward(), own(folder))


def sequence_parallel(folder: Path, fault: str) -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import PrepareModuleInput

    model = lm()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks.values():
        parallelize_module(
            block,
            mesh,
            {
                "norm1": SequenceParallel(),
                "norm2": SequenceParallel(),
                "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
                "attention.q": ColwiseParallel(),
                "attention.k": ColwiseParallel(),
                "attention.v": ColwiseParallel(),
                "attention.out": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
                "up": ColwiseParallel(input_layouts=Shard(1)),
                "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
            },
        )
    parallelize_module(
        model,
        mesh,
        {
            "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate()),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        },
    )
    from torch.distributed.tensor import DTensor

    model.position = nn.Embedding.from_pretrained(model.position.weight.detach(), freeze=False)  # type: ignore[union-attr]
    model.blocks["0"].register_forward_pre_hook(
        lambda module, args: (DTensor.from_local(args[0], mesh, [Replicate()]).redistribute(mesh, [Shard(1)]),)
    )
    x, y = batch()
    kept(model, lambda: loss_of(model(x), y).backward(), own(folder))


def by_hand(folder: Path, fault: str) -> None:
    """Tensor parallel layers of plain tensors, with positions divided between them if *fault* speaks of these."""
    rank, of = dist.get_rank(), dist.get_world_size()
    model = lm()
    split = "positions" in fault
    if fault == "replicas differ" and rank:
        torch.manual_seed(5)
        model.blocks["1"].norm2.weight.data += 0.1 * torch.randn(WIDTH)  # type: ignore[union-attr, operator]

    def part(tensor: Tensor, axis: int) -> nn.Parameter:
        return nn.Parameter(tensor.detach().chunk(of, axis)[rank].clone())

    for number, block in model.blocks.items():
        faulty = number == "1"
        attention: Any = block.attention
        for layer in (attention.q, attention.k, attention.v, block.up):
            layer.weight, layer.bias = part(layer.weight, 0), part(layer.bias, 0)
        for parent, name in ((attention, "out"), (block, "down")):
            old = getattr(parent, name)
            new = Row(WIDTH, WIDTH)
            new.weight, new.bias = part(old.weight, 1), old.bias
            new.join = Scattered.apply if split else Summed.apply
            if faulty and name == "down":
                new.early_bias = fault == "bias on each rank"
                if fault == "not summed":
                    new.join = lambda x: x
            setattr(parent, name, new)
        block.enter = (lambda x: Gathered.apply(x, True)) if split else Shared.apply  # type: ignore[assignment]
        if faulty and fault == "gradient not summed":
            block.enter = lambda x: x
        if faulty and fault == "positions, gradient not summed":
            block.enter = lambda x: Gathered.apply(x, False)  # type: ignore[assignment]
    embed = Embedding(VOCABULARY // of, WIDTH)
    embed.weight, embed.first = part(model.embed.weight, 0), rank * VOCABULARY // of  # type: ignore[union-attr]
    embed.wrong = fault == "mask of the vocabulary"
    model.embed = embed
    if split:
        model.cut = Cut.apply  # type: ignore[assignment]
        model.first = 0 if fault == "positions from 0" else rank * TIME // of
        model.leave = lambda x: Gathered.apply(x, False)  # type: ignore[assignment]
    x, y = batch()

    def run() -> None:
        loss_of(model(x), y).backward()
        if split:
            for name, parameter in model.named_parameters():
                shared = "norm" in name or "position" in name or name.endswith(("out.bias", "down.bias"))
                if shared and not (fault == "positions, norms not summed" and "blocks.1.norm" in name):
                    dist.all_reduce(parameter.grad)

    kept(model, run, own(folder))


MICRO = 4


def pipeline(folder: Path, fault: str) -> None:
    rank, of = dist.get_rank(), dist.get_world_size()
    model = lm(tied="tied" in fault)
    if "tied" in fault:  # each stage has a copy of its own
        model.head.weight = nn.Parameter(model.embed.weight.detach().clone())  # type: ignore[union-attr]
        if fault == "tied, stale":
            torch.manual_seed(3)
            model.head.weight.data += 0.05 * torch.randn(VOCABULARY, WIDTH)  # type: ignore[union-attr, operator]
    if rank == 0:
        del model.blocks["1"]
        model.norm = model.head = None
    else:
        if fault == "block twice":
            del model.blocks["1"]
        else:
            del model.blocks["0"]
        model.embed = model.position = None
    stage = PipelineStage(model, rank, of, torch.device("cpu"))
    kind = ScheduleGPipe if "GPipe" in fault else Schedule1F1B
    schedule = kind(stage, MICRO, loss_fn=loss_of, scale_grads=fault != "not scaled")
    x, y = batch()

    def run() -> None:
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y)
        if fault.startswith("tied") and fault != "tied, gradient not summed":
            weight: Any = model.embed.weight if rank == 0 else model.head.weight  # type: ignore[union-attr]
            dist.all_reduce(weight.grad)

    kept(model, run, own(folder))


def recomputed(folder: Path, fault: str) -> None:
    """Data parallel, and the second block is computed again in the backward pass."""
    rank, of = dist.get_rank(), dist.get_world_size()
    model = lm()
    block: Any = model.blocks["1"]
    block.again = True
    x, y = share(of, rank)

    def run() -> None:
        loss = loss_of(model(x), y)
        if fault == "another scale":
            before = block.up.weight.detach().clone()
            block.up.weight.data.mul_(1.01)  # as a step that overlaps the backward pass
        loss.backward()
        if fault == "another scale":
            block.up.weight.data.copy_(before)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= of  # type: ignore[operator]

    kept(model, run, own(folder))


# A model of transformers


def llama() -> Any:
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64, vocab_size=40
    )
    return transformers.LlamaForCausalLM(config).train()


def llama_batch() -> Tensor:
    return torch.randint(40, (8, 7), generator=torch.Generator().manual_seed(1))


def save_llama(model: Any, batch: Tensor, folder: Path, samples: Any = None, scale: float = 1.0) -> None:
    """Save a step, its parameters, and what rounding moves."""

    def step() -> None:
        (model(input_ids=batch, labels=batch, use_cache=False).loss * scale).backward()

    with sonde.track(model, ports=("input", "output", "grad_output")) as tracker:
        step()
        tracker.measure_rounding(step)
    tracker.save(folder, parameters=True, **({} if samples is None else {"ids": samples}))
    model.zero_grad(set_to_none=True)


class OfOwnColumns(nn.Module):
    """A row-parallel layer whose output nobody sums."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(layer.weight.to_local().detach())

    def forward(self, x: Any) -> Tensor:
        return functional.linear(x.to_local() if hasattr(x, "to_local") else x, self.weight)


def llama_on_ranks(folder: Path, how: str, fault: str) -> None:
    """Save what this rank holds of a Llama: under FSDP2 with samples of its own, or under tensor parallelism."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model, batch, samples = llama(), llama_batch(), None
    layers = model.model.layers
    if how == "shards":
        samples = range(rank, len(batch), size)
        for part in (*layers, model):
            fully_shard(part)
        batch = batch[list(samples)]
        if fault == "stale" and rank == 1:
            with torch.no_grad():
                layers[1].mlp.down_proj.weight.to_local().mul_(1.5)
    else:
        columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
        rows = ("self_attn.o_proj", "mlp.down_proj")
        for layer in layers:
            plan = dict.fromkeys(columns, ColwiseParallel()) | dict.fromkeys(rows, RowwiseParallel())
            parallelize_module(layer, init_device_mesh("cpu", (size,)), plan)
        if fault == "not summed":
            layers[1].mlp.down_proj = OfOwnColumns(layers[1].mlp.down_proj)
        if fault == "stale norm" and rank == 1:
            with torch.no_grad():
                layers[1].input_layernorm.weight.mul_(1.5)
    save_llama(model, batch, folder / str(rank), samples, 2.0 if fault == "scaled" else 1.0)
