# isort: off
# Read a run, or many
from .run import Run as Run
from .run import open_run as open_run
from .runs import Runs as Runs
from .run_summary import RunSummary as RunSummary
from .runs import names_apart as names_apart
from .runs import open_runs as open_runs
from .heatmap import Heatmap as Heatmap
from .heatmap import Reduce as Reduce
from .folder.end import State as State
from .run_facts import facts_of_run as facts_of_run
from .run_settings import flat as flat
from .run_settings import setting_text as setting_text

# The folder of a run, from outside
from .run_folder import RunFolder as RunFolder
from .folder.files import runs_below as runs_below
from .pruning import PrunedRun as PrunedRun
from .pruning import prune as prune

# What is wrong with a run, and where two part
from .record import Record as Record
from .record import counted as counted
from .record import lines_of as lines_of
from .recorded_findings import judge_rows as judge_rows
from .checking import Checked as Checked
from .checking import check as check
from .findings import Findings as Findings
from .comparison.two_runs import Curve as Curve
from .comparison.two_runs import Difference as Difference
from .comparison.two_runs import Parting as Parting
from .comparison.two_runs import Parts as Parts
from .comparison.two_runs import compare_rows as compare_rows

# Write a run
from .store.writer import RunWriter as RunWriter
from .store.open import Existing as Existing
from .store.open import join_run as join_run
from .store.open import start_run as start_run
from .store.run_names import numbered_folder as numbered_folder
from .store.memory_writer import memory_run as memory_run
from .store.disk_writer import Flushing as Flushing
from .store.last_error import LastError as LastError
from .folder.end import line_of as line_of
from .store.writer_thread import QueueLimits as QueueLimits
from .store.writer_thread import WriteQueue as WriteQueue
from .store.writer_thread import WriterThread as WriterThread
from .schema import VERSION as VERSION
from .schema import Layout as Layout
from .schema import check_family as check_family

# SQL that holds names and conditions
from .folder.duckdb_sql import condition as condition
from .folder.duckdb_sql import of_rank as of_rank
from .folder.duckdb_sql import quoted as quoted

# The execution graph, at rest
from .graph.plain_graph import PlainGraph as PlainGraph
from .graph.data import Edge as Edge
from .graph.data import Kind as Kind
from .graph.data import Node as Node
from .graph.data import Value as Value

# Tensors on disk
from .tensors.store import TensorStore as TensorStore
from .tensors.store import holds_tensors as holds_tensors
from .tensors.store import open_tensors as open_tensors
from .tensors.writers import Entry as Entry
from .tensors.writers import write_tensors as write_tensors
from .tensors.writers import RowWriter as RowWriter
from .tensors.writers import remove_tensors as remove_tensors
from .tensors.writers import settle_rows as settle_rows
from .tensors.writers import written_rows as written_rows
from .tensors.tensor_files import read_tensor_file as read_tensor_file
from .tensors.tensor_files import write_tensor_file as write_tensor_file

# Documents: JSON with a checksum, the forms that it may have, and files that appear whole
from . import form as form
from .form import Absent as Absent
from .form import Form as Form
from .json_tree import decode as decode
from .json_tree import encode as encode
from .folder.json_file import read_checked as read_checked
from .folder.json_file import write_json as write_json
from .folder.files import appearing as appearing
