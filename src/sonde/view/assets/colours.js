// Colours nodes by a number: one that the graph holds, or a statistic of a run at one of its steps.
"use strict";

const RECORDED = [
  ["flops", "FLOPs", (value) => `${count(value)}`],
  ["parameters", "parameters", (value) => count(value)],
  ["bytes", "activation memory", (value) => `${count(value)}B`],
  ["seconds", "forward time", (value) => duration(value)],
];

const count = (number) => {
  const size = Math.abs(number);
  for (const [power, letter] of [[4, "T"], [3, "G"], [2, "M"], [1, "k"]]) {
    if (size >= 999.5 * 1000 ** (power - 1)) return `${Number((number / 1000 ** power).toPrecision(3))} ${letter}`;
  }
  return String(Number(number.toPrecision(3)));
};
const duration = (seconds) => (seconds < 1e-3 ? `${Math.round(seconds * 1e6)} µs` : seconds < 1 ? `${Number((seconds * 1e3).toPrecision(3))} ms` : `${Number(seconds.toPrecision(3))} s`);
const plain = (value) => {
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
};

const numbers = [
  ...RECORDED.filter(([field]) => recorded.nodes.some((node) => node[field])).map(([field, title, text]) => ({
    title, text, steps: null, of: (node) => (node.kind === "operation" || node.kind === "module" || field === "parameters" ? node[field] ?? 0 : null),
  })),
  ...(recorded.series ?? []).map((series) => ({
    title: series.name, text: plain, steps: series.steps,
    all: (node) => series.of[keyOf(node)] ?? null,
    of: (node, step) => series.of[keyOf(node)]?.[step] ?? null,
  })),
];

// Operations show the statistic of their module if they made what it returned.
function keyOf(node) {
  if (node.kind === "operation") {
    const frame = node.parent === undefined ? null : model.nodes.get(node.parent);
    return frame && node.outputs.some((value) => frame.outputs.includes(value)) ? `module ${frame.path ?? ""}` : "";
  }
  if (node.kind === "module") return `module ${node.path ?? ""}`;
  return node.kind === "parameter" || node.kind === "buffer" ? `tensor ${node.path}` : "";
}

const current = () => numbers.find((number) => number.title === state.number) ?? null;

const STOPS = {
  light: [[255, 247, 214], [253, 200, 112], [240, 128, 60], [194, 51, 77], [107, 17, 96]],
  dark: [[48, 32, 74], [123, 45, 107], [201, 72, 79], [240, 138, 62], [251, 224, 138]],
};

function shade(share) {
  const stops = STOPS[document.documentElement.dataset.theme] ?? STOPS.light;
  const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(at), stops.length - 2);
  const rgb = stops[low].map((part, index) => Math.round(part + (stops[low + 1][index] - part) * (at - low)));
  const light = (rgb[0] * 299 + rgb[1] * 587 + rgb[2] * 114) / 1000 > 140;
  return [`rgb(${rgb.join(" ")})`, light ? "#17181d" : "#ffffff"];
}

// The scale of a number over all its nodes and steps, so that colours of different steps can be compared.
function scaleOf(number) {
  const values = [];
  for (const node of recorded.nodes) {
    const held = number.steps ? number.all(node) ?? [] : [number.of(node)];
    for (const value of held) if (typeof value === "number") values.push(value);
  }
  const positive = values.filter((value) => value > 0);
  if (!values.length) return null;
  const [low, high] = [values, positive].map((list) => list.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]));
  if (values.every((value) => value >= 0) && positive.length && high[1] / high[0] > 50) {
    const [least, most] = [Math.log(high[0]), Math.log(high[1])];
    return { log: true, low: high[0], high: high[1], share: (value) => (value > 0 ? (Math.log(value) - least) / (most - least || 1) : 0) };
  }
  return { log: false, low: low[0], high: low[1], share: (value) => (value - low[0]) / (low[1] - low[0] || 1) };
}

// Values that have no place on the scale have a mark, which the legend names.
const MARKS = { broken: "NaN or infinite", zero: "exactly 0", missing: "not recorded" };

function markOf(value) {
  if (value === null) return "missing";
  if (typeof value !== "number") return "broken";
  return scale?.log && value === 0 ? "zero" : null;
}

function nameMarks(marks) {
  document.getElementById("marks").replaceChildren(...Object.keys(MARKS).filter((mark) => marks.has(mark)).map((mark) => {
    const item = make("span");
    item.append(make("i", mark), MARKS[mark]);
    return item;
  }));
}

let scale = null;

function tint() {
  const number = current();
  scale = number ? scaleOf(number) : null;
  document.getElementById("ramp").hidden = !scale;
  document.getElementById("steps").hidden = !number?.steps;
  if (scale) {
    document.getElementById("low").textContent = number.text(scale.low);
    document.getElementById("high").textContent = number.text(scale.high);
  }
  if (number?.steps) {
    const slider = document.getElementById("step");
    slider.max = String(number.steps.length - 1);
    state.step = Math.min(state.step, number.steps.length - 1);
    slider.value = String(state.step);
    document.getElementById("at").textContent = `step ${number.steps[state.step]}`;
  }
  const marks = new Set();
  picture?.classList.toggle("tinting", Boolean(number));
  for (const node of drawn.nodes) {
    const element = elementOf(node.id);
    const shape = element?.querySelector("path, polygon, ellipse");
    if (!shape) continue;
    const isFrame = element.classList.contains("cluster");
    const value = number?.of(node, state.step) ?? null;
    const mark = number ? markOf(value) : null;
    if (mark && !isFrame && (mark !== "missing" || node.kind === "module")) marks.add(mark);
    const shown = value !== null && (scale !== null || mark === "broken");
    element.classList.toggle("tinted", shown && !isFrame);
    element.classList.toggle("zero", mark === "zero" && !isFrame);
    if (!shown) {
      shape.style.fill = "";
      shape.style.fillOpacity = "";
      continue;
    }
    const [fill, ink] = mark === "broken" ? ["#e0119d", "#ffffff"] : mark === "zero" ? ["var(--paper)", "var(--ink)"] : shade(scale.share(value));
    shape.style.fill = fill;
    shape.style.fillOpacity = isFrame ? "0.13" : "";
    element.style.setProperty("--on", ink);
  }
  nameMarks(marks);
}
