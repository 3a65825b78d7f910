// Values of a stored tensor as a picture: a few of them, evenly picked, with the marks of NaN and infinities.
import { draw, fill, make, many, plain, whole } from "./dom.js";
import { imagesOf, legendOf, paintImages } from "./heat.js";
import { saveButtons } from "./saving.js";
import { MARKS } from "./scales.js";
import { bytes } from "./source.js";
import { onWidth, once } from "./span.js";
import { hideTip, showTip } from "./tip.js";

const STORED = { left: 52, right: 14, top: 4, below: 24, row: 9, least: 28, tallest: 320 }; // in pixels

// What a value's place in the tensor is called: the first place on all axes but the last two.
export function placeOf({ shape, rows, columns }, row, column) {
  const behind = [rows[row], columns[column]].slice(2 - Math.min(shape.length, 2));
  return `[${[...Array(Math.max(shape.length - 2, 0)).fill(0), ...behind].join(", ")}]`;
}

// Which values the picture has, in words: how many of each axis.
export function partWords({ shape, rows, columns }) {
  const axes = shape.length;
  if (!axes) return "";
  const some = (at, length) => `axis ${at}${length < shape[at] ? `: ${whole(length)} of ${whole(shape[at])}, evenly` : ""}`;
  const first = axes > 2 ? `of [${[...Array(axes - 2).fill("0"), ":", ":"].join(", ")}]` : "";
  const down = axes > 1 ? `down: ${some(axes - 2, rows.length)}` : "";
  return [first, down, `across: ${some(axes - 1, columns.length)}`].filter(Boolean).join(" · ");
}

// What all values of the tensor are, in words.
export function valueWords({ shape, dtype, low, high, nan, inf }) {
  const magnitude = dtype.startsWith("complex") ? "magnitudes" : "values";
  const size = shape.length ? shape.map(whole).join("×") : "one value";
  if (nan === null)
    return [size, dtype, "too large to be read whole: only the picture was read, and no checksum compared"].join(" · ");
  return [
    size,
    dtype,
    low === null ? "" : `${magnitude} from ${plain(low)} to ${plain(high)}`,
    nan ? `${whole(nan)} NaN` : "",
    inf ? `${whole(inf)} infinite` : "",
  ]
    .filter(Boolean)
    .join(" · ");
}

// When it was kept, in words, where `asked` is the step of the cursor; null: the last.
export function whenKept({ step, steps, of }, asked) {
  if (step === null) return `no step is known of it${of > 1 ? `, the first of ${of}` : ""}`;
  const which =
    asked === null || step === asked
      ? ""
      : step < asked
        ? `, the last before ${whole(asked)}`
        : step === steps[0]
          ? ", the first"
          : "";
  return [
    `${which ? "of" : "at"} step ${whole(step)}${which}`,
    of > 1 ? `the first of ${of} at this step` : "",
    steps.length > 1 ? `kept at ${many(steps.length, "step")}` : "",
  ]
    .filter(Boolean)
    .join(" · ");
}

// Return {element, show(answer)}.
export function tensorPicture() {
  const [canvas, svg, legend] = [make("canvas"), draw("svg", { width: "100%", height: "100%", role: "img" }), make("div")];
  const picture = make("div", { class: "heat sample" }, canvas, svg);
  let [data, width, plot] = [null, 0, null];
  const valueAt = (at) => (data.marks[at] > 1 && data.marks[at] !== 5 ? null : data.values[at]);
  const cells = () => {
    const found = [["place", "value", "mark"]];
    for (let at = 0; at < data.values.length; at += 1) {
      const [row, column] = [Math.floor(at / data.columns), at % data.columns];
      found.push([placeOf(data.answer, row, column), valueAt(at), MARKS[data.marks[at]]?.name]);
    }
    return found;
  };
  picture.append(saveButtons(picture, () => (data ? `values ${data.answer.site} ${data.answer.step ?? ""}` : ""), cells));

  function paint() {
    if (!width || !data) return;
    const { answer } = data;
    const height = data.size ? Math.min(Math.max(data.size * STORED.row, STORED.least), STORED.tallest) : 0;
    plot = { left: STORED.left, top: STORED.top, width: Math.max(width - STORED.left - STORED.right, 10), height };
    picture.style.height = `${height + STORED.top + STORED.below}px`;
    const density = window.devicePixelRatio || 1;
    Object.assign(canvas, { width: Math.round(plot.width * density), height: Math.round(height * density) });
    Object.assign(canvas.style, Object.fromEntries(Object.entries(plot).map(([name, value]) => [name, `${value}px`])));
    const pen = canvas.getContext("2d");
    if (data.size)
      paintImages(pen, imagesOf(data, 0, data.size, 1, 0), density, (on, image) => {
        on.imageSmoothingEnabled = false;
        on.drawImage(image, 0, 0, canvas.width, canvas.height);
      });
    const middle = (at, count, length) => ((at + 0.5) * length) / count;
    const text = (x, y, anchor, words) => draw("text", { x, y, "text-anchor": anchor }, words);
    const ends = (list) => (list.length > 1 ? [0, list.length - 1] : list.length ? [0] : []);
    const [down, across] = [answer.shape.length > 1 ? ends(answer.rows) : [], answer.shape.length ? ends(answer.columns) : []];
    svg.replaceChildren(
      draw("rect", { class: "outline", x: plot.left - 0.5, y: plot.top - 0.5, width: plot.width + 1, height: height + 1 }),
      ...down.map((at) => text(plot.left - 6, plot.top + middle(at, data.size, height) + 4, "end", whole(answer.rows[at]))),
      ...across.map((at) =>
        text(
          plot.left + middle(at, data.columns, plot.width),
          plot.top + height + 16,
          at ? "end" : "start",
          whole(answer.columns[at]),
        ),
      ),
    );
  }

  picture.addEventListener("pointermove", (event) => {
    if (!data?.size || event.target.closest(".save")) return hideTip();
    const box = picture.getBoundingClientRect();
    const [row, column] = [
      Math.floor(((event.clientY - box.top - plot.top) / plot.height) * data.size),
      Math.floor(((event.clientX - box.left - plot.left) / plot.width) * data.columns),
    ];
    if (row < 0 || row >= data.size || column < 0 || column >= data.columns) return hideTip();
    const at = row * data.columns + column;
    const words = [2, 3, 4, 6].includes(data.marks[at]) ? MARKS[data.marks[at]].name : plain(data.values[at]);
    showTip(event, make("div", null, make("strong", null, placeOf(data.answer, row, column)), " ", words));
  });
  picture.addEventListener("pointerleave", hideTip);
  onWidth(
    picture,
    (now) => {
      width = now;
    },
    once(paint),
  );
  return {
    element: make("div", null, picture, legend),
    show(answer) {
      const [values, marks] = [new Float32Array(bytes(answer.values).buffer), bytes(answer.marks)];
      const size = values.length ? answer.rows.length : 0;
      const none = new Uint8Array(values.length);
      const beyond = (end) => (["both", end].includes(answer.scale.extend) ? {} : { [end === "min" ? "least" : "most"]: null });
      const scale = { ...answer.scale, ...beyond("min"), ...beyond("max") };
      data = {
        answer,
        values,
        marks,
        size,
        columns: answer.columns.length,
        scale,
        shown: values,
        shownMarks: marks,
        stands: none,
      };
      svg.setAttribute("aria-label", `Values of ${answer.site}: ${valueWords(answer)}`);
      fill(
        legend,
        size ? legendOf({ ...data, label: "value" }, partWords(answer)) : make("p", { class: "quiet" }, "no elements"),
      );
      paint();
    },
  };
}
