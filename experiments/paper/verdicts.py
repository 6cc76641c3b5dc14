"""What each experiment shows: the paper's claims, our figures beside them, and whether they were reproduced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from experiments.paper.baselines_table import is_first, means
from experiments.paper.fixed_labels import ARCHITECTURE, RECIPE, extrapolated
from experiments.paper.results import Row
from experiments.paper.table1 import PAPER

Verdict = Literal["yes", "partly", "no", "–"]


@dataclass(frozen=True)
class Finding:
    """One claim and what became of it."""

    claim: str
    """What the paper says (or others have measured)."""
    ours: str
    reproduced: Verdict


def percent(row: Row, accuracy: str = "accuracy", interval: str = "ci95") -> str:
    spread = row.get(interval)
    return f"{100 * row[accuracy]:.1f}" + ("" if spread is None else f" ± {100 * spread:.1f}") + " %"


def _judged(held: int, of: int) -> Verdict:
    return "yes" if held == of else "partly" if held else "no"


def _cells(rows: list[Row], method: str) -> tuple[int, int]:
    """In how many of the paper's cells this method is at the paper's number or above, its interval allowed for."""
    paper = PAPER["APL (paper)"]
    ours = {(row["way"], row["shot"]): row for row in rows if row["method"] == method}
    reached = [cell for cell, row in ours.items() if 100 * (row["accuracy"] + (row["ci95"] or 0)) >= paper[cell]]
    return len(reached), len(ours)


CLAIM = "5-way 97.9 / 99.9, 20-way 97.2 / 97.6, 423-way 73.5 / 88.0, 1000-way 68.9 / 78.9 (1 / 5 shots)"


def _against_the_paper(rows: list[Row], methods: dict[str, str]) -> list[Finding]:
    findings = []
    for method, words in methods.items():
        cells = {(row["way"], row["shot"]): row for row in rows if row["method"] == method}
        if cells:
            reached, of = _cells(rows, method)
            pairs = [
                f"{way}-way "
                + " / ".join(f"{100 * cells[way, s]['accuracy']:.1f}" for s in (1, 5) if (way, s) in cells)
                for way in dict.fromkeys(way for way, _ in cells)
            ]
            said = f"{words}: {', '.join(pairs)}; {reached} of {of} cells reached"
            findings.append(Finding(CLAIM, said, _judged(reached, of)))
    return findings


def _table1(rows: list[Row]) -> list[Finding]:
    return _against_the_paper(rows, {"ours": "one model for all"})


def _fixed_labels(rows: list[Row]) -> list[Finding]:
    words = {
        ARCHITECTURE: "its encoder, started as a classifier and taught by ours, its decoder and labels",
        RECIPE: "everything from scratch through the decoder",
    }
    if reached := extrapolated(rows):
        words[RECIPE] += (
            f" ({reached['images_seen']:,} images; as its error falls, the paper's after {reached['images'] / 1e6:.0f} million)"
        )
    return _against_the_paper([row for row in rows if row["shot"]], words) + _fixed_decoders(rows)


def _fixed_decoders(rows: list[Row]) -> list[Finding]:
    """The three decoders with the paper's labels: two points apart at most, which is how well single episodes can tell."""
    said, apart = [], []
    for way, last in ((20, "accuracy_last_100"), (423, "accuracy_last_1000"), (1000, "accuracy_last_1000")):
        at = {row["decoder"]: row[last] for row in rows if row["way"] == way and row["shot"] == 0}
        if len(at) == 3:
            each = ", ".join(f"{decoder.replace('_', ' ')} {100 * a:.1f}" for decoder, a in at.items())
            said.append(f"{way}-way {each}")
            apart.append(max(at.values()) - min(at.values()) < 0.02)
    if not said:
        return []
    return [
        Finding("all three decoders alike", "online, at the end: " + "; ".join(said), _judged(sum(apart), len(apart)))
    ]


def _stored(rows: list[Row]) -> tuple[str, float]:
    last = next(key for key in rows[0] if key.startswith("accuracy_last_") and not key.endswith("ci95"))
    text = (
        f"{rows[0]['stored']:.1f} stored ({rows[0]['stored_per_class']:.2f} per class), "
        f"{percent(rows[0], last, last + '_ci95')} on the last {last.rsplit('_', 1)[1]}"
    )
    return text, rows[0][last] + (rows[0][last + "_ci95"] or 0)


