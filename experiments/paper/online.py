"""Figure 3a and 3c: an online episode. Accuracy and memory over time at 5-way, stored items per class at 20-way."""

from __future__ import annotations

import torch
from torch import Tensor

from apl.evaluate import Estimate, OnlineResult, online
from experiments.paper.plot import OTHER, OURS, QUIET, figure, smooth
from experiments.paper.results import figure_path, save_rows
from experiments.paper.subjects import Subject, characters, subject

SEED = 1


def reproduce(quick: bool = False) -> None:
    """5-way: the paper stores fewer than two examples per class when accuracy saturates."""
    episodes = 20 if quick else 200
    data, rows = characters(False), []
    for tested in both_rules():
        result = online(tested.learner, data.embeddings, data.labels, way=5, episodes=episodes, seed=SEED)
        curve = {"accuracy_by_example": _mean(result.correct), "stored_by_example": _mean(result.stored.float())}
        rows.insert(0, tested.row(data, **summary(result, episodes, last=50), **curve))
    save_rows("online", rows, quick)
    with figure(figure_path("online", quick)) as (axes,):
        axes.plot(smooth(result.correct.mean(0), 5), color=OURS, label="accuracy (mean of last 5)")
        axes.set(xlabel="examples seen", ylabel="accuracy", ylim=(0, 1.02), title="5-way online, unseen characters")
        memory = axes.twinx()
        memory.plot(result.stored.float().mean(0) / 5, color=OTHER, label="stored per class")
        memory.set(ylabel="stored per class", ylim=(0, 4))
        axes.legend(loc="center right", frameon=False)
        memory.legend(loc="lower right", frameon=False)


def reproduce_per_class(quick: bool = False) -> None:
    """20-way: the paper stores 44 items, very unevenly, at 98.5 % accuracy."""
    episodes = 5 if quick else 20
    data, rows = characters(False), []
    for tested in both_rules():
        result = online(tested.learner, data.embeddings, data.labels, way=20, episodes=episodes, seed=SEED)
        per_class = (result.written[0][:, None] * (result.label[0][:, None] == torch.arange(20))).sum(0)
        stored = sorted((int(n) for n in per_class), reverse=True)
        rows.insert(0, tested.row(data, **summary(result, episodes, last=100), stored_of_each_class=stored))
    save_rows("per-class", rows, quick)
    with figure(figure_path("per-class", quick)) as (axes,):
        axes.bar(range(20), stored, color=OURS)
        axes.axhline(44 / 20, color=QUIET, linestyle="--", label="paper: 44 in all")
        title = f"20-way: {sum(stored)} stored in this episode"
        axes.set(xlabel="class (sorted)", ylabel="stored items", title=title, yticks=range(max(stored) + 1))
        axes.legend(frameon=False)


def both_rules(sigma_nats: float | None = None) -> tuple[Subject, Subject]:
    """Our learner under the paper's rule and, the one that figures show, consolidating."""
    return subject(sigma_nats=sigma_nats), subject(sigma_nats=sigma_nats, consolidate=True)


def summary(result: OnlineResult, episodes: int, last: int) -> dict[str, float | int]:
    """The figures every online row carries."""
    accuracy, tail, stored = result.accuracy(), result.accuracy_last(last), result.stored_at_end()
    return {
        "way": result.way,
        "shot": 0,
        "episodes": episodes,
        "seed": SEED,
        "examples": result.correct.shape[1],
        "accuracy": accuracy.mean,
        "ci95": accuracy.ci95,
        f"accuracy_last_{last}": tail.mean,
        f"accuracy_last_{last}_ci95": tail.ci95,
        "stored": stored.mean,
        "stored_ci95": stored.ci95,
        "stored_per_class": stored.mean / result.way,
        **_seen_before(result),
    }


def _seen_before(result: OnlineResult) -> dict[str, float]:
    """Accuracy on examples whose class was shown before: the first of a class can only be guessed."""
    values = []
    for labels, correct in zip(result.label, result.correct, strict=True):
        first = (labels[:, None] == labels[None, :]).int().argmax(1) == torch.arange(len(labels))
        values.append(correct[~first].mean())
    estimate = Estimate.of(torch.stack(values))
    return {"accuracy_after_first": estimate.mean, "accuracy_after_first_ci95": estimate.ci95}


def _mean(values: Tensor) -> list[float]:
    return [round(float(v), 4) for v in values.mean(0)]
