// What a reader writes beside runs, and which stand on top: kept by this browser alone, since the page writes nothing to a run.

const KEY = "sonde-notes";

// The notes of the runs of one folder, by id: {note, pin}.
export function notesOf(folder) {
  const read = () => {
    try {
      return JSON.parse(localStorage.getItem(KEY)) ?? {};
    } catch {
      return {}; // no storage here, or what is no JSON
    }
  };
  const own = (all) => all[folder] ?? {};
  return {
    of: (id) => own(read())[id] ?? { note: "", pin: false },
    texts: () => Object.fromEntries(Object.entries(own(read())).map(([id, { note }]) => [id, note ?? ""])),
    set(id, change) {
      const all = read();
      const next = { note: "", pin: false, ...own(all)[id], ...change };
      const held = { ...own(all), [id]: next };
      if (!next.note && !next.pin) delete held[id];
      try {
        localStorage.setItem(KEY, JSON.stringify({ ...all, [folder]: held }));
      } catch {
        /* no storage here: it is forgotten with the page */
      }
    },
  };
}
