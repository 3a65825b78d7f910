// Moves and zooms the picture in its stage.
import { byId } from "../app/dom.js";

export const stage = byId("stage");
export const view = { x: 0, y: 0, scale: 1, width: 1, height: 1, start: 0, isFitted: true };
export let picture = null; // the SVG element
export function showPicture(made) {
  picture = made;
  byId("canvas").replaceChildren(made);
  place();
}

// The view

export function place() {
  if (picture) picture.firstElementChild.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.scale})`);
}

const MARGIN = 24;
export const room = () => {
  const { width, height } = stage.getBoundingClientRect();
  return [Math.max(width - 2 * MARGIN, 50), Math.max(height - 2 * MARGIN, 50)];
};
export const wholeScale = () => {
  const [width, height] = room();
  return Math.min(width / view.width, height / view.height);
};

export function isInside() {
  const { width, height } = stage.getBoundingClientRect();
  return view.x >= 0 && view.y >= 0 && view.x + view.width * view.scale <= width && view.y + view.height * view.scale <= height;
}

// Show all of the picture in the middle; *least* is the smallest scale: with it, what does not fit begins at the top.
export function fit(least = 0.02) {
  const [width, height] = room();
  view.scale = Math.max(Math.min(wholeScale(), 1.25), least);
  view.x = MARGIN + (width - view.width * view.scale) / 2;
  if (view.width * view.scale > width)
    view.x = MARGIN + Math.min(Math.max(width / 2 - view.start * view.scale, width - view.width * view.scale), 0);
  view.y = MARGIN + Math.max((height - view.height * view.scale) / 2, 0);
  view.isFitted = true;
  place();
}

export function fitWhole(width, height) {
  view.scale = Math.min(width / view.width, height / view.height, 1.6);
  [view.x, view.y] = [(width - view.width * view.scale) / 2, 0];
  place();
}

export function zoom(factor, x, y) {
  const box = stage.getBoundingClientRect();
  const [atX, atY] = [x ?? box.width / 2, y ?? box.height / 2];
  const scale = Math.min(Math.max(view.scale * factor, 0.02), 8);
  view.x = atX - ((atX - view.x) * scale) / view.scale;
  view.y = atY - ((atY - view.y) * scale) / view.scale;
  view.scale = scale;
  view.isFitted = false;
  place();
}

// Bring an element of the picture to the middle, at this scale or a greater one.
export function centre(element, scale) {
  if (scale) view.scale = Math.max(view.scale, scale);
  view.isFitted = false;
  place();
  const [box, around] = [element.getBoundingClientRect(), stage.getBoundingClientRect()];
  view.x += around.left + around.width / 2 - (box.left + box.width / 2);
  view.y += around.top + around.height / 2 - (box.top + Math.min(box.height, around.height) / 2);
  place();
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

export const pointers = new Map();
export let moved = 0;
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
const letGo = ({ pointerId }) => {
  pointers.delete(pointerId);
  stage.classList.remove("dragging");
};
window.addEventListener("pointerup", letGo);
window.addEventListener("pointercancel", letGo);
