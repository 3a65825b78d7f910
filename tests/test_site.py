"""The text of a site: what it looks like, that it parses back, and what is said about a text that is none."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sonde.errors import SiteError, SondeError
from sonde.site import GRADIENT_PORTS, MODULE_PORTS, PARAMETER_PORTS, PORTS, Port, Site

ALPHABET = st.characters(exclude_categories=["Cs"])  # a lone surrogate cannot be written to a file at all
NAMES = st.text(ALPHABET, max_size=12) | st.sampled_from(
    ["layers.3.mlp", "a/b", "a:b", "a[0]", "100%", "%2F", "a b", "\u2028", "é"]
)
STEPS = st.one_of(
    st.integers(0, 99).map(lambda index: f"[{index}]"),
    st.from_regex(r"[a-zA-Z_]\w*", fullmatch=True).map(lambda name: f".{name}"),
    st.text(ALPHABET, max_size=6).map(lambda key: f"[{key!r}]"),
    st.tuples(st.integers(), st.text(ALPHABET, max_size=3)).map(lambda key: f"[{key!r}]"),
    st.integers(0, 9).map(lambda index: f"{{{index}}}"),  # the members of a set
)
LEAVES = st.lists(STEPS, max_size=3).map("".join)


@pytest.mark.slow
@settings(deadline=None)
@given(model=NAMES, path=NAMES, port=st.sampled_from(list(PORTS)), leaf=LEAVES)
@example(model="", path="", port="output", leaf="")
@example(model="(root)", path="", port="output", leaf="")
@example(model="", path="(root)", port="output", leaf="")
@example(model="G", path="enc", port="output", leaf="['a:b/c'][0]")
@example(model="", path="a", port="grad", leaf="['\n']")
def test_a_site_parses_back_from_its_text(model: str, path: str, port: Port, leaf: str) -> None:
    """Whatever a module, a model and a leaf are called, the text of their site names an equal site."""
    site = Site(path, port, leaf, model)
    assert Site.parse(str(site)) == site


@settings(deadline=None)
@given(first=st.tuples(NAMES, NAMES, LEAVES), second=st.tuples(NAMES, NAMES, LEAVES))
def test_different_sites_have_different_texts(first: tuple[str, str, str], second: tuple[str, str, str]) -> None:
    """Two sites have the same text only if they are equal, so that the text can be a key."""
    one, other = (Site(path, "output", leaf, model) for model, path, leaf in (first, second))
    assert (str(one) == str(other)) == (one == other)


@pytest.mark.parametrize(
    ("site", "text"),
    [
        (Site("layers.3.mlp"), "layers.3.mlp:output"),
        (Site(""), "(root):output"),
        (Site("", "output", ".logits"), "(root):output.logits"),
        (Site("enc", "grad_output", "[0]", "G"), "G/enc:grad_output[0]"),
        (Site("", "input", "", "G"), "G/(root):input"),
        (Site("head.weight", "grad"), "head.weight:grad"),
        (Site("a/b c", "output"), "a%2Fb%20c:output"),
        (Site("h", "output", "['hidden'][2]"), "h:output['hidden'][2]"),
    ],
)
def test_the_text_of_a_site(site: Site, text: str) -> None:
    """The text has the form ``[model/]path:port[leaf]``, with ``(root)`` for the empty path, in both directions."""
    assert str(site) == text
    assert Site.parse(text) == site


@settings(deadline=None)
@given(path=NAMES, others=st.lists(NAMES), model=NAMES, port=st.sampled_from(list(PORTS)), leaf=LEAVES)
@example(path="a:output", others=["b"], model="", port="grad_output", leaf="[0]")
@example(path="a/b", others=["b"], model="a", port="output", leaf="['c:output']")
@example(path="a:output", others=["a", "a%3Aoutput"], model="", port="output", leaf="")
def test_a_name_and_a_text_find_their_own_site_or_say_that_they_can_mean_two(
    path: str, others: list[str], model: str, port: Port, leaf: str
) -> None:
    """Whatever a model's names are, its own name, also with a port and a leaf, and the site's text never find another place."""
    known, wanted = [Site(each, model=model) for each in (path, *others)], Site(path, port, leaf, model)
    raw = f"{model}/{path}" if model else path
    for key, site, whole in (
        (raw, Site(path, model=model), True),
        (f"{raw}:{port}{leaf}", wanted, False),
        (str(wanted), wanted, False),
    ):
        if sum(Site(each.path, model=each.model) in known for each in Site.readings(key)) == 1:
            assert Site.asked(key, known) == (site, whole)
        else:
            with pytest.raises(SiteError, match="can mean"):
                Site.asked(key, known)
    assert Site.asked(wanted, known) == (wanted, False)


def test_a_text_that_can_mean_two_places_names_both_and_the_way_out() -> None:
    """One is the module whose site has this text, the other the module whose name it is."""
    with pytest.raises(SiteError, match=r"'a%3Ab' can mean a%3Ab:output and a%253Ab:output.*Site\('a%3Ab', 'output'\)"):
        Site.asked("a%3Ab", [Site("a:b"), Site("a%3Ab")])


def test_the_port_may_be_left_out() -> None:
    """A text without a port names the output."""
    assert Site.parse("layers.0") == Site("layers.0", "output")
    assert Site.parse("G/(root)") == Site("", "output", "", "G")


@pytest.mark.parametrize(
    "text",
    ["", ":output", "a:", "a:Output", "a:outputs", "a:output[0", "a:output0", "a b:output", "a/b/c:output", "/a:output", "a[0]"],
)
def test_a_text_that_is_no_site_raises_and_says_how_one_is_written(text: str) -> None:
    """A text that cannot be read raises ``SiteError`` with the text itself, the form, examples and the ports."""
    with pytest.raises(SiteError) as raised:
        Site.parse(text)
    message = str(raised.value)
    assert repr(text) in message
    assert "[model/]path:port[leaf]" in message
    assert "layers.3.mlp:output" in message
    assert all(port in message for port in PORTS)


@pytest.mark.parametrize(
    ("text", "name", "layer", "owner"),
    [
        ("G/layers.3.mlp:output[0]", "G/layers.3.mlp[0]", "layers.3.mlp", "G/layers.3.mlp:output"),
        ("(root):output.logits", "(root).logits", "", "(root):output"),
        ("layers.3.weight:grad", "layers.3.weight", "layers.3", "layers.3:output"),
        ("weight:param", "weight", "", "(root):output"),
        ("G/weight:update", "G/weight", "", "G/(root):output"),
        ("a%2Fb.weight:grad", "a%2Fb.weight", "a/b", "a%2Fb:output"),
        ("a:grad_output['x:y']", "a['x:y']", "a", "a:output"),
    ],
)
def test_a_site_says_which_layer_it_belongs_to(text: str, name: str, layer: str, owner: str) -> None:
    """A module's site belongs to the module, a parameter's to the module that holds the parameter, whatever the model is called."""
    site = Site.parse(text)
    assert (site.name, site.layer, str(site.owner)) == (name, layer, owner)


def test_the_table_of_ports_has_every_port_once() -> None:
    """The names for type checkers are the keys of the table, in its order, and each port belongs to a module or a parameter."""
    assert get_args(Port) == tuple(PORTS)
    assert sorted((*MODULE_PORTS, *PARAMETER_PORTS)) == sorted(PORTS)
    assert GRADIENT_PORTS == ("grad_output", "grad_input", "grad")
    assert all(info.words and info.unit for info in PORTS.values())


def test_site_errors_are_value_errors_of_sonde() -> None:
    """``SiteError`` can be caught as a ``ValueError`` and as a ``SondeError``."""
    assert issubclass(SiteError, ValueError)
    assert issubclass(SiteError, SondeError)


def test_an_unknown_port_raises_when_the_site_is_made() -> None:
    """``Site(..., port=...)`` with an unknown port raises at once and lists the ports."""
    with pytest.raises(SiteError, match=r"'weights' is not a port; the ports are input, output"):
        Site("a", "weights")  # type: ignore[arg-type]  # what a user might write


@pytest.mark.parametrize("leaf", ["logits", "0", " .a", "output"])
def test_a_leaf_that_cannot_be_read_back_raises_when_the_site_is_made(leaf: str) -> None:
    """A leaf that is no path (it begins with neither ``.`` nor a bracket) raises at once, not when the text is read."""
    with pytest.raises(SiteError, match="leaf"):
        Site("a", "output", leaf)


def test_narrowing_a_site_keeps_the_rest_of_it() -> None:
    """``at`` changes the leaf alone; ``port_of`` changes the port and drops the leaf, which need not exist there."""
    site = Site("enc", "output", "[0]", "G")
    assert site.at("[1]") == Site("enc", "output", "[1]", "G")
    assert site.at("[0]") is site
    assert site.port_of("grad_output") == Site("enc", "grad_output", "", "G")


def test_a_site_is_an_immutable_key() -> None:
    """Sites hash and sort by value and cannot be changed."""
    assert {Site("a"): 1}[Site("a")] == 1
    assert sorted([Site("b"), Site("a", "output"), Site("a", "input")]) == [Site("a", "input"), Site("a"), Site("b")]
    with pytest.raises(AttributeError):
        Site("a").path = "b"  # type: ignore[misc]  # this is the point
