"""Figure 5: the number-analogy task. Fixed digits after one example per symbol; shuffled digits and symbols online.

Every accuracy is on combinations never seen before in the episode. The one-shot line is what a perfect memory
without reasoning would get if all 100 combinations were asked; the solver is what the equations seen determine.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from apl.checkpoint import find_model, is_named, read_json
from apl.controller import SurpriseController, WriteAll
from apl.evaluate import Estimate, OnlineResult, watch
from apl.learner import Learner
from experiments.data.analogy import AnalogySampler, AnalogyTask
from experiments.data.analogy_solver import solve
from experiments.paper.analogy_figures import draw_curves
from experiments.paper.results import Row, figure_path, save_rows
from experiments.training.analogy import around, embedded_sampler

SEED = 1
SEEN = (5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95)
PARALLEL = 50
BEST = "analogy-shuffled"
SIGMAS = (0.05, 1.0, 2.25)
DECODERS = ("relational", "working-memory", "lstm")
COMPARED = (
    *(f"analogy-relational-k{k}" for k in (2, 4, 8)),
    *(f"analogy-{decoder}-k16" for decoder in DECODERS),
    *(f"analogy-{decoder}-k16-two-hops" for decoder in DECODERS),
)
FIXED = ("analogy-fixed", *(f"analogy-fixed-{decoder}" for decoder in DECODERS))


@dataclass(frozen=True)
class Played:
    """Episodes one learner went through, and what the solver knew at each step."""

    result: OnlineResult
    solver: Float[Tensor, "episode time"]
    """1 where the equations seen so far determine the answer."""
    solver_on_stored: Float[Tensor, "episode time"]
    """The same for the equations the learner stored."""


def reproduce(quick: bool = False) -> None:
    """Measure every bundled analogy model on MNIST's test digits."""
    episodes = 20 if quick else 50
    many = episodes if quick else 2 * episodes
    rows: list[Row] = []

    def keep(measured: list[Row]) -> None:
        # After every part, so that an interrupted measurement is not lost.
        rows.extend(measured)
        save_rows("analogy", rows, quick, note="accuracy is on combinations not seen before in the episode")

    keep([fixed_row(name, many) for name in FIXED if is_named(name)])
    for name in (BEST, "analogy-glyphs", *COMPARED):
        if is_named(name):
            learner = Learner.load(name)
            keep(curve_rows(name, learner, play(name, learner, episodes if name in COMPARED else many)))
    draw_curves(rows, figure_path("analogy", quick))
    if is_named(BEST) and not quick:
        for hops, k in itertools.product((1, 2), (16, 8, 4, 2)):
            keep(neighbour_rows(episodes, k, hops))
        keep(threshold_rows(many, WriteAll()))
        for sigma in SIGMAS:
            keep(threshold_rows(many, SurpriseController(sigma_nats=sigma)))


def task_of(name: str) -> AnalogyTask:
    symbols: Literal["glyphs", "one_hot"] = "glyphs" if name == "analogy-glyphs" else "one_hot"
    return AnalogyTask(level="fixed" if name in FIXED else "shuffled", symbols=symbols)


@cache
def test_sampler(name: str) -> AnalogySampler:
    """Test digits as this model's encoder sees them, embedded once."""
    return embedded_sampler(Learner.load(name), task_of(name), "test", torch.Generator())


def play(name: str, learner: Learner, episodes: int) -> Played:
    """Whole episodes of all combinations, one example at a time; the same ones for every learner."""
    task, sampler, twin = task_of(name), test_sampler(name), learner.on_embeddings()
    sampler.generator.manual_seed(SEED)
    results, known, known_stored = [], [], []
    for start in range(0, episodes, PARALLEL):
        drawn = sampler.draw(min(PARALLEL, episodes - start))
        result = watch(twin, drawn.inputs, drawn.episodes)
        results.append(result)
        known.append(solve(task, drawn) >= 0)
        known_stored.append(solve(task, drawn, result.written.bool()) >= 0)
    return Played(OnlineResult.join(results), torch.cat(known).float(), torch.cat(known_stored).float())


