"""The classes that functions of sonde return or hand on, for annotations: ``def largest(event: sonde.types.Event) -> None``.

The names in ``types.pyi`` are loaded when they are first used.
"""

import ast as _ast
from importlib import import_module as _import_module
from pathlib import Path as _Path
from typing import Any as _Any

_stub = _ast.parse(_Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_homes = {each.name: node.module or "" for node in _stub.body if isinstance(node, _ast.ImportFrom) for each in node.names}
__all__ = list(_homes)


def __getattr__(name: str) -> _Any:
    if name not in _homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(_import_module(_homes[name]), name)
    return found


def __dir__() -> list[str]:
    return [*__all__]
