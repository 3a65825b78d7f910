"""What repeats: experts, steps of a loop, members of an ensemble; and what a reader must see is never folded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sonde.graph import Graph, capture
from sonde.testing.zoo import Net

F = nn.functional


class Expert(nn.Module):
    """Two layers."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(self.up(x).relu())
        return out


def folded(model: nn.Module, *inputs: Tensor) -> Graph:
    """The folded graph, checked and read back."""
    graph = capture(model, *inputs).fold()
    graph.check()
    assert Graph.from_json(graph.to_json()) == graph
    return graph


def repeats(graph: Graph) -> dict[str, int]:
    """How many blocks each node of the model's own frame stands for, by path or name."""
    (root,) = (node.id for node in graph.nodes if node.kind == "module" and not node.path)
    held = [node for node in graph.children[root] if node.kind in ("module", "operation")]
    return {node.path or node.name: node.repeat for node in held if node.repeat > 1}


def dispatched(choice: list[int], experts: int = 4) -> Graph:
    """A layer of experts, each of which reads the tokens chosen for it, if there are any."""

    def forward(net: Any, x: Tensor, choice: Tensor) -> Tensor:
        out, hit = torch.zeros_like(x), set(choice.tolist())
        for number, expert in enumerate(net.experts):
            if number in hit:
                (rows,) = torch.where(choice == number)
                out.index_add_(0, rows, expert(x[rows]))
        return out

    model = Net(forward, experts=nn.ModuleList(Expert() for _ in range(experts)))
    return folded(model, torch.randn(len(choice), 4), torch.tensor(choice))


@pytest.mark.parametrize(
    ("choice", "numbers", "sizes"), [([0, 1, 2, 3, 3, 3, 2], "0…3", "1…3×4"), ([1, 0, 3], "0…3", "1×4"), ([2, 3], "2…3", "1×4")]
)
def test_experts_of_a_layer_are_one(choice: list[int], numbers: str, sizes: str) -> None:
    """The number of the expert counts up, also past experts without tokens; the sizes are those of all experts."""
    graph = dispatched(choice)
    times = len(set(choice))
    assert set(repeats(graph).values()) == {times}
    assert [node.arguments for node in graph.nodes if node.name == "eq"] == [numbers]
    (expert,) = (node for node in graph.nodes if node.type == "Expert")
    assert str(graph.values[expert.outputs[0]]) == sizes
    assert f"× {times}\\nExpert\\n{sizes}" in graph.collapse(1).to_dot()


