"""Find the line of Python that called an operation: whose code the line is, its text, and the expression in it."""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import itertools
import linecache
import sys
import sysconfig
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, Literal, NamedTuple

import torch

import sonde
from sonde.diagnosis.nonfinite.tensor_facts import memory_of

Owner = Literal["user", "library", "torch"]


class RawFrame(NamedTuple):
    """A frame of the Python stack without its variables: its code, its line, and the position of its instruction."""

    code: CodeType
    line: int
    instruction: int


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of Python on the way to an operation.

    Attributes:
        file: path of the file, or what stands for it: ``<stdin>``.
        line: its number, from 1.
        function: the function, with its class.
        text: the line without indentation; ``""`` where the source cannot be read.
        owner: whose code: the ``user``'s, a ``library``'s that is installed, or ``torch``'s.
        expression: the part of the code that ran, on one line: ``F.softmax(scores, dim=-1)``; ``""`` where it is unknown.
    """

    file: str
    line: int
    function: str
    text: str
    owner: Owner
    expression: str = ""

    @property
    def name(self) -> str:
        """File and line: ``model.py:41``; of installed code with its package, ``transformers/models/gpt2/modeling_gpt2.py:60``."""
        return f"{_short(self.file, self.owner)}:{self.line}"

    @property
    def operation(self) -> str:
        """The function or operator that the expression calls: ``softmax``, ``truediv``; ``""`` if it calls none."""
        return _called(self.expression)

    def operand(self, name: str, names: Sequence[str]) -> str:
        """Return the text of what the expression computes with as its argument *name*; ``""`` where it shows none.

        Args:
            name: of the operator's argument: ``self``, ``mat1``, ``weight``.
            names: of all arguments that the operator takes, in order; a function that is called has its own.
        """
        called = self.operation
        space = _space_of(self.expression, self.file)
        own = _arguments_of(called, space == _FUNCTIONAL)
        if called == "linear":  # a product, with an addend or without
            name = {"mat1": "input", "mat2": "weight", "self": "bias" if "mat1" in names else "input"}.get(name, name)
        elif name not in own and not (own and name == "self"):
            own = list(names)
        place = own.index(name) if name in own else 0 if name == "self" else -1
        wanted = own[place] if place >= 0 else ""
        positional, keywords = _operands(self.expression, is_method=not space)
        alias = {"self": "input", "input": "self"}.get(wanted, wanted)
        return keywords.get(wanted, keywords.get(alias, positional[place] if 0 <= place < len(positional) else ""))

    def __str__(self) -> str:
        return f"{self.name}  {self.text}" if self.text else f"{self.name}  in {self.function}"


_BOUNDARIES: set[CodeType] = set()


def until_here(function: Any) -> Any:
    """Mark *function*: frames from the call of it outwards are no part of what it runs."""
    _BOUNDARIES.add(function.__code__)
    return function


def calling_frames() -> tuple[RawFrame, ...]:
    """Return the frames of users, libraries and torch that run in this thread, the innermost first."""
    found: list[RawFrame] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in _BOUNDARIES:
        if _owner(frame.f_code.co_filename) is not None:
            found.append(RawFrame(frame.f_code, frame.f_lineno, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


def variable_of(tensor: torch.Tensor) -> str:
    """Return the name of the variable that holds *tensor*, or what it is a view of, in the innermost function of a user that runs.

    ``""`` if none does.
    """
    reference, frame = memory_of(tensor), sys._getframe(1)
    while reference is not None and frame.f_back is not None and frame.f_code not in _BOUNDARIES:
        if _owner(frame.f_code.co_filename) == "user":
            for held in (frame.f_locals, frame.f_globals):
                parts = [(name, value) for name, value in list(held.items()) if not name.startswith("__")]
                for name, module in [part for part in parts if isinstance(part[1], torch.nn.Module)]:
                    parts += [(f"{name}.{key}", value) for key, value in vars(module).items()]
                named = [(name, memory_of(value)) for name, value in parts if isinstance(value, torch.Tensor)]
                name = next((name for name, memory in named if memory is not None and memory.cdata == reference.cdata), "")
                if name:
                    return name
        frame = frame.f_back
    return ""


def hooked_module() -> torch.nn.Module | None:
    """Return the module one of whose hooks runs, in the innermost call of a module in this thread; None where its forward does."""
    frame: FrameType | None = sys._getframe(1)
    inner = ""
    while frame is not None and frame.f_code not in _BOUNDARIES:
        if frame.f_code.co_filename == _MODULE and frame.f_code.co_name in ("inner", "_call_impl"):
            held = frame.f_locals.get("self")
            return held if isinstance(held, torch.nn.Module) and inner not in ("forward", "_slow_forward") else None
        inner, frame = frame.f_code.co_name, frame.f_back
    return None


_MODULE = torch.nn.modules.module.__file__


def numbers_in(expression: str) -> list[float]:
    """Return the numbers with a fraction that *expression* holds: ``[1e-08]`` of ``p + 1e-8``."""
    parsed = _parsed(expression)
    parts = [] if parsed is None else [each.value for each in ast.walk(parsed) if isinstance(each, ast.Constant)]
    return [part for part in parts if isinstance(part, float)]


def lines_of(frames: tuple[RawFrame, ...]) -> list[SourceLine]:
    """Return the lines of *frames*, the innermost first."""
    lines = []
    for frame in frames:
        name = frame.code.co_filename
        owner = _owner(name)
        if owner is not None:
            text = linecache.getline(name, frame.line).strip()
            lines.append(SourceLine(name, frame.line, frame.code.co_qualname, text, owner, _expression(frame)))
    return lines


def line_of(lines: list[SourceLine]) -> SourceLine | None:
    """Return the innermost line outside of torch; where all are in torch, the innermost one in a module's forward."""
    outside = next((line for line in lines if line.owner != "torch"), None)
    if outside is not None:
        return outside
    inside = [line for line in lines if "_call_impl" not in line.function and "/autograd/" not in line.file]
    return next((line for line in inside if line.function.endswith(".forward")), inside[0] if inside else None)


