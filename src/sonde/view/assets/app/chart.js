// Draws lines over the steps of a training: an envelope where several steps share a pixel, marks for what is no number, findings on top.
import { draw, make, plain, whole } from "./dom.js";
import { heightOf, resizer } from "./resizing.js";
import { saveButtons } from "./saving.js";
import { MARKS, axis, axisText, ends, ticks } from "./scales.js";
import { smoothed } from "./smoothing.js";
import { gestures, onWidth, once } from "./span.js";
import { axisNameOf, ticksOf, whenWords } from "./timeaxis.js";
import { hideTip, showTip } from "./tip.js";

const MARGINS = [66, 14];
let charts = 0; // drawn so far, each with a name of its own
const LANE = 5; // pixels: the marks of each line have a lane of their own
const isBelow = (mark) => mark === 4 || mark === 5; // minus infinity and, on a logarithmic axis, zero

const tenth = (pixel) => Math.round(pixel * 10) / 10; // far cheaper than toFixed

// The path through the points, broken where a value is missing.
function lineOf(steps, values, x, y) {
  const parts = [];
  let open = false;
  for (let place = 0; place < steps.length; place += 1) {
    const value = values[place];
    const there = value !== null && Number.isFinite(value) && !(y.log && value <= 0);
    if (there) parts.push(open ? "L" : "M", tenth(x.at(steps[place])), " ", tenth(y.at(value)));
    open = there;
  }
  return parts.join("");
}

function envelopeOf(steps, low, high, x, y) {
  let text = "";
  for (let place = 0; place < steps.length;) {
    const there = (at) =>
      at < steps.length &&
      low[at] !== null &&
      high[at] !== null &&
      Number.isFinite(low[at]) &&
      Number.isFinite(high[at]) &&
      !(y.log && high[at] <= 0);
    if (!there(place)) {
      place += 1;
      continue;
    }
    let until = place;
    while (there(until)) until += 1;
    const [forth, back] = [[], []];
    for (let at = place; at < until; at += 1) {
      const left = tenth(x.at(steps[at]));
      forth.push(`${left} ${tenth(y.at(high[at]))}`);
      back.push(`${left} ${tenth(y.at(y.log ? Math.max(low[at], y.low) : low[at]))}`);
    }
    text += `M${forth.join("L")}L${back.reverse().join("L")}Z`;
    place = until;
  }
  return text;
}

// The single points: a line of one point is a dot.
function dotsOf({ steps, values }, x, y) {
  const there = (at) =>
    at >= 0 && at < steps.length && values[at] !== null && Number.isFinite(values[at]) && !(y.log && values[at] <= 0);
  return steps
    .map((_, at) => at)
    .filter((at) => there(at) && !there(at - 1) && !there(at + 1))
    .map((at) => [x.at(steps[at]), y.at(values[at])]);
}

export const nearest = (steps, step) => {
  let [low, high] = [0, steps.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle;
    else high = middle;
  }
  return Math.abs(steps[low] - step) <= Math.abs(steps[high] - step) ? low : high;
};

// Whether two scalars have the same value at each step, as a gradient's norm with and without a clipping that never clips.
export function isSameLine(one, other) {
  const isSame = (a, b) => a === b || (a?.length === b?.length && Boolean(a?.every((value, place) => value === b[place])));
  return one === other || ["steps", "values", "low", "high", "marks"].every((part) => isSame(one[part], other[part]));
}

// Findings near each other share one sign, whose count has room before the next one.
export function clustered(markers, x) {
  const found = [];
  for (const marker of [...markers].sort((one, other) => one.step - other.step)) {
    const at = x.at(marker.step);
    if (at < x.first - 1 || at > x.last + 1) continue;
    const last = found.at(-1);
    const counted = last && last.all.length > 1 ? 2 + 7 * String(last.all.length).length : 0;
    if (last && at - last.at < 15 + counted) {
      last.all.push(marker);
      if (marker.severity === "bad") last.severity = "bad";
    } else found.push({ at, severity: marker.severity, all: [marker] });
  }
  return found;
}

