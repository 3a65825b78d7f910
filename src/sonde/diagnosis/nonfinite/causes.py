"""Say in one sentence why an operation made a NaN or an infinity, from the numbers that went in."""

from __future__ import annotations

import cmath
import contextlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sonde.diagnosis.nonfinite.operation import LOSSES_OF_LABELS, NOTHING, Operation
from sonde.diagnosis.nonfinite.origins import Cause
from sonde.diagnosis.nonfinite.tensor_facts import TensorFacts, dtype_name
from sonde.engine import walk
from sonde.stats import PLAIN
from sonde.words import many, number_text


def cause_of(operation: Operation, producers: dict[str, str]) -> Cause:
    """Return why *operation* made a bad element.

    Args:
        operation: with the first bad element found.
        producers: by the name of an operand, the operation that made it: ``std``.
    """
    given = next(((name, number) for name, number in operation.numbers.items() if not math.isfinite(number)), None)
    if given is not None:
        return _with_infinity(operation) or number_cause(operation.name, *given)
    special = _SPECIAL.get(operation.name)
    with contextlib.suppress(RuntimeError, IndexError, ValueError, TypeError, KeyError):
        found = special(operation, producers) if special is not None else None
        found = found or _mean_loss_of_nothing(operation) or _overflow(operation)
        if found is not None:
            return found
    return _what_went_in(operation)


def _what_went_in(operation: Operation) -> Cause:
    """Return the cause of a bad element where only the numbers that went in are known."""
    made, words = f"{operation.name} made {_article(operation.kind)}", []
    for name, tensor in operation.tensors.items():
        facts = TensorFacts.of(tensor)
        is_meant = name == "attn_mask" and bool((tensor.isfinite() | (tensor == -math.inf)).all())  # what is left out
        if facts is not None and not facts.is_finite and not is_meant:
            there = _real(operation.element(name)) if operation.by_element else None
            words.append(f"{name} holds {facts.bad}" + ("" if there is None else f", and there {number_text(there)}"))
    if words:
        return Cause("non-finite operand", f"{made}: {'; '.join(words)}", "see where the numbers that are not finite come from")
    return Cause("unknown", f"{made} of finite numbers; why is not known", "look at the numbers that went in")


SOFTMAX_OF_NOTHING = "softmax of a row of -inf"
"""The name of the cause that a mask is a part of, and not at fault."""

OF_STATE = "the optimizer's state is broken: load the last good one, or begin with a new optimizer"
"""What to do where an optimizer holds numbers that no step makes."""


def number_cause(name: str, argument: str, number: float) -> Cause:
    """Return the cause of a bad element where the operation *name* was given a bad *number* for *argument*."""
    sentence = f"{name} was given {argument}={number_text(number)}"
    return Cause(f"{number_text(number)} in the code", sentence, "write a finite number, or keep the infinity away from the loss")


def _with_infinity(operation: Operation) -> Cause | None:
    """Return the cause of a NaN that an infinity of the code makes of what it meets: of 0, or of another infinity."""
    numbers = [number for number in operation.numbers.values() if math.isinf(number)]
    held = next(iter(operation.tensors.values()), None)
    if operation.kind != "NaN" or not numbers or held is None or operation.name not in _OF_TWO or "alpha" in operation.numbers:
        return None
    found = _OF_TWO[operation.name](operation, {})
    if found is None:
        return None
    count = int((held == 0).sum()) if found.name == "0 x inf" else int(held.isinf().sum())
    what = "0" if found.name == "0 x inf" else "infinite"
    sentence = f"{found.sentence}: {count:,} of {held.numel():,} elements are {what}, and the code writes {number_text(numbers[0])}"
    is_mask = found.name == "0 x inf" and bool(((held == 0) | (held == 1)).all())
    shown = number_text(numbers[0])
    advice = found.advice
    if found.name == "0 x inf":
        advice = (
            f"write masked_fill(mask, {shown})" if is_mask else f"write a finite number in place of {shown}, or clamp what it meets"
        )
    return found._replace(sentence=sentence, advice=advice)


def _article(kind: str) -> str:
    return "a NaN" if kind == "NaN" else "an infinity"


