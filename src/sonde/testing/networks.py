"""The part of the zoo about layers, calls, sharing, in-place operations and autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from sonde.testing.zoo import Children, Net, add, entry, one_layer, rows, two_layers

__all__: list[str] = []

# --------------------------------------------------------------------------------------------------------- plain layers

add("the plainest network there is", lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), name="mlp")
add(
    "batch statistics and their buffers",
    lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(), nn.Linear(72, 4)
    ),
    rows(4, 3, 8, 8),
    name="conv_batchnorm",
)
add("an LSTM returns a tuple with a tuple in it", lambda: nn.LSTM(4, 5, num_layers=2, dropout=0.1), rows(6, 3, 4), name="lstm")
add("a GRU in both directions", lambda: nn.GRU(4, 5, bidirectional=True), rows(6, 3, 4, grad=True), name="gru")
add(
    "bags of indices with offsets; the first output has no input with a gradient",
    lambda: nn.Sequential(nn.EmbeddingBag(10, 4, mode="sum"), nn.Linear(4, 2)),
    lambda: ((torch.tensor([[1, 2, 4], [4, 3, 9]]),), {}),
    name="embedding_bag",
)
add(
    "the gradient of the weight is a sparse tensor",
    lambda: nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2)),
    lambda: ((torch.tensor([[1, 2], [2, 9]]),), {}),
    name="sparse_gradient",
)
add(
    "out_proj is never called: its weight is used by a function",
    lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    lambda: ((torch.randn(2, 3, 8),) * 3, {}),
    name="attention",
)
add(
    "attention that returns None in place of weights",
    lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    lambda: ((), {**dict.fromkeys(("query", "key", "value"), torch.randn(2, 3, 8)), "need_weights": False}),
    name="attention_without_weights",
)
add(
    "a transformer layer with dropout, in training",
    lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    rows(2, 3, 8),
    name="transformer_train",
)
add(
    "a transformer layer in evaluation, with gradients",
    lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(),
    rows(2, 3, 8),
    name="transformer_eval",
)
add(
    "in evaluation and without gradients one fused operation takes the place of all its children",
    lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval().requires_grad_(False),
    lambda: ((), {"src": torch.randn(2, 5, 8), "src_key_padding_mask": torch.arange(5) > torch.tensor([[4], [2]])}),
    name="transformer_fused",
    loss=None,
)
add(
    "attention as one fused operation",
    lambda: nn.MultiheadAttention(8, 2, batch_first=True).eval().requires_grad_(False),
    lambda: ((torch.randn(2, 3, 8),) * 3, {}),
    name="attention_fused",
    loss=None,
)
add("parameters that do not exist yet", lambda: nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(2)), name="lazy")
add(
    "weights computed by modules (weight norm, spectral norm) when they are read",
    lambda: nn.Sequential(weight_norm(nn.Linear(4, 4)), nn.Tanh(), spectral_norm(nn.Linear(4, 2))),
    name="parametrized",
)
add(
    "a part that is not trained",
    lambda: nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.BatchNorm1d(4).eval(), nn.Linear(4, 2)),
    name="frozen_part",
)
add("nothing is trained and nothing has a gradient", lambda: nn.Linear(4, 2).requires_grad_(False), name="frozen", loss=None)
add(
    "Identity, an empty Sequential and Dropout in evaluation return their input itself",
    lambda: nn.Sequential(nn.Linear(4, 4), nn.Identity(), nn.Dropout().eval(), nn.Sequential(), nn.Tanh()),
    name="pass_through",
)
add(
    "the input itself, a leaf, is passed on by a watched module",
    lambda: nn.Sequential(nn.Identity(), nn.Linear(4, 2)),
    rows(3, 4, grad=True),
    name="pass_through_of_a_leaf",
)
add("no parameter, no child", nn.Identity, rows(3, 4, grad=True), name="nothing_but_identity")


# ----------------------------------------------------------------------------------------------------- in place and views


@entry(
    "in-place activations after watched layers",
    lambda: {**two_layers(), "relu": nn.ReLU(inplace=True), "elu": nn.ELU(inplace=True)},
)
def inplace_activation(net: Any, x: Tensor) -> Any:
    return net.elu(net.b(net.relu(net.a(x))))


@entry("the output of a watched layer is added to in place", lambda: {**two_layers(), "act": nn.Tanh()})
def inplace_residual(net: Any, x: Tensor) -> Any:
    h = net.a(x)
    h += x
    y = net.b(h)
    y += net.act(h)
    return y


def halves(net: Any, x: Tensor) -> Any:
    """Return two halves of one result, as views."""
    return net.lin(x).chunk(2, dim=-1)


def first_columns(net: Any, x: Tensor) -> Any:
    """Return a view of a result."""
    return net.lin(x)[:, :2]


@entry(
    "modules return views (chunks, a transpose, a slice); the slice is then written to",
    lambda: {"halves": Net(halves, **one_layer()), "slice": Net(first_columns, **one_layer()), "lin": nn.Linear(3, 2)},
)
def views(net: Any, x: Tensor) -> Any:
    left, right = net.halves(x)
    part = net.slice(x)
    part.mul_(2.0)
    return net.lin((left * right + part).t())


def columns(net: Any, x: Tensor) -> Any:
    """Return a view of the input."""
    return x[:, :2]


@entry("the base of a returned view is written to later", lambda: {"columns": Net(columns), **one_layer()})
def view_of_changed_base(net: Any, x: Tensor) -> Any:
    h = net.lin(x)
    part = torch.relu(net.columns(h))
    h.mul_(0.5)
    return part.sum() + h.sum()


def adds_itself(net: Any, x: Tensor) -> Any:
    """Write into the input and return the input."""
    return x.add_(1.0)


@entry("a child writes into its input and returns it", lambda: {**two_layers(), "child": Net(adds_itself)})
def writes_into_input(net: Any, x: Tensor) -> Any:
    return net.b(net.child(net.a(x)))


# ----------------------------------------------------------------------------------------------------- calls and sharing


@entry("one module is called three times", one_layer)
def called_often(net: Any, x: Tensor) -> Any:
    for _ in range(3):
        x = torch.tanh(net.lin(x))
    return x


@entry("one module is called on two independent branches", one_layer)
def called_on_branches(net: Any, x: Tensor) -> Any:
    return net.lin(x) * net.lin(x + 1.0)


def _shared_beside() -> Children:
    shared = nn.Linear(4, 4)
    return {"a": shared, "b": shared}


@entry("one module under two names of one parent", _shared_beside)
def shared_names(net: Any, x: Tensor) -> Any:
    return net.b(torch.relu(net.a(x)))


def _shared_apart() -> Children:
    shared = nn.Linear(4, 4)
    return {"x": nn.Sequential(nn.Tanh(), shared), "y": nn.Sequential(shared, nn.ReLU())}


@entry("one module in two parents", _shared_apart)
def shared_parents(net: Any, x: Tensor) -> Any:
    return net.y(net.x(x))


def _twice_in_list() -> Children:
    layer = nn.Linear(4, 4)
    return {"layers": nn.ModuleList([layer, nn.Tanh(), layer])}


@entry("the same module twice in a list", _twice_in_list)
def twice_in_list(net: Any, x: Tensor) -> Any:
    for layer in net.layers:
        x = layer(x)
    return x


def countdown(net: Any, x: Tensor, depth: int) -> Any:
    """Call the module itself *depth* times."""
    x = net.lin(x)
    return x if depth == 0 else net(torch.tanh(x), depth - 1)


@entry("a child calls itself", lambda: {"child": Net(countdown, **one_layer())})
def recursive_child(net: Any, x: Tensor) -> Any:
    return net.child(x, 2)


add(
    "the root calls itself",
    lambda: Net(countdown, **one_layer()),
    lambda: ((torch.randn(3, 4), 2), {}),
    name="recursive_root",
)


@entry("a tree whose depth depends on the data", lambda: {"leaf": nn.Linear(2, 2), "join": nn.Linear(4, 2)}, rows(5, 2))
def recursive_tree(net: Any, x: Tensor) -> Any:
    if len(x) == 1:
        return net.leaf(x)
    middle = 1 + int(x[0, 0].abs() * 10) % (len(x) - 1)
    return torch.tanh(net.join(torch.cat([net(x[:middle]), net(x[middle:])], dim=-1)))


def _tied() -> Children:
    embed, head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
    head.weight = embed.weight
    return {"embed": embed, "body": nn.Linear(4, 4), "head": head}


@entry("embedding and head share one weight", _tied, lambda: ((torch.tensor([[1, 2, 3], [4, 5, 6]]),), {}))
def tied_weights(net: Any, ids: Tensor) -> Any:
    return net.head(torch.relu(net.body(net.embed(ids))))


@entry("forward() of a child is called directly, past its hooks", two_layers)
def forward_called_directly(net: Any, x: Tensor) -> Any:
    return net.b(net.a.forward(x))


@entry("a branch that is not taken", two_layers)
def branch_not_taken(net: Any, x: Tensor) -> Any:
    return net.a(x) if len(x) < 100 else net.b(x)


def _containers() -> Children:
    return {
        "layers": nn.ModuleList([nn.Linear(4, 4), nn.Tanh()]),
        "heads": nn.ModuleDict({"left": nn.Linear(4, 2), "right": nn.Linear(4, 2)}),
        "scales": nn.ParameterList([torch.ones(2), torch.full((2,), 2.0)]),
    }


@entry("lists, dicts and parameters in containers", _containers)
def containers(net: Any, x: Tensor) -> Any:
    for layer in net.layers:
        x = layer(x)
    return {name: head(x) * scale for (name, head), scale in zip(net.heads.items(), net.scales, strict=True)}


def passes_on(net: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the wrapped module."""
    return net.module(*args, **kwargs)


