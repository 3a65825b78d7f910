// Several runs together: where they part, which settings and layers differ, and each scalar of all on one axis.
import { keep, linkTo } from "./address.js";
import { besideEachOther } from "./beside.js";
import { lineChart } from "./chart.js";
import { fill, healthOf, make, many, notice, stateDot, whole } from "./dom.js";
import { chapter, storyOf } from "./findings.js";
import { knownOf, placesOf, settingText } from "./query.js";
import { lineColour, lineDash } from "./scales.js";
import { smoothingSlider, windowOf } from "./smoothing.js";
import { Span } from "./span.js";
import { orderedColour } from "./sweep.js";
import { ALIGNMENTS, placeWords } from "./together.js";

const GROUP_ORDER = ["loss", "norm", "lr", "metric", "other"];
const [FEW_FINDINGS, FEW_SETTINGS] = [4, 8];

const unable = (title, why) => notice(title, why, make("p", null, make("a", { href: linkTo("runs") }, "to the list of runs")));
const canBeRead = (run) => !["damaged", "newer"].includes(run.state) && typeof run.last === "number";

export async function compareView({ root, source, listed, args, isShown }) {
  const asked = (args.runs ? args.runs.split(",") : [args.a, args.b]).filter(Boolean);
  const readable = listed.runs.filter(canBeRead);
  const ids = [...new Set(asked)].filter((id) => readable.some((run) => run.id === id));
  if (ids.length < 2) {
    const why =
      asked.length > 1
        ? "Fewer than two of the runs in this address are here and have data."
        : "Tick two runs or more in the list, then press Compare.";
    root.append(unable("Choose two runs or more", why));
    return null;
  }
  let alignment = args.axis in ALIGNMENTS ? args.axis : "step";
  const hidden = new Set((args.off ?? "").split(",").filter(Boolean));
  let runs = [];
  function look(now) {
    const places = placesOf(now.runs.filter(({ id }) => ids.includes(id)).map((run) => knownOf(run, args.group ?? "")));
    runs = ids
      .map((id) => now.runs.find((run) => run.id === id && canBeRead(run)))
      .filter(Boolean)
      .map((run, place) => {
        const own = { ...run, first: Math.max(run.first ?? 0, 0) };
        const [to, back] = ALIGNMENTS[alignment].on(own);
        return {
          ...own,
          title: run.name,
          place,
          to,
          back,
          get colour() {
            const share = places.get(knownOf(run, args.group ?? ""));
            return args.group && share !== undefined ? orderedColour(share) : lineColour(place);
          },
          dash: args.group ? null : lineDash(place),
          get isOn() {
            return !hidden.has(run.id);
          },
        };
      });
    return [
      Math.min(...runs.map((run) => run.to(run.first))),
      Math.max(...runs.map((run) => run.to(Math.max(run.last, run.first + 1)))),
    ];
  }
  const ends = look(listed);
  const span = new Span(...ends, args.from ? Number(args.from) : null, args.to ? Number(args.to) : null);
  const [bar, legend, said, pictures, settings, findings] = [
    make("div", { class: "bar" }),
    make("div", { class: "chosen" }),
    make("div"),
    make("div", { class: "pictures" }),
    make("div", { class: "table-wrap settings-differ" }),
    make("div", { class: "beside" }),
  ];
  span.window = windowOf(args.smooth);
  const charts = new Map();
  const swatch = (run) => make("i", { class: "line", style: { background: run.colour } });
  const named = (run) => make("span", { class: "sign" }, swatch(run), run.title);
  // The part of its own steps that is shown, as a question asks for it; null where the run has none there.
  const partOf = (run) => {
    if (span.isWhole) return {};
    const [from, to] = [Math.max(Math.floor(run.back(span.from)), run.first), Math.min(Math.ceil(run.back(span.to)), run.last)];
    return from <= to ? { from, to } : null;
  };
  const beside = besideEachOther({
    source,
    span,
    args,
    isShown,
    partOf,
    swatch,
    axisName: () => ALIGNMENTS[alignment].axis,
    where: (at) => placeWords(alignment, at),
  });

  function controls() {
    const others = listed.runs.filter((run) => readable.includes(run) && !ids.includes(run.id));
    fill(
      bar,
      make("h1", null, many(runs.length, "run")),
      make(
        "label",
        null,
        "time axis ",
        make(
          "select",
          {
            "aria-label": "Time axis",
            onchange: (event) => {
              alignment = event.target.value;
              keep({ axis: alignment === "step" ? "" : alignment, from: "", to: "" });
              const [first, last] = look(listed);
              span.grow(first, last);
              span.whole();
              draw();
            },
          },
          Object.entries(ALIGNMENTS).map(([name, { title }]) =>
            make("option", { value: name, selected: name === alignment }, title),
          ),
        ),
      ),
      others.length
        ? make(
            "label",
            null,
            "add ",
            make(
              "select",
              { "aria-label": "Add a run", onchange: (event) => go([...ids, event.target.value]) },
              make("option", { value: "" }, "a run …"),
              others.map((run) => make("option", { value: run.id }, run.name)),
            ),
          )
        : null,
      make("span", { class: "space" }),
      make("button", { class: "whole", hidden: span.isWhole, onclick: () => span.whole() }, "whole training"),
    );
    fill(
      legend,
      runs.map((run) =>
        make(
          "span",
          { class: `choice${run.isOn ? "" : " off"}` },
          make(
            "button",
            {
              class: "plain",
              "aria-pressed": String(run.isOn),
              title: run.isOn ? "Hide this run" : "Show this run",
              onclick: () => {
                if (!hidden.delete(run.id)) hidden.add(run.id);
                keep({ off: [...hidden].join(",") });
                controls();
                draw();
              },
            },
            swatch(run),
            make("b", null, run.title),
            args.group ? make("span", { class: "quiet" }, `${args.group} ${settingText(knownOf(run, args.group))}`) : null,
          ),
          healthOf(run),
          make(
            "a",
            { href: linkTo("overview", run.id), class: "quiet", title: run.end?.words ?? null },
            run.state === "ended" || (run.state === "failed" && !run.findings) ? null : [stateDot(run), ` ${run.state} · `],
            `step ${whole(run.last)}`,
          ),
          ids.length > 2
            ? make(
                "button",
                {
                  class: "plain quiet",
                  "aria-label": `Leave out ${run.title}`,
                  title: "Leave this run out",
                  onclick: () => go(ids.filter((id) => id !== run.id)),
                },
                "×",
              )
            : null,
        ),
      ),
    );
  }
  const go = (chosen) => {
    location.hash = linkTo("compare", "", {
      ...args,
      a: "",
      b: "",
      runs: chosen.join(","),
      axis: alignment === "step" ? "" : alignment,
    });
  };

  // Where each run parts from the first one.
  async function partings() {
    const [first, ...rest] = runs;
    const answers = await Promise.all(
      rest.map((run) => source.compare(first.id, run.id).catch((error) => ({ error: error.message }))),
    );
    if (!isShown()) return [];
    // Runs of which the same is said are one verdict.
    const alike = new Map();
    answers.forEach((answer, place) => {
      const key = JSON.stringify([
        answer.error,
        answer.text?.replaceAll(rest[place].title, ""),
        answer.first?.step,
        answer.layers,
        answer.notes,
      ]);
      if (!alike.has(key)) alike.set(key, []);
      alike.get(key).push(place);
    });
    const sections = [...alike.values()].map((every) => {
      const [answer, run] = [answers[every[0]], rest[every[0]]];
      const at = answer.first;
      const tone = answer.error ? "note" : at || answer.partings?.length ? "warn" : "ok";
      return make(
        "section",
        { class: `verdict ${tone}` },
        make(
          "h2",
          null,
          named(first),
          make("span", { class: "quiet" }, "and"),
          every.map((at) => named(rest[at])),
        ),
        make("p", null, answer.error ? `They cannot be compared step by step: ${answer.error}` : answer.text),
        at?.layer
          ? make(
              "p",
              null,
              make("a", { href: linkTo("layer", first.id, { step: at.step }, at.layer) }, `${at.layer} in ${first.title}`),
              " · ",
              make("a", { href: linkTo("layer", run.id, { step: at.step }, at.layer) }, `in ${run.title}`),
            )
          : null,
        answer.layers?.length || answer.notes?.length
          ? make("p", { class: "quiet" }, [...answer.layers, ...answer.notes].join(" · "))
          : null,
      );
    });
    fill(said, sections);
    return answers;
  }

  function differing(overviews) {
    const tables = overviews.map(
      ({ settings: own, environment }) =>
        new Map([...own, ...environment.map(([name, value]) => [`environment: ${name}`, value])]),
    );
    const names = [...new Set(tables.flatMap((table) => [...table.keys()]))].filter(
      (name) => new Set(tables.map((table) => table.get(name) ?? "–")).size > 1,
    );
    fill(
      settings,
      names.length
        ? make(
            "details",
            { open: names.length <= FEW_SETTINGS },
            make("summary", null, many(names.length, "setting differs", "settings differ")),
            make(
              "table",
              null,
              make(
                "thead",
                null,
                make(
                  "tr",
                  null,
                  make("th", null, "setting"),
                  runs.map((run) => make("th", null, named(run))),
                ),
              ),
              make(
                "tbody",
                null,
                names.map((name) =>
                  make(
                    "tr",
                    null,
                    make("td", { class: "name" }, name),
                    tables.map((table) => make("td", null, table.get(name) ?? "–")),
                  ),
                ),
              ),
            ),
          )
        : make("p", { class: "quiet" }, "No setting differs."),
    );
  }

  function scalars(overviews, parted) {
    const held = new Map();
    overviews.forEach((answer, place) => {
      for (const scalar of answer.scalars) {
        if (!held.has(scalar.name)) held.set(scalar.name, { ...scalar, log: false, series: [] });
        const known = held.get(scalar.name);
        known.log ||= scalar.log;
        if (runs[place].isOn)
          known.series.push({
            ...scalar,
            name: runs[place].title,
            steps: scalar.steps.map(runs[place].to),
            colour: runs[place].colour,
            dash: runs[place].dash,
          });
      }
    });
    const sorted = [...held.values()].sort((one, other) => GROUP_ORDER.indexOf(one.group) - GROUP_ORDER.indexOf(other.group));
    for (const scalar of sorted) {
      if (!charts.has(scalar.name)) {
        const caption = make("h3");
        const chart = lineChart(span, {
          height: scalar.group === "loss" ? 240 : 180,
          label: `${scalar.name} of all runs`,
          axisName: () => ALIGNMENTS[alignment].axis,
          where: (at) => placeWords(alignment, at),
        });
        charts.set(scalar.name, { caption, chart });
        pictures.append(
          make("figure", { class: scalar.group === "loss" ? "wide" : "" }, make("figcaption", null, caption), chart.element),
        );
      }
      const { caption, chart } = charts.get(scalar.name);
      const lacking = runs.filter((run, place) => run.isOn && !overviews[place].scalars.some(({ name }) => name === scalar.name));
      caption.replaceChildren(
        make("span", null, scalar.name.replaceAll("_", " ")),
        make(
          "span",
          { class: "quiet" },
          ` ${[scalar.unit, scalar.log ? "logarithmic" : "", lacking.length ? `not recorded by ${lacking.map(({ title }) => title).join(", ")}` : ""].filter(Boolean).join(", ")}`,
        ),
      );
      const markers =
        scalar.group !== "loss"
          ? []
          : parted.flatMap((answer, place) =>
              answer.first
                ? [
                    {
                      step: runs[0].to(answer.first.step),
                      severity: "warn",
                      text: `${runs[place + 1].title} parts from ${runs[0].title}${answer.first.layer ? ` in ${answer.first.layer}` : ""}`,
                      href: location.hash,
                    },
                  ]
                : [],
            );
      chart.show({ series: scalar.series, log: scalar.log, markers });
    }
  }

  function found(overviews) {
    fill(
      findings,
      runs.map((run, place) => {
        const all = overviews[place].findings;
        return make(
          "section",
          null,
          make("h3", null, named(run)),
          all.length
            ? storyOf(all)
                .slice(0, FEW_FINDINGS)
                .map((each) => chapter(run, each, true))
            : make("p", { class: "quiet" }, ["no findings", ...overviews[place].shortfalls].join(" · ")),
          storyOf(all).length > FEW_FINDINGS
            ? make("a", { href: linkTo("findings", run.id) }, `all ${whole(all.length)} findings`)
            : null,
        );
      }),
    );
  }

  let [known, parted] = [[], []];
  function draw() {
    differing(known);
    scalars(known, parted);
    found(known);
    beside.read(runs);
  }
  async function read() {
    const answers = await Promise.all(
      runs.map(async (run) => {
        const part = partOf(run);
        return part && source.ask(run.id, "overview", { points: 500, ...part });
      }),
    );
    if (!isShown()) return;
    known = answers.map((answer, place) => answer ?? { ...known[place], scalars: [] });
    controls();
    draw();
  }
  fill(said, make("p", { class: "quiet" }, "comparing …"));
  root.append(
    bar,
    legend,
    said,
    settings,
    make("div", { class: "bar of-lines" }, smoothingSlider(span)),
    pictures,
    beside.element,
    make("h2", null, "Findings"),
    findings,
  );
  await read();
  partings().then((answers) => {
    if (isShown()) {
      parted = answers;
      scalars(known, parted);
    }
  });
  span.on("move", () => {
    bar.querySelector(".whole").hidden = span.isWhole;
  });
  span.on("rest", () => {
    keep(span.isWhole ? { from: "", to: "" } : { from: span.from.toFixed(2), to: span.to.toFixed(2) });
    if (source.isLive) read();
  });
  return {
    refresh: async (_, now) => {
      listed = now;
      const [first, last] = look(now);
      if (runs.length < 2) {
        root.replaceChildren(unable("Runs are gone", "Fewer than two of the runs that were compared are still here."));
        return;
      }
      span.grow(first, last);
      await read();
      parted = await partings();
      if (isShown()) scalars(known, parted);
    },
  };
}
