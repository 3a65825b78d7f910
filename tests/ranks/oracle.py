"""The same trainings in one process on the joined batch, measured with hooks of plain torch: what each row of a run has to say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from tests.bounds import relative
from tests.ranks.trainings import MICRO_BATCHES, STEPS, TRAININGS, batch, net, sgd
from torch import Tensor, nn

Seen = dict[str, list[Tensor]]
"""Of each site the tensors of one step."""

MODULE_PORTS = ("input", "output", "grad_output")
PARAMETER_PORTS = ("grad", "param", "update")


ROUNDINGS = STEPS * 2 * 10 * 64
"""Of one number after another: steps, forward and backward, layers, products in a sum."""

AMPLIFIED = 1e4
"""How much a rounding may grow through cancellation, layer by layer. A tensor that is counted twice, or on too few ranks, or a
missing factor, changes a number by a hundredth or more, a million times this bound."""

EXACT = AMPLIFIED * relative(ROUNDINGS)
HALF = 0.05
"""In bfloat16, whose roundings are 2^-9, gradients are rounded once per rank and once in one process, layer by layer. A tensor that
is counted twice changes a norm by 0.4."""

TOLERANCE = {name: HALF if "bfloat16" in name else EXACT for name in TRAININGS}
"""Of each training the largest difference to the oracle, as a share of the size of the tensor."""


@dataclass(frozen=True)
class Row:
    """What the run has to hold for one site at one step.

    Attributes:
        tensors: whose elements are in the row.
        rank: that writes the row.
        ranks: how many ranks' tensors are in the row.
        scope: what the row speaks of.
    """

    tensors: list[Tensor]
    rank: int = 0
    ranks: int = 1
    scope: str = "global"

    def numbers(self) -> dict[str, float]:
        """Return the numbers of ``Moments`` by their definitions."""
        x = torch.cat([tensor.double().flatten() for tensor in self.tensors])
        return {
            "count": x.numel(),
            "zeros": int((x == 0).sum()),
            "mean": x.mean().item(),
            "std": x.std(correction=0).item(),
            "rms": x.square().mean().sqrt().item(),
            "norm": x.norm().item(),
            "min": x.min().item(),
            "max": x.max().item(),
            "absmax": x.abs().max().item(),
        }

    def powers(self) -> dict[int, int]:
        """Return how many elements have each power: of x the e with ``2**(e - 1) < |x| <= 2**e``. Zeros have none."""
        x = torch.cat([tensor.double().flatten() for tensor in self.tensors])
        mantissas, powers = torch.frexp(x[x != 0].abs())
        found = (powers - (mantissas == 0.5).int()).unique(return_counts=True)
        return dict(zip(*(part.tolist() for part in found), strict=True))


class _Hooks:
    """Hooks that keep every input, output and gradient at an output."""

    def __init__(self, model: nn.Module) -> None:
        self.seen: Seen = {}
        self.handles = [
            module.register_forward_hook(self._hook(name or "(root)"))
            for name, module in model.named_modules()
            if type(module) is not nn.ModuleDict
        ]

    def _hook(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            self._keep(f"{name}:input", args[0])
            self._keep(f"{name}:output", output)
            output.register_hook(lambda gradient: self._keep(f"{name}:grad_output", gradient))

        return hook

    def _keep(self, site: str, tensor: Tensor) -> None:
        self.seen.setdefault(site, []).append(tensor.detach().clone())


def trained(
    model: nn.Module,
    share: tuple[int, int] = (0, 1),
    *,
    steps: int = STEPS,
    half: bool = False,
    begins: Sequence[Mapping[str, Tensor]] = (),
) -> tuple[list[Seen], list[float]]:
    """Train *model* on a share of the batch; return what hooks saw at each step, and the losses.

    Args:
        model: is trained.
        share: which of how many equal parts of the joined batch.
        steps: how many.
        half: compute in bfloat16, on a copy of the parameters that the optimizer changes.
        begins: the parameters with which the second step and those after it begin, in place of what the step before has left.
    """
    optimizer = sgd(model.parameters())
    found, losses = [], []
    for step in range(steps):
        x, y = (part.chunk(share[1])[share[0]] for part in batch(step))
        optimizer.zero_grad()
        for name, value in begins[step - 1].items() if 0 < step <= len(begins) else ():
            model.get_parameter(name).data.copy_(value)
        run = model
        if half:
            run = net().bfloat16()
            run.load_state_dict(model.state_dict())
            x = x.bfloat16()
        hooks = _Hooks(run)
        out = run(x)
        loss = nn.functional.cross_entropy(out.float() if half else out, y)
        loss.backward()
        for parameter, used in zip(model.parameters(), run.parameters(), strict=True):
            assert used.grad is not None
            parameter.grad = used.grad.to(parameter.dtype)
        seen = hooks.seen
        for handle in hooks.handles:
            handle.remove()
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            seen[f"{name}:grad"] = [parameter.grad.clone()]
        optimizer.step()
        for name, parameter in model.named_parameters():
            seen[f"{name}:param"] = [parameter.detach().clone()]
            seen[f"{name}:update"] = [parameter.detach() - before[name]]
        found.append(seen)
        losses.append(loss.item())
    return found, losses


Rows = dict[str, list[Row]]
"""Of each site the rows of one step."""


@dataclass(frozen=True)
class Expected:
    """What a run has to hold: of each step its rows, and its scalars, in the order of the ranks that write them."""

    rows: list[Rows]
    scalars: list[dict[str, list[float]]]


def expected(name: str, ranks: int) -> Expected:
    """Return what the run of a training has to hold, by its name in ``TRAININGS``."""
    if name == "plain ranks":
        return _of_own_models([trained(net(rank), (rank, ranks)) for rank in range(ranks)])
    if name == "local SGD":
        return _of_own_models(_averaged_between_steps(ranks))
    seen, losses = trained(net().float() if "bfloat16" in name else net(), half="bfloat16" in name)
    rows = [{site: _rows(name, ranks, site, tensors) for site, tensors in one.items()} for one in seen]
    if "pipeline" in name:
        for step, one in enumerate(rows):
            one |= {f"(root):{port}": _of_stages(ranks, seen[step], port) for port in MODULE_PORTS}
    scalars = [_scalars(one, loss) for one, loss in zip(seen, losses, strict=True)]
    if "pipeline" in name:
        for one in scalars:
            one["grad_norm_raw"][0] *= MICRO_BATCHES  # the schedule divides gradients after the last backward pass
    if "by hand" in name:
        for step, one in enumerate(seen):
            scalars[step]["grad_norm_raw"] = [_before_averaging(one, step, (rank, ranks)) for rank in range(ranks)]
    return Expected(rows, scalars)


def _before_averaging(seen: Seen, step: int, share: tuple[int, int]) -> float:
    """Return the norm of a rank's gradients at the end of its backward pass, before the loop averages them."""
    model = net()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(seen[f"{name}:param"][0] - seen[f"{name}:update"][0])
    x, y = (part.chunk(share[1])[share[0]] for part in batch(step))
    nn.functional.cross_entropy(model(x), y).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]).norm().item()


