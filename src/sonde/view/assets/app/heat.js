// Draws a heat-map: rows times columns of steps on a canvas, names, axes and the cursor above it as SVG.
import { beforeOf } from "./change.js";
import { draw, make, many, partsOf, plain, rowLabel, shortened, whole } from "./dom.js";
import { heightOf, resizer } from "./resizing.js";
import { saveButtons } from "./saving.js";
import { MARKS, axis, axisText, gradient, groundOf, hatchOf, isDark, ramp, shareOn, ticks } from "./scales.js";
import { gestures, onWidth, once } from "./span.js";
import { axisNameOf, ticksOf } from "./timeaxis.js";
import { hideTip, showTip } from "./tip.js";

const BOTTOM = 26;
const RIGHT = [14, 44]; // room for the signs of rows with marks, if there are any

// Where a row has a mark, and several rows share a pixel, the worst is seen: NaN, infinities, zeros, values.
const RANK = [1, 0, 6, 4, 3, 2, 5];

// The colours of the cells as an image, each line of which joins `size` rows; and of each mark with a hatch an image of its cells.
export function imagesOf({ columns, shown, shownMarks, stands, scale }, first, last, size, void_) {
  const lines = Math.ceil((last - first) / size);
  const image = new ImageData(Math.max(columns, 1), Math.max(lines, 1));
  const hatched = new Map();
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
        if (mark === 0 && stands[at] >= isSpike && (stands[at] > isSpike || !(Math.abs(shown[at]) <= Math.abs(most))))
          [most, isSpike] = [shown[at], stands[at]];
      }
      if (MARKS[worst]?.hatch) {
        if (!hatched.has(worst)) {
          const cells = new ImageData(image.width, image.height);
          hatched.set(worst, { cells, pixels: new Uint32Array(cells.data.buffer) });
        }
        hatched.get(worst).pixels[line * columns + column] = 255 << 24;
      }
      pixels[line * columns + column] =
        worst === 0 ? packed[Math.min(Math.max(Math.round(share(most) * 255), 0), 255)] : special[worst];
    }
  }
  const asCanvas = (of) => {
    const held = make("canvas", { width: of.width, height: of.height });
    held.getContext("2d").putImageData(of, 0, 0);
    return held;
  };
  return {
    columns,
    lines: (last - first) / size,
    colours: asCanvas(image),
    hatched: [...hatched].map(([mark, { cells }]) => [mark, asCanvas(cells)]),
  };
}

// Paints images of cells, each put in its place by `stretch`, and over those with marks their hatches.
const sheet = make("canvas"); // on which hatches are cut out
export function paintImages(pen, { colours, hatched }, density, stretch) {
  const { width, height } = pen.canvas;
  stretch(pen, colours);
  for (const [mark, cells] of hatched) {
    Object.assign(sheet, { width, height });
    const cut = sheet.getContext("2d");
    stretch(cut, cells);
    cut.globalCompositeOperation = "source-in";
    cut.fillStyle = cut.createPattern(hatchOf(mark, Math.max(1, Math.round(density))), "repeat");
    cut.fillRect(0, 0, width, height);
    pen.drawImage(sheet, 0, 0);
  }
}

