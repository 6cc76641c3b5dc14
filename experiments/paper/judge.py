"""Verdicts on the paper's claims: each function looks at measured rows and says yes, partly or no, and why.

They read rows of `results/paper-form.json` (`experiments.paper.paper_form`) and of files with the same columns. A value counts
as reached where its 95 % interval reaches it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from apl.evaluate import Estimate
from experiments.paper.results import Row

Verdict = Literal["yes", "partly", "no", "not measured"]
COMPARABLE = 0.0175
"""The paper calls 97.6 % comparable to the state of the art's 99.35 %: what it means by the word."""


@dataclass(frozen=True)
class Judgement:
    """A measured value and what it says of a claim."""

    verdict: Verdict
    why: str
    value: float | None = None
    ci95: float | None = None
    n: int | None = None
    """Episodes."""
    seeds: int | None = None
    """Trainings of the model."""


def judged(verdict: Verdict, why: str, row: Row, value: str = "accuracy") -> Judgement:
    ci95 = row.get("ci95" if value == "accuracy" else f"{value}_ci95")
    return Judgement(verdict, why, row[value], ci95, row.get("episodes"), row.get("trained_seeds", 1))


def of_two(first: bool, second: bool) -> Verdict:
    return "yes" if first and second else "partly" if first or second else "no"


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def reached(row: Row, wanted: float) -> Judgement:
    """Yes at the number or above, its interval allowed for; partly if comparable with it."""
    accuracy, ci95 = row["accuracy"], row.get("ci95") or 0.0
    verdict: Verdict = "yes" if accuracy + ci95 >= wanted else "partly" if accuracy + COMPARABLE >= wanted else "no"
    return judged(verdict, f"{percent(accuracy)} against {percent(wanted)}", row)


def comparable(rows: list[Row], best: dict[int, float]) -> Judgement:
    """Yes if every cell (by shots) is as near to the best published one as the paper's farther cell is."""
    near = [row for row in rows if row["accuracy"] + COMPARABLE >= best[row["shot"]]]
    verdict: Verdict = "yes" if len(near) == len(rows) else "partly" if near else "no"
    said = ", ".join(
        f"{row['shot']}-shot {percent(row['accuracy'])} against {percent(best[row['shot']])}" for row in rows
    )
    return judged(verdict, said, rows[0])


def saturates(row: Row, limit: float = 2.0) -> Judgement:
    """Yes if fewer than `limit` are stored per class and accuracy no longer rises; partly if it still does."""
    few = row["stored_per_class"] + (row["stored_per_class_ci95"] or 0.0) < limit
    rise = row["accuracy_last_quarter"] - row["accuracy_third_quarter"]
    flat = rise <= (row["accuracy_last_quarter_ci95"] or 0.0)
    verdict: Verdict = "no" if not few else "yes" if flat else "partly"
    why = f"{row['stored_per_class']:.2f} stored per class; accuracy {percent(row['accuracy_last_quarter'])} in the last quarter"
    return judged(verdict, why, row, "stored_per_class")


def stops_writing(row: Row) -> Judgement:
    """Yes if most episodes write nothing in their last quarter, so less than half a row on average; partly if that quarter
    writes less than a tenth of all that is stored: writing has slowed down."""
    written = row["written_in_last_quarter_per_class"]
    slowed = written < 0.1 * row["stored_per_class"]
    verdict: Verdict = "yes" if written * row["way"] < 0.5 else "partly" if slowed else "no"
    return judged(
        verdict, f"{written * row['way']:.2f} rows in the last quarter", row, "written_in_last_quarter_per_class"
    )


def uniform_at_start(row: Row) -> Judgement:
    """Yes if no class is more than one bit from uniform on an empty memory (twice 1/N), partly up to two bits."""
    times = row["highest_at_start"] * row["way"]
    verdict: Verdict = "yes" if times <= 2 else "partly" if times <= 4 else "no"
    learnt = "learnt" if row.get("labels") == "fixed" else "by construction"
    why = f"the most probable class has {row['highest_at_start']:.3f}, {times:.1f} times 1/N; {learnt}"
    return judged(verdict, why, row, "highest_at_start")


def confident_once_seen(row: Row) -> Judgement:
    """Yes ("very confident") if all other classes together are left a tenth once the class was shown, partly if the class is
    at least more probable than all others together."""
    seen = row["truth_once_seen"]
    verdict: Verdict = "yes" if seen >= 0.9 else "partly" if seen > 0.5 else "no"
    why = f"{seen:.2f} for the true class after its first example, {row['truth_at_end']:.2f} at the end"
    return judged(verdict, why, row, "truth_once_seen")


