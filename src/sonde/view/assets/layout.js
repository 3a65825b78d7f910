// Places what is visible: sizes of nodes from their text, Graphviz in a worker for places and edges, columns for tall pictures.
"use strict";

const engine = (() => {
  const asScript = (text) => URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
  // The engine is sent as text: a page opened as a file has an origin of its own, from which a worker may load nothing.
  const started = (script) => {
    try {
      return new Worker(asScript(script));
    } catch (error) {
      return { failed: `no worker can be started (${error.message})` };
    }
  };
  const worker = started(`
    let engine;
    onmessage = async ({ data: { number, dot, library } }) => {
      try {
        if (library) {
          const url = URL.createObjectURL(new Blob([library], { type: "text/javascript" }));
          engine = import(url).then(({ Graphviz }) => Graphviz.load());
          return;
        }
        const graphviz = await engine;
        const began = performance.now();
        const laid = graphviz.layout(dot, "json0", "dot");
        const took = performance.now() - began;
        postMessage({ number, laid, took });
      } catch (error) {
        postMessage({ number, error: String(error) });
      }
    };`);
  worker.postMessage?.({ library: document.getElementById("engine").textContent });
  const waiting = new Map();
  const known = new Map();
  let last = 0;
  worker.onmessage = ({ data }) => {
    const { resolve, reject } = waiting.get(data.number);
    waiting.delete(data.number);
    if (data.error) reject(new Error(data.error));
    else resolve(data);
  };
  worker.onerror = (event) => {
    for (const { reject } of waiting.values()) reject(new Error(event.message || "the layout engine did not start"));
    waiting.clear();
  };
  return {
    layout(dot) {
      if (worker.failed) return Promise.reject(new Error(worker.failed));
      if (!known.has(dot)) {
        if (known.size > 40) known.delete(known.keys().next().value);
        known.set(
          dot,
          new Promise((resolve, reject) => {
            waiting.set(++last, { resolve, reject });
            worker.postMessage({ number: last, dot });
          }),
        );
      }
      return known.get(dot);
    },
  };
})();

// The text on a node

const pen = document.createElement("canvas").getContext("2d");
const fonts = { name: "600 13px", plain: "13px", quiet: "12.5px" };
const widths = new Map();
function widthOf(text, style) {
  const key = `${style} ${text}`;
  if (!widths.has(key)) {
    pen.font = `${fonts[style]} ${getComputedStyle(document.body).fontFamily}`;
    widths.set(key, Math.ceil(pen.measureText(text).width));
  }
  return widths.get(key);
}

const LONGEST = 34; // characters of a name on a node
const shortened = (text) => (text.length > LONGEST ? `${text.slice(0, 14)}…${text.slice(3 - LONGEST + 14)}` : text);
const LINE = 16;

// What a node shows: lines of parts (a text and its style), the badge of a folded block, and the size of the box around them.
function faceOf(node, { costs }) {
  const times = isInGroup(node) ? "" : timesOf(node);
  const lines = [];
  if (node.kind === "module") {
    const name = { text: shortened(isInGroup(node) ? shortName(node) : nameOf(node)), style: "name" };
    const type = node.path ? [{ text: shortened(typeOf(node)), style: "quiet" }] : [];
    if (type.length && widthOf(name.text, "name") + widthOf(type[0].text, "quiet") > 210) lines.push([name], type);
    else lines.push([name, ...type]);
    const cost = costs ? costOf(node) : "";
    if (cost) lines.push([{ text: cost + (times.startsWith("×") ? " each" : ""), style: "quiet" }]);
  } else {
    lines.push([{ text: shortened(shortName(node)), style: "plain" }]);
    if (isSource(node) && node.outputs.length) lines.push([{ text: shapeOf(node.outputs[0]), style: "quiet" }]);
  }
  const wide = (line) => line.reduce((sum, { text, style }) => sum + widthOf(text, style), 7 * (line.length - 1));
  const badge = times ? widthOf(times, "quiet") + 14 : 0;
  const width =
    Math.max(wide(lines[0]) + (badge ? badge + 8 : 0), ...lines.slice(1).map(wide)) + (node.kind === "operation" ? 18 : 24);
  return { lines, times, badge, wide, width, height: lines.length * LINE + (node.kind === "operation" ? 5 : 9) };
}

// Whether a folded group of several siblings has a frame around the node, which names the number of copies.
function isInGroup(node) {
  const part = member.get(node.id);
  return part !== undefined && isFolded(part.number) && groups[part.number].period > 1;
}

