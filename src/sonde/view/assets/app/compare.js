// Two runs overlaid: where they part, the settings that differ, and each scalar of both on one axis.
import { linkTo } from "./address.js";
import { lineChart } from "./chart.js";
import { make, notice, plain, whole } from "./dom.js";
import { lineColour } from "./scales.js";
import { Span } from "./span.js";

export async function compareView({ root, source, listed, args, isShown }) {
  const [a, b] = [args.a, args.b].map((id) => listed.runs.find((run) => run.id === id));
  if (!a || !b) { root.append(notice("Choose two runs", "Tick two runs in the list, then press Compare.", make("p", null, make("a", { href: linkTo("runs") }, "to the list of runs")))); return null; }
  const span = new Span(Math.min(a.first, b.first), Math.max(a.last, b.last, Math.min(a.first, b.first) + 1));
  const [said, pictures, settings] = [make("div"), make("div", { class: "pictures" }), make("div", { class: "table-wrap settings-differ" })];
  const charts = new Map();
  const names = a.name === b.name ? [a.id, b.id] : [a.name, b.name];
  async function read() {
    const answer = await source.compare(a.id, b.id);
    if (!isShown()) return;
    const parting = answer.first ?? null;
    said.replaceChildren(make("section", { class: `verdict ${parting ? "warn" : "ok"}` }, make("h1", null, make("i", { class: "dot", style: { background: lineColour(0) } }), ` ${names[0]} `, make("span", { class: "quiet" }, "and"), " ", make("i", { class: "dot", style: { background: lineColour(1) } }), ` ${names[1]}`),
      make("p", null, answer.text ?? (parting ? `They part at step ${whole(parting.step)}${parting.layer ? ` in ${parting.layer}` : ""}.` : "No difference beyond what seeds and noise explain was found.")),
      parting?.layer ? make("p", null, make("a", { href: linkTo("layer", a.id, { step: parting.step }, parting.layer) }, `${parting.layer} in ${names[0]}`), " · ", make("a", { href: linkTo("layer", b.id, { step: parting.step }, parting.layer) }, `in ${names[1]}`)) : null));
    const differing = answer.settings ?? [];
    settings.replaceChildren(make("h2", null, "Settings that differ"), differing.length ? make("table", null, make("thead", null, make("tr", null, make("th", null, "setting"), names.map((name) => make("th", null, name)))), make("tbody", null, differing.map((line) => make("tr", null, make("td", { class: "name" }, line.name), [line.a, line.b].map((value) => make("td", null, typeof value === "number" ? plain(value, 6) : value === null || value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value))))))) : make("p", { class: "quiet" }, "none"));
    const held = new Map();
    for (const [place, side] of [answer.a, answer.b].entries()) {
      for (const scalar of side?.scalars ?? []) {
        if (!held.has(scalar.name)) held.set(scalar.name, { ...scalar, series: [] });
        held.get(scalar.name).series.push({ ...scalar, name: names[place], colour: lineColour(place) });
      }
    }
    for (const [name, scalar] of held) {
      if (!charts.has(name)) {
        const caption = make("h3");
        const chart = lineChart(span, { height: scalar.group === "loss" ? 240 : 180, label: `${name} of both runs` });
        charts.set(name, { caption, chart });
        pictures.append(make("figure", { class: scalar.group === "loss" ? "wide" : "" }, make("figcaption", null, caption), chart.element));
      }
      const { caption, chart } = charts.get(name);
      caption.replaceChildren(make("span", null, name.replaceAll("_", " ")), make("span", { class: "quiet" }, ` ${[scalar.unit, scalar.log ? "logarithmic" : "linear"].filter(Boolean).join(", ")}`));
      chart.show({ series: scalar.series, log: scalar.log, markers: parting && scalar.group === "loss" ? [{ step: parting.step, severity: "warn", text: "the runs part", href: location.hash }] : [] });
    }
  }
  await read();
  root.append(said, settings, pictures);
  return { refresh: read };
}
