"""Make the measurements of a model: one for each statistic of a lens and each kind of moment at which rows are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from torch import nn

from sonde.engine import Where, parameters_in, tell_of_globs
from sonde.errors import SelectionError
from sonde.inspector.measurement.measurement import Kind, Measurement
from sonde.inspector.settings import Settings
from sonde.lens import Lens
from sonde.site import PARAMETER_PORTS, Port
from sonde.stats import Moments, Norm
from sonde.warn import warn_user


def fit_all(models: Mapping[str, nn.Module], settings: Settings) -> dict[str, list[Measurement]]:
    """Return by the name of its model the measurements that all lenses make, ready to be attached; nothing is hooked yet.

    Raises:
        SelectionError: a lens that was asked for finds nothing in any model, or no default lens does.
    """
    fitted: dict[str, list[Measurement]] = {name: [] for name in models}
    blind: dict[str, SelectionError] = {}
    for lens in settings.lenses:
        refused = []
        for name, model in models.items():
            try:
                fitted[name] += fit(model, name, lens, settings)
            except SelectionError as error:
                refused.append(error)
        if len(refused) == len(models):
            blind[lens.name] = refused[0]
    optional = {lens.name for lens in settings.lenses if lens.optional} if any(fitted.values()) else set()
    strange = [name for name in blind if name not in optional]
    if strange and (not settings.by_default or len(blind) == len(settings.lenses)):
        raise SelectionError(f"the lens {strange[0]!r} finds nothing to look at: {blind[strange[0]]}")
    for model in models.values():
        tell_of_globs(model, include=settings.choice.include, exclude=settings.choice.exclude)
        for lens in settings.lenses:
            tell_of_globs(model, include=lens.include, exclude=lens.exclude)
    for name in blind if not settings.by_default else ():
        warn_user(f"the lens {name!r} finds no layer in this model and records nothing: {blind[name]}")
    return fitted


def fit(model: nn.Module, name: str, lens: Lens, settings: Settings) -> Iterator[Measurement]:
    """Yield the measurements that *lens* makes of *model*, ready to be attached.

    Raises:
        SelectionError: the lens selects nothing in *model*.
    """
    admits = settings.choice.admits(model, (lens.include, lens.exclude))
    found = False
    for kind, ports in _kinds(lens, settings).items():
        for statistic, where in lens.parts(model):
            measuring = Measurement(lens, statistic, kind, ports, calls_apart=settings.calls_apart)
            try:
                measuring.prepare(model, _both(admits, where), name, strict=settings.strict, update_memory=settings.update_memory)
            except SelectionError:
                continue
            found = True
            yield measuring
    if not found:
        raise SelectionError(
            f"its include= and exclude=, the inspector's, and depth={settings.choice.depth} together leave nothing that has "
            f"{' or '.join(lens.ports)}"
        )


def _kinds(lens: Lens, settings: Settings) -> dict[Kind, tuple[Port, ...]]:
    """Return the ports to observe for each kind of moment at which rows are taken."""
    at_step = [port for port in lens.ports if not (port == "grad" and settings.gradients == "micro_step")]
    found: dict[Kind, tuple[Port, ...]] = {"step": tuple(at_step)}
    if settings.gradients != "step" and "grad" in lens.ports:
        found["micro_step"] = ("grad",)
    if settings.evaluation or lens.evaluation:
        found["evaluation"] = tuple([port for port in lens.ports if port in ("input", "output")])
    return {kind: ports for kind, ports in found.items() if ports}


def _both(admits: Callable[[str, nn.Module], bool], where: Where) -> Callable[[str, nn.Module], bool]:
    if where is None:
        return admits
    assert callable(where)
    return lambda name, module: admits(name, module) and bool(where(name, module))


def fit_norms(model: nn.Module, name: str, measurings: list[Measurement], settings: Settings) -> Measurement | None:
    """Choose where the norms over all parameters come from; return one more measurement if the others lack a port.

    To be called again when the model has changed: a lens that has covered all parameters may not mean those that came.
    """
    everything = {id(parameter) for parameter in parameters_in(model)}
    for each in measurings:
        each.norms = frozenset()
    if not everything:
        return None
    missing: list[Port] = []
    for port in PARAMETER_PORTS:
        source = next((each for each in measurings if _gives_norm(each) and each.parameters(port) >= everything), None)
        if source is None:
            missing.append(port)
        else:
            source.norms |= {port}
    if not missing:
        return None
    hidden = Measurement(Lens("norms", Norm(), tuple(missing)), Norm(), "step", tuple(missing), hidden=True)
    hidden.norms = frozenset(missing)
    hidden.prepare(model, None, name, strict=settings.strict, update_memory=settings.update_memory)
    return hidden


def _gives_norm(measuring: Measurement) -> bool:
    return measuring.kind == "step" and isinstance(measuring.statistic, Moments | Norm)
