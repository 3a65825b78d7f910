"""The seed's names, and the defects of the original that are not here (R1 to R23)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sonde.errors import ArgumentError, ModelError
from sonde.graph import (
    BaseNode,
    BaseRenderer,
    GraphvizStyler,
    LayerNode,
    OpNode,
    ParamNode,
    Recorder,
    TensorNode,
    make_dot,
    record,
    render_network,
)
from sonde.testing.zoo import Net

x = torch.arange(6.0).reshape(2, 3)


def pairs(rec: Recorder, depth: int = 256) -> list[tuple[str, str]]:
    """The edges that are drawn at a depth, by name in one line."""
    source = make_dot(rec, depth).source
    names = {str(key): node.name.replace("\n", " ") for key, node in rec.nodes.items()}
    return [(names[one], names[other]) for one, other in re.findall(r"^\s*(\d+) -> (\d+)", source, re.MULTILINE)]


def test_hooks_a_run_of_one_s_own_and_no_hooks() -> None:
    """The lifecycle: layers are nodes from the start, the rest after the run, and nothing comes after the hooks are out."""
    net, rec = nn.Sequential(nn.Linear(3, 4), nn.ReLU()), Recorder()
    rec.register_hooks(net)
    assert [node.name for node in rec.nodes.values()] == ["ContextDummy", "Sequential", "0\n(Linear)", "1\n(ReLU)"]
    net(x)
    rec.remove_hooks()
    recorded = dict(rec.nodes)
    net(x)
    assert dict(rec.nodes) == recorded
    assert [(type(node), node.name, node.depth) for node in rec.nodes.values()] == [
        (BaseNode, "ContextDummy", -1),
        (TensorNode, "Tensor", 0),
        (LayerNode, "Sequential", 0),
        (LayerNode, "0\n(Linear)", 1),
        (ParamNode, "weight", 2),
        (ParamNode, "bias", 2),
        (OpNode, "linear", 2),
        (TensorNode, "Tensor-2", 1),
        (LayerNode, "1\n(ReLU)", 1),
        (OpNode, "relu", 2),
        (TensorNode, "Tensor-3", 0),
    ]
    assert rec.fn_types == {"Tensor": 3, "Sequential": 1, "Linear": 1, "Parameter": 2, "linear": 1, "ReLU": 1, "relu": 1}
    assert rec.fn_set == set(rec.nodes)
    assert rec.graph is not None


def test_nodes_lie_in_their_parents_and_stand_for_what_they_should() -> None:
    """`fn` is the module or parameter, or a tensor of the same shape and dtype that takes no memory."""
    net = nn.Sequential(nn.Linear(3, 4))
    rec = record(net, "Net", None, x)
    layer = next(node for node in rec.nodes.values() if isinstance(node, LayerNode) and node.depth == 1)
    inside = [rec.nodes[key] for key in layer.subnets]
    assert layer.fn is net[0]
    assert [node.name for node in inside] == ["weight", "bias", "linear"]
    assert inside[0].fn is net[0].weight
    tensors = [node.fn for node in rec.nodes.values() if type(node) is TensorNode]
    assert [(tuple(held.shape), held.dtype, held.is_meta) for held in tensors] == [
        ((2, 3), torch.float32, True),
        ((2, 4), torch.float32, True),
    ]
    assert rec.nodes[layer.parent].name == "Net"


def test_edges_have_times_that_rise_from_zero() -> None:
    """Seconds since the first, to a microsecond, in the order of reading."""
    rec = record(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), "Net", (2, 3))
    times = sorted(time for _, _, time in rec.edges)
    assert times[0] == 0
    assert all(time == round(time, 6) for time in times)
    ops = [node.key for node in rec.nodes.values() if isinstance(node, OpNode)]
    first, second = (min(time for _, target, time in rec.edges if target == key) for key in ops)
    assert first <= second


def test_nodes_and_edges_of_one_s_own() -> None:
    """`add_node` takes what the original took, and says what it does not take."""
    rec = Recorder()
    keys = [rec.add_node(held) for held in (nn.Linear(2, 2), nn.Parameter(x), x, x.clone().requires_grad_().exp().grad_fn)]
    rec.add_edge(keys[2], keys[0])
    assert [type(rec.nodes[key]) for key in keys] == [LayerNode, ParamNode, TensorNode, OpNode]
    assert [rec.nodes[key].name for key in keys] == ["Linear", "Parameter", "Tensor", "ExpBackward0"]
    assert rec.add_node(x) == 4
    assert rec.nodes[4].name == "Tensor-2"
    assert {(source, target) for source, target, _ in rec.edges} == {(keys[2], keys[0])}
    with pytest.raises(ArgumentError, match="Cannot create node for 'text'"):
        rec.add_node("text")
    with pytest.raises(ArgumentError, match=r"Cannot draw edge involving \(0, None\)"):
        rec.add_edge(0, None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="no key"):
        rec.add_node(x, parent=99)


def test_a_recorder_has_one_model_at_a_time() -> None:
    """And only a model."""
    rec = Recorder()
    with pytest.raises(ModelError):
        rec.register_hooks("net")  # type: ignore[arg-type]
    rec.register_hooks(nn.Linear(3, 3))
    with pytest.raises(ArgumentError, match="remove_hooks"):
        rec.register_hooks(nn.Linear(3, 3))
    rec.remove_hooks()


class ConvSample(nn.Module):
    """The original's example for a styler of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.relu = nn.Conv2d(1, 5, 5, 2, 2), nn.Conv2d(5, 5, 3, 1, 1), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        first = self.conv1(x)
        return self.relu(first + self.conv2(first))


