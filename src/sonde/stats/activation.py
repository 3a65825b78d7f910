"""The share of active outputs and of dead channels: in each call, and over all tensors added."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sonde.errors import ArgumentError
from sonde.number import STANDARD, Number, count, share
from sonde.stats import kernels
from sonde.stats.statistic import Column, Field, Statistic, elements


def by_channel(tensor: Tensor, channel_axis: int) -> Tensor:
    """Return the elements of *tensor* as a matrix with a row per channel.

    Args:
        tensor: of any shape. A tensor with too few dimensions to have *channel_axis* (a batch of scalars, where the axis is 1)
            is one channel.
        channel_axis: 1 for outputs of shape ``(batch, channel, ...)``, 0 for the gradient of a weight of shape ``(out, ...)``;
            a negative axis counts from the end.

    Returns:
        Float64 of shape ``(channels, elements per channel)``, without a graph.
    """
    values = elements(tensor)
    if not -values.dim() <= channel_axis < values.dim():
        return values.reshape(1, -1)
    moved = values.movedim(channel_axis, 0)
    return moved.reshape(moved.shape[0], math.prod(moved.shape[1:]))  # not -1, which is undefined for an empty tensor


def is_whole_on(axis: int, whole: Sequence[int], part: Sequence[int]) -> bool:
    """Return whether *part*, the shape of a part of a tensor of the shape *whole*, has all indices of *axis*."""
    return whole[axis] == part[axis] if -len(whole) <= axis < len(whole) else True


def _counts(matrix: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the number of active and of inactive finite elements of each channel: float64, shape ``(channels,)``."""
    magnitudes = matrix.abs()
    active = ((magnitudes > eps) & magnitudes.isfinite()).sum(1, dtype=torch.float64)
    return active, (magnitudes <= eps).sum(1, dtype=torch.float64)


def _checked(eps: float) -> None:
    if not 0 <= eps < math.inf:
        raise ArgumentError(f"eps is the magnitude up to which an element counts as inactive: 0 or more and finite, not {eps}")


def _of_shares(eps: float) -> float | None:
    """Return the scaling of shares of active elements: 0 if only exact zeros are inactive, otherwise None (no power)."""
    return 0.0 if eps == 0 else None


def _shares(eps: float, *names: str) -> Iterator[Number]:
    yield from (replace(STANDARD[name], scaling=_of_shares(eps)) for name in names)


@dataclass(frozen=True)
class Activation(Statistic):
    """Share of active elements over all tensors added; activation and death rate of each call, averaged over calls.

    >>> import torch
    >>> from sonde.stats import Accumulator, Activation
    >>> output = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    >>> seen = Accumulator(Activation()).update(output).compute()
    >>> seen.activation, seen.call_death
    (0.25, 0.5)

    An element is active if ``|x| > eps``. NaN and infinities are counted separately and belong to no share.

    * Over all tensors: ``count``, ``nan``, ``inf``, ``finite`` and ``activation``, active / finite elements.
    * Per call (one tensor added is one call): the rate of a channel is active / finite elements over all samples and
      positions of that call, ``call_activation`` the mean over channels, and ``call_death`` the share of channels *with
      only inactive elements in that call* (a NaN or an infinity is not inactive). Both are unweighted means over the ``judged``
      calls: those with a finite element. Smaller batches have more channels that are dead in one call; for a
      channel that is dead over the whole interval see :class:`ChannelActivation`.

    The two rates of one call are those of monitorch's ``OutputActivation`` (channel axis 1) and ``GradientActivation`` (channel
    axis 0), where nothing is NaN or infinite. Counts are exact and rates are computed from counts in float64, whichever kernel
    counts: ``call_activation`` differs between kernels by that rounding alone. A rate is informative only for functions that give
    exact zeros (ReLU, dropout): every element of a GELU is active.

    Args:
        eps: the magnitude, in the unit of x, up to which an element is inactive.
        channel_axis: see :func:`by_channel`. None: the axis on which the layer has its units, found for each tensor that an
            observed layer returns (``sonde.engine.layer_axes``); by itself the statistic then takes 1.

    Raises:
        ArgumentError: *eps* is negative, infinite or NaN.
    """

    eps: float = 1e-8
    channel_axis: int | None = 1

    is_of_every_leaf: ClassVar[bool] = False
    fields: ClassVar[tuple[Field, ...]] = (
        Field("nan"),
        Field("inf"),
        Field("active"),
        Field("idle"),
        Field("judged", per="call"),
        Field("activations", per="call"),
        Field("deaths", per="call"),
    )

    def __post_init__(self) -> None:
        _checked(self.eps)
        object.__setattr__(self, "_kernel", kernels.activation(self.eps, self._axis))  # made once: hooks read it at every call

    @property
    def _axis(self) -> int:
        return 1 if self.channel_axis is None else self.channel_axis

    @property
    def finds_units(self) -> bool:
        return self.channel_axis is None

    def on_axis(self, units: int) -> Activation:
        return self if self.channel_axis is not None else replace(self, channel_axis=units)

    @property
    def numbers(self) -> tuple[Number, ...]:
        return (
            *_shares(self.eps, "call_death", "call_activation", "activation"),
            *(STANDARD[name] for name in ("count", "finite", "nan", "inf")),
            count("judged", unit="calls", growth=0.0),
        )

    @property
    def kernel(self) -> kernels.Kernel:
        return self._kernel  # type: ignore[attr-defined, no-any-return]  # no dataclass field: equality and repr leave it out

    def measure(self, tensor: Tensor) -> Tensor:
        matrix = by_channel(tensor, self._axis)
        active, idle = _counts(matrix, self.eps)
        finite = active + idle
        judged = (finite > 0).sum(dtype=torch.float64)
        rates = torch.where(finite > 0, active / finite.clamp(min=1), 0.0).sum() / judged.clamp(min=1)
        dead = ((idle == matrix.shape[1]) & (finite > 0)).sum(dtype=torch.float64) / max(matrix.shape[0], 1)
        return torch.stack(
            [
                matrix.isnan().sum(dtype=torch.float64),
                matrix.isinf().sum(dtype=torch.float64),
                active.sum(),
                idle.sum(),
                (judged > 0).to(torch.float64),
                rates,
                torch.where(judged > 0, dead, 0.0),
            ]
        )

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        finite = columns["active"] + columns["idle"]
        judged = np.where(columns["judged"] > 0, columns["judged"], np.nan)
        return {
            "count": finite + columns["nan"] + columns["inf"],
            "finite": finite,
            "nan": columns["nan"],
            "inf": columns["inf"],
            "activation": columns["active"] / np.where(finite > 0, finite, np.nan),
            "judged": columns["judged"],
            "call_activation": columns["activations"] / judged,
            "call_death": columns["deaths"] / judged,
        }


