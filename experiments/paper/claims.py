"""results/claims.json: every claim of the paper, judged on the paper's form alone, with our extension beside it.

The paper's form is fixed labels, the paper's decoders from a random start, its rule for writing and its training: no hints, no
hand-set weights, nothing merged. Our extension is judged by the same functions. `python -m experiments report` writes the file from
the committed results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from apl.checkpoint import without_nan, write_json
from experiments.paper import judge
from experiments.paper.analogy import over_seeds
from experiments.paper.imagenet import ACTIVATIONS
from experiments.paper.judge import Judgement
from experiments.paper.paper_form import EXTENDED, PAPER_FORM
from experiments.paper.published import PAPER
from experiments.paper.results import Row, load_rows, result_path
from experiments.paper.tables import table

NAME = "claims"
FORM = "python -m experiments paper-form"
Find = Callable[[], list[Row]]
Judge = Callable[[list[Row]], Judgement]


@dataclass(frozen=True)
class Claim:
    """A claim, where its rows are found, and how they are judged."""

    claim: str
    experiment: str
    paper: str
    rows: Find
    judge: Judge
    command: str = FORM
    extended_rows: Find = list

    def judged(self) -> Judgement:
        if rows := self.rows():
            return self.judge(rows)
        return Judgement("not measured", f"no model of the paper's form was measured: {self.command}")

    def extended(self) -> Judgement | None:
        """None where our extension has no row for it."""
        rows = self.extended_rows()
        return self.judge(rows) if rows else None

    def as_json(self) -> dict[str, Any]:
        extended = self.extended()
        return {
            "claim": self.claim,
            "experiment": self.experiment,
            "paper": self.paper,
            "paper_form": judge.as_json(self.judged()),
            "extended": judge.as_json(extended) if extended else None,
            "command": self.command,
        }


def found(file: str, measure: str, shot: int | None = None) -> Find:
    return lambda: [row for row in load_rows(file) if row["measure"] == measure and shot in (None, row["shot"])]


def first(function: Callable[..., Judgement], *more: Any) -> Judge:
    return lambda rows: function(rows[0], *more)


def figure(claim: str, paper: str, measure: str, judged: Judge, *, shot: int | None = None, ours: bool = True) -> Claim:
    """A claim on one figure, measured the same way in both forms (or in the paper's alone)."""
    extended = found(EXTENDED, measure, shot) if ours else list
    return Claim(claim, measure, paper, found(PAPER_FORM, measure, shot), judged, extended_rows=extended)


def cell(way: int, shot: int) -> Claim:
    wanted = PAPER["APL (paper)"][way, shot]
    claim = f"{way}-way, {shot}-shot accuracy with a fixed context"
    return figure(claim, f"{wanted} %", f"table1-{way}way", first(judge.reached, wanted / 100), shot=shot)


def swept(claim: str, paper: str, judged: Judge) -> Claim:
    return Claim(claim, "sigma", paper, found(PAPER_FORM, "sigma"), judged)


def imagenet(way: int, percent: float) -> Claim:
    def rows(file: str, method: str) -> Find:
        return lambda: [r for r in load_rows(file) if (r["way"], r["method"]) == (way, method)]

    return Claim(
        f"ImageNet, {way}-way, labels shuffled, frozen encoder",
        "imagenet",
        f"{percent} %",
        rows("imagenet-plain", "the paper's form"),
        first(judge.reached, percent / 100),
        "python -m experiments imagenet-plain --train",
        rows("imagenet", ACTIVATIONS),
    )


def analogy(
    claim: str, paper: str, level: str, ks: tuple[int, ...], judged: Judge, decoders: tuple[str, ...] = ("relational",)
) -> Claim:
    """On rows under the rule of surprise, once all of these cells are measured. Our extension does not reason."""

    def rows() -> list[Row]:
        found = [
            row
            for row in load_rows("analogy")
            if row["level"] == level and row["k"] in ks and row["decoder"] in decoders and row["rule"] != "everything"
        ]
        trained = Counter((row["decoder"], row["k"]) for row in found)
        if len(trained) < len(ks) * len(decoders):
            return []
        # As many trainings of each cell as every cell has: differences are paired.
        return over_seeds([row for row in found if row["trained_seed"] < min(trained.values())])

    return Claim(claim, "analogy", paper, rows, judged, "python -m experiments analogy --train")


BEST_PUBLISHED = {1: 0.9764, 5: 0.9935}
"""SNAIL at 20-way, as the paper quotes it."""

CLAIMS = (
    *(cell(way, shot) for way in (5, 20, 423, 1000) for shot in (1, 5)),
    figure(
        "comparable to the state of the art with a fixed context, 20-way",
        "97.2 / 97.6 % against 97.64 / 99.35 % (SNAIL)",
        "table1-20way",
        lambda rows: judge.comparable(rows, BEST_PUBLISHED),
    ),
    figure(
        "5-way online: accuracy saturates with fewer than 2 examples stored per class",
        "fewer than 2",
        "online",
        first(judge.saturates),
    ),
    figure("5-way online: writing stops", "stops", "online", first(judge.stops_writing)),
    figure(
        "an empty memory gives a uniform posterior, which is learnt",
        "p ≈ 1/N",
        "posterior",
        first(judge.uniform_at_start),
        ours=False,
    ),
    figure(
        "the posterior becomes confident once an example of the class was seen",
        "very confident",
        "posterior",
        first(judge.confident_once_seen),
    ),
    figure(
        "20-way: very different numbers of examples are stored per class",
        "highly heterogeneous",
        "per-class",
        first(judge.uneven),
    ),
    figure(
        "20-way online: 44 stored, 98.5 %",
        "44 rows, 98.5 %",
        "per-class",
        first(judge.stored_and_accurate, 44.0, 0.985),
    ),
    figure(
        "20-way online: more accurate than five examples of each class",
        "98.5 % against 97.6 %",
        "per-class",
        first(judge.above, "above_homogeneous", "homogeneous_five_shot"),
    ),
    figure(
        "1000-way: 2,000 written surpass the fixed context of 5 per class",
        "2,000 against 5,000",
        "thousand-way",
        first(judge.passes_fixed_context),
    ),
    figure("MNIST, 10-way, 1-shot, trained on 20-way Omniglot", "61 %", "mnist", first(judge.reached, 0.61), shot=1),
    figure(
        "MNIST online: 86 % after 45 stored per class",
        "86 % with 45 per class",
        "mnist",
        first(judge.stored_enough, 45.0, 0.86),
        shot=0,
    ),
    imagenet(20, 86.7),
    imagenet(100, 72.9),
    imagenet(1000, 52.6),
    analogy("analogy, fixed digits", "97.6 %", "fixed", (8,), first(judge.reached, 0.976)),
    analogy(
        "analogy, shuffled: k = 8 and 16 beat the one-shot line", "both", "shuffled", (8, 16), judge.beats_one_shot
    ),
    analogy("analogy, shuffled: 50 stored suffice", "50 of 100", "shuffled", (16,), first(judge.suffices)),
    analogy(
        "analogy, shuffled: relational decoder best at k = 16",
        "best of three",
        "shuffled",
        (16,),
        judge.relational_best,
        ("relational", "working_memory", "lstm"),
    ),
    Claim(
        "all three decoders classify alike (20-, 423- and 1000-way)",
        "decoders",
        "alike",
        found(PAPER_FORM, "decoders"),
        judge.alike,
        "apl train paper-relational-20way and the other eight, then " + FORM,
    ),
    swept("σ: memory and accuracy are flat over a wide range", "flat", judge.sigma_is_flat),
    swept(
        "σ = ln N is near the best; a larger σ stops the writing and accuracy collapses",
        "5.2 at 200-way",
        judge.natural_sigma,
    ),
    swept("σ = 0 is slightly better at about 8 times the memory", "8 times", judge.everything_costs),
    figure("after training surprise is bimodal", "highly bimodal", "per-class", first(judge.bimodal)),
    figure(
        "continual learning: as good as or better than a progressive network",
        "as well or better",
        "continual",
        first(judge.not_below, "above_progressive", "progressive_network"),
    ),
)


def write_claims() -> None:
    write_json(result_path(NAME), without_nan({"name": NAME, "claims": [claim.as_json() for claim in CLAIMS]}))


def claims_table() -> str:
    """The README's table: one line per claim."""
    lines = []
    for claim in CLAIMS:
        said, extended = claim.judged(), claim.extended()
        why = "–" if said.verdict == "not measured" else said.why
        lines.append([claim.claim, claim.paper, why, said.verdict, extended.verdict if extended else "–"])
    return table(["claim", "the paper", "the paper's form", "reproduced", "our extension"], lines)


def extended_table() -> str:
    """The same claims, where our extension has a row."""
    lines = [[c.claim, c.paper, said.why, said.verdict] for c in CLAIMS if (said := c.extended())]
    return table(["claim", "the paper", "our extension", "reproduced"], lines)
