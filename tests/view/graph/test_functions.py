"""The functions of the graph's page, on data made by hand: names, columns, places of texts, colours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sonde.view

ASSETS = Path(sonde.view.__file__).parent / "assets"
ADDRESS = "http://graph.test"

# A module "net" with two equal layers "a" and "b", and a third, "c"; input -> a -> b -> c.
NODES: list[dict[str, Any]] = [
    {"id": 0, "kind": "input", "name": "x", "outputs": [0]},
    {"id": 1, "kind": "module", "name": "net", "type": "Net", "path": ""},
    {"id": 2, "kind": "module", "name": "a", "type": "Linear", "path": "part.a", "parent": 1, "parameters": 1234, "flops": 56_000},
    {"id": 3, "kind": "operation", "name": "linear", "parent": 2, "outputs": [1]},
    {"id": 4, "kind": "module", "name": "b", "type": "Linear", "path": "part.b", "parent": 1},
    {"id": 5, "kind": "operation", "name": "linear", "parent": 4, "outputs": [2]},
    {"id": 6, "kind": "module", "name": "c", "type": "Tanh", "path": "part.c", "parent": 1},
    {"id": 7, "kind": "operation", "name": "tanh", "parent": 6, "outputs": [3]},
]
GRAPH = {
    "nodes": NODES,
    "edges": [[0, 3, 0], [3, 5, 1], [5, 7, 2]],
    "values": [[[4, 3], "float32"], [[4, 3], "float32"], [[4, 3], "float32"], [[], "float32"]],
    "repeats": [[2, 2, 4]],
    "series": [],
}


@pytest.fixture(scope="module")
def run(browser: Any) -> Iterator[Callable[[str], Any]]:
    """Runs a script that imports the page's modules by ``from_page(name)``, on a page that holds ``GRAPH`` and the page's body."""
    context = browser.new_context()
    said: list[str] = []

    def answer(route: Any) -> None:
        path = route.request.url.removeprefix(ADDRESS)
        if path == "/":
            body = (ASSETS / "graph" / "graph.html").read_text(encoding="utf-8")
            route.fulfill(
                body=f'<body>{body}<script id="graph" type="application/json">{json.dumps(GRAPH)}</script></body>',
                content_type="text/html; charset=utf-8",
            )
        else:
            route.fulfill(
                body=(ASSETS / path.lstrip("/")).read_text(encoding="utf-8"), content_type="text/javascript; charset=utf-8"
            )

    context.route(f"{ADDRESS}/**", answer)
    page = context.new_page()
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(f"{ADDRESS}/")
    yield lambda script: page.evaluate(f"async () => {{ const from_page = (name) => import(`/${{name}}.js`); {script} }}")
    context.close()
    assert said == []


def test_names_say_what_a_node_stands_for(run: Callable[[str], Any]) -> None:
    """Two equal blocks in a row are one, with the name of the last; unfolded, each says which copy it is."""
    found = run("""
        const { model, state, openTo, visible } = await from_page("graph/model");
        const words = await from_page("graph/words");
        const node = (id) => model.nodes.get(id);
        openTo(1);
        const shown = visible();
        const folded = [words.nameOf(node(2)), words.timesOf(node(2)), words.costOf(node(2)), words.analogues(node(2))];
        state.repeats = false;
        const all = visible().nodes.map(({ id }) => id);
        state.repeats = true;
        state.unfolded.add(0);
        const one = words.timesOf(node(4));
        state.unfolded.clear();
        return { shown: [shown.nodes.map(({ id }) => id), shown.edges.map(({ from, to }) => [from, to])], folded, all, one,
                 shapes: [0, 3].map(words.shapeOf), long: words.abbreviated("abcdefghijklmn-in-the-middle-opqrstuvwxyz") };
    """)
    assert found["folded"] == ["part.a … b", "× 2", "1.23 k params · 56 kFLOP", [2, 4]]
    assert found["shown"] == [[0, 1, 2, 6], [[0, 2], [2, 6]]]
    assert found["all"] == [0, 1, 2, 4, 6]
    assert found["one"] == "2 of 2"
    assert found["shapes"] == ["4×3", "scalar"]
    assert found["long"].startswith("abcdefghijklmn…")
    assert found["long"].endswith("opqrstuvwxyz")
    assert len(found["long"]) <= 34


def test_a_title_stands_where_no_edge_runs(run: Callable[[str], Any]) -> None:
    """A frame from 0 to 300. Widths of 200 with the class and 90 without; lines run down at x."""
    found = run("""
        const { titlePlace } = await from_page("graph/labels");
        const frame = { left: 0, right: 300, top: 0 };
        const at = (...xs) => titlePlace(frame, [200, 90], xs.map((x) => [[x, -10], [x, 50]]));
        return [at(), at(60), at(100), at(100, 200), at(100, 190), at(50, 100, 150, 200, 250)];
    """)
    assert [(each["x"], each["form"], each["free"]) for each in found] == [
        (10, 0, True),  # nothing in the way
        (65, 0, True),  # to the right of the line
        (105, 1, True),  # too little room for the class
        (105, 1, True),  # between two lines
        (195, 1, True),  # behind both
        (10, 1, False),  # none anywhere
    ]


def test_shapes_stand_beside_edges_and_on_nothing(run: Callable[[str], Any]) -> None:
    """One tensor read twice is named once; where a box leaves no room, the text goes to the other side, or is left out."""
    found = run("""
        const { shapePlaces } = await from_page("graph/labels");
        const box = (left, top) => ({ left, right: left + 40, top, bottom: top + 20 });
        const run = (more, frames = []) => {
            const boxes = new Map([[1, box(0, 0)], [2, box(0, 80)], ...more.map((held, at) => [3 + at, held])]);
            const line = Array.from({ length: 13 }, (_, at) => [20, 20 + 5 * at]);
            const edges = [{ from: 1, to: 2 }, { from: 1, to: 2 }];
            const texts = new Map([["1_2", { text: "4×3", wide: 30 }]]);
            return shapePlaces({ boxes, frames: new Map([["c1", frames]]), edges }, [], [line, line], texts);
        };
        const wall = (left) => ({ left, right: left + 100, top: 20, bottom: 80 });
        const border = (top) => ({ left: -100, right: 100, top, bottom: 200 });
        return [run([]), run([wall(22)]), run([wall(22), wall(-82)]), run([], [border(33)])];
    """)
    assert [len(each) for each in found] == [1, 1, 0, 1]
    assert found[0][0] == {"text": "4×3", "x": 27, "y": 33}
    assert found[1][0]["x"] == 20 - 7 - 30
    assert found[3][0]["y"] - 7 > 33  # below the border of a frame


def test_a_curve_is_parted_at_a_height(run: Callable[[str], Any]) -> None:
    found = run("""
        const { divided, joined, split } = await from_page("graph/columns");
        const curve = [[0, 0], [0, 30], [10, 60], [10, 90]];
        return { parts: split(curve, 45), none: split(curve, 100), half: divided(curve, 0.5)[0].at(-1),
                 ranges: joined([[20, 30], [0, 10], [9, 12], [60, 70]]) };
    """)
    assert found["half"] == [5, 45]
    upper, lower = found["parts"]
    assert upper[0] == [0, 0]
    assert lower[-1] == [10, 90]
    assert upper[-1] == lower[0]
    assert abs(upper[-1][1] - 45) < 1e-3  # 24 halvings of 90
    assert found["none"] is None
    assert found["ranges"] == [{"top": 0, "bottom": 12}, {"top": 20, "bottom": 30}, {"top": 60, "bottom": 70}]


def test_values_have_the_colours_and_marks_of_the_live_page(run: Callable[[str], Any]) -> None:
    found = run("""
        const { inkOn, markOf, shade } = await from_page("graph/colours");
        const { MARKS, ramp } = await from_page("app/scales");
        const of = (name, place) => [...ramp(name).slice(3 * place, 3 * place + 3)];
        const marks = [null, "NaN", "∞", "−∞", 0].map((value) => MARKS[markOf(value, true, null)].name);
        const scale = { low: 1, high: 10, least: 0.1, most: 100 };
        const light = (rgb) => {
            const [r, g, b] = rgb.map((part) => part / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const grounds = [...MARKS.filter((mark) => mark?.colour).map((mark) => mark.colour),
                         ...["sequential", "diverging"].flatMap((name) => Array.from({ length: 256 }, (_, at) => of(name, at)))];
        const contrasts = grounds.map((rgb) => {
            const [one, other] = [light(rgb), inkOn(rgb) === "#000" ? 0 : 1];
            return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        });
        return { shades: [0, 0.5, 1, 2].map((share) => shade(share, false)),
                 ramp: [0, 128, 255, 255].map((at) => of("sequential", at)),
                 signed: [shade(0.5, true), of("diverging", 128)], marks,
                 beyond: [0.5, 5, 50].map((value) => markOf(value, false, scale)), zero: markOf(0, false, null),
                 least: Math.min(...contrasts) };
    """)
    assert found["shades"] == found["ramp"]
    assert found["signed"][0] == found["signed"][1]
    assert found["marks"] == ["not recorded", "NaN", "infinite", "−infinity", "exactly 0"]
    assert found["beyond"] == ["below", None, "above"]
    assert found["zero"] is None
    assert found["least"] >= 4.5
