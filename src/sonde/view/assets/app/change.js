// How far each layer is from its own median: in a healthy run all is calm, and what moves stands out.
import { make } from "./dom.js";

const REACH = 10; // the ends of the colours: a tenth of the median, and ten times; the same for every number
const CHANGES = ["size"]; // the kinds of numbers that have a change

// A picture of changes, made of one of sizes: values are shares of the median of each row, which folded rows are already. What it is made
// of stays beside it (absolute), for words at the pointer.
export function changeOf(found) {
  const values = new Float32Array(found.values.length);
  const shown = new Float32Array(found.values.length);
  let [least, most] = [Infinity, 0];
  for (let row = 0; row < found.rows; row += 1) {
    const median = found.reference[row];
    for (let at = row * found.columns; at < (row + 1) * found.columns; at += 1) {
      values[at] = shareOf(found.values[at], median);
      shown[at] = shareOf(found.shown[at], median);
      if (found.shownMarks[at] !== 0 || !Number.isFinite(shown[at])) continue;
      least = Math.min(least, shown[at]);
      most = Math.max(most, shown[at]);
    }
  }
  return {
    ...found,
    values,
    shown,
    absolute: found,
    label: `${found.label} / the median of its row${beforeOf(found)}`,
    unit: "",
    scale: {
      low: 1 / REACH,
      high: REACH,
      middle: 1,
      log: true,
      diverging: true,
      least: least < most ? least : null,
      most: least < most ? most : null,
    },
  };
}

// In words which part of the run the medians are of, if not of all.
export const beforeOf = ({ before }) => (before === null || before === undefined ? "" : ` before step ${before}`);

// Of a row whose median is 0 what is more has no share: it is beyond the colours.
const shareOf = (value, median) => (median > 0 ? value / median : value > 0 ? Infinity : 1);

export const hasChange = (number, found) => CHANGES.includes(number?.kind) && found.columns > 2 && found.reference !== undefined;

// A choice between change and size.
export function changeChooser(mode, onchange) {
  const select = make(
    "select",
    { "aria-label": "What is shown", onchange: () => onchange(select.value) },
    [
      ["change", "change against its median"],
      ["size", "size"],
    ].map(([value, text]) => make("option", { value, selected: value === mode }, text)),
  );
  return select;
}
