"""``PlainGraph``: the execution graph at rest, with its passes as methods."""

from __future__ import annotations

from sonde.run.graph import check as checks
from sonde.run.graph import passes
from sonde.run.graph.data import GraphData
from sonde.run.graph.repeats import repeated


class PlainGraph(GraphData):
    """An execution graph, that needs neither the model nor torch: immutable, compared by value; every pass returns a new graph."""

    collapse = passes.collapse
    hide = passes.hide
    fold = passes.fold
    between = passes.between
    without = passes.without
    __getitem__ = passes.find
    check = checks.check_graph
    unused = checks.unused
    repeated = repeated
