// Makes elements, and writes numbers, times and names as text. Text of a run only ever becomes a text node.

export const byId = (id) => /** @type {any} */ (document.getElementById(id));

const SVG = "http://www.w3.org/2000/svg";

function furnish(element, settings, children) {
  for (const [name, value] of Object.entries(settings ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [property, worth] of Object.entries(value)) element.style.setProperty(property, worth);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const make = (tag, settings, ...children) => furnish(document.createElement(tag), settings, children);
export const draw = (tag, settings, ...children) => furnish(document.createElementNS(SVG, tag), settings, children);

const CONTROLS = "a, button, input, select, summary";
const given = new WeakMap(); // by element: what it was filled with last, as it was then

// Gives an element new children, unless they look like those it was given last. What has the focus, or was opened, is so in the new ones, too.
export function fill(element, ...children) {
  const next = furnish(element.cloneNode(false), null, children);
  if (given.get(element)?.isEqualNode(next)) return;
  given.set(element, next.cloneNode(true));
  const [focus, opened] = [
    keysOf(element).get(document.activeElement),
    new Map([...element.querySelectorAll("details")].map((one) => [one.firstElementChild.textContent, one.open])),
  ];
  element.replaceChildren(...next.childNodes);
  for (const one of element.querySelectorAll("details")) one.open = opened.get(one.firstElementChild.textContent) ?? one.open;
  if (focus !== undefined) [...keysOf(element)].find(([, key]) => key === focus)?.[0].focus({ preventScroll: true });
}

// What each control within an element is called: its counterpart among other children has the same name.
function keysOf(element) {
  const seen = new Map();
  return new Map(
    [...element.querySelectorAll(CONTROLS)].map((one) => {
      const name = one.getAttribute("href") ?? one.getAttribute("aria-label") ?? one.dataset.sort ?? one.textContent;
      seen.set(name, (seen.get(name) ?? 0) + 1);
      return [one, `${name} ${seen.get(name)}`];
    }),
  );
}

// Numbers

const RAISED = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
export const raised = (power) => [...String(power)].map((sign) => RAISED[sign]).join("");
export const minus = (text) => text.replace("-", "−");

export function plain(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return minus(value.toLocaleString("en"));
  if (size >= 1e-3 && size < 1e6)
    return minus(Number(value.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 20 }));
  const [head, power] = value.toExponential(Math.max(digits - 2, 0)).split("e");
  return minus(`${Number(head)}`) + `·10${raised(Number(power))}`;
}

export const whole = (number) => (typeof number === "number" ? minus(number.toLocaleString("en")) : "–");
export const percent = (share) => `${Number((share * 100).toPrecision(3))} %`;

export function amount(number, unit = "") {
  const size = Math.abs(number);
  for (const [place, letter] of ["T", "G", "M", "k"].entries()) {
    const power = 4 - place;
    if (size >= 999.5 * 1000 ** (power - 1)) return `${Number((number / 1000 ** power).toPrecision(3))} ${letter}${unit}`;
  }
  return `${Number(number.toPrecision(3))}${unit ? ` ${unit}` : ""}`;
}

export const many = (number, one, more = `${one}s`) => `${whole(number)} ${number === 1 ? one : more}`;

// Times: in seconds since 1970, by the clock of the server, which need not be that of the browser.

let behind = 0;
export function setClock(now) {
  if (now) behind = Date.now() / 1000 - now;
}

export function since(seconds) {
  if (!seconds) return "–";
  const gone = Math.max(0, Date.now() / 1000 - behind - seconds);
  if (gone < 60) return `${Math.floor(gone)} s ago`;
  if (gone < 3600) return `${Math.floor(gone / 60)} min ago`;
  if (gone < 86400) return `${Math.floor(gone / 3600)} h ago`;
  return gone < 86400 * 30 ? many(Math.floor(gone / 86400), "day") + " ago" : new Date(seconds * 1000).toISOString().slice(0, 10);
}

export function lasting(seconds) {
  if (!(seconds >= 0)) return "–";
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return seconds < 86400
    ? `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`
    : `${Number((seconds / 86400).toPrecision(2))} days`;
}

// Names of sites: "lstm:output[0]" is the layer "lstm" at "output[0]". A colon within a name is escaped.

export function partsOf(site) {
  const at = site.indexOf(":");
  return at < 0 ? [site, ""] : [site.slice(0, at), site.slice(at + 1)];
}

// A name that is a number alone, as in a Sequential, says nothing: the class stands beside it.
export const rowLabel = (name, kind) => (kind && /^[\d[\]]*$/.test(name.split(".").at(-1)) ? `${name} ${kind}` : name);

// What stays visible of a long name is its end, where names of layers differ.
export function shortened(name, most) {
  return name.length <= most ? name : `…${name.slice(name.length - most + 1)}`;
}

// Severities: each has a colour, a shape and a word.

export const SEVERITIES = {
  ok: ["ok", "●", "healthy"],
  note: ["note", "◆", "note"],
  warn: ["warning", "▲", "warning"],
  bad: ["bad", "■", "bad"],
  unknown: ["unknown", "○", "not known"],
};

export function badge(severity, text) {
  const [name, shape, word] = SEVERITIES[severity] ?? SEVERITIES.note;
  return make("span", { class: `badge ${name}` }, make("i", { "aria-hidden": "true" }, shape), text ?? word);
}

// How a run is, by its record of findings: the worst of them, or the error that ended it. It is healthy where every row was judged.
export function healthOf(run) {
  if (run.findings) return badge(run.health, run.root ? `${run.counted}: ${run.root}` : run.counted);
  if (run.state === "failed") return badge("bad", "failed");
  if (run.unread) return make("span", { class: "quiet" }, "reading …");
  if (run.health === "ok") return badge("ok", "healthy");
  return run.shortfalls?.length ? badge("unknown", run.shortfalls.join(", ")) : make("span", { class: "quiet" }, "–");
}

export const stateDot = (run) => make("i", { class: `dot ${run.state}`, "aria-hidden": "true" });

// A notice in place of a picture: what there is, and what to do.
export function notice(title, ...lines) {
  return make(
    "div",
    { class: "notice" },
    make("h2", null, title),
    lines.map((line) => (typeof line === "string" ? make("p", null, line) : line)),
  );
}

// A field in which rows are searched as one types.
export const searchField = (label, placeholder, value = "") =>
  make("input", { type: "search", placeholder, "aria-label": label, value, autocomplete: "off", spellcheck: "false" });
export const code = (text) => make("pre", null, make("code", null, text));
