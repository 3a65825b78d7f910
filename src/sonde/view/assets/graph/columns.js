// Cuts a tall picture between rows, where few edges run, and places its parts beside each other.

export const LEGIBLE = 0.96; // the scale from which on text, then of 12 pixels, is read without zooming
export const WHOLE = 0.8; // the least scale at which all of a picture is better than a part of it
export const LARGE = 600; // nodes from which on Graphviz may stop polishing: half the time, and no one sees the difference

const GUTTER = 56;
const FEW = 6; // tensors that may run from one column to the next

// The part of a curve above *y* and the part below; null if the curve does not come down through *y*.
export function split(points, y) {
  for (let at = 0; at + 3 < points.length; at += 3) {
    const [first, , , last] = points.slice(at, at + 4);
    if (first[1] > y || last[1] < y) continue;
    let [low, high] = [0, 1];
    let parts;
    for (let turn = 0; turn < 24; turn += 1) {
      const middle = (low + high) / 2;
      parts = divided(points.slice(at, at + 4), middle);
      if (parts[0][3][1] < y) low = middle;
      else high = middle;
    }
    return [
      [...points.slice(0, at), ...parts[0]],
      [...parts[1], ...points.slice(at + 4)],
    ];
  }
  return null;
}

// A curve of four points as two, parted at a share of its way.
export function divided(four, share) {
  const between = (from, to) => from.map((worth, axis) => worth + (to[axis] - worth) * share);
  const [a, b, c, d] = four;
  const [ab, bc, cd] = [between(a, b), between(b, c), between(c, d)];
  const [abc, bcd] = [between(ab, bc), between(bc, cd)];
  const middle = between(abc, bcd);
  return [
    [a, ab, abc, middle],
    [middle, bcd, cd, d],
  ];
}

// Ranges of height that overlap, joined.
export function joined(ranges) {
  const found = [];
  for (const [top, bottom] of [...ranges].sort((one, other) => one[0] - other[0])) {
    if (found.length && top < found.at(-1).bottom + 8) found.at(-1).bottom = Math.max(found.at(-1).bottom, bottom);
    else found.push({ top, bottom });
  }
  return found;
}

// The parts of a picture that stand beside each other, cut between frames; if that does not make the text legible, also inside frames.
export function columns(laid, faces, width, height, isSideways) {
  const frames = [...laid.frames.values()];
  const rows = [...laid.nodes].map(([id, { y }]) => [y - faces.get(id).height / 2, y + faces.get(id).height / 2]);
  const isCut = frames.length > 0 && laid.nodes.size <= LARGE && !isSideways;
  const found = cutAt(
    joined([...rows, ...frames.map(({ top, bottom }) => [top, bottom])]),
    laid,
    faces,
    width,
    height,
    isSideways,
  );
  if (!isCut || found.scale >= LEGIBLE) return found;
  const edges = frames.flatMap(({ top, bottom }) => {
    // a title stays with the first row below it, and the end of a frame with the last row in it
    const inside = rows.filter(([high, low]) => high >= top && low <= bottom);
    return [
      [top, Math.min(...inside.map(([, low]) => low))],
      [Math.max(...inside.map(([high]) => high)), bottom],
    ];
  });
  const other = { ...cutAt(joined([...rows, ...edges]), laid, faces, width, height), isCut: true };
  return other.scale > found.scale * 1.06 || (found.placed.length === 1 && other.scale >= LEGIBLE) ? other : found;
}

