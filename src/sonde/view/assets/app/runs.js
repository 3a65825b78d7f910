// All runs below the folder: their health at a glance, their settings and metrics; any of them can be compared, and all drawn as a sweep.
import { keep, linkTo } from "./address.js";
import { sparkline } from "./chart.js";
import { code, fill, healthOf, lasting, make, many, notice, plain, searchField, since, stateDot, whole } from "./dom.js";
import { notesOf } from "./notes.js";
import { chosenRuns, columnTitle, columnsOf, knownOf, placesOf, settingText } from "./query.js";
import { MARKS } from "./scales.js";
import { orderedColour, sweepPicture } from "./sweep.js";

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

const [FEW_SETTINGS_SHOWN, FEW_METRICS_SHOWN] = [5, 2];
const MOST_CHOICES = 60; // of columns
const MOST_ROWS = 200; // at first

// A list is sorted by a column as the reader expects: numbers from the least, texts by their letters; what has none stands last.
function byColumn(name, direction, note) {
  return (one, other) => {
    const [a, b] = [knownOf(one, name, note(one)), knownOf(other, name, note(other))];
    const [isNone, isOther] = [a, b].map((value) => value === undefined || value === null);
    if (isNone || isOther) return Number(isNone) - Number(isOther);
    return (
      direction *
      (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }))
    );
  };
}

// In a few words what is lost of a run.
export const lossOf = ({ lost }) =>
  (lost[0].length > 48 ? `${lost[0].slice(0, 47)}…` : lost[0]) + (lost.length > 1 ? `, and ${lost.length - 1} more` : "");