def uneven(row: Row) -> Judgement:
    """Yes ("highly heterogeneous") if the standard deviation is half of the mean: a class with many rows then has three times
    as many as one with few. Partly at a quarter of the mean."""
    spread = row["spread_over_classes"]
    verdict: Verdict = "yes" if spread >= 0.5 else "partly" if spread >= 0.25 else "no"
    why = (
        f"{row['least_of_a_class']:.1f} to {row['most_of_a_class']:.1f} rows per class; "
        f"standard deviation {spread:.2f} of the mean"
    )
    return judged(verdict, why, row, "spread_over_classes")


def stored_and_accurate(row: Row, stored: float, accuracy: float) -> Judgement:
    """Yes if both hold: at most as many rows, at least the accuracy."""
    precise = row["accuracy"] + (row["ci95"] or 0.0) >= accuracy
    why = f"{percent(row['accuracy'])} with {row['stored']:.1f} rows"
    return judged(of_two(row["stored"] <= stored, precise), why, row)


def above(row: Row, difference: str, than: str) -> Judgement:
    """Better than something on the same episodes: yes beyond the interval, partly if the interval includes zero."""
    mean, ci95 = row[difference], row[f"{difference}_ci95"] or 0.0
    verdict: Verdict = "yes" if mean > ci95 else "no" if mean < -ci95 else "partly"
    why = (
        f"{percent(row['accuracy'])} against {percent(row[than])}: {100 * mean:+.1f} ± {100 * ci95:.1f} points, paired"
    )
    return judged(verdict, why, row, difference)


def not_below(row: Row, difference: str, than: str) -> Judgement:
    """As good or better on the same episodes: yes unless clearly below, partly if comparable."""
    mean, ci95 = row[difference], row[f"{difference}_ci95"] or 0.0
    verdict: Verdict = "yes" if mean + ci95 >= 0 else "partly" if mean >= -COMPARABLE else "no"
    why = (
        f"{percent(row['accuracy'])} against {percent(row[than])}: {100 * mean:+.1f} ± {100 * ci95:.1f} points, paired"
    )
    return judged(verdict, why, row, difference)


def passes_fixed_context(row: Row) -> Judgement:
    """Yes if 2,000 written beat the fixed context, partly if it takes as many as that holds. Who never writes as many is judged
    with what is written in the end."""
    wanted = row["fixed_context"]
    at = {n: row[f"accuracy_at_{n}_written"] for n in (2000, 5000)}
    verdict: Verdict = "yes" if at[2000] >= wanted else "partly" if at[5000] >= wanted else "no"
    reached = {min(n, round(row["stored"])): accuracy for n, accuracy in at.items()}
    said = ", ".join(f"{percent(accuracy)} with {n:,} written" for n, accuracy in reached.items())
    return judged(verdict, f"{said}; {percent(wanted)} with 5 of each class", row, "accuracy_at_2000_written")


def bimodal(row: Row) -> Judgement:
    """Half of the range, from a quarter to three quarters of ln N, would hold half of the examples if surprise were spread
    evenly. Yes if it holds a fifth of that, partly if half of that."""
    middle = row["surprise_between_quarter_and_three_quarters"]
    verdict: Verdict = "yes" if middle <= 0.1 else "partly" if middle <= 0.25 else "no"
    why = f"{percent(middle)} of the examples surprise by 0.25 to 0.75 ln N"
    return judged(verdict, why, row, "surprise_between_quarter_and_three_quarters")


def sigma_is_flat(rows: list[Row]) -> Judgement:
    """The widest range of σ with comparable accuracy and a memory that varies by less than a factor of two. Yes if it reaches from
    a quarter of ln N to nearly ln N, partly if it covers a factor of two."""
    written = [row for row in rows if row["sigma_ratio"] > 0]
    best = max(written, key=lambda row: float(row["accuracy"]))
    flat = [
        row
        for row in written
        if row["accuracy"] >= best["accuracy"] - COMPARABLE
        and 0.5 * best["stored"] < row["stored"] < 2 * best["stored"]
    ]
    low, high = min(row["sigma_ratio"] for row in flat), max(row["sigma_ratio"] for row in flat)
    verdict: Verdict = "yes" if low <= 0.25 and high >= 0.9 else "partly" if high >= 2 * low else "no"
    stored = sorted(row["stored"] for row in flat)
    why = f"comparable from {low} to {high} ln N, with {stored[0]:.0f} to {stored[-1]:.0f} rows"
    return judged(verdict, why, best)


def natural_sigma(rows: list[Row]) -> Judgement:
    """Yes if ln N is comparable with the best σ, and beyond it accuracy "tanks": less than half is left."""
    natural = next(row for row in rows if row["sigma_ratio"] == 1.0)
    best = max(row["accuracy"] for row in rows if row["sigma_ratio"] > 0)
    lowest = min(row["accuracy"] for row in rows if row["sigma_ratio"] > 1.0)
    near, tanks = natural["accuracy"] >= best - COMPARABLE, lowest <= natural["accuracy"] / 2
    why = (
        f"{percent(natural['accuracy'])} with {natural['stored']:.0f} rows at ln N, the best is {percent(best)}, "
        f"the lowest beyond it {percent(lowest)}"
    )
    return judged(of_two(near, tanks), why, natural)


