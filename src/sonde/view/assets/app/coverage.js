// What was observed, what was not, and why.
import { here, keep } from "./address.js";
import { make, notice, partsOf, searchField, whole } from "./dom.js";

export async function coverageView({ root, source, run, isShown, lacks }) {
  async function read() {
    const answer = await source.ask(run.id, "coverage");
    if (!isShown()) return;
    if (!answer.coverage && !answer.missing) {
      root.replaceChildren(
        notice(
          "No coverage was written",
          "A run has its coverage when the training has ended, or after its first flush. Runs of a writer of your own have none.",
        ),
      );
      return;
    }
    const held = answer.coverage ?? answer;
    lacks(held.lost);
    const filter = searchField("Filter sites", "Filter sites", here().args.filter);
    filter.addEventListener("input", () => keep({ filter: filter.value }));
    const table = (rows, title, column, empty) => {
      const body = make("tbody");
      const fill = () => {
        const words = filter.value.toLowerCase();
        const shown = rows.filter((line) => `${line.site} ${line[column]}`.toLowerCase().includes(words));
        body.replaceChildren(
          ...shown.slice(0, 500).map((line) => {
            const [layer, port] = partsOf(line.site);
            return make(
              "tr",
              null,
              make("td", { class: "name" }, layer || line.site),
              make("td", { class: "quiet" }, port),
              make("td", null, line[column]),
            );
          }),
          ...(shown.length > 500
            ? [make("tr", null, make("td", { colspan: 3, class: "quiet" }, `and ${whole(shown.length - 500)} more: filter them`))]
            : []),
        );
      };
      filter.addEventListener("input", fill);
      fill();
      return make(
        "section",
        null,
        make("h2", null, title),
        rows.length
          ? make(
              "div",
              { class: "table-wrap" },
              make(
                "table",
                null,
                make(
                  "thead",
                  null,
                  make("tr", null, make("th", null, "layer or parameter"), make("th", null, "port"), make("th", null, column)),
                ),
                body,
              ),
            )
          : make("p", { class: "quiet" }, empty),
      );
    };
    const [missing, notes] = [held.missing ?? [], held.notes ?? []];
    const lost = [...(held.lost ?? []), ...(held.error ? [held.error] : [])];
    const isKnown = held.sites !== null && held.sites !== undefined;
    root.replaceChildren(
      make(
        "div",
        { class: "bar" },
        make("h1", null, "Coverage"),
        make(
          "p",
          { class: "quiet" },
          [
            isKnown
              ? `${whole(held.observed)} of ${whole(held.sites)} tensors that were asked for (outputs, gradients, parameters, updates) have rows`
              : "this run says nothing of what was observed: its training has not written it, or another program wrote the run",
            run.pruned,
          ]
            .filter(Boolean)
            .join(" · "),
        ),
        make("span", { class: "space" }),
        filter,
      ),
      lost.length
        ? make(
            "section",
            null,
            make("h2", null, "Lost"),
            make(
              "p",
              { class: "quiet" },
              "Pictures and findings lack this. Rows are lost where the training makes more than the disk takes: record fewer steps (every=). A part that is damaged comes back with a copy of its file.",
            ),
            lost.map((line) => make("p", { class: "error" }, line)),
          )
        : "",
      ...(isKnown || missing.length || notes.length
        ? [
            table(missing, `Not observed: ${whole(missing.length)}`, "reason", "Every site that was asked for has rows."),
            table(notes, `Notes: ${whole(notes.length)}`, "note", "No observed tensor needs a note."),
          ]
        : []),
    );
  }
  await read();
  return { refresh: () => (root.querySelector("input")?.value ? null : read()) };
}