def _online(rows: list[Row]) -> list[Finding]:
    held = rows[0]["stored_per_class"] < 2
    return [Finding("fewer than 2 stored per class when it saturates", _stored(rows)[0], "yes" if held else "no")]


def _per_class(rows: list[Row]) -> list[Finding]:
    text, accuracy = _stored(rows)
    return [
        Finding("44 stored in all, 98.5 % accuracy", text, _judged((rows[0]["stored"] <= 44) + (accuracy >= 0.985), 2))
    ]


def _posterior(rows: list[Row]) -> list[Finding]:
    before = max(row["highest_at_start"] for row in rows)
    after = [row["probability_of_truth"][-1] for row in rows]
    text = f"{before:.3f} for every class at first, {min(after):.2f} to {max(after):.2f} for the true one at the end"
    held = (before < 0.06) + (min(after) > 0.9)
    return [Finding("uniform at first, confident once the class was seen", text, _judged(held, 2))]


def _thousand_way(rows: list[Row]) -> list[Finding]:
    fixed, *online = rows
    ends, fewest = [], None
    for row in online:
        curve = zip(row["stored_curve"], row["accuracy_curve"], strict=True)
        passed = next((s for s, a in curve if a >= fixed["accuracy"]), None)
        fewest = min(filter(None, (fewest, passed)), default=None)
        more = f", the fixed context passed with {passed:.0f}" if passed else ""
        end = percent(row, "accuracy_last_1000", "accuracy_last_1000_ci95")
        ends.append(f"{end} with {row['stored']:.0f} (σ = {row['sigma_nats']:.2g} nats{more})")
    text = f"fixed context of 5000 {percent(fixed)}; online, at the end " + ", ".join(ends)
    held: Verdict = "no" if fewest is None else "yes" if fewest <= 2000 else "partly"
    return [Finding("2000 written beat the fixed context of 5000", text, held)]


def _mnist(rows: list[Row]) -> list[Finding]:
    one_shot = next(row for row in rows if row["decoder"] == "relational" and row["shot"] == 1)
    online = [row for row in rows if row["shot"] == 0][-1]
    text = f"{percent(one_shot)} at 1 shot; {percent(online)} online with {online['stored_per_class']:.0f} stored per class"
    held = (one_shot["accuracy"] >= 0.61) + (online["accuracy"] >= 0.86 and online["stored_per_class"] <= 45)
    return [Finding("61 % at 1 shot; 86 % online with 45 stored per class", text, _judged(held, 2))]


def _pens(rows: list[Row]) -> list[Finding]:
    said = []
    for drawings, way in dict.fromkeys((row["drawings"], row["way"]) for row in rows):
        at = {
            (r["checkpoint"], r["shot"]): 100 * r["accuracy"]
            for r in rows
            if (r["drawings"], r["way"]) == (drawings, way)
        }
        pair = " against ".join(f"{at[m, 1]:.1f} / {at[m, 5]:.1f}" for m in ("drawings", "omniglot"))
        said.append(f"{drawings} {way}-way {pair}")
    return [Finding("not in the paper: 1 / 5 shots, `drawings` against `omniglot`", "; ".join(said), "–")]


def _decoders(rows: list[Row]) -> list[Finding]:
    plain = [row for row in rows if row["way"] == 423 and row.get("rule", "plain") == "plain"]
    at = {row["decoder"]: row["accuracy_last_1000"] for row in plain}
    text = "423-way online: " + ", ".join(f"{name.replace('_', ' ')} {100 * a:.1f} %" for name, a in at.items())
    trained = [at[name] for name in ("relational", "working_memory", "lstm") if name in at]
    alike = len(trained) == 3 and max(trained) - min(trained) < 0.01
    return [Finding("all three decoders alike", text, "yes" if alike else "no")]