@dataclass(frozen=True)
class ChannelActivation(Statistic):
    """Activation of each channel over everything seen, and which channels were dead all the time.

    >>> import torch
    >>> from sonde.stats import Accumulator, ChannelActivation
    >>> statistic = ChannelActivation(2)
    >>> seen = Accumulator(statistic).update(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    >>> seen.compute().dead
    1.0
    >>> statistic.rates(seen.columns()).tolist(), statistic.dead(seen.columns()).tolist()
    ([[0.5, 0.0]], [[False, True]])
    >>> statistic.takes_part((4, 2), (2, 2)), statistic.takes_part((4, 2), (4, 1))
    (True, False)

    A channel is dead if each of its elements, over all samples and positions of all tensors seen, was inactive:
    ``|x| <= eps``. A NaN or an infinity is not inactive. The rate of a channel is active / finite elements.

    Numbers: ``channels``; ``positions``, the elements seen per channel; ``nan`` and ``inf`` elements; ``activation``, the
    mean rate over channels with a finite element, and the ``least`` and ``most`` active one's; ``dead``, a number of
    channels, and ``death``, their share. Shares are NaN where nothing was seen. :meth:`rates` and :meth:`dead` say it
    channel by channel.

    Args:
        channels: number of channels; a row takes ``3 + 2 * channels`` numbers. None: as many as the tensors have; where
            tensors of one row differ in that, the row has no numbers, and the error says so.
        eps: the magnitude, in the unit of x, up to which an element is inactive.
        channel_axis: see :func:`by_channel`.

    Raises:
        ArgumentError: *channels* is not positive, *eps* is negative, infinite or NaN; when measuring, the tensor has
            another number of channels.
    """

    channels: int | None = None
    eps: float = 1e-8
    channel_axis: int = 1

    is_of_every_leaf: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _checked(self.eps)
        if self.channels is not None and self.channels < 1:
            raise ArgumentError(f"channels must be 1 or more, not {self.channels}; None for as many as the tensors have")
        object.__setattr__(self, "_most", self.channels or 0)  # channels that a row has room for; no part of the value

    @property
    def grows(self) -> bool:
        return self.channels is None

    def at_width(self, width: int) -> ChannelActivation:
        if not self.grows:
            return self
        most, odd = divmod(width - len(_OF_ANY), 2)
        if most < 0 or odd:
            raise ArgumentError(f"{self!r}: a row has {len(_OF_ANY)} numbers, and two for each channel, not {width}")
        found = replace(self)
        object.__setattr__(found, "_most", most)
        return found

    def __repr__(self) -> str:
        """Return the class with its arguments and, where it is found, the number of channels that a row has room for."""
        most: int = self._most  # type: ignore[attr-defined]
        channels = f"None, room={most}" if self.grows and most else self.channels
        return f"{type(self).__name__}(channels={channels}, eps={self.eps}, channel_axis={self.channel_axis})"

    @property
    def fields(self) -> tuple[Field, ...]:
        most: int = self._most  # type: ignore[attr-defined]  # no dataclass field: equality and repr leave it out
        if self.grows:  # the counts last, so that a row is widened at its end
            return (
                *(Field(name, per="call" if name in _PER_CALL else "element") for name in _OF_ANY),
                Field("counts", size=2 * most),
            )
        sizes = {"nan": 1, "inf": 1, "positions": 1, "active": most, "idle": most}
        return tuple([Field(name, size=size) for name, size in sizes.items()])

    @property
    def numbers(self) -> tuple[Number, ...]:
        return (
            *_shares(self.eps, "death", "activation"),
            share("least", "least active", "Least active unit", scaling=_of_shares(self.eps)),
            share("most", "most active", "Most active unit", scaling=_of_shares(self.eps)),
            Number("dead", "dead", "Dead units", "count", "units", _of_shares(self.eps)),
            count("channels", unit="units", growth=0.0),
            count("positions"),
            STANDARD["nan"],
            STANDARD["inf"],
        )

    def takes_part(self, whole: tuple[int, ...], part: tuple[int, ...]) -> bool:
        """Return whether the part has all channels: their counts add up over ranks."""
        return is_whole_on(self.channel_axis, whole, part)

    def measure(self, tensor: Tensor) -> Tensor:
        matrix = by_channel(tensor, self.channel_axis)
        channels, positions = matrix.shape
        if self.channels not in (None, channels):
            raise ArgumentError(
                f"a tensor of shape {tuple(tensor.shape)} has {channels} channels on axis {self.channel_axis}, and "
                f"{self} counts {self.channels}: give the channels it has, None, or another channel_axis"
            )
        nan = matrix.isnan().sum(dtype=torch.float64)
        inf = matrix.isinf().sum(dtype=torch.float64)
        active, idle = _counts(matrix, self.eps)
        if not self.grows:
            return torch.cat([torch.stack([nan, inf, torch.full_like(nan, positions)]), active, idle])
        known = [torch.full_like(nan, number) for number in (positions, 1, channels, channels * channels)]
        return torch.cat([torch.stack([nan, inf, *known]), torch.stack([active, idle], 1).flatten()])

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        channels = self._channels(columns)
        rates = self.rates(columns)
        judged = ~np.isnan(rates)
        some = judged.any(axis=1)
        dead = self.dead(columns).sum(axis=1, dtype=np.float64)
        mean = np.where(judged, rates, 0.0).sum(axis=1) / np.where(some, judged.sum(axis=1), np.nan)
        return {
            "channels": channels,
            "positions": columns["positions"],
            "nan": columns["nan"],
            "inf": columns["inf"],
            "activation": mean,
            "least": np.where(some, np.where(judged, rates, np.inf).min(axis=1, initial=np.inf), np.nan),
            "most": np.where(some, np.where(judged, rates, -np.inf).max(axis=1, initial=-np.inf), np.nan),
            "dead": dead,
            "death": np.where(columns["positions"] > 0, dead / channels, np.nan),
        }

    def rates(self, columns: Mapping[str, Column]) -> Column:
        """Return the rate of each channel, of shape ``(rows, channels)``; NaN for a channel without a finite element.

        Where *channels* is None, as many as the row with the most has; NaN for those that a row has not.
        """
        active, idle = self._active_and_idle(columns)
        return active / np.where(active + idle > 0, active + idle, np.nan)

    def dead(self, columns: Mapping[str, Column]) -> NDArray[np.bool_]:
        """Return a mask of the dead channels, of the shape that :meth:`rates` has."""
        positions = columns["positions"][:, None]
        found: NDArray[np.bool_] = (self._active_and_idle(columns)[1] == positions) & (positions > 0)
        return found

    def _channels(self, columns: Mapping[str, Column]) -> Column:
        """Return the number of channels of each row; NaN where it is to be found and nothing was seen.

        Raises:
            ArgumentError: tensors that were added to one row had different numbers.
        """
        if self.channels is not None:
            return np.full(len(columns["positions"]), float(self.channels))
        calls, channels = columns["calls"], columns["channels"]
        if (columns["squares"] * calls != channels * channels).any():
            raise ArgumentError(
                f"tensors with different numbers of channels on axis {self.channel_axis} came to one place: dead channels of all "
                "are none of one; give another channel_axis, or leave the place out with exclude="
            )
        return channels / np.where(calls > 0, calls, np.nan)

    def _active_and_idle(self, columns: Mapping[str, Column]) -> tuple[Column, Column]:
        rows = len(columns["positions"])  # the column of a field of size 1 has no second axis
        if not self.grows:
            return columns["active"].reshape(rows, -1), columns["idle"].reshape(rows, -1)
        counts = columns["counts"].reshape(rows, -1)
        return counts[:, 0::2], counts[:, 1::2]


_OF_ANY = ("nan", "inf", "positions", "calls", "channels", "squares")
"""The fields of a row before the counts, where the number of channels is to be found: it, and its square, of each call added up."""
_PER_CALL = frozenset({"calls", "channels", "squares"})
