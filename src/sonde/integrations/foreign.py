"""Import a class of another project, late and with clear words where it is missing or another than expected."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from sonde.errors import MissingExtraError

__all__ = ["base_class"]


def base_class(name: str, packages: Sequence[str], attribute: str, methods: Sequence[str], *, extra: str) -> type:
    """Return the class *attribute* of the first of *packages* that is installed.

    Args:
        name: of the class of sonde that derives from it.
        packages: where the class may be, as ``("lightning.pytorch", "pytorch_lightning")``.
        attribute: the name of the class.
        methods: that the class must have, since sonde overrides them to be called.
        extra: the extra of sonde that installs the package.

    Raises:
        MissingExtraError: none of *packages* is installed; or the installed version has no such class, or the class not these
            methods.
    """
    installed = [package for package in packages if package in sys.modules or find_spec(package.partition(".")[0]) is not None]
    if not installed:
        raise MissingExtraError.of(name, packages[0].partition(".")[0], extra)
    package = installed[0]
    module = import_module(package)
    version = getattr(import_module(package.partition(".")[0]), "__version__", "of an unknown version")
    found = getattr(module, attribute, None)
    if not isinstance(found, type):
        raise MissingExtraError(
            f"{name} derives from {package}.{attribute}, which the installed {package} {version} has not: install a version that "
            f"has it (pip install 'sonde[{extra}]'), or use sonde.watch(model) around the training"
        )
    missing = [method for method in methods if not hasattr(found, method)]
    if missing:
        raise MissingExtraError(
            f"{name} is called by {package}.{attribute}.{missing[0]}, which the installed {package} {version} has not: install a "
            f"version that has it (pip install 'sonde[{extra}]'), or use sonde.watch(model) around the training"
        )
    return found
