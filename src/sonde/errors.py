"""Every error and warning that sonde raises, as one tree.

::

    SondeError                 anything sonde raises on purpose
    ├── ArgumentError          (ValueError)   an argument that cannot be used, or two that exclude each other
    │   └── LossShapeError     (AttributeError)  a loss that is not one number
    ├── ModelError             (TypeError)    the object given as a model is not an ``nn.Module``
    ├── SiteError              (ValueError)   a text that is not the name of a site
    ├── SelectionError         (LookupError)  ``include`` / ``exclude`` that cannot be read or match nothing
    ├── UnknownSiteError       (KeyError)     a name that a result does not hold
    │   └── UnknownSlotError   (IndexError)   a position or name that a recorder has no slot for
    ├── DeadHookError          (RuntimeError) a compiled module ran without its hooks (``strict=True``)
    ├── GraphError             (ValueError)   an execution graph that is not whole
    ├── StaleTensorError       (RuntimeError) a kept tensor that the model has written into since
    ├── StoreError             (ValueError)   a folder or file that cannot be written or read as asked
    ├── RankError              (RuntimeError) ranks of a distributed training that disagree, or do not answer
    ├── PreflightError         (AssertionError) a model that is not ready to be trained (``preflight(...).raise_if_bad()``)
    ├── NonFiniteError         (ArithmeticError) a step with NaN or infinity that was not to be taken (``bad_steps="stop"``)
    ├── TorchVersionError      (ImportError)  a torch that lacks private parts which sonde cannot do without
    └── MissingExtraError      (ImportError)  a feature whose optional package is not installed

    ObservationWarning         (UserWarning)  observation is not complete; the training itself goes on

A message names what was asked for, what was found, and what to do.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = [
    "ArgumentError",
    "DeadHookError",
    "GraphError",
    "LossShapeError",
    "MissingExtraError",
    "ModelError",
    "NonFiniteError",
    "ObservationWarning",
    "PreflightError",
    "RankError",
    "SelectionError",
    "SiteError",
    "SondeError",
    "StaleTensorError",
    "StoreError",
    "TorchVersionError",
    "UnknownSiteError",
    "UnknownSlotError",
]


class SondeError(Exception):
    """Base of everything sonde raises on purpose."""


class ArgumentError(SondeError, ValueError):
    """An argument that cannot be used, or two arguments that exclude each other."""


class LossShapeError(ArgumentError, AttributeError):
    """A loss that is not one number (an ``AttributeError`` too, as monitorch documents it)."""


class ModelError(SondeError, TypeError):
    """An object given as a model that is not a ``torch.nn.Module``."""


class SiteError(SondeError, ValueError):
    """A text that is not the name of a site."""


class SelectionError(SondeError, LookupError):
    """A selection that cannot be read, or that matches nothing."""


class UnknownSiteError(SondeError, KeyError):
    """A name that a result does not hold; the message names the nearest ones."""

    def __str__(self) -> str:  # KeyError would print the message as a quoted key
        return str(self.args[0]) if self.args else ""


class UnknownSlotError(UnknownSiteError, IndexError):
    """A position, name or site that a recorder has no slot for; the message lists the slots."""


class DeadHookError(SondeError, RuntimeError):
    """A compiled module ran without the hooks that observe it."""


class GraphError(SondeError, ValueError):
    """An execution graph that is not whole, or not one."""


class StaleTensorError(SondeError, RuntimeError):
    """A tensor that was kept without a copy, and that the model has written into since."""


class StoreError(SondeError, ValueError):
    """A folder or file that cannot be written or read as asked."""


class RankError(SondeError, RuntimeError):
    """Ranks of a distributed training that disagree, or that do not answer."""


class NonFiniteError(SondeError, ArithmeticError):
    """A step whose gradients are not finite; no parameter was changed by it."""


class PreflightError(SondeError, AssertionError):
    """A model, batch, loss or optimizer with which a training would go wrong; the message holds the findings."""


class TorchVersionError(SondeError, ImportError):
    """A torch that lacks private parts which sonde cannot do without; ``names`` has the parts, the message what still works."""

    def __init__(self, message: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.names = names


class MissingExtraError(SondeError, ImportError):
    """A feature whose optional package is not installed, or in a version without what the feature needs."""

    @classmethod
    def of(cls, feature: str, package: str, extra: str) -> MissingExtraError:
        """The error for *feature*, which needs *package*, installed by the extra *extra*."""
        return cls(f"{feature} needs the package {package!r}, which is not installed: pip install 'sonde[{extra}]'")

    @classmethod
    def import_or_raise(cls, package: str, feature: str, extra: str) -> Any:
        """Import *package* and return the module.

        Raises:
            MissingExtraError: *package* is not installed, which *feature* needs; the extra *extra* installs it.
        """
        try:
            return import_module(package)
        except ImportError:
            raise cls.of(feature, package, extra) from None


class ObservationWarning(UserWarning):
    """Something could not be observed, or an observer failed; the training itself goes on."""
