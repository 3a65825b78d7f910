// The heat-map: one number of every layer, in the order of execution, over the steps; below it the histories of a cell's row and its neighbours.
import { keep, keepZoom, linkTo } from "./address.js";
import { changeChooser, changeOf, hasChange } from "./change.js";
import { lineChart } from "./chart.js";
import { make, many, notice, partsOf, searchField } from "./dom.js";
import { heatMap, legendOf } from "./heat.js";
import { lineColour } from "./scales.js";
import { smoothingSlider } from "./smoothing.js";
import { layerOf, matrixOf, middlesOf, rowOf } from "./source.js";
import { Span } from "./span.js";
import { timeChooser } from "./timeaxis.js";

// A chooser of the numbers that can be drawn, grouped by the tensors they are of.
export function numberChooser(numbers, chosen, onchange) {
  const groups = new Map();
  for (const number of numbers) {
    if (!groups.has(number.port)) groups.set(number.port, []);
    groups.get(number.port).push(number);
  }
  const words = {
    input: "inputs",
    output: "outputs",
    grad_output: "gradients of outputs",
    grad_input: "gradients of inputs",
    grad: "gradients of parameters",
    param: "parameters",
    update: "updates of parameters",
  };
  const families = new Set(numbers.map((number) => number.family));
  const select = make(
    "select",
    { "aria-label": "Number", onchange: () => onchange(select.value) },
    [...groups].map(([port, held]) =>
      make(
        "optgroup",
        { label: words[port] ?? port },
        [...held]
          .sort((one, other) => one.minor - other.minor)
          .map((number) =>
            make(
              "option",
              { value: number.id, selected: number.id === chosen },
              `${number.title}${families.size > 1 && held.filter((other) => other.label === number.label).length > 1 ? ` (${number.family})` : ""}`,
            ),
          ),
      ),
    ),
  );
  return select;
}

// The same with its word in front.
export const numberField = (numbers, chosen, onchange) =>
  make("label", null, "number ", numberChooser(numbers, chosen, onchange));

// The number that is shown first: the size of outputs, which every layer has.
export const firstNumber = (about) =>
  (
    about.numbers.find((number) => number.number === "rms" && number.port === "output") ??
    about.numbers.find((number) => number.id === about.main) ??
    about.numbers[0]
  )?.id;

export const portWords = (number) =>
  ({
    input: "inputs",
    output: "outputs",
    grad_output: "gradients of outputs",
    grad_input: "gradients of inputs",
    grad: "gradients of parameters",
    param: "parameters",
    update: "updates",
  })[number.port] ?? number.port;

// As many columns as a screen has room for; finer data is fetched for a part of the training.
export const columnsFor = (element) => Math.min(1200, Math.max(300, Math.round((element.clientWidth || innerWidth) - 200)));

// More cells than these take long to come over a slow line: at first a few columns are shown.
const [AT_ONCE, FEW_COLUMNS] = [80_000, 120];

// Ask for the cells of a picture, and show each answer that comes: where there is nothing yet, of few columns first.
export async function cellsOf({ source, run, about, question, asked, map, span, show }) {
  const isFirst = !map.isKnownWhole;
  const isWhole = span.isWhole;
  const of = (columns, part) => source.ask(run.id, question, { ...asked, columns, rounded: 1, ...part });
  const isMuch = source.isLive && about.layers.length * columnsFor(map.element) > AT_ONCE;
  if (isFirst && isMuch) show(await of(FEW_COLUMNS, map.part), isWhole);
  show(await of(columnsFor(map.element), map.part), isWhole);
  if (!isWhole && !map.isKnownWhole && source.isLive) map.showBelow(matrixOf(await of(isMuch ? FEW_COLUMNS : 400, {})));
}

const rowsOf = (text) => {
  const found = /^(\d+)-(\d+)$/.exec(text ?? "");
  return found && Number(found[1]) < Number(found[2]) ? [Number(found[1]), Number(found[2])] : null;
};

// The options of a heat-map by which the address has the rows that it shows.
export const rowsKept = (args, then = (_) => {}) => ({
  shownRows: rowsOf(args.rows),
  onrows: (some) => {
    then(some);
    keepZoom({ rows: some ? some.join("-") : "" });
  },
});

