// The findings with their evidence, each one click from the picture that shows it.
import { linkTo } from "./address.js";
import { badge, fill, make, many, notice, partsOf, plain, whole } from "./dom.js";

// The address of the picture that shows a finding.
export function pictureOf(run, finding) {
  const link = finding.link ?? {};
  const [layer] = partsOf(finding.site ?? "");
  const view = link.view ?? (finding.site ? "layers" : "overview");
  return linkTo(
    view,
    run.id,
    { number: link.number, site: link.site ?? finding.site, step: link.step ?? finding.first_step ?? finding.step },
    view === "layer" ? layer : "",
  );
}

export function card(run, finding, brief = false) {
  const step = finding.first_step ?? finding.step;
  const [layer, port] = partsOf(finding.site ?? "");
  const where = [
    finding.site
      ? make("a", { href: linkTo("layer", run.id, { number: finding.link?.number, step }, layer) }, layer || "(root)")
      : "the whole training",
    port ? make("span", { class: "quiet" }, ` ${port}`) : null,
  ];
  const evidence = (finding.evidence ?? []).map((each) => [make("dt", null, each.name), make("dd", null, plain(each.value))]);
  return make(
    "article",
    { class: `finding ${finding.severity}${brief ? " brief" : ""}` },
    make(
      "div",
      { class: "what" },
      badge(finding.severity, ""),
      make(
        "div",
        null,
        make("h3", null, finding.message ?? finding.text),
        make(
          "p",
          null,
          where,
          make("span", { class: "quiet" }, step === null || step === undefined || step < 0 ? "" : ` · from step ${whole(step)}`),
        ),
      ),
    ),
    brief
      ? null
      : [
          evidence.length ? make("dl", { class: "evidence" }, evidence) : null,
          finding.advice ? make("p", { class: "advice" }, make("strong", null, "What to do: "), finding.advice) : null,
          make(
            "p",
            { class: "quiet small" },
            finding.rule ? `rule ${finding.rule}` : "said by the training itself",
            finding.condition ? `: ${finding.condition}` : "",
            finding.source ? ` (${finding.source})` : "",
            finding.call >= 0 ? ` · call ${finding.call}` : "",
            finding.follows ? ` · follows from ${finding.follows}` : "",
          ),
        ],
    make(
      "a",
      { class: "button", href: pictureOf(run, finding), "aria-label": `See it: ${finding.message ?? finding.text}` },
      "See it",
    ),
  );
}

// The findings as the record tells them: each root with those that follow from it.
export function storyOf(findings) {
  const told = [];
  for (const finding of findings) {
    if (finding.follows && told.length) told.at(-1).behind.push(finding);
    else told.push({ root: finding, behind: [] });
  }
  return told;
}

// A root with what follows from it, folded.
export function chapter(run, { root, behind }, brief = false) {
  return [
    card(run, root, brief),
    behind.length
      ? make(
          "details",
          { class: "behind" },
          make(
            "summary",
            null,
            `from it ${behind.length === 1 ? "follows" : "follow"} `,
            behind.map((each) => `${each.rule} (step ${whole(each.first_step ?? each.step)})`).join(", "),
          ),
          behind.map((each) => card(run, each, brief)),
        )
      : null,
  ];
}

// What the rules could not judge.
function besides({ not_judged: missing = [] }) {
  return missing.length
    ? make(
        "details",
        null,
        make("summary", null, `${many(missing.length, "rule")} could not judge: what they need was not recorded`),
        make(
          "dl",
          { class: "evidence" },
          missing.map(({ rule, needs }) => [make("dt", null, rule), make("dd", null, needs)]),
        ),
      )
    : null;
}

export async function findingsView({ root, source, run, isShown }) {
  async function read(every = false) {
    const answer = await source.ask(run.id, "findings", every ? { every: 1 } : {});
    if (!isShown()) return;
    const { findings, shortfalls, judged, counted } = answer;
    const isWhole = shortfalls.length === 0;
    const said =
      typeof judged === "number"
        ? `The rules judged all logged steps up to step ${whole(judged)} and found nothing wrong.`
        : "No step was judged.";
    fill(
      root,
      findings.length
        ? make(
            "div",
            { class: "bar" },
            make("h1", null, counted),
            make("p", { class: "quiet" }, "each with what follows from it; the worst first, then by step"),
          )
        : notice("No findings", said),
      isWhole
        ? ""
        : make(
            "p",
            null,
            make("strong", null, `${shortfalls.join(", ")}. `),
            source.isLive ? make("button", { onclick: judgeAll }, "Judge every row") : null,
          ),
      make(
        "div",
        { class: "findings" },
        storyOf(findings).map((each) => chapter(run, each)),
      ),
      besides(answer),
    );
  }
  async function judgeAll() {
    fill(root, notice("Judging every row", "This can take a minute for a million rows."));
    await read(true);
  }
  await read();
  return { refresh: () => read() };
}
