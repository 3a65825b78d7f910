"""Every notebook runs from top to bottom in an empty folder, and is kept without what it printed."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))
SHOWN = {
    "find-the-culprit": [
        "not ready to be trained: 2 bad",
        "5: 100 % dead",
        "made by log in 2",
        "b&#x27;s weight equals a&#x27;s weight.T",
    ],
    "look-inside-a-model": ["Net: 21 modules", "blocks.1.act", "every selected site has delivered", "<iframe"],
    "watch-a-training": ["60 of 120 steps logged", "Run calm · ended", "<iframe", "lr: 0.001 → 0.03", "100 % dead"],
}
"""What a reader must find below the cells of a notebook."""


def code(notebook: Any) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def shown(notebook: Any) -> str:
    """All that stands below the cells, as HTML where there is HTML."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    kinds = ("text/html", "text/plain")
    data = [next((held["data"][kind] for kind in kinds if kind in held["data"]), "") for held in outputs if "data" in held]
    return "\n".join([*data, *(output["text"] for output in outputs if output["output_type"] == "stream")])


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(SHOWN)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs_and_its_links_lead_somewhere(path: Path) -> None:
    notebook: Any = nbformat.read(path, 4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        for target in re.findall(r"\]\(([^)#:]+)\)", cell.source if cell.cell_type == "markdown" else ""):
            assert (path.parent / target).exists(), target
    for text in code(notebook):
        ast.parse(text)
        assert max(map(len, text.splitlines())) <= 95, "a cell has room for so many characters in a page"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    """In a kernel of its own: no cell raises, and what the text around the cells promises is below them."""
    from nbclient import NotebookClient

    notebook: Any = nbformat.read(path, 4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    found = shown(notebook)
    for text in SHOWN[path.stem]:
        assert text in found
    assert list(tmp_path.iterdir()) == []  # nothing is left in the reader's folder
