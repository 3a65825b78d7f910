// How the elements of one tensor are spread over the powers of two, step by step, beside the limits of number formats.
import { keep, keepZoom } from "./address.js";
import { lineChart } from "./chart.js";
import { code, make, notice, percent, raised, whole } from "./dom.js";
import { heatMap, legendOf, rowOfSite, stepsOf } from "./heat.js";
import { powerNote } from "./histogram.js";
import { lineColour } from "./scales.js";
import { middlesOf, withSpikes } from "./source.js";
import { Span } from "./span.js";

const FEWEST = 1e-7; // a share below is drawn as this one

export async function distributionView({ root, source, run, args, isShown }) {
  const ask = (site) => source.ask(run.id, "distribution", { site }).catch((error) => ({ error }));
  let listed = await ask(args.site ?? "");
  if (listed.error && args.site) {
    listed = await ask(""); // powers were not counted there: they may be at another place of this layer
    const near = listed.error ? -1 : rowOfSite(listed.sites, args.site);
    if (near > 0) listed = await ask(listed.sites[near]);
  }
  if (!isShown()) return null;
  if (listed.error) {
    root.append(
      notice(
        "No distribution to show",
        listed.error.message,
        "A training records it with a lens beside the others:",
        code(
          "lenses = [*sonde.lens.default_lenses(), sonde.lens.exponents()]\n\nwith sonde.watch(model, optimizer, lenses=lenses):\n    train()",
        ),
      ),
    );
    return null;
  }
  let answer = listed;
  const span = Span.of(run, args);
  const [title, facts, legend, chooserPlace, under] = [
    make("h2"),
    make("p", { class: "quiet" }),
    make("div"),
    make("span"),
    make("h3"),
  ];
  const map = heatMap(span, {
    label: "The share of elements with each power of two, over the steps. Arrow keys move over the cells.",
    rowHeight: 9,
    height: 460,
    onlayout: () => chart.again(),
    least: 220,
    gutter: 84,
    rowText: (row, stride) => {
      const power = answer.powers[answer.powers.length - 1 - row];
      return power % (stride > 3 ? 16 : 8) === 0 ? `2${raised(power)}` : "";
    },
    guides: () => limits(),
    describe: (data, row, column) => {
      const power = answer.powers[answer.powers.length - 1 - row];
      const cell = row * data.columns + column;
      const share = data.marks[cell] ? "none" : percent(data.values[cell]);
      return powerNote(power, { "share of elements": share }, make("p", { class: "quiet" }, stepsOf(data, column)));
    },
  });
  map.element.classList.add("plain");
  const chart = lineChart(span, {
    height: 150,
    gutter: () => map.plot,
    label: "Share of elements that are exactly zero, NaN or infinite",
  });

  function limits() {
    const rowOfPower = (power) => answer.powers[answer.powers.length - 1] + 1 - power;
    return (answer.limits ?? []).map((limit) => ({ row: rowOfPower(limit.power), text: limit.text, below: limit.below }));
  }

  function fill() {
    const [rows, columns] = [answer.powers.length, answer.steps.length - 1];
    const [values, marks] = [new Float32Array(rows * columns), new Uint8Array(rows * columns)];
    let most = FEWEST;
    for (let row = 0; row < rows; row += 1) {
      for (let column = 0; column < columns; column += 1) {
        const share = answer.share[column]?.[rows - 1 - row] ?? 0;
        values[row * columns + column] = Math.max(share, FEWEST);
        marks[row * columns + column] = share > 0 ? 0 : 1;
        if (share > most) most = share;
      }
    }
    const data = {
      ...withSpikes({ values, marks }),
      rows,
      columns,
      steps: answer.steps,
      ends: answer.ends,
      id: answer.site,
      names: answer.powers.map((power) => `2${raised(power)}`).reverse(),
      label: "share of elements",
      scale: { log: true, diverging: false, low: 1e-6, high: Math.min(1, Math.max(most, 1e-3)), least: null, most: null },
    };
    title.replaceChildren(`Powers of two of ${answer.site}`);
    facts.replaceChildren(
      [
        most > FEWEST ? "" : "every element is exactly 0, NaN or infinite",
        answer.dtype,
        "share of the elements with each power of two",
        "lines: limits of number formats",
      ]
        .filter(Boolean)
        .join(" · "),
    );
    legend.replaceChildren(legendOf({ ...data, unit: "no unit", shownMarks: [] }, "empty: no element"));
    map.show(data, span.isWhole);
    const middles = middlesOf(answer.steps, answer.ends);
    const series = [
      ["exactly 0", answer.zeros],
      ["NaN or infinite", answer.nonfinite],
    ]
      .filter(([, values]) => values)
      .map(([name, values], place) => ({ name, colour: lineColour(place ? 3 : 0), steps: middles, values }));
    chart.show({
      log: false,
      ends: [0, Math.max(0.01, ...series.flatMap(({ values }) => values.filter((value) => value !== null))) * 1.08],
      series,
    });
    under.replaceChildren(
      make("span", null, "Elements without a power"),
      make("span", { class: "quiet" }, " share of all elements"),
      make(
        "span",
        { class: "signs" },
        series.map(({ name, colour }) =>
          make("span", { class: "sign" }, make("i", { class: "line", style: { background: colour } }), name),
        ),
      ),
    );
  }

  async function read() {
    const next = await source.ask(run.id, "distribution", {
      site: answer.site,
      columns: Math.min(500, innerWidth - 200),
      ...map.part,
    });
    if (!isShown()) return;
    answer = next;
    fill();
  }
  const sites = answer.sites ?? [answer.site];
  const chooser = make("input", {
    list: "sites",
    "aria-label": "Site",
    value: answer.site,
    class: "wide",
    spellcheck: "false",
    autocomplete: "off",
    onchange: () => {
      if (sites.includes(chooser.value)) {
        answer = { ...answer, site: chooser.value };
        keep({ site: chooser.value });
        read();
      } else chooser.value = answer.site;
    },
  });
  const step = (by) => {
    const next = sites[(sites.indexOf(answer.site) + by + sites.length) % sites.length];
    chooser.value = next;
    chooser.dispatchEvent(new Event("change"));
  };
  chooserPlace.append(
    make("label", null, "site ", chooser),
    make(
      "datalist",
      { id: "sites" },
      sites.map((site) => make("option", { value: site })),
    ),
    make(
      "span",
      { class: "pair" },
      make(
        "button",
        { "data-key": "back", "aria-label": "The site before", title: "The site before ([)", onclick: () => step(-1) },
        "‹",
      ),
      make(
        "button",
        { "data-key": "forward", "aria-label": "The next site", title: "The next site (])", onclick: () => step(1) },
        "›",
      ),
    ),
    make("span", { class: "quiet" }, ` ${whole(sites.length)} sites, in the order of execution`),
  );
  root.append(
    make("div", { class: "bar" }, chooserPlace),
    make("figure", null, make("figcaption", null, title, facts), map.element, legend),
    make("figure", null, make("figcaption", null, under), chart.element),
  );
  fill();
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
