"""The summary of a model: what goes into, comes out of and is held by each module."""

from sonde.model_summary.summary import Summary, SummaryRow, summary

__all__ = ["Summary", "SummaryRow", "summary"]
