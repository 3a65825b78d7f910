"""What is said about a name that is not there."""

from __future__ import annotations

import pytest

from sonde.errors import UnknownSiteError
from sonde.suggest import nearest, unknown_name

LAYERS = ["", "embed", "layers.0.mlp", "layers.0.norm", "layers.1.mlp", "head"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("haed", "Nearest: head."),
        ("layers.0.mpl", "Nearest: layers.0.mlp, layers.1.mlp, layers.0.norm."),
        ("HEAD", "Nearest: head."),
        ("^head$", "Nearest: head."),
        ("blocks.9.norms", "Nearest: layers.0.norm."),  # the last part alone is near
        ("transformer.xyz", "There are 6: (root), embed, layers.0.mlp, layers.0.norm, layers.1.mlp, head."),
        ("", "There are 6: (root), embed, layers.0.mlp, layers.0.norm, layers.1.mlp, head."),
    ],
)
def test_the_nearest_names_are_named(asked: str, said: str) -> None:
    assert nearest(asked, LAYERS) == said


def test_names_keep_their_case_and_a_long_list_is_cut() -> None:
    assert nearest("q1-q3", ["std", "Q1-Q3"], count=1) == "Nearest: Q1-Q3."
    assert nearest("?", (f"number_{i}" for i in range(20))).startswith("There are 20: number_0, number_1")
    assert nearest("?", (f"number_{i}" for i in range(20))).endswith("number_7, ....")
    assert nearest("x", []) == "There are none."


def test_what_was_asked_is_not_named_and_a_name_of_several_lines_is_quoted() -> None:
    assert nearest("d.a", ["d.a", "d.\n"]) == r"There are 1: 'd.\n'."


def test_the_error_for_an_unknown_name_is_a_key_error() -> None:
    error = unknown_name("family", "moment", ["moments", "scalars"], "the run")
    assert isinstance(error, KeyError)
    assert isinstance(error, UnknownSiteError)
    assert str(error) == "'moment' is no family of the run. Nearest: moments."
