// Smooths lines: an exponential moving average over the logged steps, begun without a bias, and the slider that sets it for a view.
import { keep } from "./address.js";
import { make, plain } from "./dom.js";

const [WIDEST, NOTCHES] = [1000, 30]; // logged steps over which the widest average goes, and places of the slider

export const windowOf = (text) => Math.min(Math.max(Number(text) || 1, 1), WIDEST);

// The average at each point: the latest of `window` steps have about two thirds of the weight. What is no number has no part in it, and
// no average. A point that joins several logged steps counts as that many, so that a line is as smooth from near as from afar.
export function smoothed(values, window, joined = 1) {
  const old = (1 - 1 / window) ** joined;
  let [sum, weight] = [0, 0];
  return values.map((value) => {
    if (value === null || !Number.isFinite(value)) return null;
    sum = old * sum + (1 - old) * value;
    weight = old * weight + (1 - old); // below 1 at the beginning: without it the first averages would lie near 0
    return sum / weight;
  });
}

// A slider for all charts on a span; the address keeps it.
export function smoothingSlider(span) {
  const shown = make("output");
  const notch = () => Math.round((Math.log(span.window) / Math.log(WIDEST)) * NOTCHES);
  const slider = make("input", { type: "range", min: 0, max: NOTCHES, value: notch(), "aria-label": "Smoothing" });
  const say = () => {
    const words = span.window > 1 ? `over ${plain(span.window)} logged steps` : "off";
    shown.textContent = words;
    slider.setAttribute("aria-valuetext", words);
  };
  slider.addEventListener("input", () => {
    span.smooth(Math.round(WIDEST ** (Number(slider.value) / NOTCHES)));
    keep({ smooth: span.window > 1 ? span.window : "" });
    say();
  });
  say();
  return make(
    "label",
    { class: "smoothing", title: "An exponential moving average; the line as it was stays, faint" },
    "smoothing ",
    slider,
    shown,
  );
}
