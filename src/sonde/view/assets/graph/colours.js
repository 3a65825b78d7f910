// Colours nodes by a number: one that the graph holds, or a statistic of a run at one of its steps; and the legend of the colours.
import { amount, byId, draw, make, plain } from "../app/dom.js";
import { MARKS, gradient, groundOf, ramp, shareOn } from "../app/scales.js";
import { boxOf, drawn } from "./drawing.js";
import { model, recorded, state } from "./model.js";
import { picture } from "./view.js";
import { analogues } from "./words.js";

export const duration = (seconds) =>
  seconds < 1e-3
    ? `${Math.round(seconds * 1e6)} µs`
    : seconds < 1
      ? `${Number((seconds * 1e3).toPrecision(3))} ms`
      : `${Number(seconds.toPrecision(3))} s`;

// Facts of the graph that are numbers: field, title, unit, text of a value, and what a zero means.
const RECORDED = [
  {
    field: "flops",
    title: "FLOPs",
    unit: "multiplications and additions of one forward",
    text: (value) => amount(value, "FLOP"),
    zero: "no FLOPs counted",
  },
  { field: "parameters", title: "parameters", unit: "number of elements", text: amount, zero: "no parameters" },
  {
    field: "bytes",
    title: "activation memory",
    unit: "bytes of new tensors",
    text: (value) => amount(value, "B"),
    zero: "no new memory",
  },
  { field: "seconds", title: "forward time", unit: "time on the host", text: duration, zero: "below the clock’s resolution" },
];

