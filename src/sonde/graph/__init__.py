"""The execution graph of a model: record it, read it, draw it at any depth; and the names of torchrecorder on it."""

from sonde.graph.capture import capture
from sonde.graph.forward import named_inputs as named_inputs
from sonde.graph.graph import Graph
from sonde.graph.recorder import BaseNode, LayerNode, OpNode, ParamNode, Recorder, TensorNode
from sonde.graph.rendering import BaseRenderer, GraphvizRenderer, GraphvizStyler, make_dot, record, render_network
from sonde.graph.tensors import version_of as version_of
from sonde.run import Edge, Node, Value

__all__ = [
    "BaseNode",
    "BaseRenderer",
    "Edge",
    "Graph",
    "GraphvizRenderer",
    "GraphvizStyler",
    "LayerNode",
    "Node",
    "OpNode",
    "ParamNode",
    "Recorder",
    "TensorNode",
    "Value",
    "capture",
    "make_dot",
    "named_inputs",
    "record",
    "render_network",
    "version_of",
]
