// Places numbers on axes and in colours.
import { draw, make, minus, plain, raised } from "./dom.js";

// An axis from low to high, drawn from the pixel first to the pixel last.
export function axis(low, high, first, last, log = false) {
  const on = log ? (value) => Math.log(Math.max(value, Number.MIN_VALUE)) : (value) => value;
  const [start, end] = [on(low), on(high)];
  const scale = (last - first) / (end - start || 1);
  return {
    low,
    high,
    first,
    last,
    log,
    at: (value) => first + (on(value) - start) * scale,
    back: (pixel) => {
      const worth = start + (pixel - first) / scale;
      return log ? Math.exp(worth) : worth;
    },
  };
}

function decades(scale, room) {
  const [least, most] = [Math.ceil(Math.log10(scale.low) - 1e-9), Math.floor(Math.log10(scale.high) + 1e-9)];
  const powers = [];
  const stride = Math.max(1, Math.ceil((most - least + 1) / room));
  for (let power = Math.ceil(least / stride) * stride; power <= most; power += stride) powers.push(power);
  return powers;
}

// Ticks of an axis: at most about `room` of them, as [value, text].
export function ticks(scale, room) {
  if (scale.log) {
    const powers = decades(scale, room);
    const small = (power) => power >= -3 && power <= 4;
    if (Math.log10(scale.high / scale.low) >= 2.6 || powers.length >= 3) {
      const alike = powers.every(small);
      return powers.map((power) => [10 ** power, alike ? plain(10 ** power) : `10${raised(power)}`]);
    }
    const values = [];
    const within = Math.log10(scale.high / scale.low);
    if (within > 0.35) {
      for (let power = Math.floor(Math.log10(scale.low)); power <= Math.ceil(Math.log10(scale.high)); power += 1) {
        for (const head of within > 1.2 ? [1, 3] : [1, 2, 5]) {
          const value = Number(`${head}e${power}`);
          if (value >= scale.low && value <= scale.high) values.push(value);
        }
      }
      if (values.length > 1) return values.map((value) => [value, plain(value, 3)]);
    }
  }
  const span = scale.high - scale.low;
  if (!(span > 0)) return [[scale.low, plain(scale.low, 3)]];
  const rough = span / Math.max(room, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const stride = [1, 2, 5, 10].map((head) => head * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let place = Math.ceil(scale.low / stride - 1e-9); place * stride <= scale.high + stride * 1e-9; place += 1)
    found.push(place === 0 ? 0 : place * stride);
  const largest = Math.max(Math.abs(scale.low), Math.abs(scale.high));
  if (largest >= 1e6 || largest < 1e-3) {
    const common = Math.floor(Math.log10(largest));
    const digits = Math.max(0, common - Math.floor(Math.log10(stride) + 1e-9));
    return found.map((value) => [
      value,
      Math.abs(value) < stride / 2 ? "0" : `${minus((value / 10 ** common).toFixed(digits))}·10${raised(common)}`,
    ]);
  }
  const digits = Math.max(0, -Math.floor(Math.log10(stride) + 1e-9));
  return found.map((value) => [value, digits ? minus(value.toFixed(digits)) : minus(Math.round(value).toLocaleString("en"))]);
}

// Ticks of steps: whole numbers.
export const stepTicks = (scale, room) =>
  ticks(scale, room)
    .filter(([value]) => Number.isInteger(value))
    .map(([value, text]) => [value, text.replace(/\.0+$/, "")]);

// The ends of an axis that holds all the values, with a little room.
export function ends(values, log) {
  let [low, high] = [Infinity, -Infinity];
  for (const list of values) {
    for (const value of list) {
      if (value === null || !Number.isFinite(value) || (log && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (low > high) return log ? [0.1, 1] : [0, 1];
  if (log) {
    const room = Math.max((high / low) ** 0.06, 1.08);
    return [low / room, high * room];
  }
  if (low === high) return low === 0 ? [-1, 1] : low > 0 ? [0, low * 1.3] : [low * 1.3, 0];
  const room = (high - low) * 0.06;
  return [low >= 0 && low < room * 8 ? 0 : low - room, high + room];
}

// Colours. Both ramps are paths in the Oklab space along which the lightness changes evenly: they read in grey, and by those who
// do not tell red from green. (Oklab: B. Ottosson, "A perceptual color space for image processing", 2020.)

function rgb([light, a, b]) {
  const l = (light + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (light - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (light - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((part) => {
    const held = Math.min(Math.max(part, 0), 1);
    return Math.round(255 * (held <= 0.0031308 ? 12.92 * held : 1.055 * held ** (1 / 2.4) - 0.055));
  });
}

function path(stops) {
  const table = new Uint8ClampedArray(256 * 3);
  for (let place = 0; place < 256; place += 1) {
    const at = (place / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    table.set(rgb(stops[low].map((part, index) => part + (stops[low + 1][index] - part) * (at - low))), 3 * place);
  }
  return table;
}

const RAMPS = {
  sequential: path([
    [0.27, 0.015, -0.105],
    [0.435, -0.03, -0.085],
    [0.6, -0.075, -0.01],
    [0.765, -0.07, 0.09],
    [0.93, -0.02, 0.165],
  ]),
  diverging: path([
    [0.36, -0.025, -0.13],
    [0.6, -0.04, -0.1],
    [0.84, 0, 0],
    [0.6, 0.06, 0.1],
    [0.36, 0.075, 0.07],
  ]),
};

export const isDark = () => document.documentElement.dataset.theme === "dark";

// A ramp as 256 colours, three bytes each.
export const ramp = (name) => RAMPS[name] ?? RAMPS.sequential;

export function gradient(name) {
  const table = ramp(name);
  const stops = [0, 32, 64, 96, 128, 159, 191, 223, 255].map(
    (place) => `rgb(${table.slice(3 * place, 3 * place + 3).join(" ")})`,
  );
  return `linear-gradient(90deg, ${stops.join(", ")})`;
}

// Where a value lies on a scale of colours: 0 to 1, beyond them outside. A diverging scale has its middle at 0.5.
export function shareOn(scale) {
  const on = scale.log ? (value) => Math.log(value) : (value) => value;
  const [low, high] = [on(scale.low), on(scale.high)];
  if (scale.middle === undefined) return (value) => (on(value) - low) / (high - low || 1);
  const middle = on(scale.middle);
  return (value) => {
    const worth = on(value);
    return worth < middle ? 0.5 * ((worth - low) / (middle - low || 1)) : 0.5 + 0.5 * ((worth - middle) / (high - middle || 1));
  };
}

// What a cell may be that has no place on the scale. The order is that of the codes in answers: 0 is a value. The lines of a hatch,
// between corners of a square of eight pixels, tell marks from values and from each other where colours do not.
const [RISING, FALLING] = [
  [0, 8, 8, 0],
  [0, 0, 8, 8],
];
export const MARKS = [
  null,
  { name: "not recorded", glyph: "", colour: null },
  { name: "NaN", glyph: "NaN", colour: [224, 17, 157], hatch: [RISING, FALLING], ink: "#fff" },
  { name: "infinite", glyph: "∞", colour: [255, 98, 40], hatch: [RISING], ink: "#000" },
  { name: "−infinity", glyph: "−∞", colour: [178, 36, 24], hatch: [FALLING], ink: "#fff" },
  { name: "exactly 0", glyph: "0", colour: [217, 208, 240], hatch: [[3, 4, 5, 4]], ink: "#4a4658" },
  { name: "NaN or infinite", glyph: "NaN∞", colour: [190, 30, 110], hatch: [RISING, FALLING], ink: "#000" },
];

// A square of a hatch; many beside each other have lines without breaks.
const tiles = new Map();
export function hatchOf(mark, density = 1) {
  const key = `${mark} ${density}`;
  if (!tiles.has(key)) {
    const tile = make("canvas", { width: 8 * density, height: 8 * density });
    const pen = tile.getContext("2d");
    pen.scale(density, density);
    Object.assign(pen, { strokeStyle: MARKS[mark].ink, lineWidth: 1.4, lineCap: "square" });
    for (const [x, y, right, below] of MARKS[mark].hatch)
      for (const [across, down] of [
        [0, 0],
        [-8, 0],
        [8, 0],
      ]) {
        pen.beginPath();
        pen.moveTo(x + across, y + down);
        pen.lineTo(right + across, below + down);
        pen.stroke();
      }
    tiles.set(key, tile);
  }
  return tiles.get(key);
}

// The ground of a mark in a legend.
export const groundOf = (mark) => `url(${hatchOf(mark).toDataURL()}) rgb(${MARKS[mark].colour.join(" ")})`;

// Colours of lines that are told apart: also in lightness, for the colour-blind.
export const LINES = {
  light: ["#3b3fa8", "#d4730a", "#17827a", "#b0327f", "#6b6f1a", "#4a8fd6", "#8c4a2f", "#7a7f8c"],
  dark: ["#a9a5ff", "#ffb14a", "#4fd0bf", "#ff8fc9", "#d4d36a", "#7dbcff", "#e0a080", "#a7acb8"],
};
export const lineColour = (place) => LINES[isDark() ? "dark" : "light"][place % 8];
export const lineDash = (place) => [null, "6 3", "2 3"][Math.floor(place / 8) % 3]; // colours repeat with another dash

// The name of a horizontal axis: a short one before its first number, a long one behind its last.
export const axisText = (name, left, right, y) =>
  name.length < 8
    ? draw("text", { x: left - 8, y, "text-anchor": "end" }, name)
    : draw("text", { x: right, y: y + 14, "text-anchor": "end" }, name);
