// Holds the recorded graph, which of its modules are open and which repeated blocks are folded, and selects what is visible.

export const recorded = JSON.parse(document.getElementById("graph").textContent);

// Nodes that only the first of alike blocks holds, as a state of zeros. All others have the same place in each copy of a block.
export const alone = new Set(recorded.alone);
const inCopies = recorded.nodes.filter((node) => !alone.has(node.id));

export const isSource = (node) => node.kind === "parameter" || node.kind === "buffer" || node.kind === "constant";

export const model = (() => {
  const nodes = new Map(recorded.nodes.map((node) => [node.id, node]));
  const inside = new Map();
  for (const [place, node] of inCopies.entries()) node.place = place;
  for (const node of recorded.nodes) {
    const parent = node.parent ?? null;
    if (!inside.has(parent)) inside.set(parent, []);
    inside.get(parent).push(node);
    node.depth = parent === null ? 0 : nodes.get(parent).depth + 1;
    node.flags ??= [];
    node.outputs ??= [];
  }
  const reads = new Map(recorded.nodes.map((node) => [node.id, []]));
  const readers = new Map(recorded.nodes.map((node) => [node.id, []]));
  for (const [source, target, value] of recorded.edges) {
    reads.get(target).push([source, value]);
    readers.get(source).push([target, value]);
  }
  for (const node of recorded.nodes) {
    if (node.kind !== "module") continue;
    const held = inside.get(node.id) ?? [];
    node.holds = held.some((child) => child.kind === "module"); // a layer holds operations only
    node.opens = node.holds || held.some((child) => child.kind === "operation");
  }
  const frames = Math.max(0, ...recorded.nodes.filter((node) => node.holds).map((node) => node.depth + 1));
  const layers = recorded.nodes.some((node) => node.opens && !node.holds);
  const deepest = Math.max(0, ...recorded.nodes.map((node) => node.depth));
  return { nodes, inside, reads, readers, frames, levels: frames + (layers ? 1 : 0), deepest };
})();

// Operations on constants and buffers alone, as a mask made of arange: no data of the inputs or parameters reaches them.
export const reached = new Set(
  recorded.nodes.filter((node) => node.kind === "input" || node.kind === "parameter").map((node) => node.id),
);
for (const pending = [...reached]; pending.length;) {
  for (const [target] of model.readers.get(pending.pop()))
    if (!reached.has(target)) {
      reached.add(target);
      pending.push(target);
    }
}

export const state = {
  open: new Set(),
  unfolded: new Set(),
  parameters: false,
  constants: false,
  small: false,
  repeats: true,
  selected: null,
  number: "",
  step: 0,
};

// Groups of equal blocks in a row: member.get(id) is the group, the copy and the place in the copy of each outermost node of a copy.
export const groups = recorded.repeats.map(([count, ...ids]) => ({ count, period: ids.length / count, ids }));
export const member = new Map();
for (const [number, group] of groups.entries())
  group.ids.forEach((id, at) => member.set(id, { number, copy: Math.floor(at / group.period), at: at % group.period }));
export const isFolded = (number) => state.repeats && !state.unfolded.has(number);

export const above = (node) => {
  const found = [];
  for (let at = node.parent ?? null; at !== null; at = model.nodes.get(at).parent ?? null) found.push(at);
  return found;
};

// The node that has the same place in the copy around `other` as a node has in the one around `own`.
export const sibling = (node, own, other) => inCopies[node.place + model.nodes.get(other).place - model.nodes.get(own).place].id;

// For each node the node that stands for it (itself, or the same node of the first copy of a folded group), and the folded copies that
// it lies in, as pairs of group and copy, outermost first.
export function folding() {
  const [like, copies, none] = [new Map(), new Map(), []];
  for (const node of recorded.nodes) {
    const { id } = node;
    const parent = node.parent ?? null;
    let [held, around] = [id, parent === null ? none : copies.get(parent)];
    const part = member.get(id);
    if (part && isFolded(part.number)) around = [...around, [part.number, part.copy]];
    if (parent !== null && like.get(parent) !== parent) {
      held = like.get(alone.has(id) ? parent : sibling(node, parent, like.get(parent)));
    } else if (part && isFolded(part.number) && part.copy) held = groups[part.number].ids[part.at];
    like.set(id, held);
    copies.set(id, around);
  }
  return { like, copies };
}

// Whether an edge joins two copies of one folded group, or lies in a copy that is not drawn.
const isRepeated = (one, other) =>
  one.length > 0 && one.some(([number, copy]) => other.some(([also, as]) => also === number && (copy || as)));

const exact = /^(u?int|bool)/;
export const isHiddenSource = (node) => (node.kind === "parameter" ? !state.parameters : isSource(node) && !state.constants);

// Operations that say little of a network: they return their input's memory in another form, compute masks or indices, or give nothing on.
export function isHiddenOperation(node) {
  if (node.kind !== "operation" || node.flags.includes("failed")) return false;
  if (!reached.has(node.id)) return !state.constants;
  if (state.small) return false;
  if (!model.readers.get(node.id).length) return true;
  if (node.flags.includes("inplace")) return false;
  return (
    node.flags.includes("view") ||
    node.flags.includes("same") ||
    (node.outputs.length > 0 && node.outputs.every((value) => exact.test(recorded.values[value][1])))
  );
}

