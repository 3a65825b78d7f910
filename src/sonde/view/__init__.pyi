# isort: off
# Pictures of a run, and of a graph
from . import plots as plots
from .graph.save import drawn as drawn
from .graph.save import render as render
from .graph.save import save as save
from .graph.series import Series as Series

# The live page, and the report: the same page as a file
from .app.followed_runs import FollowedRuns as FollowedRuns
from .app.report_file import save_report as save_report
from .app.serving import PORT as PORT
from .app.serving import LivePage as LivePage
from .app.serving import has_screen as has_screen
from .app.serving import open_page as open_page

# Where two runs part, as an answer
from .run_comparison import RunComparison as RunComparison
from .run_comparison import compare_runs as compare_runs

# The one table of layers
from .layer_table import GRADIENT_IS as GRADIENT_IS
from .layer_table import NO_ELEMENTS as NO_ELEMENTS
from .layer_table import LayerRow as LayerRow
from .layer_table import Note as Note
from .layer_table import Quantity as Quantity
from .layer_table import first_of as first_of
from .layer_table import layer_table as layer_table
from .layer_table import notes_of as notes_of
from .layer_table import number as number

# Many values as one, or as a band
from .aggregation import bands_named as bands_named
from .aggregation import points_named as points_named
from .aggregation import summarised as summarised

# What long work is at
from .progress_bar import progress as progress
