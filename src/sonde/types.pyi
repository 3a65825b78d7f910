from sonde.checkup import Checkup as Checkup
from sonde.diagnosis import Comparison as Comparison
from sonde.diagnosis import NonFinite as NonFinite
from sonde.diagnosis import Preflight as Preflight
from sonde.diagnosis import Tried as Tried
from sonde.engine import Coverage as Coverage
from sonde.engine import Event as Event
from sonde.engine import ModuleCall as ModuleCall
from sonde.engine import Probe as Probe
from sonde.engine import ProbeError as ProbeError
from sonde.engine import Whereabouts as Whereabouts
from sonde.keep import Stash as Stash
from sonde.keep import StashFn as StashFn
from sonde.keep import StashValueFn as StashValueFn
from sonde.model_summary import Summary as Summary
from sonde.model_summary import SummaryRow as SummaryRow
from sonde.rules import Finding as Finding
from sonde.run import Checked as Checked
from sonde.run import Runs as Runs
from sonde.run import TensorStore as TensorStore
from sonde.schedule import Tick as Tick
from sonde.site import Phase as Phase
from sonde.site import Port as Port
from sonde.view import RunComparison as RunComparison

__all__: list[str]
