"""What observing does to one model: whether anything changes, what is seen, and what it costs."""

from sonde.checkup.doctor import Checkup, doctor

__all__ = ["Checkup", "doctor"]