export let empty = new Set(); // modules in which every operation is hidden: drawn as one node
function findEmpty() {
  empty = new Set(
    recorded.nodes
      .filter(
        (node) =>
          node.opens && !node.holds && model.inside.get(node.id).every((child) => isSource(child) || isHiddenOperation(child)),
      )
      .map((node) => node.id),
  );
}

export const isOpen = (node) => node.opens && state.open.has(node.id) && !empty.has(node.id);

// A level is a number of opened modules around a node; layers, which hold operations only, open at the last level.
export function openTo(level) {
  state.open = new Set(
    recorded.nodes
      .filter((node) => node.opens && (level >= model.levels || (node.holds && node.depth < level)))
      .map((node) => node.id),
  );
}

// The level that is open; null where modules were opened one by one.
export function levelNow() {
  for (let level = 0; level <= model.levels; level += 1) {
    if (
      recorded.nodes.every(
        (node) => !node.opens || state.open.has(node.id) === (level >= model.levels || (node.holds && node.depth < level)),
      )
    )
      return level;
  }
  return null;
}

// The node that is drawn for a node: itself, or the outermost closed module around the node that stands for it.
export function shownFor(node, like = folding().like) {
  let shown = like.get(node.id);
  for (const frame of above(model.nodes.get(shown))) if (!isOpen(model.nodes.get(frame))) shown = frame;
  return shown;
}

// The node that gave each tensor; those after it have handed it on.
const maker = new Map();
for (const [source, , value] of recorded.edges) maker.set(value, Math.min(source, maker.get(value) ?? source));

// The least and the most of each size of a tensor that stands for those of all copies.
const sizes = new Map();
function findSizes(like) {
  sizes.clear();
  for (const node of recorded.nodes) {
    const first = model.nodes.get(like.get(node.id));
    if (first === node || alone.has(node.id)) continue;
    for (const [at, value] of node.outputs.entries()) {
      const own = first.outputs[at];
      if (own === undefined || like.get(maker.get(value) ?? node.id) !== (maker.get(own) ?? first.id)) continue; // handed on
      const [shape, , , most = shape] = recorded.values[value];
      sizes.set(
        own,
        spans(own).map(([least, largest], axis) => [Math.min(least, shape[axis]), Math.max(largest, most[axis])]),
      );
    }
  }
}

// The least and the most of each size of a tensor, over all copies that it stands for.
export function spans(value) {
  const [shape, , , most = shape] = recorded.values[value];
  return sizes.get(value) ?? shape.map((size, axis) => [size, most[axis]]);
}

// The visible nodes in order, and each pair that an edge joins once, with the values on it. Edges go through hidden operations.
export function visible() {
  findEmpty();
  const { like, copies } = folding();
  findSizes(like);
  const shown = new Map();
  for (const node of recorded.nodes) {
    const parent = node.parent ?? null;
    const held = like.get(node.id);
    if (held !== node.id) shown.set(node.id, shown.get(held));
    else if (
      isSource(node) &&
      parent !== null &&
      !isHiddenSource(node) &&
      shown.get(parent) === parent &&
      !model.nodes.get(parent).holds
    )
      shown.set(node.id, node.id); // beside its layer
    else if (parent === null || (shown.get(parent) === parent && isOpen(model.nodes.get(parent)))) shown.set(node.id, node.id);
    else shown.set(node.id, shown.get(parent));
  }
  const gone = new Set(
    recorded.nodes
      .filter((node) => shown.get(node.id) === node.id && (isHiddenSource(node) || isHiddenOperation(node)))
      .map((node) => node.id),
  );
  const into = new Map(); // what flows into each drawn or hidden node
  for (const [source, target, value] of recorded.edges) {
    const [from, to] = [shown.get(source), shown.get(target)];
    if (from === to || isRepeated(copies.get(source), copies.get(target)) || (gone.has(from) && isSource(model.nodes.get(from))))
      continue;
    if (!into.has(to)) into.set(to, []);
    into.get(to).push([from, value]);
  }
  const origins = new Map();
  const originsOf = (hidden) => {
    // without recursion, since hidden operations may form long chains
    for (const pending = [hidden]; pending.length;) {
      const at = pending.at(-1);
      if (!origins.has(at)) {
        origins.set(at, null);
        pending.push(...(into.get(at) ?? []).map(([from]) => from).filter((from) => gone.has(from) && !origins.has(from)));
        continue;
      }
      pending.pop();
      if (origins.get(at) === null)
        origins.set(
          at,
          (into.get(at) ?? []).flatMap(([from, value]) => (gone.has(from) ? (origins.get(from) ?? []) : [[from, value]])),
        );
    }
    return origins.get(hidden);
  };
  const edges = new Map();
  for (const [to, held] of into) {
    if (gone.has(to)) continue;
    for (const [from, value] of held.flatMap(([source, given]) => (gone.has(source) ? originsOf(source) : [[source, given]]))) {
      if (from === to) continue;
      const key = `${from}_${to}`;
      if (!edges.has(key)) edges.set(key, { from, to, values: [] });
      if (!edges.get(key).values.includes(value)) edges.get(key).values.push(value);
    }
  }
  return {
    nodes: recorded.nodes.filter((node) => shown.get(node.id) === node.id && !gone.has(node.id)),
    edges: [...edges.values()],
  };
}
