// Connects buttons and keys, and draws the first picture.
import { amount, byId, make } from "../app/dom.js";
import { current, numbers, tint } from "./colours.js";
import { LEGIBLE } from "./columns.js";
import { boxOf, drawn, elementOf, placed, redraw } from "./drawing.js";
import { saveAs } from "./file.js";
import { above, isOpen, levelNow, model, openTo, recorded, state, visible } from "./model.js";
import { SHOWN, card, details, search, select, tickBoxes, toggle, unfold } from "./panel.js";
import { centre, fit, fitWhole, picture, stage, view, wholeScale, zoom } from "./view.js";
import { copiesOf } from "./words.js";

for (const name of SHOWN) {
  byId(name).addEventListener("change", (event) => {
    state[name] = event.target.checked;
    if (name === "repeats") state.unfolded.clear();
    redraw(state.selected ?? undefined);
  });
}

function toLevel(level) {
  openTo(Math.min(Math.max(level, 0), model.levels));
  state.unfolded.clear();
  view.isFitted = true;
  redraw();
}
byId("depth").max = String(model.levels);
byId("depth").addEventListener("input", (event) => toLevel(Number(event.target.value)));

// One level more or less than is open; where modules were opened one by one, the next whole level.
function shift(by) {
  const now = levelNow();
  if (now !== null) {
    toLevel(now + by);
    return;
  }
  const opened = Math.max(
    0,
    ...recorded.nodes.filter((node) => node.holds && state.open.has(node.id)).map((node) => node.depth + 1),
  );
  const full = [...Array(model.levels + 1).keys()].findLast((level) =>
    recorded.nodes.every((node) => !node.holds || node.depth >= level || state.open.has(node.id)),
  );
  toLevel(
    by > 0 ? full + 1 : opened - (recorded.nodes.some((node) => node.opens && !node.holds && state.open.has(node.id)) ? 0 : 1),
  );
}
for (const kind of ["svg", "png"])
  byId(`save-${kind}`).onclick = () => {
    select(null); // its marks are none of the picture
    byId("save").open = false;
    saveAs(kind);
  };
byId("fit").onclick = () => fit();
byId("help").onclick = () => byId("keys").showModal();

document.addEventListener("theme", () => {
  if (picture) tint();
});

let themeBefore = null; // while the page is printed
window.addEventListener("beforeprint", () => {
  themeBefore ??= document.documentElement.dataset.theme;
  theme("light");
  select(null);
  fitWhole(...(window.parent === window ? [720, 860] : [640, 700]));
});
window.addEventListener("afterprint", () => {
  theme(themeBefore ?? "light");
  themeBefore = null;
  fit(LEGIBLE);
});

// Colours and steps

const chooser = byId("number");
const optgroup = (label, options) => (options.length ? [make("optgroup", { label }, options)] : []);
const option = (number) => new Option(number.label, number.title);
chooser.append(
  new Option("kind of node", ""),
  ...optgroup("the run’s numbers", numbers.filter(({ steps }) => steps).map(option)),
  ...optgroup("the graph’s numbers", numbers.filter(({ steps }) => !steps).map(option)),
);
chooser.onchange = () => {
  const { other } = chooser.selectedOptions[0].dataset;
  if (other) {
    window.parent.postMessage({ number: other }, "*");
    return;
  }
  state.number = chooser.value;
  recolour();
};
// A page around this one says which step is shown first, and which more numbers it knows; asked for one, it loads this page with it.
window.addEventListener("message", ({ source, data }) => {
  if (source !== window.parent || !Array.isArray(data?.more) || chooser.querySelector("[data-other]")) return;
  byId("theme").hidden = true; // the page around has this button
  const steps = current()?.steps ?? [];
  toStep(steps.findLastIndex((step) => step <= data.step));
  isWithin = true;
  const held = new Set(numbers.map(({ title }) => title.split(" (")[0]));
  const others = data.more.filter(({ id, name, minor }) => typeof id === "string" && !minor && !held.has(name));
  chooser.append(
    ...optgroup(
      "other numbers of the run",
      others.map(({ id, label }) => {
        const made = new Option(`${label} …`, id);
        made.dataset.other = id;
        return made;
      }),
    ),
  );
});

