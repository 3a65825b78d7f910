// The whole picture as a file, whatever part of it is seen.
import { byId, draw } from "../app/dom.js";
import { asPng, fileNamed, ground, save, styledCopy, textOf } from "../app/saving.js";
import { picture, view } from "./view.js";

const AROUND = 24;
const MOST_PIXELS = 8000; // on a side: browsers refuse sheets that are much larger

function wholeDrawing() {
  const [width, height] = [view.width + 2 * AROUND, view.height + 2 * AROUND].map(Math.ceil);
  const copy = styledCopy(picture, width, height);
  copy.setAttribute("viewBox", `${-AROUND} ${-AROUND} ${width} ${height}`);
  copy.firstElementChild.removeAttribute("transform");
  copy.prepend(draw("rect", { x: -AROUND, y: -AROUND, width, height, fill: ground() }));
  return { copy, width, height };
}

export async function saveAs(kind) {
  const { copy, width, height } = wholeDrawing();
  const name = `${fileNamed(byId("model").textContent)}.${kind}`;
  if (kind === "svg") save(name, new Blob([textOf(copy)], { type: "image/svg+xml" }));
  else save(name, await asPng(copy, width, height, Math.min(2, MOST_PIXELS / Math.max(width, height))));
}