def limit_of(dtype: torch.dtype) -> float:
    """Return the largest finite number of *dtype*."""
    return float(torch.finfo(dtype).max)


# Overflow


def _overflow(operation: Operation) -> Cause | None:
    """Return the cause of a result that is too large for its dtype; None if the exact result is not."""
    dtype = operation.result.dtype
    limit = limit_of(dtype)
    exact = exact_element(operation)
    if exact is None or not math.isfinite(exact):
        return _overflow_of_double(operation)
    if abs(exact) > limit:
        sentence = f"the result {number_text(exact)} is beyond {number_text(limit)}, where {dtype_name(dtype)} ends"
        return Cause(f"overflow of {dtype_name(dtype)}", sentence, _on_overflow(dtype))
    beyond = next((number for number in operation.numbers.values() if limit < abs(number) < math.inf), None)
    if beyond is not None:
        sentence = f"the number {number_text(beyond)} in the code is beyond {number_text(limit)}, where {dtype_name(dtype)} ends"
        return Cause(f"overflow of {dtype_name(dtype)}", sentence, "write a number that the dtype has")
    sentence = f"in float64 the same numbers give {number_text(exact)} there: {dtype_name(dtype)} has not the range for what is"
    return Cause(f"overflow of {dtype_name(dtype)}", f"{sentence} computed on the way", _on_overflow(dtype))


def _overflow_of_double(operation: Operation) -> Cause | None:
    """Return the cause of an overflow that float64 has as well: of a product or a power, whose size logarithms give."""
    one = _real(operation.element("self"))
    other = _real(operation.element("exponent" if operation.name == "pow" else "other"))
    if operation.name not in ("mul", "pow") or not one or not other or not (math.isfinite(one) and math.isfinite(other)):
        return None
    power = math.log10(abs(one)) * other if operation.name == "pow" else math.log10(abs(one)) + math.log10(abs(other))
    dtype = operation.result.dtype
    limit = limit_of(dtype)
    if power <= math.log10(limit):
        return None
    sentence = f"the result is about 1e{power:.0f}, beyond {number_text(limit)}, where {dtype_name(dtype)} ends"
    return Cause(f"overflow of {dtype_name(dtype)}", sentence, _on_overflow(dtype))


def _on_overflow(dtype: torch.dtype) -> str:
    if dtype == torch.float16:
        return "compute this in bfloat16 or float32, or scale down what goes in (a norm, a smaller loss scale)"
    return "scale down what goes in: normalise it, clip it, lower the learning rate"


def exact_element(operation: Operation) -> float | None:
    """Return the element that should have come out, computed in float64; None where that is not known."""
    name, tensors = operation.name, operation.tensors
    if operation.is_product:
        row, column = operation.factors()
        return float(row.double() @ column.double())
    if not operation.by_element:
        return _recomputed(operation)
    values = {key: operation.element(key) for key in tensors}
    if name in ("to_copy", "copy", "clone") and len(values) == 1:
        value = next(iter(values.values()))
        return None if isinstance(value, complex) or value is None else float(value)
    with contextlib.suppress(Exception):  # an operator that has no version for float64
        args = tuple(_wide(part, operation) for part in operation.call.args)
        kwargs = {key: _wide(part, operation) for key, part in operation.call.kwargs.items() if key != "dtype"}
        made = operation.call.function(*args, **kwargs)
        found = made if isinstance(made, Tensor) else args[0]
        return float(found) if found.numel() == 1 else None
    return None


def _wide(part: Any, operation: Operation) -> Any:
    """Return the element of *part* at the bad position in float64, as a tensor of its own; other values as they are."""
    if not isinstance(part, Tensor):
        return part
    element = torch.broadcast_to(part, operation.result.shape)[operation.index].clone()
    return element.double() if element.is_floating_point() else element


