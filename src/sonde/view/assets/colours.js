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
    title: series.name, text: plain, steps: series.steps, scale: series.scale,
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

// The scale of a number over all its nodes and steps, so that colours of different steps can be compared. That of a run's number
// comes with the data: some values may lie beyond its ends.
function scaleOf(number) {
  if (number.steps) return number.scale && withShare(number.scale);
  const values = recorded.nodes.map((node) => number.of(node)).filter((value) => typeof value === "number");
  if (!values.length) return null;
  const ends = (list) => list.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]);
  const [low, high] = ends(values);
  const [positive] = ends(values.filter((value) => value > 0));
  return low >= 0 && high / positive > 50 ? withShare({ log: true, low: positive, high }) : withShare({ log: false, low, high });
}

function withShare({ log, low, high, least = null, most = null }) {
  const at = (value) => (log ? Math.log(Math.max(value, Number.MIN_VALUE)) : value);
  return { log, low, high, least, most, share: (value) => (at(value) - at(low)) / (at(high) - at(low) || 1) };
}

// Values that have no place on the scale have a mark, which the legend names.
const MARKS = {
  below: () => `below the scale, down to ${plain(scale.least)}`,
  above: () => `above the scale, up to ${plain(scale.most)}`,
  nan: () => "NaN",
  infinite: () => "infinite",
  zero: () => "exactly 0",
  missing: () => "not recorded",
};

// The colours of what is no number, and of the text on them: neither is on the ramp.
const DEFECTS = { nan: ["#e0119d", "#ffffff"], infinite: ["#1467d6", "#ffffff"] };

function markOf(value) {
  if (value === null) return "missing";
  if (typeof value !== "number") return value === "NaN" ? "nan" : "infinite";
  if (scale?.log && value === 0) return "zero";
  if (scale?.least != null && value < scale.low) return "below";
  return scale?.most != null && value > scale.high ? "above" : null;
}

function nameMarks(marks) {
  document.getElementById("marks").replaceChildren(...Object.keys(MARKS).filter((mark) => marks.has(mark)).map((mark) => {
    const item = make("span");
    const swatch = make("i", mark);
    if (mark === "below" || mark === "above") swatch.style.background = shade(mark === "below" ? 0 : 1)[0];
    item.append(swatch, MARKS[mark]());
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
    const defect = DEFECTS[mark];
    const shown = value !== null && (scale !== null || defect !== undefined);
    element.classList.toggle("tinted", shown && !isFrame);
    element.classList.toggle("zero", mark === "zero" && !isFrame);
    element.classList.toggle("clipped", (mark === "below" || mark === "above") && !isFrame);
    if (!shown) {
      shape.style.fill = "";
      shape.style.fillOpacity = "";
      continue;
    }
    const [fill, ink] = defect ?? (mark === "zero" ? ["var(--paper)", "var(--ink)"] : shade(scale.share(value)));
    shape.style.fill = fill;
    shape.style.fillOpacity = isFrame ? "0.13" : "";
    element.style.setProperty("--on", ink);
  }
  nameMarks(marks);
}
