"""The execution graph: record it, read it, draw it at any depth (the fourth seed)."""

from sonde.graph.capture import capture
from sonde.graph.graph import Graph
from sonde.graph.nodes import BaseNode, LayerNode, OpNode, ParamNode, TensorNode
from sonde.graph.pictures import make_dot, record, render_network
from sonde.graph.recorder import Recorder
from sonde.graph.rendering import BaseRenderer, GraphvizRenderer, GraphvizStyler
from sonde.run.graph.data import Edge, Node, Value

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
    "record",
    "render_network",
]
