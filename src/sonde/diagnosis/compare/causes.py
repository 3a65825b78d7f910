"""Look for the cause where two sides part: parameters, settings, modes, and known relations between the tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from sonde.diagnosis.compare.formulas import of_formulas
from sonde.diagnosis.compare.scene import Scene
from sonde.diagnosis.compare.weights import Relation, relation
from sonde.diagnosis.distance import as_numbers, distance, held_of_both, readable, spacing
from sonde.engine import BatchNorm, buffers_of, class_of, parameters_of
from sonde.rules import Finding
from sonde.site import PARAMETER_PORTS


def causes_of(scene: Scene) -> list[Finding]:
    """Return what explains the place where the sides part, the most certain cause first; nothing where none is known."""
    looks: list[Callable[[Scene], Iterator[Finding]]]
    if scene.place.stage == "forward":
        looks = [_of_modes, _of_parameters, of_formulas, _of_settings, _of_types]
    else:
        looks = [_of_gradients, _of_updates, _of_parameters, _of_settings, _of_types]
    found: dict[tuple[str, str], Finding] = {}
    for look in looks:
        for finding in look(scene):
            if not (finding.rule == "setting" and finding.evidence.keys() & _evidence(found.values())):
                found.setdefault((finding.rule, finding.message), finding)
    return list(found.values())


def _evidence(found: Iterable[Finding]) -> set[str]:
    """Return the names of all evidence."""
    return {name for finding in found for name in finding.evidence}


# Modes


def _of_modes(scene: Scene) -> Iterator[Finding]:
    """Dropout that is on in one side alone; statistics of the batch in one side, running statistics in the other."""
    one, other = scene.modules
    random = {"a": scene.place.key in scene.a.random, "b": scene.place.other_key in scene.b.random}
    if one is None or other is None:
        return
    training = {"a": one.training, "b": other.training}
    if random["a"] != random["b"]:
        side = "a" if random["a"] else "b"
        kind, rest = type(one if side == "a" else other).__name__, "b" if side == "a" else "a"
        mode = "is in training mode" if training[side] else "draws random numbers in evaluation mode"
        why = f"dropout is on in {side}" if training[side] else f"{side} is random"
        yield scene.finding(
            "random",
            f"{why}: its {kind} {mode}, and gives other results from another random state; {rest} gives the same",
            f"compare both in evaluation mode: {side}.eval()",
            {"training_a": float(training["a"]), "training_b": float(training["b"])},
        )
    elif random["a"] and random["b"]:
        yield scene.finding(
            "random",
            "both sides are random here, and draw other numbers from the same random state",
            "compare both in evaluation mode: a.eval(), b.eval()",
        )
    elif training["a"] != training["b"] and (isinstance(one, _MODED) or isinstance(other, _MODED) or scene.frame.is_code):
        side = "a" if training["a"] else "b"
        yield scene.finding(
            "training_mode",
            f"the {type(one).__name__} is in training mode in {side} alone",
            "put both into the same mode: a.eval(), b.eval()",
            {"training_a": float(training["a"]), "training_b": float(training["b"])},
        )


_MODED: tuple[type[nn.Module], ...] = (
    BatchNorm,
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU),
)
"""Classes of torch that do something else in training mode."""


# Parameters


def own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of *module* itself by name, as tensors that can be read, or on the meta device."""
    held = (*parameters_of(module).items(), *buffers_of(module).items())
    return {name: readable(tensor) for name, tensor in held if tensor is not None and not tensor.is_nested}


def _of_parameters(scene: Scene) -> Iterator[Finding]:
    one, other = scene.modules
    if one is None or other is None:
        return
    for name, x, y, label in _matched(own_tensors(one), own_tensors(other)):
        held = held_of_both(x, y)
        if x.is_meta or y.is_meta or held is None:
            continue
        x, y = held  # noqa: PLW2901
        if (
            y.shape == x.shape
            and str(x.dtype) != str(y.dtype)
            and distance(as_numbers(x), as_numbers(y)).relative <= max(spacing(x), spacing(y))
        ):
            continue  # the difference of the types is told apart
        found = relation(as_numbers(x), as_numbers(y))
        if {class_of(one).__name__, class_of(other).__name__} >= _TURNED and x.dim() == 2:
            found = _of_turned(x, y)
        if found is not None:
            found = _mixed_up(scene, name, y) or found
            yield _of_relation(scene, found, name, label)
    mine, theirs = own_tensors(one), own_tensors(other)
    for name in ("bias", "weight"):
        if (name in mine) != (name in theirs):
            side = "a" if name in mine else "b"
            tensor = (mine if name in mine else theirs)[name]
            if not tensor.is_meta and not bool((tensor == 0).all()):
                lacking = "b" if side == "a" else "a"
                yield scene.finding(
                    f"{name}_missing",
                    f"there is a {name} in {side} and none in {lacking}",
                    f"add the {name} in {lacking}",
                )


_TURNED = {"Conv1D", "Linear"}
"""Classes of which one multiplies by its weight (GPT-2 of transformers), the other by its transpose."""


