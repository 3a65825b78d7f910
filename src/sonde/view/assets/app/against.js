// A run against another one: answers to the questions about numbers become differences, and a line above the views says so.
import { fill, make, many, whole } from "./dom.js";

const DIFFERENCES = ["overview", "numbers", "heatmap", "lines", "flow", "ratio"]; // the questions that have one
const ALONE = {
  distribution: "Distributions are those of this run alone.",
  graph: "The graph is that of this run alone.",
  findings: "Findings are those of this run alone.",
  coverage: "The coverage is that of this run alone.",
};
const FEW = 4;

// The same source of answers, which asks for differences from the run `other`.
export function sourceAgainst(source, other) {
  return Object.assign(Object.create(source), {
    other,
    alone: source,
    ask: (run, name, settings = {}, signal = undefined) =>
      source.ask(run, name, DIFFERENCES.includes(name) ? { ...settings, against: other.id } : settings, signal),
  });
}

// The runs that a run can be shown against.
export const siblingsOf = (source, run, runs) =>
  runs.filter(
    ({ id, state, last }) =>
      id !== run.id && !["damaged", "newer"].includes(state) && typeof last === "number" && source.hasDifference(run.id, id),
  );

// Fills the line above the views: what differences are, and, as soon as the two are compared, what could not be matched.
export async function sayAgainst(place, { view, run, other, source, leave }) {
  place.hidden = !other;
  if (!other) return fill(place);
  const words = (unmatched) =>
    fill(
      place,
      make("span", null, make("strong", null, run.name), " against ", make("strong", null, other.name)),
      make(
        "span",
        { class: "quiet" },
        ALONE[view] ??
          "Sizes are log₂ of the ratio: 1 is twice as large, 0 the same, −1 half. Shares and signed numbers are plain differences. Steps and sites are those that both have.",
      ),
      unmatched ? make("span", { class: "unmatched" }, unmatched) : null,
      make("button", { onclick: leave }, "this run alone"),
    );
  words("");
  try {
    const found = await Promise.all([source.ask(run.id, "numbers", { against: other.id }), source.compare(run.id, other.id)]);
    if (place.dataset.pair === `${run.id} ${other.id}`) words(unmatchedWords(...found, run.name, other.name));
  } catch (error) {
    if (place.dataset.pair === `${run.id} ${other.id}`) words(error.message);
  }
}

// What of two runs could not be matched: steps of their main number, and places, by their comparison.
export function unmatchedWords({ matched }, { only_a: own, only_b: others }, a, b) {
  const named = (sites, name) =>
    sites.length
      ? `only in ${name}: ${sites.slice(0, FEW).join(", ")}${sites.length > FEW ? ` and ${many(sites.length - FEW, "more place")}` : ""}`
      : "";
  const isAll = !matched || (matched.both === matched.own && matched.both === matched.other);
  const steps = isAll
    ? ""
    : `${many(matched.both, "logged step")} in both: of ${whole(matched.own)} in ${a} and ${whole(matched.other)} in ${b}`;
  return [steps, named(own, a), named(others, b)].filter(Boolean).join(" · ");
}
