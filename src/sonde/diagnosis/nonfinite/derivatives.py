"""Say in one sentence why the derivative of an operation is NaN or infinite, from what its autograd node had saved."""

from __future__ import annotations

import cmath
import math
import re

from torch import Tensor

from sonde.diagnosis.nonfinite.causes import cause_of
from sonde.diagnosis.nonfinite.operation import Operation
from sonde.diagnosis.nonfinite.origins import Cause
from sonde.words import number_text


def forward_name(node: str) -> str:
    """Return the operation whose derivative the autograd node *node* is: ``sqrt`` for ``SqrtBackward0``."""
    name = re.sub(r"Backward\d*$", "", node.rpartition("::")[2])
    if not re.search(r"Backward\d+$", node):  # a function of one's own keeps the name of its class
        return name
    name = re.sub(r"(?<=[a-z0-9])([A-Z])", lambda found: f"_{found[1]}", name).lower()
    return name.removeprefix("linalg_").removeprefix("native_").replace("log1_p", "log1p") if name != "linalg" else name


def derivative_cause(
    operation: Operation, producers: dict[str, str], own: set[str], zeros: dict[str, tuple[str, str]], left_out: str
) -> Cause:
    """Return why *operation*, a part of the derivative of ``operation.node``, made a bad element.

    Args:
        operation: with the first bad element found.
        producers: by the name of an operand, the operation that made it.
        own: the names of the operands that the derivative has saved or made itself; the others come from the gradient that arrives.
        zeros: by the name of an operand that holds zeros of a derivative, the node that made them, and the words for its operation.
        left_out: the choice that does not take the bad values that the operation has made in the forward; ``""`` if none was seen.
    """
    found, plain, name = _of_node(operation), cause_of(operation, producers), forward_name(operation.node)
    is_of_forward = operation.kind == "NaN" and own >= {*operation.tensors} and plain.name != "unknown"
    if is_of_forward and left_out:
        sentence = f"in the derivative of {name}: {plain.sentence}, whatever gradient arrives; {not_left_out(left_out)}"
        return Cause(f"{plain.name} behind where", sentence, safe_choice(left_out))
    if found is not None and not (is_of_forward and "'(" in found.name):
        return _behind_zero(operation, found, own, zeros)
    if not name:
        return plain
    return Cause(plain.name, f"in the derivative of {name}: {plain.sentence}", plain.advice)


_SAFE = "put a safe number into the function for the elements that the mask leaves out: f(torch.where(ok, x, 1.0))"


CHOICES = ("where", "masked_fill", "masked_scatter", "masked_select", "index")
"""Operations that leave elements out, whose gradient is 0 then."""


def not_left_out(choice: str) -> str:
    """Return the words for a bad value that *choice*, with its line, does not take."""
    return f"{choice} leaves it out of the forward, and not out of the backward pass"


def safe_choice(choice: str) -> str:
    """Return the advice about an operation that *choice*, with or without its line, leaves out."""
    name = choice.partition(" ")[0]
    return f"{'torch.where' if name == 'where' else name} does not protect its other branch in backward: {_SAFE}"


def _behind_zero(operation: Operation, found: Cause, own: set[str], zeros: dict[str, tuple[str, str]]) -> Cause:
    """Return *found* with the remark that a gradient of 0, as from the other branch of ``torch.where``, does not help."""
    elements = {name: operation.element(name) for name in operation.tensors if name not in own}
    zero = [name for name, element in elements.items() if element is not None and not isinstance(element, complex) and element == 0]
    if operation.kind != "NaN" or "'(" not in found.name or not zero:
        return found
    infinite = int(operation.result.isinf().sum())
    others = f"; where it is not 0, {infinite:,} elements are infinite" if infinite else ""
    node, made = next((zeros[name] for name in zero if name in zeros), ("", ""))
    if (name := forward_name(node)) in CHOICES:
        left_out = f"as from the branch that {made} does not take"
        sentence = f"{found.sentence}; the gradient that arrives is 0, {left_out}, and 0 × inf is NaN{others}"
        return Cause(f"{found.name} behind where", sentence, safe_choice(name))
    by = f", which the derivative of {made} made 0" if made else ""
    sentence = f"{found.sentence}; the gradient that arrives is 0{by}, and 0 × inf is NaN{others}"
    return found._replace(sentence=sentence)


