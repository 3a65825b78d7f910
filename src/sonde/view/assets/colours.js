// Colours nodes by a number: one that the graph holds, or a statistic of a run at one of its steps; and the legend of the colours.
"use strict";

const count = (number) => {
  const size = Math.abs(number);
  for (const [power, letter] of [
    [4, "T"],
    [3, "G"],
    [2, "M"],
    [1, "k"],
  ]) {
    if (size >= 999.5 * 1000 ** (power - 1)) return `${Number((number / 1000 ** power).toPrecision(3))} ${letter}`;
  }
  return `${Number(number.toPrecision(3))}${size < 999.5 ? " " : ""}`;
};
const counted = (number) => count(number).trim();
const duration = (seconds) =>
  seconds < 1e-3
    ? `${Math.round(seconds * 1e6)} µs`
    : seconds < 1
      ? `${Number((seconds * 1e3).toPrecision(3))} ms`
      : `${Number(seconds.toPrecision(3))} s`;
const plain = (value) => {
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
};

// Facts of the graph that are numbers: field, title, unit, text of a value, and what a zero means.
const RECORDED = [
  ["flops", "FLOPs", "multiplications and additions of one forward", (value) => `${count(value)}FLOP`, "no FLOPs counted"],
  ["parameters", "parameters", "number of elements", counted, "no parameters"],
  ["bytes", "activation memory", "bytes of new tensors", (value) => `${count(value)}B`, "no new memory"],
  ["seconds", "forward time", "time on the host", duration, "below the clock’s resolution"],
];

const numbers = [
  ...RECORDED.filter(([field]) => recorded.nodes.some((node) => node[field])).map(([field, title, unit, text, zero]) => ({
    title,
    label: title,
    unit,
    text,
    zero,
    steps: null,
    applies: (node) =>
      node.kind === "operation"
        ? field !== "parameters"
        : node.kind === "module" || (field === "parameters" && node.kind === "parameter"),
    of(node) {
      return this.applies(node) ? (node[field] ?? 0) : null;
    },
  })),
  ...(recorded.series ?? []).map((series) => {
    const isOfParameters = Object.keys(series.of).every((key) => key.startsWith("tensor "));
    const found = new Map();
    const all = (node) => {
      if (!isOfParameters || node.kind !== "module") return series.of[keyOf(node)] ?? null;
      if (!found.has(node.id))
        found.set(
          node.id,
          largest(
            parametersOf(node)
              .map((parameter) => series.of[keyOf(parameter)])
              .filter(Boolean),
          ),
        );
      return found.get(node.id);
    };
    return {
      title: series.name,
      label: series.label,
      text: plain,
      zero: "exactly 0",
      steps: series.steps,
      scale: series.scale,
      all,
      unit: [series.unit === "no unit" ? "" : series.unit, isOfParameters ? "largest of a layer’s parameters" : ""]
        .filter(Boolean)
        .join(", "),
      of: (node, step) => all(node)?.[step] ?? null,
      applies: (node) => node.kind === "module" && (!isOfParameters || parametersOf(node).length > 0),
    };
  }),
];

const parametersOf = (node) => (model.inside.get(node.id) ?? []).filter(({ kind }) => kind === "parameter");

// At each step the value of greatest magnitude; a value that is no number stands for all.
function largest(series) {
  if (series.length < 2) return series[0] ?? null;
  const worst = (one, other) => {
    if (one === null || other === null) return one ?? other;
    if (typeof one !== "number" || typeof other !== "number") return typeof one !== "number" ? one : other;
    return Math.abs(other) > Math.abs(one) ? other : one;
  };
  return series[0].map((_, step) => series.map((values) => values[step]).reduce(worst));
}

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

// Even in lightness, also without colour vision: cividis for sizes, green to purple about zero.
const STOPS = {
  sequential: [
    [0, 34, 78],
    [53, 69, 108],
    [102, 105, 112],
    [148, 142, 119],
    [200, 184, 102],
    [254, 232, 56],
  ],
  diverging: [
    [0, 68, 27],
    [90, 174, 97],
    [217, 240, 211],
    [247, 247, 247],
    [231, 212, 232],
    [153, 112, 171],
    [64, 0, 75],
  ],
};
const stopsOf = (held) => (held?.signed ? STOPS.diverging : STOPS.sequential);

function shade(share, held = scale) {
  const stops = stopsOf(held);
  const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(at), stops.length - 2);
  const rgb = stops[low].map((part, index) => Math.round(part + (stops[low + 1][index] - part) * (at - low)));
  const light = (rgb[0] * 299 + rgb[1] * 587 + rgb[2] * 114) / 1000 > 118;
  return [`rgb(${rgb.join(" ")})`, light ? "#101218" : "#ffffff"];
}

// The scale of a number over all its nodes and steps, so that colours of different steps can be compared. That of a run's number
// comes with the data: some values may lie beyond its ends.
function scaleOf(number) {
  if (number.steps) return number.scale && withShare(number.scale);
  const values = recorded.nodes.map((node) => number.of(node)).filter((value) => typeof value === "number" && value !== 0);
  if (!values.length) return null;
  const [low, high] = values.reduce(
    ([least, most], value) => [Math.min(least, value), Math.max(most, value)],
    [Infinity, -Infinity],
  );
  return withShare({ log: low > 0 && high / low > 50, low: low > 0 && high / low <= 50 ? 0 : low, high });
}

