// Turns Graphviz source into a picture: layout in a worker, then an SVG that can be moved and zoomed.
"use strict";

const engine = (() => {
  const asScript = (text) => URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
  // The engine is sent as text: a page opened as a file has an origin of its own, from which a worker may load nothing.
  const worker = new Worker(asScript(`
    let engine;
    onmessage = async ({ data: { number, dot, library } }) => {
      try {
        if (library) {
          const url = URL.createObjectURL(new Blob([library], { type: "text/javascript" }));
          engine = import(url).then(({ Graphviz }) => Graphviz.load());
          return;
        }
        const graphviz = await engine;
        const began = performance.now();
        const svg = graphviz.layout(dot, "svg", "dot");
        postMessage({ number, svg, took: performance.now() - began });
      } catch (error) {
        postMessage({ number, error: String(error) });
      }
    };`));
  worker.postMessage({ library: document.getElementById("engine").textContent });
  const waiting = new Map();
  const known = new Map();
  let last = 0;
  worker.onmessage = ({ data }) => {
    const { resolve, reject } = waiting.get(data.number);
    waiting.delete(data.number);
    if (data.error) reject(new Error(data.error));
    else resolve(data);
  };
  worker.onerror = (event) => {
    for (const { reject } of waiting.values()) reject(new Error(event.message || "the layout engine did not start"));
    waiting.clear();
  };
  return {
    layout(dot) {
      if (!known.has(dot)) {
        if (known.size > 40) known.delete(known.keys().next().value);
        known.set(dot, new Promise((resolve, reject) => {
          waiting.set(++last, { resolve, reject });
          worker.postMessage({ number: last, dot });
        }));
      }
      return known.get(dot);
    },
  };
})();

const stage = document.getElementById("stage");
const canvas = document.getElementById("canvas");
const busy = document.getElementById("busy");
const view = { x: 0, y: 0, scale: 1, width: 1, height: 1 };
let picture = null; // the SVG element
let drawn = { nodes: [], edges: [] };
let turn = 0;
let first = true;

const elementOf = (id) => picture?.getElementById(`n${id}`) ?? picture?.getElementById(`c${id}`) ?? null;

function place() {
  if (picture) picture.firstElementChild.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.scale})`);
}

function fit() {
  const { width, height } = stage.getBoundingClientRect();
  view.scale = Math.min((width - 40) / view.width, (height - 40) / view.height, 1.3);
  const readable = 0.75;
  if (view.scale < readable && view.height > view.width) view.scale = Math.min(readable, (width - 40) / view.width); // tall: show its beginning
  view.scale = Math.max(view.scale, 0.02);
  view.x = (width - view.width * view.scale) / 2;
  view.y = Math.max((height - view.height * view.scale) / 2, 20);
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
  place();
}

function centre(id, scale) {
  const element = elementOf(id);
  if (!element) return;
  if (scale) view.scale = Math.max(view.scale, scale);
  place();
  const [box, around] = [element.getBoundingClientRect(), stage.getBoundingClientRect()];
  view.x += around.left + around.width / 2 - (box.left + box.width / 2);
  view.y += around.top + around.height / 2 - (box.top + Math.min(box.height, around.height) / 2);
  place();
}

// Lay out what is visible and show it; *anchor*, a node, stays where it is on the screen.
async function draw(anchor) {
  const mine = ++turn;
  const next = visible();
  const timer = setTimeout(() => { busy.hidden = false; }, first ? 0 : 150);
  let laid;
  try {
    laid = await engine.layout(toDot(next));
  } catch (error) {
    clearTimeout(timer);
    busy.hidden = false;
    busy.classList.add("error");
    busy.textContent = `The layout engine failed: ${error.message}`;
    return;
  }
  clearTimeout(timer);
  if (mine !== turn) return; // something newer is on its way
  busy.hidden = true;
  const before = anchor === undefined ? null : elementOf(anchor)?.getBoundingClientRect();
  drawn = next;
  show(laid.svg);
  decorate();
  const after = before ? elementOf(anchor)?.getBoundingClientRect() : null;
  if (before && after) {
    view.x += before.left + before.width / 2 - (after.left + after.width / 2);
    view.y += before.top - after.top;
    place();
  } else if (first || !before) fit();
  first = false;
  document.documentElement.dataset.ready = String(mine);
  document.documentElement.dataset.layout = laid.took.toFixed(1);
  performance.mark("sonde-drawn");
}

function show(svg) {
  const made = new DOMParser().parseFromString(svg, "image/svg+xml").documentElement;
  const [, , width, height] = made.getAttribute("viewBox").split(/\s+/).map(Number);
  const inner = made.querySelector("g.graph");
  for (const title of made.querySelectorAll("title")) title.remove();
  inner.querySelector(":scope > polygon")?.remove(); // the background
  const outer = document.createElementNS("http://www.w3.org/2000/svg", "g");
  outer.append(inner); // keeps its own translation, ours goes around it
  made.replaceChildren(outer);
  for (const name of ["viewBox", "width", "height"]) made.removeAttribute(name);
  [view.width, view.height] = [width, height];
  canvas.replaceChildren(document.adoptNode(made));
  picture = made;
  place();
}

// Moving and zooming

stage.addEventListener("wheel", (event) => {
  event.preventDefault();
  const box = stage.getBoundingClientRect();
  if (event.shiftKey) { view.x -= event.deltaX + event.deltaY; place(); return; }
  const lines = event.deltaMode === 1 ? 16 : 1;
  zoom(Math.exp(-Math.max(-120, Math.min(120, event.deltaY * lines)) * (event.ctrlKey ? 0.012 : 0.0022)), event.clientX - box.left, event.clientY - box.top);
}, { passive: false });

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
    view.x += dx; view.y += dy;
    if (moved > 4) stage.classList.add("dragging");
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
  window.addEventListener(end, (event) => { pointers.delete(event.pointerId); stage.classList.remove("dragging"); });
}