def _recomputed(operation: Operation, **changed: float) -> float | None:
    """Return the element that the operator makes of the same tensors in float64; None where it cannot be asked again.

    Operators of torch alone are, on plain tensors: others may write, or wait for other ranks.

    Args:
        operation: the operation.
        changed: numbers to put in place of those of the call, by the names of the arguments.
    """
    function = operation.call.function
    tags = {getattr(tag, "name", "") for tag in getattr(function, "tags", ())}
    given = {**operation.call.given, **changed}
    is_plain = getattr(function, "namespace", "") == "aten" and all(type(held) in PLAIN for _, held in walk(given))
    if operation.is_of_lists or "nondeterministic_seeded" in tags or not is_plain:
        return None
    kwargs = {name: _in_double(given[name]) for name in operation.call.names if name in given}
    with contextlib.suppress(Exception):  # an operator that has no version for float64
        made = function(**kwargs)
        parts = [part for part in (made if isinstance(made, list | tuple) else [made]) if isinstance(part, Tensor)]
        fitting = next(part for part in parts if part.shape == operation.result.shape)
        return float(fitting[operation.index])
    return None


def _in_double(part: Any) -> Any:
    if isinstance(part, list | tuple):
        return [_in_double(each) for each in part]
    if isinstance(part, torch.dtype) and part.is_floating_point:
        return torch.float64
    if not isinstance(part, Tensor):
        return part
    return part.double() if part.is_floating_point() else part.clone()


# One operation each


def _log(operation: Operation, producers: dict[str, str]) -> Cause | None:
    value = operation.element("self")
    if isinstance(value, complex):
        value = None if value != 0 else 0.0
    if value is None:
        return None
    shown = operation.name
    edge = -1.0 if shown == "log1p" else 0.0
    advice = f"keep what goes in above {number_text(edge)}: {'add an eps or ' * (not edge)}clamp it before the log"
    if value == edge:
        before = f"; it comes from {producers['self']}" if producers.get("self") in ("softmax", "sigmoid", "exp", "sum") else ""
        better = {
            "softmax": "use log_softmax, which needs no log of a probability",
            "sigmoid": "use logsigmoid or binary_cross_entropy_with_logits",
            "sum": "use logsumexp if these are exponentials; else add an eps before the log",
        }
        return Cause(
            "log of zero", f"{shown} of {number_text(edge)} is -inf{before}", better.get(producers.get("self", ""), advice)
        )
    if value < edge:
        return Cause(
            "log of a negative", f"{shown} of {number_text(value)} is NaN: it needs numbers above {number_text(edge)}", advice
        )
    return None


def _sqrt(operation: Operation, producers: dict[str, str]) -> Cause | None:
    value = _real(operation.element("self"))
    if value is None:
        return None
    if value < 0:
        own = "clamp what goes in above 0: add an eps" if operation.name == "rsqrt" else "clamp what goes in at 0"
        by_rounding = "; a variance as E[x²] - E[x]² may be negative by rounding, use var()"
        advice = own + by_rounding if value > -_BY_ROUNDING else f"{own}, or look at what makes it negative"
        return Cause(f"{operation.name} of a negative", f"{operation.name} of {number_text(value)} is NaN", advice)
    if value == 0 and operation.name == "rsqrt":
        return Cause("division by zero", "rsqrt(0) is 1 / 0", "add an eps inside the root")
    return None


_BY_ROUNDING = 0.01
"""How far a number may be beyond what it should be by rounding, as far as an advice guesses."""


def _div(operation: Operation, producers: dict[str, str]) -> Cause | None:
    numerator = 1.0 if operation.name == "reciprocal" else operation.element("self")
    name = "self" if operation.name == "reciprocal" else "other"
    return _quotient(numerator, operation.element(name), producers.get(name, ""))


def _quotient(numerator: float | complex | None, divisor: float | complex | None, producer: str) -> Cause | None:
    if numerator is None or divisor is None:
        return None
    if divisor == 0:
        what = f", and the divisor is the {producer} of equal numbers" if producer in ("std", "var", "linalg_vector_norm") else ""
        if producer == "linalg_vector_norm":
            what = ", and the divisor is the norm of a vector of zeros"
        elif producer in ("sum", "mean"):
            what = f", and the divisor is a {producer} that is 0"
        name = {"std": "division by a std of zero", "var": "division by a variance of zero"}.get(producer, "")
        name = name or ("0 / 0" if numerator == 0 else "division by zero")
        return Cause(name, f"{number_text(numerator)} / 0{what}", "add an eps to the divisor, or leave out what has none")
    if cmath.isinf(numerator) and cmath.isinf(divisor):
        return Cause(
            "inf / inf",
            f"{number_text(numerator)} / {number_text(divisor)} is NaN",
            "keep both finite: see where the infinities come from",
        )
    return None


