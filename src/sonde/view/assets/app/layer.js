// One layer or parameter: its findings, its numbers with their histories, one of them in full.
import { keep, keepZoom, linkTo } from "./address.js";
import { lineChart, sparkline } from "./chart.js";
import { amount, fill, make, notice, partsOf, plain, whole } from "./dom.js";
import { card } from "./findings.js";
import { histogram, meanShare, spreadWords } from "./histogram.js";
import { portWords } from "./layers.js";
import { tensorPicture, valueWords, whenKept } from "./sample.js";
import { MARKS, lineColour } from "./scales.js";
import { smoothingSlider } from "./smoothing.js";
import { Span } from "./span.js";
import { timeChooser } from "./timeaxis.js";

const ORDER = ["input", "output", "grad_output", "grad_input", "param", "grad", "update"];

export async function layerView({ root, source, run, rest, args, isShown }) {
  const span = Span.of(run, args);
  let step = span.held; // whose values stand in the table; null: the last one's
  let number = args.of ? `${args.number} ${args.of}` : args.number; // and the tensor that it is of: a layer may have several of a kind
  let held = null;
  const [head, findings, tables, title] = [
    make("div"),
    make("div", { class: "findings" }),
    make("div", { class: "tables" }),
    make("h3"),
  ];
  const withCounts = () => tables.classList.toggle("with-counts", counts.checked);
  const counts = make("input", {
    type: "checkbox",
    checked: args.counts === "1",
    onchange: () => {
      withCounts();
      keep({ counts: counts.checked ? 1 : "" });
    },
  });
  withCounts();
  const chart = lineChart(span, {
    height: 260,
    label: "History of one number of this layer. A click shows all numbers at that step.",
  });
  const figure = make(
    "figure",
    null,
    make("figcaption", null, title, smoothingSlider(span), timeChooser(span, source, run)),
    chart.element,
  );
  const [spreadTitle, bars] = [make("h3"), histogram()];
  const spread = make("figure", { hidden: true }, make("figcaption", null, spreadTitle), bars.element);
  const [valuesTitle, values, without] = [make("h3"), tensorPicture(), make("p", { class: "quiet" })];
  const stored = make("figure", { class: "stored" }, make("figcaption", null, valuesTitle), values.element, without);
  let tensor = args.tensor; // the site whose distribution is shown
  let kept = args.kept; // the site of which stored values are shown
  const when = make("span", { class: "quiet" });
  const name = (entry) => entry.title ?? entry.label;
  const keyOf = (entry) => `${entry.number} ${entry.site}`;

  async function history() {
    const entry =
      held.numbers.find((each) => keyOf(each) === number || each.number === number) ??
      held.numbers.find((each) => each.port === "output" && each.label === "rms") ??
      held.numbers.find((each) => !each.minor) ??
      held.numbers[0];
    if (!entry) {
      figure.hidden = true;
      return;
    }
    number = keyOf(entry);
    for (const row of tables.querySelectorAll("tr[data-number]")) row.classList.toggle("picked", row.dataset.number === number);
    const asked = { number: entry.number, site: [entry.site], points: 800, ...span.part };
    // What the other run has not cannot be a difference: it is shown alone.
    const answer = await source
      .ask(run.id, "lines", asked)
      .catch((error) => (source.other ? source.alone.ask(run.id, "lines", asked) : Promise.reject(error)));
    if (!isShown()) return;
    const log = answer.scale ? answer.scale.log : entry.log;
    title.replaceChildren(
      make("span", null, name(entry)),
      make("span", { class: "quiet" }, ` ${[answer.axis ?? answer.unit, log ? "logarithmic" : ""].filter(Boolean).join(", ")}`),
    );
    chart.show({
      log,
      markers: held.findings
        .filter((finding) => finding.site === entry.site)
        .map((finding) => ({
          step: finding.first_step ?? finding.step,
          severity: finding.severity,
          text: finding.message ?? finding.text,
          href: location.hash,
        })),
      series: answer.lines.map((line, place) => ({ ...line, name: name(entry), colour: lineColour(place) })),
    });
  }

  // What a tensor of this layer is called here, or a field to choose one of several.
  const words = (site) =>
    partsOf(site)[0] === rest ? partsOf(site)[1] : site.startsWith(`${rest}.`) ? site.slice(rest.length + 1) : site;
  function chooser(label, sites, site, chosen) {
    if (sites.length < 2) return make("span", null, words(site));
    const options = sites.map((each) => make("option", { value: each, selected: each === site }, words(each)));
    return make("select", { "aria-label": label, onchange: (event) => chosen(event.target.value) }, options);
  }

  // How the elements of one tensor of this layer are spread at the step, beside the mean of the training.
  async function distribution() {
    const sites = held.powers ?? [];
    spread.hidden = !sites.length;
    if (!sites.length) return;
    if (!sites.includes(tensor)) tensor = sites.find((site) => partsOf(site)[1].startsWith("output")) ?? sites[0];
    const site = tensor;
    const [answer, all] = await Promise.all([
      source.ask(run.id, "distribution", { site, step: step ?? run.last }),
      source.ask(run.id, "distribution", { site, columns: 1 }),
    ]);
    if (!isShown() || site !== tensor) return;
    const choose = chooser("Tensor", sites, site, (next) => {
      tensor = next;
      keep({ tensor });
      distribution();
    });
    fill(
      spreadTitle,
      make("span", null, "Distribution of"),
      choose,
      make(
        "span",
        { class: "quiet" },
        ` at step ${whole(answer.ends[0])} · ${[answer.dtype, spreadWords(answer)].filter(Boolean).join(" · ")}`,
      ),
      make("span", { class: "signs quiet" }, "dashed: the mean of the training"),
    );
    const usual = meanShare(all);
    bars.show(
      answer,
      answer.powers.map((power) => usual[all.powers.indexOf(power)] ?? 0),
    );
  }

  // Values of a tensor that was kept at the step, or last before it; or why there are none.
  async function sample() {
    const sites = held.kept ?? [];
    if (!sites.includes(kept)) kept = sites.find((site) => partsOf(site)[1].startsWith("output")) ?? sites[0];
    const site = kept;
    const answer = site && (await source.ask(run.id, "sample", { site, step }).catch((error) => ({ error })));
    if (!isShown() || site !== kept) return;
    const choose =
      site &&
      chooser("Stored tensor", sites, site, (next) => {
        kept = next;
        keep({ kept });
        sample();
      });
    const shown = answer && !answer.error;
    fill(
      valuesTitle,
      make("span", null, site ? "Values of" : "Values of its tensors"),
      choose,
      shown ? make("span", { class: "quiet" }, ` ${whenKept(answer, step)} · ${valueWords(answer)}`) : null,
    );
    values.element.hidden = !shown;
    without.hidden = Boolean(shown);
    if (shown) values.show(answer);
    else
      fill(
        without,
        answer?.error?.message ||
          held.unread || [
            "None was kept. ",
            make("code", null, 'tracker.save(inspector.run.path / "tensors")'),
            " of a sonde.track within the training keeps some.",
          ],
      );
  }

  // Show all numbers at another step.
  span.on("hold", () => {
    step = span.held;
    read();
  });

  async function read() {
    held = await source.ask(run.id, "layer", { layer: rest, step });
    if (source.other) {
      const other = await source.alone.ask(source.other.id, "layer", { layer: rest, step }).catch(() => ({ numbers: [] }));
      const theirs = new Map(other.numbers.map((entry) => [keyOf(entry), entry]));
      for (const entry of held.numbers) entry.other = theirs.get(keyOf(entry)) ?? {};
    }
    if (!isShown()) return;
    const facts = [
      held.kind,
      held.code ? `written in ${held.code}` : "",
      typeof held.parameters === "number" && held.parameters ? `${amount(held.parameters)} parameters` : "",
      held.shape ?? "",
      held.dtype ?? "",
    ]
      .filter(Boolean)
      .join(" · ");
    const number_ = args.number && !args.number.includes(" ") ? args.number : "";
    fill(
      head,
      make(
        "p",
        { class: "crumbs" },
        make("a", { href: linkTo("layers", run.id, { number: number_, site: `${rest}:output`, step }) }, "← heat-map"),
        held.before
          ? make(
              "a",
              { href: linkTo("layer", run.id, { step }, held.before), "data-key": "back", title: "The layer before ([)" },
              `‹ ${held.before}`,
            )
          : null,
        held.after
          ? make(
              "a",
              { href: linkTo("layer", run.id, { step }, held.after), "data-key": "forward", title: "The next layer (])" },
              `${held.after} ›`,
            )
          : null,
      ),
      make("h1", null, rest || "(root)"),
      make("p", { class: "quiet" }, facts),
      held.children?.length
        ? make(
            "p",
            { class: "crumbs" },
            make("span", { class: "quiet" }, "holds"),
            held.children.slice(0, 24).map((child) => make("a", { href: linkTo("layer", run.id, { step }, child) }, child)),
            held.children.length > 24 ? make("span", { class: "quiet" }, `and ${held.children.length - 24} more`) : null,
          )
        : null,
    );
    fill(
      findings,
      held.findings.map((finding) => card(run, finding)),
    );
    // One box for each tensor; numbers that only count stand behind a switch.
    const groups = new Map();
    const families = new Set(held.numbers.filter(({ label }) => label === "rms").map(({ family }) => family)); // the size comes first
    const place = (entry) => [ORDER.indexOf(entry.port), entry.site, families.has(entry.family) ? 0 : 1, Number(entry.minor)];
    const sorted = [...held.numbers].sort((one, other) => {
      const [a, b] = [place(one), place(other)];
      const at = a.findIndex((each, index) => each !== b[index]);
      return at < 0 ? 0 : a[at] < b[at] ? -1 : 1;
    });
    for (const entry of sorted) {
      if (!groups.has(entry.site)) groups.set(entry.site, []);
      groups.get(entry.site).push(entry);
    }
    const boxes = [...groups].map(([site, entries]) =>
      make(
        "section",
        { class: "numbers" },
        make(
          "h3",
          null,
          portWords(entries[0]),
          make(
            "span",
            { class: "quiet" },
            ` ${[partsOf(site)[0] === rest ? "" : partsOf(site)[0], entries[0].unit].filter(Boolean).join(", ")}`,
          ),
        ),
        make(
          "table",
          null,
          source.other
            ? make(
                "thead",
                null,
                make(
                  "tr",
                  null,
                  ["", run.name, source.other.name, ""].map((text) => make("th", { scope: "col", class: "right" }, text)),
                ),
              )
            : null,
          make("tbody", null, entries.map(line)),
        ),
      ),
    );
    fill(tables, boxes.length ? boxes : notice("No numbers of this layer", "The coverage says why."));
    const seen = held.numbers.flatMap((each) => each.shown_step ?? []);
    const shown = seen.length ? Math.max(...seen) : step;
    const others = seen.some((each) => each !== shown) ? ", or the nearest that was logged" : "";
    fill(
      when,
      step === null ? `at the last step of each` : `at step ${whole(shown)}${others} `,
      step === null ? null : make("button", { onclick: () => span.hold(null) }, "the last step"),
    );
    await Promise.all([history(), distribution(), sample()]);
  }

  function line(entry) {
    const key = keyOf(entry);
    const mark = (step === null ? entry.last_mark : entry.shown_mark) ?? 0;
    const choose = () => {
      number = key;
      keep({ number: entry.number, of: entry.site });
      history();
    };
    return make(
      "tr",
      { "data-number": key, class: entry.minor ? "minor" : null, onclick: choose },
      make(
        "td",
        null,
        make(
          "button",
          {
            class: "plain",
            title: entry.title,
            onclick: (event) => {
              event.stopPropagation();
              choose();
            },
          },
          entry.label ?? entry.title,
        ),
      ),
      make(
        "td",
        { class: "right" },
        plain(step === null ? entry.last : entry.shown),
        mark > 1 && mark !== 5 ? make("b", { class: "glyph" }, ` ${MARKS[mark].glyph}`) : null,
      ),
      source.other
        ? make(
            "td",
            { class: "right quiet", title: `in ${source.other.name}` },
            plain(step === null ? entry.other.last : entry.other.shown),
          )
        : null,
      make("td", null, entry.values ? sparkline(entry, source.other ? 80 : 150) : null),
    );
  }

  await read();
  root.append(
    head,
    findings,
    figure,
    spread,
    stored,
    make("div", { class: "bar" }, make("h2", null, "All numbers"), when, make("label", null, counts, "counts, too")),
    tables,
  );
  span.on("rest", () => {
    keepZoom(span.words);
    if (source.isLive) history();
  });
  return {
    refresh: (now) => {
      span.grow(now.first, now.last);
      return read();
    },
  };
}