def _of_turned(x: Tensor, y: Tensor) -> Relation | None:
    if x.shape == y.shape and relation(as_numbers(x), as_numbers(y)) is None:
        return Relation("weight_transposed", "{a} equals {b}, but a Conv1D multiplies by its weight, a Linear by its transpose")
    return None if x.shape != y.mT.shape else relation(as_numbers(x), as_numbers(y).mT)


def _matched(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor, Tensor, str]]:
    """Yield tensors of two modules that belong together: of one name, else of one shape that occurs once in each."""
    for name, tensor in one.items():
        if name in other:
            yield name, tensor, other[name], name
            continue
        left = [key for key, held in other.items() if key not in one and sorted(held.shape) == sorted(tensor.shape)]
        same = [key for key, held in one.items() if key not in other and sorted(held.shape) == sorted(tensor.shape)]
        if len(left) == len(same) == 1:
            yield name, tensor, other[left[0]], left[0]


def _of_relation(scene: Scene, found: Relation, name: str, label: str) -> Finding:
    layer, beside = scene.frame.owner, scene.owner_b or ""
    same = layer == beside and name == label
    texts = ("a." + _joined(layer, name), "b." + _joined(beside, label))
    words = found.words.format(a=f"a's {name}" if same else texts[0], b=f"b's {label}" if same else texts[1])
    return scene.finding(found.rule, words, _ADVICE.get(found.rule, ""), found.evidence)


_ADVICE = {
    "weight_transposed": "transpose the weight where it is converted",
    "weight_reshaped": "transpose the weight where it is converted, instead of changing its shape",
    "weight_permuted": "put the rows in the order of the other side where the weight is converted",
    "weight_scaled": "load the weight without the factor",
    "weight_rounded": "keep the weight in the wider type",
    "weight_shifted": "check the first row of the table of embeddings, and the offset of its indices",
    "weight_differs": "check that this tensor was loaded, and that nothing trained or initialised it afterwards",
    "weight_of_another": "check the names by which the weights are converted",
}


def _mixed_up(scene: Scene, name: str, y: Tensor) -> Relation | None:
    """Return the relation of a tensor of ``b`` to another parameter of ``a`` that it equals."""
    numbers = as_numbers(y)
    if y.numel() < 2 or bool((numbers == numbers.flatten()[0]).all()):
        return None
    own = _joined(scene.frame.owner, name)
    assert scene.a.model is not None
    for other, parameter in scene.a.model.named_parameters():
        if other == own or parameter.is_nested or parameter.shape != y.shape:
            continue
        held = readable(parameter)
        if not held.is_meta and relation(as_numbers(held), numbers) is None:
            return Relation("weight_of_another", f"{{b}} equals a.{other}")
    return None


# Settings


def _of_settings(scene: Scene) -> Iterator[Finding]:
    one, other = scene.modules
    if one is None or other is None:
        return
    for name, here, there in setting_differences(one, other):
        numbers = {f"{name}_a": here, f"{name}_b": there}
        evidence = {key: float(held) for key, held in numbers.items() if isinstance(held, int | float)}
        yield scene.finding(
            "setting",
            f"{name} is {_short(here)} in a and {_short(there)} in b",
            f"give both the same {name}",
            evidence,
        )
    kinds = class_of(one).__name__, class_of(other).__name__
    if kinds[0] != kinds[1] and not scene.frame.is_code:
        yield scene.finding("class", f"{kinds[0]} in a, {kinds[1]} in b", severity="note")


def setting_differences(one: nn.Module, other: nn.Module) -> list[tuple[str, Any, Any]]:
    """Return the plain attributes that two modules have both and that differ: name, value in ``a``, value in ``b``.

    Different names for the small number of a normalisation (``eps``, ``variance_epsilon``) are one name.
    """
    here, there = _settings(one), _settings(other)
    return [(name, here[name], there[name]) for name in here if name in there and here[name] != there[name]]


