// The first look: how the training is, and where something is wrong.
import { here, keep, keepZoom, linkTo } from "./address.js";
import { changeChooser, changeOf, hasChange } from "./change.js";
import { isSameLine, lineChart } from "./chart.js";
import { badge, fill, make, many, plain, since, whole } from "./dom.js";
import { pictureOf } from "./findings.js";
import { heatMap, legendOf } from "./heat.js";
import { cellsOf, firstNumber, nothingYet, numberChooser, rowsKept } from "./layers.js";
import { MARKS, lineColour } from "./scales.js";
import { smoothingSlider } from "./smoothing.js";
import { matrixOf } from "./source.js";
import { Span } from "./span.js";
import { aroundOnset, beginningOf, storyOfRun } from "./story.js";
import { timeChooser } from "./timeaxis.js";

const asSentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
const SAID = { grad_norm_raw: "grad_norm_raw (before clipping)" };
const hasData = (run) => typeof run.last === "number" && run.last >= 0;
const GROUPS = [
  ["loss", "Loss", 230],
  ["norm", "Norms", 170],
  ["lr", "Learning rate", 170],
  ["metric", "Metrics", 170],
  ["other", "Others", 170],
];

const WORDS = { ok: "Healthy", note: "Worth a look", warn: "Look here", bad: "Unhealthy", unknown: "Not known" };

function verdict(run, { findings, health, shortfalls, counted }, moves) {
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
  const words = failed ? "An error ended it; no rule finds anything wrong before." : !findings.length ? nothing : counted;
  return make(
    "section",
    { class: `verdict ${failed ? "bad" : health}` },
    badge(failed ? "bad" : health, failed ? "Failed" : WORDS[health]),
    make("p", null, words),
    shortfalls.length ? make("p", { class: "doubts" }, make("strong", null, asSentence(shortfalls.join(", ")))) : null,
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
    storyOfRun(run, findings, moves),
  );
}

export async function overviewView({ root, source, run, args, isShown, ready, lacks }) {
  const span = Span.of(run, args);
  const [top, part, pictures, settings] = [
    make("div"),
    make("p", { class: "part", role: "status" }),
    make("div", { class: "pictures" }),
    make("div", { class: "settings" }),
  ];
  const charts = new Map();
  const legend = make("div");
  const choose = make("span", { class: "choose" });
  const mode = changeChooser(args.show, (show) => {
    keep({ show: show === "change" ? "" : show });
    readHeat();
  });
  let [found, number, about, scalars, tail] = [null, args.number ?? null, null, null, null];
  const map = heatMap(span, {
    label: "The main number of every layer over the steps. Arrow keys move over the cells, enter opens the layer.",
    height: 380,
    rowHeight: 15,
    onlayout: () => {
      for (const { chart } of charts.values()) chart.again();
    },
    onhold: (site) => keep({ site }),
    ...rowsKept(args),
    open: (row, column) => {
      const [site, unfold] = [found.sites[row], found.folds?.[row] > 1 ? 1 : ""];
      location.hash = linkTo("layers", run.id, {
        number,
        site,
        unfold,
        step: Math.ceil(found.steps[column]),
        show: here().args.show,
      });
    },
  });
  const heat = make(
    "figure",
    { class: "wide" },
    make("figcaption", null, choose, make("span", { class: "quiet" }, "a row for each layer, the first on top")),
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
        const log = some.some(({ signed }) => signed) ? false : group === "norm" || group === "loss" ? isWide(some) : some[0].log;
        const series = some.slice(0, 8).map((scalar, place) => ({ ...scalar, name: alike(scalar), colour: lineColour(place) }));
        caption.replaceChildren(
          make(
            "span",
            null,
            some.length === 1 ? alike(some[0]).replaceAll("_", " ") : group === "norm" ? `Norms of ${normWords(some)}` : title,
          ),
          make("span", { class: "quiet" }, ` ${[some[0].unit, log ? "logarithmic" : ""].filter(Boolean).join(", ")}`),
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

  // The cursor goes to the place and the step of a finding; the heat-map shows the number that its rule has judged.
  function go(finding) {
    const step = beginningOf(finding);
    const { number: wanted, site = finding.site } = finding.link ?? {};
    if (step < span.from || step > span.to) span.whole();
    if (site) keep({ site });
    map.hold(site || null, step >= 0 ? step : null);
    if (wanted && wanted !== number) change(wanted);
  }
  const moves = {
    go,
    begin: (finding) => {
      span.set(...aroundOnset(beginningOf(finding), span.first, span.last, tail));
      go(finding);
    },
  };

  // Which part of the training is shown, and what lies folded behind it.
  function sayPart() {
    const isFolded = tail !== null && span.to < span.last && tail <= span.to;
    fill(
      part,
      span.isWhole
        ? null
        : [
            make("span", null, `steps ${whole(Math.floor(span.from))} to ${whole(Math.ceil(span.to))} of ${whole(span.last)}`),
            isFolded
              ? make(
                  "span",
                  { class: "quiet" },
                  ` · those behind are folded away: the loss is no number from step ${whole(tail)} on `,
                )
              : " ",
            make("button", { onclick: () => span.whole() }, "whole training"),
          ],
    );
    part.hidden = span.isWhole;
  }
  span.on("move", sayPart);

  function drawSettings(answer) {
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

  const kindOf = (id) => about.numbers.find((each) => each.id === id)?.kind;
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
      asked: { number, fold: mode.value === "change" && kindOf(number) === "size" ? 1 : "" },
      map,
      span,
      show: (answer, isWhole) => {
        if (isShown() && chosen === number) drawHeat(answer, isWhole);
      },
    });
  }

  function change(id) {
    number = id;
    keep({ number });
    if (choose.firstChild) choose.firstChild.value = id;
    readHeat();
  }

  function drawHeat(answer, isWhole) {
    found = matrixOf(answer);
    found.names = found.layers ?? found.sites;
    if (!choose.firstChild) choose.append(numberChooser(about.numbers, number, change), mode);
    mode.disabled = !hasChange(
      about.numbers.find(({ id }) => id === number),
      found,
    );
    const pictured = mode.value === "change" && !mode.disabled ? changeOf(found) : found;
    legend.replaceChildren(legendOf(pictured));
    map.show(pictured, isWhole);
  }

  async function read() {
    const [answer, numbers] = await Promise.all([
      source.ask(run.id, "overview", { points: 700, ...span.part }),
      source.ask(run.id, "numbers"),
    ]);
    if (!isShown()) return;
    about = numbers;
    lacks(answer.lost);
    tail = answer.scalars.find(({ group }) => group === "loss")?.tail ?? null;
    fill(top, verdict(run, answer, moves));
    sayPart();
    if (!answer.scalars.length && !about.numbers.length) {
      pictures.replaceChildren(nothingYet(run));
      charts.clear();
      return;
    }
    if (pictures.querySelector(".notice")) pictures.replaceChildren();
    drawScalars(answer);
    drawSettings(answer);
    ready();
    await readHeat();
  }
  if (args.site) map.hold(args.site, span.held ?? span.last);
  root.append(
    top,
    make("div", { class: "bar of-lines" }, smoothingSlider(span), timeChooser(span, source, run)),
    part,
    pictures,
    settings,
  );
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
