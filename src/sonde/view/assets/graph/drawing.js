// Draws what was placed as an SVG.
import { byId, draw } from "../app/dom.js";
import { MARKS } from "../app/scales.js";
import { LEGIBLE, WHOLE, arranged, round } from "./columns.js";
import { WAYS, places, toDot } from "./dot.js";
import { layout } from "./engine.js";
import { LINE, OPENS, faceOf, frameTitle, widthOf } from "./faces.js";
import { TITLE, sampled, shapePlaces, titlePlace } from "./labels.js";
import { isOpen, model, visible } from "./model.js";
import { fit, isInside, picture, place, room, showPicture, stage, view, wholeScale } from "./view.js";
import { analogues, copiesOf, shapeOf } from "./words.js";

const busy = byId("busy");
export let drawn = { nodes: [], edges: [] };
export let elements = new Map(); // by "n5", "c5", "t5", "e5_6"
let turn = 0;
let first = true;

export const boxOf = (id) => elements.get(`n${id}`) ?? elements.get(`c${id}`) ?? null;
export const elementOf = (id) => elements.get(`n${id}`) ?? elements.get(`t${id}`) ?? null;

const MOST_SAID = 100; // characters of an error
const TRIED = 150; // nodes up to which other ways are tried where the first leaves no legible text
let way = WAYS[0];

// Place what is visible in the stage: what is drawn, the boxes of nodes, and the layout in the size of the stage. The way is chosen
// anew unless *isKept*: where one node is opened, the rest stays as it is.
export async function placed(isKept) {
  const next = visible();
  const tried = isKept ? [way] : next.nodes.length > TRIED ? WAYS.slice(0, 1) : WAYS;
  let best = null;
  for (const each of tried) {
    const faces = new Map(next.nodes.filter((node) => !isOpen(node)).map((node) => [node.id, faceOf(node, each)]));
    const { laid, took } = await layout(toDot(next, faces, each));
    const [width, height] = room();
    const arrangement = arranged(places(laid), faces, width, height, each.direction === "LR");
    const scale = Math.min(width / arrangement.width, height / arrangement.height);
    if (!best || scale > best.scale * 1.15) best = { next, faces, took, arrangement, scale, way: each };
    if (best.scale >= LEGIBLE) break;
  }
  return best;
}

// Lay out what is visible and show it; *anchor*, a node, stays where it is on the screen.
export async function redraw(anchor) {
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
  document.dispatchEvent(new Event("drawn"));
  const after = before ? boxOf(anchor)?.getBoundingClientRect() : null;
  if (before && after) {
    view.x += before.left + before.width / 2 - (after.left + after.width / 2);
    view.y += before.top - after.top;
    place();
    if (wasFitted && !isInside() && wholeScale() >= LEGIBLE) fit(LEGIBLE);
    else view.isFitted = wasFitted && isInside();
  } else if (first || !before) fit(wholeScale() >= WHOLE ? WHOLE : LEGIBLE);
  first = false;
  document.documentElement.dataset.ready = "";
  document.documentElement.dataset.layout = found.took.toFixed(1);
  performance.mark("sonde-drawn");
}

const FULL = 250; // edges up to which each tensor has its shape beside it
const TRACED = 1000; // edges up to which titles stand where no edge runs

function show({ next, faces, arrangement }) {
  const { boxes, frames, edges } = arrangement;
  const made = new Map();
  const layers = {
    frames: draw("g", { class: "frames" }),
    edges: draw("g", { class: "edges" }),
    shapes: draw("g", { class: "shapes" }),
    nodes: draw("g", { class: "nodes" }),
    titles: draw("g", { class: "titles" }),
  };
  const isSmall = edges.length <= FULL;
  const lines = edges.length <= TRACED ? edges.map(sampled) : [];
  const titles = [];
  for (const [frame, parts] of frames) {
    const [box] = parts;
    const group = frame[0] === "g";
    const node = group ? null : model.nodes.get(Number(frame.slice(1)));
    const outline = draw(
      "g",
      { id: frame, class: `cluster ${group ? "group" : "module"}${node?.flags.includes("failed") ? " failed" : ""}` },
      ...parts.map((part) =>
        draw("rect", { x: part.left, y: part.top, width: part.right - part.left, height: part.bottom - part.top, rx: 9 }),
      ),
    );
    layers.frames.append(outline);
    made.set(frame, outline);
    const { forms } = frameTitle(frame);
    const { x, form, free } = titlePlace(
      box,
      forms.map(({ wide }) => wide),
      lines,
    );
    const title = titleElement(
      group ? `t${frame}` : `t${frame.slice(1)}`,
      group ? Number(frame.slice(1)) : copiesOf(node)?.number,
      forms[form],
      x,
      box.top + 16,
      !free,
    );
    titles.push({ left: x - 2, right: x + forms[form].wide, top: box.top + 2, bottom: box.top + TITLE });
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
    const element = draw("path", { id: `e${from}_${to}`, class: "edge", d: path + arrow(points) });
    layers.edges.append(element);
    made.set(`e${from}_${to}`, element);
  }
  if (isSmall && way.shapes) {
    const texts = new Map(next.edges.map((edge) => [`${edge.from}_${edge.to}`, shapesOn(edge)]));
    for (const { text, x, y } of shapePlaces(arrangement, titles, lines, texts))
      layers.shapes.append(draw("text", { x, y: y + 4 }, text));
  }
  elements = made;
  [view.width, view.height, view.start] = [arrangement.width, arrangement.height, boxes.values().next().value?.x ?? 0];
  showPicture(draw("svg", { "data-way": way.name }, draw("g", null, ...Object.values(layers)), draw("defs", null, patterns())));
}