def test_experts_without_modules_are_one() -> None:
    """Their weights lie in one parameter, from which each takes its own."""

    def forward(net: Any, x: Tensor, choice: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for number in range(len(net.weights)):
            (rows,) = torch.where(choice == number)
            out.index_add_(0, rows, F.linear(x[rows], net.weights[number]))
        return out

    model = Net(forward)
    model.weights = nn.Parameter(torch.randn(3, 4, 4))
    found = repeats(folded(model, torch.randn(7, 4), torch.tensor([0, 1, 1, 2, 2, 2, 2])))
    assert set(found) == {"eq", "where", "getitem", "linear", "index_add_"}
    assert set(found.values()) == {3}


def loop(step: Callable[[Any, Any, Tensor], tuple[Tensor, Any]], start: Callable[[Any], Any], **modules: nn.Module) -> nn.Module:
    """A model that takes six steps through its input, each from the state that the step before has left."""

    def forward(net: Any, x: Tensor) -> Tensor:
        state, out = start(net), []
        for number in range(6):
            y, state = step(net, state, x[number])
            out.append(y)
        return torch.stack(out)

    return Net(forward, **modules)


def step_of_cell(net: Any, state: Any, x: Tensor) -> tuple[Tensor, Any]:
    state = net.cell(x, state)
    return state[0], state


STATES: dict[str, Callable[[Any], Any]] = {
    "zeros made by the cell": lambda net: None,
    "one tensor of zeros": lambda net: (torch.zeros(3, 4),) * 2,
    "two tensors": lambda net: (torch.zeros(3, 4), torch.ones(3, 4)),
    "what the input gives": lambda net: net.first(torch.ones(3, 2)).chunk(2, -1),
}


@pytest.mark.parametrize("start", STATES)
def test_a_cell_in_a_loop_is_one_wherever_its_first_state_comes_from(start: str) -> None:
    model = loop(step_of_cell, STATES[start], cell=nn.LSTMCell(4, 4), first=nn.Linear(2, 8))
    graph = folded(model, torch.randn(6, 3, 4))
    assert repeats(graph) == {"getitem": 6, "cell": 6}
    assert [node.arguments for node in graph.nodes if node.repeat == 6 and node.name == "getitem"] == ["0…5"]


def test_a_learned_first_state_is_shown() -> None:
    """It is a parameter that only the first step reads."""
    model = loop(step_of_cell, lambda net: (net.state, net.state), cell=nn.LSTMCell(4, 4))
    model.state = nn.Parameter(torch.randn(3, 4))
    graph = folded(model, torch.randn(6, 3, 4))
    assert repeats(graph) == {"getitem": 6, "cell": 6}
    (state,) = (node for node in graph.nodes if node.path == "state")
    assert [graph.by_id[edge.target].name for edge in graph.edges if edge.source == state.id] == ["lstm_cell"]


def decode(net: Any, state: Any, x: Tensor) -> tuple[Tensor, Any]:
    """Attend to all tokens so far."""
    state = tuple(torch.cat([held, layer(x)], 1) for held, layer in zip(state, (net.key, net.value), strict=True))
    return net.head(F.scaled_dot_product_attention(net.query(x), *state)), state


def test_unrolled_decoding_is_one_step_whose_sizes_grow() -> None:
    """Each step adds a token to the keys and values of those before."""
    layers = {name: nn.Linear(4, 4) for name in ("query", "key", "value", "head")}
    graph = folded(loop(decode, lambda net: (torch.zeros(1, 3, 4),) * 2, **layers), torch.randn(6, 1, 1, 4))
    found = repeats(graph)
    assert set(found.values()) == {6}
    assert set(layers) <= set(found)
    assert {str(graph.values[node.outputs[0]]) for node in graph.nodes if node.name == "cat"} == {"1×4…9×4"}


def test_a_first_step_that_does_less_is_shown() -> None:
    """Without a cache nothing is joined to it: the five steps after are one."""

    def step(net: Any, state: Any, x: Tensor) -> tuple[Tensor, Any]:
        state = net.mix(x) if state is None else torch.cat([state, net.mix(x)], 1)
        return net.head(state.sum(1)), state

    graph = folded(loop(step, lambda net: None, mix=nn.Linear(4, 4), head=nn.Linear(4, 4)), torch.randn(6, 1, 1, 4))
    calls = [(node.path, node.call, node.repeat) for node in graph.modules() if node.path]
    assert calls == [("mix", 0, 1), ("head", 0, 1), ("mix", 1, 5), ("head", 1, 5)]


def test_both_directions_of_a_recurrent_network_are_two_loops() -> None:
    """Six steps forward and six back; the second loop counts down."""

    def forward(net: Any, x: Tensor) -> Tensor:
        there = back = torch.zeros(3, 4)
        for number in range(6):
            there = net.there(x[number], there)
        for number in reversed(range(6)):
            back = net.back(x[number], back)
        return torch.cat([there, back], 1)

    graph = folded(Net(forward, there=nn.GRUCell(4, 4), back=nn.GRUCell(4, 4)), torch.randn(6, 3, 4))
    assert [(node.path, node.repeat) for node in graph.modules()[1:]] == [("there", 6), ("back", 6)]
    assert [node.arguments for node in graph.nodes if node.name == "getitem"] == ["0…5", "5…0"]


def blocks(count: int) -> nn.ModuleList:
    return nn.ModuleList(Expert() for _ in range(count))


def summed(net: Any, x: Tensor) -> Any:
    return sum(weight * each(x) for weight, each in zip(x[0], net.each, strict=True))


ALIKE: dict[str, tuple[nn.Module, Tensor]] = {
    "members of an ensemble": (
        Net(lambda net, x: torch.stack([each(x) for each in net.each]).mean(0), each=blocks(4)),
        torch.ones(2, 4),
    ),
    "a sum that begins at the number 0": (Net(summed, each=blocks(4)), torch.ones(2, 4)),
    "one module on crops of two sizes": (
        Net(lambda net, x: sum(net.each(crop).mean() for crop in (x, x, x[1:], x[1:])), each=Expert()),
        torch.ones(2, 4),
    ),
    "heads that each read a part": (
        Net(lambda net, x: torch.cat([each(x[:, 4 * at : 4 * at + 4]) for at, each in enumerate(net.each)]), each=blocks(4)),
        torch.ones(2, 16),
    ),
    "one module in a chain": (Net(lambda net, x: net.each(net.each(net.each(net.each(x)))), each=Expert()), torch.ones(2, 4)),
}


@pytest.mark.parametrize("name", ALIKE)
def test_branches_and_calls_that_are_alike_are_one(name: str) -> None:
    assert {path: count for path, count in repeats(folded(*ALIKE[name])).items() if path.startswith("each")} == {
        ("each" if "one" in name else "each.0"): 4
    }


def test_two_blocks_in_turn_repeat_as_a_pair_on_the_page_too() -> None:
    """A B A B is twice A B; a pair of layers only from three on."""

    def other() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    graph = capture(nn.Sequential(Expert(), other(), Expert(), other()), torch.ones(2, 4))
    assert repeats(graph.fold()) == {"0": 2, "1": 2}
    assert [[node.path for node in run.outermost] for run in graph.repeated()] == [["0", "1", "2", "3"]]
    layers = capture(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh()), torch.ones(2, 4))
    assert list(layers.repeated()) == []


