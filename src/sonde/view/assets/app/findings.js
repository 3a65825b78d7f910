// The findings with their evidence, each one click from the picture that shows it.
import { linkTo } from "./address.js";
import { badge, fill, make, many, notice, partsOf, plain, whole } from "./dom.js";

// The address of the picture that shows a finding.
export function pictureOf(run, finding) {
  const link = finding.link ?? {};
  const [layer] = partsOf(finding.site ?? "");
  const view = link.view ?? (finding.site ? "layers" : "overview");
  return linkTo(view, run.id, { number: link.number, site: link.site ?? finding.site, step: link.step ?? finding.first_step ?? finding.step }, view === "layer" ? layer : "");
}

export function card(run, finding, brief = false) {
  const step = finding.first_step ?? finding.step;
  const [layer, port] = partsOf(finding.site ?? "");
  const where = [finding.site ? make("a", { href: linkTo("layer", run.id, { number: finding.link?.number, step }, layer) }, layer || "(root)") : "the whole training", port ? make("span", { class: "quiet" }, ` ${port}`) : null];
  const evidence = (finding.evidence ?? []).map((each) => [make("dt", null, each.name), make("dd", null, plain(each.value))]);
  return make("article", { class: `finding ${finding.severity}${brief ? " brief" : ""}` },
    make("div", { class: "what" }, badge(finding.severity, ""), make("div", null, make("h3", null, finding.message ?? finding.text), make("p", null, where, make("span", { class: "quiet" }, step === null || step === undefined || step < 0 ? "" : ` · from step ${whole(step)}`)))),
    brief ? null : [
      evidence.length ? make("dl", { class: "evidence" }, evidence) : null,
      finding.advice ? make("p", { class: "advice" }, make("strong", null, "What to do: "), finding.advice) : null,
      make("p", { class: "quiet small" }, `rule ${finding.rule}`, finding.condition ? `: ${finding.condition}` : "", finding.source ? ` (${finding.source})` : "", finding.call >= 0 ? ` · call ${finding.call}` : ""),
    ],
    make("a", { class: "button", href: pictureOf(run, finding), "aria-label": `See it: ${finding.message ?? finding.text}` }, "See it"));
}

// What the rules could not judge, and what the training said that is of no rule.
function besides(run, { told = [], not_judged: missing = [] }) {
  return [
    told.length ? [make("h2", null, "Said by the training itself"), make("div", { class: "findings" }, told.map((each) => card(run, each)))] : null,
    missing.length
      ? make("details", null, make("summary", null, `${many(missing.length, "rule")} could not judge: what they need was not recorded`),
        make("dl", { class: "evidence" }, missing.map(({ rule, needs }) => [make("dt", null, rule), make("dd", null, needs)])))
      : null,
  ];
}

export async function findingsView({ root, source, run, isShown }) {
  let every = false;
  async function read() {
    const answer = await source.ask(run.id, "findings", every ? { every: 1 } : {});
    if (!isShown()) return;
    const { findings, complete } = answer;
    const order = { bad: 0, warn: 1, note: 2 };
    const sorted = [...findings].sort((one, other) => (order[one.severity] ?? 3) - (order[other.severity] ?? 3) || (one.first_step ?? one.step) - (other.first_step ?? other.step));
    const judged = `The rules judged ${typeof run.last === "number" ? `all logged steps up to step ${whole(run.last)}` : "no step yet"} and found nothing wrong.`;
    const live = "These are the alerts that the training wrote while it ran; the run has so many rows that judging all of them anew takes a while.";
    fill(root,
      sorted.length
        ? make("div", { class: "bar" }, make("h1", null, many(findings.length, "finding")), make("p", { class: "quiet" }, "the worst first, then by step"))
        : notice("No findings", complete ? judged : "The training itself wrote no alert while it ran."),
      complete ? "" : make("p", { class: "quiet" }, live, " ", source.isLive ? make("button", { onclick: judgeAll }, "Judge every row") : null),
      make("div", { class: "findings" }, sorted.map((finding) => card(run, finding))),
      besides(run, answer));
  }
  async function judgeAll() {
    every = true;
    fill(root, notice("Judging every row", "This can take a minute for a million rows."));
    await read();
  }
  await read();
  return { refresh: read };
}
