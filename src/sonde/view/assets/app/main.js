// The page around the views: which run, which view, whether the server still answers, keys.
import { here, keep, linkTo } from "./address.js";
import { sayAgainst, siblingsOf, sourceAgainst } from "./against.js";
import { compareView } from "./compare.js";
import { coverageView } from "./coverage.js";
import { distributionView } from "./distribution.js";
import { byId, code, fill, make, notice, since, stateDot, whole } from "./dom.js";
import { findingsView } from "./findings.js";
import { flowView } from "./flow.js";
import { graphView } from "./graph.js";
import { layerView } from "./layer.js";
import { layersView } from "./layers.js";
import { overviewView } from "./overview.js";
import { runsView } from "./runs.js";
import { Gone, Refused, sourceOf } from "./source.js";
import { fitAll } from "./span.js";
import { hideTip, showTip } from "./tip.js";
import { updatesView } from "./updates.js";

const TABS = [
  ["overview", "Overview", overviewView, "Is the training healthy?"],
  ["layers", "Layers", layersView, "One number of every layer over the steps: which layer changes, and when?"],
  ["flow", "Flow", flowView, "One number from the first layer to the last at one step: does the gradient reach all of them?"],
  ["updates", "Updates", updatesView, "How far each step moves each parameter: is the learning rate right?"],
  [
    "distribution",
    "Distribution",
    distributionView,
    "How large the elements of one tensor are: do they fit into the number format?",
  ],
  ["graph", "Graph", graphView, "How the layers are connected, coloured by a number"],
  ["findings", "Findings", findingsView, "What the rules find, why, and what to do"],
  ["coverage", "Coverage", coverageView, "What was not observed, and why"],
];
const VIEWS = {
  ...Object.fromEntries(TABS.map(([name, , view]) => [name, view])),
  layer: layerView,
  runs: runsView,
  compare: compareView,
};

let source = null;
let listed = { runs: [] };
const known = new Map(); // by id the runs that were listed: one that is gone keeps its name
let shown = null; // what is on the screen: {key, stop, refresh}

// What a view hands on to the next: the number, the place and the time at which its reader looks.
/** @param {any} address */
const carried = ({ view, rest, args: { number, site, step, from, to } }) => ({
  number,
  site: view === "layer" && rest ? `${rest}:output` : site,
  step,
  from,
  to,
});

function header(address, run) {
  byId("views").hidden = !run;
  byId("home").hidden = false;
  if (!source.isLive && listed.runs.length === 1) byId("home").removeAttribute("href");
  if (run) {
    if (listed.runs.length > 1) {
      const chooser = make(
        "select",
        {
          "aria-label": "Run",
          onchange: () => {
            const { view } = here();
            location.hash = linkTo(view === "layer" ? "layers" : view, chooser.value, carried(here()));
          },
        },
        listed.runs.map((each) => make("option", { value: each.id, selected: each.id === run.id }, each.name)),
      );
      fill(byId("which"), chooser);
    } else fill(byId("which"), make("strong", null, run.name));
    fill(
      byId("views"),
      TABS.map(([name, title, , question], place) => {
        const isHere = name === address.view || (name === "layers" && address.view === "layer");
        const count =
          name === "findings" && run.findings ? make("span", { class: `count ${run.health}` }, whole(run.findings)) : null;
        return make(
          "a",
          {
            href: linkTo(name, run.id, carried(address)),
            "aria-current": isHere ? "page" : null,
            title: `${question} (key ${place + 1})`,
          },
          title,
          count,
        );
      }),
    );
  } else fill(byId("which"), known.has(address.run) ? make("strong", null, known.get(address.run).name) : null);
  against(address, run);
  status(run);
  lacks(run, run?.lost);
  document.title = run ? `${run.name} · sonde` : "sonde";
}

// The run whose numbers are taken from those of the run that is shown: of an address, if it is there.
const otherOf = (run, args) => (run && siblingsOf(source, run, listed.runs).find(({ id }) => id === args.against)) || null;

function against(address, run) {
  const other = otherOf(run, address.args);
  const choose = (id) => {
    keep({ against: id });
    header(here(), run);
    show();
  };
  const siblings = run ? siblingsOf(source, run, listed.runs) : [];
  fill(
    byId("sibling"),
    siblings.length
      ? make(
          "label",
          null,
          "against ",
          make(
            "select",
            { onchange: (event) => choose(event.target.value) },
            make("option", { value: "" }, "no other run"),
            siblings.map((each) => make("option", { value: each.id, selected: each.id === other?.id }, each.name)),
          ),
        )
      : null,
  );
  byId("against").dataset.pair = other ? `${run.id} ${other.id}` : "";
  sayAgainst(byId("against"), { view: address.view, run, other, source, leave: () => choose("") });
}

