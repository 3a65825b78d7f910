"""The rules of the house that can be counted: what modules are called, and how they speak."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "sonde"
MODULES = {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py"))}

WORDS = re.compile(r"\b(of which|hears?|heard|hush\w*|silences?|how-many\w*|(?:is|are|be|was|were) told)\b", re.IGNORECASE)

DOUBLES = {
    "activation": "the statistic, and the picture of it",
    "base": "the abstract class of the kind of thing that the folder holds",
    "causes": "known causes of what was found: of a number that is not finite, and of two sides that part",
    "compare": "the function, and the command",
    "check": "whether something is sound: a run (the command), and a graph",
    "doctor": "the function, and the command",
    "data": "the plain values of the folder: what a graph and what a recorded value consist of",
    "exponents": "the statistic, and the picture of it",
    "forward": "one run of the root: as the clock counts it, and as a graph records it",
    "gradients": "hooks on gradients, the preprocessors of gradients, and the rules about them",
    "graph": "the public class, and the command that writes the graph of a run",
    "heatmap": "the numbers of a run as sites x steps, and the picture of them",
    "page": "a page of HTML: what all pages share, and the graph's",
    "preflight": "the function, and the command",
    "recorder": "the public class of the first line: of tensors (seed 2), and of a graph (seed 4)",
    "report": "what an instrument says of itself at the end, and the command that writes the pictures of a run to a file",
    "rows": "rows of a table: of a summary, and of a run",
    "scalars": "one number per step: written, and drawn",
    "table": "rows and columns: of sums (stats), and of text (view, and what fills it)",
    "trial": "a copy of a model that is run: in diagnosis, and in the laws, which judge that",
    "updates": "the statistic, the preprocessors over it, and the rules about it",
}
"""Names of modules that occur in several folders, and what they mean in each."""


@cache
def trees() -> dict[str, ast.Module]:
    """Return the parsed modules, by their names. This takes a second, which only the tests below need."""
    return {name: ast.parse(text) for name, text in MODULES.items()}


def test_every_module_begins_with_its_job() -> None:
    """The first paragraph of its docstring is a whole sentence, or two."""
    wrong = {}
    for name, tree in trees().items():
        first = " ".join((ast.get_docstring(tree) or "").split("\n\n")[0].split())
        if not re.fullmatch(r"(sonde|[A-Z`]).*(\.|``)", first) or len(re.findall(r"[.?!] [A-Z`]", first)) > 1:
            wrong[name] = first
    assert wrong == {}


def test_no_module_name_means_two_things() -> None:
    """A name that occurs in several folders means the same in each, as said above."""
    places = defaultdict(list)
    for name in MODULES:
        if not name.endswith("__init__.py"):
            places[Path(name).stem].append(name)
    doubles = {name for name, held in places.items() if len(held) > 1}
    assert {name: places[name] for name in doubles - DOUBLES.keys()} == {}
    assert DOUBLES.keys() - doubles == set(), "these are no doubles any more"


def test_no_module_binds_a_private_constant_twice() -> None:
    """The second would silently stand in the place of the first, wherever that is read."""
    twice = {}
    for name, tree in trees().items():
        bound = Counter(
            one.id
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            for one in (target.elts if isinstance(target, ast.Tuple) else [target])
            if isinstance(one, ast.Name)
        )
        twice |= {f"{name}: {each}": count for each, count in bound.items() if count > 1}
    assert twice == {}


def test_docstrings_are_in_plain_words() -> None:
    """No word of the private language that this code once had."""
    wrong = {}
    for name, tree in trees().items():
        texts = [
            ast.get_docstring(node) or ""
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        found = sorted({match[0] for text in texts for match in WORDS.finditer(text)})
        if found:
            wrong[name] = found
    assert wrong == {}


def test_private_modules_have_no_list_of_names() -> None:
    """The face of a room lists its names; a module behind it repeats them nowhere, in the rooms that are done."""
    done = re.compile(r"((engine|stats|keep|recorders|graph|testing)/.*|(site|paths|number|escape|warn|suggest|words|rows)\.py)")
    lists = [name for name, text in MODULES.items() if done.fullmatch(name) and re.search(r"^__all__ = ", text, re.MULTILINE)]
    assert [name for name in lists if not name.endswith("__init__.py")] == []
