// The first look: how the training is, and where something is wrong.
import { keep, keepZoom, linkTo } from "./address.js";
import { isSameLine, lineChart } from "./chart.js";
import { badge, fill, make, many, plain, since, whole } from "./dom.js";
import { chapter, pictureOf, storyOf } from "./findings.js";
import { heatMap, legendOf } from "./heat.js";
import { cellsOf, firstNumber, nothingYet, numberChooser } from "./layers.js";
import { MARKS, lineColour } from "./scales.js";
import { layerOf, matrixOf } from "./source.js";
import { Span } from "./span.js";

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
const SAID = { grad_norm_raw: "grad_norm_raw (before clipping)" };
const FEW = 2; // findings that stand above the pictures, as more would push these down
const hasData = (run) => typeof run.last === "number" && run.last >= 0;
const GROUPS = [
  ["loss", "Loss", 230],
  ["norm", "Norms", 170],
  ["lr", "Learning rate", 170],
  ["metric", "Metrics", 170],
  ["other", "Others", 170],
];

const WORDS = { ok: "Healthy", note: "Worth a look", warn: "Look here", bad: "Unhealthy", unknown: "Not known" };

function verdict(run, { findings, health, shortfalls, counted }) {
  const bad = findings.filter((finding) => finding.severity === "bad").length;
  const [first] = findings;
  if (!hasData(run))
    return make(
      "section",
      { class: "verdict" },
      badge("note", run.state === "running" ? "No data yet" : "No data"),
      make("p", null, run.end?.words ?? null),
      make("p", { class: "quiet" }, run.state),
    );
  const failed = run.state === "failed" && !findings.length;
  const nothing = health === "ok" ? "No rule finds anything wrong." : "No rule has found anything wrong so far.";
  const words = failed
    ? "An error ended it; no rule finds anything wrong before."
    : !findings.length
      ? nothing
      : `${counted}${bad && bad < findings.length ? `, ${whole(bad)} of them bad` : ""}. The first${first.site ? ` at ${layerOf(first.site) || "(root)"}` : ""}, step ${whole(first.first_step ?? first.step)}.`;
  return make(
    "section",
    { class: `verdict ${failed ? "bad" : health}` },
    badge(failed ? "bad" : health, failed ? "Failed" : WORDS[health]),
    make("p", null, words),
    shortfalls.length ? make("p", { class: "doubts" }, make("strong", null, sentence(shortfalls.join(", ")))) : null,
    run.end ? make("p", { class: "end" }, run.end.words) : null,
    make(
      "p",
      { class: "quiet" },
      [
        run.state,
        typeof run.first === "number" ? `steps ${whole(run.first)} to ${whole(run.last)}` : `up to step ${whole(run.last)}`,
        run.layers ? many(run.layers, "layer") : "",
        run.model,
        `last data ${since(run.updated)}`,
        run.pruned,
      ]
        .filter(Boolean)
        .join(" · "),
    ),
  );
}

