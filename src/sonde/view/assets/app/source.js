// Where answers come from: the server of a live page, or the recording in a report. Views ask either in the same way.
import { partsOf, setClock } from "./dom.js";

export class Refused extends Error {}
export class Gone extends Error {}

// Numbers travel as base64 of their bytes (little endian, as on every machine that runs a browser).
export function bytes(text) {
  const signs = atob(text);
  const held = new Uint8Array(signs.length);
  for (let place = 0; place < signs.length; place += 1) held[place] = signs.charCodeAt(place);
  return held;
}

// Numbers whose first bytes come first, then all second ones, and so on.
function gathered(text) {
  const planes = bytes(text);
  const held = new Uint8Array(planes.length);
  const size = planes.length / 4;
  for (let place = 0; place < size; place += 1)
    for (let byte = 0; byte < 4; byte += 1) held[4 * place + byte] = planes[byte * size + place];
  return held;
}

// The steps of columns, as points of a line: the middle of the first and the last logged step of each.
export function middlesOf(edges, ends) {
  return edges.slice(0, -1).map((edge, column) => {
    const first = Math.ceil(edge);
    return ends ? (first + Math.max(ends[column], first)) / 2 : first;
  });
}

// A matrix as heatMap draws it: medians of columns (values), and what a cell shows: a step that stands out, where there is one (stands).
export function matrixOf(answer) {
  if (typeof answer.values !== "string") return answer;
  const [values, marks] = [new Float32Array((answer.planes ? gathered : bytes)(answer.values).buffer), bytes(answer.marks)];
  const last = answer.last && { last: new Float32Array(bytes(answer.last).buffer), last_marks: bytes(answer.last_marks) };
  const found = withSpikes(
    { ...answer, ...last, values, marks },
    new Uint32Array(bytes(answer.spikes?.at ?? "").buffer),
    new Float32Array(bytes(answer.spikes?.values ?? "").buffer),
  );
  return {
    ...found,
    rows: answer.sites.length,
    columns: Math.max(answer.steps.length - 1, 0),
    middles: middlesOf(answer.steps, answer.ends),
  };
}

/** @param {any} found @param {any} places @param {any} spikes */
export function withSpikes(found, places = [], spikes = []) {
  const [shown, shownMarks, stands] = [found.values.slice(), found.marks.slice(), new Uint8Array(found.values.length)];
  places.forEach((place, at) => {
    [shown[place], shownMarks[place], stands[place]] = [spikes[at], spikes[at] === 0 ? 5 : 0, 1];
  });
  return { ...found, shown, shownMarks, stands, spikes: places.length };
}

const KEPT = 80;

export class Live {
  constructor() {
    this.kept = new Map();
    this.forgotten = 0; // how often answers were forgotten: one that was asked for before may be old
    this.isLive = true;
  }

  async get(path, signal) {
    const known = this.kept.get(path);
    if (known) return known;
    const { forgotten } = this;
    let response;
    try {
      response = await fetch(path, { headers: { accept: "application/json" }, signal });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Gone("the server does not answer");
    }
    let answer;
    try {
      answer = await response.json();
    } catch {
      throw new Refused(`the server answered ${response.status} without words of its own`);
    }
    if (!response.ok) throw new Refused(answer.error ?? `the server answered ${response.status}`);
    if (forgotten !== this.forgotten) return answer;
    this.kept.set(path, answer);
    if (this.kept.size > KEPT) this.kept.delete(this.kept.keys().next().value);
    return answer;
  }

  async runs() {
    this.kept.delete("api/runs");
    const listed = await this.get("api/runs");
    setClock(listed.now);
    return listed;
  }

  ask(run, name, settings = {}, signal = undefined) {
    return this.get(`api/runs/${encodeURIComponent(run)}/${name}${query(settings)}`, signal);
  }

  hasDifference() {
    return true;
  }

  compare(a, b) {
    return this.get(`api/compare${query({ a, b })}`);
  }

  graph(run, number) {
    return { src: `api/runs/${encodeURIComponent(run)}/graph.html${query({ number })}` };
  }

  forget(start) {
    this.forgotten += 1;
    for (const path of [...this.kept.keys()]) if (path.startsWith(start)) this.kept.delete(path);
  }

  forgetRun(run) {
    this.forget(`api/runs/${encodeURIComponent(run)}/`);
    this.forget("api/compare");
    for (const path of [...this.kept.keys()]) if (path.includes(`against=${run}`)) this.kept.delete(path);
  }

