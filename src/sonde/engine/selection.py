"""Name the modules of a model as users do, and choose those that ``include`` and ``exclude`` admit.

Names are those of ``named_modules()`` without the parts that wrappers add (``torch.compile``, DDP, FSDP,
checkpoint wrappers), so that one key names the same module in an eager, a compiled and a sharded run. A module reachable
by several names has the first as its canonical name and the others as aliases.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from torch import nn

from sonde.engine.inventory import Named, Owned, inventory_of
from sonde.errors import ModelError, SelectionError
from sonde.suggest import nearest, told_of_glob
from sonde.warn import warn_user

Where: TypeAlias = (
    str | re.Pattern[str] | Callable[[str, nn.Module], bool] | type[nn.Module] | Iterable[str] | tuple[type[nn.Module], ...] | None
)
"""``include`` / ``exclude``: a regular expression (searched) or compiled pattern, a callable ``(name, module) -> bool``, a
list of exact names, a module type or a tuple of types; None or ``""`` is no condition."""


def check_model(model: Any) -> nn.Module:
    """Return *model* if it is an ``nn.Module``.

    Raises:
        ModelError: it is none.
    """
    if isinstance(model, nn.Module):
        return model
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise ModelError(f"{model.__name__} is a class, not a model: make one first, {model.__name__}(...)")
    raise ModelError(f"a model must be a torch.nn.Module; this is {_described(model)}")


def _described(value: Any) -> str:
    text = repr(value)
    return f"a {type(value).__name__}: {text if len(text) <= 60 else text[:57] + '...'}"


def members(model: nn.Module) -> list[Named]:
    """Return every module of *model* once, parents before children, as ``named_modules()`` orders them."""
    return inventory_of(model).members


def parameters(model: nn.Module) -> list[Owned]:
    """Return every parameter once, with its canonical name and the module that owns it."""
    return inventory_of(model).owned


def repeated_layers(model: nn.Module) -> list[list[str]]:
    """Return the names of each layer with weights that one ``Sequential`` or ``ModuleList`` holds at several places.

    Of one that cannot take what it returns, as a head that is shared, there are none.
    """
    known = {name: module for name, module, _ in members(model)}
    found = []
    for name, module, aliases in members(model):
        of = name.rpartition(".")[0]
        names = [name, *(each for each in aliases if each.rpartition(".")[0] == of)]
        is_listed = bool(name) and isinstance(known.get(of), nn.Sequential | nn.ModuleList)
        weights = [each for each in module.parameters() if each.dim() > 1] if is_listed and len(names) > 1 else []
        found += [names] if weights and weights[0].shape[1] == weights[-1].shape[0] else []
    return found


_NO_ALIASES: Mapping[str, tuple[str, ...]] = {}

Condition: TypeAlias = Callable[[str, Any], bool]


def select(
    candidates: Sequence[tuple[str, nn.Module]],
    include: Where = None,
    exclude: Where = None,
    *,
    aliases: Mapping[str, tuple[str, ...]] = _NO_ALIASES,
    also: Iterable[str] = (),
) -> list[int]:
    """Return the positions of the candidates (name, module) that *include* admits and *exclude* does not.

    A candidate with *aliases* is selected if any of its names is. Names in *also* may stand in a list although they are none of
    the candidates'.

    Raises:
        SelectionError: a condition cannot be read, a listed name does not exist, or nothing is left.
    """
    if _absent(include) and _absent(exclude) and candidates:
        return list(range(len(candidates)))
    names = [known for name, _ in candidates for known in (name, *aliases.get(name, ()))]
    admits = condition_of("include", include, [*names, *also])
    refuses = condition_of("exclude", exclude, [*names, *also])
    chosen = [
        position
        for position, (name, module) in enumerate(candidates)
        if any(
            (admits is None or admits(known, module)) and not (refuses is not None and refuses(known, module))
            for known in (name, *aliases.get(name, ()))
        )
    ]
    if not chosen:
        asked = ", ".join(
            f"{word}={_shown(where)}" for word, where in (("include", include), ("exclude", exclude)) if not _absent(where)
        )
        raise SelectionError(f"nothing is selected by {asked or 'an empty model'}. {nearest(_sought(include), names)}")
    return chosen


def tell_of_globs(model: nn.Module, **given: Where) -> None:
    """Warn where one of the arguments *given*, searched in the names of modules as a regular expression, looks like a glob."""
    for word, pattern in given.items():
        if _absent(pattern):  # and so the model is not walked over
            continue
        if said := told_of_glob(word, pattern, [each.name for each in members(model)], "module"):
            warn_user(said)


def settled(where: Where) -> Where:
    """Return *where* as a reusable value: an iterator becomes a tuple."""
    given: Any = where
    again = isinstance(given, str | re.Pattern | type) or callable(given) or not isinstance(given, Iterable)
    return given if again else tuple(given)


def lenient(where: Where) -> Where:
    """Return *where* for choosing again, after the model has changed: listed names that are gone are ignored."""
    if isinstance(where, tuple) and all(isinstance(item, str) for item in where):
        names = {"" if item == "(root)" else item for item in where}
        return lambda name, module: name in names
    return where


def _absent(where: Where) -> bool:
    return where is None or (isinstance(where, str) and where == "")


def _sought(where: Where) -> str:
    if isinstance(where, re.Pattern):
        return where.pattern
    return where if isinstance(where, str) else ""


def _shown(where: Where) -> str:
    if isinstance(where, re.Pattern):
        return repr(where.pattern)
    return where.__name__ if isinstance(where, type) else repr(where)


def condition_of(word: str, where: Where, names: list[str]) -> Condition | None:
    """Return *where*, given as the argument *word*, as a function of a name and a module; None if it is no condition.

    Raises:
        SelectionError: *where* cannot be read, or lists a name that is none of *names*.
    """
    if _absent(where):
        return None
    if isinstance(where, str):
        try:
            where = re.compile(where)
        except re.error as error:
            raise SelectionError(
                f"{word}={where!r} is not a regular expression: {error}. Exact names can be given as a list: {word}=[{where!r}]"
            ) from None
    if isinstance(where, re.Pattern):
        search = where.search
        return lambda name, module: search(name) is not None
    if isinstance(where, type):
        return _of_types(word, (where,))
    if callable(where):
        return where
    if not isinstance(where, Iterable):
        raise SelectionError(
            f"{word}={where!r} cannot be read: give a regular expression, a callable (name, module) -> bool, "
            "a list of exact names, or a module type"
        )
    items = ["" if item == "(root)" else item for item in where]
    if items and all(isinstance(item, type) for item in items):
        return _of_types(word, tuple(items))
    return _of_names(word, items, names)


def _of_types(word: str, types: tuple[Any, ...]) -> Condition:
    for kind in types:
        if not issubclass(kind, nn.Module):
            raise SelectionError(f"{word}={kind.__name__}: a type that selects must be a kind of nn.Module")
    return lambda name, module: isinstance(module, types)


def _of_names(word: str, items: list[Any], names: list[str]) -> Condition:
    known = set(names)
    for item in items:
        if not isinstance(item, str):
            raise SelectionError(f"{word}: {item!r} in the list is neither an exact name nor a module type")
        if item not in known:
            raise SelectionError(f"{word}: there is no module called {item!r}. {nearest(item, names)}")
    wanted = set(items)
    return lambda name, module: name in wanted