class ConvStyler(GraphvizStyler):
    """Shows the kernels of convolutions, and colours edges by the types of their ends."""

    def style_node(self, node: BaseNode) -> dict[str, str]:
        style = super().style_node(node)
        if isinstance(node.fn, nn.Conv2d):
            style |= {"label": f"{node.name}\nkernel {node.fn.kernel_size}", "penwidth": "2.4"}
        return style

    def style_edge(self, fnode: BaseNode, tnode: BaseNode) -> dict[str, str]:
        if isinstance(fnode.fn, nn.Conv2d) and isinstance(tnode.fn, Tensor):
            return {"color": "#ee8800"}
        return super().style_edge(fnode, tnode)


def test_a_styler_of_one_s_own() -> None:
    """It sees modules and tensors, and what it returns is drawn; its arguments hold for every node."""
    rec = record(ConvSample(), "ConvSample", (1, 1, 10, 10))
    source = make_dot(rec, render_depth=1, styler_cls=ConvStyler, fontname="Lato").source
    assert source.count("kernel (") == source.count("penwidth=2.4") == 2
    assert source.count("#ee8800") == 2
    nodes = [line for line in source.splitlines() if "fillcolor" in line]
    assert all("fontname=Lato" in line for line in nodes)
    plain = make_dot(rec, 1, fillcolor="pink").source
    assert plain.count("fillcolor=pink") == len(nodes) - 1  # the cluster is white


def test_a_renderer_of_one_s_own() -> None:
    """A subclass gets every node and edge that is shown, once."""

    class Lists(BaseRenderer):
        def render_node(self, dest: Any, node: BaseNode) -> None:
            if isinstance(node, LayerNode) and node.depth < self.render_depth:
                self.render_recursive_node(dest, node)
            else:
                dest.append(node.name)

        def render_recursive_node(self, dest: Any, node: LayerNode) -> None:
            for key in node.subnets:
                if self.rec.nodes[key] in self.processed:
                    self.render_node(dest, self.rec.nodes[key])

        def render_edge(self, dest: Any, fnode: BaseNode, tnode: BaseNode) -> None:
            dest.append((fnode.name, tnode.name))

    rec = record(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), "Net", (2, 3))
    assert Lists(rec, 1)([]) == [
        *("Input", "0\n(Linear)", "Tensor-2", "1\n(ReLU)", "Output"),
        ("Input", "0\n(Linear)"),
        ("0\n(Linear)", "Tensor-2"),
        ("Tensor-2", "1\n(ReLU)"),
        ("1\n(ReLU)", "Output"),
    ]
    with pytest.raises(ArgumentError, match="render_depth=-1"):
        make_dot(rec, -1)


def test_a_file_in_the_folder_and_under_the_name_asked_for(tmp_path: Path) -> None:
    """With the title the original gave, without the program dot, and the model stays in its mode (R21, R22)."""
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout()).eval()
    path = render_network(net, "Net", (2, 3), tmp_path / "new", filename="here", styler_cls=GraphvizStyler)
    assert path == tmp_path / "new" / "here.svg"
    assert "Net at depth = 1" in path.read_text()
    source = render_network(net, "Net", [(2, 3)], tmp_path, fmt="gv", render_depth=0)
    assert source.name == "Net-0.gv"
    assert not net.training
    assert int(net[0].num_batches_tracked) == 0  # type: ignore[arg-type]