def everything_costs(rows: list[Row], times: float = 8.0) -> Judgement:
    """Yes if writing everything is "slightly" better than ln N (but comparable), at "roughly" 8 times the memory: half to double."""
    everything = next(row for row in rows if row["sigma_ratio"] == 0.0)
    natural = next(row for row in rows if row["sigma_ratio"] == 1.0)
    gain, factor = natural["below_everything"], everything["stored"] / max(1.0, natural["stored"])
    why = f"{100 * gain:+.1f} points with {factor:.1f} times the rows of σ = ln N"
    slightly, roughly = 0 <= gain <= COMPARABLE, times / 2 <= factor <= 2 * times
    return judged(of_two(slightly, roughly), why, natural, "below_everything")


def stored_enough(row: Row, per_class: float, accuracy: float) -> Judgement:
    """Online transfer: yes at the accuracy with at most `per_class` rows per class, partly with more rows."""
    precise = row["accuracy"] + (row["ci95"] or 0.0) >= accuracy
    verdict: Verdict = "no" if not precise else "yes" if row["stored_per_class"] <= per_class else "partly"
    return judged(verdict, f"{percent(row['accuracy'])} with {row['stored_per_class']:.1f} rows per class", row)


def alike(rows: list[Row], ways: tuple[int, ...] = (20, 423, 1000)) -> Judgement:
    """Three decoders online: yes if at each of the paper's N they are comparable; partly at some."""
    measured = {way: [row["accuracy"] for row in rows if row["way"] == way] for way in ways}
    apart = {way: max(some) - min(some) for way, some in measured.items() if len(some) == 3}
    near = [way for way, distance in apart.items() if distance <= COMPARABLE]
    verdict: Verdict = "yes" if len(near) == len(ways) else "partly" if near else "no"
    said = [f"{100 * apart[way]:.1f} points apart at {way}-way" for way in apart]
    missing = [f"{way}-way not measured" for way in ways if way not in apart]
    return judged(verdict, ", ".join(said + missing), rows[0])


def beats_one_shot(rows: list[Row]) -> Judgement:
    """The analogy task, one row for each k: yes if every one is above the one-shot line over the whole episode, beyond its
    interval; partly if some are. The paper's "outperform" speaks of the curve as a whole, not of each of its points."""
    higher = [row for row in rows if row["above_one_shot"] > (row["above_one_shot_ci95"] or 0.0)]
    verdict: Verdict = "yes" if len(higher) == len(rows) else "partly" if higher else "no"
    why = ", ".join(f"k = {row['k']}: {100 * row['above_one_shot']:+.1f} points" for row in rows)
    return judged(verdict, f"{why} against the line, mean over the episode", rows[-1], "above_one_shot")


def suffices(row: Row, stored: float = 50.0, accuracy: float = 0.9) -> Judgement:
    """The analogy task, "generalize using 50 examples written": yes if nine of ten never-seen combinations are answered with at
    most 50 rows. Partly if with these rows it answers more than the 50 % that a perfect one-shot learner with 50 rows would: it
    concludes something that it was not told."""
    within = [point for point in row["curve"] if point["stored"] <= stored]
    best = max(within, key=lambda point: float(point["accuracy"]))
    concludes = best["accuracy"] - (best["ci95"] or 0.0) > stored / 100
    verdict: Verdict = "yes" if best["accuracy"] >= accuracy else "partly" if concludes else "no"
    why = f"{percent(best['accuracy'])} with {best['stored']:.0f} rows, {best['seen']} seen"
    found = row | {"accuracy": best["accuracy"], "ci95": best["ci95"]}
    return judged(verdict, why, found)


def relational_best(rows: list[Row]) -> Judgement:
    """The analogy task at k = 16: yes if relational is ahead of both others beyond the interval of the paired difference, partly
    if it is ahead but an interval includes zero."""
    ours = next(row for row in rows if row["decoder"] == "relational")
    others = [row for row in rows if row["decoder"] != "relational"]
    leads = [Estimate.of_difference(ours["samples"], other["samples"]) for other in others]
    ahead = all(lead.mean > 0 for lead in leads)
    verdict: Verdict = "no" if not ahead else "yes" if all(lead.excludes_zero for lead in leads) else "partly"
    said = ", ".join(f"{other['decoder'].replace('_', ' ')} {percent(other['accuracy'])}" for other in others)
    return judged(verdict, f"relational {percent(ours['accuracy'])}, {said} over the second half", ours)


def as_json(judgement: Judgement) -> dict[str, Any]:
    return dict(vars(judgement))
