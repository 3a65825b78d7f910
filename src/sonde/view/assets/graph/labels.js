// Finds places for texts that no edge strikes through.
import { divided } from "./columns.js";

export const TITLE = 20; // height of a frame's title

export function sampled({ points, straight, before = [] }) {
  if (straight) return points;
  const found = [...before];
  for (let at = 0; at + 3 < points.length; at += 3)
    for (let step = 0; step < 8; step += 1) found.push(divided(points.slice(at, at + 4), step / 8)[0][3]);
  found.push(points.at(-1));
  return found;
}

// Where a frame's title stands, of which *forms* gives the widths, the longest first: the longest that fits, at the left or in the
// first space between the edges that run through the row. Where none fits, the shortest stands at the left, and is struck.
export function titlePlace(frame, forms, lines) {
  const struck = [];
  for (const line of lines) {
    for (let at = 1; at < line.length; at += 1) {
      const [[x, y], [toX, toY]] = [line[at - 1], line[at]];
      if (Math.max(y, toY) < frame.top || Math.min(y, toY) > frame.top + TITLE + 4) continue;
      const [left, right] = [Math.min(x, toX), Math.max(x, toX)];
      if (right > frame.left && left < frame.right) struck.push([left - 5, right + 5]);
    }
  }
  struck.sort((one, other) => one[0] - other[0]);
  for (const [form, wide] of forms.entries()) {
    let x = frame.left + 10;
    for (const [left, right] of struck) {
      if (left >= x + wide) break;
      x = Math.max(x, right);
    }
    if (x + wide <= frame.right - 4) return { x, form, free: true };
  }
  return { x: frame.left + 10, form: forms.length - 1, free: false };
}

const MOST_TRIED = 20; // heights along an edge

// The shapes of tensors beside the edges, once for each tensor; a shape without free space is left out, and is in the details.
export function shapePlaces({ boxes, frames, edges }, titles, lines, texts) {
  const borders = [...frames.values()].flat().flatMap(({ left, right, top, bottom }) => [
    [
      [left, top],
      [right, top],
      [right, bottom],
      [left, bottom],
      [left, top],
    ],
  ]);
  const struck = [...lines, ...borders];
  const taken = [...boxes.values(), ...titles];
  const found = [];
  const said = new Set();
  const isStruck = (box, line) =>
    line.some(([x, y], at) => {
      if (!at) return false;
      const [fromX, fromY] = line[at - 1];
      return (
        Math.max(x, fromX) > box.left - 2 &&
        Math.min(x, fromX) < box.right + 2 &&
        Math.max(y, fromY) > box.top &&
        Math.min(y, fromY) < box.bottom
      );
    });
  const isFree = (box) =>
    taken.every(
      (other) => box.right < other.left || box.left > other.right || box.bottom < other.top || box.top > other.bottom,
    ) && !struck.some((line) => isStruck(box, line));
  for (const [place, { from, to, straight }] of edges.entries()) {
    const { text, wide } = texts.get(`${from}_${to}`);
    if (said.has(`${from} ${text}`)) continue;
    const line = lines[place];
    const [start, end] = [boxes.get(from), boxes.get(to)];
    const beside = (y) =>
      line
        .filter(([, atY]) => Math.abs(atY - y) < 9)
        .flatMap(([x]) => [x + 7, x - wide - 7])
        .map((left) => ({ left, right: left + wide, top: y - 7, bottom: y + 6 }));
    const heights = [start.bottom + 13, start.bottom + 18, end.top - 13];
    for (let y = start.bottom + 23; y < end.top - 13 && heights.length < MOST_TRIED; y += 5) heights.push(y);
    const spot = straight ? undefined : heights.flatMap(beside).find(isFree);
    if (!spot) continue;
    taken.push(spot);
    said.add(`${from} ${text}`);
    found.push({ text, x: spot.left, y: spot.top + 7 });
  }
  return found;
}