  // Call `changed` with each message, `state` with true and false as the server comes and goes.
  follow(changed, state) {
    let [stream, timer] = [null, 0];
    const open = () => {
      stream = new EventSource("api/events");
      stream.onopen = () => state(true);
      stream.onmessage = (event) => {
        state(true);
        changed(JSON.parse(event.data));
      };
      stream.onerror = () => {
        state(false);
        if (stream.readyState === EventSource.CLOSED) {
          clearTimeout(timer);
          timer = setTimeout(open, 3000);
        }
      };
    };
    open();
  }
}

function query(settings) {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(settings)) {
    if (value === null || value === undefined || value === "") continue;
    for (const each of Array.isArray(value) ? value : [value])
      given.append(name, typeof each === "number" && !Number.isInteger(each) ? each.toFixed(2) : each);
  }
  const text = given.toString();
  return text ? `?${text}` : "";
}

// A report holds heat-maps of its runs; histories of a layer and the flow at a step are read from their rows and columns.
export class Recording {
  constructor(held) {
    this.held = held;
    this.isLive = false;
  }

  async runs() {
    return { runs: this.held.runs.map(({ run }) => run), version: 0 };
  }

  /** @param {string} run @param {string} name @param {any} settings */
  async ask(run, name, settings = {}) {
    const own = this.held.runs.find((each) => each.run.id === run);
    const held = settings.against ? { ...own, ...own.against[settings.against] } : own;
    const given = {
      heatmap: () => held.heatmap?.[settings.number],
      numbers: () => ({ ...held.numbers, numbers: held.numbers.numbers.filter((number) => held.heatmap?.[number.id]) }),
      distribution: () => this.distribution(held, settings),
      sample: () => held.sample?.[settings.site],
      lines: () => this.lines(held, settings),
      flow: () => this.flow(held, settings),
      layer: () => this.layer(held, settings.layer, settings.step),
    };
    const answer = name in given ? given[name]() : held[name];
    if (!answer)
      throw new Refused(
        `this report does not hold it: ${name}${[settings.number, settings.site, settings.layer]
          .flat()
          .filter(Boolean)
          .map((each) => ` of ${each}`)
          .join("")}. The live page does: sonde ui`,
      );
    return name === "heatmap" && settings.layers ? chosen(matrixOf(answer), settings.layers) : answer;
  }

  // Whether the report has the differences of a run from another one.
  hasDifference(run, other) {
    return Boolean(this.held.runs.find((each) => each.run.id === run)?.against?.[other]);
  }

  distribution(held, { site, step }) {
    const sites = Object.keys(held.distribution ?? {});
    const answer = held.distribution?.[site || sites[0]];
    if (!answer || step === undefined) return answer && { ...answer, sites };
    const column = Math.max(
      answer.steps.findLastIndex((edge, place) => place < answer.ends.length && edge <= step),
      0,
    );
    const [part, edges] = [(list) => list.slice(column, column + 1), answer.steps.slice(column, column + 2)];
    const [share, zeros, nonfinite, ends] = [answer.share, answer.zeros, answer.nonfinite, answer.ends].map(part);
    return { ...answer, sites, share, zeros, nonfinite, ends, steps: edges };
  }

  lines(held, { number, site: sites }) {
    const heat = held.heatmap?.[number];
    if (!heat) return null;
    const found = matrixOf(heat);
    return {
      ...wordsOf(found),
      lines: sites
        .filter((site) => found.sites.includes(site))
        .map((site) => ({ site, steps: found.middles, ...rowOf(found, found.sites.indexOf(site)) })),
    };
  }

  flow(held, { number, step }) {
    const heat = held.heatmap?.[number];
    if (!heat) return null;
    const found = matrixOf(heat);
    const column = Math.max(found.steps.findIndex((edge) => edge > step) - 1, 0);
    const all = found.sites.map((_, row) => rowOf(found, row));
    const there = all.map(({ values }) => values.filter((value) => Number.isFinite(value)));
    return {
      ...wordsOf(found),
      sites: found.sites,
      step: Math.ceil(found.steps[column]),
      steps: found.steps.slice(0, -1).map(Math.ceil),
      values: all.map(({ values }) => values[column]),
      marks: all.map(({ marks }) => marks[column]),
      low: there.map((values) => (values.length ? Math.min(...values) : null)),
      high: there.map((values) => (values.length ? Math.max(...values) : null)),
    };
  }