def test_names_are_text_in_the_picture(tmp_path: Path) -> None:
    """A name that looks like Graphviz's HTML, an escape, or a control character is drawn as it is, or as a question mark."""
    name = "<b>N</b>"
    net = nn.Sequential()
    net.add_module(r"a\N\lb", nn.Identity())
    net.add_module("c\0d\udc80", nn.Identity())
    svg = render_network(net, name, (2, 3), tmp_path, filename="net").read_text()
    for shown in ("&lt;b&gt;N&lt;/b&gt; at depth", r"a\N\lb", "c\ufffdd\ufffd"):
        assert shown in svg


@pytest.mark.parametrize("shapes", [None, "wide", (2, -3), [(2, "3")]])
def test_shapes_that_are_none(shapes: Any) -> None:
    """Say how a shape is written."""
    with pytest.raises(ArgumentError, match="input_shapes"):
        record(nn.Linear(3, 3), "Net", shapes)


def test_several_inputs_and_outputs_are_numbered() -> None:
    """In order."""
    rec = record(Net(lambda net, a, b: (net.lin(a), net.lin(b)), lin=nn.Linear(3, 3)), "Net", [(2, 3), (4, 3)])
    names = {node.name for node in rec.nodes.values()}
    assert {"Input-1", "Input-2", "Output-1", "Output-2"} <= names


# Defects of the original


def test_a_layer_shared_by_two_blocks_trains_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """R1, R2, R4: no hook stays, gradients flow while and after recording, the input is left alone."""
    shared = nn.Linear(3, 3)
    net = nn.Sequential(nn.Sequential(shared), nn.Sequential(shared))
    rec = Recorder()
    rec.register_hooks(net)
    net(x).sum().backward()
    rec.remove_hooks()
    assert shared.weight.grad is not None
    assert not x.requires_grad
    assert make_dot(rec).source.count("(Linear)") == 2


def ragged() -> Tensor:
    """A nested tensor of two rows of unequal length."""
    return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)


@pytest.mark.parametrize(
    ("forward", "args"),
    [
        pytest.param(lambda net, ids: net.emb(ids), (torch.tensor([[1, 2]]),), id="R3 token ids"),
        pytest.param(lambda net, x: {"y": net.lin(x), "none": None, "deep": [(net.lin(x),)]}, (x,), id="R5 dict, None, nested"),
        pytest.param(lambda net, x: net.attention(x, x, x), (torch.ones(2, 1, 4),), id="R6 attention"),
        pytest.param(lambda net, x: x @ net.lin.weight, (x,), id="R6 a parameter used outside its module"),
        pytest.param(lambda net, x: net.inner(x, 2), (x,), id="R7 a number as an argument"),
        pytest.param(lambda net, x: net.lin(x).argmax(), (x,), id="R9 argmax"),
        pytest.param(lambda net, x: net.drop(net.lin(x)), (x,), id="R13 dropout in evaluation, last"),
        pytest.param(lambda net, x: net.lin(x.as_subclass(Marked)), (x,), id="R19 a tensor subclass"),
        pytest.param(lambda net, x: net.lin(x.to_dense()), (x.to_sparse(),), id="a sparse input"),
        pytest.param(lambda net, x: net.lin(x), (ragged(),), id="a nested input"),
    ],
)
def test_what_the_original_could_not_record(forward: Any, args: tuple[Any, ...]) -> None:
    """Each is recorded, whole, and drawn at every depth."""
    children = {"emb": nn.Embedding(4, 3), "lin": nn.Linear(3, 3), "attention": nn.MultiheadAttention(4, 2), "drop": nn.Dropout()}
    net = Net(forward, **children, inner=Net(lambda net, x, power: x**power)).eval()
    rec = record(net, "Net", None, args)
    assert rec.graph is not None
    rec.graph.check()
    for depth in range(4):
        assert "->" in make_dot(rec, depth).source


class Marked(torch.Tensor):
    """A tensor of a class of its own."""


def test_keyword_inputs() -> None:
    """R8: a dict is keyword arguments."""
    rec = record(Net(lambda net, *, a, b: a + b), "Net", None, {"a": x, "b": x + 1})
    assert pairs(rec) == [("Input-1", "add"), ("Input-2", "add"), ("add", "Output")]