def _settings(module: nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, held in vars(module).items():
        if name.startswith("_") or name in _NO_SETTINGS or not isinstance(held, bool | int | float | str | tuple | None):
            continue
        if isinstance(held, tuple) and not all(isinstance(part, bool | int | float | str) for part in held):
            continue
        found["eps" if "eps" in name else name] = held
    return found


_NO_SETTINGS = {"training", "call_super_init", "dump_patches", "layer_idx", "name", "device"}


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


# Types


def _of_types(scene: Scene) -> Iterator[Finding]:
    one, other = (None if kept is None else kept.main for kept in scene.kept)
    if one is None or other is None or one[1].dtype == other[1].dtype:
        return
    kinds = [str(held[1].dtype).removeprefix("torch.") for held in (one, other)]
    yield scene.finding("dtype", f"{kinds[0]} in a, {kinds[1]} in b", "compute both in the same type", severity="warn")


# Gradients and updates


def _of_gradients(scene: Scene) -> Iterator[Finding]:
    place = scene.place
    if place.stage != "backward":
        return
    if place.site.port in PARAMETER_PORTS:
        yield from _of_parameter_gradient(scene)
    elif place.remark.startswith("no gradient"):
        side = place.remark[-1]
        frozen = _frozen(scene, side)
        if frozen:
            yield frozen
        else:
            yield scene.finding(
                "graph_cut",
                f"no gradient reaches this output in {side}, while gradients behind it agree",
                f"look for detach(), torch.no_grad(), .data or an operation on whole numbers between {_named(scene)} and the next "
                f"layer of {side}",
            )
    if scene.tensors is not None:
        yield from _of_factor(scene, "the gradient")


def _of_tie(scene: Scene) -> Iterator[Finding]:
    """The parameter has several names in one side, and fewer in the other."""
    if scene.a.model is None or scene.b.model is None:
        return
    here, there = _names_of(scene.a.model, scene.place.site.path), _names_of(scene.b.model, scene.place.other.path)
    if len(here) != len(there):
        side, names = ("a", here) if len(here) > len(there) else ("b", there)
        other = "b" if side == "a" else "a"
        yield scene.finding(
            "tied",
            f"{' and '.join(names)} are one parameter in {side}, and are not in {other}",
            f"tie the parameters in {other}, so that their gradients are added",
            {"names_a": float(len(here)), "names_b": float(len(there))},
        )


def _names_of(model: nn.Module, name: str) -> list[str]:
    """Return all names of the parameter *name*."""
    held = dict(model.named_parameters(remove_duplicate=False))
    wanted = held.get(name)
    return [other for other, parameter in held.items() if parameter is wanted]


def _of_parameter_gradient(scene: Scene) -> Iterator[Finding]:
    yield from _of_tie(scene)
    place = scene.place
    if place.remark.startswith("no gradient"):
        side = place.remark[-1]
        found = _frozen(scene, side)
        if found:
            yield found
        elif not list(_of_tie(scene)):
            yield scene.finding(
                "no_gradient",
                f"no gradient reaches the parameter in {side}, though it requires one",
                f"look for detach(), torch.no_grad() or .data around the use of {place.site.name} in {side}",
            )


def _frozen(scene: Scene, side: str) -> Finding | None:
    """Return the finding that parameters require a gradient in the other side alone."""
    one, other = scene.modules
    if one is None or other is None:
        return None
    lacking, having = (one, other) if side == "a" else (other, one)
    if scene.place.site.port in PARAMETER_PORTS:
        own = scene.place.site.path.rpartition(".")[2]
        here, there = own_tensors(lacking).get(own), own_tensors(having).get(own)
        if here is None or there is None or here.requires_grad or not there.requires_grad:
            return None
        whole = all(not held.requires_grad for held in lacking.parameters())
        what = f"all of {_named(scene)}" if whole else "the parameter"
    else:
        here_any = any(held.requires_grad for held in lacking.parameters())
        if here_any or not any(held.requires_grad for held in having.parameters()):
            return None
        what = f"all of {_named(scene)}"
    return scene.finding(
        "frozen",
        f"{what} is frozen in {side}: requires_grad is False there, and True in the other side",
        f"call requires_grad_(True) on it in {side}, before the optimizer is made",
    )


def _of_factor(scene: Scene, what: str) -> Iterator[Finding]:
    from sonde.diagnosis.compare.weights import factor_between

    assert scene.tensors is not None
    factor = factor_between(*scene.tensors, max(scene.tolerance, 1e-6))
    if factor is not None:
        yield scene.finding("scaled", f"{what} of b is {factor:.6g} times that of a", evidence={"factor": factor})


def _of_updates(scene: Scene) -> Iterator[Finding]:
    place = scene.place
    if place.stage != "update" or scene.tensors is None:
        return
    here, there = (bool((tensor != 0).any()) for tensor in scene.tensors)
    if here != there:
        side = "b" if here else "a"
        found = _frozen(scene, side)
        if found is not None:
            yield found
            return
        yield scene.finding(
            "not_updated",
            f"the parameter does not move in {side}, though its gradient agrees",
            f"check that the optimizer of {side} was given it, with the same learning rate",
        )
        return
    yield from _of_factor(scene, "the update")
    if _kept_parameter(scene) is not None:
        yield from _of_decay(scene)


def _kept_parameter(scene: Scene) -> Tensor | None:
    kept = scene.kept[0]
    return None if kept is None or "before" not in kept.leaves else as_numbers(kept.leaves["before"])


def _of_decay(scene: Scene) -> Iterator[Finding]:
    """The difference of the updates is a multiple of the parameter: weight decay."""
    parameter = _kept_parameter(scene)
    assert scene.tensors is not None
    assert parameter is not None
    off = scene.tensors[1] - scene.tensors[0]
    square = float((parameter * parameter).sum())
    factor = float((off * parameter).sum()) / square if square else 0.0
    rest = off - factor * parameter
    if factor and float(rest.norm()) <= 1e-2 * float(off.norm()):
        yield scene.finding(
            "weight_decay",
            f"the updates differ by {factor:.3g} times the parameter: weight decay",
            "give both optimizers the same weight decay",
            {"factor": factor},
        )


def _joined(layer: str, name: str) -> str:
    return f"{layer}.{name}" if layer else name


def _named(scene: Scene) -> str:
    return scene.frame.owner or "(root)"
