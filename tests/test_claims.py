"""Every verdict function with made-up rows that come out yes, partly and no; and the file of claims made of them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.paper import judge
from experiments.paper.claims import CLAIMS, Claim, claims_table
from experiments.paper.judge import Judgement

ROOT = Path(__file__).parents[1]
Row = dict[str, Any]


def row(**figures: Any) -> Row:
    return {"accuracy": 0.9, "ci95": 0.01, "episodes": 20, "way": 20, **figures}


def online(stored: float, rise: float, written: float = 0.0) -> Row:
    return row(
        way=5,
        stored_per_class=stored,
        stored_per_class_ci95=0.05,
        accuracy_third_quarter=0.9,
        accuracy_last_quarter=0.9 + rise,
        accuracy_last_quarter_ci95=0.01,
        written_in_last_quarter_per_class=written,
    )


def posterior(start: float, seen: float) -> Row:
    return row(highest_at_start=start, truth_once_seen=seen, truth_at_end=seen)


def per_class(spread: float = 0.6, stored: float = 40, accuracy: float = 0.99, middle: float = 0.0) -> Row:
    return row(
        accuracy=accuracy,
        spread_over_classes=spread,
        least_of_a_class=1.0,
        most_of_a_class=4.0,
        stored=stored,
        surprise_between_quarter_and_three_quarters=middle,
    )


def paired(difference: float) -> Row:
    return row(lead=difference, lead_ci95=0.01, other=0.9 - difference)


def curve(at_2000: float, at_5000: float) -> Row:
    return row(fixed_context=0.8, stored=6000.0, accuracy_at_2000_written=at_2000, accuracy_at_5000_written=at_5000)


def sweep(accuracy: dict[float, float], stored: dict[float, float] | None = None) -> list[Row]:
    return [
        row(
            sigma_ratio=ratio,
            accuracy=a,
            stored=(stored or {}).get(ratio, 100.0),
            below_everything=accuracy.get(0.0, 0.9) - a,
        )
        for ratio, a in accuracy.items()
    ]


def decoders(*accuracies: float, way: int = 20) -> list[Row]:
    return [row(accuracy=a, way=way, decoder=d) for a, d in zip(accuracies, ("relational", "lstm", "rmc"), strict=True)]


def above_line(*points: float) -> list[Row]:
    return [row(k=8, above_one_shot=p, above_one_shot_ci95=0.01) for p in points]


def solved(accuracy: float, stored: float = 40) -> Row:
    """A curve whose last point is cheap to have: everything seen and stored."""
    points = [(accuracy, stored, 60), (0.99, 90, 95)]
    return row(curve=[{"accuracy": a, "ci95": 0.01, "stored": s, "seen": n} for a, s, n in points])


def sampled(**means: float) -> list[Row]:
    return [row(accuracy=m, decoder=d, samples=[m - 0.01, m + 0.01, m]) for d, m in means.items()]


WIDE = {0.0: 0.945, 0.1: 0.92, 0.25: 0.93, 0.5: 0.93, 0.9: 0.93, 1.0: 0.93, 1.5: 0.3}
CASES: dict[str, tuple[Callable[[Any], Judgement], Any, Any, Any]] = {
    "reached": (lambda r: judge.reached(r, 0.95), row(accuracy=0.945), row(accuracy=0.935), row(accuracy=0.93)),
    "comparable": (
        lambda rows: judge.comparable(rows, {1: 0.97, 5: 0.99}),
        [row(shot=1, accuracy=0.96), row(shot=5, accuracy=0.98)],
        [row(shot=1, accuracy=0.90), row(shot=5, accuracy=0.98)],
        [row(shot=1, accuracy=0.90), row(shot=5, accuracy=0.92)],
    ),
    "saturates": (judge.saturates, online(1.4, 0.005), online(1.4, 0.05), online(1.98, 0.0)),
    "stops_writing": (judge.stops_writing, online(1.5, 0, 0.05), online(1.5, 0, 0.12), online(1.5, 0, 0.3)),
    "uniform_at_start": (judge.uniform_at_start, posterior(0.06, 1), posterior(0.15, 1), posterior(0.5, 1)),
    "confident_once_seen": (
        judge.confident_once_seen,
        posterior(0.05, 0.95),
        posterior(0.05, 0.8),
        posterior(0.05, 0.4),
    ),
    "uneven": (judge.uneven, per_class(0.6), per_class(0.3), per_class(0.1)),
    "stored_and_accurate": (
        lambda r: judge.stored_and_accurate(r, 44.0, 0.985),
        per_class(stored=40, accuracy=0.98),
        per_class(stored=40, accuracy=0.95),
        per_class(stored=50, accuracy=0.95),
    ),
    "above": (lambda r: judge.above(r, "lead", "other"), paired(0.02), paired(0.005), paired(-0.02)),
    "not_below": (lambda r: judge.not_below(r, "lead", "other"), paired(-0.005), paired(-0.015), paired(-0.05)),
    "passes_fixed_context": (judge.passes_fixed_context, curve(0.81, 0.9), curve(0.7, 0.81), curve(0.7, 0.75)),
    "bimodal": (judge.bimodal, per_class(middle=0.05), per_class(middle=0.2), per_class(middle=0.4)),
    "sigma_is_flat": (
        judge.sigma_is_flat,
        sweep(WIDE),
        sweep(WIDE | {0.1: 0.8, 0.25: 0.8}),
        sweep({0.0: 0.95, 0.5: 0.93, 0.9: 0.8, 1.0: 0.7, 1.5: 0.3}),
    ),
    "natural_sigma": (
        judge.natural_sigma,
        sweep(WIDE),
        sweep(WIDE | {1.5: 0.9}),
        sweep(WIDE | {1.0: 0.85, 1.5: 0.84}),
    ),
    "everything_costs": (
        judge.everything_costs,
        sweep(WIDE, {0.0: 800.0}),
        sweep(WIDE, {0.0: 200.0}),
        sweep(WIDE | {1.0: 0.8}, {0.0: 200.0}),
    ),
    "stored_enough": (
        lambda r: judge.stored_enough(r, 45.0, 0.86),
        row(accuracy=0.87, stored_per_class=40),
        row(accuracy=0.87, stored_per_class=60),
        row(accuracy=0.8, stored_per_class=40),
    ),
    "alike": (
        judge.alike,
        [r for way in (20, 423, 1000) for r in decoders(0.9, 0.91, 0.9, way=way)],
        decoders(0.9, 0.91, 0.9) + decoders(0.8, 0.7, 0.81, way=423),
        decoders(0.9, 0.8, 0.9) + decoders(0.8, 0.7, 0.81, way=423),
    ),
    "beats_one_shot": (judge.beats_one_shot, above_line(0.1, 0.2), above_line(-0.1, 0.2), above_line(-0.1, 0.005)),
    "suffices": (judge.suffices, solved(0.95), solved(0.6), solved(0.4)),
    "relational_best": (
        judge.relational_best,
        sampled(relational=0.9, lstm=0.8, working_memory=0.85),
        [*sampled(relational=0.9, lstm=0.8), row(accuracy=0.88, decoder="working_memory", samples=[0.8, 0.95, 0.89])],
        sampled(relational=0.9, lstm=0.8, working_memory=0.91),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_verdict_can_come_out_yes_partly_and_no(name: str) -> None:
    function, *cases = CASES[name]
    assert [function(case).verdict for case in cases] == ["yes", "partly", "no"]
    assert all(function(case).why for case in cases)


def test_a_memory_that_never_grows_so_large_is_said_to_be_smaller() -> None:
    said = judge.passes_fixed_context(curve(0.9, 0.9) | {"stored": 1186.3})
    assert said.why == "90.0 % with 1,186 written; 80.0 % with 5 of each class"


def test_every_verdict_function_has_its_three_cases() -> None:
    returns = {
        name
        for name, f in inspect.getmembers(judge, inspect.isfunction)
        if f.__module__ == judge.__name__ and f.__annotations__.get("return") == "Judgement" and name != "judged"
    }
    assert returns == set(CASES)


def test_a_claim_without_rows_is_not_measured_and_says_how_it_would_be() -> None:
    claim = Claim("a", "b", "c", list, lambda rows: pytest.fail("judged"), "python -m experiments b")
    assert claim.as_json()["extended"] is None
    said = claim.as_json()["paper_form"]
    assert said["verdict"] == "not measured" and "python -m experiments b" in said["why"] and said["value"] is None


def test_decoders_of_the_analogy_are_compared_over_as_many_trainings_as_each_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def trained(decoder: str, seed: int, accuracy: float) -> Row:
        about = {"level": "shuffled", "k": 16, "rule": "surprise", "decoder": decoder, "trained_seed": seed}
        samples = [accuracy - 0.01, accuracy, accuracy + 0.01]
        return row(**about, accuracy=accuracy, samples=samples, curve=[], stored=40.0)

    best = next(claim for claim in CLAIMS if "best at k = 16" in claim.claim)
    rows = [trained("relational", 0, 0.9), trained("relational", 1, 0.5), trained("lstm", 0, 0.6)]
    monkeypatch.setattr("experiments.paper.claims.load_rows", lambda name: rows if name == "analogy" else [])
    assert best.judged().verdict == "not measured"
    rows.append(trained("working_memory", 0, 0.7))
    said = best.judged()
    assert (said.verdict, said.value, said.seeds) == ("yes", 0.9, 1)


def test_the_file_of_claims_is_what_the_result_files_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    written = json.loads((ROOT / "results/claims.json").read_text())["claims"]
    assert written == json.loads(json.dumps([claim.as_json() for claim in CLAIMS]))
    assert len(written) >= 25 and len({claim["claim"] for claim in written}) == len(written)
    assert claims_table().count("\n") == len(written) + 1


def test_what_the_verdicts_rest_on_is_of_the_paper_s_form() -> None:
    rows = json.loads((ROOT / "results/paper-form.json").read_text())["rows"]
    assert rows and all((r["labels"], r["rule"], r["method"]) == ("fixed", "plain", "the paper's form") for r in rows)
    assert all("dirty" not in r["commit"] and r["episodes"] >= 5 for r in rows)
