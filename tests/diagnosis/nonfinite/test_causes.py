"""Every cause that ``why_nan`` states is undone: with nothing else changed, plain torch computes finite numbers."""

from __future__ import annotations

import ast
import inspect
import math
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde
from sonde.diagnosis.nonfinite import causes, derivatives, operation_observer
from sonde.diagnosis.nonfinite.origins import Cause

X = torch.linspace(-1, 1, 20).reshape(5, 4)
LABELS = torch.tensor([0, 1, 2, 0, 1])
INF = math.inf


class Calls(nn.Module):
    """A linear layer, and a function of its output."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.function = nn.Linear(4, 4), function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.linear(x))


def mean_square(output: Tensor) -> Tensor:
    return output.float().square().mean()


def of(
    function: Callable[[Tensor], Any], loss: Callable[[Any], Tensor] = mean_square, x: Tensor = X, **kwargs: Any
) -> dict[str, Any]:
    return {"model": Calls(function).to(x.dtype), "batch": x, "loss_fn": loss, **kwargs}


CASES: dict[str, tuple[str, Callable[[bool], dict[str, Any]]]] = {}


def case(name: str) -> Any:
    """List a function from "is the cause undone" to the arguments of ``why_nan``; *name* is the cause."""

    def listed(function: Callable[[bool], dict[str, Any]]) -> Callable[[bool], dict[str, Any]]:
        CASES[function.__name__] = name, function
        return function

    return listed


def listed(name: str, cause: str, function: Callable[[bool], Callable[[Tensor], Any]], **kwargs: Any) -> None:
    CASES[name] = cause, lambda undone: of(function(undone), **kwargs)


def eps(undone: bool, size: float = 1e-3) -> float:
    return size if undone else 0.0


# Of one element

listed("log", "log of zero", lambda ok: lambda h: (h.relu() + eps(ok)).log())
listed("log of negative", "log of a negative", lambda ok: lambda h: (h.abs() + 1e-3).log() if ok else (-h.abs() - 1e-3).log())
listed("log of complex zero", "log of zero", lambda ok: lambda h: torch.complex(h * 0 + eps(ok), h * 0).log().real)
listed("xlogy", "log of zero", lambda ok: lambda h: torch.xlogy(torch.ones_like(h), h.relu() + eps(ok)))
listed("sqrt", "sqrt of a negative", lambda ok: lambda h: (h.abs() if ok else h - 5).add(0.1 if ok else 0).sqrt())
listed("rsqrt", "division by zero", lambda ok: lambda h: (h.relu() + eps(ok)).rsqrt())
listed("quotient", "division by zero", lambda ok: lambda h: 1 / (h.relu() + eps(ok)))
listed(
    "complex quotient", "division by zero", lambda ok: lambda h: (torch.complex(h, h) / torch.complex(h * 0 + eps(ok), h * 0)).real
)
listed("zero by zero", "0 / 0", lambda ok: lambda h: h.relu() / (h.relu() + eps(ok)))
listed("std of equal", "division by a std of zero", lambda ok: lambda h: (h + 1) / (h * (0.1 if ok else 0.0)).std())
listed("inf by inf", "inf / inf", lambda ok: lambda h: (m := h.masked_fill(h > 0, 9.0 if ok else INF)) / m)
listed("zero times inf", "0 x inf", lambda ok: lambda h: h.masked_fill(h > 0, -9.0 if ok else -INF) * (h <= 0))
listed("inf minus inf", "inf - inf", lambda ok: lambda h: (m := h.masked_fill(h > 0, -9.0 if ok else -INF)) - m)
listed("mask times a number", "0 x inf", lambda ok: lambda h: h + (1 - (h > 0).float()) * (-9.0 if ok else -INF))
listed("inf minus a number", "inf - inf", lambda ok: lambda h: h.masked_fill(h > 0, 9.0 if ok else INF) - (9.0 if ok else INF))
listed("number minus inf", "inf - inf", lambda ok: lambda h: (9.0 if ok else INF) - h.masked_fill(h > 0, 9.0 if ok else INF))
listed("minus and plus", "inf - inf", lambda ok: lambda h: h + (-9.0 if ok else -INF) + (9.0 if ok else INF))
listed("inf by a number", "inf / inf", lambda ok: lambda h: h.masked_fill(h > 0, 9.0 if ok else INF) / (9.0 if ok else INF))
listed("exp", "exp overflow", lambda ok: lambda h: (h.sign() * (10 if ok else 100)).exp())
listed("pow of zero", "pow of zero", lambda ok: lambda h: (h.relu() + eps(ok)) ** -0.5)
listed("pow of negative", "pow of a negative", lambda ok: lambda h: (h.abs() + 0.1 if ok else h) ** 1.5)
listed("acos", "acos out of range", lambda ok: lambda h: torch.acos(h.sign() * (0.9 if ok else 1.0000002)))
listed("atanh", "atanh at its border", lambda ok: lambda h: torch.atanh(h.sign() * (0.9 if ok else 1.0)))
listed("remainder", "remainder by zero", lambda ok: lambda h: torch.remainder(h, (h.detach() * 0 + (0.5 if ok else 0.0))))
listed("lgamma", "lgamma at a pole", lambda ok: lambda h: torch.lgamma(h.relu() + eps(ok, 0.1)))
listed("logit", "logit at its border", lambda ok: lambda h: torch.logit((h * 1e4).sigmoid(), eps=1e-4 if ok else None))
listed("written", "NaN in the code", lambda ok: lambda h: h * (1.0 if ok else math.nan))
listed(
    "unknown",
    "unknown",
    lambda ok: lambda h: h + torch.igamma(torch.full_like(h, 1.0 if ok else -1.0), torch.ones_like(h)).detach(),
)
listed(
    "layer norm of mask",
    "non-finite operand",
    lambda ok: lambda h: functional.layer_norm(h.masked_fill(h > 0, 9.0 if ok else -INF), (4,)),
)

# Of rows and matrices

listed(
    "softmax",
    "softmax of a row of -inf",
    lambda ok: lambda h: h.masked_fill(h > (0 if ok else -9), -9.0 if ok else -INF).softmax(-1),
)
listed(
    "quotient behind where",
    "0 / 0 behind where",
    lambda ok: lambda h: torch.where(h > 0, (k := h.clamp(min=0.1) if ok else h * (h > 0)).sin() / k, 1.0),
)
listed(
    "logsumexp",
    "logsumexp of a row of -inf",
    lambda ok: lambda h: h.masked_fill(h > (0 if ok else -9), -9.0 if ok else -INF).logsumexp(-1),
)
listed(
    "largest",
    "amax of a row of -inf",
    lambda ok: lambda h: h.masked_fill(h > (0 if ok else -9), -9.0 if ok else -INF).amax(-1),
)
listed("softmax of inf", "softmax of inf", lambda ok: lambda h: h.masked_fill(h > 0.2, 9.0 if ok else INF).softmax(-1))
listed("std of one", "std of one value", lambda ok: lambda h: h + h[: 2 if ok else 1].std(0))
listed("std of none", "mean of nothing", lambda ok: lambda h: h + h[h > (-9 if ok else 9)].std())
listed("mean of none", "mean of nothing", lambda ok: lambda h: h + h[h > (-9 if ok else 9)].mean())
listed("sum of infinities", "inf - inf", lambda ok: lambda h: h + torch.where(h > 0, *((h, -h) if ok else (INF, -INF))).sum())
listed("product with inf", "0 x inf", lambda ok: lambda h: h.masked_fill(h > 0, -9.0 if ok else -INF) @ torch.eye(4))
listed(
    "product of infinities",
    "inf - inf",
    lambda ok: lambda h: h.masked_fill(h > -9, -9.0 if ok else -INF) @ torch.randn(4, 4).sign(),
)
listed(
    "product of both signs",
    "overflow of float32",
    lambda ok: lambda h: (h.sign() * (1e10 if ok else 1e30)).repeat(1, 1024) @ _both_signs(1e8 if ok else 1e30),
)
listed("inverse", "singular matrix", lambda ok: lambda h: torch.linalg.inv_ex(torch.diag_embed(h.relu() + eps(ok, 0.5)))[0].sum(-1))
listed(
    "triangular",
    "singular matrix",
    lambda ok: lambda h: torch.linalg.solve_triangular(torch.diag_embed(h.relu() + eps(ok, 0.5)), h[..., None], upper=False),
)
listed("determinant", "log of zero", lambda ok: lambda h: torch.slogdet(torch.diag_embed(h.relu() + eps(ok, 0.5)))[1])
listed(
    "logdet",
    "log of a negative",
    lambda ok: (
        lambda h: torch.logdet(torch.diag_embed(h.abs() + 0.1 if ok else torch.cat([h[:, :1].abs() * -1, h[:, 1:].abs()], 1)))
    ),
)
listed("layer norm", "normalisation of equal numbers", lambda ok: lambda h: functional.layer_norm(h * 0 + 1, (4,), eps=eps(ok)))
listed(
    "variance", "overflow of the variance", lambda ok: lambda h: functional.layer_norm(h * (1e4 if ok else 1e30), (4,), eps=1e-5)
)


def attended(h: Tensor, size: float, mask: Tensor | None) -> Tensor:
    query, value = h[None, None, :4] * size, h[None, None, :4]
    return functional.scaled_dot_product_attention(query, query, value, attn_mask=mask)


_MASK = torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), -INF)  # whose infinities are meant
listed("scores of an attention", "overflow of float32", lambda ok: lambda h: attended(h, 1.0 if ok else 1e22, None))
listed("scores and a mask", "overflow of float32", lambda ok: lambda h: attended(h, 1.0 if ok else 1e22, _MASK))
listed(
    "running variance",
    "sqrt of a negative",
    lambda ok: lambda h: functional.batch_norm(h, torch.zeros(4), torch.full((4,), 1.0 if ok else -1.0)),
)


def _both_signs(size: float) -> Tensor:
    """Return a matrix whose product overflows to both signs also where each is added before it is rounded: in parts of a sum."""
    return torch.cat([torch.full((2048, 4), size), torch.full((2048, 4), -size)])


# Overflow

listed(
    "overflow",
    "overflow of float32",
    lambda ok: lambda h: h.sign() * 1e20 * (1.0 if ok else 1e20),
    loss=lambda output: output.mean(),
)
listed(
    "sum in half",
    "overflow of float16",
    lambda ok: lambda h: (h.sign().abs() * (3e2 if ok else 3e4)).sum(-1),
    x=X.half(),
    loss=lambda o: o.float().mean(),
)
listed(
    "on the way",
    "overflow of float32",
    lambda ok: lambda h: (h.sign() * (1e10 if ok else 1e30)).norm(dim=-1),
    loss=lambda output: output.mean(),
)
listed(
    "overflow of float64",
    "overflow of float64",
    lambda ok: lambda h: h.sign() * 1e200 * (1.0 if ok else 1e200),
    x=X.double(),
    loss=lambda output: output.mean(),
)


listed("number beyond the dtype", "overflow of float32", lambda ok: lambda h: h.sign() * 0.1 * (1e9 if ok else 1e39))


@case("0 / 0")
def weight_norm(undone: bool) -> dict[str, Any]:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    with torch.no_grad():
        layer.parametrizations.weight.original1.mul_(1.0 if undone else 0.0)
    return {"model": layer, "batch": X, "loss_fn": mean_square}


@case("overflow of float16 by the loss scale")
def loss_scale(undone: bool) -> dict[str, Any]:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0 if undone else 2.0**20)
    return of(lambda h: h, lambda output: output.mean(), X.half(), scaler=scaler)


# Losses


@case("mean of nothing")
def no_label(undone: bool) -> dict[str, Any]:
    return of(lambda h: h[:5] if undone else h[:0], lambda output: functional.cross_entropy(output, LABELS[: len(output)]))


@case("mean of nothing")
def ignored_labels(undone: bool) -> dict[str, Any]:
    labels = LABELS if undone else torch.full((5,), -100)
    return of(lambda h: h, lambda output: functional.cross_entropy(output, labels))


@case("mean of nothing")
def second_loss_of_nothing(undone: bool) -> dict[str, Any]:
    chosen = LABELS.eq(2 if undone else 3)
    return of(
        lambda h: h, lambda output: functional.cross_entropy(output, LABELS) + functional.mse_loss(output[chosen], X[chosen] * 2)
    )


@case("label smoothing of a masked class")
def smoothed_labels(undone: bool) -> dict[str, Any]:
    share = 0.0 if undone else 0.1
    masked = torch.arange(4) == 3
    return of(lambda h: h, lambda output: functional.cross_entropy(output.masked_fill(masked, -INF), LABELS, label_smoothing=share))


@case("class weights of zero")
def class_weights_of_zero(undone: bool) -> dict[str, Any]:
    weight = torch.tensor([0.0, 0.0, 1.0, 1.0]) if undone else torch.tensor([0.0, 0.0, 0.0, 1.0])
    return of(lambda h: h, lambda output: functional.cross_entropy(output, LABELS, weight))


@case("class weight of inf")
def class_weight_of_inf(undone: bool) -> dict[str, Any]:
    return of(
        lambda h: h,
        lambda output: functional.cross_entropy(
            output, LABELS, torch.full((4,), 1.0).masked_fill(torch.arange(4) == 1, 2.0 if undone else INF)
        ),
    )


@case("label of probability zero")
def masked_label(undone: bool) -> dict[str, Any]:
    masked = torch.arange(4) == (3 if undone else 1)
    return of(lambda h: h, lambda output: functional.cross_entropy(output.masked_fill(masked, -INF), LABELS))


@case("labels longer than the input")
def ctc(undone: bool) -> dict[str, Any]:
    labels = torch.tensor([[1, 2, 3, 1, 2]]) if undone else torch.tensor([[1, 1, 2, 2, 3]])
    return of(
        lambda h: h[:, None].log_softmax(-1),
        lambda output: functional.ctc_loss(output, labels, torch.tensor([5]), torch.tensor([5])),
    )


# Backward

listed("derivative of sqrt", "sqrt'(0)", lambda ok: lambda h: h + (h - h.detach() + eps(ok)).sqrt())
listed(
    "derivative of log", "log'(0) behind where", lambda ok: lambda h: h + torch.where(h > 9, (h - h.detach() + eps(ok)).log(), 0.0)
)
listed(
    "derivative of log1p",
    "log1p'(-1) behind where",
    lambda ok: lambda h: h + torch.where(h > 9, torch.log1p(h - h.detach() - 1 + eps(ok)), 0.0),
)
listed(
    "derivative of 1/x",
    "(1/x)'(0)",
    lambda ok: lambda h: h + torch.where(h > 9, (h.detach() + 9) / (h - h.detach() + eps(ok)), 0.0),
)
listed("derivative of pow", "pow'(0)", lambda ok: lambda h: h + (h - h.detach() + eps(ok)) ** 0.5)
listed("derivative of acos", "acos'(±1)", lambda ok: lambda h: h + torch.acos(h - h.detach() + (0.9 if ok else 1.0)))
listed("derivative of var", "var of one value", lambda ok: lambda h: h + torch.where(h > 9, h[: 2 if ok else 1].var(0), 0.0))
listed(
    "derivative of svd",
    "equal singular values",
    lambda ok: (
        lambda h: (
            h + torch.linalg.svd(torch.eye(4) * h.mean() + torch.eye(4) * 2 + torch.diag(torch.arange(4.0) * eps(ok, 0.1)))[0].sum()
        )
    ),
)
listed("derivative of exp", "exp overflow", lambda ok: lambda h: h + torch.where(h > 9, (h * 0 + (9 if ok else 900)).exp(), 0.0))


@case("non-finite outside")
def derivative_of_sigmoid(undone: bool) -> dict[str, Any]:
    weights = torch.ones(5, 4).masked_fill(X > 0.9, 1.0 if undone else INF)
    return of(lambda h: (h.abs() + 900).sigmoid(), lambda output: (output * weights).sum())


# Given numbers


@case("non-finite input")
def batch(undone: bool) -> dict[str, Any]:
    return of(lambda h: h, x=X.masked_fill(X == -1, 0.0 if undone else math.nan))


@case("non-finite outside")
def target(undone: bool) -> dict[str, Any]:
    goal = torch.zeros(5, 4).masked_fill(X == -1, 1.0 if undone else INF)
    return of(lambda h: h, lambda output: functional.mse_loss(output, goal))


def optimizer(undone: bool, value: float, *, fused: bool = False, least: float = 1e-8) -> dict[str, Any]:
    given = of(lambda h: h * 0 if least == 0 else h)
    adam = torch.optim.Adam(given["model"].parameters(), eps=1e-8 if undone else least, fused=fused)
    given["loss_fn"](given["model"](given["batch"])).backward()
    if least:
        adam.step()
        adam.zero_grad()
        adam.state[given["model"].linear.weight]["exp_avg_sq"].fill_(1.0 if undone else value)
    return {**given, "optimizer": adam}


@case("non-finite state")
def state(undone: bool) -> dict[str, Any]:
    return optimizer(undone, math.nan)


@case("sqrt of a negative")
def negative_state(undone: bool) -> dict[str, Any]:
    return optimizer(undone, -1.0)


@case("sqrt of a negative")
def negative_state_of_a_fused_optimizer(undone: bool) -> dict[str, Any]:
    return optimizer(undone, -1.0, fused=True)


@case("0 / 0")
def fused_optimizer_without_eps(undone: bool) -> dict[str, Any]:
    return optimizer(undone, 0.0, fused=True, least=0.0)


# The proof


def is_finite(given: dict[str, Any]) -> bool:
    """Return whether loss, gradients, parameters and optimizer state of one step are finite, by torch alone."""
    model, scaler, stepping = given["model"], given.get("scaler"), given.get("optimizer")
    model.zero_grad()
    loss = given["loss_fn"](model(given["batch"]))
    (loss if scaler is None else loss * scaler.get_scale()).backward()
    if stepping is not None:
        stepping.step()
    held = [loss, *model.parameters(), *(each.grad for each in model.parameters() if each.grad is not None)]
    held += [part for state in (stepping.state.values() if stepping else ()) for part in state.values() if isinstance(part, Tensor)]
    return all(bool(each.isfinite().all()) for each in held)


Site = tuple[str, int]


@pytest.fixture(scope="module")
def answers() -> dict[str, tuple[sonde.types.NonFinite, set[Site]]]:
    """Return the answer of each case with its cause, and the lines of the source that made this cause."""
    made: dict[str, set[Site]] = {}

    def noted(module: ModuleType) -> Callable[..., Cause]:
        def make(name: str, sentence: str, advice: str) -> Cause:
            made.setdefault(sentence, set()).add((module.__name__, sys._getframe(1).f_lineno))
            return Cause(name, sentence, advice)

        return make

    found = {}
    with pytest.MonkeyPatch.context() as patch:
        for module in (causes, derivatives, operation_observer):
            patch.setattr(module, "Cause", noted(module))
        for name, (_, build) in CASES.items():
            made.clear()
            answer = sonde.why_nan(**build(False))
            assert answer.origin is not None, name
            said = [origin.cause.sentence for origin in (answer.origin, *answer.later) if origin.cause is not None]
            found[name] = answer, {site for each, sites in made.items() if any(each in text for text in said) for site in sites}
    return found


@pytest.mark.filterwarnings(r"ignore:(std|var)\(\)")
@pytest.mark.parametrize("name", CASES)
def test_a_cause_that_is_undone_leaves_nothing_that_is_not_finite(name: str, answers: Any) -> None:
    expected, build = CASES[name]
    answer, _ = answers[name]
    assert answer.cause is not None, answer
    assert answer.cause.name == expected, answer
    assert not is_finite(build(False))
    assert is_finite(build(True))
    assert sonde.why_nan(**build(True)).ok


@pytest.mark.filterwarnings(r"ignore:(std|var)\(\)")
def test_every_cause_in_the_source_is_one_that_a_case_undoes(answers: Any) -> None:
    covered = {site for _, sites in answers.values() for site in sites}
    for module in (causes, derivatives, operation_observer):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Cause":
                assert (module.__name__, node.lineno) in covered, (
                    f"no case undoes {module.__name__}:{node.lineno}: {ast.unparse(node)}"
                )
