// Writes what is visible as Graphviz source, and reads what Graphviz found.
import { LARGE } from "./columns.js";
import { frameTitle, isInGroup } from "./faces.js";
import { TITLE } from "./labels.js";
import { above, isOpen, member, model } from "./model.js";

// Ways to lay a picture out, the best first: from top to bottom with all that is known, from left to right for what is wide, and with
// names alone for what is tall. Shapes stand beside edges that run down.
export const WAYS = [
  { name: "down", direction: "TB", ranks: 0.37, gap: 0.32, shapes: true, costs: true },
  { name: "across", direction: "LR", ranks: 0.42, gap: 0.14, shapes: false, costs: true },
  { name: "names", direction: "TB", ranks: 0.2, gap: 0.25, shapes: false, costs: false },
];

// The frames around a node, outermost first: open modules, as "c5", and folded groups of several siblings, as "g2".
function framesOf(node, around) {
  const found = around.slice();
  if (isInGroup(node)) found.push(`g${member.get(node.id).number}`);
  return found;
}

export function toDot({ nodes, edges }, faces, { direction, ranks, gap }) {
  const lines = [
    "digraph G {",
    nodes.length > LARGE ? "graph [nslimit=1, nslimit1=1];" : "",
    `graph [rankdir=${direction}, ranksep=${nodes.length > LARGE ? 0.3 : ranks}, nodesep=${gap}, margin=0, labeljust=l];`,
    'node [shape=box, fixedsize=true, label=""];',
    "edge [arrowhead=none];",
  ];
  const stack = [];
  const chains = new Map();
  for (const node of nodes) {
    const frame = above(node).find((id) => chains.has(id)); // the parameters of a closed layer stand beside it
    const chain = framesOf(node, frame === undefined ? [] : chains.get(frame));
    if (isOpen(node)) {
      if (node.parent !== undefined || !isWhole(node)) chain.push(`c${node.id}`);
      chains.set(node.id, chain);
    }
    let shared = 0;
    while (shared < stack.length && stack[shared] === chain[shared]) shared += 1;
    while (stack.length > shared) {
      stack.pop();
      lines.push("}");
    }
    for (const frame of chain.slice(shared)) {
      stack.push(frame);
      const { width } = frameTitle(frame);
      lines.push(
        `subgraph cluster_${frame} { graph [label=<<TABLE BORDER="0" FIXEDSIZE="TRUE" WIDTH="${width}" HEIGHT="${TITLE}"><TR><TD></TD></TR></TABLE>>, margin=12];`,
      );
    }
    if (isOpen(node)) continue;
    const { width, height } = faces.get(node.id);
    lines.push(`n${node.id} [width=${(width / 72).toFixed(3)}, height=${(height / 72).toFixed(3)}];`);
  }
  for (const _ of stack) lines.push("}");
  for (const { from, to } of edges) lines.push(`n${from} -> n${to};`);
  lines.push("}");
  return lines.join("\n");
}

// Whether a module is the whole model, whose frame would say nothing: its name is in the page's header.
const isWhole = (node) => !node.path && model.inside.get(null).filter((other) => other.kind === "module").length === 1;

// What Graphviz found, with the first row on top: boxes by the centre of nodes, frames by their corners, edges as lists of points.
export function places(text) {
  const laid = JSON.parse(text);
  const top = Number(laid.bb.split(",")[3]);
  const [nodes, frames] = [new Map(), new Map()];
  const named = new Map();
  for (const held of laid.objects ?? []) {
    if (held.name.startsWith("cluster_")) {
      const [left, bottom, right, high] = held.bb.split(",").map(Number);
      frames.set(held.name.slice(8), { left: left + 4, right: right - 4, top: top - high + 2, bottom: top - bottom - 4 }); // frames beside each other do not touch
    } else if (held.pos) {
      const [x, y] = held.pos.split(",").map(Number);
      named.set(held._gvid, Number(held.name.slice(1)));
      nodes.set(Number(held.name.slice(1)), { x, y: top - y });
    }
  }
  const edges = (laid.edges ?? []).map((edge) => ({
    from: named.get(edge.tail),
    to: named.get(edge.head),
    points: edge.pos
      .replace(/^[es],\S+ /, "")
      .replace(/^[es],\S+ /, "")
      .split(" ")
      .map((point) => {
        const [x, y] = point.split(",");
        return [Number(x), top - Number(y)];
      }),
  }));
  return { nodes, frames, edges };
}