export function runsView({ root, listed, args }) {
  const chosen = new Set(args.chosen ? args.chosen.split("|") : []);
  let order = args.sort || "updated"; // one of SORTS, or a column; with a minus in front of it the other way round
  let picked_ = args.columns === undefined ? null : args.columns.split("|").filter(Boolean); // columns; null: those that differ
  let group = args.group ?? "";
  let isEvery = false;
  const notes = notesOf(listed.folder ?? "");
  const sweep = { isOn: args.sweep === "1", x: args.x, y: args.y, picture: null };
  let all = listed;
  const filter = searchField("Filter runs", "Filter: words, lr>0.001, state:failed", args.filter);
  const compare = make("a", { class: "button" }, "Compare");
  const table = make("div", { class: "table-wrap" });
  const head = make("p", { class: "quiet" });
  const said = make("p", { class: "error", role: "status" });
  const [menu, groups, sweeping, chart] = [
    make("details", { class: "menu" }),
    make("span"),
    make(
      "button",
      {
        "aria-pressed": String(sweep.isOn),
        onclick: () => {
          sweep.isOn = !sweep.isOn;
          sweeping.setAttribute("aria-pressed", String(sweep.isOn));
          keep({ sweep: sweep.isOn ? "1" : "" });
          list();
        },
      },
      "Sweep",
    ),
    make("div"),
  ];
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
        make(
          "div",
          { class: "bar" },
          make("h1", null, "Runs"),
          head,
          make("span", { class: "space" }),
          filter,
          menu,
          groups,
          sweeping,
          compare,
        ),
        said,
        chart,
        table,
      );
    const { chosen: shown, unknown } = chosenRuns(all.runs, filter.value, notes.texts());
    said.textContent = unknown.length
      ? `no run has ${unknown.join(", ")}: choose a setting or a metric of the list of columns`
      : "";
    const known = columnsOf(all.runs);
    const columns = picked_ ?? [
      ...known.differing.slice(0, FEW_SETTINGS_SHOWN),
      ...known.metrics.filter((name) => name !== "loss").slice(0, FEW_METRICS_SHOWN),
    ];
    choices(known, columns);
    const numeric = new Set(columns.filter((name) => shown.some((run) => typeof knownOf(run, name) === "number")));
    const extra = picked_ === null ? "extra" : ""; // left out where there is no room, unless a reader has chosen it
    const places = placesOf(shown.map((run) => knownOf(run, group)));
    const colourOf = (run) => (group && places.has(knownOf(run, group)) ? orderedColour(places.get(knownOf(run, group))) : null);
    const [sorted, direction] = order.startsWith("-") ? [order.slice(1), -1] : [order, 1];
    const inOrder =
      sorted in SORTS
        ? (one, other) => {
            const [a, b] = [SORTS[sorted](one), SORTS[sorted](other)];
            return direction * (a < b ? -1 : a > b ? 1 : 0);
          }
        : byColumn(sorted, direction, (run) => notes.of(run.id).note);
    shown.sort(
      (one, other) => notes.of(other.id).pin - notes.of(one.id).pin || inOrder(one, other) || one.name.localeCompare(other.name),
    );
    drawSweep(shown, known, columns, colourOf);
    head.replaceChildren(
      `${many(all.runs.length, "run")} in ${all.folder ?? "this folder"}${shown.length < all.runs.length ? ` · ${shown.length} shown` : ""}`,
    );
    const title = (name, text, settings = {}) =>
      make(
        "th",
        { scope: "col", "aria-sort": sorted === name ? (direction > 0 ? "ascending" : "descending") : null, ...settings },
        name
          ? make(
              "button",
              {
                class: "plain",
                "data-sort": name,
                onclick: () => {
                  order = order === name ? `-${name}` : name;
                  keep({ sort: order });
                  list();
                },
              },
              text,
              sorted === name ? (direction > 0 ? " ▾" : " ▴") : "",
            )
          : text,
      );
    const rows = shown.slice(0, isEvery ? shown.length : MOST_ROWS).map((run) => {
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
          colourOf(run) ? make("i", { class: "group", style: { background: colourOf(run) } }) : null,
          make("a", { class: "name", href: linkTo("overview", run.id) }, run.name),
          pinOf(run),
          noteOf(run),
          run.error || run.end ? make("p", { class: "error" }, run.error || run.end.words) : null,
        ),
        make(
          "td",
          { class: "health" },
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
        make(
          "td",
          { class: "extra" },
          run.course?.some((value) => value !== null)
            ? sparkline(
                {
                  values: run.course.filter((value) => value !== null),
                  log: run.course.every((value) => value === null || value > 0),
                },
                90,
                22,
              )
            : null,
        ),
        columns.map((name) => {
          const value = knownOf(run, name);
          return make("td", { class: `${numeric.has(name) ? "right " : ""}${extra}` }, settingText(value));
        }),
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
        { class: columns.length > 1 ? "many-columns" : null },
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
            make("th", { scope: "col", class: "extra" }, "course"),
            columns.map((name) =>
              title(name, columnTitle(name, known), {
                class: `${numeric.has(name) ? "right " : ""}${extra}`,
              }),
            ),
            make("th", { scope: "col", class: "spare" }, "model"),
            make("th", { scope: "col", class: "right spare" }, "layers"),
            title("updated", "last data", { class: "right" }),
            make("th", { scope: "col", class: "right spare" }, "lasted"),
          ),
        ),
        make("tbody", null, rows),
      ),
      rows.length < shown.length
        ? make(
            "p",
            { class: "bar" },
            make(
              "button",
              {
                onclick: () => {
                  isEvery = true;
                  list();
                },
              },
              `all ${whole(shown.length)} runs`,
            ),
          )
        : null,
      shown.length ? null : notice("No run has these words", "Change or empty the filter."),
    );
    picked();
  }

  // Which columns stand in the table, and which setting colours the runs.
  function choices(known, columns) {
    // The loss has a column of its last value.
    const metrics = known.metrics.flatMap((name) => (name === "loss" ? [name] : [name, `${name}.last`]));
    const names = [...known.settings, ...metrics].slice(0, MOST_CHOICES);
    menu.hidden = !names.length;
    fill(
      menu,
      make("summary", { class: "button" }, "columns"),
      make(
        "div",
        null,
        names.map((name) =>
          make(
            "label",
            null,
            make("input", {
              type: "checkbox",
              checked: columns.includes(name),
              onchange: (event) => {
                picked_ = event.target.checked ? [...columns, name] : columns.filter((each) => each !== name);
                keep({ columns: picked_.join("|") });
                list();
              },
            }),
            ` ${columnTitle(name, known)}`,
          ),
        ),
      ),
    );
    fill(
      groups,
      known.differing.length
        ? make(
            "label",
            null,
            "colour by ",
            make(
              "select",
              {
                "aria-label": "Colour by",
                onchange: (event) => {
                  group = event.target.value;
                  keep({ group });
                  list();
                },
              },
              make("option", { value: "" }, "nothing"),
              known.differing.map((name) => make("option", { value: name, selected: name === group }, name)),
            ),
          )
        : null,
    );
    sweeping.hidden = !known.differing.length || !known.metrics.length;
  }

  function drawSweep(shown, known, columns, colourOf) {
    chart.hidden = !sweep.isOn || sweeping.hidden;
    if (chart.hidden) return;
    const x = known.differing.includes(sweep.x) ? sweep.x : known.differing[0];
    const y = known.metrics.includes(sweep.y)
      ? sweep.y
      : (known.metrics.find((name) => columns.includes(name)) ?? known.metrics[0]);
    sweep.picture ??= sweepPicture();
    const chooser = (label, name, names, value) =>
      make(
        "label",
        null,
        `${label} `,
        make(
          "select",
          {
            "aria-label": label,
            onchange: (event) => {
              sweep[name] = event.target.value;
              keep({ [name]: event.target.value });
              list();
            },
          },
          names.map((each) => make("option", { value: each, selected: each === value }, each)),
        ),
      );
    chart.replaceChildren(
      make("div", { class: "bar" }, chooser("metric", "y", known.metrics, y), chooser("setting", "x", known.differing, x)),
      sweep.picture.element,
    );
    const places = placesOf(shown.map((run) => knownOf(run, y)));
    const coloured = shown.map((run) => ({ ...run, colour: colourOf(run) ?? orderedColour(places.get(knownOf(run, y)) ?? 0) }));
    sweep.picture.show(coloured, x, y, [...new Set([...known.differing.filter((name) => columns.includes(name)), x])]);
  }

  function pinOf(run) {
    const { pin } = notes.of(run.id);
    return make(
      "button",
      {
        class: `plain pin${pin ? " on" : ""}`,
        "aria-pressed": String(Boolean(pin)),
        "aria-label": `Keep ${run.name} on top`,
        title: "Keep on top",
        onclick: () => {
          notes.set(run.id, { pin: !pin });
          list();
        },
      },
      pin ? "★" : "☆",
    );
  }

  function noteOf(run) {
    const { note } = notes.of(run.id);
    const place = make("span", { class: "note-of-run" });
    const write = () => {
      const input = make("input", {
        class: "wide",
        value: note,
        "aria-label": `Note beside ${run.name}`,
        placeholder: "a note, with #tags",
      });
      const done = (isKept) => {
        if (isKept) notes.set(run.id, { note: input.value.trim() });
        list();
      };
      input.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === "Escape") done(event.key === "Enter");
      });
      place.replaceChildren(input);
      input.focus();
    };
    place.append(
      make(
        "button",
        {
          class: "plain quiet",
          "aria-label": `Write a note beside ${run.name}`,
          title: "Write a note, with #tags",
          onclick: write,
        },
        note || "✎",
      ),
    );
    return place;
  }

  function picked() {
    const ready = chosen.size > 1;
    compare.textContent = ready ? `Compare ${chosen.size} runs` : "Compare: tick two or more";
    compare.classList.toggle("off", !ready);
    if (ready) compare.href = linkTo("compare", "", { runs: [...chosen].join(","), group });
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
