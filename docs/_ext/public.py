"""The directives of the reference: ``public`` describes public names of a module, ``names`` lists them with what they say first.

``python docs/_ext/public.py`` prints the names that have no example yet.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

MODULES = (
    "sonde",
    "sonde.types",
    "sonde.keep",
    "sonde.lens",
    "sonde.inspector",
    "sonde.inspector.sinks",
    "sonde.integrations",
    "sonde.stats",
    "sonde.preprocessor",
    "sonde.recorders",
    "sonde.recorders.reductions",
    "sonde.graph",
    "sonde.run",
    "sonde.rules",
    "sonde.view.plots",
    "sonde.testing",
    "sonde.errors",
)
"""The public modules; a name of several is described in the first."""


def names(module: str) -> list[str]:
    """Return the public names of *module*, in alphabetical order, without modules."""
    found = importlib.import_module(module)
    return [name for name in sorted(found.__all__, key=str.lower) if not isinstance(getattr(found, name), ModuleType)]


def homes() -> dict[int, str]:
    """Return, for each public class and function by ``id``, the full name under which it is described."""
    found: dict[int, str] = {}
    for module in MODULES:
        for name in names(module):
            value = getattr(importlib.import_module(module), name)
            if inspect.isclass(value) or inspect.isroutine(value):
                found.setdefault(id(value), f"{module}.{name}")
    return found


def described(module: str, chosen: list[str]) -> list[str]:
    """Return the reference of the *chosen* names of *module* as lines of reStructuredText."""
    lines = []
    known = homes()
    for name in chosen:
        full, value = f"{module}.{name}", getattr(importlib.import_module(module), name)
        home = known.get(id(value), full)
        kind = "class" if inspect.isclass(value) else "function" if inspect.isroutine(value) else "data"
        if home != full:
            lines += [f".. py:{kind}:: {full}", "", f"   The same as :py:obj:`{home}`.", ""]
        elif kind == "class":
            lines += [f".. autoclass:: {full}", "   :members:", ""]
        elif kind == "function":
            lines += [f".. autofunction:: {full}", ""]
        else:
            lines += [f".. py:data:: {full}", *value_of(value), "", *(f"   {line}" for line in docstring(name, value)), ""]
    return lines


WITHOUT = {
    "sonde.integrations.": "a trainer calls them, which has to be installed: docs/trainers.md shows trainings",
    "sonde.inspector.sinks.MLflowSink": "needs mlflow: docs/loggers.md shows a training",
    "sonde.inspector.sinks.OpenTelemetrySink": "needs the SDK of OpenTelemetry: docs/loggers.md shows a training",
    "sonde.inspector.sinks.TensorBoard": "needs tensorboard: docs/loggers.md shows a training",
    "sonde.inspector.sinks.WandbSink": "needs wandb: docs/loggers.md shows a training",
    "sonde.rule": "a rule stays listed for all programs that run after it: CONTRIBUTING.md shows one",
    "sonde.replay": "a step must have failed before: docs/watch-bad-steps.md shows one",
    "sonde.types.Tried": "as for sonde.replay, which returns it",
    "sonde.Inspector.open": "starts a server and a browser: docs/live-page.md shows one",
    "sonde.testing.assert_traceable": "compiles: docs/statistics.md shows one",
    "sonde.run.Write": "is a part of a thread that writes: docs/engine.md says how rows travel",
}
"""Names without an example, by their beginning, each with the reason."""


def without_example(excepted: Iterable[str] = tuple(WITHOUT)) -> list[str]:
    """Return the full names of public classes, functions and methods that no example shows, in the order of the pages.

    A class and a function have an example of their own. A method has one, or an example of its class or of a method beside it
    calls it. A method that takes its words from another class has the example there, and an alias has that of the method.
    """
    found: dict[int, list[tuple[str, bool]]] = {}
    for module in MODULES:
        for name in names(module):
            value = getattr(importlib.import_module(module), name)
            if inspect.isclass(value) and not issubclass(value, BaseException):
                methods = [(each, inspect.getattr_static(value, each)) for each in vars(value) if each[0] != "_"]
                shown = "\n".join(map(example, (value, *(held for _, held in methods))))
                known = {id(held) for each, held in methods if example(held) or re.search(rf"(\.|def ){each}\b", shown)}
                members = [
                    (f"{module}.{name}.{each}", id(held) in known)
                    for each, held in methods
                    if inspect.isroutine(held) and getattr(held, "__doc__", None)
                ]
                found.setdefault(id(value), [(f"{module}.{name}", bool(example(value))), *members])
            elif inspect.isroutine(value):
                found.setdefault(id(value), [(f"{module}.{name}", bool(example(value)))])
    return [name for held in found.values() for name, is_shown in held if not is_shown and not name.startswith(tuple(excepted))]


def example(value: object) -> str:
    """Return the statements of the example in the docstring of *value*; ``""`` where there is none."""
    lines = (line.strip() for line in (getattr(value, "__doc__", None) or "").splitlines())
    return "\n".join(line for line in lines if line.startswith((">>>", "...")))


def value_of(value: object) -> list[str]:
    """Return the option that shows *value*, if it is short."""
    return [f"   :value: {value!r}"] if isinstance(value, int | float | str | tuple) and len(repr(value)) <= 100 else []


def docstring(name: str, value: object) -> list[str]:
    """Return the string below the assignment of *value* to *name*, wherever in sonde that is."""
    for module, held in list(sys.modules.items()):
        if module.partition(".")[0] == "sonde" and vars(held).get(name) is value:
            found = ModuleAnalyzer.for_module(module).find_attr_docs().get(("", name))
            if found:
                return found
    return []


def listed(module: str) -> list[str]:
    """Return a table of the public names of *module*, each with the first sentence of its docstring."""
    lines = [".. list-table::", "   :widths: 25 75", ""]
    for name in names(module):
        value = getattr(importlib.import_module(module), name)
        found = docstring(name, value) if not inspect.isclass(value) and not inspect.isroutine(value) else None
        text = " ".join((inspect.getdoc(value) or "" if found is None else "\n".join(found)).split("\n\n")[0].split())
        first = text.rstrip(":").split(". ")[0].rstrip(".")
        lines += [f"   * - :py:obj:`~{module}.{name}`", f"     - {first}"]
    return lines


class Public(SphinxDirective):
    """``.. public:: sonde.stats`` describes every public name of ``sonde.stats``, or those that are listed after it."""

    required_arguments = 1
    optional_arguments = 100

    def run(self) -> list[Any]:
        module, *chosen = self.arguments
        return self.parse_text_to_nodes("\n".join(described(module, chosen or names(module))))


class Names(SphinxDirective):
    """``.. names:: sonde.stats`` lists the public names of ``sonde.stats``."""

    required_arguments = 1

    def run(self) -> list[Any]:
        return self.parse_text_to_nodes("\n".join(listed(self.arguments[0])))


def keep_colons(app: Any, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Put an empty line before the text of a property: Napoleon takes what stands before a colon in its first line for a type."""
    if what == "property":
        lines.insert(0, "")


def setup(app: Any) -> dict[str, bool]:
    """Add the directives."""
    app.connect("autodoc-process-docstring", keep_colons, priority=400)
    app.add_directive("public", Public)
    app.add_directive("names", Names)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    print("\n".join(without_example()))  # noqa: T201
