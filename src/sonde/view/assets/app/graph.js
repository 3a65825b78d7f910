// The execution graph, coloured by a number: the graph's own page in a frame that can run its script and reach nothing else.
import { here, keep } from "./address.js";
import { make, notice } from "./dom.js";

export async function graphView({ root, source, run, args, isShown }) {
  const about = await source.ask(run.id, "numbers");
  if (!isShown()) return null;
  let number = about.numbers.some((each) => each.id === args.number) ? args.number : null;
  const frame = make("iframe", { title: "Execution graph", sandbox: "allow-scripts allow-downloads", class: "graph" });
  const retheme = () => frame.contentWindow?.postMessage({ theme: document.documentElement.dataset.theme }, "*");
  // The page in the frame chooses the number: of numbers that it does not hold it asks for another page.
  const more = source.isLive
    ? [
        ...new Map(
          [...about.numbers]
            .reverse()
            .map((each) => [each.number, { id: each.id, name: each.number, label: each.label, minor: each.minor }]),
        ).values(),
      ].reverse()
    : [];
  frame.addEventListener("load", () => {
    retheme();
    frame.contentWindow?.postMessage({ more, step: Number(here().args.step || Number.MAX_SAFE_INTEGER) }, "*"); // the last step
  });
  const asked = ({ source: sender, data }) => {
    if (sender !== frame.contentWindow) return;
    if (Number.isInteger(data?.step)) keep({ step: data.step });
    if (!more.some(({ id }) => id === data?.number)) return;
    number = data.number;
    keep({ number });
    load();
  };
  window.addEventListener("message", asked);
  async function load() {
    const held = source.graph(run.id, number);
    if (held.error) {
      root.replaceChildren(notice("No graph to draw", held.error));
      return;
    }
    if (held.src) {
      const answer = await fetch(held.src, { headers: { accept: "text/html" } });
      if (!answer.ok) {
        let said = "";
        try {
          said = (await answer.json()).error;
        } catch {
          /* no words: those below do */
        }
        root.replaceChildren(said ? notice("No graph to draw", said) : missing());
        return;
      }
      frame.src = held.src;
    } else frame.srcdoc = held.srcdoc;
    root.replaceChildren(frame);
  }
  await load();
  return { refresh: () => null, retheme, stop: () => window.removeEventListener("message", asked) };
}

const missing = () =>
  notice(
    "This run has no graph",
    "The graph is recorded when the training is given one batch: sonde.watch(model, optimizer, graph=x).",
  );