def _averaged_between_steps(ranks: int) -> list[tuple[list[Seen], list[float]]]:
    """Train the models of all ranks; each step after the first begins with the mean of what the step before has left."""
    begins: list[dict[str, Tensor]] = []
    for step in range(STEPS):
        each = [trained(net(), (rank, ranks), begins=begins) for rank in range(ranks)]
        left = [seen[step] for seen, _ in each]
        begins.append({name: sum(one[f"{name}:param"][0] for one in left) / ranks for name, _ in net().named_parameters()})
    return each


def _of_own_models(each: list[tuple[list[Seen], list[float]]]) -> Expected:
    """Every rank's batch counts. Parameters of one name differ from rank to rank: each has a row and norms of its own."""
    ranks = len(each)
    rows, scalars = [], []
    for step in range(STEPS):
        joined: Rows = {}
        for site in each[0][0][step]:
            of_rank = [seen[step][site] for seen, _ in each]
            joined[site] = [Row(tensors, rank, 1, "rank") for rank, tensors in enumerate(of_rank)]
            if _port(site) in MODULE_PORTS:
                joined[site] = [Row([tensor for tensors in of_rank for tensor in tensors], 0, ranks, "data-parallel")]
        rows.append(joined)
        own = [_scalars(seen[step], losses[step]) for seen, losses in each]
        scalars.append({name: [one[name][0] for one in own] for name in own[0]})
        scalars[-1]["loss"] = [sum(scalars[-1]["loss"]) / ranks]
    return Expected(rows, scalars)