const SHAPES = { bad: "M-4.5-4.5h9v9h-9z", warn: "M0-5.5 5.5 4.5h-11z", note: "M0-5 5 0 0 5-5 0z" };

// Return {element, show(data)}. Data: {series: [{name, colour, steps, values, low, high, marks, quiet}], unit, log, markers, lines, band}.
/** @param {import("./span.js").Span} span @param {any} [options] */
export function lineChart(
  span,
  { height: usual = 190, label, onmarker, gutter, axisName = () => "step", where = (at) => `step ${whole(Math.round(at))}` } = {},
) {
  let [left, right] = MARGINS;
  let height = heightOf(label) ?? usual;
  const element = make("div", {
    class: "chart",
    tabindex: 0,
    role: "group",
    "aria-roledescription": "line chart",
    "aria-label": label,
    style: { height: `${height}px` },
  });
  const svg = draw("svg", { width: "100%", height });
  const brush = draw("rect", { class: "brush", visibility: "hidden" });
  const rows = () => [
    ["name", "step", "value", "low", "high", "mark", ...(span.window > 1 ? ["smoothed"] : [])],
    ...data.series.flatMap((series) => {
      const { name, steps, values, low, high, marks } = series;
      const smooth = smoothOf(series);
      const line = (step, at) => [name, step, values[at], low?.[at], high?.[at], MARKS[marks?.[at] ?? 0]?.name];
      return steps.map((step, at) => (smooth ? [...line(step, at), smooth[at]] : line(step, at)));
    }),
  ];
  // The average of a line, where lines are smoothed; it is of all points that are there, also of those before the part that is seen.
  const smooths = new WeakMap();
  const smoothOf = (series) => {
    if (span.window <= 1) return null;
    if (smooths.get(series)?.window !== span.window)
      smooths.set(series, { window: span.window, values: smoothed(series.values, span.window, series.joined) });
    return smooths.get(series).values;
  };
  element.append(
    svg,
    saveButtons(element, () => data.series.map(({ name }) => name).join(" "), rows),
    resizer(
      label,
      () => height,
      (next) => {
        height = next ?? usual;
        bottom = height - 24;
        element.style.height = `${height}px`;
        svg.setAttribute("height", String(height));
        repaint();
      },
    ),
  );
  let width = 0;
  let data = { series: [] };
  let [x, y] = [axis(0, 1, left, left + 1), axis(0, 1, 1, 0)];
  const hasLane = ({ values, marks }) =>
    marks
      ? marks.some((mark) => mark > 1 && !isBelow(mark))
      : values.some((value) => Number.isNaN(value) || value === Number.POSITIVE_INFINITY);
  const top = () => (data.markers?.length ? 20 : 8) + laned;
  let bottom = height - 24;
  let [lanes, laned] = [0, 0];
  const named = new Set();

  function paint() {
    if (!width) return;
    const beside = gutter?.();
    [left, right] = beside && beside.width > 1 ? [beside.left, width - beside.left - beside.width] : MARGINS;
    lanes = 0;
    named.clear();
    x = axis(span.from, span.to, left, width - right);
    const shown = data.series.map((series) => inSpan(series));
    const count = shown.filter(hasLane).length;
    laned = count ? count * LANE + 6 : 0;
    const [low, high] =
      data.ends ??
      ends(
        [
          ...shown.flatMap(({ values, low, high }) => (low ? [values, low, high] : [values])),
          (data.lines ?? []).map((line) => line.value),
          data.band ? [data.band.low, data.band.high] : [],
        ],
        data.log,
      );
    y = axis(low, high, bottom, top(), data.log);
    const clip = `clip-${(charts += 1)}`;
    const plot = draw("g", { "clip-path": `url(#${clip})` });
    const back = draw("g", { class: "axis" });
    for (const [value, text] of ticks(y, Math.max(2, Math.floor((bottom - top()) / 34)))) {
      const at = y.at(value);
      if (at < top() - 1 || at > bottom + 1) continue;
      back.append(
        draw("line", { x1: left, x2: x.last, y1: at, y2: at }),
        draw("text", { x: left - 8, y: at + 4, "text-anchor": "end" }, text),
      );
    }
    for (const [value, text] of ticksOf(span, x, Math.max(2, Math.floor((x.last - left) / 90)))) {
      back.append(
        draw("text", { x: x.at(value), y: bottom + 17, "text-anchor": x.at(value) > x.last - 30 ? "end" : "middle" }, text),
      );
    }
    back.append(axisText(axisNameOf(span, axisName()), left, x.last, bottom + 17));
    back.append(draw("line", { class: "base", x1: left, x2: x.last, y1: bottom, y2: bottom }));
    if (data.band) {
      const [above, below] = [Math.max(y.at(data.band.high), top()), Math.min(y.at(data.band.low), bottom)];
      if (below > above)
        plot.append(draw("rect", { class: "band", x: left, width: x.last - left, y: above, height: below - above }));
    }
    for (const line of data.lines ?? []) {
      const at = y.at(line.value);
      if (at < top() || at > bottom) continue;
      plot.append(
        draw("line", { class: "limit", x1: left, x2: x.last, y1: at, y2: at }),
        draw("text", { class: "limit", x: x.last - 4, y: at - 4, "text-anchor": "end" }, line.text),
      );
    }
    shown.forEach((series, place) => {
      const { colour, quiet } = data.series[place];
      if (series.low)
        plot.append(
          draw("path", {
            class: "envelope",
            fill: colour,
            d: envelopeOf(series.steps, series.low, series.high, x, y),
            opacity: quiet || series.smooth ? 0.1 : 0.2,
          }),
        );
    });
    shown.forEach((series, place) => {
      const { colour, quiet, dash } = data.series[place];
      const lineAs = (name, values, opacity, width) =>
        draw("path", {
          class: name,
          stroke: colour,
          d: lineOf(series.steps, values, x, y),
          opacity,
          "stroke-width": width,
          "stroke-dasharray": dash,
        });
      if (series.smooth)
        plot.append(
          lineAs("line raw", series.values, 0.35, 1),
          lineAs("line smooth", series.smooth, quiet ? 0.55 : 1, quiet ? 1.2 : 2),
        );
      else plot.append(lineAs("line", series.values, quiet ? 0.55 : 1, quiet ? 1 : 1.6));
      for (const [at, value] of dotsOf(series, x, y)) plot.append(draw("circle", { cx: at, cy: value, r: 2.2, fill: colour }));
      plot.append(...marksOf(series, colour));
    });
    const signs = draw("g", { class: "markers" });
    for (const { at, severity, all } of clustered(data.markers ?? [], x)) {
      const names = all.map((each) => `step ${whole(each.step)}: ${each.text}`);
      signs.append(
        draw(
          "a",
          {
            class: `marker ${severity}`,
            href: all[0].href,
            "aria-label": names.join("; "),
            transform: `translate(${at.toFixed(1)} 9)`,
            onpointerenter: (event) =>
              showTip(
                event,
                make(
                  "div",
                  null,
                  names.slice(0, 6).map((text) => make("p", null, text)),
                  names.length > 6 ? make("p", { class: "quiet" }, `and ${names.length - 6} more`) : null,
                ),
              ),
            onpointerleave: hideTip,
            onclick: () => {
              hideTip();
              onmarker?.(all[0]);
            },
          },
          draw("line", { y1: 8, y2: bottom - 9 }),
          draw("path", { d: SHAPES[severity] ?? SHAPES.note }),
          draw("rect", { x: -8, y: -8, width: 16, height: 16, fill: "transparent" }),
          all.length > 1 ? draw("text", { x: 7, y: 4 }, String(all.length)) : null,
        ),
      );
    }
    svg.replaceChildren(
      draw(
        "defs",
        null,
        draw(
          "clipPath",
          { id: clip },
          draw("rect", {
            x: left - 1,
            y: top() - laned - 1,
            width: Math.max(x.last - left + 2, 0),
            height: bottom - top() + laned + 2,
          }),
        ),
      ),
      back,
      plot,
      signs,
      cursorGroup,
      brush,
    );
    point();
  }

  // The part of a series in the span, and one point beyond each end.
  function inSpan(series) {
    const { steps } = series;
    const smooth = smoothOf(series);
    if (!steps.length || (steps[0] >= span.from && steps.at(-1) <= span.to)) return smooth ? { ...series, smooth } : series;
    let start = 0;
    while (start < steps.length - 1 && steps[start + 1] < span.from) start += 1;
    let end = steps.length;
    while (end > start + 1 && steps[end - 2] > span.to) end -= 1;
    const cut = (list) => list && list.slice(start, end);
    return {
      steps: cut(steps),
      values: cut(series.values),
      low: cut(series.low),
      high: cut(series.high),
      marks: cut(series.marks),
      smooth: cut(smooth),
    };
  }

  // What is no number stands on the upper edge, minus infinity and exact zeros on the lower one: off the axis.
  function marksOf({ steps, values, marks }, own) {
    const found = [];
    let last = null;
    for (let place = 0; place < steps.length; place += 1) {
      let mark = marks?.[place] ?? 0;
      if (!marks && typeof values[place] === "number" && !Number.isFinite(values[place]))
        mark = Number.isNaN(values[place]) ? 2 : values[place] > 0 ? 3 : 4;
      if (mark < 2 || (mark === 5 && !y.log)) {
        last = null;
        continue;
      }
      const at = x.at(steps[place]);
      if (last && last.mark === mark) {
        last.to = at;
        continue;
      }
      last = { mark, from: at, to: at };
      found.push(last);
    }
    if (!found.length) return [];
    const lane = lanes;
    if (found.some(({ mark }) => !isBelow(mark))) lanes += 1;
    return found.map(({ mark, from, to }, place) => {
      const { colour, glyph } = MARKS[mark];
      const edge = isBelow(mark) ? bottom - LANE + 1 : top() - laned + lane * LANE;
      const isNew = !named.has(mark);
      named.add(mark);
      return draw(
        "g",
        { class: mark === 5 ? "mark zero" : "mark" },
        draw("rect", { x: from - 1.5, width: to - from + 3, y: edge, height: LANE - 1, fill: `rgb(${colour.join(" ")})` }),
        place === 0 && mark !== 5 ? draw("rect", { x: from - 6, width: 4, y: edge, height: LANE - 1, fill: own }) : null,
        isNew
          ? draw(
              "text",
              {
                x: isBelow(mark) ? Math.max(from, left + 2) : Math.max(from - 8, left + 2),
                y: isBelow(mark) ? bottom - 7 : from < left + 60 ? top() + 9 : edge + 8,
                "text-anchor": isBelow(mark) || from < left + 60 ? "start" : "end",
              },
              glyph,
            )
          : null,
      );
    });
  }

  const cursorGroup = draw("g", { class: "cursor" });
  function point() {
    cursorGroup.replaceChildren();
    if (span.cursor === null || span.cursor < span.from || span.cursor > span.to) return;
    const at = x.at(span.cursor);
    cursorGroup.append(draw("line", { x1: at, x2: at, y1: top(), y2: bottom }));
    for (const series of data.series) {
      if (!series.steps.length) continue;
      const place = nearest(series.steps, span.cursor);
      const value = (smoothOf(series) ?? series.values)[place];
      if (value !== null && Number.isFinite(value) && !(y.log && value <= 0))
        cursorGroup.append(draw("circle", { cx: x.at(series.steps[place]), cy: y.at(value), r: 3.4, fill: series.colour }));
    }
  }

  function describe(step, event) {
    const rows = data.series
      .filter((series) => series.steps.length)
      .map((series) => {
        const place = nearest(series.steps, step);
        const mark = series.marks?.[place] ?? 0;
        const smooth = smoothOf(series);
        const value = mark > 1 && mark < 5 ? MARKS[mark].name : plain(series.values[place]);
        const spread =
          series.low &&
          series.high &&
          series.low[place] !== series.high[place] &&
          Number.isFinite(series.low[place]) &&
          series.low[place] !== null
            ? ` (${plain(series.low[place], 3)} to ${plain(series.high[place], 3)})`
            : "";
        return [
          make("dt", null, make("i", { class: "swatch", style: { background: series.colour } }), series.name),
          make("dd", null, value + spread, smooth ? make("span", { class: "quiet" }, ` · ${plain(smooth[place])}`) : null),
        ];
      });
    const first = data.series.find((series) => series.steps.length);
    const shownStep = first ? first.steps[nearest(first.steps, step)] : step;
    showTip(
      event ?? element,
      make(
        "div",
        null,
        make("p", { class: "quiet" }, where(shownStep), whenWords(span, shownStep), span.window > 1 ? " · smoothed" : ""),
        make("dl", null, rows),
      ),
    );
  }

  const nearestTo = (step) => {
    const { steps } = data.series.find((series) => series.steps.length) ?? { steps: [step] };
    return Math.round(steps[nearest(steps, step)]);
  };

  gestures(element, {
    span,
    brush,
    box: () => ({ left: left, top: top(), width: Math.max(x.last - left, 1), height: bottom - top() }),
    point: (at, _, event) => {
      if (event.target.closest?.("a")) return;
      const step = x.back(at + left);
      span.point(step);
      describe(step, event);
    },
    leave: () => {
      span.leave();
      hideTip();
    },
    click: (at) => span.hold(nearestTo(x.back(at + left))),
  });
  element.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const steps = data.series.find((series) => series.steps.length)?.steps;
    if (!by || !steps || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const place =
      span.cursor === null
        ? by > 0
          ? nearest(steps, span.from)
          : nearest(steps, span.to)
        : nearest(steps, span.cursor) + by * (event.shiftKey ? 10 : 1);
    const step = steps[Math.min(Math.max(place, 0), steps.length - 1)];
    if (step < span.from || step > span.to) span.move(by * 0.3);
    span.point(step);
    describe(step);
  });
  element.addEventListener("blur", () => {
    span.leave();
    hideTip();
  });
  const repaint = once(paint);
  span.on("move", repaint);
  span.on("point", once(point));
  onWidth(
    element,
    (now) => {
      width = now;
    },
    paint,
  );
  return {
    element,
    show(next) {
      data = next;
      repaint();
    },
    again: repaint,
    frame: paint,
  };
}

// A small line without axes: the history of a number beside its name.
export function sparkline({ values, marks = null, log }, width = 150, height = 30) {
  const svg = draw("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const steps = values.map((_, place) => place);
  const [low, high] = ends([values], log);
  const [x, y] = [axis(0, Math.max(values.length - 1, 1), 2, width - 2), axis(low, high, height - 5, 5, log)];
  svg.append(draw("path", { d: lineOf(steps, values, x, y) }));
  for (const [at, value] of dotsOf({ steps, values }, x, y)) svg.append(draw("circle", { cx: at, cy: value, r: 1.8 }));
  (marks ?? []).forEach((mark, place) => {
    if (mark > 1 && mark < 5)
      svg.append(
        draw("rect", { x: x.at(place) - 1, y: 0, width: 2, height: 4, style: { fill: `rgb(${MARKS[mark].colour.join(" ")})` } }),
      );
  });
  return svg;
}