def test_a_block_begins_where_its_block_begins() -> None:
    """Not at an operation before it that is the one it ends with."""

    def forward(net: Any, x: Tensor) -> Tensor:
        x = x + x
        for each in net.each:
            x = x + each(x)
        return x

    graph = folded(Net(forward, each=blocks(3)), torch.ones(2, 4))
    assert [(node.name, node.repeat) for node in graph.nodes if node.name == "add"] == [("add", 1), ("add", 3)]


class Half(Expert):
    """The same in another class."""


def to_double(net: Any, x: Tensor) -> Tensor:
    out: Tensor = net.one(x).sum() + net.two(x.double()).sum()
    return out


def chain(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*(nn.Sequential(layer, nn.ReLU()) for layer in layers))


DIFFERENT: dict[str, tuple[nn.Module, Tensor]] = {
    "class": (nn.Sequential(Expert(), Half()), torch.ones(2, 4)),
    "width": (chain(nn.Linear(8, 4), nn.Linear(4, 2), nn.Linear(2, 1)), torch.ones(2, 8)),
    "dtype": (Net(to_double, one=Expert(), two=Expert().double()), torch.ones(2, 4)),
    "dilation that counts": (chain(*(nn.Conv1d(2, 2, 3, dilation=by, padding=by) for by in (1, 2, 3))), torch.ones(1, 2, 9)),
    "size of a pool": (chain(*(nn.MaxPool1d(size, 1, size // 2) for size in (5, 9, 13))), torch.ones(1, 2, 32)),
    "share of a dropout": (chain(*(nn.Dropout(share) for share in (0.1, 0.2, 0.3))), torch.ones(2, 4)),
    "axis": (chain(*(nn.Softmax(axis) for axis in (0, 1, 2))), torch.ones(2, 2, 2)),
    "tokens of cross-attention": (
        Net(lambda net, x: net.query(x[:, :1]) @ net.key(x).mT, query=nn.Linear(4, 4), key=nn.Linear(4, 4)),
        torch.ones(1, 5, 4),
    ),
    "operations alone": (Net(lambda net, x: ((x + 1) * 2 + 1) * 2 + net.last(x), last=nn.Linear(4, 4)), torch.ones(2, 4)),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_a_reader_must_see_is_never_folded(name: str) -> None:
    model, x = DIFFERENT[name]
    graph = capture(model, x)
    assert graph.fold() == graph
    assert list(graph.repeated()) == []


def test_copies_that_are_joined_otherwise_inside_are_shown() -> None:
    """The second pair adds its input, the third does not: what reads what is part of a block."""

    def forward(net: Any, x: Tensor) -> Tensor:
        for at in range(3):
            y = net.one[at](x)
            z = net.two[at](x if at == 2 else y)
            x = z + y
        return x

    model = Net(forward, one=nn.ModuleList(nn.Linear(4, 4) for _ in range(3)), two=nn.ModuleList(Expert() for _ in range(3)))
    assert repeats(folded(model, torch.ones(2, 4))) == {"one.0": 2, "two.0": 2, "add": 2}


@pytest.mark.slow
def test_a_decoder_of_transformers_folds_its_experts_and_what_it_generates() -> None:
    """Mixtral runs each expert in a loop over those with tokens; each generated token is one step after the first."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50}
    config = transformers.MixtralConfig(**sizes, num_key_value_heads=2, num_local_experts=4, eos_token_id=None)
    config._experts_implementation = "eager"
    model, ids = transformers.MixtralModel(config).eval(), torch.randint(0, 50, (2, 9))
    graph = capture(model, ids)
    (experts,) = (node for node in graph.fold().modules() if node.type == "MixtralExperts")
    steps = [node.repeat for node in graph.fold().children[experts.id] if node.name == "index_add_"]
    assert steps == [4]

    config = transformers.LlamaConfig(**sizes, eos_token_id=None)
    language = transformers.LlamaForCausalLM(config).eval()
    decoding = Net(lambda net, ids: net.lm.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0), lm=language)
    calls = [(node.call, node.repeat) for node in capture(decoding, ids[:1]).fold()["lm"]]
    assert calls == [(0, 1), (1, 4)]
