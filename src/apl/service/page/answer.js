// An answer in words and shares that agree: whether it is something new at all, and if not, which of the known names.

import { percent } from "./elements.js";

const BARS = 6;
const SURELY = 0.9;

export const isNew = (found) => !found.probabilities.length || found.probability_new > 0.5;

// Shares of everything, so that they add up to one with "something new".
export function shares(found) {
  const known = 1 - found.probability_new;
  const items = found.probabilities.slice(0, BARS).map(({ label, probability }) => ({ label: String(label), probability: known * probability }));
  const rest = known - items.reduce((sum, item) => sum + item.probability, 0);
  if (found.probabilities.length > BARS) items.push({ label: "others", probability: Math.max(0, rest), kind: "others" });
  return [...items, { label: "something new", probability: found.probability_new, kind: "new" }];
}

// From this number of examples on a set of labels says something; before, it holds every label.
const ENOUGH = 9;
const NAMED = 3;

// What it says, and what a click on each answer would teach: `agree` for yes (null: a new name), `deny` for no (null: ask which),
// `others` for the further names it is torn between.
export function words(found, set = null) {
  const best = found.probabilities[0];
  if (!best) return { verdict: "Something new: it knows no names yet.", live: "something new" };
  const share = (1 - found.probability_new) * best.probability;
  if (isNew(found) || (set?.examples >= ENOUGH && !set.labels.length)) {
    return {
      verdict: `Something new? If not, ${best.label}.`, live: `something new ${percent(found.probability_new)}`,
      yes: "Yes, new: name it", agree: null, no: `No: it is ${best.label}`, deny: best.label, others: [],
    };
  }
  const live = `${best.label} ${percent(share)}`;
  if (set?.examples >= ENOUGH && set.labels.length + set.new > 1) {
    const [first, ...others] = set.labels.slice(0, NAMED), many = set.labels.length > NAMED;
    const parts = [first, ...others, ...(set.new ? ["something new"] : many ? ["another"] : [])];
    return {
      verdict: `${many ? "Not sure: " : ""}${parts.slice(0, -1).join(", ")} or ${parts.at(-1)}.`, live,
      yes: `✓ ${first}`, agree: first, no: "✗ No", deny: null, others,
    };
  }
  const sure = share > (set?.examples >= ENOUGH ? 0.5 : SURELY);
  return {
    verdict: sure ? `${best.label}.` : `${best.label}, perhaps (${percent(share)}).`, live,
    yes: `✓ Yes: ${best.label}`, agree: best.label, no: "✗ No", deny: null, others: [],
  };
}

// What the last lesson did, and why. Surprise is measured among the known names, whether it looked new or not.
export function lessonInWords(receipt) {
  if (receipt.new_label) return `“${receipt.label}” is a new name, and new names are always written: row ${receipt.row}.`;
  const more = receipt.surprise_nats > receipt.threshold_nats ? "more" : "less";
  const named = `Among the names it knows, “${receipt.label}” had ${percent(receipt.probability)}`;
  const nats = `${named}: a surprise of ${receipt.surprise_nats.toFixed(2)} nats, ${more} than the threshold of ${receipt.threshold_nats.toFixed(2)}`;
  if (receipt.written) return `${nats}. Written as row ${receipt.row}.`;
  return receipt.merged_into ? `${nats}. Merged into row ${receipt.merged_into}.` : `${nats}. Nothing was written.`;
}
