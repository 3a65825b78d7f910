"""Print the versions that a report of a defect should name."""

from __future__ import annotations

import argparse
import json
import platform

from sonde.cli.run_options import expect_json
from sonde.cli.versions import installed_version

EXAMPLES = """
sonde env                 for a report of a defect
sonde env --json > env.json
"""

_PACKAGES = ("sonde", "torch", "numpy", "safetensors", "rich", "pandas", "transformers")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to *parser*."""
    expect_json(parser, "the version of each package, or null")


def run(options: argparse.Namespace) -> int:
    """Print one line for each package."""
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    packages = {package: installed_version(package) for package in _PACKAGES}
    python = f"{platform.python_version()} on {platform.platform()}"
    found = {"python": python, **packages, "accelerator": None if accelerator is None else str(accelerator)}
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    for name, version in found.items():
        print(f"{name:<13} {version or ('none' if name == 'accelerator' else 'not installed')}")
    return 0
