"""Appendix, "Relation to continual learning": tasks of 10 new classes, 200 examples each, accuracy of the last 100.

The learner keeps one memory through all tasks. It is scored twice: choosing among the classes of the task, as
the progressive network does (whose head is told the task), and among all classes met so far, which is harder.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from apl.episode import Episodes, run_episode
from apl.evaluate import Estimate
from experiments.baselines.progressive import ProgressiveHead
from experiments.paper.plot import OTHER, OURS, QUIET, figure
from experiments.paper.results import figure_path, save_rows
from experiments.paper.subjects import Embedded, Subject, characters, subject

WAY, EXAMPLES, LAST, RUNS = 10, 200, 100, 5
LEARNING_RATES = (1e-3, 3e-3, 1e-2, 3e-2)


def reproduce(quick: bool = False) -> None:
    tested, consolidating, data = subject(), subject(consolidate=True), characters(False)
    runs, tasks = (2, 3) if quick else (RUNS, 20)
    rate = best_learning_rate(characters(False, "validation"), 2 if quick else 5)
    told, among_all, plainly_told, plainly_among_all, progressive = (torch.zeros(runs, tasks) for _ in range(5))
    for run in range(runs):
        streams = list(task_streams(data, tasks, seed=run))
        told[run], among_all[run] = apl_accuracy(consolidating, data, streams)
        plainly_told[run], plainly_among_all[run] = apl_accuracy(tested, data, streams)
        progressive[run] = progressive_accuracy(data, streams, rate, seed=run)
    rows = []
    methods = (
        ("ours, told the task", told, consolidating.row(data)),
        ("ours, among all classes so far", among_all, consolidating.row(data)),
        ("ours, plain rule, told the task", plainly_told, tested.row(data)),
        ("ours, plain rule, among all classes so far", plainly_among_all, tested.row(data)),
        ("progressive network", progressive, {**tested.row(data), "decoder": "logits layer", "labels": "fixed"}),
    )
    for method, accuracy, described in methods:
        for task in range(tasks):
            estimate = Estimate.of(accuracy[:, task])
            figures = {"task": task + 1, "way": WAY, "shot": 0, "episodes": runs, "seed": 0}
            rows.append({**described, "method": method, **figures, "accuracy": estimate.mean, "ci95": estimate.ci95})
        whole = Estimate.of(accuracy.mean(1))
        figures = {"task": "mean", "way": WAY, "shot": 0, "episodes": runs, "seed": 0}
        rows.append({**described, "method": method, **figures, "accuracy": whole.mean, "ci95": whole.ci95})
    save_rows("continual", rows, quick, progressive_learning_rate=rate)
    with figure(figure_path("continual", quick)) as (axes,):
        for (method, accuracy, _), colour in zip((*methods[:2], methods[-1]), (OURS, OTHER, QUIET), strict=True):
            estimates = [Estimate.of(values) for values in accuracy.T]
            mean, spread = (torch.tensor([getattr(e, part) for e in estimates]) for part in ("mean", "ci95"))
            time = torch.arange(1, tasks + 1)
            axes.plot(time, mean, color=colour, label=method)
            axes.fill_between(time, mean - spread, mean + spread, color=colour, alpha=0.2, lw=0)
        axes.set(xlabel="task (10 new classes each)", ylabel="accuracy of the last 100", ylim=(0.5, 1.01))
        axes.legend(frameon=False, loc="lower left")


def task_streams(data: Embedded, tasks: int, seed: int) -> Iterator[Episodes]:
    """Each task shows every example of 10 classes no earlier task had, in random order."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(int(data.labels.max()) + 1, generator=generator)
    for task in range(tasks):
        classes = order[WAY * task : WAY * (task + 1)]
        examples = torch.cat([(data.labels == c).nonzero().flatten() for c in classes])
        labels = torch.arange(WAY).repeat_interleave(len(examples) // WAY) + WAY * task
        shuffled = torch.randperm(len(examples), generator=generator)[:EXAMPLES]
        yield Episodes(examples[shuffled][None], labels[shuffled][None], way=WAY * (task + 1))


@torch.no_grad()
def apl_accuracy(tested: Subject, data: Embedded, streams: list[Episodes]) -> tuple[torch.Tensor, torch.Tensor]:
    memory = tested.learner.new_memory()
    told, among_all = [], []
    for task, stream in enumerate(streams):
        of_task, of_all = [], []
        for step in run_episode(tested.learner, memory, data.embeddings, stream, batch=1):
            log_probs = step.observation.prediction.log_probs[0, 0]
            of_task.append(float(log_probs[WAY * task :].argmax() + WAY * task == step.label[0, 0]))
            of_all.append(float(log_probs.argmax() == step.label[0, 0]))
        told.append(sum(of_task[-LAST:]) / LAST)
        among_all.append(sum(of_all[-LAST:]) / LAST)
    return torch.tensor(told), torch.tensor(among_all)


def progressive_accuracy(data: Embedded, streams: list[Episodes], rate: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    accuracy = []
    for task, stream in enumerate(streams):
        head = ProgressiveHead(data.embeddings.shape[1], WAY, rate, generator)
        right = [
            head.predict_then_learn(data.embeddings[example], label - WAY * task)
            for example, label in zip(stream.example[0], stream.label[0], strict=True)
        ]
        accuracy.append(sum(right[-LAST:]) / LAST)
    return torch.tensor(accuracy)


def best_learning_rate(validation: Embedded, tasks: int) -> float:
    """The baseline's step size, chosen on validation characters."""
    streams = list(task_streams(validation, tasks, seed=0))
    return max(LEARNING_RATES, key=lambda rate: float(progressive_accuracy(validation, streams, rate, seed=0).mean()))
