// Draws a heat-map: rows times columns of steps on a canvas, names, axes and the cursor above it as SVG.
import { draw, make, many, plain, rowLabel, shortened, whole } from "./dom.js";
import { MARKS, axis, axisText, gradient, ramp, shareOn, stepTicks, ticks } from "./scales.js";
import { gestures, onWidth, once } from "./span.js";
import { hideTip, showTip } from "./tip.js";

const BOTTOM = 26;
const RIGHT = [14, 44]; // room for the signs of rows with marks, if there are any

// Where a row has a mark, and several rows share a pixel, the worst is seen: NaN, infinities, zeros, values.
const RANK = [1, 0, 6, 4, 3, 2, 5];

// The colours of the cells as an image of `rows` lines, each of which joins `size` rows.
function imageOf({ columns, shown, shownMarks, stands, scale }, first, last, size, void_) {
  const lines = Math.ceil((last - first) / size);
  const image = new ImageData(Math.max(columns, 1), Math.max(lines, 1));
  const pixels = new Uint32Array(image.data.buffer);
  const table = ramp(scale.diverging ? "diverging" : "sequential");
  const packed = new Uint32Array(256);
  const pack = (red, green, blue) => (255 << 24) | (blue << 16) | (green << 8) | red;
  for (let place = 0; place < 256; place += 1) packed[place] = pack(table[3 * place], table[3 * place + 1], table[3 * place + 2]);
  const special = MARKS.map((mark) => (mark?.colour ? pack(...mark.colour) : void_));
  const share = shareOn(scale);
  const isZeroShown = scale.log || scale.diverging;
  for (let line = 0; line < lines; line += 1) {
    const [start, end] = [first + line * size, Math.min(first + (line + 1) * size, last)];
    for (let column = 0; column < columns; column += 1) {
      let [worst, most, isSpike] = [1, NaN, 0];
      for (let row = start; row < end; row += 1) {
        const at = row * columns + column;
        const mark = shownMarks[at] === 5 && !isZeroShown ? 0 : shownMarks[at];
        if (RANK[mark] > RANK[worst]) worst = mark;
        if (mark === 0 && stands[at] >= isSpike && (stands[at] > isSpike || !(Math.abs(shown[at]) <= Math.abs(most)))) [most, isSpike] = [shown[at], stands[at]];
      }
      pixels[line * columns + column] = worst === 0 ? packed[Math.min(Math.max(Math.round(share(most) * 255), 0), 255)] : special[worst];
    }
  }
  return image;
}

