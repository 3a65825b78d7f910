// All runs below the folder: their health at a glance; any of them can be compared.
import { keep, linkTo } from "./address.js";
import { code, fill, healthOf, lasting, make, many, notice, plain, since, stateDot, whole } from "./dom.js";
import { MARKS } from "./scales.js";

const STATES = {
  running: "a process writes it",
  ended: "its training came to its end",
  failed: "an error ended it",
  interrupted: "Ctrl-C or a signal ended it",
  lost: "its process is gone without an end: it was killed, or the machine went down",
  damaged: "a part of it cannot be read",
  newer: "a newer sonde wrote it",
};

const SORTS = {
  name: (run) => run.name.toLowerCase(),
  health: (run) => ["bad", "warn", "note", "unknown", "ok"].indexOf(run.health),
  steps: (run) => -(run.last ?? -1),
  loss: (run) => run.loss_last ?? Infinity,
  updated: (run) => -(run.updated ?? 0),
  state: (run) => (run.state === "running" ? 0 : 1),
};

// In a few words what is lost of a run.
export const lossOf = ({ lost }) =>
  (lost[0].length > 48 ? `${lost[0].slice(0, 47)}…` : lost[0]) + (lost.length > 1 ? `, and ${lost.length - 1} more` : "");

export function runsView({ root, listed, args }) {
  const chosen = new Set(args.chosen ? args.chosen.split("|") : []);
  let order = args.sort in SORTS ? args.sort : "updated";
  let all = listed;
  const filter = make("input", {
    type: "search",
    placeholder: "Filter runs",
    "aria-label": "Filter runs",
    value: args.filter ?? "",
    autocomplete: "off",
    spellcheck: "false",
  });
  const compare = make("a", { class: "button" }, "Compare");
  const table = make("div", { class: "table-wrap" });
  const head = make("p", { class: "quiet" });
  filter.addEventListener("input", () => {
    keep({ filter: filter.value });
    list();
  });

  function list() {
    if (!all.runs.length) {
      root.replaceChildren(
        notice(
          "No runs here yet",
          `sonde looked for runs in ${all.folder ?? "this folder"} and below it. A training that is watched makes one; this page shows it as soon as it is there:`,
          code('import sonde\n\nwith sonde.watch(model, optimizer, every=10, to="runs/first"):\n    train()'),
          make("p", null, "Runs elsewhere? Start the page with their folder: ", make("code", null, "sonde ui FOLDER")),
        ),
      );
      return;
    }
    // The bar stays where it is: an element that is taken out, even to be put back, loses the focus.
    if (table.parentNode !== root)
      root.replaceChildren(
        make("div", { class: "bar" }, make("h1", null, "Runs"), head, make("span", { class: "space" }), filter, compare),
        table,
      );
    const words = filter.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const shown = all.runs.filter((run) =>
      words.every((word) => `${run.name} ${run.model ?? ""} ${run.state} ${run.health}`.toLowerCase().includes(word)),
    );
    shown.sort((one, other) => {
      const [a, b] = [SORTS[order](one), SORTS[order](other)];
      return a < b ? -1 : a > b ? 1 : one.name.localeCompare(other.name);
    });
    head.replaceChildren(
      `${many(all.runs.length, "run")} in ${all.folder ?? "this folder"}${shown.length < all.runs.length ? ` · ${shown.length} shown` : ""}`,
    );
    const title = (name, text, settings = {}) =>
      make(
        "th",
        { scope: "col", "aria-sort": order === name ? "ascending" : null, ...settings },
        name in SORTS
          ? make(
              "button",
              {
                class: "plain",
                "data-sort": name,
                onclick: () => {
                  order = name;
                  keep({ sort: name });
                  list();
                },
              },
              text,
              order === name ? " ▾" : "",
            )
          : text,
      );
    const rows = shown.map((run) => {
      const box = make("input", {
        type: "checkbox",
        "aria-label": `Choose ${run.name} for a comparison`,
        checked: chosen.has(run.id),
        onchange: () => {
          if (box.checked) chosen.add(run.id);
          else chosen.delete(run.id);
          picked();
        },
      });
      const words = STATES[run.state] ?? "";
      const broken = ["damaged", "newer"].includes(run.state);
      return make(
        "tr",
        null,
        make("td", null, broken || typeof run.last !== "number" ? null : box),
        make(
          "td",
          { class: "run" },
          make("a", { class: "name", href: linkTo("overview", run.id) }, run.name),
          run.error || run.end ? make("p", { class: "error" }, run.error || run.end.words) : null,
        ),
        make(
          "td",
          null,
          broken
            ? ""
            : [
                healthOf(run),
                run.lost?.length && (run.findings || run.state === "failed")
                  ? make("p", { class: "error", title: run.lost.join("; ") }, lossOf(run))
                  : null,
              ],
        ),
        make(
          "td",
          { title: [words, run.pruned].filter(Boolean).join("; ") },
          make("span", { class: "nowrap" }, stateDot(run), " ", run.pruned ? `${run.state}, pruned` : run.state),
        ),
        make("td", { class: "right" }, run.last >= 0 ? whole(run.last) : "–"),
        make(
          "td",
          { class: "right" },
          run.loss_last_mark > 1 && run.loss_last_mark !== 5
            ? make("b", { class: "badge bad" }, MARKS[run.loss_last_mark].name)
            : plain(run.loss_last),
        ),
        make("td", { class: "spare" }, run.model ?? ""),
        make("td", { class: "right spare" }, whole(run.layers)),
        make("td", { class: "right nowrap", title: `began ${since(run.started)}` }, since(run.updated)),
        make("td", { class: "right nowrap spare" }, run.started ? lasting((run.updated ?? 0) - run.started) : "–"),
      );
    });
    fill(
      table,
      make(
        "table",
        null,
        make(
          "thead",
          null,
          make(
            "tr",
            null,
            make("th", { "aria-label": "Choose" }),
            title("name", "run"),
            title("health", "health"),
            title("state", "state"),
            title("steps", "last step", { class: "right" }),
            title("loss", "last loss", { class: "right" }),
            make("th", { scope: "col", class: "spare" }, "model"),
            make("th", { scope: "col", class: "right spare" }, "layers"),
            title("updated", "last data", { class: "right" }),
            make("th", { scope: "col", class: "right spare" }, "lasted"),
          ),
        ),
        make("tbody", null, rows),
      ),
      shown.length ? null : notice("No run has these words", "Change or empty the filter."),
    );
    picked();
  }

  function picked() {
    const ready = chosen.size > 1;
    compare.textContent = ready ? `Compare ${chosen.size} runs` : "Compare: tick two or more";
    compare.classList.toggle("off", !ready);
    if (ready) compare.href = linkTo("compare", "", { runs: [...chosen].join(",") });
    else compare.removeAttribute("href");
    keep({ chosen: [...chosen].join("|") });
  }

  list();
  return {
    refresh: (run, now) => {
      all = now;
      list();
    },
  };
}