# Whose code


def is_of_users(code: CodeType) -> bool:
    """Return whether *code* is a user's or a library's: neither of torch, nor of sonde, nor of Python itself."""
    return _owner(code.co_filename) in ("user", "library")


def written_at(function: object) -> str:
    """Return where *function*, without decorators, is written, as ``"model.py:25"``; ``""`` for one of torch, sonde or Python."""
    with suppress(ValueError):  # decorators that go round in a circle
        function = inspect.unwrap(function)  # type: ignore[arg-type]
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or not is_of_users(code):
        return ""
    return f"{_short(code.co_filename, 'user')}:{code.co_firstlineno}"


_TORCH = str(Path(torch.__file__).parent)
_SONDE = str(Path(sonde.__file__).parent)
_STANDARD = sysconfig.get_paths()["stdlib"]
_INSTALLED = ("site-packages", "dist-packages")
_BETWEEN = tuple(
    f"{_TORCH}/{part}"
    for part in ("_dynamo/", "_compile.py", "_ops.py", "_library/", "_tensor.py", "utils/_", "nn/modules/module.py")
)
"""Parts of torch that stand between the code that calls an operation and the operation."""


@functools.lru_cache(4096)
def _owner(file: str) -> Owner | None:
    """Return whose code *file* is; None for sonde and the standard library, which are no part of a model."""
    if file.startswith((_SONDE, "<frozen", *_BETWEEN)):
        return None
    if file.startswith((_TORCH, "<eval_with_key>", "<__array_function__")):
        return "torch"
    if any(part in file for part in _INSTALLED):
        return "library"
    return None if file.startswith(_STANDARD) else "user"


def _short(file: str, owner: Owner) -> str:
    for part in _INSTALLED:
        _, found, rest = file.rpartition(f"{part}/")
        if found:
            return rest
    if owner == "torch" and file.startswith(_TORCH):
        return f"torch{file[len(_TORCH) :]}"
    if "ipykernel_" in file or file.startswith("<ipython-input"):
        return "this notebook"
    path = Path(file)
    return path.name if path.is_absolute() else file


# The expression


