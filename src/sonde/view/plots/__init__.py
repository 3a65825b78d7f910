"""Pictures of a run: each is a function that takes a run and returns a matplotlib figure; and the run as a table."""

from sonde.view.plots.activation import activation
from sonde.view.plots.exponents import exponents
from sonde.view.plots.gradient_flow import gradient_flow
from sonde.view.plots.heatmap import heatmap
from sonde.view.plots.lines import lines
from sonde.view.plots.plan import plan, save
from sonde.view.plots.scalars import scalars
from sonde.view.plots.shares import shares
from sonde.view.plots.table import table
from sonde.view.plots.update_ratio import update_ratio

__all__ = [
    "activation",
    "exponents",
    "gradient_flow",
    "heatmap",
    "lines",
    "plan",
    "save",
    "scalars",
    "shares",
    "table",
    "update_ratio",
]
