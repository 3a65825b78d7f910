// A handle below a picture: dragged, or moved by keys, it makes the picture higher or lower. The browser keeps the height.
import { make } from "./dom.js";

const SHELF = "sonde heights";
const [LOWEST, HIGHEST, NOTCH] = [90, 1600, 20]; // pixels

function heights() {
  try {
    return JSON.parse(localStorage.getItem(SHELF) ?? "{}") ?? {};
  } catch {
    return {}; // what another program has put there, or no storage at all
  }
}

function keepHeight(name, height) {
  try {
    const { [name]: _, ...others } = heights();
    localStorage.setItem(SHELF, JSON.stringify(height === null ? others : { ...others, [name]: height }));
  } catch {
    /* the height is that of this visit alone */
  }
}

// Of the words that a picture has for those who do not see it, the first sentence.
const nameOf = (label) => label.split(".")[0];

export const heightOf = (label) => {
  const kept = heights()[nameOf(label)];
  return typeof kept === "number" && kept >= LOWEST && kept <= HIGHEST ? kept : null;
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
    "aria-label": `Height of: ${name}`,
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
