"""``PlainGraph``: the execution graph at rest, with its passes as methods."""

from __future__ import annotations

from sonde.run.graph import check as checks
from sonde.run.graph import passes
from sonde.run.graph.data import GraphData
from sonde.run.graph.repeats import repeated


class PlainGraph(GraphData):
    """An execution graph, that needs neither the model nor torch: immutable, compared by value; every pass returns a new graph.

    >>> import sonde, torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> graph = sonde.capture(net, torch.ones(1, 2))
    >>> [node.name for node in graph.collapse(depth=1).hide(parameters=True).nodes]
    ['input', 'Sequential', '0', '1', 'output']
    >>> graph.unused(), graph.check(), list(graph.repeated())
    ((), None, [])
    >>> len(graph.between("0:output", "1:output").nodes) < len(graph.nodes), graph.fold().nodes == graph.nodes
    (True, True)
    >>> graph.without([]) == graph
    True
    """

    collapse = passes.collapse
    hide = passes.hide
    fold = passes.fold
    between = passes.between
    without = passes.without
    __getitem__ = passes.find
    check = checks.check_graph
    unused = checks.unused
    repeated = repeated
