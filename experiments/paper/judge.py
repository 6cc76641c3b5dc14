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
POINT = 0.01


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
    """Yes at the number or above, partly within two points of it."""
    accuracy, ci95 = row["accuracy"], row.get("ci95") or 0.0
    verdict: Verdict = "yes" if accuracy + ci95 >= wanted else "partly" if accuracy + 2 * POINT >= wanted else "no"
    return judged(verdict, f"{percent(accuracy)} against {percent(wanted)}", row)


def comparable(rows: list[Row], best: dict[int, float]) -> Judgement:
    """Yes if every cell (by shots) is within two points of the best published one."""
    near = [row for row in rows if row["accuracy"] + 2 * POINT >= best[row["shot"]]]
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
    """Yes below 0.05 rows per class in the last quarter of the episode, partly below 0.25."""
    written = row["written_in_last_quarter_per_class"]
    verdict: Verdict = "yes" if written < 0.05 else "partly" if written < 0.25 else "no"
    return judged(
        verdict, f"{written:.3f} rows per class in the last quarter", row, "written_in_last_quarter_per_class"
    )


def uniform_at_start(row: Row) -> Judgement:
    """Yes if no class has more than twice 1/N on an empty memory, partly up to four times."""
    times = row["highest_at_start"] * row["way"]
    verdict: Verdict = "yes" if times <= 2 else "partly" if times <= 4 else "no"
    why = f"the most probable class has {row['highest_at_start']:.3f}, {times:.1f} times 1/N; learnt, not built in"
    return judged(verdict, why, row, "highest_at_start")


def confident_once_seen(row: Row) -> Judgement:
    """Yes at 0.9 or more for the true class once it was shown, partly at 0.7."""
    seen = row["truth_once_seen"]
    verdict: Verdict = "yes" if seen >= 0.9 else "partly" if seen >= 0.7 else "no"
    why = f"{seen:.2f} for the true class after its first example, {row['truth_at_end']:.2f} at the end"
    return judged(verdict, why, row, "truth_once_seen")


def uneven(row: Row) -> Judgement:
    """Yes if the rows per class vary by half of their mean, partly by a quarter."""
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
    """As good or better on the same episodes: yes unless clearly below, partly if within two points."""
    mean, ci95 = row[difference], row[f"{difference}_ci95"] or 0.0
    verdict: Verdict = "yes" if mean + ci95 >= 0 else "partly" if mean >= -2 * POINT else "no"
    why = (
        f"{percent(row['accuracy'])} against {percent(row[than])}: {100 * mean:+.1f} ± {100 * ci95:.1f} points, paired"
    )
    return judged(verdict, why, row, difference)


def passes_fixed_context(row: Row) -> Judgement:
    """Yes if 2,000 written beat the fixed context, partly if 5,000 do."""
    wanted = row["fixed_context"]
    at = {n: row[f"accuracy_at_{n}_written"] for n in (2000, 5000)}
    verdict: Verdict = "yes" if at[2000] >= wanted else "partly" if at[5000] >= wanted else "no"
    why = f"{percent(at[2000])} with 2,000 written, {percent(at[5000])} with 5,000, {percent(wanted)} with 5 of each class"
    return judged(verdict, why, row, "accuracy_at_2000_written")


def bimodal(row: Row) -> Judgement:
    """Yes if at most a tenth of the examples surprise by a quarter to three quarters of ln N, partly up to a quarter."""
    middle = row["surprise_between_quarter_and_three_quarters"]
    verdict: Verdict = "yes" if middle <= 0.1 else "partly" if middle <= 0.25 else "no"
    why = f"{percent(middle)} of the examples surprise by 0.25 to 0.75 ln N"
    return judged(verdict, why, row, "surprise_between_quarter_and_three_quarters")


def sigma_is_flat(rows: list[Row]) -> Judgement:
    """Yes if a range from at most 0.25 to at least 0.9 ln N is within two points of its best, partly a factor of two."""
    written = [row for row in rows if row["sigma_ratio"] > 0]
    best = max(written, key=lambda row: row["accuracy"])
    flat = [row["sigma_ratio"] for row in written if row["accuracy"] >= best["accuracy"] - 2 * POINT]
    wide = min(flat) <= 0.25 and max(flat) >= 0.9
    verdict: Verdict = "yes" if wide else "partly" if max(flat) >= 2 * min(flat) else "no"
    return judged(verdict, f"within two points of the best from {min(flat)} to {max(flat)} ln N", best)


def natural_sigma(rows: list[Row]) -> Judgement:
    """Yes if ln N is within three points of the best, and a larger σ loses ten points or more."""
    natural = next(row for row in rows if row["sigma_ratio"] == 1.0)
    best = max(row["accuracy"] for row in rows if row["sigma_ratio"] > 0)
    lowest = min(row["accuracy"] for row in rows if row["sigma_ratio"] > 1.0)
    near, tanks = natural["accuracy"] >= best - 3 * POINT, lowest <= natural["accuracy"] - 10 * POINT
    why = (
        f"{percent(natural['accuracy'])} with {natural['stored']:.0f} rows at ln N, the best is {percent(best)}, "
        f"the lowest beyond it {percent(lowest)}"
    )
    return judged(of_two(near, tanks), why, natural)


def everything_costs(rows: list[Row], times: tuple[float, float] = (4.0, 16.0)) -> Judgement:
    """Yes if writing everything gains at most five points over ln N, at about eight times (4 to 16) the memory."""
    everything = next(row for row in rows if row["sigma_ratio"] == 0.0)
    natural = next(row for row in rows if row["sigma_ratio"] == 1.0)
    gain, factor = natural["below_everything"], everything["stored"] / max(1.0, natural["stored"])
    why = f"{100 * gain:+.1f} points with {factor:.1f} times the rows of σ = ln N"
    return judged(of_two(0 <= gain <= 5 * POINT, times[0] <= factor <= times[1]), why, natural, "below_everything")


def stored_enough(row: Row, per_class: float, accuracy: float) -> Judgement:
    """Online transfer: yes at the accuracy with at most `per_class` rows per class, partly with more rows."""
    precise = row["accuracy"] + (row["ci95"] or 0.0) >= accuracy
    verdict: Verdict = "no" if not precise else "yes" if row["stored_per_class"] <= per_class else "partly"
    return judged(verdict, f"{percent(row['accuracy'])} with {row['stored_per_class']:.1f} rows per class", row)


def alike(rows: list[Row], ways: tuple[int, ...] = (20, 423, 1000)) -> Judgement:
    """Three decoders online: yes if at each of the paper's N they lie within two points, which is as much as its figure can
    tell; partly at some."""
    measured = {way: [row["accuracy"] for row in rows if row["way"] == way] for way in ways}
    apart = {way: max(some) - min(some) for way, some in measured.items() if len(some) == 3}
    near = [way for way, distance in apart.items() if distance <= 2 * POINT]
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
