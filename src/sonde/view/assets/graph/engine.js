// Runs Graphviz, which the page holds as text, in a worker.
import { byId } from "../app/dom.js";

const WORKER = `
  let graphviz;
  onmessage = async ({ data: { number, dot, library } }) => {
    try {
      if (library) {
        const url = URL.createObjectURL(new Blob([library], { type: "text/javascript" }));
        graphviz = import(url).then(({ Graphviz }) => Graphviz.load());
        return;
      }
      const engine = await graphviz;
      const began = performance.now();
      const laid = engine.layout(dot, "json0", "dot");
      const took = performance.now() - began;
      postMessage({ number, laid, took });
    } catch (error) {
      postMessage({ number, error: String(error) });
    }
  };`;

const waiting = new Map(); // by number: who waits for a layout
const known = new Map(); // by source: its layout
let last = 0;
let why = ""; // there is no worker

function started() {
  try {
    const made = new Worker(URL.createObjectURL(new Blob([WORKER], { type: "text/javascript" })));
    // The engine is sent as text: a page opened as a file has an origin of its own, from which a worker may load nothing.
    made.postMessage({ library: byId("engine").textContent });
    made.onmessage = ({ data }) => {
      const { resolve, reject } = waiting.get(data.number);
      waiting.delete(data.number);
      if (data.error) reject(new Error(data.error));
      else resolve(data);
    };
    made.onerror = (event) => {
      for (const { reject } of waiting.values()) reject(new Error(event.message || "the layout engine did not start"));
      waiting.clear();
    };
    return made;
  } catch (error) {
    why = `no worker can be started (${error.message})`;
    return null;
  }
}
const worker = started();

// The layout of Graphviz source: { laid, its text; took, the milliseconds }.
export function layout(dot) {
  if (!worker) return Promise.reject(new Error(why));
  if (!known.has(dot)) {
    if (known.size > 40) known.delete(known.keys().next().value);
    known.set(
      dot,
      new Promise((resolve, reject) => {
        waiting.set(++last, { resolve, reject });
        worker.postMessage({ number: last, dot });
      }),
    );
  }
  return known.get(dot);
}
