// The part of the training that is shown. All pictures of a view share one span and one cursor, so that they zoom and point together.

import { keep } from "./address.js";
import { windowOf } from "./smoothing.js";
import { axisOf } from "./timeaxis.js";

const LEAST = 3; // steps that a picture shows at least
const REST = 180; // milliseconds after the last movement: then finer data is fetched, and the address changes

export class Span {
  constructor(first, last, from = null, to = null) {
    this.first = first;
    this.last = last;
    this.from = first;
    this.to = last;
    this.cursor = null; // the step that is pointed at, or else held
    this.held = null;
    this.axis = "step"; // or "time", "clock": how its ticks are named
    this.times = []; // steps, ascending, and seconds since 1970
    this.window = 1; // logged steps over which lines are smoothed
    this.listeners = { move: new Set(), rest: new Set(), point: new Set(), hold: new Set(), grow: new Set() };
    this.timer = 0;
    if (from !== null && to !== null) this.place(from, to);
  }

  // The steps of a run, the part of them that an address names, and the step at which its cursor rests.
  static of(run, args) {
    const first = Math.max(run.first ?? 0, 0);
    const [from, to, step] = [args.from, args.to, args.step].map((text) =>
      text && Number.isFinite(Number(text)) ? Number(text) : null,
    );
    const span = new Span(first, Math.max(run.last ?? 0, first + 1), from, to);
    span.held = span.cursor = step;
    span.window = windowOf(args.smooth);
    span.axis = axisOf(args.axis);
    span.on("hold", () => keep({ step: span.held ?? "" }));
    return span;
  }

  // What a question and an address say of the part that is shown.
  get part() {
    return this.isWhole ? {} : { from: Math.floor(this.from), to: Math.ceil(this.to) };
  }
  get words() {
    return { from: "", to: "", ...this.part };
  }

  get isWhole() {
    return this.from <= this.first && this.to >= this.last;
  }

  on(event, listener) {
    this.listeners[event].add(listener);
    return () => this.listeners[event].delete(listener);
  }

  place(from, to) {
    const [low, high] = [this.first, Math.max(this.last, this.first + 1)];
    const width = Math.min(Math.max(to - from, LEAST), high - low);
    this.from = Math.min(Math.max(from + (to - from - width) / 2, low), high - width);
    this.to = this.from + width;
  }

  set(from, to) {
    this.place(from, to);
    this.tell("move");
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.tell("rest"), REST);
  }

  whole() {
    this.set(this.first, this.last);
  }

  move(share) {
    const by = (this.to - this.from) * share;
    this.set(this.from + by, this.to + by);
  }

  zoom(factor, around = (this.from + this.to) / 2) {
    this.set(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  // The training has gone on: a span that shows all of it, or its end, follows.
  grow(first, last) {
    [first, last] = [Math.max(first ?? 0, 0), Math.max(last ?? 0, Math.max(first ?? 0, 0) + 1)];
    const [whole, atEnd] = [this.isWhole, this.to >= this.last];
    const width = this.to - this.from;
    [this.first, this.last] = [first, last];
    if (whole) this.place(first, last);
    else if (atEnd) this.place(last - width, last);
    else this.place(this.from, this.to);
    this.tell("move");
    this.tell("grow");
  }

  point(step) {
    if (step !== this.cursor) {
      this.cursor = step;
      this.tell("point");
    }
  }

  // Where the cursor rests while nothing is pointed at; null: nowhere.
  hold(step) {
    this.held = step;
    this.point(step);
    this.tell("hold");
  }

  leave() {
    this.point(this.held);
  }

  smooth(window) {
    this.window = window;
    this.tell("move");
  }

  tell(event) {
    for (const listener of this.listeners[event]) listener();
  }
}

// Call draw once before the next picture of the screen, however often this is asked.
export function once(drawing) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      drawing();
    });
  };
}