// Return {element, show(data), cell}. Data: {rows, columns, values, marks, steps (columns + 1 edges), names, scale, unit}.
// Options: cell(row, column) is called with the cell under the pointer or cursor, or null; open(row, column) when one is chosen.
/** @param {import("./span.js").Span} span @param {any} [options] */
export function heatMap(
  span,
  {
    label,
    cell,
    open,
    height: tallest = 560,
    least = 150,
    rowHeight = 19,
    describe,
    guides,
    gutter = 220,
    rowText,
    onlayout,
    onrows,
    onhold,
    shownRows: held = null,
    axisName = () => "step",
  } = {},
) {
  const canvas = make("canvas", { "aria-hidden": "true" });
  const svg = draw("svg", { width: "100%", height: "100%" });
  const brush = draw("rect", { class: "brush", visibility: "hidden" });
  const cross = draw("g", { class: "cross" });
  const element = make(
    "div",
    { class: "heat", tabindex: 0, role: "application", "aria-roledescription": "heat-map", "aria-label": label },
    canvas,
    svg,
  );
  let width = 0;
  let data = null;
  const cells = () => {
    const [first, last] = shownRows();
    const { columns, absolute } = data;
    const head = ["row", "first step", "last step", "value", "mark", ...(absolute ? ["share of its median"] : [])];
    const found = [head];
    for (let row = first; row < last; row += 1)
      for (let column = 0; column < columns; column += 1) {
        const at = row * columns + column;
        const isFold = data.folds?.[row] > 1;
        const number = (list) => (data.marks[at] === 1 || Number.isNaN(list[at]) ? null : list[at]);
        const steps = [Math.ceil(data.steps[column]), data.ends?.[column] ?? Math.ceil(data.steps[column + 1]) - 1];
        const value = isFold ? null : number((absolute ?? data).values);
        found.push([data.names[row], ...steps, value, MARKS[data.marks[at]]?.name, ...(absolute ? [number(data.values)] : [])]);
      }
    return found;
  };
  let chosen = heightOf(label); // of the plot, by the reader
  element.append(
    saveButtons(element, () => data?.label ?? "", cells),
    resizer(
      label,
      () => plot.height,
      (next) => {
        chosen = next;
        repaint();
      },
    ),
  );
  let rows = held; // the rows shown, from and to; null: all
  let at = null; // the cell of the cursor
  let home = null; // the site to which the cursor returns, at the step that the span holds
  let whole = null; // what is known of the whole training: it lies below the finer data of a part, which has not come yet while a reader moves
  const pictures = new Map(); // by data: the images, and what they were made of
  let plot = { left: 0, top: 4, width: 1, height: 1 };
  let [wide, start] = [0, 0]; // of the plot, as last told to the pictures that stand on the same axis

  const shownRows = () => {
    const [from, to] = rows ?? [0, data.rows];
    return [Math.max(0, Math.min(from, data.rows - 1)), Math.min(to, data.rows)];
  };
  const left = (width) =>
    Math.min(gutter, Math.max(70, width * 0.24), 24 + 7 * Math.max(...data.labels.map((name) => name.length), 4));

  function paint() {
    if (!width || !data) return;
    const [first, last] = shownRows();
    const height = chosen ?? Math.max(Math.min((last - first) * rowHeight, tallest), Math.min(least, (last - first) * 40));
    plot = { left: left(width), top: 4, width: 1, height };
    plot.width = Math.max(width - plot.left - RIGHT[data.signs ? 1 : 0], 10);
    element.style.height = `${height + plot.top + BOTTOM}px`;
    const density = window.devicePixelRatio || 1;
    const [across, down] = [Math.round(plot.width * density), Math.round(height * density)];
    if (canvas.width !== across || canvas.height !== down) [canvas.width, canvas.height] = [across, down];
    Object.assign(canvas.style, {
      left: `${plot.left}px`,
      top: `${plot.top}px`,
      width: `${plot.width}px`,
      height: `${height}px`,
    });
    const size = Math.max(1, Math.ceil((last - first) / down));
    const pen = canvas.getContext("2d");
    const x = axis(span.from, span.to, 0, across);
    const below = data.isWhole ? null : whole;
    pen.clearRect(0, 0, across, down);
    if (!data.isWhole && !below) {
      pen.fillStyle = isDark() ? "#2a2e39" : "#e7e9ef";
      pen.fillRect(0, 0, across, down);
    } // not known yet
    for (const held of pictures.keys()) if (held !== data && held !== below) pictures.delete(held);
    for (const held of below ? [below, data] : [data]) {
      const [start, end] = [x.at(held.steps[0]), x.at(held.steps[held.columns])];
      if (!held.isWhole) pen.clearRect(Math.max(start, 0), 0, Math.min(end, across) - Math.max(start, 0), down);
      const key = `${first} ${last} ${size} ${document.documentElement.dataset.theme}`;
      if (pictures.get(held)?.key !== key) pictures.set(held, { key, ...imagesOf(held, first, last, size, 0) });
      const images = pictures.get(held);
      paintImages(pen, images, density, (on, image) => stretch(on, image, held, images.lines, x, across, down));
    }
    furniture(width, first, last);
    if (onlayout && (wide !== plot.width || start !== plot.left)) {
      [wide, start] = [plot.width, plot.left];
      onlayout();
    }
  }

  // Edges of bins lie on one line as a rule; where a training was logged unevenly, each column has its own place.
  function stretch(pen, image, { steps, columns }, lines, x, across, down) {
    pen.imageSmoothingEnabled = false;
    if (isEven(steps)) pen.drawImage(image, 0, 0, columns, lines, x.at(steps[0]), 0, x.at(steps[columns]) - x.at(steps[0]), down);
    else
      for (let column = 0; column < columns; column += 1) {
        const [start, end] = [x.at(steps[column]), x.at(steps[column + 1])];
        if (end >= 0 && start <= across)
          pen.drawImage(image, column, 0, 1, lines, Math.floor(start), 0, Math.max(Math.ceil(end) - Math.floor(start), 1), down);
      }
  }

  function furniture(width, first, last) {
    const shell = draw("g", { class: "axis" });
    const x = axis(span.from, span.to, plot.left, plot.left + plot.width);
    const each = plot.height / (last - first);
    const stride = Math.max(1, Math.ceil(15 / each));
    const letters = Math.floor((plot.left - 12) / 6.7);
    for (let row = first; row < last; row += stride) {
      const text = rowText ? rowText(row, stride) : data.labels[row];
      if (text)
        shell.append(
          draw(
            "text",
            { x: plot.left - 8, y: plot.top + (row - first + 0.5) * each + 4, "text-anchor": "end" },
            shortened(text, letters),
          ),
        );
    }
    for (let row = first; row < last;) {
      const block = blockOf(data.names[row]);
      let end = row + 1;
      while (end < last && blockOf(data.names[end]) === block) end += 1;
      const [top, below] = [plot.top + (row - first) * each + 1, plot.top + (end - first) * each - 1];
      if (block && below - top > 3) shell.append(draw("path", { class: "bracket", d: `M${plot.left - 1} ${top}h-4V${below}h4` }));
      row = end;
    }
    for (const [value, text] of ticksOf(span, x, Math.max(2, Math.floor(plot.width / 90)))) {
      const there = x.at(value);
      shell.append(
        draw("line", { class: "tick", x1: there, x2: there, y1: plot.top + plot.height, y2: plot.top + plot.height + 4 }),
        draw(
          "text",
          { x: there, y: plot.top + plot.height + 18, "text-anchor": there > plot.left + plot.width - 24 ? "end" : "middle" },
          text,
        ),
      );
    }
    shell.append(axisText(axisNameOf(span, axisName()), plot.left, plot.left + plot.width, plot.top + plot.height + 18));
    // Beside each row with marks in the shown steps stands their sign: colour alone tells nobody.
    if (each >= 9 || last - first <= 60) {
      let under = -Infinity; // where the last sign ends: none stands upon another
      for (let row = first; row < last; row += 1) {
        const worst = worstOf(row);
        const y = plot.top + (row - first + 0.5) * each + 4;
        if (worst < 2 || (worst === 5 && !data.scale.log) || y - 12 < under) continue;
        under = y;
        shell.append(draw("text", { class: "glyph", x: plot.left + plot.width + 5, y }, MARKS[worst].glyph));
      }
    }
    const written = []; // where guides have their text: of those close together each stands beside the other
    for (const guide of guides?.(data) ?? []) {
      const there = plot.top + (guide.row - first) * each;
      if (there < plot.top || there > plot.top + plot.height) continue;
      const line = there + (guide.below ? 13 : -4);
      shell.append(
        draw("line", { class: "guide", x1: plot.left, x2: plot.left + plot.width, y1: there, y2: there }),
        draw(
          "text",
          {
            class: "guide",
            x: plot.left + plot.width - 5 - 150 * written.filter((other) => Math.abs(other - line) < 13).length,
            y: line,
            "text-anchor": "end",
          },
          guide.text,
        ),
      );
      written.push(line);
    }
    svg.replaceChildren(
      shell,
      draw("rect", { class: "outline", x: plot.left - 0.5, y: plot.top - 0.5, width: plot.width + 1, height: plot.height + 1 }),
      cross,
      brush,
    );
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
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (steps[middle] <= step) low = middle;
      else high = middle;
    }
    return Math.min(low, columns - 1);
  };

  function mark() {
    cross.replaceChildren();
    if (!data || !plot.left) return; // nothing is painted yet
    const [first, last] = shownRows();
    const x = axis(span.from, span.to, plot.left, plot.left + plot.width);
    const each = plot.height / (last - first);
    const inside = (step) => step >= span.from && step <= span.to;
    if (span.cursor !== null && inside(span.cursor))
      cross.append(draw("line", { x1: x.at(span.cursor), x2: x.at(span.cursor), y1: plot.top, y2: plot.top + plot.height }));
    if (!at || at.row < first || at.row >= last) return;
    const [start, end] = [Math.max(data.steps[at.column], span.from), Math.min(data.steps[at.column + 1], span.to)];
    const top = plot.top + (at.row - first) * each;
    cross.append(draw("rect", { class: "row", x: plot.left, y: top, width: plot.width, height: each }));
    const place = { x: x.at(start) - 0.5, y: top, width: Math.max(x.at(end) - x.at(start), 2) + 1, height: Math.max(each, 2) };
    if (end >= start) cross.append(draw("rect", { class: "halo", ...place }), draw("rect", { class: "cell", ...place }));
    if (each < 15) {
      const text = shortened(data.labels[at.row], Math.floor((plot.left - 12) / 6.7));
      cross.append(
        draw("rect", { class: "label", x: 0, y: top + each / 2 - 9, width: plot.left - 3, height: 18 }),
        draw("text", { x: plot.left - 8, y: top + each / 2 + 4, "text-anchor": "end" }, text),
      );
    }
  }

  function go(row, column, event = element) {
    const moved = !at || at.row !== row || at.column !== column;
    at = { row, column };
    span.point((data.steps[column] + data.steps[column + 1]) / 2);
    if (moved) {
      mark();
      cell?.(row, column);
    }
    showTip(event, describe ? describe(data, row, column) : described(data, row, column));
  }

  function leave() {
    span.leave();
    hideTip();
    toHome();
    mark();
    cell?.(at?.row ?? null, at?.column ?? null);
  }

  function toHome() {
    const row = home !== null && span.held !== null && data?.sites ? rowOfSite(data.sites, home) : -1;
    at = row < 0 ? null : { row, column: columnAt(span.held) };
  }

  // The time was chosen, in this picture or in another.
  span.on("hold", () => {
    if (!data) return;
    toHome();
    mark();
    cell?.(at?.row ?? null, at?.column ?? null);
  });

  // The cursor returns to this cell, and so does who comes back to this picture.
  function keepCell(row, column) {
    if (!onhold || !data.sites) return;
    home = data.sites[row];
    onhold(home);
    span.hold(data.ends?.[column] ?? Math.ceil(data.steps[column]));
  }

  const found = (x, y) => {
    const [first, last] = shownRows();
    const row = Math.min(first + Math.floor((y / plot.height) * (last - first)), last - 1);
    return [Math.max(row, 0), columnAt(span.from + (x / plot.width) * (span.to - span.from))];
  };

  gestures(element, {
    span,
    brush,
    box: () => plot,
    point: (x, y, event) => {
      if (data) go(...found(x, y), event);
    },
    leave,
    click: (x, y) => {
      if (data) {
        const [row, column] = found(x, y);
        keepCell(row, column);
        open?.(row, column);
      }
    },
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
      const [row, column] = [
        Math.min(Math.max(held.row + (at ? by[0] * stride : 0), first), last - 1),
        held.column + by[1] * stride,
      ];
      if (column < start) span.move(-0.25);
      if (column >= end) span.move(0.25);
      go(row, Math.min(Math.max(column, 0), data.columns - 1));
      keepCell(row, at.column);
    } else if (event.key === "Enter" && at) open?.(at.row, at.column);
    else if (event.key === "Escape") {
      home = null;
      onhold?.("");
      span.hold(null);
      leave();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
  element.addEventListener("blur", leave);
  const repaint = once(paint);
  span.on("move", repaint);
  span.on("point", once(mark));
  onWidth(
    element,
    (now) => {
      width = now;
    },
    paint,
  );
  return {
    element,
    get cell() {
      return at;
    },
    show(next, isWhole = true) {
      if (data && next.rows !== data.rows) {
        rows = null;
        at = null;
      }
      data = {
        isWhole,
        ...next,
        labels: next.names.map((name, row) => rowLabel(name, next.kinds?.[row])),
        signs: next.shownMarks.some((mark) => mark > 1 && (mark !== 5 || next.scale.log)),
      };
      if (isWhole) whole = data;
      else if (!isAlike(whole, data)) whole = null;
      if (home !== null) toHome();
      repaint();
    },
    // The whole training, below the part that is shown.
    showBelow(next) {
      if (isAlike(next, data)) whole = { ...next, isWhole: true };
      repaint();
    },
    get isKnownWhole() {
      return whole !== null;
    },
    // The part of the training that a question should be about: whole columns, so that none at its ends is empty.
    get part() {
      if (span.isWhole || !whole?.ends) return span.part;
      const columnOf = (step) =>
        Math.max(
          whole.steps.findLastIndex((edge, column) => column < whole.columns && edge <= step),
          0,
        );
      return { from: Math.ceil(whole.steps[columnOf(span.from)]), to: whole.ends[columnOf(span.to)] };
    },
    hold(site, step) {
      home = site;
      span.hold(step);
    },
    get plot() {
      return plot;
    },
    follow(row) {
      at = row === null || !data ? null : { row, column: columnAt(span.cursor ?? span.from) };
      mark();
    },
    showRows(from, to) {
      rows = from === null ? null : [from, to];
      repaint();
    },
    frame: paint,
  };
}

// The row of a site among others: its own; of one whose output holds several tensors, that of the first; where another port is shown,
// that of its layer, or of the nearest layer around it.
export function rowOfSite(sites, site) {
  const own = sites.indexOf(site);
  if (own >= 0) return own;
  const first = sites.findIndex((each) => each.startsWith(site) && /^[.[]/.test(each.slice(site.length)));
  if (first >= 0) return first;
  const [layer] = partsOf(site);
  const names = sites.map((each) => partsOf(each)[0]);
  const inside = names.findIndex((name) => name === layer || name.startsWith(`${layer}.`));
  if (inside >= 0) return inside;
  const around = names.filter((name) => layer.startsWith(`${name}.`)).sort((one, other) => other.length - one.length);
  return around.length ? names.indexOf(around[0]) : -1;
}

// Whether two pictures have the same rows of the same number.
const isAlike = (one, other) => one?.rows === other?.rows && one?.id === other?.id && one?.sites?.[0] === other?.sites?.[0];

function isEven(steps) {
  const width = (steps.at(-1) - steps[0]) / (steps.length - 1);
  return steps.every((step, place) => Math.abs(step - steps[0] - place * width) <= width * 0.51);
}

export function stepsOf(data, column) {
  const [first, last] = [
    data.firsts?.[column] ?? Math.ceil(data.steps[column]),
    data.ends?.[column] ?? Math.ceil(data.steps[column + 1]) - 1,
  ];
  return last > first ? `steps ${whole(first)} to ${whole(last)}` : `step ${whole(first)}`;
}

function described(data, row, column) {
  const place = row * data.columns + column;
  const mark = data.marks[place];
  const value =
    mark && mark !== 5
      ? (mark === 1 && data.absent) || MARKS[mark].name
      : mark === 5
        ? "exactly 0"
        : plain(data.values[place], data.digits);
  const own = data.absolute;
  if (data.folds?.[row] > 1) return ofFolded(data, row, column, place);
  const spike = data.stands[place]
    ? [make("dt", null, "one step stands out"), make("dd", null, plain(data.shown[place], data.digits))]
    : null;
  return make(
    "div",
    null,
    make("strong", null, data.names[row]),
    data.kinds?.[row] ? make("span", { class: "quiet" }, ` ${data.kinds[row]}`) : null,
    make(
      "dl",
      null,
      make("dt", null, spike ? `median ${data.label ?? "value"}` : (data.label ?? "value")),
      make("dd", null, value),
      spike,
      own && (!mark || mark === 5)
        ? [
            make("dt", null, own.label),
            make("dd", null, plain(own.values[place], own.digits)),
            make("dt", null, `its median${beforeOf(own)}`),
            make("dd", null, plain(own.reference[row], 3)),
          ]
        : null,
    ),
    make("p", { class: "quiet" }, stepsOf(data, column)),
  );
}

function ofFolded(data, row, column, place) {
  return make(
    "div",
    null,
    make("strong", null, data.names[row]),
    make("p", { class: "quiet" }, `${many(data.folds[row], "row")}, alike ${data.like[row]}; enter shows them`),
    make(
      "dl",
      null,
      make("dt", null, "the largest change of any"),
      make("dd", null, `${plain(data.values[place], 3)} of its median`),
    ),
    make("p", { class: "quiet" }, stepsOf(data, column)),
  );
}

// The block in which a layer stands: its name up to the first number. Rows of one block have a bracket.
export const blockOf = (name) => /^(?:[^.]*\.)*?\d+(?=\.|\[|$| to )/.exec(name)?.[0] ?? "";

// The legend of a scale of colours: ends, unit, whether it is logarithmic, and the marks that occur.
export function legendOf({ scale, unit, label, shownMarks: marks, logged, columns, spikes, absent }, note) {
  const held = axis(scale.low, scale.high, 0, 200, scale.log);
  const seen = new Set(marks);
  const bar = make("span", { class: "ramp", style: { background: gradient(scale.diverging ? "diverging" : "sequential") } });
  const share = shareOn(scale);
  const shown = ticks(held, 4).filter(([value]) => value >= scale.low && value <= scale.high);
  const labels = make(
    "span",
    { class: "ramp-ticks" },
    shown.map(([value, text]) => make("span", { style: { left: `${share(value) * 100}%` } }, text)),
  );
  const beyond = [];
  if (scale.least !== null && scale.least < scale.low && !(scale.log && scale.least <= 0))
    beyond.push(`below: down to ${plain(scale.least, 3)}`);
  if (scale.most !== null && scale.most > scale.high) beyond.push(`above: up to ${plain(scale.most, 3)}`);
  const signs = MARKS.map((mark, place) => /** @type {[any, number]} */ ([mark, place]))
    .filter(([mark, place]) => mark && seen.has(place) && (place !== 5 || scale.log || scale.diverging))
    .map(([mark, place]) =>
      make(
        "span",
        { class: "sign" },
        make("i", {
          class: place === 1 ? "void" : "",
          style: mark.colour ? { background: groundOf(place) } : null,
        }),
        (place === 1 && absent) || mark.name,
      ),
    );
  return make(
    "div",
    { class: "legend" },
    make("span", { class: "scale" }, bar, labels),
    make("span", { class: "unit" }, [label, unit ? `(${unit})` : "", scale.log ? "· logarithmic" : ""].filter(Boolean).join(" ")),
    beyond.map((text) => make("span", { class: "quiet" }, text)),
    signs,
    logged > columns
      ? make(
          "span",
          { class: "quiet" },
          `a column is the median of ${Math.ceil(logged / columns)} logged steps; its worst mark is kept${spikes ? `, and a step that stands out has its own colour (${many(spikes, "cell")})` : ""}`,
        )
      : null,
    note ? make("span", { class: "quiet" }, note) : null,
  );
}