const titleOf = (node) => ({
  name: shortened(isInGroup(node) ? shortName(node) : nameOf(node)),
  type: node.path ? shortened(node.type) : "",
  times: isInGroup(node) ? "" : timesOf(node),
});

// Graphviz source

// Ways to lay a picture out, the best first: from top to bottom with all that is known, from left to right for what is wide, and with
// names alone for what is tall. Shapes stand beside edges that run down.
const WAYS = [
  { direction: "TB", ranks: 0.37, gap: 0.32, shapes: true, costs: true },
  { direction: "LR", ranks: 0.42, gap: 0.14, shapes: false, costs: true },
  { direction: "TB", ranks: 0.2, gap: 0.25, shapes: false, costs: false },
];
const LARGE = 600; // nodes from which on Graphviz may stop polishing: half the time, and no one sees the difference
const TITLE = 20; // height of a frame's title

// The frames around a node, outermost first: open modules, as "c5", and folded groups of several siblings, as "g2".
function framesOf(node, around) {
  const found = around.slice();
  if (isInGroup(node)) found.push(`g${member.get(node.id).number}`);
  return found;
}

function toDot({ nodes, edges }, faces, { direction, ranks, gap }) {
  const lines = [
    "digraph G {",
    nodes.length > LARGE ? "graph [nslimit=1, nslimit1=1];" : "",
    `graph [rankdir=${direction}, ranksep=${nodes.length > LARGE ? 0.3 : ranks}, nodesep=${gap}, margin=0, labeljust=l];`,
    'node [shape=box, fixedsize=true, label=""];',
    "edge [arrowhead=none];",
  ];
  const stack = [];
  const chains = new Map();
  for (const node of nodes) {
    const frame = above(node).find((id) => chains.has(id)); // the parameters of a closed layer stand beside it
    const chain = framesOf(node, frame === undefined ? [] : chains.get(frame));
    if (isOpen(node)) {
      if (node.parent !== undefined || !isWhole(node)) chain.push(`c${node.id}`);
      chains.set(node.id, chain);
    }
    let shared = 0;
    while (shared < stack.length && stack[shared] === chain[shared]) shared += 1;
    while (stack.length > shared) {
      stack.pop();
      lines.push("}");
    }
    for (const frame of chain.slice(shared)) {
      stack.push(frame);
      const { width } = frameTitle(frame);
      lines.push(
        `subgraph cluster_${frame} { graph [label=<<TABLE BORDER="0" FIXEDSIZE="TRUE" WIDTH="${width}" HEIGHT="${TITLE}"><TR><TD></TD></TR></TABLE>>, margin=12];`,
      );
    }
    if (isOpen(node)) continue;
    const { width, height } = faces.get(node.id);
    lines.push(`n${node.id} [width=${(width / 72).toFixed(3)}, height=${(height / 72).toFixed(3)}];`);
  }
  for (const _ of stack) lines.push("}");
  for (const { from, to } of edges) lines.push(`n${from} -> n${to};`);
  lines.push("}");
  return lines.join("\n");
}

// Whether a module is the whole model, whose frame would say nothing: its name is in the page's header.
const isWhole = (node) => !node.path && model.inside.get(null).filter((other) => other.kind === "module").length === 1;

// The parts of a frame's title; width leaves room beside an edge that comes in from above.
function frameTitle(frame) {
  const isGroup = frame[0] === "g";
  const parts = isGroup
    ? { name: "", type: "", times: `× ${groups[Number(frame.slice(1))].count}` }
    : titleOf(model.nodes.get(Number(frame.slice(1))));
  const name = parts.name ? `▾ ${parts.name}` : "";
  const own =
    (name ? widthOf(name, "name") + 7 : 0) +
    (parts.type ? widthOf(parts.type, "quiet") + 7 : 0) +
    (parts.times ? widthOf(parts.times, "quiet") + 21 : 0);
  return { ...parts, name, own, width: 2 * own + 36 };
}

