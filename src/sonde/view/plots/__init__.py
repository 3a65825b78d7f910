"""Pictures of a run: each a function of a run that gives a matplotlib figure; and the run as a table."""

from sonde.view.plots.curves import lines
from sonde.view.plots.depth import gradient_flow
from sonde.view.plots.heat import heatmap
from sonde.view.plots.losses import scalars
from sonde.view.plots.plan import plan, save
from sonde.view.plots.portions import shares
from sonde.view.plots.powers import exponents
from sonde.view.plots.rates import activation
from sonde.view.plots.ratios import update_ratio
from sonde.view.plots.table import table

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
