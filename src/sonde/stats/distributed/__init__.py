"""Join the ranks of a distributed training: agree, and merge the rows of statistics. Nothing else in sonde communicates.

* ``group``: ranks meet, agree, and give each other small values, through the store of the job.
* ``merger``: rows of logged steps, in rounds, in one thread of each rank, over a gloo group that torch's own list does not hold;
  and the way there, on which a training does not wait.
* ``layout``: which numbers of a round belong to which key, who counts, and which ranks' rows are not merged.
* ``channel``: collectives that end, with the result or with a sentence that names the lost rank.
* ``torch_c10d``: the store, whose answers have a deadline, and the gloo group.

A round is two ``all_reduce``: of integers, to their minimum (the step; for each key the writer, the minima, the negated maxima,
and two numbers that tell replicas apart), and of float64, to their sum (the ranks in the row, the additions, and the sums, moved
to the merged minima). A key of ``Moments`` takes 128 bytes of the two. Maxima are negated minima, and floats travel as integers
in the order of the floats, so that a NaN is not lost. Two rare things take more: ranks at different steps repeat the minimum; new
keys are exchanged before the round is repeated: 24 bytes of each rank, the key list (3 bytes a key, compressed) of each rank
whose list is another, and where ranks hold different pieces of parameters 8 bytes of each key and rank. With 1,024 ranks and
10,000 keys that is 82 MB for each rank, and 2 s, when the training begins; a round is 1.3 MB for each rank.

At the start a rank makes as many requests to the store, however many ranks there are, and the store tells it when the others have
come. Of the gloo group two ranks connect when an operation first needs it.

A rank that waits looks for signs of life in the store: one write of each rank every 2 s, from 256 ranks on more rarely. So gloo
needs no time-out, which closes connections, and a long evaluation is no failure.
"""

# A name that is imported as itself is public.

from types import ModuleType as _Module

from sonde.stats.distributed.channel import Channel as Channel
from sonde.stats.distributed.channel import LostError as LostError
from sonde.stats.distributed.group import Group as Group
from sonde.stats.distributed.group import Meeting as Meeting
from sonde.stats.distributed.group import MissingRankError as MissingRankError
from sonde.stats.distributed.group import in_words as in_words
from sonde.stats.distributed.merger import Joining as Joining
from sonde.stats.distributed.merger import Merger as Merger
from sonde.stats.distributed.merger import unmerged as unmerged
from sonde.stats.distributed.rows import Key as Key
from sonde.stats.distributed.rows import Merged as Merged
from sonde.stats.distributed.rows import MergedRows as MergedRows
from sonde.stats.distributed.rows import MergedTotal as MergedTotal
from sonde.stats.distributed.rows import Offer as Offer
from sonde.stats.distributed.rows import RankRows as RankRows
from sonde.stats.distributed.rows import Total as Total

__all__ = [name for name, value in vars().items() if name[0] != "_" and not isinstance(value, _Module)]
