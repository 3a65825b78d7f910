"""Print the versions that a report of a defect should name."""

from __future__ import annotations

import argparse
import platform
from importlib import metadata

_PACKAGES = ("sonde", "torch", "numpy", "safetensors", "rich", "pandas", "transformers")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add no option."""


def run(options: argparse.Namespace) -> int:
    """Print one line for each package."""
    print(f"{'python':<13} {platform.python_version()} on {platform.platform()}")
    for package in _PACKAGES:
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            version = "not installed"
        print(f"{package:<13} {version}")
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    print(f"{'accelerator':<13} {accelerator or 'none'}")
    return 0
