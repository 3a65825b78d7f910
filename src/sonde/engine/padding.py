"""Tell the padding of sequences from what they hold."""

from __future__ import annotations

import torch
from torch import Tensor

_INSIDE = 0.1  # of the tokens or steps of padding, those that stand between others
_MOSTLY = 0.9  # of all tokens, those of two that stand at both ends, of which nothing but the number says which is padding


def padded(tokens: Tensor) -> Tensor:
    """Return which of *tokens* are padding: of two or more at one end of a row those that are what rows have there most often.

    A row of these alone has none. Where both ends have such tokens, and others than each other, those are padding that are more; of
    two that are nearly all there is, the smaller number, as an unknown word stands behind the padding in a vocabulary. Where all
    others are one token, none are: nothing says which of the two is padding.
    Of features, ``(samples, steps, features)``, steps of zeros alone at the end are, where samples have different numbers of them.
    """
    if tokens.dim() == 3:
        return _zero_steps(tokens).long()
    behind, front = _run(tokens.flip(1)).flip(1), _run(tokens)
    first, last = tokens[:, 0].mode().values, tokens[:, -1].mode().values
    are_one = first == last
    are_all = ((tokens == first) | (tokens == last)).sum() >= _MOSTLY * tokens.numel()
    is_behind = torch.where(are_all & front.any() & behind.any(), last < first, behind.sum() >= front.sum())
    found = (behind & (are_one | is_behind)) | (front & (are_one | ~is_behind))
    largest, least = (torch.where(found, of, tokens) for of in (tokens.amin(), tokens.amax()))  # of all others
    is_whole = found.sum(1, keepdim=True) == tokens.shape[1]
    return (found & ~is_whole & (largest.amax() > least.amin())).long()


def _run(tokens: Tensor) -> Tensor:
    """Return which of *tokens* stand in front of a row, two or more, and are what rows begin with most often, and hardly hold."""
    equal = tokens == tokens[:, 0].mode().values
    is_first = equal.long().cumprod(1)
    found = (is_first * (is_first.sum(1, keepdim=True) > 1)).bool()
    return found & ((equal & ~found)[:, 1:-1].sum() <= _INSIDE * found.sum())


def _zero_steps(given: Tensor) -> Tensor:
    """Return which steps of *given* features are zeros alone at the end of a sample that has others, and hardly any elsewhere."""
    is_zero = (given == 0).flatten(2).all(2)
    behind = is_zero.flip(1).cumprod(1).flip(1).bool() & ~is_zero.all(1, keepdim=True)
    counts = behind.sum(1)
    is_padding = ((is_zero & ~behind).sum() <= _INSIDE * counts.sum()) & (counts.max() > counts.min()) & (counts.max() > 1)
    return behind & is_padding
