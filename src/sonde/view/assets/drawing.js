// Draws what was placed as an SVG that can be moved and zoomed.
"use strict";

const stage = document.getElementById("stage");
const canvas = document.getElementById("canvas");
const busy = document.getElementById("busy");
const view = { x: 0, y: 0, scale: 1, width: 1, height: 1, start: 0, isFitted: true };
let picture = null; // the SVG element
let drawn = { nodes: [], edges: [] };
let elements = new Map(); // by "n5", "c5", "t5", "e5_6"
let turn = 0;
let first = true;

const boxOf = (id) => elements.get(`n${id}`) ?? elements.get(`c${id}`) ?? null;
const elementOf = (id) => elements.get(`n${id}`) ?? elements.get(`t${id}`) ?? null;

function svg(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const name in attributes) made.setAttribute(name, attributes[name]);
  if (children.length) made.append(...children);
  return made;
}

// The view

function place() {
  if (picture) picture.firstElementChild.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.scale})`);
}

const MARGIN = 24;
const room = () => {
  const { width, height } = stage.getBoundingClientRect();
  return [Math.max(width - 2 * MARGIN, 50), Math.max(height - 2 * MARGIN, 50)];
};
const whole = () => {
  const [width, height] = room();
  return Math.min(width / view.width, height / view.height);
};

function isInside() {
  const { width, height } = stage.getBoundingClientRect();
  return view.x >= 0 && view.y >= 0 && view.x + view.width * view.scale <= width && view.y + view.height * view.scale <= height;
}

// Show all of the picture in the middle; *least* is the smallest scale: with it, what does not fit begins at the top.
function fit(least = 0.02) {
  const [width, height] = room();
  view.scale = Math.max(Math.min(whole(), 1.25), least);
  view.x = MARGIN + (width - view.width * view.scale) / 2;
  if (view.width * view.scale > width)
    view.x = MARGIN + Math.min(Math.max(width / 2 - view.start * view.scale, width - view.width * view.scale), 0);
  view.y = MARGIN + Math.max((height - view.height * view.scale) / 2, 0);
  view.isFitted = true;
  place();
}

function fitWhole(width, height) {
  view.scale = Math.min(width / view.width, height / view.height, 1.6);
  [view.x, view.y] = [(width - view.width * view.scale) / 2, 0];
  place();
}

function zoom(factor, x, y) {
  const box = stage.getBoundingClientRect();
  const [atX, atY] = [x ?? box.width / 2, y ?? box.height / 2];
  const scale = Math.min(Math.max(view.scale * factor, 0.02), 8);
  view.x = atX - ((atX - view.x) * scale) / view.scale;
  view.y = atY - ((atY - view.y) * scale) / view.scale;
  view.scale = scale;
  view.isFitted = false;
  place();
}

function centre(id, scale) {
  const element = boxOf(id);
  if (!element) return;
  if (scale) view.scale = Math.max(view.scale, scale);
  view.isFitted = false;
  place();
  const [box, around] = [element.getBoundingClientRect(), stage.getBoundingClientRect()];
  view.x += around.left + around.width / 2 - (box.left + box.width / 2);
  view.y += around.top + around.height / 2 - (box.top + Math.min(box.height, around.height) / 2);
  place();
}

const MOST_SAID = 100; // characters of an error
const TRIED = 150; // nodes up to which other ways are tried where the first leaves no legible text
let way = WAYS[0];

// Place what is visible in the stage: what is drawn, the boxes of nodes, and the layout in the size of the stage. The way is chosen
// anew unless *isKept*: where one node is opened, the rest stays as it is.
async function placed(isKept) {
  const next = visible();
  const tried = isKept ? [way] : next.nodes.length > TRIED ? WAYS.slice(0, 1) : WAYS;
  let best = null;
  for (const each of tried) {
    const faces = new Map(next.nodes.filter((node) => !isOpen(node)).map((node) => [node.id, faceOf(node, each)]));
    const { laid, took } = await engine.layout(toDot(next, faces, each));
    const [width, height] = room();
    const arrangement = arranged(places(laid), faces, width, height, each.direction === "LR");
    const scale = Math.min(width / arrangement.width, height / arrangement.height);
    if (!best || scale > best.scale * 1.15) best = { next, faces, took, arrangement, scale, way: each };
    if (best.scale >= LEGIBLE) break;
  }
  return best;
}

// Lay out what is visible and show it; *anchor*, a node, stays where it is on the screen.
async function draw(anchor) {
  const mine = ++turn;
  delete document.documentElement.dataset.ready;
  const timer = setTimeout(
    () => {
      busy.hidden = false;
    },
    first ? 0 : 150,
  );
  let found;
  try {
    found = await placed(anchor !== undefined);
  } catch (error) {
    clearTimeout(timer);
    busy.hidden = false;
    busy.classList.add("error");
    const why = error.message.length > MOST_SAID ? `${error.message.slice(0, MOST_SAID)} …` : error.message;
    busy.textContent = `The graph cannot be laid out. The page needs WebAssembly and workers, which every present browser has; a policy of a frame around it may forbid them: open its file by itself. (${why})`;
    return;
  }
  clearTimeout(timer);
  if (mine !== turn) return; // something newer is on its way
  busy.hidden = true;
  const before = anchor === undefined ? null : boxOf(anchor)?.getBoundingClientRect();
  const wasFitted = view.isFitted;
  drawn = found.next;
  way = found.way;
  show(found);
  decorate();
  const after = before ? boxOf(anchor)?.getBoundingClientRect() : null;
  if (before && after) {
    view.x += before.left + before.width / 2 - (after.left + after.width / 2);
    view.y += before.top - after.top;
    place();
    if (wasFitted && !isInside() && whole() >= LEGIBLE) fit(LEGIBLE);
    else view.isFitted = wasFitted && isInside();
  } else if (first || !before) fit(whole() >= WHOLE ? WHOLE : LEGIBLE);
  first = false;
  document.documentElement.dataset.ready = "";
  document.documentElement.dataset.layout = found.took.toFixed(1);
  performance.mark("sonde-drawn");
}

const FULL = 250; // edges up to which each tensor has its shape beside it

function show({ next, faces, arrangement }) {
  const { boxes, frames, edges } = arrangement;
  const made = new Map();
  const layers = {
    frames: svg("g", { class: "frames" }),
    edges: svg("g", { class: "edges" }),
    shapes: svg("g", { class: "shapes" }),
    nodes: svg("g", { class: "nodes" }),
    titles: svg("g", { class: "titles" }),
  };
  const isSmall = edges.length <= FULL;
  const lines = isSmall ? edges.map(sampled) : [];
  const titles = [];
  for (const [frame, parts] of frames) {
    const [box] = parts;
    const group = frame[0] === "g";
    const node = group ? null : model.nodes.get(Number(frame.slice(1)));
    const outline = svg(
      "g",
      { id: frame, class: `cluster ${group ? "group" : "module"}${node?.flags.includes("failed") ? " failed" : ""}` },
      ...parts.map((part) =>
        svg("rect", { x: part.left, y: part.top, width: part.right - part.left, height: part.bottom - part.top, rx: 9 }),
      ),
    );
    layers.frames.append(outline);
    made.set(frame, outline);
    const words = frameTitle(frame);
    const { x, free } = titlePlace(box, words.own, lines);
    const title = titleElement(
      group ? `t${frame}` : `t${frame.slice(1)}`,
      group ? Number(frame.slice(1)) : copiesOf(node)?.number,
      words,
      x,
      box.top + 16,
      !free && isSmall,
    );
    titles.push({ left: x - 2, right: x + words.own, top: box.top + 2, bottom: box.top + TITLE });
    layers.titles.append(title);
    made.set(group ? `t${frame}` : `t${frame.slice(1)}`, title);
  }
  for (const node of next.nodes) {
    if (!boxes.has(node.id)) continue;
    const element = nodeElement(node, faces.get(node.id), boxes.get(node.id));
    layers.nodes.append(element);
    made.set(`n${node.id}`, element);
  }
  for (const { from, to, path, points } of edges) {
    const element = svg("path", { id: `e${from}_${to}`, class: "edge", d: path + arrow(points) });
    layers.edges.append(element);
    made.set(`e${from}_${to}`, element);
  }
  if (isSmall && way.shapes) {
    const values = new Map(next.edges.map((edge) => [`${edge.from}_${edge.to}`, edge.values]));
    for (const { text, x, y } of shapePlaces(arrangement, titles, lines, values))
      layers.shapes.append(svg("text", { x, y: y + 4 }, text));
  }
  const hatch = svg(
    "pattern",
    { id: "hatch", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { width: 5, height: 5, class: "ground" }),
    svg("path", { d: "M0 0V5" }),
  );
  picture = svg("svg", {}, svg("g", {}, ...Object.values(layers)), svg("defs", {}, hatch));
  elements = made;
  [view.width, view.height, view.start] = [arrangement.width, arrangement.height, boxes.values().next().value?.x ?? 0];
  canvas.replaceChildren(picture);
  place();
}

// The head of an arrow at the end of a curve, as two strokes.
function arrow(points) {
  const [x, y] = points.at(-1);
  const [fromX, fromY] = points.at(-2);
  const far = Math.hypot(x - fromX, y - fromY) || 1;
  const [alongX, alongY] = [((x - fromX) / far) * 6, ((y - fromY) / far) * 6];
  return `M${round(x - alongX - alongY * 0.6)} ${round(y - alongY + alongX * 0.6)}L${round(x)} ${round(y)}L${round(x - alongX + alongY * 0.6)} ${round(y - alongY - alongX * 0.6)}`;
}

const ROUNDED = { module: 7, operation: 11, input: 15, output: 15 };

function nodeElement(node, face, box) {
  const element = svg("g", {
    id: `n${node.id}`,
    class: `node ${node.kind}${node.flags.includes("failed") ? " failed" : ""}${node.holds ? " holds" : ""}`,
    transform: `translate(${round(box.left)} ${round(box.top)})`,
  });
  if (face.times.startsWith("×"))
    element.append(
      ...[6, 3].map((by) =>
        svg("rect", { class: "behind", x: by, y: by, width: face.width, height: face.height, rx: ROUNDED.module }),
      ),
    );
  element.prepend(svg("rect", { class: "box", width: face.width, height: face.height, rx: ROUNDED[node.kind] ?? 2 }));
  if (element.childElementCount > 1) element.append(element.firstElementChild); // the box lies on the sheets behind it
  const left = node.kind === "operation" ? 9 : 12;
  face.lines.forEach((line, row) => {
    let x = face.badge ? left : (face.width - face.wide(line)) / 2;
    const y = (node.kind === "operation" ? 2.5 : 4.5) + row * LINE + 12.5;
    for (const { text, style } of line) {
      element.append(svg("text", { x: round(x), y, class: style }, text));
      x += widthOf(text, style) + 7;
    }
  });
  const copies = analogues(node);
  if (copies.length > 1) element.append(stripElement(copies, face));
  if (face.badge) element.append(badgeElement(copiesOf(node)?.number, face.times, face.width - face.badge - 8, 6, face.badge));
  return element;
}

// One cell for each block that a node stands for, in which its number is shown.
function stripElement(copies, { width, height }) {
  const wide = (width - 16) / copies.length;
  return svg(
    "g",
    { class: "strip" },
    ...copies.map((id, at) => svg("rect", { x: round(8 + at * wide), y: height - 5, width: round(wide * 0.92), height: 4 })),
  );
}

// The number of copies, which opens and closes the repetition.
function badgeElement(group, times, x, y, width) {
  return svg(
    "g",
    {
      ...(group === undefined ? { class: "badge" } : { class: "badge folds", "data-group": group }),
      transform: `translate(${round(x)} ${round(y)})`,
    },
    svg("rect", { width, height: 17, rx: 8.5 }),
    svg("text", { x: 7, y: 12.5, class: "quiet" }, times),
  );
}

function titleElement(id, group, { name, type, times, own }, x, y, isStruck) {
  const element = svg("g", { id, class: `title${isStruck ? " struck" : ""}`, transform: `translate(${round(x)} ${round(y)})` });
  if (isStruck) element.append(svg("rect", { class: "plate", x: -4, y: -13, width: own + 6, height: 18, rx: 4 }));
  let at = 0;
  for (const [text, style] of [
    [name, "name"],
    [type, "quiet"],
  ]) {
    if (!text) continue;
    element.append(svg("text", { x: at, y: 0, class: style }, text));
    at += widthOf(text, style) + 7;
  }
  if (times) element.append(badgeElement(group, times, at, -12.5, widthOf(times, "quiet") + 14));
  return element;
}

// Moving and zooming

stage.addEventListener(
  "wheel",
  (event) => {
    event.preventDefault();
    const box = stage.getBoundingClientRect();
    if (event.shiftKey) {
      view.x -= event.deltaX + event.deltaY;
      view.isFitted = false;
      place();
      return;
    }
    const lines = event.deltaMode === 1 ? 16 : 1;
    zoom(
      Math.exp(-Math.max(-120, Math.min(120, event.deltaY * lines)) * (event.ctrlKey ? 0.012 : 0.0022)),
      event.clientX - box.left,
      event.clientY - box.top,
    );
  },
  { passive: false },
);

const pointers = new Map();
let moved = 0;
stage.addEventListener("pointerdown", (event) => {
  if (event.button > 0) return;
  pointers.set(event.pointerId, [event.clientX, event.clientY]);
  moved = 0;
});
window.addEventListener("pointermove", (event) => {
  const from = pointers.get(event.pointerId);
  if (!from) return;
  const [dx, dy] = [event.clientX - from[0], event.clientY - from[1]];
  moved += Math.abs(dx) + Math.abs(dy);
  if (pointers.size === 1) {
    view.x += dx;
    view.y += dy;
    if (moved > 4) {
      stage.classList.add("dragging");
      view.isFitted = false;
    }
    place();
  } else {
    const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
    const distance = (x, y) => Math.hypot(x - other[0], y - other[1]);
    const box = stage.getBoundingClientRect();
    zoom(distance(event.clientX, event.clientY) / Math.max(distance(...from), 1), other[0] - box.left, other[1] - box.top);
  }
  pointers.set(event.pointerId, [event.clientX, event.clientY]);
});
for (const end of ["pointerup", "pointercancel"]) {
  window.addEventListener(end, (event) => {
    pointers.delete(event.pointerId);
    stage.classList.remove("dragging");
  });
}

let resizing = null;
new ResizeObserver(() => {
  clearTimeout(resizing);
  if (picture && view.isFitted) resizing = setTimeout(() => draw(), 120);
}).observe(stage);
