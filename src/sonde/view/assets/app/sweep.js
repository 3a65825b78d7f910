// Many runs as one picture: a metric against a setting, and a line for each run through all of its settings.
import { linkTo } from "./address.js";
import { draw, make, shortened } from "./dom.js";
import { knownOf, settingText } from "./query.js";
import { saveButtons } from "./saving.js";
import { axis, ends, ramp, ticks } from "./scales.js";
import { onWidth, once } from "./span.js";
import { hideTip, showTip } from "./tip.js";

const MOST_AXES = 8;

// The colour of a place on the ordered ramp. Its ends are left out: one is nearly black, the other nearly white.
export function orderedColour(share) {
  const at = 3 * Math.round(20 + 200 * share);
  return `rgb(${[...ramp("sequential").slice(at, at + 3)].join(" ")})`;
}

// A scale for values of runs: numbers on an axis, logarithmic where they are far apart; others one beside the other.
export function scaleOf(values, first, last) {
  const there = values.filter((value) => value !== undefined && value !== null);
  if (there.length && there.every((value) => typeof value === "number")) {
    const [least, most] = [Math.min(...there), Math.max(...there)];
    const log = least > 0 && most >= 10 * least;
    const scale = axis(...ends([there], log), first, last, log);
    return { at: (value) => (typeof value === "number" ? scale.at(value) : null), ticks: ticks(scale, 5) };
  }
  const kinds = [...new Set(there.map(String))].sort((one, other) => one.localeCompare(other, "en", { numeric: true }));
  const place = (text) => first + ((kinds.indexOf(text) + 0.5) / Math.max(kinds.length, 1)) * (last - first);
  return {
    at: (value) => (value === undefined || value === null ? null : place(String(value))),
    ticks: kinds.map((text) => [text, text]),
  };
}

// Return {element, show(runs, x, y, names)}: runs with a colour; x and y the names of a setting and a metric, names those of all axes.
export function sweepPicture() {
  const dots = draw("svg", { width: "100%", height: 300 });
  const lines = draw("svg", { width: "100%", height: 300 });
  const [first, second] = [make("div", { class: "chart plain" }, dots), make("div", { class: "chart plain" }, lines)];
  const element = make(
    "div",
    { class: "pictures sweep" },
    make("figure", null, make("figcaption", null, make("h2", null, "A metric against a setting")), first),
    make("figure", null, make("figcaption", null, make("h2", null, "Each run through its settings")), second),
  );
  let held = null;
  const numbers = () => {
    const names = [...new Set([held.x, ...held.names, held.y])];
    return [["run", ...names], ...held.runs.map((run) => [run.name, ...names.map((name) => knownOf(run, name) ?? null)])];
  };
  for (const box of [first, second]) box.append(saveButtons(box, () => `sweep ${held.y} ${held.x}`, numbers));
  const tip = (run) => ({
    onpointerenter: (event) =>
      showTip(
        event,
        make(
          "div",
          null,
          make("strong", null, run.name),
          make(
            "dl",
            null,
            [...new Set([held.x, ...held.names, held.y])].map((name) => [
              make("dt", null, name),
              make("dd", null, settingText(knownOf(run, name) ?? null)),
            ]),
          ),
        ),
      ),
    onpointerleave: hideTip,
  });

  function paintDots() {
    const width = first.clientWidth;
    if (!width || !held) return;
    const { runs, x: xName, y: yName } = held;
    const x = scaleOf(
      runs.map((run) => knownOf(run, xName)),
      70,
      width - 20,
    );
    const y = scaleOf(
      runs.map((run) => knownOf(run, yName)),
      262,
      14,
    );
    const shell = draw("g", { class: "axis" });
    for (const [value, text] of y.ticks)
      shell.append(
        draw("line", { x1: 64, x2: width - 14, y1: y.at(value), y2: y.at(value) }),
        draw("text", { x: 58, y: y.at(value) + 4, "text-anchor": "end" }, shortened(text, 8)),
      );
    for (const [value, text] of x.ticks)
      shell.append(draw("text", { x: x.at(value), y: 281, "text-anchor": "middle" }, shortened(text, 12)));
    shell.append(draw("text", { x: width - 14, y: 297, "text-anchor": "end" }, xName), draw("text", { x: 4, y: 12 }, yName));
    const points = runs
      .map((run) => [run, x.at(knownOf(run, xName)), y.at(knownOf(run, yName))])
      .filter(([, left, top]) => left !== null && top !== null)
      .map(([run, left, top]) =>
        draw(
          "a",
          {
            href: linkTo("overview", run.id),
            "aria-label": `${run.name}: ${yName} ${settingText(knownOf(run, yName))}`,
            ...tip(run),
          },
          draw("circle", { class: "dot-of-run", cx: left, cy: top, r: 5.5, fill: run.colour }),
        ),
      );
    dots.replaceChildren(shell, ...points);
  }

  function paintLines() {
    const width = second.clientWidth;
    if (!width || !held) return;
    const { runs, y: yName } = held;
    const names = [...held.names.filter((name) => name !== yName).slice(0, MOST_AXES - 1), yName];
    const across = (place) => 50 + (place * (width - 110)) / Math.max(names.length - 1, 1);
    const scales = names.map((name) =>
      scaleOf(
        runs.map((run) => knownOf(run, name)),
        262,
        34,
      ),
    );
    const shell = draw("g", { class: "axis" });
    const letters = Math.max(5, Math.floor((width - 110) / Math.max(names.length - 1, 1) / 7));
    names.forEach((name, place) => {
      const left = across(place);
      shell.append(
        draw("line", { class: "base", x1: left, x2: left, y1: 34, y2: 262 }),
        draw("text", { class: "title", x: left, y: 18, "text-anchor": "middle" }, shortened(name, letters)),
      );
      for (const [value, text] of scales[place].ticks)
        shell.append(draw("text", { x: left + 5, y: scales[place].at(value) + 4 }, shortened(text, 10)));
    });
    const paths = runs.map((run) => {
      const points = names.map((name, place) => [across(place), scales[place].at(knownOf(run, name))]);
      const d = points.map(([left, top], place) =>
        top === null ? "" : `${place && points[place - 1][1] !== null ? "L" : "M"}${left} ${top}`,
      );
      return draw(
        "a",
        { href: linkTo("overview", run.id), "aria-label": run.name, ...tip(run) },
        draw("path", { class: "line of-run", stroke: run.colour, "stroke-width": 1.8, d: d.join("") }),
      );
    });
    lines.replaceChildren(...paths, shell);
  }
  for (const [box, paint] of [
    [first, paintDots],
    [second, paintLines],
  ])
    onWidth(box, () => {}, once(paint));
  return {
    element,
    show(runs, x, y, names) {
      held = { runs, x, y, names };
      paintDots();
      paintLines();
    },
  };
}
