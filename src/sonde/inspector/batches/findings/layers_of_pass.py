"""Judge the layers that a pass goes through: dead, shut and dropped units, normalisations, attention, embeddings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from sonde import rules
from sonde.inspector.batches.findings.pass_history import KEPT, LAST, OFTEN, SEEN, History, PassFindings
from sonde.inspector.batches.look import SQUARE, Look, Table
from sonde.rules import Chosen, Finding, among
from sonde.words import percent, short

_RATE = "lower its rate, which is the share that is dropped, and not that which is kept; and give it training=self.training"
_SHARP = (
    "look at what multiplies the scores of the attention (a missing 1 / sqrt(size), a temperature), at initial weights, and at a "
    "missing normalisation"
)
_AS_ZERO, _APART_COLUMNS = 1e-5, 30.0  # size of an input; times as large as half of the columns of a table one of them is
_SCALED = "scale what goes in to mean 0 and deviation 1, or take its logarithm; look for a factor or a unit that makes it so small"
_QUERIES = -2  # axis of scores
_OVER_KEYS = "take it over the last axis, softmax(scores, dim=-1): what is added up of the values are means then"
_ADDED = "scale it to the size of what it is added to: its initial values, a missing division, a normalisation of each side"
SHUT_LOOKS = 2
"""First looks, in which a tanh or sigmoid has next to no slope: that it has begun so."""
_SHUT = 1e-3  # mean slope, of the largest: of a sigmoid of -8
_ONE_WAY, _APART = 1e-3, 0.1  # of the squares of rows, those across their common direction: next to none, and those of rows apart
_AVERAGED = (
    "look at what stands between the two: means over neighbours, or attention, taken again and again make nodes or places alike, "
    "and so do many layers whose biases outweigh what goes in, as inputs that were scaled twice; take fewer of them, add what went "
    "in (a residual path), or normalise"
)
_AT_DEPTHS = "normalises at several depths of a network: its running statistics, which evaluation takes, are of none of them"
_OWN_NORM = "give each place a batch normalisation of its own, or use a LayerNorm, which has no statistics of batches"
_ALL_PADDING = 0.99  # of the weights of an attention
_ROOM, _AS_TOKENS = 0.1, 0.3  # share of places that are padding; and of that, what it has of weights that no mask leaves it out of
_MASK = (
    "leave padding out: src_key_padding_mask (True at padding), attention_mask (0 there), or masked_fill(scores, -inf) in front of "
    "the softmax; and out of a mean over places"
)
_ONE_UNIT = "has one unit: all that outputs know of what goes in is one number"
_WIDER = "give it more units, as many as what it stands for has independent numbers, or more"
_OF_ONE = {
    "softmax": "take the sigmoid of one output, or the softmax over the axis of several: of classes, or of places (dim=)",
    "normalisation": "normalise over several features, or over the samples (BatchNorm), or leave it out",
}
_FEW_ROWS, _ROWS_OF_FEW = 0.25, 20  # of the rows of a table of so many or more, those that few tokens ask for
_MANY, _MORE, _ROWS_OF_TOKENS = 0.15, 1.9, 8  # share of the tokens that are one, times that of any other; rows of their table
_UNKNOWN = (
    "look whether this is what the tokenizer gives for words that its vocabulary lacks (<unk>), or where a clamp ends: what these "
    "words tell is lost, and the loss stands"
)
_STRAIGHT = (
    "pass the gradient straight through, x + (round(x) - x).detach(), or use what has a slope while training (a sigmoid, tanh or "
    "softmax of it, noise of the size of a step)"
)
_TWO = (
    "give larger batches, or normalise within each sample (GroupNorm, LayerNorm): what a batch of two adds is noise, and "
    "evaluation, with the statistics of many, is another function"
)
_DEAD_LOOKS = 2  # one after the other, in which all units of a layer were dead


class LayersOfPass(PassFindings):
    """Judges the layers that passes go through.

    Args:
        tables: the embeddings, by the name of the parameter.
    """

    def __init__(self, chosen: Chosen, part: str, history: History, tables: Mapping[str, Table]) -> None:
        super().__init__(chosen, part, history)
        self._tables = tables
        self._dead: dict[str, list[int]] = {}  # by layer: the steps in a row up to now in which its activation was zero throughout

    def of(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield what one pass shows, beside those before it."""
        yield self._chosen.judge("all_linear", float(look.is_linear))
        yield from self._of_input(numbers)
        yield from self._of_sums(numbers)
        yield from self._of_dead(look, numbers)
        yield from self._of_shut(look, numbers)
        yield self._told_directions(numbers)
        found = self._chosen.judge("rank_collapse", 1.0) if look.narrow else None
        yield found and replace(found, message=f"{look.narrow} {_ONE_UNIT}", advice=_WIDER, site=f"{look.narrow}:output")
        yield self._chosen.judge("residual_missing", float(look.bare))
        found = self._chosen.judge("running_off", math.inf, 1.0) if look.repeated else None
        yield found and replace(found, message=f"{look.repeated} {_AT_DEPTHS}", advice=_OWN_NORM, site=f"{look.repeated}:output")
        for kind, name in look.single.items():
            found = self._chosen.judge("input_unused", 1, 1, has_layers=True)
            where = f" behind {name}" if kind == "softmax" and name else f" {name}".rstrip()
            message = f"the {kind}{where} is over one element: it returns the same, whatever goes in"
            yield found and replace(found, message=message, advice=_OF_ONE[kind], site=name and f"{name}:output")
        for names in look.twice:
            found = self._chosen.judge("held_twice", float(len(names)), layer=f"{names[0]} to {names[-1]}")
            yield found and replace(found, site=f"{names[0]}:param", advice=rules.updates.EACH_LAYER)
        yield self._told_lost(look)
        yield from self._of_indices(numbers)
        yield from self._of_norms(numbers)
        yield from self._of_attention(numbers)
        yield from self._of_dropped(numbers)

    def _told_lost(self, look: Look) -> Finding | None:
        """Return that layers stand behind an operation whose slope is zero: no gradient comes to them."""
        if look.lost is None:
            return None
        operation, layer, names = look.lost
        found = self._chosen.judge("unreached", math.inf)
        where = f"the {operation} behind {layer}" if layer else f"a {operation}"
        message = f"no gradient but zeros comes to it: {where}, which what is returned goes through, has a slope of zero everywhere"
        return found and replace(
            found, message=among(names, message), advice=_STRAIGHT, site=f"{names[0]}:param", places=tuple(names), evidence={}
        )

    def _of_input(self, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that what the first layer takes is as good as zero, or that its columns are of very different sizes."""
        name = next((each.removeprefix("first ") for each in numbers if each.startswith("first ")), "")
        if not name:
            return
        size, most, middle = (numbers.get(each, 0.0) for each in (f"first {name}", "largest column", "middle column"))
        tiny = self._so_far("tiny", value=0 < size <= _AS_ZERO)
        found = self._chosen.judge("input_same", float(len(tiny)), 0.0) if len(tiny) >= KEPT and all(tiny) else None
        message = (
            f"what goes into {name} is of size {short(size)}: beside a bias, or the eps of a normalisation, it is as good as zero"
        )
        yield found and replace(found, message=message, advice=_SCALED, site=f"{name}:input", severity="warn")
        apart = self._so_far("apart columns", value=middle > 0 and most >= _APART_COLUMNS * middle)
        found = self._chosen.judge("input_large", size, does_harm=True) if len(apart) >= KEPT and all(apart) else None
        sizes = f"up to {short(most)}: half of them have {short(middle)} or less"
        message = f"what goes into {name} has columns of very different sizes, {sizes}"
        evidence = {"input": size, "middle": middle}
        yield found and replace(found, message=message, evidence=evidence, site=f"{name}:input")

    def _of_sums(self, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that something which is added to activations leaves nothing of these."""
        for name in (each.removeprefix("added ") for each in numbers if each.startswith("added ")):
            found = self._chosen.judge("weight_large", numbers[f"added {name}"], numbers[f"beside {name}"], is_added=True)
            yield found and replace(found, message=f"{name}: {found.message}", advice=_ADDED, site=f"{name}:param")

    def _of_dead(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that all units of layers are dead, by the activation behind them, in one look after the other."""
        for name in (each.removeprefix("dead ") for each in numbers if each.startswith("dead ")):
            self._dead[name] = [*self._dead.get(name, ()), look.step] if numbers[f"dead {name}"] else []
        names = [name for name, steps in self._dead.items() if len(steps) >= _DEAD_LOOKS and steps[-1] == look.step]
        found = self._chosen.judge("dead", 1.0) if names else None
        if found is not None:
            bias, rest = (numbers.get(f"{each} {names[0]}", math.nan) for each in ("bias", "rest"))
            does = f"look at what sets its bias first: it is {short(bias)} on average, where the weight adds {short(rest)} in size"
            advice = f"{does}; then {found.advice}" if -bias > rest else found.advice
            message = among(names, f"{found.message}: all that the activation behind it returns is zero")
            first = self._dead[names[0]][0]
            yield replace(found, message=message, site=f"{names[0]}:output", advice=advice, places=tuple(names), first_step=first)

    def _of_shut(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that the bias of layers shuts the tanh, sigmoid or softmax behind them from the beginning."""
        for name in (each.removeprefix("shut ") for each in numbers if each.startswith("shut ")):
            slope, bias, rest = (numbers[f"{each} {name}"] for each in ("shut", "bias of", "rest"))
            looks = self._so_far("shut", name, value=slope if slope < _SHUT and bias > rest else math.inf)
            found = self._chosen.judge("flat", max(looks)) if len(looks) == SHUT_LOOKS else None
            if found is not None:
                message = f"{name}: what the tanh, sigmoid or softmax behind it returns is {found.message}"
                does = f"look at what sets its bias: it is of size {short(bias)}, where the weight adds {short(rest)}"
                yield replace(found, message=message, site=f"{name}:output", advice=does, severity="bad")

    def _told_directions(self, numbers: Mapping[str, float]) -> Finding | None:
        """Return that all rows which go into a layer point in one direction, pass by pass, and those into one before it do not."""
        lefts = {name: self._so_far(name, value=left) for name, left in numbers.items() if name.startswith("aside ")}
        apart = [name for name, left in lefts.items() if min(left) >= _APART]
        alike = [name for name, left in lefts.items() if len(left) >= LAST and max(left) <= _ONE_WAY]
        alike = [name for name in alike if apart and list(lefts).index(name) > list(lefts).index(apart[0])]
        found = self._chosen.judge("rank_collapse", 1.0) if alike else None
        if found is None:
            return None
        (name, left), (other, most) = ((each.removeprefix("aside "), numbers[each]) for each in (alike[0], apart[0]))
        message = (
            f"all that goes into {name} points in one direction, but for {short(left)} of its squares: {short(most)} of what goes "
            f"into {other}"
        )
        return replace(found, message=message, advice=_AVERAGED, site=f"{name}:input", evidence={"aside": left})

    def _of_indices(self, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that an embedding is asked for few of its rows."""
        for name, table in self._tables.items():
            if f"most {name}" in numbers:
                table.looks += 1
                found = self._chosen.judge(
                    "few_indices",
                    numbers[f"most {name}"],
                    numbers[f"rows {name}"],
                    float(len(table.counts)),
                    numbers[f"count {name}"],
                    is_sequence=table.is_sequence,
                )
                if found is not None and table.looks >= OFTEN:
                    yield replace(found, message=f"{name}: {found.message}", site=f"{name}:param")
                elif table.is_sequence and table.looks > SEEN:
                    yield self._told_unknown(name, table, numbers)

    def _told_unknown(self, name: str, table: Table, numbers: Mapping[str, float]) -> Finding | None:
        """Return, as a note, that one token stands for many, or a few do.

        It is far more frequent than the next one, and rows are unused; or most rows are.
        """
        share, other, used = (numbers.get(f"{each} {name}", 0.0) for each in ("most", "next", "rows"))
        rows, row = len(table.counts), numbers.get(f"row {name}", 0.0)
        is_one = share >= _MANY and share >= _MORE * other > 0 and used < rows
        are_few = 1 < used <= _FEW_ROWS * rows and rows >= _ROWS_OF_FEW and numbers.get(f"count {name}", 0.0) >= 10 * rows
        is_told = are_few or (is_one and rows >= _ROWS_OF_TOKENS)
        found = self._chosen.judge("few_indices", 1.0, 2.0, math.inf, 1.0) if is_told else None
        if found is None:
            return None
        is_last = row == numbers[f"last {name}"] < rows - 1
        rest = f"; all above it, {rows - 1 - row:,.0f}, are never asked for" * is_last
        rest = rest or f"; {rows - used:,.0f} of {rows:,} rows are never asked for"
        message = f"{name}: {percent(share)} of the tokens are one, row {row:.0f}, {short(share / other)} x as many as of any other"
        message, rest = (f"{name}: tokens ask for {used:.0f} of its {rows:,} rows alone", "") if are_few else (message, rest)
        evidence = {"share": share, "token": row, "used": used, "rows": float(rows)}
        return replace(
            found, message=message + rest, advice=_UNKNOWN, severity="note", site=f"{name}:param", value=share, evidence=evidence
        )

    def _of_norms(self, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that running statistics are not those of the batches, that eps is more than what goes in varies, or few samples."""
        few = {each.removeprefix("two of "): elements for each, elements in numbers.items() if each.startswith("two of ")}
        looks = self._so_far("two of", value=bool(few))
        if few and len(looks) >= KEPT and all(looks):
            found = self._chosen.judge("norm_setting", math.nan, math.nan, are_two=True)
            least = min(few.values())
            message = among([*few], f"its statistics are those of two samples, {least:.0f} elements of each channel or more")
            site = f"{next(iter(few))}:output"
            yield found and replace(found, message=message, advice=_TWO, site=site, places=tuple(few), severity="note", value=least)
        for key in numbers:
            what, _, name = key.partition(" ")
            if what not in ("mean", "varies"):
                continue
            read = (numbers[f"mean {name}"], numbers[f"variance {name}"]) if what == "mean" else (numbers[key],)
            found = self._chosen.judge("running_off" if what == "mean" else "norm_starved", *read)
            judged = self._so_far("norm", key, value=found or False)
            if found is not None and len(judged) >= LAST and all(judged[-LAST:]):
                yield replace(found, message=f"{name}: {found.message}", site=f"{name}:output")

    def _of_attention(self, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that attention begins with one place alone, or weighs over another axis than its keys."""
        for name in (each.removeprefix("over ") for each in numbers if each.startswith("over ")):
            found = self._chosen.judge("samples_mixed", math.inf, 0.0)
            axis = "that of the queries" if numbers[f"over {name}"] == _QUERIES else "not that of queries or keys"
            message = f"the softmax of the attention{f' behind {name}' if name else ''} is over another axis than its keys, {axis}"
            yield found and replace(found, message=message, advice=_OVER_KEYS, site=name and f"{name}:output", severity="warn")
        for name in (each.removeprefix("sharp ") for each in numbers if each.startswith("sharp ")):
            places = numbers[f"attended {name}"]
            if places >= SQUARE:
                sharp = numbers[f"sharp {name}"]
                found = self._chosen.judge("attention_large", math.nan, math.nan, sharp=sharp, places=places)
                yield found and replace(found, advice=_SHARP, site=name and f"{name}:output")
            found = self._chosen.judge("padding_alone", 0.0, float(numbers.get(f"on padding {name}", 0.0) >= _ALL_PADDING))
            message = f"the attention{f' behind {name}' if name else ''} reads the padding of samples, and none of their tokens"
            yield found and replace(found, message=message, site=name and f"{name}:output")
        for name in (each.removeprefix("room of ") for each in numbers if each.startswith("room of ")):
            share, room = numbers[f"first on {name}"], numbers[f"room of {name}"]
            found = self._chosen.judge("padding_alone", 0.0, float(room >= _ROOM and share >= _AS_TOKENS * room))
            behind = f" behind {name}" if name else ""
            message = (
                f"the attention{behind} gives {percent(share)} of its weights to padding, which is {percent(room)} of the places: "
                "no mask leaves it out"
            )
            yield found and replace(found, message=message, site=name and f"{name}:output", advice=_MASK, severity="warn")

        for name in (each.removeprefix("last of ") for each in numbers if each.startswith("last of ")):
            share = numbers[f"last of {name}"]
            found = self._chosen.judge("padding_alone", 0.0, float(share >= _ROOM))
            which = f"padding, zeros, in {percent(share)} of the samples"
            message = f"of {name or 'a recurrent layer'} the last step alone is read, which is {which}"
            yield found and replace(found, message=message, site=name and f"{name}:output", severity="warn")

    def _of_dropped(self, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that a dropout which is no module drops nearly all, in two looks."""
        for name in (each.removeprefix("dropped ") for each in numbers if each.startswith("dropped ")):
            found = self._chosen.judge("dropped", numbers[f"dropped {name}"])
            times = self._so_far("dropped", name, value=found or False)
            if found is not None and len(times) > 1 and all(times[-2:]):
                message = f"{found.message} behind {name or 'the input'}, by functional.dropout"
                yield replace(found, message=message, site=name and f"{name}:output", advice=_RATE)
