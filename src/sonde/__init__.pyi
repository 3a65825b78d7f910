from . import errors as errors
from . import stats as stats
from . import testing as testing
from .engine import Coverage as Coverage
from .engine import Event as Event
from .engine import Probe as Probe
from .engine import Site as Site
from .engine import Tick as Tick
from .engine import observe as observe
from .engine import sites as sites
from .keep import Stash as Stash
from .keep import StashFn as StashFn
from .keep import StashValueFn as StashValueFn
from .keep import Summary as Summary
from .keep import SummaryRow as SummaryRow
from .keep import Tracker as Tracker
from .keep import default_stash as default_stash
from .keep import default_stash_value as default_stash_value
from .keep import get_stash_fn as get_stash_fn
from .keep import rmap_tensor as rmap_tensor
from .keep import summary as summary
from .keep import track as track
from .run.tensors import TensorStore as TensorStore
from .run.tensors import open_tensors as open_tensors

__version__: str
