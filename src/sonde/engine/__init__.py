"""The engine: the only part of sonde that hooks a running model. See README.md in this folder."""

from sonde.engine.coverage import Coverage, Covered
from sonde.engine.event import Event, Subscriber, Tick
from sonde.engine.module_tracker import ModuleTracker
from sonde.engine.passage import ModuleCall
from sonde.engine.probe import Probe, observe, sites
from sonde.engine.site import PORTS, Phase, Port, Site
from sonde.engine.trouble import ProbeError
from sonde.engine.where import Whereabouts, where

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
    "Tick",
    "Whereabouts",
    "observe",
    "sites",
    "where",
]