// The shapes of the tensors on an edge, and how wide they are as a text.
function shapesOn({ values }) {
  const shapes = [...new Set(values.map(shapeOf))];
  const text = shapes.slice(0, 2).join(", ") + (shapes.length > 2 ? ` +${shapes.length - 2}` : "");
  return { text, wide: widthOf(text, "quiet") };
}

// Fills for what has no value: stripes as on the live page, and its colours and hatches of marks.
const patterns = () => [
  draw(
    "pattern",
    { id: "void", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    draw("rect", { width: 6, height: 6 }),
    draw("path", { d: "M0 0V6" }),
  ),
  ...MARKS.map((mark, place) =>
    mark?.colour
      ? draw(
          "pattern",
          { id: `mark${place}`, width: 8, height: 8, patternUnits: "userSpaceOnUse" },
          draw("rect", { width: 8, height: 8, fill: `rgb(${mark.colour.join(" ")})` }),
          mark.hatch.map(([x, y, right, below]) =>
            draw("path", {
              d: `M${x} ${y}L${right} ${below}`,
              stroke: mark.ink,
              "stroke-width": 1.4,
              "stroke-linecap": "square",
            }),
          ),
        )
      : null,
  ),
];

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
  const element = draw("g", {
    id: `n${node.id}`,
    class: `node ${node.kind}${node.flags.includes("failed") ? " failed" : ""}${node.holds ? " holds" : ""}`,
    transform: `translate(${round(box.left)} ${round(box.top)})`,
  });
  if (face.times.startsWith("×"))
    element.append(
      ...[6, 3].map((by) =>
        draw("rect", { class: "behind", x: by, y: by, width: face.width, height: face.height, rx: ROUNDED.module }),
      ),
    );
  element.prepend(draw("rect", { class: "box", width: face.width, height: face.height, rx: ROUNDED[node.kind] ?? 2 }));
  if (element.childElementCount > 1) element.append(element.firstElementChild); // the box lies on the sheets behind it
  const left = node.kind === "operation" ? 9 : 12;
  face.lines.forEach((line, row) => {
    let x = face.badge ? left : (face.width - face.wide(line)) / 2;
    const y = (node.kind === "operation" ? 2.5 : 4.5) + row * LINE + 12.5;
    if (node.holds && !row) {
      x = face.badge ? left : (face.width - face.wide(line) - OPENS) / 2;
      element.append(draw("path", { class: "opens", d: `M${round(x + 1.5)} ${y - 8}l3.5 3.5l-3.5 3.5` })); // it can be opened
      x += OPENS;
    }
    for (const { text, style } of line) {
      element.append(draw("text", { x: round(x), y, class: style }, text));
      x += widthOf(text, style) + 7;
    }
  });
  const copies = analogues(node);
  if (copies.length > 1) element.append(stripElement(copies, face));
  if (face.badge) element.append(badgeElement(copiesOf(node)?.number, face.times, face.width - face.badge - 8, 3.5, face.badge));
  return element;
}

// One cell for each block that a node stands for, in which its number is shown.
function stripElement(copies, { width, height }) {
  const wide = (width - 16) / copies.length;
  return draw(
    "g",
    { class: "strip" },
    ...copies.map((id, at) => draw("rect", { x: round(8 + at * wide), y: height - 5, width: round(wide * 0.92), height: 4 })),
  );
}

// The number of copies, which opens and closes the repetition.
function badgeElement(group, times, x, y, width) {
  return draw(
    "g",
    {
      ...(group === undefined ? { class: "badge" } : { class: "badge folds", "data-group": group }),
      transform: `translate(${round(x)} ${round(y)})`,
    },
    draw("rect", { width, height: 17, rx: 8.5 }),
    draw("text", { x: 7, y: 12.5, class: "quiet" }, times),
  );
}

function titleElement(id, group, { name, type, times, wide }, x, y, isStruck) {
  const element = draw("g", { id, class: `title${isStruck ? " struck" : ""}`, transform: `translate(${round(x)} ${round(y)})` });
  if (isStruck) element.append(draw("rect", { class: "plate", x: -4, y: -13, width: wide + 6, height: 18, rx: 4 }));
  let at = 0;
  for (const [text, style] of [
    [name, "name"],
    [type, "quiet"],
  ]) {
    if (!text) continue;
    element.append(draw("text", { x: at, y: 0, class: style }, text));
    at += widthOf(text, style) + 7;
  }
  if (times) element.append(badgeElement(group, times, at, -12.5, widthOf(times, "quiet") + 14));
  return element;
}

let resizing = null;
new ResizeObserver(() => {
  clearTimeout(resizing);
  if (picture && view.isFitted) resizing = setTimeout(() => redraw(), 120);
}).observe(stage);
