"""The engine: the only part of sonde that hooks a running model. See README.md in this folder."""

from sonde.engine.coverage import Coverage, Covered
from sonde.engine.event import Event, Subscriber, Tick
from sonde.engine.probe import Probe, observe, sites
from sonde.engine.site import PORTS, Phase, Port, Site
from sonde.engine.trouble import ProbeError

__all__ = [
    "PORTS",
    "Coverage",
    "Covered",
    "Event",
    "Phase",
    "Port",
    "Probe",
    "ProbeError",
    "Site",
    "Subscriber",
    "Tick",
    "observe",
    "sites",
]
