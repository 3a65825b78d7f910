// The elements of one tensor at one step as bars: which share has which power of two, beside the limits of number formats.
import { draw, make, percent, plain, raised } from "./dom.js";
import { saveButtons } from "./saving.js";
import { axis, isDark, lineColour, ticks } from "./scales.js";
import { onWidth, once } from "./span.js";
import { hideTip, showTip } from "./tip.js";

const PLOT = { left: 66, right: 14, top: 46, floor: 192 }; // in pixels; above it three lines of text
const HEIGHT = 228;
const LETTER = 6.8; // pixels

// The mean over the columns of an answer, as shares by power.
export function meanShare({ share, powers }) {
  return powers.map((_, place) => share.reduce((sum, column) => sum + column[place], 0) / Math.max(share.length, 1));
}

// What most elements are, in words: the shortest range of powers with nine of ten, and what has no power.
export function spreadWords({ powers, share: [share], zeros: [zeros], nonfinite: [broken] }) {
  const all = share.reduce((sum, each) => sum + each, 0);
  let best = null;
  for (let start = 0; all > 0 && start < share.length; start += 1) {
    let held = 0;
    for (let end = start; end < share.length; end += 1) {
      held += share[end];
      if (held < 0.9 * all) continue;
      if (!best || end - start < best[1] - best[0]) best = [start, end];
      break;
    }
  }
  return [
    best ? `nine of ten magnitudes lie from 2${raised(powers[best[0]])} to 2${raised(powers[best[1]] + 1)}` : "",
    zeros > 0 ? `${percent(zeros)} are exactly 0` : "",
    broken > 0 ? `${percent(broken)} are NaN or infinite` : "",
  ]
    .filter(Boolean)
    .join(" · ");
}

// Texts at places of an axis in up to three lines, so that none stands upon another; one that would leave the picture stands left of its place.
// "fp16 least normal" and "e5m2 least normal" at one place are one text. For what finds no room, isShown is false.
export function placedTexts(texts, end) {
  const ends = [-Infinity, -Infinity, -Infinity]; // of the last text in each line
  const joined = new Map();
  for (const { at, text } of texts) {
    const [name, ...words] = text.split(" ");
    const key = [at, ...words].join(" ");
    joined.set(key, { at, text: joined.has(key) ? joined.get(key).text.replace(" ", `, ${name} `) : text });
  }
  return [...joined.values()]
    .sort((one, other) => one.at - other.at)
    .map(({ at, text }) => {
      const wide = text.length * LETTER + 8;
      const isLeft = at + wide > end;
      const [left, right] = isLeft ? [at - wide, at] : [at, at + wide];
      const free = ends.findIndex((last) => last <= left);
      const isShown = free >= 0;
      const line = Math.max(free, 0);
      if (isShown) ends[line] = right;
      return { at, text, line, isLeft, isShown };
    });
}

// What a pointer is told of one power of two: its magnitudes, and texts by name.
export function powerNote(power, texts, ...behind) {
  const magnitude = `${plain(2 ** power, 3)} to ${plain(2 ** (power + 1), 3)}`;
  const lines = Object.entries({ magnitude, ...texts });
  return make(
    "div",
    null,
    make("strong", null, `2${raised(power)} to 2${raised(power + 1)}`),
    make(
      "dl",
      null,
      lines.flatMap(([name, text]) => [make("dt", null, name), make("dd", null, text)]),
    ),
    ...behind,
  );
}