// What Graphviz found, with the first row on top: boxes by the centre of nodes, frames by their corners, edges as lists of points.
function places(text) {
  const laid = JSON.parse(text);
  const top = Number(laid.bb.split(",")[3]);
  const [nodes, frames] = [new Map(), new Map()];
  const named = new Map();
  for (const held of laid.objects ?? []) {
    if (held.name.startsWith("cluster_")) {
      const [left, bottom, right, high] = held.bb.split(",").map(Number);
      frames.set(held.name.slice(8), { left: left + 4, right: right - 4, top: top - high + 2, bottom: top - bottom - 4 }); // frames beside each other do not touch
    } else if (held.pos) {
      const [x, y] = held.pos.split(",").map(Number);
      named.set(held._gvid, Number(held.name.slice(1)));
      nodes.set(Number(held.name.slice(1)), { x, y: top - y });
    }
  }
  const edges = (laid.edges ?? []).map((edge) => ({
    from: named.get(edge.tail),
    to: named.get(edge.head),
    points: edge.pos
      .replace(/^[es],\S+ /, "")
      .replace(/^[es],\S+ /, "")
      .split(" ")
      .map((point) => {
        const [x, y] = point.split(",");
        return [Number(x), top - Number(y)];
      }),
  }));
  return { nodes, frames, edges };
}

const LEGIBLE = 0.96; // the scale from which on text, then of 12 pixels, is read without zooming
const WHOLE = 0.8; // the least scale at which all of a picture is better than a part of it

// Columns: a tall picture is cut between rows, where few edges run, and its parts stand beside each other

const GUTTER = 56;
const FEW = 6; // tensors that may run from one column to the next

// The part of a curve above *y* and the part below; null if the curve does not come down through *y*.
function split(points, y) {
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

function divided(four, share) {
  const between = ([x, y], [toX, toY]) => [x + (toX - x) * share, y + (toY - y) * share];
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
function joined(ranges) {
  const found = [];
  for (const [top, bottom] of [...ranges].sort((one, other) => one[0] - other[0])) {
    if (found.length && top < found.at(-1).bottom + 8) found.at(-1).bottom = Math.max(found.at(-1).bottom, bottom);
    else found.push({ top, bottom });
  }
  return found;
}

// The parts of a picture that stand beside each other, cut between frames; if that does not make the text legible, also inside frames.
function columns(laid, faces, width, height, isSideways) {
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
    return { placed, ...size, lead, scale: Math.min(width / size.width, height / size.height) };
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
function arranged(laid, faces, width, height, isSideways) {
  const { placed, lead, isCut = false, ...size } = columns(laid, faces, width, height, isSideways);
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

const round = (number) => Math.round(number * 10) / 10;
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

// Places of texts that no edge strikes through

function sampled({ points, straight, before = [] }) {
  if (straight) return points;
  const found = [...before];
  for (let at = 0; at + 3 < points.length; at += 3)
    for (let step = 0; step < 8; step += 1) found.push(divided(points.slice(at, at + 4), step / 8)[0][3]);
  found.push(points.at(-1));
  return found;
}

// Where the title of a frame begins: at the left, or in the first free space between the edges that come in from above.
function titlePlace(frame, own, lines) {
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
  let start = frame.left + 10;
  for (const [left, right] of struck) {
    if (left >= start + own) break;
    start = Math.max(start, right);
  }
  return start + own <= frame.right - 4 ? { x: start, free: true } : { x: frame.left + 10, free: false };
}

// The shapes of tensors beside the edges, once for each tensor; a shape without free space is left out, and is in the details.
function shapePlaces({ boxes, edges }, titles, lines, values) {
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
    ) && !lines.some((line) => isStruck(box, line));
  for (const [place, { from, to, straight }] of edges.entries()) {
    const shapes = [...new Set(values.get(`${from}_${to}`).map(shapeOf))];
    const text = shapes.slice(0, 2).join(", ") + (shapes.length > 2 ? ` +${shapes.length - 2}` : "");
    if (said.has(`${from} ${text}`)) continue;
    const wide = widthOf(text, "quiet");
    const line = lines[place];
    const [start, end] = [boxes.get(from), boxes.get(to)];
    const beside = (y) =>
      line
        .filter(([, atY]) => Math.abs(atY - y) < 9)
        .flatMap(([x]) => [x + 7, x - wide - 7])
        .map((left) => ({ left, right: left + wide, top: y - 7, bottom: y + 6 }));
    const spot = straight ? undefined : [start.bottom + 13, start.bottom + 18, end.top - 13].flatMap(beside).find(isFree);
    if (!spot) continue;
    taken.push(spot);
    said.add(`${from} ${text}`);
    found.push({ text, x: spot.left, y: spot.top + 7 });
  }
  return found;
}