function recolour() {
  tint();
  byId("legend").hidden = Boolean(current());
  if (!current()?.steps) stop();
  if (state.selected !== null) details.replaceChildren(card(model.nodes.get(state.selected), true));
}

// The number before or after the one that colours the nodes, in the order of the list.
function another(by) {
  const options = [...chooser.options].filter(({ dataset }) => !dataset.other).map(({ value }) => value);
  chooser.value = options[(options.indexOf(state.number) + by + options.length) % options.length];
  chooser.onchange();
}

let isWithin = false; // a page around this one, which is told of the step
function toStep(step) {
  const steps = current()?.steps;
  if (!steps) return;
  state.step = Math.min(Math.max(step, 0), steps.length - 1);
  if (picture) recolour(); // before the first picture, this draws it at that step
  if (isWithin) window.parent.postMessage({ step: steps[state.step] }, "*");
}
byId("step").addEventListener("input", (event) => toStep(Number(event.target.value)));

const SECONDS = 6; // from the first step to the last at normal speed
let playing = null;
function stop() {
  clearTimeout(playing);
  playing = null;
  byId("play").textContent = "▶";
  byId("play").setAttribute("aria-label", "Play");
}
function next() {
  const steps = current()?.steps;
  if (!steps || state.step >= steps.length - 1) {
    stop();
    return;
  }
  toStep(state.step + 1);
  const pause = (SECONDS * 1000) / steps.length / Number(byId("speed").value);
  playing = setTimeout(next, Math.min(Math.max(pause, 30), 1000));
}
byId("play").onclick = () => {
  const steps = current()?.steps;
  if (playing !== null || !steps) {
    stop();
    return;
  }
  if (state.step === steps.length - 1) toStep(0);
  byId("play").textContent = "❚❚";
  byId("play").setAttribute("aria-label", "Pause");
  playing = setTimeout(next, 150);
};
function faster(by) {
  const speed = byId("speed");
  speed.selectedIndex = Math.min(Math.max(speed.selectedIndex + by, 0), speed.options.length - 1);
}

// Keys

function neighbour(key) {
  const here = state.selected;
  const isDrawn = here !== null && boxOf(here);
  if (!isDrawn) return drawn.nodes.find((node) => !isOpen(node));
  const middle = (id) => {
    const box = boxOf(id).getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  };
  const [x, y] = middle(here);
  const nearest = (ids, distance) =>
    ids.map((id) => [distance(...middle(id)), id]).sort((one, other) => one[0] - other[0])[0]?.[1];
  if (key === "ArrowDown" || key === "ArrowUp") {
    const ids = drawn.edges
      .filter((edge) => (key === "ArrowDown" ? edge.from : edge.to) === here)
      .map((edge) => (key === "ArrowDown" ? edge.to : edge.from));
    return model.nodes.get(nearest(ids, (atX, atY) => Math.abs(atY - y) + Math.abs(atX - x)));
  }
  const side = key === "ArrowRight" ? 1 : -1;
  const ids = drawn.nodes
    .filter((node) => node.id !== here && elementOf(node.id)?.classList.contains("node"))
    .map((node) => node.id);
  const beside = ids.filter((id) => (middle(id)[0] - x) * side > 1 && Math.abs(middle(id)[1] - y) < 60 * view.scale + 40);
  return model.nodes.get(nearest(beside, (atX, atY) => Math.abs(atX - x) + 3 * Math.abs(atY - y)));
}

function step(key) {
  const next = neighbour(key);
  if (!next) return;
  select(next);
  const [box, around] = [boxOf(next.id).getBoundingClientRect(), stage.getBoundingClientRect()];
  if (box.left < around.left || box.right > around.right || box.top < around.top || box.bottom > around.bottom)
    centre(boxOf(next.id));
}

