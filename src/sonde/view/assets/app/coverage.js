// What was observed, what was not, and why.
import { make, notice, partsOf, whole } from "./dom.js";

export async function coverageView({ root, source, run, isShown }) {
  async function read() {
    const answer = await source.ask(run.id, "coverage");
    if (!isShown()) return;
    if (!answer.coverage && !answer.missing) { root.replaceChildren(notice("No coverage was written", "A run has its coverage when the training has ended, or after its first flush. Runs of a writer of your own have none.")); return; }
    const held = answer.coverage ?? answer;
    const filter = make("input", { type: "search", placeholder: "Filter sites", "aria-label": "Filter sites" });
    const table = (rows, title, column, empty) => {
      const body = make("tbody");
      const fill = () => {
        const words = filter.value.toLowerCase();
        const shown = rows.filter((line) => `${line.site} ${line[column]}`.toLowerCase().includes(words));
        body.replaceChildren(...shown.slice(0, 500).map((line) => { const [layer, port] = partsOf(line.site); return make("tr", null, make("td", { class: "name" }, layer || line.site), make("td", { class: "quiet" }, port), make("td", null, line[column])); }), ...(shown.length > 500 ? [make("tr", null, make("td", { colspan: 3, class: "quiet" }, `and ${whole(shown.length - 500)} more: filter them`))] : []));
      };
      filter.addEventListener("input", fill);
      fill();
      return make("section", null, make("h2", null, title), rows.length ? make("div", { class: "table-wrap" }, make("table", null, make("thead", null, make("tr", null, make("th", null, "layer or parameter"), make("th", null, "port"), make("th", null, column))), body)) : make("p", { class: "quiet" }, empty));
    };
    const [missing, notes] = [held.missing ?? [], held.notes ?? []];
    root.replaceChildren(
      make("div", { class: "bar" }, make("h1", null, "Coverage"), make("p", { class: "quiet" }, `${whole(held.observed)} of ${whole(held.sites)} sites have rows`), make("span", { class: "space" }), filter),
      table(missing, `Not observed: ${whole(missing.length)}`, "reason", "Every site that was asked for has rows."),
      table(notes, `Notes: ${whole(notes.length)}`, "note", "Nothing is to be said of the observed sites."));
  }
  await read();
  return { refresh: null };
}
