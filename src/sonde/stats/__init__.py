"""Statistics: measure tensors, add up the measures, finish numbers. Independent of modules and hooks.

A statistic measures; a ``Table`` holds its rows, as an ``Accumulator`` holds one; ``Group`` and ``Merger`` join the rows of several
ranks. A name below is public.
"""

from types import ModuleType as _Module

# isort: split
# What can be measured
from sonde.stats.activation import Activation as Activation
from sonde.stats.activation import ChannelActivation as ChannelActivation
from sonde.stats.exponents import ExponentHistogram as ExponentHistogram
from sonde.stats.geometry import Cosine as Cosine
from sonde.stats.geometry import Norm as Norm
from sonde.stats.geometry import cosine as cosine
from sonde.stats.moments import Moments as Moments
from sonde.stats.quantiles import magnitude_quantiles as magnitude_quantiles
from sonde.stats.spectrum import Spectrum as Spectrum
from sonde.stats.updates import Updates as Updates
from sonde.stats.updates import vanished_share as vanished_share

# isort: split
# What a statistic is
from sonde.number import Number as Number
from sonde.stats.pair import PairStatistic as PairStatistic
from sonde.stats.statistic import Column as Column
from sonde.stats.statistic import Field as Field
from sonde.stats.statistic import RowStatistic as RowStatistic
from sonde.stats.statistic import Statistic as Statistic
from sonde.stats.statistic import elements as elements
from sonde.stats.statistic import reduce as reduce

# isort: split
# Add up and finish
from sonde.stats.accumulator import Accumulator as Accumulator
from sonde.stats.accumulator import Result as Result
from sonde.stats.running import RunningMeanVar as RunningMeanVar
from sonde.stats.table import Table as Table

__all__ = [name for name, value in vars().items() if name[0] != "_" and not isinstance(value, _Module)]

# isort: split
# For other rooms of sonde: statistics of lenses and preprocessors, and what these are made of
from sonde.stats.history import History as History
from sonde.stats.host_copy import HostCopy as HostCopy
from sonde.stats.lent import Lent as Lent
from sonde.stats.running import as_number as as_number
from sonde.stats.samples import MatrixCondition as MatrixCondition
from sonde.stats.samples import SampleNorm as SampleNorm
from sonde.stats.samples import Single as Single
from sonde.stats.statistic import bits_of as bits_of
from sonde.stats.statistic import dense as dense
from sonde.stats.statistic import in_memory as in_memory
from sonde.stats.statistic import surely_in_memory as surely_in_memory
from sonde.stats.statistic import unreadable as unreadable

# isort: split
# For other rooms of sonde: distributed tensors, and rows of several ranks
from sonde.stats.distributed import Channel as Channel
from sonde.stats.distributed import Group as Group
from sonde.stats.distributed import Joining as Joining
from sonde.stats.distributed import Key as Key
from sonde.stats.distributed import LostError as LostError
from sonde.stats.distributed import Meeting as Meeting
from sonde.stats.distributed import Merged as Merged
from sonde.stats.distributed import MergedRows as MergedRows
from sonde.stats.distributed import Merger as Merger
from sonde.stats.distributed import MissingRankError as MissingRankError
from sonde.stats.distributed import Offer as Offer
from sonde.stats.distributed import RankRows as RankRows
from sonde.stats.distributed import Total as Total
from sonde.stats.distributed import unmerged as unmerged
from sonde.stats.pieces import PLAIN as PLAIN
from sonde.stats.pieces import Piece as Piece
from sonde.stats.pieces import local as local

# isort: split
# For other rooms of sonde: compiled kernels
from sonde.stats.kernels import Kernel as Kernel
from sonde.stats.kernels import nonfinite_in as nonfinite_in
from sonde.stats.kernels.fused import is_fused as is_fused
from sonde.stats.kernels.native import kernel_status as kernel_status