// Return {element, show(data), cell}. Data: {rows, columns, values, marks, steps (columns + 1 edges), names, scale, unit}.
// Options: cell(row, column) is called with the cell under the pointer or cursor, or null; open(row, column) when one is chosen.
export function heatMap(span, { label, cell, open, height: tallest = 560, least = 150, rowHeight = 19, describe, guides, gutter = 220, rowText, onlayout, onrows, axisName = () => "step" } = {}) {
  const canvas = make("canvas", { "aria-hidden": "true" });
  const svg = draw("svg", { width: "100%", height: "100%" });
  const brush = draw("rect", { class: "brush", visibility: "hidden" });
  const cross = draw("g", { class: "cross" });
  const element = make("div", { class: "heat", tabindex: 0, role: "application", "aria-roledescription": "heat-map", "aria-label": label }, canvas, svg);
  let width = 0;
  let data = null;
  let rows = null; // the rows shown, from and to; null: all
  let at = null; // the cell of the cursor
  let picture = null; // the image, and what it was made of
  let plot = { left: 0, top: 4, width: 1, height: 1 };
  let [wide, start] = [0, 0]; // of the plot, as last told to the pictures that stand on the same axis

  const shownRows = () => { const [from, to] = rows ?? [0, data.rows]; return [Math.max(0, Math.min(from, data.rows - 1)), Math.min(to, data.rows)]; };
  const left = (width) => Math.min(gutter, Math.max(70, width * 0.24), 24 + 7 * Math.max(...data.labels.map((name) => name.length), 4));

  function paint() {
    if (!width || !data) return;
    const [first, last] = shownRows();
    const height = Math.max(Math.min((last - first) * rowHeight, tallest), Math.min(least, (last - first) * 40));
    plot = { left: left(width), top: 4, width: 1, height };
    plot.width = Math.max(width - plot.left - RIGHT[data.signs ? 1 : 0], 10);
    element.style.height = `${height + plot.top + BOTTOM}px`;
    const density = window.devicePixelRatio || 1;
    const [across, down] = [Math.round(plot.width * density), Math.round(height * density)];
    if (canvas.width !== across || canvas.height !== down) [canvas.width, canvas.height] = [across, down];
    Object.assign(canvas.style, { left: `${plot.left}px`, top: `${plot.top}px`, width: `${plot.width}px`, height: `${height}px` });
    const size = Math.max(1, Math.ceil((last - first) / down));
    const key = `${first} ${last} ${size} ${document.documentElement.dataset.theme}`;
    if (!picture || picture.data !== data || picture.key !== key) {
      const image = imageOf(data, first, last, size, 0);
      const held = make("canvas", { width: image.width, height: image.height });
      held.getContext("2d").putImageData(image, 0, 0);
      picture = { data, key, held, lines: (last - first) / size };
    }
    const pen = canvas.getContext("2d");
    pen.clearRect(0, 0, across, down);
    pen.imageSmoothingEnabled = false;
    const x = axis(span.from, span.to, 0, across);
    const { steps, columns } = data;
    // Edges of bins lie on one line as a rule; where a training was logged unevenly, each column has its own place.
    if (isEven(steps)) pen.drawImage(picture.held, 0, 0, columns, picture.lines, x.at(steps[0]), 0, x.at(steps[columns]) - x.at(steps[0]), down);
    else for (let column = 0; column < columns; column += 1) {
      const [start, end] = [x.at(steps[column]), x.at(steps[column + 1])];
      if (end >= 0 && start <= across) pen.drawImage(picture.held, column, 0, 1, picture.lines, Math.floor(start), 0, Math.max(Math.ceil(end) - Math.floor(start), 1), down);
    }
    furniture(width, first, last);
    if (onlayout && (wide !== plot.width || start !== plot.left)) { [wide, start] = [plot.width, plot.left]; onlayout(); }
  }

  function furniture(width, first, last) {
    const shell = draw("g", { class: "axis" });
    const x = axis(span.from, span.to, plot.left, plot.left + plot.width);
    const each = plot.height / (last - first);
    const stride = Math.max(1, Math.ceil(15 / each));
    const letters = Math.floor((plot.left - 12) / 6.7);
    for (let row = first; row < last; row += stride) {
      const text = rowText ? rowText(row, stride) : data.labels[row];
      if (text) shell.append(draw("text", { x: plot.left - 8, y: plot.top + (row - first + 0.5) * each + 4, "text-anchor": "end" }, shortened(text, letters)));
    }
    for (const [value, text] of stepTicks(x, Math.max(2, Math.floor(plot.width / 90)))) {
      const there = x.at(value);
      shell.append(draw("line", { class: "tick", x1: there, x2: there, y1: plot.top + plot.height, y2: plot.top + plot.height + 4 }),
        draw("text", { x: there, y: plot.top + plot.height + 18, "text-anchor": there > plot.left + plot.width - 24 ? "end" : "middle" }, text));
    }
    shell.append(axisText(axisName(), plot.left, plot.left + plot.width, plot.top + plot.height + 18));
    // Beside each row with marks in the shown steps stands their sign: colour alone tells nobody.
    if (each >= 9 || last - first <= 60) {
      for (let row = first; row < last; row += 1) {
        const worst = worstOf(row);
        if (worst < 2 || (worst === 5 && !data.scale.log)) continue;
        const { glyph, colour } = MARKS[worst];
        shell.append(draw("text", { class: "glyph", x: plot.left + plot.width + 5, y: plot.top + (row - first + 0.5) * each + 4, style: worst === 5 ? null : { fill: `rgb(${colour.join(" ")})` } }, glyph));
      }
    }
    const written = []; // where guides have their text: of those close together each stands beside the other
    for (const guide of guides?.(data) ?? []) {
      const there = plot.top + (guide.row - first) * each;
      if (there < plot.top || there > plot.top + plot.height) continue;
      const line = there + (guide.below ? 13 : -4);
      shell.append(draw("line", { class: "guide", x1: plot.left, x2: plot.left + plot.width, y1: there, y2: there }),
        draw("text", { class: "guide", x: plot.left + plot.width - 5 - 150 * written.filter((other) => Math.abs(other - line) < 13).length, y: line, "text-anchor": "end" }, guide.text));
      written.push(line);
    }
    svg.replaceChildren(
      shell, draw("rect", { class: "outline", x: plot.left - 0.5, y: plot.top - 0.5, width: plot.width + 1, height: plot.height + 1 }), cross, brush);
    mark();
  }

  function worstOf(row) {
    let worst = 0;
    const [start, end] = columnsShown();
    for (let column = start; column < end; column += 1) {
      const found = data.shownMarks[row * data.columns + column];
      if (RANK[found] > RANK[worst]) worst = found;
    }
    return worst;
  }

  const columnsShown = () => {
    const { steps, columns } = data;
    let start = 0;
    while (start < columns - 1 && steps[start + 1] <= span.from) start += 1;
    let end = columns;
    while (end > start + 1 && steps[end - 1] >= span.to) end -= 1;
    return [start, end];
  };

  const columnAt = (step) => {
    const { steps, columns } = data;
    let [low, high] = [0, columns];
    while (high - low > 1) { const middle = (low + high) >> 1; if (steps[middle] <= step) low = middle; else high = middle; }
    return Math.min(low, columns - 1);
  };

  function mark() {
    cross.replaceChildren();
    if (!data) return;
    const [first, last] = shownRows();
    const x = axis(span.from, span.to, plot.left, plot.left + plot.width);
    const each = plot.height / (last - first);
    const inside = (step) => step >= span.from && step <= span.to;
    if (span.cursor !== null && inside(span.cursor)) cross.append(draw("line", { x1: x.at(span.cursor), x2: x.at(span.cursor), y1: plot.top, y2: plot.top + plot.height }));
    if (!at || at.row < first || at.row >= last) return;
    const [start, end] = [Math.max(data.steps[at.column], span.from), Math.min(data.steps[at.column + 1], span.to)];
    const top = plot.top + (at.row - first) * each;
    cross.append(draw("rect", { class: "row", x: plot.left, y: top, width: plot.width, height: each }));
    if (end >= start) cross.append(draw("rect", { class: "cell", x: x.at(start) - 0.5, y: top, width: Math.max(x.at(end) - x.at(start), 2) + 1, height: Math.max(each, 2) }));
    if (each < 15) {
      const text = shortened(data.labels[at.row], Math.floor((plot.left - 12) / 6.7));
      cross.append(draw("rect", { class: "label", x: 0, y: top + each / 2 - 9, width: plot.left - 3, height: 18 }), draw("text", { x: plot.left - 8, y: top + each / 2 + 4, "text-anchor": "end" }, text));
    }
  }

  function go(row, column, event = element) {
    const moved = !at || at.row !== row || at.column !== column;
    at = { row, column };
    span.point((data.steps[column] + data.steps[column + 1]) / 2);
    if (moved) { mark(); cell?.(row, column); }
    showTip(event, describe ? describe(data, row, column) : described(data, row, column));
  }

  function leave() {
    at = null;
    span.point(null);
    hideTip();
    mark();
    cell?.(null, null);
  }

  const found = (x, y) => {
    const [first, last] = shownRows();
    const row = Math.min(first + Math.floor((y / plot.height) * (last - first)), last - 1);
    return [Math.max(row, 0), columnAt(span.from + (x / plot.width) * (span.to - span.from))];
  };

  gestures(element, {
    span, brush, box: () => plot,
    point: (x, y, event) => { if (data) go(...found(x, y), event); },
    leave, click: (x, y) => { if (data) open?.(...found(x, y)); },
    rows: (top, bottom) => {
      if (top === null) rows = null;
      else {
        const [first, last] = shownRows();
        const each = plot.height / (last - first);
        rows = [first + Math.floor(top / each), Math.max(first + Math.ceil(bottom / each), first + Math.floor(top / each) + 1)];
      }
      onrows?.(rows);
      repaint();
    },
  });
  element.addEventListener("keydown", (event) => {
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!data || event.ctrlKey || event.metaKey || event.altKey) return;
    if (by) {
      const [first, last] = shownRows();
      const [start, end] = columnsShown();
      const stride = event.shiftKey ? 10 : 1;
      const held = at ?? { row: first, column: by[1] < 0 ? end : start - by[1] };
      const [row, column] = [Math.min(Math.max(held.row + (at ? by[0] * stride : 0), first), last - 1), held.column + by[1] * stride];
      if (column < start) span.move(-0.25);
      if (column >= end) span.move(0.25);
      go(row, Math.min(Math.max(column, 0), data.columns - 1));
    } else if (event.key === "Enter" && at) open?.(at.row, at.column);
    else if (event.key === "Escape") leave();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  element.addEventListener("blur", leave);
  const repaint = once(paint);
  span.on("move", repaint);
  span.on("point", once(mark));
  onWidth(element, (now) => { width = now; }, paint);
  return {
    element,
    get cell() { return at; },
    show(next) { if (data && next.rows !== data.rows) { rows = null; at = null; } data = { ...next, labels: next.names.map((name, row) => rowLabel(name, next.kinds?.[row])), signs: next.shownMarks.some((mark) => mark > 1 && (mark !== 5 || next.scale.log)) }; repaint(); },
    get plot() { return plot; },
    follow(row) { at = row === null || !data ? null : { row, column: columnAt(span.cursor ?? span.from) }; mark(); },
    showRows(from, to) { rows = from === null ? null : [from, to]; repaint(); },
    frame: paint,
  };
}

function isEven(steps) {
  const width = (steps.at(-1) - steps[0]) / (steps.length - 1);
  return steps.every((step, place) => Math.abs(step - steps[0] - place * width) <= width * 0.51);
}

export function stepsOf(data, column) {
  const [first, last] = [data.firsts?.[column] ?? Math.ceil(data.steps[column]), data.ends?.[column] ?? Math.ceil(data.steps[column + 1]) - 1];
  return last > first ? `steps ${whole(first)} to ${whole(last)}` : `step ${whole(first)}`;
}

function described(data, row, column) {
  const place = row * data.columns + column;
  const mark = data.marks[place];
  const value = mark && mark !== 5 ? (mark === 1 && data.absent) || MARKS[mark].name : mark === 5 ? "exactly 0" : plain(data.values[place]);
  const spike = data.stands[place] ? [make("dt", null, "one step stands out"), make("dd", null, plain(data.shown[place]))] : null;
  return make("div", null, make("strong", null, data.names[row]), data.kinds?.[row] ? make("span", { class: "quiet" }, ` ${data.kinds[row]}`) : null,
    make("dl", null, make("dt", null, spike ? `median ${data.label ?? "value"}` : data.label ?? "value"), make("dd", null, value), spike), make("p", { class: "quiet" }, stepsOf(data, column)));
}

// The legend of a scale of colours: ends, unit, whether it is logarithmic, and the marks that occur.
export function legendOf({ scale, unit, label, shownMarks: marks, logged, columns, spikes, absent }, note) {
  const held = axis(scale.low, scale.high, 0, 200, scale.log);
  const seen = new Set(marks);
  const bar = make("span", { class: "ramp", style: { background: gradient(scale.diverging ? "diverging" : "sequential") } });
  const share = shareOn(scale);
  const shown = ticks(held, 4).filter(([value]) => value >= scale.low && value <= scale.high);
  const labels = make("span", { class: "ramp-ticks" }, shown.map(([value, text]) => make("span", { style: { left: `${share(value) * 100}%` } }, text)));
  const beyond = [];
  if (scale.least !== null && scale.least < scale.low && !(scale.log && scale.least <= 0)) beyond.push(`below: down to ${plain(scale.least, 3)}`);
  if (scale.most !== null && scale.most > scale.high) beyond.push(`above: up to ${plain(scale.most, 3)}`);
  const signs = MARKS.map((mark, place) => [mark, place]).filter(([mark, place]) => mark && seen.has(place) && (place !== 5 || scale.log || scale.diverging)).map(([mark, place]) =>
    make("span", { class: "sign" }, make("i", { class: place === 1 ? "void" : "", style: mark.colour ? { background: `rgb(${mark.colour.join(" ")})` } : null }), (place === 1 && absent) || mark.name));
  return make("div", { class: "legend" },
    make("span", { class: "scale" }, bar, labels),
    make("span", { class: "unit" }, [label, unit ? `(${unit})` : "", scale.log ? "· logarithmic" : "· linear"].filter(Boolean).join(" ")),
    beyond.map((text) => make("span", { class: "quiet" }, text)), signs,
    logged > columns ? make("span", { class: "quiet" }, `a column is the median of ${Math.ceil(logged / columns)} logged steps; its worst mark is kept${spikes ? `, and a step that stands out has its own colour (${many(spikes, "cell")})` : ""}`) : null, note ? make("span", { class: "quiet" }, note) : null);
}