// Zoom and movement by pointer, wheel and keys. `box` returns the plot's {left, top, width, height} within the element, `brush` is an
// SVG rectangle; `click(x, y)`, `point(x, y)` and `leave()` say what the pointer does otherwise; `rows(top, bottom)` takes a choice of rows.
/** @param {HTMLElement} element @param {any} acts */
export function gestures(element, { span, box, brush, click, point, leave, rows }) {
  let [start, mode] = [null, ""];
  const inside = (event) => {
    const [outer, plot] = [element.getBoundingClientRect(), box()];
    const [x, y] = [event.clientX - outer.left - plot.left, event.clientY - outer.top - plot.top];
    return { x, y, plot, hit: x >= 0 && y >= 0 && x <= plot.width && y <= plot.height };
  };
  const stepAt = (x, plot) => span.from + (x / plot.width) * (span.to - span.from);

  element.addEventListener("pointerdown", (event) => {
    const at = inside(event);
    if (event.button !== 0 || !at.hit || /** @type {Element} */ (event.target).closest("a, button")) return;
    [start, mode] = [{ ...at, from: span.from, to: span.to }, event.shiftKey ? "move" : "brush"];
    element.setPointerCapture(event.pointerId);
  });
  element.addEventListener("pointermove", (event) => {
    const at = inside(event);
    if (start && mode === "move") {
      const by = ((start.x - at.x) / at.plot.width) * (start.to - start.from);
      span.set(start.from + by, start.to + by);
    } else if (start && Math.hypot(at.x - start.x, at.y - start.y) > 4) {
      const [left, right] = [Math.min(start.x, at.x), Math.max(start.x, at.x)].map((x) =>
        Math.min(Math.max(x, 0), at.plot.width),
      );
      const tall = rows && Math.abs(at.y - start.y) > 14;
      const [top, bottom] = tall
        ? [Math.min(start.y, at.y), Math.max(start.y, at.y)].map((y) => Math.min(Math.max(y, 0), at.plot.height))
        : [0, at.plot.height];
      for (const [name, value] of Object.entries({
        x: at.plot.left + left,
        y: at.plot.top + top,
        width: right - left,
        height: bottom - top,
      }))
        brush.setAttribute(name, value);
      brush.removeAttribute("visibility");
    } else if (!start) {
      if (at.hit) point?.(at.x, at.y, event);
      else leave?.();
    }
  });
  const end = (event) => {
    if (!start) return;
    const [at, began] = [inside(event), start];
    start = null;
    brush.setAttribute("visibility", "hidden");
    if (event.type === "pointercancel") return;
    if (Math.hypot(at.x - began.x, at.y - began.y) <= 4) {
      click?.(began.x, began.y, event);
      return;
    }
    if (mode === "move") return;
    if (rows && Math.abs(at.y - began.y) > 14) rows(Math.min(at.y, began.y), Math.max(at.y, began.y));
    if (Math.abs(at.x - began.x) > 4)
      span.set(stepAt(Math.min(at.x, began.x), at.plot), stepAt(Math.max(at.x, began.x), at.plot));
  };
  element.addEventListener("pointerup", end);
  element.addEventListener("pointercancel", end);
  element.addEventListener("pointerleave", () => {
    if (!start) leave?.();
  });
  element.addEventListener("dblclick", () => {
    span.whole();
    rows?.(null);
  });
  element.addEventListener(
    "wheel",
    (event) => {
      const at = inside(event);
      if (!at.hit) return;
      if (event.ctrlKey || event.metaKey) span.zoom(1.0015 ** event.deltaY, stepAt(at.x, at.plot));
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) span.move((event.deltaX || event.deltaY) / 900);
      else return;
      event.preventDefault();
    },
    { passive: false },
  );
  element.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const act = {
      "+": () => span.zoom(0.7),
      "=": () => span.zoom(0.7),
      "-": () => span.zoom(1 / 0.7),
      "−": () => span.zoom(1 / 0.7),
      0: () => {
        span.whole();
        rows?.(null);
      },
      ",": () => span.move(-0.2),
      ".": () => span.move(0.2),
    }[event.key];
    if (!act) return;
    act();
    event.preventDefault();
    event.stopPropagation();
  });
}

// Draws a picture anew when its element has another width. The width is remembered: to ask for it in each picture would lay out the whole page each time.
const fits = new WeakMap();
export function onWidth(element, measured, paint) {
  const soon = once(paint);
  element.dataset.fitted = "";
  fits.set(element, () => {
    measured(element.clientWidth);
    paint();
  });
  new ResizeObserver(() => {
    measured(element.clientWidth);
    soon();
  }).observe(element);
}

// Draw all pictures on the page at once, as before it is printed; twice, since some begin where others do.
export function fitAll() {
  for (let turn = 0; turn < 2; turn += 1) for (const element of document.querySelectorAll("[data-fitted]")) fits.get(element)();
}
