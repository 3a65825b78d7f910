"""The summary of a model: what goes into, comes out of and is held by each module."""

from sonde.model_summary.summary import summary
from sonde.model_summary.table import Summary, SummaryRow

__all__ = ["Summary", "SummaryRow", "summary"]