export async function layersView({ root, source, run, args, isShown, ready }) {
  const about = await source.ask(run.id, "numbers");
  if (!about.numbers.length) {
    root.append(nothingYet(run));
    return null;
  }
  let number = about.numbers.some((each) => each.id === args.number) ? args.number : firstNumber(about);
  const filter = searchField("Filter layers", "Filter layers, as blocks.3", args.layers);
  const all = make(
    "button",
    {
      hidden: true,
      onclick: () => {
        span.whole();
        shownRows = null;
        map.showRows(null);
        keep({ rows: "" });
      },
    },
    "whole training",
  );
  const mode = changeChooser(args.show, (show) => {
    keep({ show: show === "change" ? "" : show });
    read();
  });
  let isUnfolded = args.rows !== undefined || args.unfold === "1";
  const folding = make("button", { onclick: () => unfold(!isUnfolded) });
  function unfold(is) {
    isUnfolded = is;
    shownRows = null;
    map.showRows(null);
    keep({ unfold: is ? "1" : "", rows: "" });
    read();
  }
  let shownRows = rowsOf(args.rows);
  const isAll = () => span.isWhole && shownRows === null;
  const title = make("h2");
  const facts = make("p", { class: "quiet" });
  const legend = make("div");
  const span = Span.of(run, args);
  const lines = lineChart(span, {
    height: 220,
    gutter: () => map.plot,
    label: "Histories of the chosen layer and its neighbours",
  });
  const linesTitle = make("h3");
  const figures = make("figure", null, make("figcaption", null, linesTitle, smoothingSlider(span)), lines.element);
  const kindOf = (id) => about.numbers.find((each) => each.id === id)?.kind;
  let found = null;
  let pinned = args.pinned ? args.pinned.split("|") : [];
  let row = null;
  const map = heatMap(span, {
    label: "One number of every layer over the steps. Arrow keys move over the cells, enter opens the layer, p pins its line.",
    height: Math.max(320, Math.min(620, innerHeight - 420)),
    onlayout: () => lines.again(),
    cell: (at) => {
      row = at;
      histories();
    },
    onhold: (site) => keep({ site }),
    ...rowsKept(args, (some) => {
      shownRows = some;
      all.hidden = isAll();
    }),
    open: (at, column) => {
      if (found.folds?.[at] > 1) {
        unfold(true);
        return;
      }
      location.hash = linkTo("layer", run.id, { number, step: Math.ceil(found.steps[column]) }, layerOf(found.sites[at]));
    },
  });
  map.element.addEventListener("keydown", (event) => {
    if (event.key !== "p" || !map.cell) return;
    const site = found.sites[map.cell.row];
    pinned = pinned.includes(site) ? pinned.filter((each) => each !== site) : [...pinned, site].slice(-5);
    keep({ pinned: pinned.join("|") });
    histories();
  });

  root.append(
    make(
      "div",
      { class: "bar" },
      numberField(about.numbers, number, (id) => {
        number = id;
        pinned = [];
        keep({ number, pinned: "" });
        read();
      }),
      make("label", null, "as ", mode),
      filter,
      folding,
      all,
      timeChooser(span, source, run),
    ),
    make("figure", null, make("figcaption", null, title, facts), map.element, legend),
    figures,
  );
  ready();

  // Without a cell: the pinned rows, or those that stand out most.
  function histories() {
    if (!found?.rows) return;
    const shown =
      row === null ? [] : [row - 1, row, row + 1].filter((each) => each >= 0 && each < found.rows && !(found.folds?.[each] > 1));
    const kept = pinned.map((site) => found.sites.indexOf(site)).filter((each) => each >= 0 && !shown.includes(each));
    const chosen = [...kept, ...shown];
    if (!chosen.length) chosen.push(...standingOut(found));
    const coloured = chosen.map((each, place) => ({
      name: found.names[each],
      colour:
        each === row
          ? lineColour(0)
          : kept.includes(each)
            ? lineColour(1 + kept.indexOf(each))
            : row === null
              ? lineColour(place)
              : lineColour(7),
      quiet: row !== null && each !== row && !kept.includes(each),
      site: found.sites[each],
      steps: found.middles,
      ...rowOf(found, each),
    }));
    drawn = coloured;
    lines.show({ log: found.scale.log, series: coloured });
    clearTimeout(extremes);
    if (source.isLive && found.logged > found.columns) extremes = setTimeout(() => withExtremes(coloured), 150);
    const swatches = coloured.map(({ name, colour }) =>
      make("span", { class: "sign" }, make("i", { class: "line", style: { background: colour } }), name),
    );
    linesTitle.replaceChildren(
      make("span", null, row === null ? (kept.length ? "Pinned layers" : "Layers that stand out") : "History and neighbours"),
      make("span", { class: "quiet" }, ` ${[found.unit, found.scale.log ? "logarithmic" : ""].filter(Boolean).join(", ")}`),
      make("span", { class: "signs" }, swatches),
    );
  }

  // Where a column joins several steps, the heat-map has their medians; lines also show the least and the greatest of them.
  let [drawn, extremes] = [null, 0];
  async function withExtremes(coloured) {
    const answer = await source
      .ask(run.id, "lines", { number, site: coloured.map(({ site }) => site), points: 600, ...map.part })
      .catch(() => null);
    if (!answer || drawn !== coloured || !isShown()) return;
    const series = coloured.map((held, place) => ({
      ...held,
      ...answer.lines[place],
      steps: middlesOf([...answer.lines[place].steps, 0], answer.lines[place].ends),
    }));
    lines.show({ log: found.scale.log, series });
  }

  // An answer gives way to one that was asked for later, and is there; while that is on its way it is shown.
  let [asked, seen] = [0, 0];
  async function read() {
    const mine = (asked += 1);
    const isStale = () => mine < seen || !isShown();
    const isChange = mode.value === "change" && kindOf(number) === "size";
    const settings = { number, layers: filter.value.trim(), fold: isChange && !isUnfolded && !filter.value.trim() ? 1 : "" };
    try {
      await cellsOf({
        source,
        run,
        about,
        question: "heatmap",
        asked: settings,
        map,
        span,
        show: (answer, isWhole) => {
          if (!isStale()) {
            seen = mine;
            draw(answer, isWhole);
          }
        },
      });
    } catch (error) {
      if (isStale()) return;
      seen = mine;
      const words = filter.value.trim();
      legend.replaceChildren(
        words
          ? notice(
              `No layer matches “${words}”`,
              "Change or empty the filter: a part of a name, or a regular expression.",
              make("p", { class: "quiet small" }, error.message),
            )
          : notice("Nothing to draw", error.message),
      );
      map.element.hidden = figures.hidden = true;
      title.replaceChildren();
      facts.replaceChildren();
    }
  }

  function draw(answer, isWhole) {
    map.element.hidden = figures.hidden = false;
    found = matrixOf(answer);
    found.names = found.layers ?? found.sites.map((site) => partsOf(site)[0]);
    found.label = about.numbers.find((each) => each.id === number)?.label ?? found.label;
    const described = about.numbers.find((each) => each.id === number);
    title.replaceChildren(described?.title ?? found.title ?? found.label);
    facts.replaceChildren(
      `${many(found.folds ? found.folds.reduce((sum, size) => sum + size, 0) : found.rows, "row")}${found.folds?.some((size) => size > 1) ? `, ${found.rows} of them shown and the others folded` : ""}, first layer on top: sudden changes down a column or along a row are where to look · ${many(found.logged ?? found.columns, "logged step")}${found.logged > found.columns ? `, ${Math.ceil(found.logged / found.columns)} in a column` : ""}`,
    );
    const isFolded = found.folds?.some((size) => size > 1);
    mode.disabled = !hasChange(described, found);
    const pictured = mode.value === "change" && !mode.disabled ? changeOf(found) : found;
    legend.replaceChildren(legendOf(pictured));
    all.hidden = isAll();
    folding.hidden = !isFolded && !(isUnfolded && source.isLive && described?.kind === "size");
    folding.replaceChildren(isFolded ? "all rows" : "fold what is alike");
    map.show(pictured, isWhole);
    row = map.cell?.row ?? null;
    histories();
  }
  span.on("move", () => {
    all.hidden = isAll();
  });
  span.on("rest", () => {
    keepZoom(span.words);
    if (source.isLive) read();
  });
  let typing = 0;
  filter.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      keep({ layers: filter.value.trim() });
      read();
    }, 250);
  });
  map.element.addEventListener("focus", () => {
    row = map.cell?.row ?? row;
  });
  if (args.site) map.hold(args.site, span.held ?? span.last);
  await read();
  return {
    refresh: async (now) => {
      span.grow(now.first, now.last);
      await read();
    },
  };
}

