// The note at the pointer, or at an element that has the focus.
import { byId } from "./dom.js";

export function showTip(at, content) {
  const tip = byId("tip");
  tip.setAttribute("aria-live", at.clientX === undefined ? "polite" : "off"); // read aloud where keys move, not at each move of a pointer
  tip.hidden = false;
  tip.replaceChildren(content);
  const box = tip.getBoundingClientRect();
  let [x, y] = [at.clientX, at.clientY];
  if (x === undefined) {
    const around = at.getBoundingClientRect();
    [x, y] = [around.right - box.width - 30, around.top + 8];
  }
  const [right, below] = [x + 16 + box.width < innerWidth, y + 16 + box.height < innerHeight];
  tip.style.left = `${Math.max(4, right ? x + 16 : x - box.width - 12)}px`;
  tip.style.top = `${Math.max(4, below ? y + 16 : y - box.height - 12)}px`;
}

export function hideTip() {
  byId("tip").hidden = true;
}