def about(name: str, learner: Learner) -> Row:
    """What was tested, and what it cost to train."""
    provenance = read_json(find_model(name) / "model.json")["provenance"]
    before = sum(part["seconds"] for part in provenance.get("encoders", {}).values())
    task, config = task_of(name), learner.config
    return {
        "method": "ours" if config.decoder.kind == "deduction" else "ours, the paper's decoder",
        "level": task.level,
        "symbols": task.symbols,
        "decoder": config.decoder.kind,
        "k": config.k,
        "hops": config.hops,
        "sigma_nats": threshold_nats(learner, task.way),
        "checkpoint": name,
        "seed": SEED,
        "split": "mnist test",
        "rows_asked_in_training": bool(provenance["training"].get("row_questions")),
        "training_steps": provenance["steps"],
        "training_seconds": provenance["seconds"],
        "encoder_training_seconds": before,
    }


def threshold_nats(learner: Learner, way: int) -> float:
    return learner.controller.threshold_nats(way) if isinstance(learner.controller, SurpriseController) else 0.0


@torch.no_grad()
def fixed_row(name: str, episodes: int) -> Row:
    """One example of each symbol in memory, then all other combinations are asked."""
    learner, task = Learner.load(name), task_of(name)
    sampler, twin = test_sampler(name), learner.on_embeddings()
    sampler.generator.manual_seed(SEED)
    shown = task.symbol_count
    right = []
    for start in range(0, episodes, PARALLEL):
        drawn = sampler.draw(min(PARALLEL, episodes - start), each_symbol_first=True)
        pairs = drawn.inputs[drawn.episodes.example]
        memory = twin.new_memory(len(pairs))
        label = drawn.episodes.label
        twin.write(memory, pairs[:, :shown], label[:, :shown], torch.ones_like(label[:, :shown], dtype=torch.bool))
        right.append(twin.predict(memory, pairs[:, shown:], task.way).label == label[:, shown:])
    accuracy = Estimate.of(torch.cat(right).float().mean(1))
    return {
        **about(name, learner),
        "seen": shown,
        "stored": float(shown),
        "accuracy": accuracy.mean,
        "ci95": accuracy.ci95,
        "episodes": episodes,
        "solver": 1.0,
        "one_shot": shown / task.combinations,
    }


def curve_rows(name: str, learner: Learner, played: Played, **more: object) -> list[Row]:
    """One row for each point of the curve of accuracy against examples seen."""
    rows = []
    for seen in SEEN:
        accuracy = Estimate.of(around(played.result.correct, seen))
        solver, on_stored = (float(around(k, seen).mean()) for k in (played.solver, played.solver_on_stored))
        rows.append(
            {
                **about(name, learner),
                "seen": seen,
                "stored": float(played.result.stored[:, seen - 1].float().mean()),
                "accuracy": accuracy.mean,
                "ci95": accuracy.ci95,
                "episodes": len(played.solver),
                "one_shot": seen / task_of(name).combinations,
                "solver": solver,
                "share_of_solver": accuracy.mean / solver if solver else None,
                "solver_on_stored": on_stored,
                **more,
            }
        )
    return rows


def neighbour_rows(episodes: int, k: int, hops: int) -> list[Row]:
    """The best model, not trained again, with fewer neighbours or without the second hop."""
    learner = Learner.load(BEST)
    if (k, hops) == (learner.config.k, learner.config.hops):
        return []
    learner.config = replace(learner.config, k=k, hops=hops)
    return curve_rows(BEST, learner, play(BEST, learner, episodes), method="ours, other recall")


def threshold_rows(episodes: int, controller: SurpriseController | WriteAll) -> list[Row]:
    """The best model with another rule for writing: stored rows against accuracy."""
    learner = Learner.load(BEST, controller)
    return curve_rows(BEST, learner, play(BEST, learner, episodes), method="ours, another threshold")