// What pictures and findings lack. Damage is found where rows are read: answers know of it before the list does.
function lacks(run, lost = []) {
  byId("losses").hidden = !lost.length;
  fill(
    byId("losses"),
    lost.length
      ? [
          "This run is not whole, nor are its pictures and findings: ",
          lost.slice(0, 3).join(" · "),
          " ",
          make("a", { href: linkTo("coverage", run.id) }, "what is lost"),
        ]
      : null,
  );
}

function status(run) {
  const state = byId("state");
  if (!run) fill(state);
  else if (!source.isLive) fill(state, make("span", { class: "quiet" }, `report · ${run.state}`));
  else
    fill(
      state,
      stateDot(run),
      make("span", { title: run.end?.words ?? null }, run.state),
      make("span", { class: "quiet" }, typeof run.last === "number" ? ` · step ${whole(run.last)}` : ""),
      run.state === "running" && run.updated
        ? make(
            "span",
            {
              class: "quiet",
              title: "Rows come to disk every ten seconds, unless the training says otherwise",
              "aria-live": "off",
            },
            ` · data ${since(run.updated)}`,
          )
        : null,
    );
}

async function list() {
  listed = await source.runs();
  for (const run of listed.runs) known.set(run.id, run);
}

function failed(root, error) {
  if (error instanceof Gone) {
    root.replaceChildren(
      notice(
        "The server does not answer",
        "The page tries again by itself. If the server was stopped, start it again:",
        code("sonde ui RUNS_DIR"),
      ),
    );
  } else {
    root.replaceChildren(
      notice(
        "This cannot be shown",
        error.message,
        source.isLive ? make("p", null, make("a", { href: linkTo("runs") }, "to the list of runs")) : null,
      ),
    );
  }
}

let loading = Promise.resolve(); // until the view has what it shows
function show() {
  loading = load();
  return loading;
}

async function load() {
  const address = here();
  const key = `${address.view} ${address.run} ${address.rest}`;
  hideTip();
  shown?.stop?.();
  const isSame = shown?.key === key; // drawn anew, in other colours: it stays until it is there again
  const root = make("div", { class: `view ${address.view}`, "aria-busy": "true" });
  const mine = { key, refresh: null, stop: null };
  shown = mine;
  if (
    !source.isLive &&
    !listed.runs.some((each) => each.id === address.run) &&
    (address.view !== "compare" || listed.runs.length === 1)
  ) {
    const [first] = listed.runs;
    const [other] = siblingsOf(source, first, listed.runs);
    location.replace(
      listed.runs.length === 1 || other
        ? linkTo("overview", first.id, { against: other?.id })
        : linkTo("compare", "", { runs: listed.runs.map(({ id }) => id).join(",") }),
    );
    return;
  }
  const run = listed.runs.find((each) => each.id === address.run) ?? null;
  header(address, run);
  const old = byId("view").firstElementChild;
  // What takes longer is shown as far as it is there: the frames of pictures, then few columns, then all.
  let [isReady, isLate] = [false, false];
  const put = () => {
    if (shown === mine && !root.isConnected) byId("view").replaceChildren(root);
  };
  const ready = () => {
    isReady = true;
    if (isLate) put();
  };
  const waiting = setTimeout(
    () => {
      isLate = true;
      if (isReady) put();
      else if (shown === mine && !isSame) byId("view").replaceChildren(make("p", { class: "busy", role: "status" }, "reading …"));
    },
    old?.classList.contains("view") ? 250 : 0,
  );
  try {
    const view = VIEWS[address.view];
    if (!run && known.has(address.run))
      throw new Error(
        `the run ${known.get(address.run).name} is gone: its folder was deleted, moved or renamed while this page was open`,
      );
    if (!run && !["runs", "compare"].includes(address.view))
      throw new Error(`there is no run "${address.run}" in this folder: choose one of the list of runs`);
    if (run && ["damaged", "newer"].includes(run.state) && run.error) throw new Error(run.error);
    if (!view) throw new Error(`there is no view ${address.view}`);
    const other = otherOf(run, address.args);
    const held = await view({
      root,
      source: other ? sourceAgainst(source, other) : source,
      run,
      listed,
      args: address.args,
      rest: address.rest,
      ready,
      lacks: (lost) => {
        if (shown === mine) lacks(run, lost);
      },
      isShown: () => shown === mine,
    });
    Object.assign(mine, held ?? {});
  } catch (error) {
    if (shown === mine) failed(root, error);
    if (!(error instanceof Gone) && !(error instanceof Refused) && error.constructor !== Error) console.error(error);
  }
  clearTimeout(waiting);
  root.removeAttribute("aria-busy");
  put();
}

