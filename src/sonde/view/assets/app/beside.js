// One number of every layer in several runs: heat-maps beside each other on one scale, with one cursor, and the lines of one layer of all.
import { keep, linkTo } from "./address.js";
import { lineChart } from "./chart.js";
import { fill, make, many, partsOf, plain, searchField } from "./dom.js";
import { heatMap, legendOf, stepsOf } from "./heat.js";
import { columnsFor, firstNumber, numberField } from "./layers.js";
import { MARKS } from "./scales.js";
import { matrixOf, middlesOf, rowOf } from "./source.js";
import { commonScale, joinedOrder, onRows } from "./together.js";

const NAMED_LAYERS = 5;

// Return {element, read(runs)}; a run has its place on the common axis (to, back), a colour, and may be hidden (isOn).
export function besideEachOther({ source, span, args, isShown, partOf, swatch, axisName, where }) {
  const [bar, title, differences, maps, legend, under] = [
    make("div", { class: "bar" }),
    make("h2"),
    make("div"),
    make("div", { class: "maps" }),
    make("div"),
    make("h3"),
  ];
  const chart = lineChart(span, { height: 240, label: "One number of one layer in all runs", axisName, where });
  const lines = make("figure", null, make("figcaption", null, under), chart.element);
  const element = make("section", { class: "beside-each-other" }, bar, differences, maps, legend, lines);
  const panels = new Map(); // by run: {figure, caption, map, found}
  let [runs, abouts, sites, scale, number, site, row, asked, timer] = [
    [],
    [],
    [],
    null,
    args.number ?? null,
    args.site ?? null,
    null,
    0,
    0,
  ];
  const filter = searchField("Filter layers", "Filter layers, as blocks.3", args.layers);
  let typing = 0;
  filter.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      keep({ layers: filter.value.trim() });
      pictures();
    }, 250);
  });
  const shown = () => runs.filter((run) => run.isOn && panels.get(run.id)?.found);

  function panelOf(run) {
    if (panels.has(run.id)) return panels.get(run.id);
    const caption = make("h3");
    const map = heatMap(span, {
      label: `One number of every layer in ${run.title}. Arrow keys move over the cells, enter keeps the layer's lines below.`,
      height: 460,
      gutter: 170,
      axisName,
      describe: (data, at, column) => cellWords(run, data, at, column),
      cell: (at) => {
        row = at;
        for (const [id, other] of panels) if (id !== run.id) other.map.follow(at);
        history();
      },
      open: (at) => {
        site = sites[at];
        keep({ site });
        history();
      },
      onrows: (some) => {
        for (const [id, other] of panels) if (id !== run.id) other.map.showRows(...(some ?? [null]));
      },
    });
    const empty = make("div");
    const panel = {
      caption,
      map,
      empty,
      found: null,
      figure: make("figure", null, make("figcaption", null, caption), map.element, empty),
    };
    panels.set(run.id, panel);
    return panel;
  }

  // What the cell under the pointer is in each run, at the same place of the axis.
  function cellWords(run, data, at, column) {
    const middle = (data.steps[column] + data.steps[column + 1]) / 2;
    const worth = (other) => {
      const { found } = panels.get(other.id);
      if (!found.has(at)) return "no such layer";
      const there =
        other.id === run.id ? column : found.steps.findIndex((edge, place) => edge <= middle && middle < found.steps[place + 1]);
      if (there < 0) return "no step here";
      const mark = found.marks[at * found.columns + there];
      return mark && mark !== 5 ? MARKS[mark].name : plain(found.values[at * found.columns + there]);
    };
    return make(
      "div",
      null,
      make("strong", null, partsOf(sites[at])[0] || "(root)"),
      make(
        "p",
        { class: "quiet" },
        axisName() === "step" ? stepsOf(data, column) : `${stepsOf(data, column)} of ${run.title}, ${where(middle)}`,
      ),
      make(
        "dl",
        null,
        shown().map((other) => [
          make("dt", null, make("i", { class: "swatch", style: { background: other.colour } }), other.title),
          make("dd", null, worth(other)),
        ]),
      ),
    );
  }

  function history() {
    const at = row ?? sites.indexOf(site);
    const wanted = sites[at] ?? sites.at(-1);
    if (!wanted) {
      lines.hidden = true;
      return;
    }
    lines.hidden = false;
    const place = sites.indexOf(wanted);
    const there = shown().filter((run) => panels.get(run.id).found.has(place));
    const series = there.map((run) => ({
      name: run.title,
      colour: run.colour,
      dash: run.dash,
      steps: panels.get(run.id).found.middles,
      ...rowOf(panels.get(run.id).found, place),
    }));
    const described = abouts.flatMap((about) => about.numbers).find((each) => each.id === number);
    const [layer, port] = partsOf(wanted);
    fill(
      under,
      make("span", null, `${layer || "(root)"} ${port}`),
      make(
        "span",
        { class: "quiet" },
        ` ${[described?.label, described?.unit, scale.log ? "logarithmic" : ""].filter(Boolean).join(", ")}${
          there.length < shown().length
            ? ` · not in ${shown()
                .filter((run) => !there.includes(run))
                .map(({ title }) => title)
                .join(", ")}`
            : ""
        }`,
      ),
      make(
        "span",
        { class: "signs" },
        there.map((run) =>
          make("a", { class: "sign", href: linkTo("layer", run.id, { number }, layer) }, swatch(run), run.title),
        ),
      ),
    );
    chart.show({ series, log: scale.log });
    clearTimeout(timer);
    const mine = series;
    if (source.isLive && there.some((run) => panels.get(run.id).found.logged > panels.get(run.id).found.columns))
      timer = setTimeout(() => exactly(mine, there, wanted), 150);
    drawn = mine;
  }

  // Where a column joins several steps, lines also show the least and the greatest of them.
  let drawn = null;
  async function exactly(series, there, wanted) {
    const answers = await Promise.all(
      there.map((run) => source.ask(run.id, "lines", { number, site: [wanted], points: 600, ...partOf(run) }).catch(() => null)),
    );
    if (drawn !== series || !isShown()) return;
    chart.show({
      log: scale.log,
      series: series.map((held, place) => {
        const line = answers[place]?.lines[0];
        return line ? { ...held, ...line, steps: middlesOf([...line.steps, 0], line.ends).map(there[place].to) } : held;
      }),
    });
  }

  async function pictures() {
    const mine = (asked += 1);
    const on = runs.filter((run) => run.isOn);
    const columns = Math.max(200, Math.round(columnsFor(maps) / Math.min(on.length || 1, 3)));
    if (!maps.firstChild) maps.append(make("p", { class: "quiet" }, "reading …"));
    const answers = await Promise.all(
      on.map(async (run) => {
        const part = partOf(run);
        if (!part) return { error: "This run has no step in the part that is shown." };
        return source
          .ask(run.id, "heatmap", { number, layers: filter.value.trim(), columns, ...part })
          .catch((error) => ({ error: error.message }));
      }),
    );
    if (mine !== asked || !isShown()) return;
    const matrices = answers.map((answer) => (answer.error ? null : matrixOf(answer)));
    const there = matrices.filter(Boolean);
    sites = joinedOrder(there.map((found) => found.sites));
    row = null;
    maps.replaceChildren();
    lines.hidden = !there.length;
    legend.replaceChildren();
    if (there.length) scale = commonScale(there.map((found) => found.scale));
    on.forEach((run, place) => {
      const panel = panelOf(run);
      panel.caption.replaceChildren(make("span", { class: "sign" }, swatch(run), run.title));
      panel.found = matrices[place] && {
        ...onRows(matrices[place], sites, run.to),
        scale,
        names: sites.map((each) => partsOf(each)[0]),
      };
      panel.map.element.hidden = !panel.found;
      panel.empty.replaceChildren(panel.found ? "" : make("p", { class: "quiet" }, answers[place].error));
      if (panel.found) panel.map.show(panel.found);
      maps.append(panel.figure);
    });
    for (const run of runs) if (!on.includes(run) && panels.has(run.id)) panels.get(run.id).found = null;
    if (!there.length) return;
    const described = abouts.flatMap((about) => about.numbers).find((each) => each.id === number);
    title.replaceChildren(described?.title ?? number);
    const marks = new Set(there.flatMap((found) => [...new Set(found.shownMarks)]));
    legend.replaceChildren(
      legendOf(
        { ...there[0], scale, label: described?.label, shownMarks: [...marks], logged: 0 },
        `one scale for all runs${there.some((found) => found.rows < sites.length) ? "; hatched: the run has no such layer" : ""}`,
      ),
    );
    history();
  }

  // Which layers not all runs have.
  function layersThatDiffer() {
    const held = abouts.map((about) => about.layers.map(({ layer }) => layer));
    const all = joinedOrder(held);
    const common = all.filter((layer) => held.every((list) => list.includes(layer)));
    const lines_ = runs
      .map((run, place) => [run, held[place].filter((layer) => !common.includes(layer))])
      .filter(([, some]) => some.length);
    fill(
      differences,
      lines_.length
        ? [
            make(
              "p",
              { class: "quiet" },
              `${many(common.length, "layer")} and parameters are in all runs; joined by their names`,
            ),
            ...lines_.map(([run, some]) =>
              make(
                "p",
                null,
                make("span", { class: "sign" }, swatch(run), run.title),
                make(
                  "span",
                  { class: "quiet" },
                  ` not in all: ${some.slice(0, NAMED_LAYERS).join(", ")}${some.length > NAMED_LAYERS ? ` and ${some.length - NAMED_LAYERS} more` : ""}`,
                ),
              ),
            ),
          ]
        : null,
    );
  }

  return {
    element,
    async read(now) {
      runs = now;
      abouts = await Promise.all(runs.map((run) => source.ask(run.id, "numbers")));
      if (!isShown()) return;
      const numbers = [...new Map(abouts.flatMap((about) => about.numbers).map((each) => [each.id, each])).values()];
      element.hidden = !numbers.length;
      if (!numbers.length) return;
      if (!numbers.some((each) => each.id === number)) number = firstNumber({ numbers, main: abouts[0].main });
      if (!filter.isConnected)
        bar.replaceChildren(
          title,
          make("span", { class: "space" }),
          numberField(numbers, number, (id) => {
            number = id;
            keep({ number });
            pictures();
          }),
          filter,
        );
      layersThatDiffer();
      await pictures();
    },
  };
}