const KEYS = {
  "/": () => {
    search.focus();
    search.select();
  },
  "?": () => byId("keys").showModal(),
  "+": () => zoom(1.25),
  "=": () => zoom(1.25),
  "-": () => zoom(0.8),
  "−": () => zoom(0.8),
  f: () => fit(),
  0: () => fit(),
  1: () => {
    fit(1);
  },
  e: () => shift(1),
  c: () => shift(-1),
  t: () => byId("theme").click(),
  p: () => byId("parameters").click(),
  v: () => byId("small").click(),
  r: repeat,
  n: () => another(1),
  N: () => another(-1),
  "[": () => toStep(state.step - 1),
  "]": () => toStep(state.step + 1),
  " ": () => byId("play").click(),
  "<": () => faster(-1),
  ">": () => faster(1),
  ArrowUp: () => step("ArrowUp"),
  ArrowDown: () => step("ArrowDown"),
  ArrowLeft: () => step("ArrowLeft"),
  ArrowRight: () => step("ArrowRight"),
  Enter: () => {
    if (state.selected !== null) toggle(model.nodes.get(state.selected));
  },
  Backspace: () => {
    const frame = state.selected === null ? undefined : model.nodes.get(state.selected).parent;
    if (frame === undefined) return;
    const closed = model.nodes.get(frame);
    toggle(closed);
    select(closed);
  },
  Escape: () => select(null),
};

// Whether the control that has the focus uses this key itself.
function isTaken({ target, key }) {
  if (target.matches("input[type=search], select")) return true;
  if (target.matches("input[type=range]")) return key.startsWith("Arrow");
  return target.matches("button, summary, input") && (key === " " || key === "Enter");
}

// Fold or unfold the copies that are selected, or all.
function repeat() {
  const copies = state.selected === null ? null : copiesOf(model.nodes.get(state.selected));
  if (copies) unfold(copies.number);
  else byId("repeats").click();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open || isTaken(event)) return;
  const act = KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

// The beginning

const outer = recorded.nodes.find((node) => node.kind === "module") ?? {};
byId("totals").textContent = [
  recorded.error ? `ended by ${recorded.error}` : "",
  outer.parameters ? `${amount(outer.parameters)} parameters` : "",
  outer.flops ? amount(outer.flops, "FLOP") : "",
  `${recorded.nodes.filter((node) => node.kind === "module").length} module calls`,
  `${recorded.nodes.filter((node) => node.kind === "operation").length} operations`,
]
  .filter(Boolean)
  .join(" · ");
byId("totals").title = byId("totals").textContent;
if (recorded.error) byId("totals").classList.add("warn");

const MOST = 60; // nodes in the first picture
async function firstLevel() {
  if (recorded.depth !== null) return recorded.depth >= model.deepest ? model.levels : Math.min(recorded.depth, model.levels);
  let other = Math.min(1, model.levels);
  for (let level = model.frames || model.levels; level > 1; level -= 1) {
    openTo(level);
    if (visible().nodes.length > MOST) continue;
    const {
      arrangement: { width, height, isCut },
    } = await placed(true); // a level is open at first only with all that is known of it
    [view.width, view.height] = [width, height];
    if (wholeScale() < LEGIBLE) continue;
    if (!isCut) return level;
    other = Math.max(other, level); // frames in several columns only where else all modules would be closed
  }
  return other;
}

async function begin() {
  if (recorded.series?.length) {
    state.number = recorded.series[0].name;
    chooser.value = state.number;
    byId("legend").hidden = true;
  }
  let level = Math.min(1, model.levels);
  try {
    level = await firstLevel();
  } catch {
    /* drawing fails likewise, and says so */
  }
  openTo(level);
  if (recorded.error)
    for (const node of recorded.nodes) if (node.flags.includes("failed")) for (const frame of above(node)) state.open.add(frame);
  tickBoxes();
  await redraw();
}
begin();
