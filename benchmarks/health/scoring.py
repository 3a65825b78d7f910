"""Count what was found, and print it: recall, localisation and false alarms, of each rule and of each failure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from benchmarks.health.outcome import Outcome
from benchmarks.health.symptoms import RULE_SYMPTOMS

from sonde.rules import RULES


def share(right: Iterable[bool | None]) -> str:
    """Return the share of what is true, without what is not known, as ``0.95 (38 of 40)``; a dash without any."""
    known = [each for each in right if each is not None]
    return f"{sum(known) / len(known):.2f} ({sum(known)} of {len(known)})" if known else "–"


def countable(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the failures that can be seen."""
    return [each for each in outcomes if not each.healthy and not each.hidden and not each.error]


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table of Markdown whose columns are aligned."""
    lines = [[str(each) for each in line] for line in (heads, *rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(heads))]
    written = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + " |" for line in lines
    ]
    return "\n".join([written[0], "|" + "---|" * len(heads), *written[1:]])


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return the table of all judges and intervals."""
    rows = []
    for judge, every in sorted({(each.judge, each.every) for each in outcomes}, key=lambda key: (key[0] != "sonde", *key)):
        own = [each for each in outcomes if (each.judge, each.every) == (judge, every)]
        failures, healthy = countable(own), [each for each in own if each.healthy and not each.error]
        hit = [each for each in failures if each.found]
        alarmed = [bool(each.alarms) for each in healthy]
        rows.append(
            [
                judge,
                every,
                share(each.found for each in failures),
                share(each.placed for each in hit),
                share(each.timed for each in hit),
                share(_localised(each) for each in hit),
                f"{sum(alarmed)} of {len(alarmed)}",
                share(not each.false for each in failures),
            ]
        )
    heads = [
        "judge",
        "every",
        "recall",
        "right layer",
        "right step",
        "both",
        "healthy with an alarm",
        "failures without a false one",
    ]
    return table(heads, rows)


def _localised(outcome: Outcome) -> bool | None:
    known = [each for each in (outcome.placed, outcome.timed) if each is not None]
    return all(known) if known else None


def by_rule(outcomes: Sequence[Outcome]) -> str:
    """Return the table of rules: how often each spoke, and how often it was right.

    The recall of a rule is over the failures whose truth expects its symptom, though other symptoms may show these, too.
    """
    own = [each for each in outcomes if each.judge == "sonde" and not each.hidden and not each.error]
    rows = []
    rules = {rule: symptom for rule, symptom in RULE_SYMPTOMS.items() if rule in RULES}
    for rule, symptom in rules.items():
        spoke = [each for each in own if any(alarm.rule == rule for alarm in each.alarms)]
        expecting = [each for each in own if symptom in each.expected]
        rows.append(
            [
                f"`{rule}`",
                symptom,
                len(spoke),
                share(rule not in each.false for each in spoke),
                sum(each.healthy for each in spoke),
                share(any(alarm.rule == rule for alarm in each.alarms) for each in expecting),
            ]
        )
    return table(["rule", "symptom", "trainings", "precision", "of these healthy", "spoke where its symptom is expected"], rows)


def by_case(outcomes: Sequence[Outcome], judge: str = "sonde") -> str:
    """Return the table of failures: in how many trainings each was found, at each interval."""
    own = [each for each in outcomes if each.judge == judge and not each.healthy]
    intervals = sorted({each.every for each in own})
    rows = []
    for name in dict.fromkeys(each.case for each in own):
        of_case = [each for each in own if each.case == name]
        kinds = " ".join(dict.fromkeys(each.kind for each in of_case))
        row: list[object] = [name, kinds]
        for every in intervals:
            part = [each for each in of_case if each.every == every]
            if part[0].hidden:
                row += ["not observable", ""]
                continue
            hit = [each for each in part if each.found]
            wrong = [
                word for word, of in (("layer", "placed"), ("step", "timed")) if any(getattr(each, of) is False for each in hit)
            ]
            rows_found = f"{len(hit)} of {len(part)}"
            row += [rows_found, ("wrong " + ", ".join(wrong) if wrong else "right") if hit else ""]
        rows.append(row)
    heads = ["failure", "networks"]
    for every in intervals:
        heads += [f"found, every={every}", "place and step"]
    return table(heads, rows)


def hidden_cases(outcomes: Sequence[Outcome]) -> str:
    """Return a list of the failures that the recorded numbers cannot show, with the reasons."""
    return "\n".join(
        f"- {name}: {why}" for name, why in dict.fromkeys((each.case, each.hidden) for each in outcomes if each.hidden)
    )


def failing(outcomes: Sequence[Outcome]) -> str:
    """Return a list of what sonde misses, misplaces, and says without cause."""
    own = [each for each in outcomes if each.judge == "sonde"]
    groups: dict[str, dict[str, list[str]]] = {
        title: defaultdict(list)
        for title in ("Not found", "Wrong layer", "Wrong step", "False alarms on healthy trainings", "False rules beside", "Broken")
    }
    for each in own:
        name = f"{each.case} [{each.kind}]"
        where = f"every={each.every} seed={each.seed}"
        told = (
            "; ".join(f"{alarm.rule} at {alarm.site or '-'} step {alarm.step}: {alarm.message}" for alarm in each.alarms)
            or "no findings"
        )
        if each.error:
            groups["Broken"][name].append(f"{where}: {each.error}")
        elif each.healthy:
            if each.alarms:
                groups["False alarms on healthy trainings"][name].append(f"{where}: {told}")
        elif not each.hidden:
            if not each.found:
                groups["Not found"][name].append(f"{where}: expected {', '.join(each.expected)}; {told}")
            if each.placed is False:
                groups["Wrong layer"][name].append(f"{where}: {told}")
            if each.timed is False:
                groups["Wrong step"][name].append(f"{where}: {told}")
            if each.false:
                groups["False rules beside"][name].append(f"{where}: {', '.join(each.false)} ({told})")
    counts = Counter(rule for each in own for rule in each.false)
    parts = [
        summary(outcomes),
        "\nFalse alarms by rule: " + (", ".join(f"{rule} {count}" for rule, count in counts.most_common()) or "none"),
    ]
    for title, cases in groups.items():
        parts.append(f"\n## {title} ({sum(map(len, cases.values()))})\n")
        parts += [f"- **{name}**\n" + "\n".join(f"  - {line}" for line in lines) for name, lines in cases.items()]
    return "\n".join(parts) + "\n"
