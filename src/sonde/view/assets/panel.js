// Reacts to the reader: hover, select, open and close, search.
"use strict";

const byId = (id) => document.getElementById(id);
const [details, tip, search, found] = ["details", "tip", "search", "found"].map(byId);
const make = (tag, className, text) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
};

const nodeAt = (target) => {
  const element = target.closest?.("g.node, g.cluster");
  if (!element || (element.classList.contains("cluster") && target.tagName !== "text")) return null;
  return model.nodes.get(Number(element.id.slice(1))) ?? null;
};

// Details

function card(node, full) {
  const box = make("div", "card");
  const called = node.path || node.type || node.name;
  box.append(make("h3", "", node.kind === "operation" ? node.name : node.kind === "module" ? called : node.name));
  const where = node.kind === "operation" ? `operation in ${node.path || "the model itself"}` : node.kind === "module" ? node.type : `${node.kind}${node.path ? ` ${node.path}` : ""}`;
  box.append(make("p", "kind", where + (node.call ? `, call ${node.call}` : "") + ((node.repeat ?? 1) > 1 ? `, ${node.repeat} in a row` : "")));
  const list = make("dl");
  const row = (name, value) => {
    if (value === undefined || value === null || value === "") return;
    const item = make("dd");
    item.append(make("code", "", value));
    list.append(make("dt", "", name), item);
  };
  const values = (held) => [...new Set(held)].slice(0, full ? 12 : 3).map((value) => `${shapeOf(value)} ${recorded.values[value][1]}`).join("\n");
  const number = current();
  if (number?.steps) row(number.title, plain(number.of(node, state.step) ?? ""));
  row("in", values(incoming(node).map(([, value]) => value)));
  row("out", values(node.outputs));
  row("given", node.arguments);
  row("FLOPs", node.flops ? count(node.flops) : "");
  row("parameters", node.parameters ? count(node.parameters) : "");
  row("memory", node.bytes ? `${count(node.bytes)}B` : "");
  row("time", node.seconds ? duration(node.seconds) : "");
  if (full) row("site", node.site);
  const words = { view: "shares its input’s memory", inplace: "writes into its input", same: "returns its input", read: "copies a value to Python", unseen: "found in the autograd graph only" };
  row("", node.flags.map((flag) => words[flag]).filter(Boolean).join("\n"));
  box.append(list);
  if (node.flags.includes("failed")) box.append(make("p", "warn", recorded.error));
  if (number?.steps) box.append(...line(number, node));
  if (full) {
    const close = make("button", "close", "×");
    close.setAttribute("aria-label", "Close the details");
    close.onclick = () => select(null);
    box.prepend(close);
    for (const [title, links] of [["from", incoming(node)], ["to", outgoing(node)]]) {
      const others = [...new Set(links.map(([other]) => other))].slice(0, 8);
      if (!others.length) continue;
      const part = make("div", "links");
      part.append(make("span", "kind", title));
      for (const other of others) {
        const held = model.nodes.get(other);
        const link = make("button", "", held.kind === "operation" ? `${held.name}${held.path ? ` in ${held.path}` : ""}` : held.path || held.name);
        link.onclick = () => reveal(held);
        part.append(link);
      }
      box.append(part);
    }
  }
  return box;
}

// The edges of all that a node stands for.
const within = (node) => (node.kind === "module" ? recorded.nodes.filter((other) => other === node || above(other).includes(node.id)) : [node]);
function across(node, edges) {
  const members = new Set(within(node).map((other) => other.id));
  return [...members].flatMap((id) => edges.get(id).filter(([other]) => !members.has(other)));
}
const incoming = (node) => across(node, model.reads);
const outgoing = (node) => across(node, model.readers);

function line(number, node) {
  const held = number.all(node);
  if (!held) return [];
  const points = held.map((value, index) => [index, value]).filter(([, value]) => typeof value === "number");
  if (points.length < 2) return [];
  const heights = points.map(([, value]) => value);
  const [low, high] = [Math.min(...heights), Math.max(...heights)];
  const x = (index) => 3 + (index / (held.length - 1)) * 254;
  const y = (value) => 42 - ((value - low) / (high - low || 1)) * 38;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 260 46");
  svg.setAttribute("class", "line");
  const path = document.createElementNS(svg.namespaceURI, "path");
  path.setAttribute("d", points.map(([index, value], at) => `${at ? "L" : "M"}${x(index).toFixed(1)} ${y(value).toFixed(1)}`).join(""));
  svg.append(path);
  if (typeof held[state.step] === "number") {
    const dot = document.createElementNS(svg.namespaceURI, "circle");
    for (const [name, value] of [["cx", x(state.step)], ["cy", y(held[state.step])], ["r", 3]]) dot.setAttribute(name, value);
    svg.append(dot);
  }
  return [svg];
}

