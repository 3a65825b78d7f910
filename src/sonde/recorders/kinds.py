"""The five recorders of torchfunc: inputs, outputs and their gradients."""

from __future__ import annotations

from typing import Any, ClassVar

from sonde.engine import Event, walk
from sonde.recorders.keeper import NOTHING, Keeper, Take
from sonde.recorders.recorder import Recorder
from sonde.site import Port, Site
from sonde.warn import warn_user


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments of one call as one value: a single positional argument itself, several as a tuple, with keywords a dict.

    The keys of the dict are the positions and the keywords, so that ``value[0]`` and ``value["mask"]`` are the arguments.
    """
    if kwargs:
        return dict(enumerate(args)) | kwargs
    return args[0] if len(args) == 1 else args


def _arguments(event: Event) -> Any:
    return NOTHING if event.phase == "recompute" else _given(event.args, event.kwargs)


def _output(event: Event) -> Any:
    return NOTHING if event.phase == "recompute" else event.value


def _gradients(event: Event) -> Any:
    return _given(event.value, event.kwargs)


class ForwardPre(Recorder):
    """Records the arguments of modules, as they are before the forward.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.ReLU(inplace=True))
    >>> before, after = ForwardPre().children(model), ForwardInput().children(model)
    >>> output = model(torch.tensor([-1.0, 2.0]))
    >>> before["0"], after["0"]
    ([tensor([-1.,  2.])], [tensor([0., 2.])])

    A call with one positional argument is recorded as that argument, with several as a tuple; where there are keyword
    arguments, as a dict whose keys are the positions and the keywords.
    """

    ports: ClassVar[tuple[Port, ...]] = ("input",)
    port: ClassVar[Port] = "input"

    def _source(self, keeper: Keeper) -> Take:
        return _arguments


class _ArgumentsAfter:
    """The arguments as a forward hook finds them. Compiled code does not have them."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def __call__(self, event: Event) -> Any:
        if not event.args and not event.kwargs and self._is_compiled(event.site):
            return NOTHING
        return _arguments(event)

    def _is_compiled(self, site: Site) -> bool:
        attachment = self._keeper.attachment
        if attachment is None:
            return False
        hook = next((hook for hook in attachment.hooks if site in hook.sites.values()), None)
        regions = [region for root in attachment.roots for region in root.regions()]
        if hook is None or not any(hook.module in region.modules for region in regions):
            return False
        if site not in attachment.delivery.notes:
            hook.note(_IN_COMPILED_CODE)
            warn_user(f"ForwardInput records nothing at {site.port_of('input')}: {_IN_COMPILED_CODE}")
        return True


_IN_COMPILED_CODE = "in compiled code its input is not known after its forward; ForwardPre records it as it was before"


class ForwardInput(Recorder):
    """Records the arguments of modules, as they are after the forward.

    >>> import torch
    >>> from sonde.recorders import ForwardInput
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> with ForwardInput().modules(net, types=torch.nn.Linear) as recorder:
    ...     _ = net(torch.ones(1, 2))
    >>> recorder["0"]
    [tensor([[1., 1.]])]

    The values differ from those of :class:`ForwardPre` exactly where a module writes into its input. Several arguments are
    recorded in the same form.
    """

    ports: ClassVar[tuple[Port, ...]] = ("output",)
    port: ClassVar[Port] = "input"

    def _source(self, keeper: Keeper) -> Take:
        return _ArgumentsAfter(keeper)


class ForwardOutput(Recorder):
    """Records the outputs of modules.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Flatten())
    >>> recorder = ForwardOutput(reduction=lambda x, y: x + y).modules(model, types=torch.nn.Flatten)
    >>> for _ in range(3):
    ...     output = model(torch.ones(1, 2, 2))
    >>> recorder["1"], recorder.samples("1")
    (tensor([[3., 3., 3., 3.]]), 3)
    """

    ports: ClassVar[tuple[Port, ...]] = ("output",)
    port: ClassVar[Port] = "output"

    def _source(self, keeper: Keeper) -> Take:
        return _output


class BackwardOutput(Recorder):
    """Records the gradients of the outputs of modules.

    >>> import torch
    >>> from sonde.recorders import BackwardOutput
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> with BackwardOutput().modules(net, types=torch.nn.ReLU) as recorder:
    ...     net(torch.ones(1, 2)).sum().backward()
    >>> recorder["1"]
    [tensor([[1., 1.]])]

    The gradient of a single tensor is recorded by itself, those of a tuple as a tuple, those of another structure in that
    structure, with None for tensors without a gradient.
    """

    ports: ClassVar[tuple[Port, ...]] = ("grad_output",)
    port: ClassVar[Port] = "grad_output"

    def _source(self, keeper: Keeper) -> Take:
        return _gradients


class _InputGradients:
    """The gradients of the arguments; None when the backward pass reaches a call whose arguments need no gradient."""

    def __init__(self) -> None:
        self._frozen: dict[tuple[Site, int, int], None] = {}  # calls without a gradient to come, the oldest first

    def __call__(self, event: Event) -> Any:
        if event.site.port == "grad_input":
            return _gradients(event)
        key = (event.site.port_of("grad_input"), event.tick.forward, event.call)
        if event.site.port == "grad_output":
            return None if key in self._frozen else NOTHING
        if (event.args or event.kwargs) and _needs_gradient(event.value) and not _needs_gradient((event.args, event.kwargs)):
            self._frozen[key] = None
            if len(self._frozen) > _MOST_FROZEN:
                del self._frozen[next(iter(self._frozen))]
        else:
            self._frozen.pop(key, None)
        return NOTHING


_MOST_FROZEN = 4096  # calls whose backward pass may still come


def _needs_gradient(value: Any) -> bool:
    return any(tensor.requires_grad for _, tensor in walk(value))


class BackwardInput(Recorder):
    """Records the gradients of the arguments of modules: of each use, the gradient through that module alone.

    In ``x + linear(x)``, the gradient at ``linear`` does not include that of the sum. None is recorded for an argument that
    needs no gradient, and for a call without an argument that does. Of a module that writes into its input nothing is
    recorded, since that input's gradient is not known (``coverage()`` names the reason). Observing adds a node to the graph
    for each input, which may change the last bits of the sum of gradients where an input has several uses.

    >>> import torch
    >>> model = torch.nn.Linear(4, 3)
    >>> recorder = BackwardInput().modules(model)
    >>> model(torch.ones(5, 4, requires_grad=True)).sum().backward()
    >>> recorder[0][0].shape
    torch.Size([5, 4])
    """

    ports: ClassVar[tuple[Port, ...]] = ("output", "grad_input", "grad_output")
    port: ClassVar[Port] = "grad_input"

    def _source(self, keeper: Keeper) -> Take:
        return _InputGradients()