function cutAt(bands, laid, faces, width, height, isSideways = false) {
  const extent = (from, to) => {
    // left and right end of what lies between two heights
    let [left, right] = [Infinity, -Infinity];
    for (const [id, { x, y }] of laid.nodes)
      if (y >= from && y <= to)
        [left, right] = [Math.min(left, x - faces.get(id).width / 2), Math.max(right, x + faces.get(id).width / 2)];
    for (const frame of laid.frames.values())
      if (frame.top < to && frame.bottom > from) [left, right] = [Math.min(left, frame.left), Math.max(right, frame.right)];
    for (const { points } of laid.edges)
      for (const [x, y] of points) if (y >= from && y <= to) [left, right] = [Math.min(left, x), Math.max(right, x)];
    return [left, right];
  };
  const place = (parts) => {
    let at = 0;
    let tall = 0;
    const placed = parts.map(({ from, to }) => {
      const [top, bottom] = [bands[from].top, bands[to].bottom];
      const [left, right] = extent(top, bottom);
      const column = { top, bottom, left, right, dx: at - left, dy: -top };
      at += right - left + GUTTER;
      tall = Math.max(tall, bottom - top);
      return column;
    });
    const lead = parts.length > 1 ? 16 : 0; // room for the edges between columns
    const size = { width: at - GUTTER, height: tall + 2 * lead };
    return { placed, ...size, lead, isCut: false, scale: Math.min(width / size.width, height / size.height) };
  };
  const whole = place([{ from: 0, to: bands.length - 1 }]);
  let best = whole;
  if (whole.scale >= LEGIBLE || laid.nodes.size > LARGE || isSideways) return whole;
  const gaps = bands
    .slice(0, -1)
    .map(({ bottom }, index) => {
      const cut = (bottom + bands[index + 1].top) / 2;
      return {
        index,
        sources: new Set(
          laid.edges.filter(({ points }) => points[0][1] <= cut && points.at(-1)[1] >= cut).map(({ from }) => from),
        ).size,
      };
    })
    .filter(({ sources }) => sources <= FEW);
  const single = gaps.filter(({ sources }) => sources <= 1);
  for (let count = 2; count <= Math.min(8, gaps.length + 1); count += 1) {
    for (const held of [single, gaps]) {
      // between columns, a single line is better than several
      const found = place(filled(bands, held, count));
      if (found.scale > best.scale * 1.06) best = found;
      if (best.scale >= LEGIBLE) return best;
    }
  }
  // Nothing makes the text legible: as many columns as are wide enough, and the rest lies below.
  for (let count = Math.min(8, single.length + 1); count > 1; count -= 1) {
    const found = place(filled(bands, single, count));
    if (found.width * LEGIBLE <= width) return found;
  }
  return whole;
}

// The bands in at most *count* columns, as equal in height as the gaps allow.
function filled(bands, gaps, count) {
  const fill = (most) => {
    const parts = [];
    let from = 0;
    for (let at = 0; at <= gaps.length; at += 1) {
      const end = at < gaps.length ? gaps[at].index : bands.length - 1;
      const next = at < gaps.length ? (gaps[at + 1]?.index ?? bands.length - 1) : end;
      if (at === gaps.length || bands[next].bottom - bands[from].top > most) {
        parts.push({ from, to: end });
        from = end + 1;
      }
    }
    return parts.filter((part) => part.from <= part.to);
  };
  const total = bands.at(-1).bottom - bands[0].top;
  let [low, high] = [total / count, total];
  for (let turn = 0; turn < 20; turn += 1) {
    const middle = (low + high) / 2;
    if (fill(middle).length <= count) high = middle;
    else low = middle;
  }
  return fill(high);
}

