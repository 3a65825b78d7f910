// Says what a node of the graph is: its name, class, copies and costs.
import { amount } from "../app/dom.js";
import { above, alone, folding, groups, isFolded, isOpen, member, model, recorded, sibling, spans, state } from "./model.js";

const LONGEST = 34; // characters of a name on a node
export const abbreviated = (text) => (text.length > LONGEST ? `${text.slice(0, 14)}…${text.slice(3 - LONGEST + 14)}` : text);

const spanOf = (one, other) => (one === other ? `${one}` : `${one}…${other}`);

export const shapeOf = (value) =>
  spans(value)
    .map(([least, most]) => spanOf(least, most))
    .join("×") || "scalar";

// The arguments of the operations that a node stands for, as one text: "0…5" for a number that is not the same in all.
const COUNTS = /(?<![\w.'-])-?\d+(?![\w.'])/g;
export function argumentsOf(node) {
  const { like } = folding();
  const texts = recorded.nodes
    .filter((other) => other.kind === node.kind && like.get(other.id) === node.id)
    .map((other) => other.arguments ?? "");
  if (!texts.length) return "";
  const parts = texts.at(-1).split(COUNTS);
  const rows = texts.filter((text) => text.replace(COUNTS, "0") === parts.join("0")).map((text) => text.match(COUNTS) ?? []);
  const span = (held) => {
    const ends = [Math.min(...held), Math.max(...held)];
    return spanOf(...(Number(held[0]) > Number(held.at(-1)) ? ends.reverse() : ends));
  };
  return parts.map((part, at) => part + (at < parts.length - 1 ? span(rows.map((row) => row[at])) : "")).join("");
}

// A module's name as seen from the frame that it is drawn in.
export function shortName(node) {
  if (node.kind !== "module" && node.kind !== "parameter" && node.kind !== "buffer") return node.name;
  if (!node.path) return node.type || node.name;
  const outer = node.parent === undefined ? "" : (model.nodes.get(node.parent).path ?? "");
  return outer && node.path.startsWith(`${outer}.`) ? node.path.slice(outer.length + 1) : node.path;
}

// The copies that a node stands for: { number, count, copy, first, last }, or null.
export function copiesOf(node) {
  const part = member.get(node.id);
  if (!part || !state.repeats) return null;
  const group = groups[part.number];
  return {
    number: part.number,
    count: group.count,
    copy: part.copy,
    folded: isFolded(part.number),
    last: model.nodes.get(group.ids[(group.count - 1) * group.period + part.at]),
  };
}

// The nodes that a node stands for, in the copies of the outermost folded group that it lies in; else the node alone.
export function analogues(node) {
  for (const id of [node.id, ...above(node)].reverse()) {
    const part = member.get(id);
    if (!part || !isFolded(part.number)) continue;
    const { ids, count, period } = groups[part.number];
    return alone.has(node.id)
      ? [node.id]
      : Array.from({ length: count }, (_, copy) => sibling(node, id, ids[copy * period + part.at]));
  }
  return [node.id];
}

// A module's name and, of a folded block, that of its last copy, "h.0 … 11", or the calls that it stands for.
export function nameOf(node) {
  const short = shortName(node);
  const copies = copiesOf(node);
  const last = copies?.folded ? copies.last : model.nodes.get(analogues(node).at(-1));
  if (node.kind === "module" && last.path === node.path && last.call !== node.call)
    return `${short} (calls ${node.call ?? 0} … ${last.call ?? 0})`;
  const name = short + (node.call ? ` (call ${node.call})` : "");
  if (!copies?.folded || node.kind !== "module" || !node.path || last.path === node.path) return name;
  const end = shortName(last);
  const shared = end.slice(0, end.lastIndexOf(".") + 1);
  return `${name} … ${shared && name.startsWith(shared) ? end.slice(shared.length) : end}`;
}

// The class of a module. "Sequential" says nothing of a network: a closed one is named by the classes of the modules that it holds.
export function typeOf(node) {
  if (node.type !== "Sequential" || !node.holds || isOpen(node)) return node.type;
  const held = model.inside
    .get(node.id)
    .filter(({ kind }) => kind === "module")
    .map(({ type }) => type);
  const kinds = [...new Set(held)];
  const words = kinds.length > 1 || held.length === 1 ? kinds.join(", ") : `${held.length} × ${kinds[0]}`;
  return words.length > LONGEST ? `Sequential of ${held.length}` : words;
}

export function timesOf(node) {
  const copies = copiesOf(node);
  const times = (node.repeat ?? 1) * (copies?.folded ? copies.count : 1);
  return times > 1 ? `× ${times}` : copies && !copies.folded ? `${copies.copy + 1} of ${copies.count}` : "";
}

// What a module costs: its parameters and FLOPs, of one copy.
export function costOf(node) {
  if (node.kind !== "module") return "";
  return [node.parameters ? `${amount(node.parameters)} params` : "", node.flops ? amount(node.flops, "FLOP") : ""]
    .filter(Boolean)
    .join(" · ");
}
