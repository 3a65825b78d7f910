// The address of a picture: "#/run/ID/layers?number=moments.rms@output" is the view "layers" of a run, with its settings.

export function here() {
  const [place, settings = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [kind = "", run = "", view = "", ...rest] = place.split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  const args = Object.fromEntries(new URLSearchParams(settings));
  if (kind === "compare") return { view: "compare", run: "", rest: "", args };
  if (kind !== "run") return { view: "runs", run: "", rest: "", args };
  return { view: view || "overview", run, rest: rest.join("/"), args };
}

// What goes along every link within a run, unless the link says otherwise.
const GOES_ALONG = ["against", "smooth", "axis", "heights"];

export function linkTo(view, run = "", args = {}, rest = "") {
  const given = new URLSearchParams();
  const now = run ? here() : null;
  const along = now?.run === run ? GOES_ALONG.map((name) => [name, now.args[name]]) : [];
  for (const [name, value] of Object.entries({ ...Object.fromEntries(along), ...args }))
    if (value !== null && value !== undefined && value !== "") given.set(name, value);
  const settings = given.toString() ? `?${given}` : "";
  if (view === "runs") return `#/${settings}`;
  if (view === "compare") return `#/compare${settings}`;
  return `#/run/${encodeURIComponent(run)}${view === "overview" ? "" : `/${view}`}${rest ? `/${encodeURIComponent(rest)}` : ""}${settings}`;
}

// Change settings in the address without a new view, so that a reload shows the same.
export function keep(args, way = "replaceState") {
  const now = here();
  const next = linkTo(now.view, now.run, { ...now.args, ...args }, now.rest);
  if (next === location.hash) return;
  history[way](null, "", next);
  document.dispatchEvent(new Event("kept"));
}

// Zooms close after each other are one: the browser's way back leads to what was shown before them.
let zoomed = 0;
export function keepZoom(args) {
  keep(args, Date.now() - zoomed > 1000 ? "pushState" : "replaceState");
  zoomed = Date.now();
}