def _scalars(seen: Seen, loss: float) -> dict[str, list[float]]:
    def norm(port: str) -> list[float]:
        squares = [tensors[0].double().square().sum().item() for site, tensors in seen.items() if _port(site) == port]
        return [math.sqrt(sum(squares))]

    norms = {"grad_norm": norm("grad"), "grad_norm_raw": norm("grad"), "param_norm": norm("param"), "update_norm": norm("update")}
    return norms | {"loss": [loss]}


def _port(site: str) -> str:
    return site.rpartition(":")[2]


def _rows(name: str, ranks: int, site: str, tensors: list[Tensor]) -> list[Row]:
    """Return the rows that a site has, from the tensors of one process on the joined batch."""
    if _port(site) in PARAMETER_PORTS:
        return [_of_parameter(name, ranks, site, tensors)]
    joined = Row(tensors, 0, ranks, "data-parallel" if ranks > 1 else "global")
    if "tensor parallel" in name:
        rows = list(_of_tensor_parallel(name, site, joined))
    elif "pipeline" in name:
        rows = list(_of_pipeline(ranks, site, joined))
    else:
        rows = [joined]
    if _port(site) == "grad_output":  # each rank's loss is the mean over its own samples, of each micro-batch of a pipeline
        times = MICRO_BATCHES if "pipeline" in name else 1
        times *= _data_parallel(name, ranks)
        rows = [replace(row, tensors=[times * tensor for tensor in row.tensors]) for row in rows]
    return rows


def _data_parallel(name: str, ranks: int) -> int:
    """Return how many ranks see different parts of the batch."""
    if "tensor parallel" in name or "pipeline" in name:
        return ranks // 2
    return ranks


def _of_parameter(name: str, ranks: int, site: str, tensors: list[Tensor]) -> Row:
    """Return the row of a whole parameter: each piece is counted on the lowest rank that holds the piece."""
    pieces = 1
    is_cut_by_tensor_parallel = "tensor parallel" in name and (".up." in site or ".down.weight" in site)
    if "FSDP2" in name:
        pieces = 2 if "tensor" in name else ranks
    if "HSDP" in name:
        pieces = 2
    if is_cut_by_tensor_parallel:
        pieces *= 2
    length = tensors[0].shape[0]
    if ("FSDP2" in name or "HSDP" in name) and not is_cut_by_tensor_parallel:
        per_rank = math.ceil(length / pieces)
        pieces = math.ceil(length / per_rank)  # the rest of the ranks have nothing
    return Row(tensors, _stage(site) if "pipeline" in name else 0, pieces, "global")


def _of_tensor_parallel(name: str, site: str, row: Row) -> Iterable[Row]:
    """Yield the rows of the two ranks that share a layer: their own columns between ``up`` and ``down``, all of them elsewhere."""
    layer, _, port = site.rpartition(":")
    cut = (layer.endswith((".up", ".act")) and port != "input") or layer.endswith(".act") or site.endswith(".down:input")
    for rank in range(2):
        tensors = [tensor.chunk(2, -1)[rank] for tensor in row.tensors] if cut else row.tensors
        yield Row(tensors, rank, 2 if "FSDP2" in name else 1, "data-parallel")


def _of_pipeline(ranks: int, site: str, row: Row) -> list[Row]:
    """Return the row of the stage that has the layer."""
    return [replace(row, rank=_stage(site), ranks=ranks // 2)]


def _of_stages(ranks: int, seen: Seen, port: str) -> list[Row]:
    """Return the rows of ``(root)``, which is another module on each stage."""
    inside = {
        "input": ("embed:input", "blocks.1:input"),
        "output": ("blocks.0:output", "head:output"),
        "grad_output": ("blocks.0:grad_output", "head:grad_output"),
    }
    scope = "rank" if ranks == 2 else "data-parallel"  # without DDP no group says which ranks have the same module
    times = MICRO_BATCHES * ranks // 2 if port == "grad_output" else 1
    return [Row([times * tensor for tensor in seen[site]], rank, ranks // 2, scope) for rank, site in enumerate(inside[port])]


def _stage(site: str) -> int:
    """Return which of the two stages has the layer."""
    return int(site.startswith(("blocks.1", "head")))