def _mul(operation: Operation, producers: dict[str, str]) -> Cause | None:
    return _factors(_real(operation.element("self")), _real(operation.element("other")))


def _factors(one: float | None, other: float | None) -> Cause | None:
    if one is None or other is None:
        return None
    if (one == 0 and math.isinf(other)) or (other == 0 and math.isinf(one)):
        advice = "mask by torch.where or masked_fill: a product with 0 does not remove an infinity"
        return Cause("0 x inf", f"{number_text(one)} × {number_text(other)} is NaN", advice)
    return None


def _add(operation: Operation, producers: dict[str, str]) -> Cause | None:
    one, other = _real(operation.element("self")), _real(operation.element("other"))
    if one is None or other is None:
        return None
    sign = "-" if operation.name in ("sub", "rsub") else "+"
    if math.isinf(one) and math.isinf(other):
        sentence = f"{number_text(one)} {sign} ({number_text(other)}) is NaN"
        return Cause("inf - inf", sentence, "use a large finite number as mask (torch.finfo(dtype).min), or mask once")
    return None


def _exp(operation: Operation, producers: dict[str, str]) -> Cause | None:
    value = _real(operation.element("self"))
    if value is None or not math.isfinite(value):
        return None
    dtype = operation.result.dtype
    border = math.log(limit_of(dtype))
    sentence = f"{operation.name}({number_text(value)}) overflows {dtype_name(dtype)}, which ends at exp({number_text(border)})"
    return Cause("exp overflow", sentence, "clamp what goes in, or subtract its maximum first, as logsumexp and softmax do")


def _pow(operation: Operation, producers: dict[str, str]) -> Cause | None:
    base, exponent = _real(operation.element("self")), _real(operation.element("exponent"))
    if base is None or exponent is None:
        return None
    shown = f"{number_text(base)} ** {number_text(exponent)}"
    if base == 0 and exponent < 0:
        return Cause("pow of zero", f"{shown} is 1 / 0", "add an eps to the base")
    if base < 0 and exponent != int(exponent):
        return Cause(
            "pow of a negative", f"{shown} is NaN: a root of a negative number", "take the absolute value first, or clamp at 0"
        )
    return None


def _softmax(operation: Operation, producers: dict[str, str]) -> Cause | None:
    row = operation.line("self", int(operation.numbers.get("dim", -1)))
    if row is None or row.numel() == 0:
        return None
    if bool((row == -math.inf).all()):
        sentence = f"a row of {row.numel()} elements is all -inf: the sum of the exponentials is 0, and 0 / 0 is NaN"
        advice = "leave at least one position of each row unmasked, or use torch.finfo(dtype).min as mask"
        return Cause(SOFTMAX_OF_NOTHING, sentence, advice)
    if bool((row == math.inf).any()):
        return Cause(
            "softmax of inf", "a row holds +inf, and inf - inf is NaN", "see where the infinity comes from, or clamp the logits"
        )
    return None


def _attention(operation: Operation, producers: dict[str, str]) -> Cause | None:
    """Return the cause of a NaN in an attention that is one operation: its scores overflow. A row that is masked whole gives 0."""
    query, key = (operation.tensors.get(name) for name in ("query", "key"))
    if query is None or key is None or not bool(query.isfinite().all() and key.isfinite().all()):
        return None
    sizes = [float(each.abs().max()) for each in (query, key)]
    dtype, scale = operation.result.dtype, operation.numbers.get("scale", query.shape[-1] ** -0.5)
    if math.prod(sizes) * query.shape[-1] * max(scale, 1.0) <= limit_of(dtype):
        return None
    shown = " and ".join(f"{name} as large as {number_text(size)}" for name, size in zip(("queries", "keys"), sizes, strict=True))
    sentence = f"the scores of {shown} are beyond {number_text(limit_of(dtype))}, where {dtype_name(dtype)} ends"
    return Cause(f"overflow of {dtype_name(dtype)}", sentence, _on_overflow(dtype))


