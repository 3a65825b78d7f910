"""Pictures of a run: each is a function that takes a run and returns a matplotlib figure; and the run as a table."""

# A name that is imported as itself is public.

from types import ModuleType as _Module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from sonde.view.plots.activation import activation as activation
from sonde.view.plots.exponents import exponents as exponents
from sonde.view.plots.gradient_flow import gradient_flow as gradient_flow
from sonde.view.plots.graph_page import GraphPage as GraphPage
from sonde.view.plots.graph_page import graph_page as graph_page
from sonde.view.plots.heatmap import heatmap as heatmap
from sonde.view.plots.lines import lines as lines
from sonde.view.plots.plan import plan as plan
from sonde.view.plots.plan import save as save
from sonde.view.plots.scalars import scalars as scalars
from sonde.view.plots.shares import shares as shares
from sonde.view.plots.sheet import sheet as sheet
from sonde.view.plots.table import table as table
from sonde.view.plots.update_ratio import update_ratio as update_ratio

__all__ = [name for name, value in vars().items() if name[0] != "_" and not isinstance(value, _Module)]

# isort: split
# For other rooms of sonde: what sinks and commands annotate with, and the parts of a printed table
from sonde.view.plots.canvas import Theme as Theme
from sonde.view.plots.graph_page import save_graph as save_graph
from sonde.view.plots.layer_names import Include as Include
from sonde.view.plots.layer_series import FIRST_ROWS as FIRST_ROWS
from sonde.view.plots.plan import Drawing as Drawing
from sonde.view.plots.table import table_data as table_data

if _TYPE_CHECKING:
    from sonde.view.plots.picture import Picture as Picture
