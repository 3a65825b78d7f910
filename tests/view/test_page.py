"""The kit that every HTML page is made with: escaping, policy, shell; and the one function that escapes for HTML."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from pathlib import Path

import pytest

import sonde.view
from sonde.answer import html_page, in_frame
from sonde.errors import ArgumentError
from sonde.escape import embed_json, escape_html, printable

ASSETS = Path(sonde.view.__file__).parent / "assets" / "graph"
HOSTILE = '</script><img src=x onerror="alert(1)">\' & \x00\x1b[31m\udc80 $title'


def test_html_shows_any_text_and_holds_no_markup_of_it() -> None:
    assert escape_html("a < b & \"c\" 'd'") == "a &lt; b &amp; &quot;c&quot; &#x27;d&#x27;"
    assert escape_html(3) == "3"
    escape_html(HOSTILE).encode()  # no lone surrogate is left
    assert not set("<>\"'\x00\x1b") & set(escape_html(HOSTILE))


def test_control_characters_and_surrogates_are_replaced_and_nothing_else() -> None:
    assert printable("tab\tline\nÄ 中 🙂 \x07\r\x9b\ud800") == "tab\tline\nÄ 中 🙂 \ufffd\ufffd\ufffd\ufffd"


def test_data_in_a_script_element_reads_back_equal() -> None:
    data = {"name": HOSTILE, "values": [1.5, None, True, (2, 3)], "deep": {"x": [math.nan, math.inf, -math.inf]}}
    text = embed_json(data)
    assert "<" not in text
    assert text.isascii()
    assert json.loads(text) == {"name": HOSTILE, "values": [1.5, None, True, [2, 3]], "deep": {"x": ["NaN", "∞", "−∞"]}}


def page() -> str:
    """A page of its own, with the parts of the graph's."""
    return html_page(
        HOSTILE,
        "graph.html",
        assets=ASSETS,
        texts={"model": HOSTILE},
        module="colours.js",
        data={"held": {"x": HOSTILE}},
        libraries={"lib": "let a;"},
    )


def test_a_page_holds_its_parts_and_a_stranger_s_text_is_text() -> None:
    made = page()
    assert made.count("<script") == 3
    assert "<img" not in made
    (data,) = re.findall(r'<script id="held" type="application/json">(.*?)</script>', made)
    assert json.loads(data) == {"x": HOSTILE}
    assert '<script id="lib" type="text/plain">let a;</script>' in made
    assert "const RECORDED" in made
    assert made.index("--paper") < made.index("<body>") < made.index("const RECORDED")
    made.encode()


def test_the_policy_allows_the_page_s_own_script_and_no_other() -> None:
    made = page()
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', made)
    (script,) = re.findall(r"<script>(.*?)</script>", made, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}' 'wasm-unsafe-eval' blob:;" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]


def test_a_library_that_would_end_its_element_is_refused() -> None:
    with pytest.raises(ArgumentError, match="'lib' cannot stand in a page"):
        html_page("t", "graph.html", assets=ASSETS, texts={"model": ""}, libraries={"lib": "'</SCRIPT>'"})


def test_a_notebook_shows_a_page_in_a_closed_frame() -> None:
    frame = in_frame(page(), HOSTILE, 300)
    assert frame.startswith('<iframe title="&lt;/script&gt;')
    assert 'sandbox="allow-scripts allow-downloads"' in frame
    assert frame.count("<") == 2
