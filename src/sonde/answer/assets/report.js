// What a page of a report can do beyond being read: copy a line, open all parts, keys; what is open is printed, in light colours.
"use strict";

const parts = [...document.querySelectorAll("details")];
const unfold = document.getElementById("unfold");

function openAll() {
  const open = parts.some((part) => !part.open);
  for (const part of parts) part.open = open;
  unfold.textContent = open ? "close all" : "open all";
}

unfold.hidden = !parts.length;
unfold.onclick = openAll;

for (const line of document.querySelectorAll("code.copied")) {
  const button = document.createElement("button");
  button.textContent = "copy";
  button.className = "copy";
  button.onclick = async () => {
    const range = document.createRange();
    range.selectNodeContents(line);
    const selection = window.getSelection();
    selection.removeAllRanges();
    selection.addRange(range); // a reader without a clipboard still has the line selected
    try {
      await navigator.clipboard.writeText(line.textContent);
      button.textContent = "copied";
    } catch {
      button.textContent = document.execCommand("copy") ? "copied" : "selected";
    }
    setTimeout(() => (button.textContent = "copy"), 1500);
  };
  line.after(button);
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
  if (event.key === "t") document.getElementById("theme").click();
  if (event.key === "o" && parts.length) openAll();
});

let chosen = "";
window.addEventListener("beforeprint", () => {
  chosen = document.documentElement.dataset.theme;
  theme("light");
});
window.addEventListener("afterprint", () => theme(chosen));