export async function overviewView({ root, source, run, args, isShown, ready, lacks }) {
  const span = Span.of(run, args);
  const [top, pictures, aside, settings] = [
    make("div"),
    make("div", { class: "pictures" }),
    make("aside"),
    make("div", { class: "settings" }),
  ];
  const charts = new Map();
  const legend = make("div");
  const choose = make("span");
  let [found, number, about, scalars] = [null, args.number ?? null, null, null];
  const map = heatMap(span, {
    label: "The main number of every layer over the steps. Arrow keys move over the cells, enter opens the layer.",
    height: 380,
    rowHeight: 15,
    onlayout: () => {
      for (const { chart } of charts.values()) chart.again();
    },
    onhold: (site, step) => keep({ site, step }),
    open: (row, column) => {
      location.hash = linkTo("layers", run.id, { number, site: found.sites[row], step: Math.ceil(found.steps[column]) });
    },
  });
  const heat = make(
    "figure",
    { class: "wide" },
    make("figcaption", null, choose, make("span", { class: "quiet" }, "of each layer, a row for each, the first on top")),
    map.element,
    legend,
  );

  function drawScalars(answer) {
    scalars = answer.scalars;
    const markers = answer.findings
      .map((finding) => ({
        step: finding.first_step ?? finding.step,
        severity: finding.severity,
        text: finding.message ?? finding.text,
        href: pictureOf(run, finding),
      }))
      .filter((marker) => marker.step >= 0);
    for (const [group, title, height] of GROUPS) {
      const held = scalars.filter((scalar) => scalar.group === group);
      // Scalars share a chart where they share a unit and a scale.
      const sets = new Map();
      for (const scalar of held) {
        const key =
          group === "loss" || group === "lr"
            ? group
            : group === "norm"
              ? scalar.unit
              : `${scalar.unit} ${scalar.log} ${group === "other" || scale(scalar)}`;
        if (!sets.has(key)) sets.set(key, []);
        sets.get(key).push(scalar);
      }
      for (const [key, every] of sets) {
        // Lines that lie upon each other are one.
        const some = every.filter((scalar, place) => every.findIndex((other) => isSameLine(scalar, other)) === place);
        const alike = (scalar) =>
          every
            .filter((other) => isSameLine(scalar, other))
            .map(({ name }) => SAID[name] ?? name)
            .join(" = ");
        const name = `${group} ${key}`;
        if (!charts.has(name)) {
          const caption = make("h3");
          const chart = lineChart(span, {
            height,
            gutter: group === "loss" ? () => map.plot : null,
            label: `${title} over the steps`,
          });
          const figure = make(
            "figure",
            { class: group === "loss" ? "wide" : "" },
            make("figcaption", null, caption),
            chart.element,
          );
          charts.set(name, { caption, chart });
          pictures.append(figure);
          if (group === "loss") pictures.append(heat);
        }
        const { caption, chart } = charts.get(name);
        const log = group === "norm" || group === "loss" ? isWide(some) : some[0].log;
        const series = some.slice(0, 8).map((scalar, place) => ({ ...scalar, name: alike(scalar), colour: lineColour(place) }));
        caption.replaceChildren(
          make(
            "span",
            null,
            some.length === 1 ? alike(some[0]).replaceAll("_", " ") : group === "norm" ? `Norms of ${normWords(some)}` : title,
          ),
          make("span", { class: "quiet" }, ` ${[some[0].unit, log ? "logarithmic" : "linear"].filter(Boolean).join(", ")}`),
          make(
            "span",
            { class: "signs" },
            series.length > 1
              ? series.map(({ name, colour }) =>
                  make("span", { class: "sign" }, make("i", { class: "line", style: { background: colour } }), name),
                )
              : null,
            make("b", { class: "last" }, `${series.length > 1 ? `${series[0].name} ` : ""}${lastOf(series[0])}`),
          ),
        );
        chart.show({ series, log, markers: group === "loss" ? markers : [] });
      }
    }
    if (!scalars.some((scalar) => scalar.group === "loss") && !heat.isConnected) pictures.prepend(heat);
  }

  function drawAside(answer) {
    const told = storyOf(answer.findings);
    aside.hidden = !told.length;
    root.classList.toggle("with-findings", told.length > FEW);
    root.classList.toggle("few-findings", told.length > 0 && told.length <= FEW);
    fill(
      aside,
      make("h2", null, "Findings"),
      told.slice(0, 6).map((each) => make("div", null, chapter(run, each, true))),
      told.length > 6 ? make("a", { href: linkTo("findings", run.id) }, `all ${whole(answer.findings.length)} findings`) : null,
    );
    const table = (title, held) => {
      const rows = (Array.isArray(held) ? held : Object.entries(held ?? {})).filter(
        ([, value]) => value !== null && value !== "",
      );
      return rows.length
        ? make(
            "details",
            { open: title === "Settings" },
            make("summary", null, title),
            make(
              "dl",
              null,
              rows.map(([name, value]) => [
                make("dt", null, name),
                make(
                  "dd",
                  null,
                  typeof value === "object" ? JSON.stringify(value) : typeof value === "number" ? plain(value, 6) : String(value),
                ),
              ]),
            ),
          )
        : null;
    };
    fill(settings, table("Settings", answer.settings), table("Environment", answer.environment));
  }

  async function readHeat() {
    if (!about?.numbers.length) {
      heat.hidden = true;
      return;
    }
    number = about.numbers.some((each) => each.id === number) ? number : firstNumber(about);
    const chosen = number;
    await cellsOf({
      source,
      run,
      about,
      question: "heatmap",
      asked: { number },
      map,
      span,
      show: (answer, isWhole) => {
        if (isShown() && chosen === number) drawHeat(answer, isWhole);
      },
    });
  }

  function drawHeat(answer, isWhole) {
    found = matrixOf(answer);
    found.names = found.layers ?? found.sites;
    if (!choose.firstChild)
      choose.append(
        numberChooser(about.numbers, number, (id) => {
          number = id;
          keep({ number });
          readHeat();
        }),
      );
    legend.replaceChildren(legendOf(found));
    map.show(found, isWhole);
  }

  async function read() {
    const [answer, numbers] = await Promise.all([
      source.ask(run.id, "overview", { points: 700, ...span.part }),
      source.ask(run.id, "numbers"),
    ]);
    if (!isShown()) return;
    about = numbers;
    lacks(answer.lost);
    fill(top, verdict(run, answer));
    if (!answer.scalars.length && !about.numbers.length) {
      pictures.replaceChildren(nothingYet(run));
      charts.clear();
      return;
    }
    if (pictures.querySelector(".notice")) pictures.replaceChildren();
    drawScalars(answer);
    drawAside(answer);
    ready();
    await readHeat();
  }
  if (args.site) map.hold(args.site, span.held ?? span.last);
  root.append(top, make("div", { class: "columns" }, pictures, aside), settings);
  await read();
  span.on("rest", () => {
    keepZoom(span.words);
    if (source.isLive) read();
  });
  return {
    refresh: (now) => {
      run = now;
      span.grow(now.first, now.last);
      return read();
    },
  };
}

// What the norms of one unit are of.
function normWords(scalars) {
  const words = { grad: "gradients", param: "parameters", update: "updates" };
  const found = new Set(scalars.map(({ name }) => words[/(grad|param|update)_norm/.exec(name)?.[1]]));
  return found.has(undefined) ? "the model" : [...found].join(" and ");
}

// Whether lines on one axis are so far apart that only a logarithmic one shows them all.
function isWide(scalars) {
  const values = scalars.flatMap((scalar) => scalar.values.filter((value) => value !== null));
  const [low, high] = values.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, 0]);
  return scalars.every((scalar) => scalar.log) || (low > 0 && high > 30 * low);
}

const scale = (scalar) => {
  const values = scalar.values.filter((value) => value !== null);
  return Math.round(Math.log10(Math.max(...values.map(Math.abs), 1e-12)) / 2);
};

// The value at the last step of what is shown, or its mark.
const lastOf = ({ last, last_mark: mark }) => `last ${mark > 1 && mark !== 5 ? MARKS[mark].name : plain(last)}`;
