// Reacts to the reader: hover, select, open and close, fold, search.
import { amount, byId, draw, make, plain } from "../app/dom.js";
import { hideTip, showTip } from "../app/tip.js";
import { current, duration, markColour, nameKinds, tint } from "./colours.js";
import { boxOf, drawn, elementOf, elements, redraw } from "./drawing.js";
import {
  above,
  empty,
  folding,
  groups,
  isFolded,
  isHiddenOperation,
  isHiddenSource,
  isOpen,
  levelNow,
  member,
  model,
  reached,
  recorded,
  shownFor,
  state,
} from "./model.js";
import { centre, moved, picture, pointers, stage } from "./view.js";
import { analogues, argumentsOf, copiesOf, shapeOf } from "./words.js";

export const [details, search, found] = ["details", "search", "found"].map(byId);

const nodeAt = (target) => {
  const element = target.closest?.("g.node, g.title");
  return element ? (model.nodes.get(Number(element.id.slice(1))) ?? null) : null;
};

// Details

export function card(node, full) {
  const box = make("div", { class: "card" });
  const called = node.path || node.type || node.name;
  box.append(make("h3", null, node.kind === "operation" ? node.name : node.kind === "module" ? called : node.name));
  const where =
    node.kind === "operation"
      ? `operation in ${node.path || "the model itself"}`
      : node.kind === "module"
        ? node.type
        : `${node.kind}${node.path ? ` ${node.path}` : ""}`;
  const copies = copiesOf(node);
  const repeated = copies?.folded
    ? `, the first of ${copies.count} alike blocks up to ${copies.last.path || copies.last.name}`
    : (node.repeat ?? 1) > 1
      ? `, ${node.repeat} in a row`
      : "";
  box.append(make("p", { class: "kind" }, where + (node.call ? `, call ${node.call}` : "") + repeated));
  const list = make("dl");
  const row = (name, value) => {
    if (value === undefined || value === null || value === "") return;
    const item = make("dd");
    item.append(make("code", null, String(value)));
    list.append(make("dt", null, name), item);
  };
  const values = (held) =>
    [...new Set(held)]
      .slice(0, full ? 12 : 3)
      .map((value) => `${shapeOf(value)} ${recorded.values[value][1]}`)
      .join("\n");
  const number = current();
  const alike = analogues(node);
  if (number?.steps) row(number.label, plain(number.of(node, state.step) ?? ""));
  if (number?.steps && alike.length > 1) {
    const held = alike.map((id) => number.of(model.nodes.get(id), state.step)).filter((value) => typeof value === "number");
    if (held.length > 1) row(`of ${alike.length} copies`, `${plain(Math.min(...held))} … ${plain(Math.max(...held))}`);
  }
  row("in", values(incoming(node).map(([, value]) => value)));
  row("out", values(node.outputs));
  row("given", argumentsOf(node));
  row("FLOPs", node.flops ? amount(node.flops) : "");
  row("parameters", node.parameters ? amount(node.parameters) : "");
  row("memory", node.bytes ? amount(node.bytes, "B") : "");
  row("time", node.seconds ? duration(node.seconds) : "");
  if (full) row("site", node.site);
  const words = {
    view: "shares its input’s memory",
    inplace: "writes into its input",
    same: "returns its input",
    read: "copies a value to Python",
    unseen: "found in the autograd graph only",
  };
  row(
    "",
    node.flags
      .map((flag) => words[flag])
      .filter(Boolean)
      .join("\n"),
  );
  box.append(list);
  if (node.flags.includes("failed")) box.append(make("p", { class: "warn" }, recorded.error));
  if (number?.steps) box.append(...line(number, node));
  if (full) box.append(...acts(node));
  if (full) {
    box.prepend(make("button", { class: "close", "aria-label": "Close the details", onclick: () => select(null) }, "×"));
    for (const [title, links] of Object.entries({ from: incoming(node), to: outgoing(node) })) {
      const others = [...new Set(links.map(([other]) => other))].slice(0, 8);
      if (!others.length) continue;
      const part = make("div", { class: "links" });
      part.append(make("span", { class: "kind" }, title));
      for (const other of others) {
        const held = model.nodes.get(other);
        const link = make(
          "button",
          { onclick: () => reveal(held) },
          held.kind === "operation" ? `${held.name}${held.path ? ` in ${held.path}` : ""}` : held.path || held.name,
        );
        part.append(link);
      }
      box.append(part);
    }
  }
  return box;
}

// Buttons for what can be done with a node: open or close it, fold or unfold its copies.
function acts(node) {
  const made = [];
  const button = (text, act) => {
    made.push(make("button", { class: "act", onclick: act }, text));
  };
  if (node.opens && !empty.has(node.id))
    button(isOpen(node) ? "close" : node.holds ? "open" : "show its operations", () => toggle(node));
  const copies = copiesOf(node);
  if (copies)
    button(copies.folded ? `show all ${copies.count} copies` : `fold the ${copies.count} copies`, () => unfold(copies.number));
  return made;
}

