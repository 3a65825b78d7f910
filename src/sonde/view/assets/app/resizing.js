// A handle below a picture: dragged, or moved by keys, it makes the picture higher or lower. The address has the height, as "heights=Losses:420".
import { here, keep } from "./address.js";
import { make } from "./dom.js";

const [LOWEST, HIGHEST, NOTCH] = [90, 1600, 20]; // pixels

const heights = () =>
  new Map((here().args.heights ?? "").split(",").map((each) => /** @type {[string, string]} */ (each.split(":"))));

function keepHeight(name, height) {
  const held = heights();
  held.delete("");
  if (height === null) held.delete(name);
  else held.set(name, height);
  keep({ heights: [...held].map((each) => each.join(":")).join(",") });
}

// The name of a picture in the address: of the words for those who do not see it the first sentence.
const nameOf = (label) => label.split(".")[0].replaceAll(/[^\p{L}\p{N}]+/gu, "-");

// The height of a picture that the address has; null without one.
export const heightOf = (label) => {
  const kept = Number(heights().get(nameOf(label)));
  return kept >= LOWEST && kept <= HIGHEST ? kept : null;
};

// The handle of a picture with a label. `now` gives its height, `set` changes it; null is the height that it has by itself.
export function resizer(label, now, set) {
  const name = nameOf(label);
  let start = null; // of a drag: where the pointer and the height were
  let wanted = null; // the height that was last asked for: several keys may come before the picture is drawn with it
  const handle = make("div", {
    class: "resizer",
    role: "separator",
    tabindex: 0,
    "aria-orientation": "horizontal",
    "aria-label": `Height of: ${label.split(".")[0]}`,
    "aria-valuemin": LOWEST,
    "aria-valuemax": HIGHEST,
    title: "Drag, or arrow keys: another height; double click, or delete: its own",
  });
  const to = (height) => {
    wanted = height === null ? null : Math.round(Math.min(Math.max(height, LOWEST), HIGHEST));
    set(wanted);
    handle.setAttribute("aria-valuenow", String(Math.round(now())));
  };
  const done = () => {
    start = null;
    keepHeight(name, wanted ?? Math.round(now()));
  };
  handle.addEventListener("focus", () => {
    wanted = null;
    handle.setAttribute("aria-valuenow", String(Math.round(now())));
  });
  handle.setAttribute("aria-valuenow", String(LOWEST));
  handle.addEventListener("pointerdown", (event) => {
    event.stopPropagation();
    start = { y: event.clientY, height: now() };
    handle.setPointerCapture(event.pointerId);
  });
  handle.addEventListener("pointermove", (event) => {
    event.stopPropagation();
    if (start) to(start.height + event.clientY - start.y);
  });
  for (const end of ["pointerup", "pointercancel"])
    handle.addEventListener(end, (event) => {
      event.stopPropagation();
      if (start) done();
    });
  const own = () => {
    to(null);
    keepHeight(name, null);
  };
  handle.addEventListener("dblclick", (event) => {
    event.stopPropagation();
    own();
  });
  handle.addEventListener("keydown", (event) => {
    const by = { ArrowUp: -NOTCH, ArrowDown: NOTCH, PageUp: -5 * NOTCH, PageDown: 5 * NOTCH }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey || (!by && event.key !== "Delete")) return;
    event.preventDefault();
    event.stopPropagation();
    if (!by) own();
    else {
      to((wanted ?? now()) + by);
      done();
    }
  });
  return handle;
}