_ATTENTIONS = tuple(
    f"scaled_dot_product_{kind}"
    for kind in (
        "flash_attention_for_cpu",
        "flash_attention",
        "efficient_attention",
        "cudnn_attention",
        "fused_attention_overrideable",
        "attention_math",
    )
)


def _rest(operation: Operation, producers: dict[str, str]) -> Cause | None:
    """Return the cause of an infinity that an operator over rows makes of a row in which a mask has left nothing."""
    given, nothing = operation.first(), NOTHING[operation.name]
    if given is None or operation.result[operation.index] != nothing or not bool((given[1] == nothing).any()):
        return None
    count = given[1].numel() // max(operation.result.numel(), 1)
    shown = number_text(nothing)
    of_nothing = (
        ": the sum of the exponentials is 0, and its log is -inf"
        if operation.name == "logsumexp"
        else f", and so is its {operation.name}"
    )
    sentence = f"a row of {many(count, 'element')} is all {shown}{of_nothing}"
    advice = "leave at least one position of each row unmasked, or leave out the rows that have none"
    return Cause(f"{operation.name} of a row of {shown}", sentence, advice)


def _domain(low: float, high: float, edge: float | None) -> Callable[[Operation, dict[str, str]], Cause | None]:
    def judge(operation: Operation, producers: dict[str, str]) -> Cause | None:
        value = _real(operation.element("self"))
        if value is None:
            return None
        name = operation.name
        if edge is not None and abs(value) == edge:
            return Cause(
                f"{name} at its border",
                f"{name}({number_text(value)}) is infinite",
                "clamp what goes in a little inside of the border",
            )
        if not low <= value <= high:
            shown = number_text(value) if not low <= round(value, 3) <= high else f"{value:.9g}"
            sentence = f"{name}({shown}) is NaN: it needs numbers from {number_text(low)} to {number_text(high)}"
            beyond = max(low - value, value - high)
            is_cosine = name in ("acos", "asin") and beyond <= _BY_ROUNDING
            inside = "clamp what goes in inside of its borders" if edge is not None else "clamp what goes in"
            advice = "clamp what goes in; a cosine may exceed 1 by rounding" if is_cosine else f"{inside}, or look at what makes it"
            return Cause(f"{name} out of range", sentence, advice)
        return None

    return judge


def _spread(operation: Operation, producers: dict[str, str]) -> Cause | None:
    given = operation.first()
    if given is None:
        return None
    count = given[1].numel() // max(operation.result.numel(), 1)
    correction = operation.numbers.get("correction", 1.0)
    if count == 0:
        return Cause("mean of nothing", f"{operation.name} of no element is 0 / 0", "leave the term out where nothing is selected")
    if count <= correction:
        taken = number_text(correction)
        sentence = f"{operation.name} of {many(count, 'value')} divides by n - {taken} = {number_text(count - correction)}"
        return Cause(f"{operation.name} of one value", sentence, "use correction=0, or more than one value")
    return None


def _mean(operation: Operation, producers: dict[str, str]) -> Cause | None:
    given = operation.first()
    if given is not None and given[1].numel() == 0:
        return Cause("mean of nothing", "mean of no element is 0 / 0", "leave the term out where nothing is selected")
    return _both_infinities(operation)


def _mean_loss_of_nothing(operation: Operation) -> Cause | None:
    """Return the cause of a NaN in a loss that is the mean over its elements, as torch's losses are by default, and has none."""
    is_mean = "reduction" in operation.call.names and operation.numbers.get("reduction", 1) == 1
    return _mean(operation, {}) if is_mean else None


def _sum(operation: Operation, producers: dict[str, str]) -> Cause | None:
    """Return the cause of a bad sum: where some of the numbers are -inf, it is that of all classes in a smoothed loss."""
    given = operation.first()
    if operation.kind == "NaN" or given is None or not bool((given[1] == -math.inf).any()):
        return _both_infinities(operation)
    sentence = "label_smoothing gives each class a share of the target, and the log-probability of a masked one is -inf"
    advice = "leave out label_smoothing where classes are masked, or spread it over the classes that are left"
    return Cause("label smoothing of a masked class", sentence, advice)


