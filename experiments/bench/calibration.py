"""Do the probabilities mean what they say? On characters never seen in training, asked of a classifier as it is by default.

Expected calibration error (15 bins) of the answer among known classes and of the probability of a new class, and how
well the latter tells new classes from known ones (AUROC).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from sklearn.metrics import roc_auc_score
from torch import Tensor

from apl.checkpoint import FOR_DRAWINGS
from apl.learner import Learner
from experiments.bench.features import calibration_error
from experiments.bench.streams import Characters, embedded, new_world, save_result

MOST_SHOWN = 3
"""Drawings of a class in these streams: 1 to 3."""


@dataclass(frozen=True)
class Verdicts:
    """Answers to queries, half of them of classes that are not in memory."""

    p_new: Float[Tensor, " query"]
    is_new: Bool[Tensor, " query"]
    confidence: Float[Tensor, " query"]
    correct: Bool[Tensor, " query"]

    @staticmethod
    def join(parts: list[Verdicts]) -> Verdicts:
        return Verdicts(*(torch.cat([getattr(p, name) for p in parts]) for name in Verdicts.__dataclass_fields__))


def ask(learner: Learner, characters: Characters, known: int, queries: int, generator: torch.Generator) -> Verdicts:
    """Learn 1 to 3 drawings of each of `known` classes in mixed order, then ask about others of known and new classes."""

    def shuffled(examples: Tensor) -> Tensor:
        return examples[torch.randperm(len(examples), generator=generator)]

    order = torch.randperm(characters.classes, generator=generator)
    drawings = [shuffled(examples) for examples in characters.of(order[:known].tolist())]
    counts = torch.randint(1, MOST_SHOWN + 1, (known,), generator=generator).tolist()
    world = new_world(learner)
    for example in shuffled(torch.cat([d[:n] for d, n in zip(drawings, counts, strict=True)])).tolist():
        world.learn(characters.embeddings[example].numpy(), int(characters.labels[example]))
    old = shuffled(torch.cat([d[n:] for d, n in zip(drawings, counts, strict=True)]))[:queries]
    new = shuffled(torch.cat(characters.of(order[known:].tolist())))[:queries]
    classes = torch.tensor(world.memory.classes)
    parts = []
    for part in torch.cat([old, new]).split(256):
        belief = world.believe(characters.embeddings[part].numpy())
        known_there = torch.isin(characters.labels[part], classes)
        parts.append(
            Verdicts(
                torch.from_numpy(belief.new).float(),
                ~known_there,
                torch.from_numpy(belief.known.max(1)).float(),
                classes[belief.best(world.memory.classes)] == characters.labels[part],
            )
        )
    return Verdicts.join(parts)


def run(model: str = FOR_DRAWINGS, seed: int = 1) -> Path:
    """On test characters."""
    learner = Learner.load(model)
    characters = embedded(learner, "test")
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for known, draws in ((5, 20), (20, 10), (100, 5), (300, 3)):
        asked = Verdicts.join([ask(learner, characters, known, 500, generator) for _ in range(draws)])
        old = ~asked.is_new
        rows.append(
            {
                "known_classes": known,
                "draws": draws,
                "queries": len(asked.p_new),
                "accuracy": float(asked.correct[old].float().mean()),
                "ece": calibration_error(asked.confidence[old].numpy(), asked.correct[old].numpy()),
                "mean_confidence": float(asked.confidence[old].mean()),
                "auroc_new": float(roc_auc_score(asked.is_new.numpy(), asked.p_new.numpy())),
                "ece_new": calibration_error(asked.p_new.numpy(), asked.is_new.numpy()),
                "new_called_new": float((asked.p_new[asked.is_new] > 0.5).float().mean()),
                "known_called_new": float((asked.p_new[old] > 0.5).float().mean()),
            }
        )
    return save_result("calibration", rows, model=model, seed=seed, split="paper", part="test")