function withShare({ log, low, high, least = null, most = null, signed = false }) {
  const at = (value) => (log ? Math.log(Math.max(value, Number.MIN_VALUE)) : value);
  return { log, low, high, least, most, signed, share: (value) => (at(value) - at(low)) / (at(high) - at(low) || 1) };
}

// Values that have no place on the scale have a mark, which the legend names.
const MARKS = {
  below: () => `below the scale, down to ${current().text(scale.least)}`,
  above: () => `above the scale, up to ${current().text(scale.most)}`,
  nan: () => "NaN",
  infinite: () => "infinite",
  zero: () => current().zero,
  missing: () => "not recorded",
};

// The colours of what is no number, and of the text on them: neither is on the ramp.
const DEFECTS = { nan: ["#e0119d", "#ffffff"], infinite: ["#c8102e", "#ffffff"] };

function markOf(value) {
  if (value === null) return "missing";
  if (typeof value !== "number") return value === "NaN" ? "nan" : "infinite";
  if (value === 0) return "zero";
  if (scale?.least != null && value < scale.low) return "below";
  return scale?.most != null && value > scale.high ? "above" : null;
}

function nameMarks(marks) {
  document.getElementById("marks").replaceChildren(
    ...Object.keys(MARKS)
      .filter((mark) => marks.has(mark))
      .map((mark) => {
        const item = make("span");
        const swatch = make("i", mark);
        if (mark === "below" || mark === "above") swatch.style.background = shade(mark === "below" ? 0 : 1)[0];
        item.append(swatch, MARKS[mark]());
        return item;
      }),
  );
}

let scale = null;
let isTinted = false;

function nameScale(number) {
  document.getElementById("ramp").hidden = !scale;
  document.getElementById("unit").textContent = number
    ? [number.unit, scale?.log ? "logarithmic" : ""].filter(Boolean).join(", ")
    : "";
  document.getElementById("steps").hidden = !number?.steps;
  if (scale) {
    document.getElementById("low").textContent = number.text(scale.low);
    document.getElementById("high").textContent = number.text(scale.high);
    document.querySelector("#ramp i").style.background = `linear-gradient(90deg, ${stopsOf(scale)
      .map((rgb) => `rgb(${rgb.join(" ")})`)
      .join(", ")})`;
  }
  if (number?.steps) {
    const slider = document.getElementById("step");
    slider.max = String(number.steps.length - 1);
    state.step = Math.min(state.step, number.steps.length - 1);
    slider.value = String(state.step);
    document.getElementById("at").textContent = `step ${number.steps[state.step]}`;
    slider.setAttribute("aria-valuetext", `step ${number.steps[state.step]}`);
  }
}

function tintCell(cell, value, applies, marks) {
  const mark = value !== null || applies ? markOf(value) : null;
  if (mark) marks.add(mark);
  cell.setAttribute("class", mark ?? "");
  const isShown = value !== null && mark !== "zero" && (scale !== null || DEFECTS[mark] !== undefined);
  cell.style.fill = isShown ? (DEFECTS[mark] ?? shade(scale.share(value)))[0] : "";
}

function tint() {
  const number = current();
  scale = number ? scaleOf(number) : null;
  nameScale(number);
  picture?.classList.toggle("tinting", Boolean(number));
  if (!number && !isTinted) return;
  isTinted = Boolean(number);
  const marks = new Set();
  for (const node of drawn.nodes) {
    const element = boxOf(node.id);
    const shape = element?.querySelector("rect.box, rect");
    if (!shape) continue;
    const isFrame = element.classList.contains("cluster");
    const strip = element.querySelector(".strip");
    const isMany = Boolean(strip && number?.steps); // the copies of a folded block have values of their own
    if (strip)
      [...analogues(node)].forEach((id, at) =>
        tintCell(
          strip.children[at],
          isMany ? number.of(model.nodes.get(id), state.step) : null,
          isMany && number.applies(node),
          marks,
        ),
      );
    const value = isMany ? null : (number?.of(node, state.step) ?? null);
    const mark = number && !isMany && (value !== null || number.applies(node)) ? markOf(value) : null;
    if (mark && !isFrame) marks.add(mark);
    const defect = DEFECTS[mark];
    const shown = value !== null && mark !== "zero" && (scale !== null || defect !== undefined);
    element.classList.toggle("tinted", shown && !isFrame);
    for (const name of ["zero", "missing"]) element.classList.toggle(name, mark === name && !isFrame);
    element.classList.toggle("clipped", (mark === "below" || mark === "above") && !isFrame);
    shape.style.fill = "";
    shape.style.fillOpacity = "";
    if (!shown) continue;
    const [fill, ink] = defect ?? shade(scale.share(value));
    shape.style.fill = fill;
    shape.style.fillOpacity = isFrame ? "0.13" : "";
    element.style.setProperty("--on", ink);
  }
  nameMarks(marks);
}