// Return {element, show(answer, usual)}: the distribution of one step, and the shares of the whole training, which are drawn as an outline.
export function histogram() {
  const svg = draw("svg", { width: "100%", height: HEIGHT });
  let [answer, usual, width] = [null, null, 0];
  const element = make("div", { class: "chart plain histogram", style: { height: `${HEIGHT}px` } }, svg);
  const rows = () => [
    ["magnitude from", "to", "share at the step", "share in the training"],
    ...answer.powers.map((power, place) => [2 ** power, 2 ** (power + 1), answer.share[0][place], usual[place]]),
    ["exactly 0", null, answer.zeros[0], null],
    ["NaN or infinite", null, answer.nonfinite[0], null],
  ];
  element.append(saveButtons(element, () => (answer ? `distribution ${answer.site} ${answer.ends[0]}` : ""), rows));

  // The powers that have elements here or in the training, with some room; all where there are none.
  function ends() {
    const there = answer.powers.filter((_, place) => answer.share[0][place] > 0 || usual[place] > 1e-4);
    return there.length ? [there[0] - 2, there.at(-1) + 3] : [answer.powers[0], answer.powers.at(-1) + 1];
  }

  function paint() {
    if (!width || !answer) return;
    const [first, last] = ends();
    const x = axis(first, last, PLOT.left, width - PLOT.right);
    const most = Math.max(...answer.share[0], ...usual, 0.01);
    const y = axis(0, most * 1.06, PLOT.floor, PLOT.top);
    const shell = draw("g", { class: "axis" });
    for (const [value, text] of ticks(y, 4))
      shell.append(
        draw("line", { x1: PLOT.left, x2: x.last, y1: y.at(value), y2: y.at(value) }),
        draw("text", { x: PLOT.left - 8, y: y.at(value) + 4, "text-anchor": "end" }, text === "0" ? "0" : percent(value)),
      );
    const stride = [1, 2, 4, 8, 16, 32].find((size) => ((last - first) / size) * 44 <= x.last - PLOT.left) ?? 64;
    for (let power = Math.ceil(first / stride) * stride; power <= last; power += stride)
      shell.append(draw("text", { x: x.at(power), y: PLOT.floor + 17, "text-anchor": "middle" }, `2${raised(power)}`));
    shell.append(draw("line", { class: "base", x1: PLOT.left, x2: x.last, y1: PLOT.floor, y2: PLOT.floor }));
    shell.append(draw("text", { x: x.last, y: PLOT.floor + 33, "text-anchor": "end" }, "magnitude"));
    const bars = draw("g");
    let outline = "";
    answer.powers.forEach((power, place) => {
      if (power < first || power >= last) return;
      const [left, right] = [x.at(power), x.at(power + 1)];
      const share = answer.share[0][place];
      outline += `${outline ? "L" : "M"}${left.toFixed(1)} ${y.at(usual[place]).toFixed(1)}H${right.toFixed(1)}`;
      const tip = powerNote(power, { "share of elements": percent(share), "mean of the training": percent(usual[place]) });
      bars.append(
        draw("rect", {
          x: left + 0.5,
          width: Math.max(right - left - 1, 1),
          y: y.at(share),
          height: PLOT.floor - y.at(share),
          fill: lineColour(0),
          opacity: 0.75,
        }),
        draw("rect", {
          x: left,
          width: right - left,
          y: PLOT.top,
          height: PLOT.floor - PLOT.top,
          fill: "transparent",
          onpointermove: (event) => showTip(event, tip),
          onpointerleave: hideTip,
        }),
      );
    });
    const limits = placedTexts(
      answer.limits.filter(({ power }) => power > first && power < last).map(({ power, text }) => ({ at: x.at(power), text })),
      x.last,
    ).map(({ at, text, line, isLeft, isShown }) =>
      draw(
        "g",
        null,
        draw("line", { class: "limit", x1: at, x2: at, y1: 13 * line, y2: PLOT.floor }),
        draw(
          "text",
          { class: "limit", x: at + (isLeft ? -4 : 4), y: 11 + 13 * line, "text-anchor": isLeft ? "end" : "start" },
          isShown ? text : "",
        ),
        draw("title", null, text),
      ),
    );
    svg.replaceChildren(
      shell,
      bars,
      draw("path", {
        d: outline,
        fill: "none",
        stroke: isDark() ? "#d6d9e2" : "#3a3f4d",
        "stroke-width": 1.3,
        "stroke-dasharray": "3 2",
        "pointer-events": "none",
      }),
      ...limits,
    );
  }
  onWidth(
    element,
    (now) => {
      width = now;
    },
    once(paint),
  );
  return {
    element,
    show(next, shares) {
      [answer, usual] = [next, shares];
      svg.setAttribute("role", "img");
      svg.setAttribute("aria-label", `Share of elements with each power of two: ${spreadWords(answer)}`);
      paint();
    },
  };
}
