// A picture as a file: its numbers as CSV, or what is seen as PNG.
import { make } from "./dom.js";

const PAINTED = [
  "fill",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "stroke-linecap",
  "stroke-linejoin",
  "fill-opacity",
  "opacity",
  "font",
  "paint-order",
  "text-anchor",
  "visibility",
];
const DENSITY = 2; // pixels of the file for each of the screen

// Rows as CSV: numbers in full, texts quoted where they have to be. A text that a table would take for a formula begins with a quote.
export function csvOf(rows) {
  const cell = (value) => {
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return String(value);
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

// A text as the beginning of a file's name.
export const fileNamed = (text) => text.replace(/[^\w.-]+/g, "-").replace(/^-+|-+$/g, "") || "picture";

export function save(name, blob) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// A copy of a drawing that stands for itself: with the styles that it has on the page.
export function styledCopy(drawing, width, height) {
  const copy = /** @type {SVGElement} */ (drawing.cloneNode(true));
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", String(width));
  copy.setAttribute("height", String(height));
  const [from, to] = [drawing, copy].map((one) => [...one.querySelectorAll("*")]);
  from.forEach((one, place) => {
    const style = getComputedStyle(one);
    for (const name of PAINTED) to[place].setAttribute(name, style.getPropertyValue(name));
    to[place].setAttribute("style", `font:${style.font};paint-order:${style.paintOrder}`);
  });
  return copy;
}

export const textOf = (drawing) => new XMLSerializer().serializeToString(drawing);
export const ground = () => getComputedStyle(document.documentElement).getPropertyValue("--card");

// A drawing as PNG, above what is painted first.
export async function asPng(drawing, width, height, density = DENSITY, first = (_pen) => {}) {
  const sheet = make("canvas", { width: Math.round(width * density), height: Math.round(height * density) });
  const pen = sheet.getContext("2d");
  pen.scale(density, density);
  pen.fillStyle = ground();
  pen.fillRect(0, 0, width, height);
  first(pen);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(textOf(drawing))}`;
  await image.decode();
  pen.drawImage(image, 0, 0, width, height);
  return new Promise((resolve) => sheet.toBlob(resolve, "image/png"));
}

// What is seen of an element: its canvas, and above it its drawing.
function pictureOfElement(element) {
  const { width, height } = element.getBoundingClientRect();
  return asPng(styledCopy(element.querySelector("svg"), width, height), width, height, DENSITY, (pen) => {
    for (const canvas of element.querySelectorAll("canvas"))
      pen.drawImage(canvas, canvas.offsetLeft, canvas.offsetTop, canvas.offsetWidth, canvas.offsetHeight);
  });
}

// Buttons that save a picture. `rows` gives its numbers with a head, `name` the name of the files without their ends.
export function saveButtons(element, name, rows) {
  const file = () => fileNamed(name());
  return make(
    "span",
    { class: "save" },
    make(
      "button",
      {
        class: "plain",
        title: "Save the numbers of this picture as CSV",
        onclick: () => save(`${file()}.csv`, new Blob([csvOf(rows())], { type: "text/csv" })),
      },
      "CSV",
    ),
    make(
      "button",
      {
        class: "plain",
        title: "Save this picture as PNG",
        onclick: async () => save(`${file()}.png`, await pictureOfElement(element)),
      },
      "PNG",
    ),
  );
}