// A message of the server: a run has new data, or the list has changed.
const THE_LIST = "";
const pending = new Set();
let isReading = false;
async function changed(message) {
  if (message.run !== undefined) {
    source.forgetRun(message.run);
    pending.add(message.run);
  } else pending.add(THE_LIST);
  if (isReading) return;
  isReading = true;
  const began = performance.now();
  try {
    await list();
    await loading; // what is on its way is shown before anything newer is asked for
    const address = here();
    const ids = new Set(pending); // a comparison also asks whether its runs are still there
    pending.clear();
    const run = listed.runs.find((each) => each.id === address.run);
    header(address, run ?? null);
    const isGone = address.run && !run && known.has(address.run);
    if (
      isGone ||
      address.view === "runs" ||
      ids.has(address.run) ||
      ids.has(address.args.against) ||
      (address.view === "compare" && ids.size)
    ) {
      if (shown?.refresh && (address.run ? run && !["damaged", "newer"].includes(run.state) : true))
        await shown.refresh(run, listed);
      else await show();
    }
  } catch (error) {
    if (!(error instanceof Gone)) console.error(error);
  }
  // A slow line is free again for as long as it was taken.
  await new Promise((resume) => setTimeout(resume, Math.min(performance.now() - began, 5000)));
  isReading = false;
  if (pending.size) changed({});
}

let wasGone = false;
function reachable(isThere) {
  const lost = byId("lost");
  if (isThere && wasGone) {
    wasGone = false;
    lost.hidden = true;
    source.forget("api/");
    changed({ run: here().run || undefined }).then(() => {
      if (!shown?.refresh) show();
    });
  }
  if (!isThere && !wasGone) {
    wasGone = true;
    lost.hidden = false;
    lost.textContent =
      "The server does not answer. This page shows what it has, and tries again every few seconds. To start the server again: sonde ui RUNS_DIR";
  }
}

const one = (selector) => /** @type {any} */ (document.querySelector(selector));

function keys(event) {
  if (
    event.ctrlKey ||
    event.metaKey ||
    event.altKey ||
    byId("keys").open ||
    /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)
  )
    return;
  const { run } = here();
  const tab = run && /^[1-9]$/.test(event.key) ? TABS[Number(event.key) - 1] : null;
  const act = tab
    ? () => {
        location.hash = linkTo(tab[0], run, carried(here()));
      }
    : {
        "?": () => byId("keys").showModal(),
        t: () => byId("theme").click(),
        r: () => {
          location.hash = linkTo("runs");
        },
        "/": () => one("input[type=search]")?.focus(),
        "[": () => one("[data-key=back]")?.click(),
        "]": () => one("[data-key=forward]")?.click(),
        " ": event.target.closest?.("button, a, summary")
          ? null
          : document.querySelector("[data-key=play]")
            ? () => one("[data-key=play]").click()
            : null,
        Escape: hideTip,
      }[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

async function begin() {
  const head = document.querySelector("header"); // what stays on the screen below it begins where it ends
  new ResizeObserver(() => document.documentElement.style.setProperty("--header", `${head.offsetHeight}px`)).observe(head);
  byId("help").addEventListener("click", () => byId("keys").showModal());
  document.addEventListener("keydown", keys);
  try {
    source = await sourceOf(document);
    await list();
  } catch (error) {
    source ??= { isLive: false };
    failed(byId("view"), error);
    if (source.isLive) setTimeout(begin, 3000);
    return;
  }
  window.addEventListener("hashchange", show);
  document.addEventListener("kept", () => {
    const address = here();
    for (const [place, link] of [...byId("views").children].entries())
      link.setAttribute("href", linkTo(TABS[place][0], address.run, carried(address)));
  });
  document.addEventListener("theme", () => (shown?.retheme ? shown.retheme() : show()));
  // Printed is the view that is shown, in light colours and as wide as paper. A view that is drawn anew for the colours is there when the
  // second listener begins.
  const page = document.documentElement;
  let colours = null;
  window.addEventListener("beforeprint", () => {
    colours ??= page.dataset.theme;
    page.classList.add("printing");
    for (const each of document.querySelectorAll("details.behind")) each.setAttribute("open", "");
    if (colours === "dark") theme("light");
  });
  window.addEventListener("beforeprint", fitAll);
  window.addEventListener("afterprint", () => {
    page.classList.remove("printing");
    if (colours === "dark") theme("dark");
    colours = null;
    fitAll();
  });
  // What a picture asks for later, as the finer data of a zoom, may be refused as well.
  window.addEventListener("unhandledrejection", (event) => {
    if (!(event.reason instanceof Refused) && !(event.reason instanceof Gone)) return;
    event.preventDefault();
    showTip(byId("view"), make("p", null, event.reason.message));
  });
  if (source.isLive) setInterval(() => status(listed.runs.find((each) => each.id === here().run)), 1000); // how old the data are
  source.follow(changed, reachable);
  await show();
  document.documentElement.dataset.ready = "";
}

begin();