// The edges of all that a node stands for.
const within = (node) =>
  node.kind === "module" ? recorded.nodes.filter((other) => other === node || above(other).includes(node.id)) : [node];
function across(node, edges) {
  const members = new Set(within(node).map((other) => other.id));
  return [...members].flatMap((id) => edges.get(id).filter(([other]) => !members.has(other)));
}
const incoming = (node) => across(node, model.reads);
const outgoing = (node) => across(node, model.readers);

// The curve of a node's number over the steps, with the ends of both axes and the value at the step that is shown.
function line(number, node) {
  const held = number.all(node);
  if (!held || held.length < 2) return [];
  const heights = held.filter((value) => typeof value === "number");
  if (!heights.length) return [];
  const log = Boolean(number.scale?.log) && heights.every((value) => value >= 0) && heights.some((value) => value > 0);
  const shown = log ? heights.filter((value) => value > 0) : heights;
  const [low, high] = [Math.min(...shown), Math.max(...shown)];
  const at = (value) => (log ? Math.log(value) : value);
  const [left, right, top, bottom] = [62, 262, 10, 74];
  const x = (index) => left + (index / (held.length - 1)) * (right - left);
  const y = (value) =>
    high > low ? bottom - ((at(value) - at(low)) / (at(high) - at(low))) * (bottom - top) : (top + bottom) / 2;
  const made = draw("svg", {
    viewBox: "0 0 270 98",
    class: "line",
    role: "img",
    "aria-label": `${number.label} from ${plain(low)} to ${plain(high)} over steps ${number.steps[0]} to ${number.steps.at(-1)}`,
  });
  made.append(draw("path", { class: "axis", d: `M${left} ${top - 4}V${bottom + 4}H${right}` }));
  const text = (value, atX, atY, anchor) => made.append(draw("text", { x: atX, y: atY, "text-anchor": anchor }, value));
  if (high > low) text(plain(high), left - 6, top + 5, "end");
  text(plain(low), left - 6, high > low ? bottom + 2 : y(low) + 4, "end");
  text(`step ${plain(number.steps[0])}`, left, 93, "start");
  text(plain(number.steps.at(-1)), right, 93, "end");
  let path = "";
  let pen = false;
  held.forEach((value, index) => {
    const there = typeof value === "number" && (!log || value > 0);
    if (there) path += `${pen ? "L" : "M"}${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
    else if (value !== null)
      made.append(
        draw("path", { class: "mark", style: { stroke: markColour(value) }, d: `M${x(index).toFixed(1)} ${bottom + 1}v6` }),
      );
    if (there || value !== null) pen = there; // a step without a value does not break the curve
  });
  made.append(draw("path", { class: "curve", d: path }));
  const now = held[state.step];
  if (typeof now === "number" && (!log || now > 0)) made.append(draw("circle", { cx: x(state.step), cy: y(now), r: 3.5 }));
  if (log) made.append(draw("text", { x: left + 5, y: top + 2, "text-anchor": "start", class: "kind" }, "logarithmic"));
  return [made];
}

// Selecting, and what belongs to a selection

export function select(node) {
  state.selected = node?.id ?? null;
  hideTip();
  details.hidden = !node;
  if (node) details.replaceChildren(card(node, true));
  mark(node);
}

let marked = [];
function mark(node) {
  if (!picture) return;
  for (const element of marked) element.classList.remove("near", "selected");
  picture.classList.toggle("focused", Boolean(node) && state.selected === node.id);
  marked = [];
  if (!node) return;
  const set = (element, name) => {
    if (element) {
      element.classList.add(name);
      marked.push(element);
    }
  };
  for (const kind of ["n", "c", "t"]) set(elements.get(`${kind}${node.id}`), "selected");
  for (const { from, to } of drawn.edges) {
    if (from !== node.id && to !== node.id) continue;
    set(elements.get(`e${from}_${to}`), "near");
    set(elements.get(`n${from === node.id ? to : from}`), "near");
  }
}

document.addEventListener("drawn", () => {
  tint();
  highlight();
  const selected = state.selected === null ? null : model.nodes.get(state.selected);
  if (selected) mark(elementOf(selected.id) ? selected : null);
  const level = levelNow();
  nameKinds();
  if (level !== null) byId("depth").value = String(level);
  byId("level").textContent =
    level === null
      ? `${state.open.size} open`
      : level === model.levels && model.levels > model.frames
        ? "operations"
        : `level ${level}`;
});

export function toggle(node) {
  if (!node.opens) return;
  if (!state.open.delete(node.id)) state.open.add(node.id);
  hideTip();
  redraw(node.id).then(() => {
    if (state.selected === node.id) select(node);
  });
}

// Show all copies of a group of equal blocks, or fold them again.
export function unfold(number) {
  if (!state.unfolded.delete(number)) state.unfolded.add(number);
  hideTip();
  const kept = model.nodes.get(groups[number].ids[0]);
  redraw(kept.id).then(() => {
    if (state.selected !== null) select(boxOf(state.selected) ? model.nodes.get(state.selected) : kept);
  });
}

// Tick what is shown.
export const SHOWN = ["parameters", "constants", "small", "repeats"];
export function tickBoxes() {
  for (const name of SHOWN) byId(name).checked = state[name];
}

async function reveal(node) {
  let isChanged = false;
  const chain = [node.id, ...above(node)];
  for (const id of chain) {
    const part = member.get(id);
    if (part && part.copy && isFolded(part.number)) {
      state.unfolded.add(part.number);
      isChanged = true;
    }
  }
  for (const frame of chain.slice(1))
    if (!state.open.has(frame)) {
      state.open.add(frame);
      isChanged = true;
    }
  if (isHiddenSource(node)) {
    state[node.kind === "parameter" ? "parameters" : "constants"] = true;
    isChanged = true;
  }
  if (isHiddenOperation(node)) {
    state.small = true;
    if (!reached.has(node.id)) state.constants = true;
    isChanged = true;
  }
  tickBoxes();
  if (isChanged) await redraw();
  select(node);
  if (boxOf(node.id)) centre(boxOf(node.id), 0.95);
}

stage.addEventListener("click", (event) => {
  if (moved > 4) return;
  const badge = event.target.closest?.(".folds");
  if (badge) {
    unfold(Number(badge.dataset.group));
    return;
  }
  const node = nodeAt(event.target);
  if (!node) {
    select(null);
    return;
  }
  if (node.holds || isOpen(node)) toggle(node);
  else select(node);
});
stage.addEventListener("dblclick", (event) => {
  const node = nodeAt(event.target);
  if (node && node.opens && !node.holds && !isOpen(node)) toggle(node);
});
stage.addEventListener("contextmenu", (event) => {
  const node = nodeAt(event.target);
  if (node) {
    event.preventDefault();
    select(node);
  }
});
let note = { key: "", card: null }; // the card under the pointer
stage.addEventListener("pointermove", (event) => {
  const node = pointers.size ? null : nodeAt(event.target);
  if (state.selected === null) mark(node);
  if (!node || node.id === state.selected) {
    hideTip();
    return;
  }
  const key = `${node.id} ${state.step} ${state.number}`;
  if (note.key !== key) note = { key, card: card(node, false) };
  showTip(event, note.card);
});
stage.addEventListener("pointerleave", hideTip);

// Searching

let matches = [];
let match = -1;

function highlight() {
  if (!picture) return;
  for (const element of picture.querySelectorAll(".match")) element.classList.remove("match");
  if (!matches.length) return;
  const { like } = folding();
  for (const node of new Set(matches.map((match) => shownFor(match, like)))) elementOf(node)?.classList.add("match");
}

function seek() {
  const words = search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const text = (node) => [node.name, node.type, node.path, node.kind === "module" ? node.site : ""].join(" ").toLowerCase();
  matches = words.length ? recorded.nodes.filter((node) => words.every((word) => text(node).includes(word))) : [];
  const rank = { module: 0, input: 1, output: 1, operation: 2 };
  matches.sort((one, other) => (rank[one.kind] ?? 3) - (rank[other.kind] ?? 3) || one.id - other.id);
  match = -1;
  found.hidden = !words.length;
  found.replaceChildren(
    ...matches.slice(0, 40).map((node) => {
      const item = make("li", { role: "option" }, node.kind === "module" ? node.path || node.type : node.name);
      item.append(make("span", null, node.kind === "module" ? node.type : `${node.kind}${node.path ? ` · ${node.path}` : ""}`));
      item.onpointerdown = (event) => {
        event.preventDefault();
        go(matches.indexOf(node));
      };
      return item;
    }),
    ...(matches.length > 40 ? [make("li", null, `… ${matches.length} in all`)] : []),
    ...(words.length && !matches.length ? [make("li", null, "nothing of that name")] : []),
  );
  highlight();
}

async function go(index) {
  if (!matches.length) return;
  match = (index + matches.length) % matches.length;
  [...found.children].forEach((item, at) => item.setAttribute("aria-selected", String(at === match)));
  found.children[match]?.scrollIntoView({ block: "nearest" });
  found.hidden = true;
  await reveal(matches[match]);
}

search.addEventListener("input", seek);
search.addEventListener("focus", () => {
  found.hidden = !matches.length;
});
search.addEventListener("blur", () => {
  found.hidden = true;
});
search.addEventListener("keydown", (event) => {
  if (event.key === "Enter" || event.key === "ArrowDown") go(match + (event.shiftKey ? -1 : 1));
  else if (event.key === "ArrowUp") go(match - 1);
  else if (event.key === "Escape") {
    search.value = "";
    seek();
    stage.focus();
  } else return;
  event.preventDefault();
});
