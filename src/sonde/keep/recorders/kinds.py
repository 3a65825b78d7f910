"""The five recorders: what of a module call each of them records."""

from __future__ import annotations

from typing import Any, ClassVar

from sonde.engine import Event, Port, Site, structure
from sonde.engine.failures import warn_user
from sonde.engine.probes.attachment import Attachment
from sonde.keep.recorders.keeper import NOTHING, Source
from sonde.keep.recorders.recorder import Recorder

__all__ = ["BackwardInput", "BackwardOutput", "ForwardInput", "ForwardOutput", "ForwardPre"]


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments of one call as one value: a single positional one itself, several a tuple, with keywords a dict.

    The dict has the positions and the keywords as its keys, so that ``value[0]`` and ``value["mask"]`` are the arguments.
    """
    if kwargs:
        return dict(enumerate(args)) | kwargs
    return args[0] if len(args) == 1 else args


class _Arguments(Source):
    def __call__(self, event: Event) -> Any:
        return NOTHING if event.phase == "recompute" else _given(event.args, event.kwargs)


class ForwardPre(Recorder):
    """Records what modules are given, as it is before their forward.

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

    def _source(self) -> Source:
        return _Arguments()


class _ArgumentsAfter(_Arguments):
    """The arguments as a forward hook finds them, which compiled code cannot tell."""

    def __init__(self) -> None:
        self.attachment: Attachment | None = None

    def __call__(self, event: Event) -> Any:
        if not event.args and not event.kwargs and self._is_compiled(event.site):
            return NOTHING
        return super().__call__(event)

    def _is_compiled(self, site: Site) -> bool:
        if self.attachment is None:
            return False
        hook = next((hook for hook in self.attachment.hooks if site in hook.sites.values()), None)
        regions = [region for root in self.attachment.roots for region in root.regions()]
        if hook is None or not any(hook.module in region.modules for region in regions):
            return False
        if site not in self.attachment.delivery.notes:
            hook.note(_IN_COMPILED_CODE)
            warn_user(f"ForwardInput records nothing at {site.port_of('input')}: {_IN_COMPILED_CODE}")
        return True


_IN_COMPILED_CODE = "in compiled code its input is not known after its forward; ForwardPre records it as it was before"


class ForwardInput(Recorder):
    """Records what modules were given, as it is after their forward.

    That differs from what :class:`ForwardPre` records exactly where a module writes into its input. What several arguments
    are recorded as is the same.
    """

    ports: ClassVar[tuple[Port, ...]] = ("output",)
    port: ClassVar[Port] = "input"

    def _source(self) -> Source:
        return _ArgumentsAfter()

    def _connect(self, source: Source, attachment: Attachment) -> None:
        if isinstance(source, _ArgumentsAfter):
            source.attachment = attachment


class _Output(Source):
    def __call__(self, event: Event) -> Any:
        return NOTHING if event.phase == "recompute" else event.value


class ForwardOutput(Recorder):
    """Records what modules return.

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

    def _source(self) -> Source:
        return _Output()


class _Gradients(Source):
    def __call__(self, event: Event) -> Any:
        return _given(event.value, event.kwargs)


class BackwardOutput(Recorder):
    """Records the gradients of what modules returned.

    A single tensor's gradient is recorded by itself; those of a tuple as a tuple, of another structure in that structure,
    with None for tensors that got none.
    """

    ports: ClassVar[tuple[Port, ...]] = ("grad_output",)
    port: ClassVar[Port] = "grad_output"

    def _source(self) -> Source:
        return _Gradients()


class _InputGradients(_Gradients):
    """Gradients of the arguments; None when the backward pass reaches a call none of whose arguments needs one."""

    def __init__(self) -> None:
        self._frozen: dict[tuple[Site, int, int], None] = {}  # calls without a gradient to come, the oldest first

    def __call__(self, event: Event) -> Any:
        if event.site.port == "grad_input":
            return super().__call__(event)
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
    return any(tensor.requires_grad for _, tensor in structure.walk(value))


class BackwardInput(Recorder):
    """Records the gradients of what modules were given: of each use the gradient through that module alone.

    Of ``x + linear(x)`` the gradient at ``linear`` is without that of the sum. An argument that needs no gradient has None;
    so has a call without any that does. A module that writes into its input has no gradient there that could be told, and
    nothing is recorded (``coverage()`` says so). Observing adds a node to the graph for each input, which may change the
    last bits of the sum of gradients where an input has several uses.

    >>> import torch
    >>> model = torch.nn.Linear(4, 3)
    >>> recorder = BackwardInput().modules(model)
    >>> model(torch.ones(5, 4, requires_grad=True)).sum().backward()
    >>> recorder[0][0].shape
    torch.Size([5, 4])
    """

    ports: ClassVar[tuple[Port, ...]] = ("output", "grad_input", "grad_output")
    port: ClassVar[Port] = "grad_input"

    def _source(self) -> Source:
        return _InputGradients()
