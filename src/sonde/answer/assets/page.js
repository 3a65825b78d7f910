// Light and dark: ?theme=dark or the system's scheme at first, then the reader's choice, or that of the page around this one. A page listens to the document's event "theme".
"use strict";

function theme(name) {
  document.documentElement.dataset.theme = name;
  document.dispatchEvent(new Event("theme"));
}

document.getElementById("theme").onclick = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
const asked = new URLSearchParams(location.search).get("theme");
const isTheme = (name) => name === "light" || name === "dark";
theme(isTheme(asked) ? asked : prefersDark.matches ? "dark" : "light");
prefersDark.addEventListener("change", (event) => theme(event.matches ? "dark" : "light"));
window.addEventListener("message", ({ source, data }) => { if (source === window.parent && isTheme(data?.theme)) theme(data.theme); });
