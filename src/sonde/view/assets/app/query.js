// Which runs a reader asks for: words, and conditions on what is known of a run, as "lr>0.001 state:failed".
import { plain } from "./dom.js";

const CONDITION = /^([^<>=!:]+)(<=|>=|!=|<|>|=|:)(.*)$/;

// What is known of a run under a name: a setting, a metric (its best value, or with ".last" its last one), or what the list shows.
export function knownOf(run, name, note = "") {
  const held = {
    state: run.state,
    health: run.health,
    name: run.name,
    model: run.model,
    step: run.last,
    steps: run.last,
    findings: run.findings,
    rule: run.root,
    tag: note.match(/#[^\s#]+/g)?.map((tag) => tag.slice(1)),
  };
  const [metric, way] = [name.replace(/\.(best|last)$/, ""), name.endsWith(".last") ? "last" : "best"];
  return run.settings?.[name] ?? run.metrics?.[metric]?.[way] ?? held[name];
}

const compared = {
  "<": (one, other) => one < other,
  ">": (one, other) => one > other,
  "<=": (one, other) => one <= other,
  ">=": (one, other) => one >= other,
};

function holds(value, sign, wanted) {
  if (value === undefined || value === null) return sign === "!=";
  const number = Number(wanted);
  if (sign in compared) return typeof value === "number" && Number.isFinite(number) && compared[sign](value, number);
  const texts = (Array.isArray(value) ? value : [value]).map((each) => String(each).toLowerCase());
  const isSame = typeof value === "number" ? value === number : texts.includes(wanted.toLowerCase());
  if (sign === ":") return isSame || (typeof value !== "number" && texts.some((text) => text.includes(wanted.toLowerCase())));
  return (sign === "=") === isSame;
}

// The runs that fit all parts of a query, and the names in it that no run knows. Notes: by id what a reader has written beside a run.
export function chosenRuns(runs, query, notes = {}) {
  const parts = query.trim().split(/\s+/).filter(Boolean);
  const known = (run, name) => knownOf(run, name, notes[run.id]);
  const conditions = parts.map((part) => CONDITION.exec(part)).filter(Boolean);
  const unknown = conditions
    .map(([, name]) => name)
    .filter((name) => name !== "tag" && !runs.some((run) => known(run, name) !== undefined));
  const chosen = runs.filter((run) =>
    parts.every((part) => {
      const condition = CONDITION.exec(part);
      if (condition) return holds(known(run, condition[1]), condition[2], condition[3]);
      const words = `${run.name} ${run.model ?? ""} ${run.state} ${run.health} ${notes[run.id] ?? ""}`;
      return words.toLowerCase().includes(part.toLowerCase());
    }),
  );
  return { chosen, unknown };
}

// The names of settings that differ between runs, and of all metrics, in the order in which they are met.
export function columnsOf(runs) {
  const names = (of) => [...new Set(runs.flatMap((run) => Object.keys(run[of] ?? {})))];
  const differs = (name) => new Set(runs.map((run) => JSON.stringify(run.settings?.[name] ?? null))).size > 1;
  return { settings: names("settings"), differing: names("settings").filter(differs), metrics: names("metrics") };
}

// What heads the column of a setting or a metric.
export function columnTitle(name, { metrics }) {
  if (metrics.includes(name)) return `best ${name}`;
  return name.endsWith(".last") && metrics.includes(name.slice(0, -5)) ? `last ${name.slice(0, -5)}` : name;
}

// Where each of several values lies on an ordered ramp, 0 to 1: numbers by their order, others by their names.
export function placesOf(values) {
  const kinds = [...new Set(values.filter((value) => value !== undefined && value !== null))];
  kinds.sort((one, other) =>
    typeof one === "number" && typeof other === "number"
      ? one - other
      : String(one).localeCompare(String(other), "en", { numeric: true }),
  );
  return new Map(kinds.map((value, place) => [value, kinds.length > 1 ? place / (kinds.length - 1) : 0.5]));
}

export const settingText = (value) =>
  typeof value === "number" ? plain(value) : value === undefined || value === null ? "–" : String(value);
