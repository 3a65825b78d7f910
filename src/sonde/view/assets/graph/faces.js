// The texts on nodes and frames, and the sizes of the boxes around them.
import { groups, isFolded, isSource, member, model, recorded } from "./model.js";
import { costOf, nameOf, shapeOf, shortName, abbreviated, timesOf, typeOf } from "./words.js";

const pen = document.createElement("canvas").getContext("2d");
const fonts = { name: "600 13px", plain: "13px", quiet: "12.5px" };
const widths = new Map();
export function widthOf(text, style) {
  const key = `${style} ${text}`;
  if (!widths.has(key)) {
    pen.font = `${fonts[style]} ${getComputedStyle(document.body).fontFamily}`;
    widths.set(key, Math.ceil(pen.measureText(text).width));
  }
  return widths.get(key);
}

export const LINE = 16;
const BAND = 3; // room below the text for the values of copies, where a run has values
export const OPENS = 12; // room for the sign of a module that can be opened

// What a node shows: lines of parts (a text and its style), the badge of a folded block, and the size of the box around them.
export function faceOf(node, { costs }) {
  const times = isInGroup(node) ? "" : timesOf(node);
  const lines = [];
  if (node.kind === "module") {
    const name = { text: abbreviated(nameOf(node)), style: "name" };
    const type = node.path ? [{ text: abbreviated(typeOf(node)), style: "quiet" }] : [];
    if (type.length && widthOf(name.text, "name") + widthOf(type[0].text, "quiet") > 210) lines.push([name], type);
    else lines.push([name, ...type]);
    const cost = costs ? costOf(node) : "";
    if (cost) lines.push([{ text: cost + (times.startsWith("×") ? " each" : ""), style: "quiet" }]);
  } else {
    lines.push([{ text: abbreviated(shortName(node)), style: "plain" }]);
    if (isSource(node) && node.outputs.length) lines.push([{ text: shapeOf(node.outputs[0]), style: "quiet" }]);
  }
  const wide = (line) => line.reduce((sum, { text, style }) => sum + widthOf(text, style), 7 * (line.length - 1));
  const badge = times ? widthOf(times, "quiet") + 14 : 0;
  const width =
    Math.max(wide(lines[0]) + (node.holds ? OPENS : 0) + (badge ? badge + 8 : 0), ...lines.slice(1).map(wide)) +
    (node.kind === "operation" ? 18 : 24);
  const height = lines.length * LINE + (node.kind === "operation" ? 5 : 9) + (recorded.series?.length ? BAND : 0);
  return { lines, times, badge, wide, width, height };
}

// Whether a folded group of several siblings has a frame around the node, which names the number of copies.
export function isInGroup(node) {
  const part = member.get(node.id);
  return part !== undefined && isFolded(part.number) && groups[part.number].period > 1;
}

const titleOf = (node) => ({
  name: abbreviated(nameOf(node)),
  type: node.path ? abbreviated(node.type) : "",
  times: isInGroup(node) ? "" : timesOf(node),
});

// The forms of a frame's title, the longest first, each with its width: without the class, the name is still there. The width of the
// frame leaves room beside an edge that comes in from above.
export function frameTitle(frame) {
  const parts =
    frame[0] === "g"
      ? { name: "", type: "", times: `× ${groups[Number(frame.slice(1))].count}` }
      : titleOf(model.nodes.get(Number(frame.slice(1))));
  const name = parts.name ? `▾ ${parts.name}` : "";
  const forms = [...new Set([parts.type, ""])].map((type) => ({
    name,
    type,
    times: parts.times,
    wide:
      (name ? widthOf(name, "name") + 7 : 0) +
      (type ? widthOf(type, "quiet") + 7 : 0) +
      (parts.times ? widthOf(parts.times, "quiet") + 21 : 0),
  }));
  return { forms, width: 2 * forms[0].wide + 36 };
}
