"""How far the probabilities of OnlineClassifier can be trusted, on characters never seen in training.

Expected calibration error (15 bins) of the answer among known classes and of the probability of a new class, and how
well the latter tells new classes from known ones (AUROC).
"""

from __future__ import annotations

from pathlib import Path

import torch

from apl.checkpoint import FOR_DRAWINGS
from experiments.baselines.shipped import Shipped
from experiments.bench.features import Answered, Task, answer, shuffled, task_of
from experiments.bench.quality import auroc, calibration_error, report, save
from experiments.paper.results import Row
from experiments.paper.subjects import Embedded, characters

MOST_SHOWN = 3
"""Drawings of a class that are learnt: 1 to 3."""
SEED = 1


def task(data: Embedded, known: int, queries: int, generator: torch.Generator) -> Task:
    """Drawings of `known` classes in mixed order, then questions, half of them about other classes."""
    classes = shuffled(data.labels.unique(), generator)
    drawings = [shuffled((data.labels == c).nonzero()[:, 0], generator) for c in classes[:known]]
    counts = torch.randint(1, MOST_SHOWN + 1, (known,), generator=generator).tolist()
    shown = torch.cat([d[:n] for d, n in zip(drawings, counts, strict=True)])
    old = torch.cat([d[n:] for d, n in zip(drawings, counts, strict=True)])
    new = torch.isin(data.labels, classes[known:]).nonzero()[:, 0]
    question = torch.cat([shuffled(part, generator)[:queries] for part in (old, new)])
    return task_of(data, data, classes[:known], shown, question, generator)


def row(known: int, found: list[Answered]) -> Row:
    p_new, new = (torch.cat(parts) for parts in zip(*((f.scores.novelty, f.new) for f in found), strict=True))
    confidence = torch.cat([f.scores.log_probs.amax(1).exp() for f in found])[~new]
    right = torch.cat([f.right for f in found])[~new]
    return {
        "known_classes": known,
        "draws": len(found),
        "queries": len(new),
        "accuracy": float(right.float().mean()),
        "ece": calibration_error(confidence, right),
        "mean_confidence": float(confidence.mean()),
        "auroc_new": auroc(p_new, new),
        "ece_new": calibration_error(p_new, new),
        "new_called_new": float((p_new[new] > 0.5).float().mean()),
        "known_called_new": float((p_new[~new] > 0.5).float().mean()),
    }


def run(model: str = FOR_DRAWINGS) -> Path:
    data, method = characters(False, model=model), Shipped(model)
    generator = torch.Generator().manual_seed(SEED)
    rows: list[Row] = []
    for known, draws in ((5, 20), (20, 10), (100, 5), (300, 3)):
        rows.append(row(known, [answer(method, task(data, known, 500, generator)) for _ in range(draws)]))
        report(rows[-1:])
    return save("calibration", rows, model=model, seed=SEED, split=data.split, part="test")