add(
    "a wrapper of the user's own, whose child is called module",
    lambda: Net(passes_on, module=nn.Sequential(nn.Linear(4, 4), nn.ReLU())),
    name="wrapper",
)


# -------------------------------------------------------------------------------------------------------------- autograd


def block(net: Any, x: Tensor) -> Any:
    """Compute a residual block with dropout."""
    return x + net.drop(net.b(torch.relu(net.a(x))))


def _block() -> Net:
    return Net(block, **two_layers(), drop=nn.Dropout(0.3))


def _blocks() -> Children:
    return {"first": _block(), "second": _block()}


def double_input(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
    """Replace the input, as a user's forward pre-hook does."""
    return (args[0] * 2,)


def shift_output(_: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
    """Replace the output, as a user's forward hook does."""
    return output + 1


def halve_gradient(_: nn.Module, grad_input: Any, grad_output: Any) -> Any:
    """Replace the gradient, as a user's full backward hook does."""
    return tuple(None if gradient is None else gradient / 2 for gradient in grad_input)


def _hooked() -> Children:
    layers = two_layers()
    for layer in layers.values():
        assert isinstance(layer, nn.Module)
        layer.register_forward_pre_hook(double_input)
        layer.register_forward_hook(shift_output)
        layer.register_full_backward_hook(halve_gradient)
    return layers


@entry("the user's own hooks replace inputs, outputs and gradients", _hooked, rows(3, 4, grad=True))
def user_hooks(net: Any, x: Tensor) -> Any:
    return net.b(torch.tanh(net.a(x)))


@entry("activation checkpointing, the newer mode", _blocks)
def checkpointed(net: Any, x: Tensor) -> Any:
    for part in (net.first, net.second):
        x = checkpoint(part, x, use_reentrant=False)
    return x


@entry("activation checkpointing, the older mode, with a backward pass in the backward pass", _blocks, rows(3, 4, grad=True))
def checkpointed_reentrant(net: Any, x: Tensor) -> Any:
    for part in (net.first, net.second):
        x = checkpoint(part, x, use_reentrant=True)
    return x


@entry("one block in two checkpoints", lambda: {"block": _block()})
def checkpointed_twice(net: Any, x: Tensor) -> Any:
    for _ in range(2):
        x = checkpoint(net.block, x, use_reentrant=False)
    return x


@entry("one block in two checkpoints of the older mode", lambda: {"block": _block()}, rows(3, 4, grad=True))
def checkpointed_twice_reentrant(net: Any, x: Tensor) -> Any:
    for _ in range(2):
        x = checkpoint(net.block, x, use_reentrant=True)
    return x


def inner_checkpoint(net: Any, x: Tensor) -> Any:
    """Checkpoint the module's own child."""
    return net.out(checkpoint(net.block, x, use_reentrant=net.reentrant))


def _nested_checkpoints(reentrant: bool) -> Children:
    inner = Net(inner_checkpoint, block=_block(), out=nn.Linear(4, 4))
    inner.reentrant = reentrant  # type: ignore[assignment]  # a plain attribute
    return {"inner": inner}


@entry("a checkpoint in a checkpoint", lambda: _nested_checkpoints(False))
def checkpointed_nested(net: Any, x: Tensor) -> Any:
    return checkpoint(net.inner, x, use_reentrant=False)


@entry("a checkpoint of the older mode in another", lambda: _nested_checkpoints(True), rows(3, 4, grad=True))
def checkpointed_nested_reentrant(net: Any, x: Tensor) -> Any:
    return checkpoint(net.inner, x, use_reentrant=True)


@entry("automatic mixed precision within the forward", lambda: {**two_layers(), "norm": nn.LayerNorm(4)})
def autocast(net: Any, x: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return net.norm(net.b(torch.relu(net.a(x)))).float()


@entry("a part runs without gradients", two_layers)
def no_grad_inside(net: Any, x: Tensor) -> Any:
    with torch.no_grad():
        h = net.a(x)
    return net.b(h)


@entry("a part runs in inference mode", two_layers)
def inference_inside(net: Any, x: Tensor) -> Any:
    with torch.inference_mode():
        h = net.a(x)
    return net.b(h.clone())


@entry("the graph is cut between two layers", two_layers)
def detached_inside(net: Any, x: Tensor) -> Any:
    return net.b(net.a(x).detach())


@entry(
    "a gradient penalty: autograd.grad inside the forward, differentiated again", lambda: {**two_layers(), "head": nn.Linear(4, 1)}
)
def gradient_penalty(net: Any, x: Tensor) -> Any:
    h = net.a(x)
    score = net.head(torch.tanh(net.b(h))).sum()
    (slope,) = torch.autograd.grad(score, h, create_graph=True)
    return score + (slope.norm(dim=-1) - 1).square().mean()


class Clamped(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.clamp(-0.5, 0.5)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient


def straight_through(net: Any, x: Tensor) -> Any:
    """Apply a function with a backward of its own."""
    return Clamped.apply(net.lin(x))  # type: ignore[no-untyped-call]


@entry("a custom autograd function", lambda: {"child": Net(straight_through, **one_layer()), "lin": nn.Linear(4, 2)})
def custom_function(net: Any, x: Tensor) -> Any:
    return net.lin(net.child(x))


@entry("a child is called under torch.func.vmap", two_layers)
def vmapped(net: Any, x: Tensor) -> Any:
    return net.b(torch.func.vmap(net.a)(x))


@entry("random numbers are drawn in the forward", lambda: {**one_layer(), "drop": nn.Dropout(0.5)})
def draws_noise(net: Any, x: Tensor) -> Any:
    return net.drop(net.lin(x + 0.1 * torch.randn_like(x)))