  layer(held, name, step) {
    const { numbers, findings } = held;
    const at = numbers.layers.findIndex((each) => each.layer === name);
    const layer = {
      ...(numbers.layers[at] ?? { layer: name }),
      before: numbers.layers[at - 1]?.layer,
      after: at < 0 ? null : numbers.layers[at + 1]?.layer,
    };
    const rows = [];
    for (const number of numbers.numbers) {
      const heat = held.heatmap?.[number.id];
      if (!heat) continue;
      const found = matrixOf(heat);
      found.sites.forEach((site, row) => {
        if (layerOf(site) !== name) return;
        const { values, marks } = rowOf(found, row);
        const column =
          step === undefined
            ? -1
            : Math.max(
                found.steps.findLastIndex((edge, place) => place < found.columns && edge <= step),
                0,
              );
        const shown =
          column < 0 ? {} : { shown: values[column], shown_mark: marks[column], shown_step: Math.ceil(found.steps[column]) };
        rows.push({
          ...number,
          number: number.id,
          site,
          last: Number.isFinite(found.last[row]) ? found.last[row] : null,
          last_mark: found.last_marks[row],
          values,
          marks,
          ...shown,
        });
      });
    }
    if (!rows.length) return null;
    return {
      ...layer,
      powers: Object.keys(held.distribution ?? {}).filter((site) => layerOf(site) === name),
      kept: Object.keys(held.sample ?? {}).filter((site) => layerOf(site) === name),
      unread: held.unread,
      numbers: rows,
      findings: findings.findings.filter((finding) => finding.site && layerOf(finding.site) === name),
    };
  }

  async compare(a, b) {
    const answer = this.held.comparisons[`${a} ${b}`];
    if (!answer)
      throw new Refused("this report compares its first run with the others. The live page compares any two: sonde ui");
    if (answer.error) throw new Refused(answer.error);
    return answer;
  }

  graph(run) {
    const { graph, without_graph: error } = this.held.runs.find((each) => each.run.id === run);
    return graph ? { srcdoc: graph } : { error };
  }

  forgetRun() {}

  follow() {}
}

const wordsOf = ({ label, unit, axis, scale, number }) => ({ label, unit, axis, scale, number });

export const layerOf = (site) => partsOf(site)[0];

// The values and marks of a row; where steps stand out in their columns, also the ends between which these lie.
export function rowOf(found, row) {
  const cut = (list) => Array.from(list.subarray(row * found.columns, (row + 1) * found.columns));
  const [marks, shown, stands] = [found.marks, found.shown, found.stands].map(cut);
  const values = cut(found.values).map((value, place) => (marks[place] === 1 || !Number.isFinite(value) ? null : value));
  const ends = (choose) => values.map((value, place) => (stands[place] && value !== null ? choose(value, shown[place]) : value));
  const joined = found.logged > found.columns ? found.logged / found.columns : 1;
  return { values, marks, joined, ...(stands.includes(1) ? { low: ends(Math.min), high: ends(Math.max) } : {}) };
}

// The rows whose layer has the words.
function chosen(found, words) {
  let matches = (site) => site.includes(words);
  try {
    const pattern = new RegExp(words);
    matches = (site) => pattern.test(site);
  } catch {
    /* no pattern: a part of a name */
  }
  const rows = found.sites.map((_, row) => row).filter((row) => matches(found.sites[row]));
  if (!rows.length) throw new Refused(`no layer of this report matches ${words}`);
  const cells = (list) => {
    const held = new list.constructor(rows.length * found.columns);
    rows.forEach((row, place) => held.set(list.subarray(row * found.columns, (row + 1) * found.columns), place * found.columns));
    return held;
  };
  const some = (list) => list && rows.map((row) => list[row]);
  const stands = cells(found.stands);
  return {
    ...found,
    rows: rows.length,
    sites: some(found.sites),
    layers: some(found.layers),
    kinds: some(found.kinds),
    values: cells(found.values),
    marks: cells(found.marks),
    shown: cells(found.shown),
    shownMarks: cells(found.shownMarks),
    stands,
    spikes: stands.reduce((sum, each) => sum + each, 0),
  };
}

// The recording in the page, or the server.
export async function sourceOf(page) {
  const held = page.getElementById("recording");
  if (!held) return new Live();
  if (held.type === "application/json") return new Recording(JSON.parse(held.textContent));
  if (typeof DecompressionStream === "undefined")
    throw new Refused(
      "this browser cannot unpack the report: it has no DecompressionStream. Open the report in a browser of 2023 or newer",
    );
  const packed = new Blob([bytes(held.textContent.trim())]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Recording(JSON.parse(await new Response(packed).text()));
}
