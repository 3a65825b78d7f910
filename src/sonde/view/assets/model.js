// Holds the recorded graph and which of its modules are open, and writes the Graphviz source of the visible part.
"use strict";

const recorded = JSON.parse(document.getElementById("graph").textContent);

const model = (() => {
  const nodes = new Map(recorded.nodes.map((node) => [node.id, node]));
  const inside = new Map();
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
  const isFrame = (node) => (inside.get(node.id) ?? []).some((child) => child.kind === "operation" || child.kind === "module");
  for (const node of recorded.nodes) node.opens = node.kind === "module" && isFrame(node);
  return { nodes, inside, reads, readers, depth: Math.max(0, ...recorded.nodes.filter((node) => node.opens).map((node) => node.depth + 1)) };
})();

const state = { open: new Set(), parameters: false, constants: false, selected: null, number: "", step: 0 };

const above = (node) => {
  const found = [];
  for (let at = node.parent ?? null; at !== null; at = model.nodes.get(at).parent ?? null) found.push(at);
  return found;
};

// The node that is drawn for a node: itself, or the outermost closed module around it.
function shownFor(node) {
  let shown = node.id;
  for (const frame of above(node)) if (!state.open.has(frame)) shown = frame;
  return shown;
}

const hidden = (node) =>
  (node.kind === "parameter" && !state.parameters) || ((node.kind === "buffer" || node.kind === "constant") && !state.constants);

function openTo(depth) {
  state.open = new Set(recorded.nodes.filter((node) => node.opens && node.depth < depth).map((node) => node.id));
}

function countAt(depth) {
  let count = 0;
  for (const node of recorded.nodes) if (node.depth <= depth && !hidden(node)) count += 1;
  return count;
}

// The visible nodes in order, and each pair that an edge joins once, with the values on it.
function visible() {
  const shown = new Map(recorded.nodes.map((node) => [node.id, shownFor(node)]));
  const nodes = recorded.nodes.filter((node) => shown.get(node.id) === node.id && !hidden(node));
  const edges = new Map();
  for (const [source, target, value] of recorded.edges) {
    if (hidden(model.nodes.get(source))) continue;
    const [from, to] = [shown.get(source), shown.get(target)];
    if (from === to) continue;
    const key = `${from}_${to}`;
    if (!edges.has(key)) edges.set(key, { from, to, values: [] });
    if (!edges.get(key).values.includes(value)) edges.get(key).values.push(value);
  }
  return { nodes, edges: [...edges.values()] };
}

const shapeOf = (value) => recorded.values[value][0].join("×") || "scalar";
// A text as a Graphviz string; without control characters and lone surrogates, which the layout engine cannot read.
const quoted = (text) => `"${text.replaceAll("&", "&amp;").replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("\n", "\\n").replace(/[\p{Cc}\p{Cs}]/gu, "\ufffd")}"`;

// A module's name as seen from the frame that it is drawn in.
function shortName(node) {
  if (node.kind !== "module" && node.kind !== "parameter" && node.kind !== "buffer") return node.name;
  if (!node.path) return node.type || node.name;
  const outer = node.parent === undefined ? "" : model.nodes.get(node.parent).path ?? "";
  return outer && node.path.startsWith(`${outer}.`) ? node.path.slice(outer.length + 1) : node.path;
}

function labelOf(node, isOpen) {
  const times = (node.repeat ?? 1) > 1 ? ` × ${node.repeat}` : "";
  const call = node.call ? ` (call ${node.call})` : "";
  const name = shortName(node) + call + times;
  if (isOpen) return `▾ ${name}${node.path ? `  ${node.type}` : ""}`;
  const lines = [node.opens ? `▸ ${name}` : name];
  if (node.kind === "module" && node.path) lines.push(node.type);
  if (node.outputs.length && node.kind !== "output") {
    const more = node.outputs.length > 2 ? ` +${node.outputs.length - 2}` : "";
    lines.push(node.outputs.slice(0, 2).map(shapeOf).join(", ") + more);
  }
  return lines.join("\n");
}

const SHAPES = { input: "ellipse", output: "ellipse", parameter: "note", buffer: "note", constant: "note" };

const LARGE = 600; // nodes from which on Graphviz may stop polishing: half the time, and no one sees the difference

function toDot({ nodes, edges }) {
  const lines = [
    "digraph G {",
    nodes.length > LARGE ? "graph [nslimit=1, nslimit1=1];" : "",
    'graph [rankdir=TB, ranksep=0.34, nodesep=0.22, fontname="Helvetica,Arial,sans-serif", fontsize=10, pad=0.2];',
    'node [shape=box, style=rounded, fontname="Helvetica,Arial,sans-serif", fontsize=10, margin="0.14,0.06", height=0.28];',
    "edge [arrowsize=0.55];",
  ];
  const frames = [];
  for (const node of nodes) {
    while (frames.length && frames.at(-1) !== node.parent) { frames.pop(); lines.push("}"); }
    const failed = node.flags.includes("failed") ? " failed" : "";
    if (node.opens && state.open.has(node.id)) {
      frames.push(node.id);
      lines.push(`subgraph cluster_${node.id} { graph [id="c${node.id}", label=${quoted(labelOf(node, true))}, labeljust=l, style=rounded, class="module${failed}", margin=10];`);
      continue;
    }
    const shape = SHAPES[node.kind] ? `, shape=${SHAPES[node.kind]}, style=solid, margin="${SHAPES[node.kind] === "ellipse" ? "0.02,0.01" : "0.1,0.06"}"` : "";
    lines.push(`n${node.id} [id="n${node.id}", label=${quoted(labelOf(node, false))}, class="${node.kind}${failed}"${shape}];`);
  }
  for (const _ of frames) lines.push("}");
  for (const { from, to } of edges) lines.push(`n${from} -> n${to} [id="e${from}_${to}"];`);
  lines.push("}");
  return lines.join("\n");
}