def _both_infinities(operation: Operation) -> Cause | None:
    given = operation.first()
    if given is not None and bool((given[1] == math.inf).any()) and bool((given[1] == -math.inf).any()):
        return Cause("inf - inf", "inf and -inf are added", "see where the infinities come from")
    return None


def _product(operation: Operation, producers: dict[str, str]) -> Cause | None:
    """Return the cause of a NaN in a product of matrices: 0 x inf or inf - inf."""
    if operation.kind != "NaN":
        return None
    row, column = operation.factors()
    if bool(((row == 0) & column.isinf()).any()) or bool(((column == 0) & row.isinf()).any()):
        return Cause("0 x inf", "in the sum of products 0 meets an infinity", "see where the infinity comes from")
    if row.isfinite().all() and column.isfinite().all():
        dtype = operation.result.dtype
        return Cause(
            f"overflow of {dtype_name(dtype)}",
            f"products beyond {number_text(limit_of(dtype))} of both signs are added",
            _on_overflow(dtype),
        )
    return Cause("inf - inf", "in the sum of products infinities of both signs meet", "see where the infinities come from")


def _nll(operation: Operation, producers: dict[str, str]) -> Cause | None:
    target, weight = operation.others.get("target"), operation.tensors.get("weight")
    ignored = operation.numbers.get("ignore_index", -100)
    given = operation.tensors.get("self")
    if target is None or given is None:
        return None
    if target.numel() == 0:
        return Cause("mean of nothing", "the loss is a mean over no label: 0 / 0", "leave out batches without any label")
    if bool((target == ignored).all()):
        sentence = f"all {target.numel():,} labels are ignore_index={int(ignored)}: the mean over no label is 0 / 0"
        return Cause(
            "mean of nothing", sentence, 'leave out batches without any label, or use reduction="sum" and divide by the count'
        )
    kept = target != ignored
    labels = target[kept]
    if weight is not None and bool(weight[labels].isinf().any()):
        label = int(labels[weight[labels].isinf()][0])
        advice = "give each class a finite weight: a class without samples has no 1 / count"
        return Cause("class weight of inf", f"the weight of class {label}, which is a label of the batch, is inf", advice)
    if weight is not None and operation.kind == "NaN" and bool((weight[labels] == 0).all()):
        sentence = f"the weights of the classes of all {labels.numel():,} labels are 0: the mean over them is 0 / 0"
        return Cause("class weights of zero", sentence, "leave out batches whose labels all have the weight 0")
    chosen = given.movedim(1, -1)[kept] if given.dim() > 1 else given[None]
    picked = chosen.gather(-1, labels.reshape(-1, 1))[:, 0]
    if operation.kind == "inf" and bool((picked == -math.inf).any()):
        label = int(labels.reshape(-1)[picked == -math.inf][0])
        sentence = (
            f"the log-probability of a label (class {label}) is -inf: the logit of this class is masked, or its probability 0"
        )
        return Cause(
            "label of probability zero", sentence, "leave the classes of the labels unmasked, or give such labels ignore_index"
        )
    return None


def _norm(operation: Operation, producers: dict[str, str]) -> Cause | None:
    given, running = operation.tensors.get("input"), operation.tensors.get("running_var")
    if given is None or not given.isfinite().all():
        return None
    if operation.numbers.get("eps") == 0 and _is_finite(_recomputed(operation, eps=1e-5)):
        sentence = "the variance is 0 and eps is 0: a division by 0"
        return Cause("normalisation of equal numbers", sentence, "give the normalisation an eps, as 1e-5")
    size, limit = float(given.abs().max()), limit_of(torch.float64 if given.dtype == torch.float64 else torch.float32)
    if size * size > limit and _is_finite(_recomputed(operation)):
        sentence = (
            f"the variance of numbers as large as {number_text(size)} overflows: their squares are beyond {number_text(limit)}"
        )
        return Cause("overflow of the variance", sentence, _on_overflow(torch.float32))
    channel = float(running[operation.index[1]]) if running is not None and len(operation.index) > 1 else 0.0
    if channel < 0 and operation.kind == "NaN":
        sentence = f"the running variance is {number_text(channel)}, whose root is NaN"
        return Cause("sqrt of a negative", sentence, "reset the running statistics")
    return None


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _addc(operation: Operation, producers: dict[str, str]) -> Cause | None:
    one, other = _real(operation.element("tensor1")), _real(operation.element("tensor2"))
    return _quotient(one, other, "") if operation.name == "addcdiv" else _factors(one, other)