def _sigma(rows: list[Row]) -> list[Finding]:
    everything = rows[0]
    best = [row for row in rows if row["accuracy_last_100"] >= everything["accuracy_last_100"] - 0.02]
    least = min(best, key=lambda row: row["stored"])
    times = everything["stored"] / least["stored"]
    text = (
        f"σ = 0: {100 * everything['accuracy_last_100']:.1f} % with {everything['stored']:.0f} stored; "
        f"σ = {least['sigma_nats']:.2f}: {100 * least['accuracy_last_100']:.1f} % with {least['stored']:.0f} "
        f"({times:.1f} times fewer)"
    )
    claim = "flat over a wide range; σ = 0 slightly better at about 8 times the memory"
    return [Finding(claim, text, "yes" if times >= 6 else "partly" if times >= 2 else "no")]


def _continual(rows: list[Row]) -> list[Finding]:
    mean = {row["method"]: row for row in rows if row["task"] == "mean"}
    text = "; ".join(f"{method} {percent(row)}" for method, row in mean.items())
    ours, other = mean.get("ours, told the task"), mean.get("progressive network")
    held = ours and other and ours["accuracy"] + (ours["ci95"] or 0) >= other["accuracy"]
    return [Finding("as good as or better than a progressive network", text, "yes" if held else "no")]


def _lake(rows: list[Row]) -> list[Finding]:
    row = next(row for row in rows if row["runs"] == "the 20 runs")
    error = 100 * (1 - row["accuracy"])
    text = f"{error:.2f} ± {100 * (row['ci95'] or 0):.2f} % error, one stored drawing per character"
    claim = "not in the paper. People err in 4.5 %, BPL 3.3 %, attentive recurrent comparators 1.5 %; Polis and Ilin (2021) claim 0"
    return [Finding(claim, text, "–")]


IMAGENET_PAPER = {20: 0.867, 100: 0.729, 1000: 0.526}
IMAGENET_PAPER_ENCODER = 0.804


def _imagenet(rows: list[Row]) -> list[Finding]:
    findings = []
    for encoder in dict.fromkeys(row["encoder"] for row in rows):
        for method in dict.fromkeys(row["method"] for row in rows if row["encoder"] == encoder):
            ours = {row["way"]: row for row in rows if (row["encoder"], row["method"]) == (encoder, method)}
            shares = [f"{way}-way {row['share_of_encoder']:.2f} ({percent(row)})" for way, row in ours.items()]
            reached = [
                row["share_of_encoder"] >= IMAGENET_PAPER[way] / IMAGENET_PAPER_ENCODER for way, row in ours.items()
            ]
            said = f"{encoder}, {method}: {', '.join(shares)}"
            findings.append(Finding(IMAGENET_CLAIM, said, _judged(sum(reached), len(reached))))
    return findings


IMAGENET_CLAIM = (
    "share of the encoder's own top-1 (80.4 %): 20-way 1.08 (86.7 %), 100-way 0.91 (72.9 %), 1000-way 0.65 (52.6 %)"
)


def _analogy(rows: list[Row]) -> list[Finding]:
    findings = []
    ours = [row for row in rows if row["method"] == "ours"]
    if fixed := [row for row in ours if row["level"] == "fixed"]:
        held = fixed[0]["accuracy"] + (fixed[0]["ci95"] or 0) >= 0.976
        text = f"{percent(fixed[0])} (deduction decoder)"
        findings.append(Finding("fixed digits: 97.6 % with one example per symbol", text, "yes" if held else "no"))
    for symbols, words in (("one_hot", "one-hot symbols"), ("glyphs", "drawn symbols")):
        if shuffled := [row for row in ours if row["level"] == "shuffled" and row["symbols"] == symbols]:
            at = {row["seen"]: row for row in shuffled}
            text = f"deduction decoder, {words}: " + ", ".join(
                f"{percent(at[s])} after {s}" for s in (20, 50, 95) if s in at
            )
            beats = sum(row["accuracy"] > row["one_shot"] for row in shuffled)
            findings.append(Finding("shuffled: beats the one-shot line", text, _judged(beats, len(shuffled))))
            if 50 in at:
                enough = at[50]["accuracy"] >= 0.95
                text = f"{words}: {percent(at[50])} after 50 seen, {at[50]['stored']:.0f} stored"
                findings.append(Finding("about 50 stored items suffice", text, "yes" if enough else "no"))
    return findings + _paper_decoders([row for row in rows if row["method"] == "ours, the paper's decoder"])


