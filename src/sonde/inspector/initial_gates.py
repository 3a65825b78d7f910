"""Notice gates of recurrent layers that are shut by their biases as the training begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sonde.engine import SiteHook, parameters_of, raise_if_foreign
from sonde.rules import Chosen, Finding, among
from sonde.stats import HostCopy, in_memory

_SHUT: dict[str, tuple[tuple[int, float, str, str], ...]] = {
    "LSTM": (
        (0, -1.0, "input gate", "nothing that goes in is kept"),
        (1, -1.0, "forget gate", "its cells keep nothing from step to step"),
        (3, -1.0, "output gate", "next to nothing comes out"),
    ),
    "GRU": ((1, 1.0, "update gate", "what goes in changes next to nothing"),),
}
"""By the type of a layer the place of a gate among its biases, the sign of those that shut it, its name, and what comes of it. A
forget gate, or one of the output, that stands open is a usual beginning, and a GRU whose update gate keeps nothing is a plain
network with a state."""
_GATES = {"LSTM": 4, "GRU": 3}


@dataclass
class _Seen:
    """A gate whose biases were copied: the hook of the bias, the name of the gate, and what follows where the biases shut it."""

    hook: SiteHook
    gate: str
    effect: str


class InitialGates:
    """Looks at the biases of LSTM and GRU layers once, after the first logged step, which moves them little.

    Args:
        chosen: the rules that are applied.
    """

    def __init__(self, chosen: Chosen) -> None:
        self._chosen = chosen
        self.looks = chosen.is_on("gate_shut")
        self._seen: list[_Seen] = []
        self._numbers: HostCopy | None = None
        self._moment = (0, 0)
        self._found: tuple[Finding, ...] = ()

    def check(self, hooks: Sequence[SiteHook], epoch: int, step: int) -> None:
        """Copy what is known of each gate, without a wait for a device."""
        self.looks, self._moment = False, (epoch, step)
        try:
            with torch.inference_mode(False), torch.no_grad():
                known = [each for hook in hooks for each in _gates_of(hook)]
                self._seen = [seen for seen, _ in known]
                self._numbers = HostCopy.of([numbers for _, numbers in known]) if known else None
        except Exception as error:
            raise_if_foreign(error)

    def found(self) -> tuple[Finding, ...]:
        """Return the findings so far."""
        copies, self._numbers = self._numbers, None
        if copies is not None:
            judged = []
            for seen, (least, mean, spread) in zip(self._seen, copies.unpack(), strict=True):
                one = self._chosen.judge("gate_shut", float(least), float(mean), float(spread), gate=seen.gate, effect=seen.effect)
                judged += [(seen.hook, one)] if one is not None else []
            for _, one in judged[:1]:
                names = list(dict.fromkeys(hook.sites["param"].name for hook, _ in judged))
                told = one.at(str(judged[0][0].sites["param"]), *self._moment, among(names, one.message))
                self._found = (replace(told, first_step=self._moment[1], places=tuple(names)),)
        return self._found


def _gates_of(hook: SiteHook) -> Iterator[tuple[_Seen, Tensor]]:
    """Yield each gate of the layer that has the bias of *hook*, with its least bias, the mean, and how far inputs move it.

    That is the size of its weights x the root of the inputs: what an input of size 1 adds.
    """
    module, name = hook.module, hook.name.rpartition(".")[2]
    kind = next(
        (each for each, of in (("LSTM", (nn.LSTM, nn.LSTMCell)), ("GRU", (nn.GRU, nn.GRUCell))) if isinstance(module, of)), ""
    )
    if not kind or not name.startswith("bias_ih") or not hook.target.requires_grad:
        return
    own, gates = parameters_of(module), _GATES[kind]
    held = [own.get(name.replace("bias_ih", each)) for each in ("bias_ih", "bias_hh", "weight_ih")]
    known = [plain for each in held if each is not None and (plain := in_memory(each.detach())) is not None]
    if len(known) < len(held) or len({len(each) for each in known}) > 1 or len(known[0]) % gates or known[-1].dim() != 2:
        return  # flattened, or in parts on several devices
    into, beside, weight = (each.double().chunk(gates) for each in known)
    for at, sign, gate, effect in _SHUT[kind]:
        bias = into[at] + beside[at]
        spread = weight[at].square().mean().sqrt() * weight[at].shape[1] ** 0.5
        yield _Seen(hook, gate, effect), torch.stack([(sign * bias).min(), bias.mean(), spread])