// Selecting, and what belongs to a selection

function select(node) {
  state.selected = node?.id ?? null;
  details.hidden = !node;
  if (node) details.replaceChildren(card(node, true));
  mark(node);
}

function mark(node) {
  if (!picture) return;
  for (const element of picture.querySelectorAll(".near, .selected")) element.classList.remove("near", "selected");
  picture.classList.toggle("focused", Boolean(node) && state.selected === node.id);
  if (!node) return;
  elementOf(node.id)?.classList.add("selected");
  for (const { from, to } of drawn.edges) {
    if (from !== node.id && to !== node.id) continue;
    picture.getElementById(`e${from}_${to}`)?.classList.add("near");
    elementOf(from === node.id ? to : from)?.classList.add("near");
  }
}

function decorate() {
  tint();
  highlight();
  const selected = state.selected === null ? null : model.nodes.get(state.selected);
  if (selected) mark(elementOf(selected.id) ? selected : null);
  const open = state.open.size;
  const level = [...Array(model.depth + 1).keys()].find((depth) => recorded.nodes.every((node) => !node.opens || state.open.has(node.id) === node.depth < depth));
  byId("level").textContent = level === undefined ? `${open} open` : `${level} / ${model.depth}`;
}

function toggle(node) {
  if (!node.opens) return;
  if (!state.open.delete(node.id)) state.open.add(node.id);
  tip.hidden = true;
  draw(node.id);
}

async function reveal(node) {
  const closed = above(node).filter((frame) => !state.open.has(frame));
  for (const frame of closed) state.open.add(frame);
  if (hidden(node)) { state[node.kind === "parameter" ? "parameters" : "constants"] = true; boxes(); closed.push(0); }
  if (closed.length) await draw();
  select(node);
  centre(node.id, 0.9);
}

stage.addEventListener("click", (event) => {
  if (moved > 4) return;
  const node = nodeAt(event.target);
  if (!node) { if (!event.target.closest("g.node")) select(null); return; }
  if (node.opens) toggle(node);
  else select(node);
});
stage.addEventListener("contextmenu", (event) => {
  const node = nodeAt(event.target);
  if (node) { event.preventDefault(); select(node); }
});
stage.addEventListener("pointermove", (event) => {
  const node = pointers.size ? null : nodeAt(event.target);
  tip.hidden = !node || node.id === state.selected;
  if (!node) { if (state.selected === null) mark(null); return; }
  if (tip.dataset.node !== `${node.id} ${state.step} ${state.number}`) {
    tip.dataset.node = `${node.id} ${state.step} ${state.number}`;
    tip.replaceChildren(card(node, false));
  }
  if (state.selected === null) mark(node);
  const { innerWidth, innerHeight } = window;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - box.width - 8)}px`;
  tip.style.top = `${Math.min(event.clientY + 14, innerHeight - box.height - 8)}px`;
});
stage.addEventListener("pointerleave", () => { tip.hidden = true; });

// Searching

let matches = [];
let match = -1;

function highlight() {
  if (!picture) return;
  for (const element of picture.querySelectorAll(".match")) element.classList.remove("match");
  for (const node of new Set(matches.map((node) => shownFor(node)))) elementOf(node)?.classList.add("match");
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
      const item = make("li", "", node.kind === "module" ? node.path || node.type : node.name);
      item.setAttribute("role", "option");
      item.append(make("span", "", node.kind === "module" ? node.type : `${node.kind}${node.path ? ` · ${node.path}` : ""}`));
      item.onpointerdown = (event) => { event.preventDefault(); go(matches.indexOf(node)); };
      return item;
    }),
    ...(matches.length > 40 ? [make("li", "", `… ${matches.length} in all`)] : []),
    ...(words.length && !matches.length ? [make("li", "", "nothing of that name")] : []),
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
search.addEventListener("focus", () => { found.hidden = !matches.length; });
search.addEventListener("blur", () => { found.hidden = true; });
search.addEventListener("keydown", (event) => {
  if (event.key === "Enter" || event.key === "ArrowDown") go(match + (event.shiftKey ? -1 : 1));
  else if (event.key === "ArrowUp") go(match - 1);
  else if (event.key === "Escape") { search.value = ""; seek(); stage.focus(); }
  else return;
  event.preventDefault();
});
