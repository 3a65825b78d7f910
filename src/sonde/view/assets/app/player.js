// A slider over the logged steps, with buttons: back, play, forward.
import { make, whole } from "./dom.js";

export function player(steps, start, onstep) {
  let place = start;
  let timer = 0;
  const slider = make("input", { type: "range", min: 0, max: Math.max(steps.length - 1, 0), value: place, "aria-label": "Step" });
  const shown = make("output");
  const play = make(
    "button",
    { "data-key": "play", "aria-label": "Play", title: "Play (space)", onclick: () => (timer ? stop() : run()) },
    "▶",
  );
  const element = make(
    "div",
    { class: "player" },
    make(
      "button",
      { "data-key": "back", "aria-label": "One step back", title: "One step back ([)", onclick: () => to(place - 1) },
      "‹",
    ),
    play,
    make(
      "button",
      { "data-key": "forward", "aria-label": "One step forward", title: "One step forward (])", onclick: () => to(place + 1) },
      "›",
    ),
    slider,
    shown,
  );
  function say() {
    slider.value = String(place);
    const text = `step ${whole(steps[place])}`;
    shown.textContent = text;
    slider.setAttribute("aria-valuetext", text);
  }
  function to(next) {
    place = Math.min(Math.max(next, 0), steps.length - 1);
    say();
    onstep(place);
  }
  function stop() {
    clearInterval(timer);
    timer = 0;
    play.textContent = "▶";
  }
  function run() {
    if (place === steps.length - 1) to(0);
    play.textContent = "❚❚";
    timer = setInterval(
      () => {
        if (place >= steps.length - 1 || !element.isConnected) stop();
        else to(place + Math.max(1, Math.round(steps.length / 300)));
      },
      Math.max(50, 6000 / Math.max(steps.length, 1)),
    );
  }
  slider.addEventListener("input", () => {
    stop();
    to(Number(slider.value));
  });
  say();
  return {
    element,
    to,
    stop,
    get place() {
      return place;
    },
    grow(next) {
      const atEnd = place === steps.length - 1;
      steps = next;
      slider.max = String(steps.length - 1);
      if (atEnd && !timer) to(steps.length - 1);
    },
  };
}
