// The execution graph, coloured by a number: the graph's own page in a frame that can run its script and reach nothing else.
import { keep } from "./address.js";
import { make, notice } from "./dom.js";
import { numberChooser } from "./layers.js";

export async function graphView({ root, source, run, args, isShown }) {
  const about = await source.ask(run.id, "numbers");
  if (!isShown()) return null;
  let number = about.numbers.some((each) => each.id === args.number) ? args.number : about.main;
  const frame = make("iframe", { title: "Execution graph", sandbox: "allow-scripts", class: "graph" });
  const retheme = () => frame.contentWindow?.postMessage({ theme: document.documentElement.dataset.theme }, "*");
  frame.addEventListener("load", retheme);
  const place = make("div");
  async function load() {
    const held = source.graph(run.id, number);
    if (!held) { place.replaceChildren(missing()); return; }
    if (held.src) {
      const answer = await fetch(held.src, { headers: { accept: "text/html" } });
      if (!answer.ok) {
        let said = "";
        try { said = (await answer.json()).error; } catch { /* no words: those below do */ }
        place.replaceChildren(said ? notice("No graph to draw", said) : missing());
        return;
      }
      frame.src = held.src;
    } else frame.srcdoc = held.srcdoc;
    place.replaceChildren(frame);
  }
  const bar = source.isLive && about.numbers.length ? make("div", { class: "bar" }, make("label", null, "coloured by ", numberChooser(about.numbers, number, (id) => { number = id; keep({ number }); load(); }))) : null;
  root.append(...[bar, place].filter(Boolean));
  await load();
  return { refresh: () => null, retheme };
}

const missing = () => notice("This run has no graph", "The graph is recorded when the training is given one batch: sonde.watch(model, optimizer, batch=x).");