// The picture for a stage of this size: boxes, frames, and each edge as an SVG path with the points it runs through.
export function arranged(laid, faces, width, height, isSideways) {
  const { placed, lead, isCut, ...size } = columns(laid, faces, width, height, isSideways);
  const columnAt = (y) =>
    Math.max(
      0,
      placed.findLastIndex(({ top }) => y >= top - 1),
    );
  const moved =
    (column) =>
    ([x, y]) => [x + placed[column].dx, y + placed[column].dy + lead];
  const boxes = new Map();
  for (const [id, { x, y }] of laid.nodes) {
    const [atX, atY] = moved(columnAt(y))([x, y]);
    const { width: wide, height: high } = faces.get(id);
    boxes.set(id, { x: atX, y: atY, left: atX - wide / 2, right: atX + wide / 2, top: atY - high / 2, bottom: atY + high / 2 });
  }
  const frames = new Map();
  for (const [frame, held] of laid.frames) {
    const parts = placed.flatMap((column, at) => {
      // a frame that is cut has a part in each of its columns
      const [first, last] = [Math.max(held.top, column.top - (at ? 6 : 0)), Math.min(held.bottom, column.bottom + 6)];
      if (last - first < 12) return [];
      const [left, top] = moved(at)([held.left, first]);
      return [{ left, top, right: left + held.right - held.left, bottom: top + last - first }];
    });
    frames.set(frame, parts);
  }
  const trunks = new Map(); // from each source through each gutter: one line, however many edges it stands for
  const lanes = placed.map(() => 0);
  const inColumn = (column) => [...boxes].filter(([id]) => columnAt(laid.nodes.get(id).y) === column);
  const held = placed.length > 1 ? placed.map((_, column) => inColumn(column)) : [];
  const isClear = (column, id, left, right, y) =>
    held[column].every(
      ([other, box]) => other === id || box.right < left || box.left > right || y < box.top - 4 || y > box.bottom + 4,
    );
  const edges = laid.edges.map(({ from, to, points }) => {
    let [at, rest] = [columnAt(laid.nodes.get(from).y), points];
    const end = columnAt(laid.nodes.get(to).y);
    const [source, target] = [boxes.get(from), boxes.get(to)];
    const edge = (column) => placed[column].right + placed[column].dx;
    if (
      end === at + 1 &&
      source.bottom < placed[at].bottom + placed[at].dy + lead - 8 &&
      isClear(at, from, source.right, edge(at), source.y) &&
      isClear(end, to, edge(at), target.left, target.y)
    ) {
      const x = edge(at) + 10 + 7 * (lanes[at]++ % 5); // a skip connection: from the side of its source to the side of its target
      const run = [
        [source.right, source.y],
        [x, source.y],
        [x, target.y],
        [target.left, target.y],
      ];
      return { from, to, points: run, straight: true, path: `M${round(source.right)} ${round(source.y)}${bend(...run)}` };
    }
    const pieces = [];
    const run = [];
    for (; at < end; at += 1) {
      const parts = split(rest, (placed[at].bottom + placed[at + 1].top) / 2);
      if (!parts) break;
      const upper = parts[0].map(moved(at));
      const lower = parts[1].map(moved(at + 1));
      const low = placed[at].bottom + placed[at].dy + lead + 9;
      const isLast = !pieces.length && source.bottom > low - 18;
      const trunk = `${from} ${at}`;
      if (!trunks.has(trunk))
        trunks.set(trunk, { upper: isLast ? [[source.x, source.bottom]] : upper, gutter: edge(at) + GUTTER - 12 });
      const { upper: shared, gutter } = trunks.get(trunk);
      const [startX] = shared.at(-1);
      const [endX, endY] = lower[0];
      const high = Math.min(endY - 12, lead - 11);
      const corners = [
        [startX, Math.min(shared.at(-1)[1], low - 9)],
        [startX, low],
        [gutter, low],
        [gutter, high],
        [endX, high],
        [endX, endY],
      ];
      pieces.push((isLast ? `M${round(startX)} ${round(source.bottom)}` : curve(shared)) + bend(...corners));
      run.push(...corners);
      rest = parts[1];
    }
    const own = rest.map(moved(at));
    const last = curve(own);
    return { from, to, points: own, before: run, path: pieces.length ? pieces.join(" ") + last.replace(/^M/, "L") : last };
  });
  return { ...size, isCut, boxes, frames, edges };
}

export const round = (number) => Math.round(number * 10) / 10;
function curve(points) {
  let path = `M${round(points[0][0])} ${round(points[0][1])}`;
  for (let at = 1; at + 2 < points.length; at += 3)
    path += `C${points
      .slice(at, at + 3)
      .map(([x, y]) => `${round(x)} ${round(y)}`)
      .join(" ")}`;
  return path;
}

// Straight lines through corners, the corners rounded.
function bend(...corners) {
  const toward = ([x, y], [toX, toY], by) => {
    const far = Math.hypot(toX - x, toY - y) || 1;
    const share = Math.min(by / far, 0.5);
    return [x + (toX - x) * share, y + (toY - y) * share];
  };
  return (
    corners
      .slice(1, -1)
      .map((corner, index) => {
        const [before, after] = [toward(corner, corners[index], 8), toward(corner, corners[index + 2], 8)];
        return `L${before.map(round).join(" ")} Q${corner.map(round).join(" ")} ${after.map(round).join(" ")}`;
      })
      .join(" ") + ` L${corners.at(-1).map(round).join(" ")}`
  );
}