def _fused_adam(operation: Operation, producers: dict[str, str]) -> Cause | None:
    second = _real(operation.element("exp_avg_sqs"))
    if second is not None and second < 0:
        return Cause("sqrt of a negative", f"the second moment is {number_text(second)}, whose root is NaN", OF_STATE)
    if operation.element("exp_avg_sqs") == 0 and operation.numbers.get("eps") == 0:
        return Cause("0 / 0", "the second moment is 0 and eps is 0: the update is 0 / 0", "give the optimizer an eps, as 1e-8")
    return None


def _matrix(operation: Operation) -> Tensor | None:
    """Return the square matrix that went in where the first bad element came out, in float64; None if it is not finite."""
    given = operation.first()
    if given is None or given[1].dim() < 2:
        return None
    batch = given[1].dim() - 2
    found = given[1][operation.index[:batch]]
    return found.double() if bool(found.isfinite().all()) and found.shape[-1] == found.shape[-2] else None


def _inverse(operation: Operation, producers: dict[str, str]) -> Cause | None:
    matrix = _matrix(operation)
    if matrix is None:
        return None
    if operation.name == "linalg_solve_triangular":
        zeros = int((matrix.diagonal() == 0).sum())
        sentence = f"the triangular matrix has {many(zeros, 'zero')} on its diagonal: it is singular"
        return Cause("singular matrix", sentence, "add a small multiple of the identity") if zeros else None
    sizes = torch.linalg.svdvals(matrix)
    largest, smallest = float(sizes.max()), float(sizes.min())
    if smallest > largest * torch.finfo(operation.result.dtype).eps:
        return None
    sentence = (
        f"the matrix is singular, or nearly so: its singular values go from {number_text(smallest)} to {number_text(largest)}"
    )
    return Cause("singular matrix", sentence, "add a small multiple of the identity")


def _determinant(operation: Operation, producers: dict[str, str]) -> Cause | None:
    matrix = _matrix(operation)
    if matrix is None or operation.kind != "inf" or float(torch.linalg.det(matrix.to(operation.result.dtype))) != 0:
        return None
    return Cause("log of zero", "the determinant is 0, and its logarithm -inf", "add a small multiple of the identity")


def _ctc(operation: Operation, producers: dict[str, str]) -> Cause | None:
    """Return the cause of an infinite loss of CTC: a sample has fewer steps than its labels need."""
    if operation.kind != "inf" or not operation.index:
        return None
    given, sample = operation.call.given, operation.index[0]
    steps, counts = (torch.as_tensor(given[name], device="cpu").tolist() for name in ("input_lengths", "target_lengths"))
    targets = given["targets"]
    own = targets[sample] if targets.dim() > 1 else targets[sum(counts[:sample]) :]
    own = own[: counts[sample]]
    needed = counts[sample] + int((own[1:] == own[:-1]).sum())
    if steps[sample] >= needed:
        return None
    sentence = (
        f"sample {sample} has {many(steps[sample], 'step')}, and its {many(counts[sample], 'label')} need {needed} "
        "(equal neighbours need one between them): no alignment is possible"
    )
    return Cause("labels longer than the input", sentence, "leave out such samples, or give ctc_loss zero_infinity=True")


def _weight_norm(operation: Operation, producers: dict[str, str]) -> Cause | None:
    vectors, dim = operation.tensors["v"], int(operation.numbers.get("dim", 0))
    if not bool((vectors.movedim(dim, 0)[operation.index[dim]] == 0).all()):
        return None
    return Cause("0 / 0", "a vector of the weight is all 0, and it is divided by its norm", "begin with other weights than zeros")


