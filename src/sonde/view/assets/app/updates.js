// Update / weight: by which share of its size each step moves a parameter; the usual band in the middle of the colours.
import { keep, keepZoom, linkTo } from "./address.js";
import { lineChart } from "./chart.js";
import { make, many, notice, partsOf } from "./dom.js";
import { heatMap, legendOf } from "./heat.js";
import { cellsOf, rowsKept, standingOut } from "./layers.js";
import { lineColour } from "./scales.js";
import { matrixOf, rowOf } from "./source.js";
import { Span } from "./span.js";

export async function updatesView({ root, source, run, args, isShown, ready }) {
  const span = Span.of(run, args);
  const [title, facts, legend, under] = [make("h2"), make("p", { class: "quiet" }), make("div"), make("h3")];
  let [found, row] = [null, null];
  const chart = lineChart(span, { height: 240, gutter: () => map.plot, label: "Update / weight of the chosen parameter" });
  const map = heatMap(span, {
    label: "Update / weight of every parameter over the steps. Arrow keys move over the cells, enter opens the parameter.",
    height: Math.max(320, Math.min(620, innerHeight - 420)),
    onlayout: () => chart.again(),
    cell: (at) => {
      row = at;
      histories();
    },
    onhold: (site) => keep({ site }),
    ...rowsKept(args),
    open: (at, column) => {
      location.hash = linkTo(
        "layer",
        run.id,
        { step: found.ends?.[column] ?? Math.ceil(found.steps[column]) },
        partsOf(found.sites[at])[0],
      );
    },
  });
  function histories() {
    if (!found?.rows) return;
    const few = found.rows <= 6 ? [...Array(found.rows).keys()] : standingOut(found);
    const chosen = row === null ? few : [row];
    chart.show({
      log: true,
      band: { low: found.band[0], high: found.band[1] },
      lines: [{ value: found.usual, text: "usual: 10⁻³" }],
      series: chosen.map((each, place) => ({
        name: found.names[each],
        colour: lineColour(place),
        steps: found.middles,
        ...rowOf(found, each),
      })),
    });
    under.replaceChildren(
      make("span", null, row === null ? (found.rows <= 6 ? "All parameters" : "Parameters that stand out") : found.names[row]),
      make("span", { class: "quiet" }, " update / weight, no unit, logarithmic; grey: usual"),
      make(
        "span",
        { class: "signs" },
        chosen.map((each, place) =>
          make(
            "span",
            { class: "sign" },
            make("i", { class: "line", style: { background: lineColour(place) } }),
            found.names[each],
          ),
        ),
      ),
    );
  }
  async function read() {
    const about = await source.ask(run.id, "numbers");
    await cellsOf({
      source,
      run,
      about,
      question: "ratio",
      asked: {},
      map,
      span,
      show: (answer, isWhole) => {
        if (isShown()) draw(answer, isWhole);
      },
    });
  }

  function draw(answer, isWhole) {
    found = matrixOf(answer);
    found.names = found.layers ?? found.sites.map((site) => partsOf(site)[0]);
    const [low, high] = [
      Math.min(found.scale.low ?? found.band[0], found.band[0]),
      Math.max(found.scale.high ?? found.band[1], found.band[1]),
    ];
    const reach = Math.max(found.usual / low, high / found.usual);
    found.scale = {
      ...found.scale,
      log: true,
      diverging: true,
      low: found.usual / reach,
      high: found.usual * reach,
      middle: found.usual,
    };
    found.label = "update / weight";
    found.absent = "not recorded, or the parameter is exactly 0";
    title.replaceChildren("Update / weight");
    facts.replaceChildren(
      `${many(found.rows, "parameter")}, rms of the update / rms of the parameter · usual: 10⁻⁴ to 10⁻² (grey); blue: hardly moves, brown: moves much`,
    );
    legend.replaceChildren(legendOf({ ...found, unit: "no unit" }));
    map.show(found, isWhole);
    histories();
  }
  const pictures = [
    make("figure", null, make("figcaption", null, title, facts), map.element, legend),
    make("figure", null, make("figcaption", null, under), chart.element),
  ];
  root.append(...pictures);
  ready();
  if (args.site) map.hold(args.site, span.held ?? span.last);
  try {
    await read();
  } catch (error) {
    root.replaceChildren(notice("No updates were recorded", error.message));
    return null;
  }
  span.on("rest", () => {
    keepZoom(span.words);
    if (source.isLive) read();
  });
  return {
    refresh: (now) => {
      span.grow(now.first, now.last);
      return read();
    },
  };
}
