// Light and dark: the system's scheme at first, then the reader's choice. A page listens to the document's event "theme".
"use strict";

function theme(name) {
  document.documentElement.dataset.theme = name;
  document.dispatchEvent(new Event("theme"));
}

document.getElementById("theme").onclick = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
theme(prefersDark.matches ? "dark" : "light");
prefersDark.addEventListener("change", (event) => theme(event.matches ? "dark" : "light"));
