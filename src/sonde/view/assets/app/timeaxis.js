// The axis of a span in times: ticks at the steps that came to the disk by then. Positions stay those of steps, so one cursor joins all views.
import { keep } from "./address.js";
import { lasting, make } from "./dom.js";
import { stepTicks } from "./scales.js";

const AXES = { step: "step", time: "time since the start", clock: "wall clock" };
const STRIDES = [
  0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800,
]; // seconds
const APART = 78; // pixels between ticks at least

export const axisOf = (text) => (text in AXES ? text : "step");

// Between points of a rising line: the other coordinate, or null outside. `from` and `to` are the places of both in a point.
export function between(points, at, from, to) {
  const last = points.findIndex((point) => point[from] >= at);
  if (last < 0 || !points.length || at < points[0][from]) return null;
  if (points[last][from] === at || last === 0) return points[last][to];
  const [one, other] = [points[last - 1], points[last]];
  return one[to] + ((at - one[from]) / (other[from] - one[from])) * (other[to] - one[to]);
}

const two = (number) => String(number).padStart(2, "0");

function clockText(seconds, stride, before) {
  const at = new Date(seconds * 1000);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  if (stride >= 86400) return day;
  const time = `${two(at.getHours())}:${two(at.getMinutes())}${stride < 60 ? `:${two(at.getSeconds())}` : ""}`;
  const isNewDay = before !== null && new Date(before * 1000).getDate() !== at.getDate();
  return isNewDay ? `${day.slice(5)} ${time}` : time;
}

function sinceText(seconds, stride) {
  if (stride < 1) return `${seconds.toFixed(1)} s`;
  return seconds < 3600 && stride < 60 && seconds >= 60
    ? `${Math.floor(seconds / 60)} min ${two(Math.round(seconds % 60))} s`
    : lasting(Math.round(seconds));
}

// Ticks at even times, as [step, text]; none where it is not known when a step was. Times are [step, seconds].
export function timeTicks(times, x, room, kind) {
  const [first, last] = [Math.max(x.low, times[0][0]), Math.min(x.high, times.at(-1)[0])];
  if (!(last > first)) return [];
  const [begin, end] = [between(times, first, 0, 1), between(times, last, 0, 1)];
  const stride = STRIDES.find((size) => (end - begin) / size <= room) ?? STRIDES.at(-1);
  const origin = kind === "time" ? times[0][1] : new Date(begin * 1000).getTimezoneOffset() * 60;
  const found = [];
  let [before, at] = [null, -Infinity];
  for (let count = Math.ceil((begin - origin) / stride); origin + count * stride <= end; count += 1) {
    const seconds = origin + count * stride;
    const step = between(times, seconds, 1, 0);
    if (step === null || x.at(step) - at < APART) continue; // where steps were slow, many times lie close together
    found.push([step, kind === "time" ? sinceText(seconds - origin, stride) : clockText(seconds, stride, before)]);
    [before, at] = [seconds, x.at(step)];
  }
  return found;
}

// The ticks and the name of a span's axis; what a view calls its axis where it shows no times.
export const isTimed = (span) => span.axis !== "step" && span.times.length > 1;
export const ticksOf = (span, x, room) => (isTimed(span) ? timeTicks(span.times, x, room, span.axis) : stepTicks(x, room));
export const axisNameOf = (span, otherwise) => (isTimed(span) ? AXES[span.axis] : otherwise);

// When a step was, in words for the note at the pointer.
export function whenWords(span, step) {
  const seconds = isTimed(span) ? between(span.times, step, 0, 1) : null;
  if (seconds === null) return isTimed(span) ? " · its time is not known" : "";
  return ` · ${span.axis === "time" ? `${sinceText(seconds - span.times[0][1], 1)} after the start` : new Date(seconds * 1000).toLocaleString("en-GB")}`;
}

// A choice of the axis for all pictures on a span; hidden where the run has no times.
export function timeChooser(span, source, run) {
  const said = make(
    "span",
    { class: "quiet small", hidden: true },
    "interpolated between the times at which rows came to the disk",
  );
  const select = make(
    "select",
    {
      "aria-label": "Time axis",
      onchange: () => {
        span.axis = select.value;
        keep({ axis: span.axis === "step" ? "" : span.axis });
        say();
      },
    },
    Object.entries(AXES).map(([value, text]) => make("option", { value, selected: value === span.axis }, text)),
  );
  const element = make("label", { class: "time-axis", hidden: true }, "axis ", select, said);
  function say() {
    said.hidden = !isTimed(span);
    span.tell("move");
  }
  async function read() {
    const { times = [] } = await source.ask(run.id, "numbers").catch(() => ({}));
    span.times = times;
    element.hidden = times.length < 2;
    say();
  }
  span.on("grow", read);
  read();
  return element;
}