// The first two rows with NaN, infinities or zeros, and the rows that lie farthest from the middle one.
export function standingOut(found) {
  const ill = [];
  const isFold = (row) => found.folds?.[row] > 1;
  for (let row = 0; row < found.rows && ill.length < 2; row += 1)
    if (!isFold(row) && rowOf(found, row).marks.some((mark) => mark > 1 && (mark !== 5 || found.scale.log))) ill.push(row);
  const levels = [];
  for (let row = 0; row < found.rows; row += 1) {
    if (isFold(row)) continue;
    const values = rowOf(found, row)
      .values.filter((value) => value !== null && (!found.scale.log || value > 0))
      .sort((one, other) => one - other);
    if (values.length) levels.push([values[values.length >> 1], row]);
  }
  levels.sort((one, other) => one[0] - other[0]);
  const picked = levels.length <= 5 ? levels : [levels[0], levels[levels.length >> 1], levels.at(-1)];
  return [...new Set([...ill, ...picked.map(([, row]) => row)])].slice(0, 6).sort((one, other) => one - other);
}

export const nothingYet = (run) =>
  notice(
    "Nothing is recorded yet",
    run.state === "running"
      ? "The first rows come within two seconds of the first logged step. This page shows them by itself."
      : "The run ended before its first logged step was written.",
  );
