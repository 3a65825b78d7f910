// A number through depth: a dot for each layer at one step, a bar from the least to the greatest over the training.
import { here, keep, linkTo } from "./address.js";
import { draw, make, many, notice, partsOf, plain, rowLabel, shortened, whole } from "./dom.js";
import { stepsOf } from "./heat.js";
import { nothingYet, numberField } from "./layers.js";
import { player } from "./player.js";
import { saveButtons } from "./saving.js";
import { MARKS, axis, ends, lineColour, ticks } from "./scales.js";
import { matrixOf, rowOf } from "./source.js";
import { onWidth, once } from "./span.js";
import { hideTip, showTip } from "./tip.js";

export async function flowView({ root, source, run, args, isShown }) {
  const about = await source.ask(run.id, "numbers");
  if (!about.numbers.length) {
    root.append(nothingYet(run));
    return null;
  }
  const first =
    ["grad_output", "grad", "output"]
      .map((port) => about.numbers.find((each) => each.port === port && each.number === "rms"))
      .find(Boolean) ?? about.numbers[0];
  let number = about.numbers.some((each) => each.id === args.number) ? args.number : first.id;
  const [title, facts, legend] = [make("h2"), make("p", { class: "quiet" }), make("div")];
  const place = make("div");
  const picture = make("div", {
    class: "flow",
    tabindex: 0,
    role: "application",
    "aria-roledescription": "dot plot",
    "aria-label":
      "One number of every layer at one step, from the first layer to the last. Arrow keys move over the layers, enter opens the layer.",
  });
  const svg = draw("svg", { width: "100%" });
  const band = draw("g", { class: "cross" });
  const numbers = () => [
    ["layer", "site", "step", "value", "mark", "least in the training", "greatest in the training"],
    ...rows.map(({ low, high, values, marks }, row) => {
      const [value, mark] = exact ? [exact.values[row], exact.marks[row]] : [values[column], marks[column]];
      const step = exact?.step ?? found.ends?.[column] ?? Math.ceil(found.steps[column]);
      return [found.names[row], found.sites[row], step, value, MARKS[mark]?.name, low, high];
    }),
  ];
  picture.append(
    svg,
    saveButtons(picture, () => `flow ${number}`, numbers),
  );
  let [found, rows, control, column] = [null, [], null, 0];
  let [exact, timer] = [null, 0]; // the values at the step itself, where a column of the heat-map joins several steps
  root.append(
    make(
      "div",
      { class: "bar" },
      numberField(about.numbers, number, (id) => {
        number = id;
        keep({ number });
        args.step = steps()[column];
        control = null;
        read();
      }),
      place,
    ),
    make("figure", null, make("figcaption", null, title, facts), picture, legend),
  );

  async function read() {
    let answer;
    let extremes;
    try {
      [answer, extremes] = await Promise.all([
        source.ask(run.id, "heatmap", { number, columns: 600 }),
        source.ask(run.id, "flow", { number }),
      ]);
    } catch (error) {
      picture.hidden = true;
      legend.replaceChildren(notice("Nothing to draw", error.message));
      return;
    }
    if (!isShown()) return;
    picture.hidden = false;
    found = matrixOf(answer);
    if (!found.columns) return;
    found.names = found.layers ?? found.sites.map((site) => partsOf(site)[0]);
    found.labels = found.names.map((name, row) => rowLabel(name, found.kinds?.[row]));
    rows = found.sites.map((_, row) => {
      const held = rowOf(found, row);
      const there = held.values
        .filter((value) => value !== null && (!found.scale.log || value > 0))
        .sort((one, other) => one - other);
      const at = (share) => there[Math.min(Math.floor(share * there.length), there.length - 1)];
      const joined = isJoined();
      const positive = (value, other) => (value === null || (found.scale.log && value <= 0) ? other : value);
      return {
        ...held,
        low: positive(extremes.low[row], there[0] ?? null),
        lower: joined ? null : (at(0.25) ?? null),
        upper: joined ? null : (at(0.75) ?? null),
        high: positive(extremes.high[row], there.at(-1) ?? null),
      };
    });
    const described = about.numbers.find((each) => each.id === number);
    title.replaceChildren(`${described.title} through depth`);
    if (!control) {
      const logged = steps();
      const wanted = args.step ? logged.findIndex((step) => step >= Number(args.step)) : -1;
      column = wanted < 0 ? logged.length - 1 : wanted;
      control = player(logged, column, (at) => {
        column = at;
        keep({ step: at === steps().length - 1 ? "" : steps()[at] });
        readExactly();
        repaint();
      });
      place.replaceChildren(control.element);
    } else control.grow(steps());
    readExactly();
    repaint();
  }

  const steps = () => found.steps.slice(0, -1).map((edge, at) => found.ends?.[at] ?? Math.ceil(edge));
  const isJoined = () => found.logged > found.columns;

  // While the slider moves, dots are medians of the steps that a column joins; when it rests, values of one step.
  function readExactly() {
    exact = null;
    say();
    clearTimeout(timer);
    if (!found || !isJoined() || !source.isLive) return;
    const wanted = found.ends[column];
    timer = setTimeout(async () => {
      const answer = await source.ask(run.id, "flow", { number, step: wanted }).catch(() => null);
      if (!answer || !isShown() || found.ends[column] !== wanted || answer.sites.length !== found.rows) return;
      exact = answer;
      say();
      repaint();
    }, 200);
  }

  function say() {
    if (!found) return;
    const dots = exact
      ? `dots: step ${whole(exact.step)}`
      : isJoined()
        ? `dots: the median of ${stepsOf(found, column)}`
        : `dots: step ${whole(found.ends?.[column] ?? Math.ceil(found.steps[column]))}`;
    facts.replaceChildren(
      `${many(found.rows, "row")}, first layer on top${/@grad/.test(number) ? ": gradients that shrink row by row upwards vanish, those that grow explode" : ""} · ${dots} · bars: least to greatest of the training${isJoined() ? "" : ", thick: the middle half"}`,
    );
  }

  const geometry = { left: 0, each: 0, top: 8, x: null };
  function paint() {
    const width = picture.clientWidth;
    if (!width || !found) return;
    const each = Math.max(Math.min(20, 900 / found.rows), found.rows > 400 ? 1.6 : 3);
    const height = found.rows * each;
    const longest = Math.max(...found.labels.map((name) => name.length), 4);
    const left = Math.min(240, Math.max(width * 0.25, 80), 24 + longest * 7);
    const right = width - 46;
    const limits = ends([rows.flatMap(({ low, high }) => [low, high])], found.scale.log);
    const x = axis(...limits, left, right, found.scale.log);
    Object.assign(geometry, { left, each, x });
    const top = geometry.top;
    svg.setAttribute("height", height + top + 44);
    const shell = draw("g", { class: "axis" });
    for (const [value, text] of ticks(x, Math.max(3, Math.floor((right - left) / 80)))) {
      const at = x.at(value);
      if (at < left - 1 || at > right + 1) continue;
      shell.append(
        draw("line", { x1: at, x2: at, y1: top, y2: top + height }),
        draw("text", { x: at, y: top + height + 17, "text-anchor": "middle" }, text),
      );
    }
    const stride = Math.max(1, Math.ceil(15 / each));
    const letters = Math.floor((left - 14) / 6.7);
    for (let row = 0; row < found.rows; row += stride)
      shell.append(
        draw(
          "text",
          { x: left - 8, y: top + (row + 0.5) * each + 4, "text-anchor": "end" },
          shortened(found.labels[row], letters),
        ),
      );
    let [thin, thick, dots] = ["", "", ""];
    const asides = [];
    rows.forEach(({ low, lower, upper, high, values, marks }, row) => {
      const y = (top + (row + 0.5) * each).toFixed(1);
      if (low !== null) {
        thin += `M${x.at(low).toFixed(1)} ${y}H${x.at(high).toFixed(1)}`;
        if (lower !== null) thick += `M${x.at(lower).toFixed(1)} ${y}H${x.at(upper).toFixed(1)}`;
      }
      const [value, mark] = exact ? [exact.values[row], exact.marks[row]] : [values[column], marks[column]];
      if (value !== null && !(found.scale.log && value <= 0)) {
        const at = x.at(value);
        dots += `M${(at - 0.01).toFixed(2)} ${y}h.02`;
      }
      if (mark > 1 && (mark !== 5 || found.scale.log))
        asides.push(draw("text", { class: "glyph", x: mark === 5 ? left + 4 : right + 6, y: Number(y) + 4 }, MARKS[mark].glyph));
    });
    const colour = lineColour(0);
    svg.replaceChildren(
      band,
      shell,
      draw("path", { d: thin, stroke: colour, "stroke-width": 1, opacity: 0.35 }),
      draw("path", { d: thick, stroke: colour, "stroke-width": Math.max(Math.min(each * 0.35, 6), 1), opacity: 0.35 }),
      draw("path", {
        d: dots,
        stroke: colour,
        "stroke-width": Math.max(Math.min(each * 0.5, 8), 2.4),
        "stroke-linecap": "round",
      }),
      ...asides,
      draw(
        "text",
        { class: "title", x: right, y: top + height + 36, "text-anchor": "end" },
        `${found.axis ?? found.label}${found.scale.log ? ", logarithmic" : ""}`,
      ),
    );
    const seen = new Set(exact ? exact.marks : rows.map(({ marks }) => marks[column]));
    legend.replaceChildren(
      make(
        "div",
        { class: "legend" },
        MARKS.map((mark, at) => /** @type {[any, number]} */ ([mark, at]))
          .filter(([mark, at]) => mark && seen.has(at) && at > 1 && (at !== 5 || found.scale.log))
          .map(([mark]) => make("span", null, make("b", { class: "glyph" }, mark.glyph), ` ${mark.name}`)),
      ),
    );
  }
  const repaint = once(paint);
  onWidth(picture, () => {}, paint);
  const there = (row) => found && row >= 0 && row < found.rows;
  const rowAt = (event) => Math.floor((event.clientY - picture.getBoundingClientRect().top - geometry.top) / geometry.each);
  let chosen = null; // the row that the keys have come to
  function point(row, event = null) {
    const { low, high } = rows[row];
    const [value, mark] = exact ? [exact.values[row], exact.marks[row]] : [rows[row].values[column], rows[row].marks[column]];
    const around = picture.getBoundingClientRect();
    const beside = {
      getBoundingClientRect: () => ({ right: around.right, top: around.top + geometry.top + row * geometry.each }),
    };
    band.replaceChildren(
      draw("rect", { class: "row", x: 0, width: around.width, y: geometry.top + row * geometry.each, height: geometry.each }),
    );
    showTip(
      event ?? beside,
      make(
        "div",
        null,
        make("strong", null, found.names[row]),
        make(
          "dl",
          null,
          make("dt", null, found.label),
          make("dd", null, mark > 1 && mark !== 5 ? `${MARKS[mark].name} elements` : plain(value)),
          make("dt", null, "over the training"),
          make("dd", null, low === null ? "–" : `${plain(low, 3)} to ${plain(high, 3)}`),
        ),
      ),
    );
  }
  function leave() {
    chosen = null;
    band.replaceChildren();
    hideTip();
  }
  const open = (row) => {
    location.hash = linkTo("layer", run.id, { number, step: here().args.step }, partsOf(found.sites[row])[0]);
  };
  picture.addEventListener("pointermove", (event) => {
    const row = rowAt(event);
    if (there(row)) point(row, event);
    else leave();
  });
  picture.addEventListener("pointerleave", leave);
  picture.addEventListener("blur", leave);
  picture.addEventListener("click", (event) => {
    if (/** @type {Element} */ (event.target).closest("button")) return;
    const row = rowAt(event);
    if (there(row)) open(row);
  });
  picture.addEventListener("keydown", (event) => {
    if (!found || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "Enter" && chosen !== null && event.target === picture) {
      open(chosen);
      return;
    }
    const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const next = chosen === null ? (by > 0 ? 0 : found.rows - 1) : chosen + by * (event.shiftKey ? 10 : 1);
    chosen = Math.min(Math.max(next, 0), found.rows - 1);
    const y = picture.getBoundingClientRect().top + geometry.top + chosen * geometry.each;
    if (y < 120 || y > innerHeight - 60) scrollBy(0, y - innerHeight / 2);
    point(chosen);
  });
  await read();
  return { stop: () => control?.stop(), refresh: read };
}
