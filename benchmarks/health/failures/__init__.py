"""Plant the failures. Importing the package lists them all in ``benchmarks.health.case.FAILURES``."""

from benchmarks.health.failures import (  # noqa: F401  # imported to list their cases
    in_data,
    in_loops,
    in_numbers,
    in_precision,
    in_rates,
    in_scales,
    in_units,
)
