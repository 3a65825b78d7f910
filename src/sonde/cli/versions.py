"""Say which version of a package is installed."""

from __future__ import annotations

from importlib import metadata


def installed_version(package: str) -> str | None:
    """Return the version of *package*; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
