// The findings as they came about: each root and what follows from it is one sentence in time, whose clauses move the cursor.
import { linkTo } from "./address.js";
import { make, many, whole } from "./dom.js";
import { storyOf } from "./findings.js";

const FEW_CLAUSES = 4; // of a sentence: the others are folded
const FEW_SENTENCES = 2;
const LONGEST = 110; // letters of a clause; all of them stand in its title

export const beginningOf = (finding) => finding.first_step ?? finding.step;

// What a clause says: the message of a finding without its step, which stands before it, and without its further places.
export function clauseOf(message) {
  const said = message.replace(/^step [\d,]+: /, "").replace(/ \(also [^)]*\)/, "");
  return said.length <= LONGEST ? said : `${said.slice(0, LONGEST).replace(/\s+\S*$/, "")} …`;
}

// The steps around the place where something began: a fifth of the training before it, a tenth after it. Of steps from which on all
// is NaN a few are left at the end: the others are folded away.
export function aroundOnset(onset, first, last, tail = null) {
  const wide = Math.max(last - first, 1);
  const [from, to] = [Math.max(onset - 0.2 * wide, first), Math.min(onset + 0.1 * wide, last)];
  if (tail === null || tail >= to) return [from, to];
  const end = Math.max(tail, onset);
  return [from, Math.min(to, end + Math.max(0.15 * (end - from), 2))];
}

const arrow = () => make("span", { class: "arrow" }, "→ ");

function clause(finding, go, isFirst = false) {
  const step = beginningOf(finding);
  const words = finding.message ?? finding.text;
  return [
    make(
      "button",
      { class: `clause ${finding.severity}`, title: words, onclick: () => go(finding) },
      isFirst ? null : arrow(),
      step >= 0 ? make("b", null, `step ${whole(step)}: `) : null,
      clauseOf(words),
    ),
    " ",
  ];
}

// The root, what follows first, and what came last, as a NaN does: what lies between is folded.
function sentence({ root, behind }, go) {
  const isLong = behind.length > FEW_CLAUSES - 1;
  const [shown, folded, end] = isLong
    ? [behind.slice(0, FEW_CLAUSES - 2), behind.slice(FEW_CLAUSES - 2, -1), behind.slice(-1)]
    : [behind, [], []];
  const rest = make("span", null);
  const more = make(
    "button",
    { class: "clause more", onclick: () => rest.replaceChildren(...folded.flatMap((each) => clause(each, go))) },
    arrow(),
    `${whole(folded.length)} more `,
  );
  if (isLong) rest.append(more);
  return make("p", { class: "sentence" }, [
    clause(root, go, true),
    shown.map((each) => clause(each, go)),
    rest,
    end.map((each) => clause(each, go)),
  ]);
}

// Return the story of a run. `go(finding)` moves the cursor to a clause; `begin(finding)` shows the steps around the first root.
export function storyOfRun(run, findings, { go, begin }) {
  const told = storyOf(findings);
  if (!told.length) return null;
  const shown = told.slice(0, FEW_SENTENCES);
  const [{ root }] = told;
  const left = findings.length - shown.reduce((sum, { behind }) => sum + 1 + behind.length, 0);
  return make(
    "div",
    { class: "story" },
    shown.map((each) => sentence(each, go)),
    root.advice ? make("p", { class: "advice" }, make("strong", null, "What to do: "), root.advice) : null,
    make(
      "p",
      { class: "ways" },
      beginningOf(root) >= 0 ? make("button", { onclick: () => begin(root) }, "Where it began") : null,
      make(
        "a",
        { href: linkTo("findings", run.id) },
        left > 0 ? `${many(left, "finding")} more, with all evidence` : "the evidence",
      ),
    ),
  );
}