def test_runs_do_not_differ() -> None:
    """R17: the same source twice; keys are numbers in order, not addresses."""
    sources = [make_dot(record(ConvSample(), "Net", (1, 1, 10, 10))).source for _ in range(2)]
    assert sources[0] == sources[1]


def test_an_edge_is_drawn_once() -> None:
    """R16: a block that reads a tensor twice has one edge from it at depth 1."""
    block = Net(lambda net, x: x + net.lin(x), lin=nn.Linear(3, 3))
    rec = record(nn.Sequential(block), "Net", (2, 3))
    assert pairs(rec, 1) == [("Input", "0 (Net)"), ("0 (Net)", "Output")]


def test_an_exception_leaves_no_hook() -> None:
    """R20: and what ran is there."""
    rec = Recorder()
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(3, 3))
    rec.register_hooks(net)
    with pytest.raises(RuntimeError):
        net(x)
    rec.remove_hooks()
    assert "linear-2" in [node.name for node in rec.nodes.values()]


def test_a_second_forward_takes_the_place_of_the_first() -> None:
    """A recorder holds one forward."""
    net, rec = nn.Linear(3, 3), Recorder()
    rec.register_hooks(net)
    net(x)
    before = len(rec.nodes)
    net(x)
    rec.remove_hooks()
    assert len(rec.nodes) == before


# Nodes added by hand


def test_added_nodes_keep_their_names_and_outlive_a_forward() -> None:
    """`add_node` uses `name=` for every kind of node, and a forward leaves the nodes and edges that were there before."""
    net, rec = nn.Linear(3, 3), Recorder()
    keys = [rec.add_node(nn.ReLU(), name="mine"), rec.add_node(nn.ReLU(), depth=1, name="mine"), rec.add_node(x + 1, name="note")]
    rec.add_edge(keys[2], keys[0])
    rec.register_hooks(net, name="Net")
    for _ in range(2):
        net(x)
        assert [rec.nodes[key].name for key in keys] == ["mine", "mine\n(ReLU)", "note"]
        assert (keys[2], keys[0]) in {(source, target) for source, target, _ in rec.edges}
        assert [node.name for node in rec.nodes.values()][4:] == ["Tensor-2", "Net", "weight", "bias", "linear", "Tensor-3"]
        assert rec.fn_types["Tensor"] == 3


def test_an_input_or_parameter_added_before_the_run_has_one_node() -> None:
    """As the original's `record` does it: the input is added under a name, then the model runs."""
    net, rec, given = nn.Linear(3, 3), Recorder(), x.clone()
    rec.register_hooks(net, name="Net")
    weight, first = rec.add_node(net.weight, name="W"), rec.add_node(given, name="Input")
    net(given)
    assert rec.fn_types["Tensor"] == 2  # the input and the output
    assert rec.fn_types["Parameter"] == 2
    linear = next(node.key for node in rec.nodes.values() if isinstance(node, OpNode))
    assert {source for source, target, _ in rec.edges if target == linear} >= {weight, first}


def test_a_model_can_be_put_below_a_node_of_one_s_own() -> None:
    """`depth=` and `parent=` of `register_hooks` hold for the recorded forward, too."""
    net, rec = nn.Linear(3, 3), Recorder()
    outer = rec.add_node(nn.Sequential(), name="outer")
    rec.register_hooks(net, depth=1, parent=outer, name="inner")
    net(x)
    layer = next(node for node in rec.nodes.values() if node.fn is net)
    assert (layer.name, layer.depth, layer.parent) == ("inner\n(Linear)", 1, outer)
    assert layer.key in rec.nodes[outer].subnets  # type: ignore[attr-defined]
    assert make_dot(rec, 0).source.count("->") == 0


def test_a_flat_renderer_gets_every_node_of_the_depth() -> None:
    """A subclass without `render_recursive_node` is complete; `render_node` is called once for each node."""

    class Flat(BaseRenderer):
        def render_node(self, dest: Any, node: BaseNode) -> None:
            dest.append(node.name.replace("\n", " "))

        def render_edge(self, dest: Any, fnode: BaseNode, tnode: BaseNode) -> None:
            pass

    rec = record(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), "Net", (2, 3))
    assert Flat(rec, 1)([]) == ["Input", "Net", "0 (Linear)", "Tensor-2", "1 (ReLU)", "Output"]
    assert Flat(rec, 0)([]) == ["Input", "Net", "Output"]
    assert len(Flat(rec)([])) == len(rec.nodes) - 1