export const numbers = [
  ...RECORDED.filter(({ field }) => recorded.nodes.some((node) => node[field])).map(({ field, title, unit, text, zero }) => ({
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

export const current = () => numbers.find((number) => number.title === state.number) ?? null;

// The ink that is read on a colour: the contrast of black or white with any is 4.5 or more.
export function inkOn(rgb) {
  const [red, green, blue] = rgb.map((part) => (part <= 10 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
}

// The colour of a value on the live page's ramp, as parts of red, green and blue.
export function shade(share, isSigned = scale?.signed) {
  const place = 3 * Math.round(255 * Math.min(Math.max(share, 0), 1));
  return [...ramp(isSigned ? "diverging" : "sequential").slice(place, place + 3)];
}
const colourOf = (rgb) => `rgb(${rgb.join(" ")})`;

// The scale of a number over all its nodes and steps, so that colours of different steps can be compared. That of a run's number
// comes with the data: some values may lie beyond its ends.
function scaleOf(number) {
  if (number.steps) return number.scale && { ...number.scale, share: shareOn(number.scale) };
  const values = recorded.nodes.map((node) => number.of(node)).filter((value) => typeof value === "number" && value !== 0);
  if (!values.length) return null;
  const [low, high] = values.reduce(
    ([least, most], value) => [Math.min(least, value), Math.max(most, value)],
    [Infinity, -Infinity],
  );
  const held = { log: low > 0 && high / low > 50, low: low > 0 && high / low <= 50 ? 0 : low, high };
  return { ...held, share: shareOn(held) };
}

// Values that have no place on the scale have a mark, which the legend names: that of the live page, by its place in MARKS, or one
// that says on which side of the scale the value lies.
const [MISSING, NAN, INFINITE, NEGATIVE, ZERO] = [1, 2, 3, 4, 5];
const CLASSES = { [MISSING]: "missing", [NAN]: "nan", [INFINITE]: "infinite", [NEGATIVE]: "negative", [ZERO]: "zero" };
const NAMES = {
  below: () => `below the scale, down to ${current().text(scale.least)}`,
  above: () => `above the scale, up to ${current().text(scale.most)}`,
};

export function markOf(value, isZeroMarked, held = scale) {
  if (value === null) return MISSING;
  if (typeof value !== "number") return value === "NaN" ? NAN : value === "−∞" ? NEGATIVE : INFINITE;
  if (value === 0 && isZeroMarked) return ZERO;
  if (typeof held?.least === "number" && value < held.low) return "below";
  return typeof held?.most === "number" && value > held.high ? "above" : null;
}

// The colour of a mark under a curve.
export const markColour = (value) => colourOf(MARKS[markOf(value, true, null)].colour);

// Zero lies on a scale that is neither logarithmic nor signed, unless it says that there is no such number.
const marks = (number, value) => markOf(value, !number.steps || !scale || scale.log || scale.signed);

function nameMarks(found) {
  const sign = (style, name) => make("span", { class: "sign" }, make("i", style), name);
  byId("marks").replaceChildren(
    ...Object.keys(NAMES)
      .filter((mark) => found.has(mark))
      .map((mark) => sign({ class: mark, style: { background: colourOf(shade(mark === "below" ? 0 : 1)) } }, NAMES[mark]())),
    ...[NAN, INFINITE, NEGATIVE, ZERO]
      .filter((mark) => found.has(mark))
      .map((mark) =>
        mark === ZERO && !current().steps
          ? sign({ class: "none" }, current().zero)
          : sign({ style: { background: groundOf(mark) } }, MARKS[mark].name),
      ),
    ...(found.has(MISSING) ? [sign({ class: "void" }, MARKS[MISSING].name)] : []),
  );
}

let scale = null;
let isTinted = false;

function nameScale(number) {
  byId("ramp").hidden = !scale;
  byId("unit").textContent = number ? [number.unit, scale?.log ? "logarithmic" : ""].filter(Boolean).join(", ") : "";
  byId("steps").hidden = !number?.steps;
  if (scale) {
    byId("low").textContent = number.text(scale.low);
    byId("high").textContent = number.text(scale.high);
    byId("ramp").querySelector("i").style.background = gradient(scale.signed ? "diverging" : "sequential");
  }
  if (number?.steps) {
    const slider = byId("step");
    slider.max = String(number.steps.length - 1);
    state.step = Math.min(state.step, number.steps.length - 1);
    slider.value = String(state.step);
    const said = `step ${plain(number.steps[state.step])}`;
    byId("at").textContent = said;
    slider.setAttribute("aria-valuetext", said);
  }
}

// What a value is shown in: a fill, the ink on it and its mark; the fill is empty where there is none.
function lookOf(number, value, applies) {
  const mark = value !== null || applies ? marks(number, value) : null;
  if (mark === null && value === null) return { fill: "", ink: "", mark };
  if (MARKS[mark]?.colour && number.steps)
    return { fill: colourOf(MARKS[mark].colour), band: `url(#mark${mark})`, ink: inkOn(MARKS[mark].colour), mark };
  if (mark in CLASSES || !scale) return { fill: "", ink: "", mark };
  const colour = shade(scale.share(value));
  return { fill: colourOf(colour), ink: inkOn(colour), mark };
}

// The hatch of a mark along the lower edge of a box, where it strikes through no text.
function bandOn(element, shape, fill) {
  element.querySelector(":scope > .band")?.remove();
  if (!fill) return;
  const [width, height] = ["width", "height"].map((name) => Number(shape.getAttribute(name)));
  element.append(draw("rect", { class: "band", x: 8, y: height - 5, width: width - 16, height: 4, style: { fill } }));
}

export function tint() {
  const number = current();
  scale = number ? scaleOf(number) : null;
  nameScale(number);
  picture?.classList.toggle("tinting", Boolean(number));
  if (!number && !isTinted) return;
  isTinted = Boolean(number);
  const found = new Set();
  for (const node of drawn.nodes) {
    const element = boxOf(node.id);
    const shape = element?.querySelector("rect.box, rect");
    if (!shape) continue;
    const isFrame = element.classList.contains("cluster");
    const strip = element.querySelector(".strip");
    const isMany = Boolean(strip && number?.steps); // the copies of a folded block have values of their own
    const none = { fill: "", ink: "", mark: null };
    if (strip)
      [...analogues(node)].forEach((id, at) => {
        const value = isMany ? number.of(model.nodes.get(id), state.step) : null;
        const { fill, band, mark } = isMany ? lookOf(number, value, number.applies(node)) : none;
        if (mark !== null) found.add(mark);
        strip.children[at].setAttribute("class", CLASSES[mark] ?? "");
        strip.children[at].style.fill = band ?? fill;
      });
    const look = number && !isMany ? lookOf(number, number.of(node, state.step), number.applies(node)) : none;
    const { fill, band, ink, mark } = look;
    if (mark !== null && !isFrame) found.add(mark);
    element.classList.toggle("tinted", fill !== "" && !isFrame);
    if (!isFrame) bandOn(element, shape, band);
    for (const [each, name] of Object.entries(CLASSES)) element.classList.toggle(name, Number(each) === mark && !isFrame);
    element.classList.toggle("clipped", (mark === "below" || mark === "above") && !isFrame);
    shape.style.fill = fill;
    shape.style.fillOpacity = fill && isFrame ? "0.13" : "";
    element.style.setProperty("--on", ink);
  }
  nameMarks(found);
}

const KINDS = [
  ["module", "module"],
  ["operation", "operation"],
  ["input", "input, output"],
  ["parameter", "parameter"],
  ["constant", "buffer, constant"],
];
export function nameKinds() {
  const there = new Set(drawn.nodes.map(({ kind }) => (kind === "buffer" ? "constant" : kind === "output" ? "input" : kind)));
  byId("legend").replaceChildren(
    ...KINDS.filter(([kind]) => there.has(kind)).map(([kind, title]) =>
      make(
        "span",
        { class: "sign" },
        make("i", { style: { background: `var(--${kind})`, "border-color": `var(--${kind}-line)` } }),
        title,
      ),
    ),
  );
}
