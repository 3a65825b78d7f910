"""The engine: the only part of sonde that hooks a running model. See README.md in this folder."""

from sonde.engine.calls.call_log import ModuleCall
from sonde.engine.calls.module_tracker import ModuleTracker
from sonde.engine.calls.where import Whereabouts, where
from sonde.engine.event import Event, Subscriber
from sonde.engine.failures import ProbeError
from sonde.engine.probes.coverage import Coverage, Covered
from sonde.engine.probes.probe import Probe, observe, sites
from sonde.engine.unseen import quiet
from sonde.site import PORTS, Phase, Port, Site

__all__ = [
    "PORTS",
    "Coverage",
    "Covered",
    "Event",
    "ModuleCall",
    "ModuleTracker",
    "Phase",
    "Port",
    "Probe",
    "ProbeError",
    "Site",
    "Subscriber",
    "Whereabouts",
    "observe",
    "quiet",
    "sites",
    "where",
]