def _sigmoid_backward(operation: Operation, producers: dict[str, str]) -> Cause | None:
    """Return the cause of a NaN in the derivative of a function that is flat there: an infinite gradient times 0."""
    gradient, result = _real(operation.element("grad_output")), _real(operation.element("output"))
    if gradient is None or result is None or not math.isinf(gradient):
        return None
    slope = 1 - result * result if operation.name == "tanh_backward" else result * (1 - result)
    return _factors(gradient, slope)


def _remainder(operation: Operation, producers: dict[str, str]) -> Cause | None:
    if _real(operation.element("other")) == 0:
        return Cause("remainder by zero", "the remainder of a division by 0 is NaN", "leave out divisors of 0")
    return None


def _xlogy(operation: Operation, producers: dict[str, str]) -> Cause | None:
    value = _real(operation.element("other"))
    if value is not None and value <= 0:
        return Cause(
            "log of zero" if value == 0 else "log of a negative", f"log of {number_text(value)}", "clamp what goes in above 0"
        )
    return None


def _lgamma(operation: Operation, producers: dict[str, str]) -> Cause | None:
    value = _real(operation.element("self"))
    if value is not None and value <= 0 and value == int(value):
        return Cause(
            f"{operation.name} at a pole", f"{operation.name} at {number_text(value)} is infinite", "keep what goes in above 0"
        )
    return None


def _logit(operation: Operation, producers: dict[str, str]) -> Cause | None:
    value = _real(operation.element("self"))
    if value in (0.0, 1.0):
        return Cause("logit at its border", f"logit({number_text(value)}) is infinite", "give logit an eps, as 1e-6")
    return None


def _real(value: float | complex | None) -> float | None:
    return None if value is None or isinstance(value, complex) else float(value)


_SPECIAL: dict[str, Callable[[Operation, dict[str, str]], Cause | None]] = {
    **dict.fromkeys(("log", "log2", "log10", "log1p"), _log),
    **dict.fromkeys(("sqrt", "rsqrt"), _sqrt),
    **dict.fromkeys(("div", "reciprocal", "true_divide"), _div),
    **dict.fromkeys(("add", "sub", "rsub"), _add),
    **dict.fromkeys(("exp", "exp2", "expm1", "sinh", "cosh"), _exp),
    **dict.fromkeys(("softmax", "log_softmax"), _softmax),
    **dict.fromkeys(("acos", "asin"), _domain(-1, 1, None)),
    **dict.fromkeys(("atanh", "erfinv", "special_erfinv"), _domain(-1, 1, 1.0)),
    **dict.fromkeys(("std", "var", "std_mean", "var_mean"), _spread),
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "vdot"), _product),
    **dict.fromkeys(LOSSES_OF_LABELS, _nll),
    **dict.fromkeys(("layer_norm", "batch_norm", "group_norm", "batch_norm_legit", "fused_rms_norm"), _norm),
    **dict.fromkeys(("addcdiv", "addcmul"), _addc),
    **dict.fromkeys(("linalg_inv_ex", "inverse", "linalg_solve_ex", "linalg_solve_triangular"), _inverse),
    **dict.fromkeys(("remainder", "fmod", "floor_divide"), _remainder),
    **dict.fromkeys(("xlogy", "special_xlogy"), _xlogy),
    **dict.fromkeys(("lgamma", "digamma", "polygamma", "special_zeta"), _lgamma),
    **dict.fromkeys(("fused_adam", "fused_adamw"), _fused_adam),
    **dict.fromkeys(("sigmoid_backward", "tanh_backward"), _sigmoid_backward),
    **dict.fromkeys(("slogdet", "linalg_slogdet"), _determinant),
    **dict.fromkeys(_ATTENTIONS, _attention),
    **dict.fromkeys(NOTHING, _rest),
    "ctc_loss": _ctc,
    "weight_norm_interface": _weight_norm,
    "acosh": _domain(1, math.inf, None),
    "logit": _logit,
    "mean": _mean,
    "mul": _mul,
    "pow": _pow,
    "sum": _sum,
}

_OF_TWO = {"mul": _mul, "add": _add, "sub": _add, "rsub": _add, "div": _div}
"""What an infinity of the code makes a NaN in, and how it is judged."""
