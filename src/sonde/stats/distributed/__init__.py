"""Join the ranks of a distributed training: agree, and merge the rows of statistics. Nothing else in sonde communicates."""

# A name that is imported as itself is public.

from types import ModuleType as _Module

from sonde.stats.distributed.group import Group as Group
from sonde.stats.distributed.group import in_words as in_words
from sonde.stats.distributed.group import join as join
from sonde.stats.distributed.merger import Merger as Merger
from sonde.stats.distributed.rows import ALL as ALL
from sonde.stats.distributed.rows import Key as Key
from sonde.stats.distributed.rows import Merged as Merged
from sonde.stats.distributed.rows import MergedRows as MergedRows
from sonde.stats.distributed.rows import MergedTotal as MergedTotal
from sonde.stats.distributed.rows import Offer as Offer
from sonde.stats.distributed.rows import Rows as Rows
from sonde.stats.distributed.rows import Total as Total

__all__ = [name for name, value in vars().items() if name[0] != "_" and not isinstance(value, _Module)]