def _of_node(operation: Operation) -> Cause | None:
    name, saved = forward_name(operation.node), operation.saved
    value = _element(operation, saved.get("self"))
    result = _element(operation, saved.get("result"))
    there = [operation.element(key) for key in operation.tensors]
    is_pole = any(each is not None and (each == 0 or cmath.isinf(each)) for each in there)
    unknown = value is None and result is None and is_pole  # as in a checkpoint: nothing is saved, and 0 or inf meets the gradient
    if name in ("sqrt", "rsqrt") and (unknown or result == 0 or (result is not None and math.isinf(result))):
        sentence = f"the derivative of {name} at 0 is infinite: 1 / (2 · {name}(0))"
        return Cause(f"{name}'(0)", sentence, "add an eps inside the root: sqrt(x + eps)")
    if name in ("log", "log2", "log10") and (unknown or value == 0):
        return Cause(f"{name}'(0)", f"the derivative of {name} at 0 is 1 / 0", "add an eps or clamp before the log")
    if name == "log1p" and (unknown or value == -1):
        return Cause("log1p'(-1)", "the derivative of log1p at -1 is 1 / 0", "clamp what goes in above -1")
    if name in ("div", "reciprocal"):
        divisor = _element(operation, saved.get("other")) if name == "div" else value
        if divisor == 0 or (unknown and divisor is None) or (name == "reciprocal" and result is not None and math.isinf(result)):
            return Cause("(1/x)'(0)", "the derivative of 1 / x at 0 is infinite", "add an eps to the divisor")
    if name == "pow" and (unknown or value == 0):
        power = operation.saved_numbers.get("exponent", _element(operation, saved.get("exponent")))
        if power is not None and power < 1:
            sentence = f"the derivative of x ** {number_text(power)} at 0 is infinite"
            return Cause("pow'(0)", sentence, "add an eps to the base")
    if name in _BORDERS and (unknown or (value is not None and abs(value) == 1)):
        shown = "±1" if value is None else number_text(value)
        border = "above 1" if name == "acosh" else "inside of -1 and 1"
        return Cause(f"{name}'(±1)", f"the derivative of {name} at {shown} is infinite", f"clamp what goes in a little {border}")
    if name in ("std", "var"):
        return _of_spread(operation, name)
    if name in ("svd", "eigh"):
        return _of_spectrum(operation, name)
    if name in ("exp", "mul") and operation.kind == "NaN":
        factors = [result] if name == "exp" else [_element(operation, saved.get(key)) for key in ("self", "other")]
        if any(factor is not None and math.isinf(factor) for factor in factors):
            sentence = f"the derivative of {name} multiplies the gradient by inf"
            return Cause("0 x inf", sentence, "keep the forward finite: clamp before it")
    return None


_BORDERS = {"acos", "asin", "atanh", "erfinv", "acosh"}


def _of_spread(operation: Operation, name: str) -> Cause | None:
    """Return the cause of a bad element in the derivative of a spread, which divides by the count less the correction."""
    if all(map(math.isfinite, operation.numbers.values())):
        return None
    sentence = f"the derivative of {name} of one value divides by n - 1 = 0"
    return Cause(f"{name} of one value", sentence, "use correction=0, or more than one value")


def _of_spectrum(operation: Operation, name: str) -> Cause | None:
    """Return the cause of a bad element in the derivative of a decomposition whose values are not all different."""
    values = operation.saved.get("S", operation.saved.get("L", operation.saved.get("eigenvalues")))
    if values is None or operation.name != "div" or not bool(values.isfinite().all()):
        return None
    own = values[operation.index[: values.dim() - 1]] if len(operation.index) >= values.dim() else values
    ordered = own.reshape(-1).sort().values
    if not bool((ordered[1:] == ordered[:-1]).any()) or operation.element("other") not in (0, None):
        return None
    what = "singular values" if name == "svd" else "eigenvalues"
    sentence = (
        f"the derivative of {name} divides by differences of {what}, and two of them are equal: {number_text(float(ordered[0]))}"
    )
    if ordered[0] != ordered[1]:
        sentence = f"the derivative of {name} divides by differences of {what}, and two of them are equal"
    return Cause(
        f"equal {what}", sentence, f"keep the {what} apart by a small random diagonal, or use the values and not the vectors"
    )


def _element(operation: Operation, tensor: Tensor | None) -> float | None:
    if tensor is None:
        return None
    found = operation.element_of(tensor)
    return None if found is None or isinstance(found, complex) else float(found)
