// Puts several runs on common axes: their steps, their layers, one scale of colours.
import { plain, whole } from "./dom.js";

// How the steps of runs lie on one axis: its name, and the place of a run's step on it and back.
export const ALIGNMENTS = {
  step: { title: "each run's own steps", axis: "step", on: () => [(step) => step, (at) => at] },
  start: {
    title: "steps since each run's first",
    axis: "steps since the first",
    on: (run) => [(step) => step - run.first, (at) => at + run.first],
  },
  share: {
    title: "share of each training",
    axis: "% of the training",
    on: (run) => {
      const wide = Math.max(run.last - run.first, 1) / 100;
      return [(step) => (step - run.first) / wide, (at) => at * wide + run.first];
    },
  },
};

export const placeWords = (alignment, at) =>
  alignment === "share"
    ? `${plain(at, 3)} % of the training`
    : alignment === "start"
      ? `${whole(Math.round(at))} steps after the first`
      : `step ${whole(Math.round(at))}`;

// The items of all lists, in the order of the first; one that it lacks stands behind the one before it in its own list.
export function joinedOrder(lists) {
  const order = [...(lists[0] ?? [])];
  const known = new Set(order);
  for (const list of lists.slice(1)) {
    let before = null;
    for (const item of list) {
      if (!known.has(item)) {
        known.add(item);
        order.splice(before === null ? 0 : order.indexOf(before) + 1, 0, item);
      }
      before = item;
    }
  }
  return order;
}

// One scale for several pictures of one number: it holds the ends of all.
export function commonScale(scales) {
  const end = (of, choose) => {
    const known = scales.map(of).filter((value) => value !== null);
    return known.length ? choose(...known) : null;
  };
  const [least, most] = [end((scale) => scale.least, Math.min), end((scale) => scale.most, Math.max)];
  const [lows, highs] = [scales.map(({ low }) => low), scales.map(({ high }) => high)];
  if (scales.some((scale) => scale.diverging)) {
    const reach = Math.max(...lows.map(Math.abs), ...highs.map(Math.abs));
    return { low: -reach, high: reach, log: false, diverging: true, least, most };
  }
  const log = scales.some((scale) => scale.log);
  const positive = lows.filter((low) => !log || low > 0);
  return { low: Math.min(...positive), high: Math.max(...highs), log, diverging: false, least, most };
}

// A heat-map of one run on rows that all runs share, over the common axis; rows that the run lacks were not recorded.
export function onRows(found, sites, to) {
  const size = sites.length * found.columns;
  const held = {
    values: new Float32Array(size),
    shown: new Float32Array(size),
    marks: new Uint8Array(size).fill(1),
    shownMarks: new Uint8Array(size).fill(1),
    stands: new Uint8Array(size),
  };
  const own = new Map(found.sites.map((site, row) => [site, row]));
  sites.forEach((site, row) => {
    if (!own.has(site)) return;
    const start = own.get(site) * found.columns;
    for (const [name, list] of Object.entries(held))
      list.set(found[name].subarray(start, start + found.columns), row * found.columns);
  });
  return {
    ...found,
    ...held,
    sites,
    rows: sites.length,
    steps: found.steps.map(to),
    firsts: found.steps.slice(0, -1).map(Math.ceil),
    middles: found.middles.map(to),
    has: (row) => own.has(sites[row]),
  };
}
