// Connects buttons and keys, and draws the first picture.
"use strict";

function boxes() {
  byId("parameters").checked = state.parameters;
  byId("constants").checked = state.constants;
}
for (const name of ["parameters", "constants"]) {
  byId(name).addEventListener("change", (event) => { state[name] = event.target.checked; draw(state.selected ?? undefined); });
}

function shift(by) {
  const opened = recorded.nodes.filter((node) => node.opens && state.open.has(node.id)).map((node) => node.depth + 1);
  const level = by > 0 ? [...Array(model.depth + 1).keys()].find((depth) => recorded.nodes.some((node) => node.opens && node.depth === depth && !state.open.has(node.id))) : Math.max(0, ...opened) - 1;
  if (level === undefined) return;
  openTo(Math.min(Math.max(by > 0 ? level + 1 : level, 0), model.depth));
  draw();
}
byId("more").onclick = () => shift(1);
byId("fewer").onclick = () => shift(-1);
byId("fit").onclick = fit;
byId("help").onclick = () => byId("keys").showModal();

document.addEventListener("theme", () => { if (picture) tint(); });

let themeBefore = null; // while the page is printed
window.addEventListener("beforeprint", () => { themeBefore ??= document.documentElement.dataset.theme; theme("light"); select(null); fitWhole(720, 860); });
window.addEventListener("afterprint", () => { theme(themeBefore ?? "light"); themeBefore = null; fit(); });

// Colours and steps

const chooser = byId("number");
chooser.append(new Option("by kind", ""), ...numbers.map((number) => new Option(number.title, number.title)));
chooser.onchange = () => { state.number = chooser.value; recolour(); };

function recolour() {
  tint();
  byId("legend").hidden = Boolean(current());
  if (state.selected !== null) details.replaceChildren(card(model.nodes.get(state.selected), true));
}

function toStep(step) {
  const steps = current()?.steps;
  if (!steps) return;
  state.step = Math.min(Math.max(step, 0), steps.length - 1);
  recolour();
}
byId("step").addEventListener("input", (event) => toStep(Number(event.target.value)));

let playing = null;
byId("play").onclick = () => {
  const steps = current()?.steps;
  if (playing || !steps) {
    clearInterval(playing);
    playing = null;
  } else {
    if (state.step === steps.length - 1) toStep(0);
    playing = setInterval(() => {
      toStep(state.step + 1);
      if (!current()?.steps || state.step === current().steps.length - 1) byId("play").click();
    }, Math.max(60, 4000 / steps.length));
  }
  byId("play").textContent = playing ? "❚❚" : "▶";
};

// Keys

function neighbour(key) {
  const here = state.selected;
  const isDrawn = here !== null && elementOf(here);
  if (!isDrawn) return drawn.nodes.find((node) => !node.opens || !state.open.has(node.id));
  const middle = (id) => { const box = elementOf(id).getBoundingClientRect(); return [box.left + box.width / 2, box.top + box.height / 2]; };
  const [x, y] = middle(here);
  const nearest = (ids, distance) => ids.map((id) => [distance(...middle(id)), id]).sort((one, other) => one[0] - other[0])[0]?.[1];
  if (key === "ArrowDown" || key === "ArrowUp") {
    const ids = drawn.edges.filter((edge) => (key === "ArrowDown" ? edge.from : edge.to) === here).map((edge) => (key === "ArrowDown" ? edge.to : edge.from));
    return model.nodes.get(nearest(ids, (atX, atY) => Math.abs(atY - y) + Math.abs(atX - x)));
  }
  const side = key === "ArrowRight" ? 1 : -1;
  const ids = drawn.nodes.filter((node) => node.id !== here && elementOf(node.id)?.classList.contains("node")).map((node) => node.id);
  const beside = ids.filter((id) => (middle(id)[0] - x) * side > 1 && Math.abs(middle(id)[1] - y) < 60 * view.scale + 40);
  return model.nodes.get(nearest(beside, (atX, atY) => Math.abs(atX - x) + 3 * Math.abs(atY - y)));
}

function step(key) {
  const next = neighbour(key);
  if (!next) return;
  select(next);
  const [box, around] = [elementOf(next.id).getBoundingClientRect(), stage.getBoundingClientRect()];
  if (box.left < around.left || box.right > around.right || box.top < around.top || box.bottom > around.bottom) centre(next.id);
}

const KEYS = {
  "/": () => { search.focus(); search.select(); },
  "?": () => byId("keys").showModal(),
  "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8), "−": () => zoom(0.8),
  f: fit, 0: fit, e: () => shift(1), c: () => shift(-1), p: () => byId("parameters").click(), t: () => byId("theme").click(),
  "[": () => toStep(state.step - 1), "]": () => toStep(state.step + 1), " ": () => byId("play").click(),
  ArrowUp: () => step("ArrowUp"), ArrowDown: () => step("ArrowDown"), ArrowLeft: () => step("ArrowLeft"), ArrowRight: () => step("ArrowRight"),
  Enter: () => { if (state.selected !== null) toggle(model.nodes.get(state.selected)); },
  Backspace: () => {
    const frame = state.selected === null ? undefined : model.nodes.get(state.selected).parent;
    if (frame === undefined) return;
    select(model.nodes.get(frame));
    toggle(model.nodes.get(frame));
  },
  Escape: () => select(null),
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA|BUTTON)$/.test(event.target.tagName) || byId("keys").open) return;
  const act = KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

// The beginning

const KINDS = [["module", "module"], ["operation", "operation"], ["input", "input, output"], ["parameter", "parameter"], ["constant", "buffer, constant"]];
byId("legend").append(...KINDS.filter(([kind]) => recorded.nodes.some((node) => node.kind === kind || (kind === "constant" && node.kind === "buffer"))).map(([kind, title]) => {
  const item = make("span");
  const swatch = make("i");
  swatch.style.background = `var(--${kind})`;
  swatch.style.borderColor = `var(--${kind}-line)`;
  item.append(swatch, title);
  return item;
}));
const outer = (recorded.nodes.find((node) => node.kind === "module") ?? {});
byId("totals").textContent = [
  `${recorded.nodes.filter((node) => node.kind === "module").length} module calls`,
  `${recorded.nodes.filter((node) => node.kind === "operation").length} operations`,
  outer.parameters ? `${count(outer.parameters)} parameters` : "",
  outer.flops ? `${count(outer.flops)}FLOP` : "",
  recorded.error ? `ended by ${recorded.error}` : "",
].filter(Boolean).join(" · ");
if (recorded.error) byId("totals").classList.add("warn");

const READABLE = 90; // nodes in the first picture, if the model allows
let depth = recorded.depth ?? 1;
if (recorded.depth === null) while (depth < model.depth && countAt(depth + 1) <= READABLE) depth += 1;
openTo(depth);
if (recorded.error) for (const node of recorded.nodes) if (node.flags.includes("failed")) for (const frame of above(node)) state.open.add(frame);
if (recorded.series?.length) { state.number = recorded.series[0].name; chooser.value = state.number; byId("legend").hidden = true; }
boxes();
draw();
