// Says what a node of the graph is: its name, class, copies and costs.
import { amount } from "../app/dom.js";
import { above, groups, isFolded, isOpen, member, model, recorded, state } from "./model.js";

const LONGEST = 34; // characters of a name on a node
export const abbreviated = (text) => (text.length > LONGEST ? `${text.slice(0, 14)}…${text.slice(3 - LONGEST + 14)}` : text);

export const shapeOf = (value) => recorded.values[value][0].join("×") || "scalar";

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
    const offset = node.place - model.nodes.get(id).place;
    return Array.from(
      { length: count },
      (_, copy) => recorded.nodes[model.nodes.get(ids[copy * period + part.at]).place + offset].id,
    );
  }
  return [node.id];
}

// A module's name and, of a folded group, that of its last copy: "h.0 … 11".
export function nameOf(node) {
  const name = shortName(node) + (node.call ? ` (call ${node.call})` : "");
  const copies = copiesOf(node);
  if (!copies?.folded || node.kind !== "module" || !node.path) return name;
  const last = shortName(copies.last);
  if (last === shortName(node))
    return copies.last.call ? `${shortName(node)} (calls ${node.call ?? 0} … ${copies.last.call})` : name;
  const shared = last.slice(0, last.lastIndexOf(".") + 1);
  return `${name} … ${shared && name.startsWith(shared) ? last.slice(shared.length) : last}`;
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