def _expression(frame: RawFrame) -> str:
    """Return the source of the expression that *frame* evaluates, on one line; ``""`` where the source is not known."""
    position = next(itertools.islice(frame.code.co_positions(), frame.instruction // 2, None), None)
    if position is None or None in position:
        return ""
    first, last, start, end = (int(part or 0) for part in position)
    lines = [linecache.getline(frame.code.co_filename, number).encode() for number in range(first, last + 1)]
    if not lines or not all(lines):
        return ""
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    text = " ".join(textwrap.dedent(b"".join(lines).decode(errors="replace")).split())
    return f"{text} = ..." if dis.opname[frame.code.co_code[frame.instruction]] == "STORE_SUBSCR" else text


@functools.lru_cache(1024)
def _parsed(expression: str) -> ast.expr | ast.AugAssign | ast.Assign | None:
    try:
        found = ast.parse(expression).body
    except (SyntaxError, ValueError):
        return None
    statement = found[0] if len(found) == 1 else None
    if isinstance(statement, ast.AugAssign | ast.Assign):
        return statement
    if isinstance(statement, ast.Return | ast.Expr):
        return statement.value
    return None


_OPERATORS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv", ast.Mod: "mod",
    ast.Pow: "pow", ast.MatMult: "matmul", ast.USub: "neg",
}  # fmt: skip


def _called(expression: str) -> str:
    parsed = _parsed(expression)
    if isinstance(parsed, ast.Call):
        function = parsed.func
        return function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    if isinstance(parsed, ast.BinOp | ast.UnaryOp):
        return _OPERATORS.get(type(parsed.op), "")
    if isinstance(parsed, ast.AugAssign):
        return f"{_OPERATORS.get(type(parsed.op), '')}_"
    if isinstance(parsed, ast.Assign):
        return "setitem"
    return "getitem" if isinstance(parsed, ast.Subscript) else ""


def _operands(expression: str, *, is_method: bool) -> tuple[list[str], dict[str, str]]:
    """Return the texts of what *expression* computes with: those at a known position, and those that are given by keyword.

    Of a method that is what stands before the dot, too.
    """
    parsed = _parsed(expression)
    if isinstance(parsed, ast.BinOp):
        return [ast.unparse(parsed.left), ast.unparse(parsed.right)], {}
    if isinstance(parsed, ast.AugAssign):
        return [ast.unparse(parsed.target), ast.unparse(parsed.value)], {}
    if isinstance(parsed, ast.UnaryOp):
        return [ast.unparse(parsed.operand)], {}
    if not isinstance(parsed, ast.Call):
        return [], {}
    given = list(itertools.takewhile(lambda part: not isinstance(part, ast.Starred), parsed.args))
    if is_method and isinstance(parsed.func, ast.Attribute):
        given.insert(0, parsed.func.value)
    keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in parsed.keywords if keyword.arg is not None}
    return [ast.unparse(part) for part in given], keywords


@functools.lru_cache(1024)
def _arguments_of(called: str, of_functional: bool) -> list[str]:
    """Return the names of the arguments of torch's function *called*, in order; none where it is not known.

    Args:
        called: its name.
        of_functional: the one of ``torch.nn.functional``, whose arguments may come in another order.
    """
    function = getattr(torch.nn.functional, called, None) if of_functional else None
    with suppress(ValueError, TypeError):  # one of C has no signature
        return list(inspect.signature(function).parameters) if function is not None else _schema_of(called)
    return _schema_of(called)


def _schema_of(called: str) -> list[str]:
    packet = getattr(torch.ops.aten, called, None)
    names = packet.overloads() if packet is not None else []
    return [each.name for each in getattr(packet, names[0])._schema.arguments] if names else []


def _space_of(expression: str, file: str) -> str:
    """Return the name of the module whose function *expression* calls, by whatever name the code in *file* has it.

    ``self`` where an object of the user calls one of its own; ``""`` of a method of a tensor. One by its bare name is as if it was
    of ``torch.nn.functional``.
    """
    parsed = _parsed(expression)
    function = parsed.func if isinstance(parsed, ast.Call) else None
    if not isinstance(function, ast.Attribute):
        return _FUNCTIONAL if isinstance(function, ast.Name) else ""
    text = ast.unparse(function.value)
    held: Any = next((each for each in list(sys.modules.values()) if getattr(each, "__file__", None) == file), None)
    held = held or sys.modules["__main__"]
    for part in text.split("."):
        held = vars(held).get(part, _USUAL.get(part)) if isinstance(held, ModuleType) else None
    if isinstance(held, ModuleType) or text == "self":
        return getattr(held, "__name__", text)
    return "" if hasattr(torch.Tensor, function.attr) else _FUNCTIONAL  # a name of a function alone, imported where it is called


_FUNCTIONAL = "torch.nn.functional"
_USUAL = {"F": torch.nn.functional, "functional": torch.nn.functional, "nn": torch.nn, "torch": torch}