def _paper_decoders(rows: list[Row]) -> list[Finding]:
    """The analogy task with the decoders the paper has; in training, rows may have been asked questions of their own."""
    findings = []

    def how(some: list[Row]) -> str:
        return "(* rows asked in training too) " if any(row.get("rows_asked_in_training") for row in some) else ""

    def name(row: Row) -> str:
        hops = "" if row["hops"] == 1 else ", two hops"
        asked = "*" if row.get("rows_asked_in_training") else ""
        return f"{row['decoder'].replace('_', ' ')}{asked} k = {row['k']}{hops}"

    if fixed := [row for row in rows if row["level"] == "fixed"]:
        text = how(fixed) + ", ".join(f"{name(row)} {percent(row)}" for row in fixed)
        held = sum(row["accuracy"] + (row["ci95"] or 0) >= 0.976 for row in fixed)
        findings.append(Finding("fixed digits, the paper's decoders: 97.6 %", text, _judged(held, len(fixed))))
    shuffled = [row for row in rows if row["level"] == "shuffled"]
    middle, ends = ([row for row in shuffled if row["seen"] == seen] for seen in (50, 95))
    if not ends:
        return findings
    text = ", ".join(
        f"{name(row)} {100 * row['accuracy']:.0f} / {100 * end['accuracy']:.0f}"
        for row, end in zip(middle, ends, strict=True)
    )
    best, *others = sorted((row for row in middle if row["hops"] == 1), key=lambda row: -row["accuracy"])
    is_best = best["decoder"] == "relational" and best["k"] == 16
    alike = len({bool(row.get("rows_asked_in_training")) for row in middle}) == 1
    clearly = all(row["accuracy"] < best["accuracy"] - (best["ci95"] or 0) for row in others)
    of_decoders: Verdict = "no" if not is_best else "yes" if alike and clearly else "partly"
    findings.append(
        Finding("relational decoder best at k = 16", f"{how(middle)}% after 50 / 95 seen: {text}", of_decoders)
    )
    most = [row for row in shuffled if name(row) == name(best)]
    above = sum(row["accuracy"] > row["one_shot"] for row in most)
    said = f"{name(best)}: at {above} of {len(most)} points of its curve"
    findings.append(Finding("the paper's decoder beats the one-shot line", said, _judged(above, len(most))))
    # The paper counts what was written to memory, not what was seen.
    full = [row for row in most if round(row["stored"]) <= 50][-1]
    enough = f"{name(best)}: {percent(best)} after 50 seen, {best['stored']:.0f} stored"
    if full is not best:
        enough += f"; {percent(full)} with {full['stored']:.0f} stored, {full['seen']} seen"
    verdict: Verdict = "yes" if full["accuracy"] >= 0.95 else "no"
    findings.append(Finding("the paper's decoder: about 50 stored items suffice", enough, verdict))
    return findings


def _baselines(rows: list[Row]) -> list[Finding]:
    claim = "not in the paper: ours is ahead of every other method in the mean over all cells"
    ranked = sorted(((m["mean"], name) for name, m in means(rows).items() if m["mean"] is not None), reverse=True)
    if not ranked:
        return [Finding(claim, "not yet measured", "–")]
    best = ", ".join(f"{name} {100 * value:.2f}" for value, name in ranked[:4])
    first = is_first(rows)
    verdict: Verdict = "–" if first is None else "yes" if first else "no"
    paired = "" if first is not None else " (paired differences not measured)"
    return [Finding(claim, f"{len(ranked)} methods fill every cell; the best: {best}{paired}", verdict)]


FINDINGS: dict[str, Callable[[list[Row]], list[Finding]]] = {
    "table1": _table1,
    "fixed-labels": _fixed_labels,
    "paper-form": lambda rows: [],
    "ablations": lambda rows: [],
    "online": _online,
    "posterior": _posterior,
    "per-class": _per_class,
    "thousand-way": _thousand_way,
    "mnist": _mnist,
    "pens": _pens,
    "decoders": _decoders,
    "sigma": _sigma,
    "continual": _continual,
    "lake": _lake,
    "imagenet": _imagenet,
    "analogy": _analogy,
    "baselines": _baselines,
}
