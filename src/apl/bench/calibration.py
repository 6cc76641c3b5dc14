"""Do the probabilities mean what they say? On characters never seen in training.

`fit` fits the rule for new classes on the validation characters and writes it beside the model's weights; `run`
measures on the test characters: expected calibration error (15 bins) of the answer among known classes and of the
probability of a new class, and how well the latter tells new classes from known ones (AUROC).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from sklearn.metrics import roc_auc_score
from torch import Tensor

from apl.bench.streams import Characters, embedded, new_world, save_result
from apl.checkpoint import find_model, write_json
from apl.classifier.new_class import FILE, NewClassRule, fit_rule
from apl.learner import Learner
from apl.store import NewRow

BINS = 15
MOST_ROWS = 3
"""Rows per class in these memories: 1 to 3, about what surprise leaves of a stream."""


@dataclass(frozen=True)
class Verdicts:
    """Answers to queries, half of them of classes that are not in memory."""

    log_none: Float[Tensor, " query"]
    not_recalled: Int[Tensor, " query"]
    is_new: Bool[Tensor, " query"]
    confidence: Float[Tensor, " query"]
    correct: Bool[Tensor, " query"]

    @staticmethod
    def join(parts: list[Verdicts]) -> Verdicts:
        return Verdicts(*(torch.cat([getattr(p, name) for p in parts]) for name in Verdicts.__dataclass_fields__))


def ask(learner: Learner, characters: Characters, known: int, queries: int, generator: torch.Generator) -> Verdicts:
    """Fill a memory with `known` classes, 1 to 3 rows each, then ask about other drawings of known and new classes."""
    order = torch.randperm(characters.classes, generator=generator)
    inside, outside = order[:known].tolist(), order[known:].tolist()
    world = new_world(learner, NewClassRule())
    left = []
    for label, examples in zip(inside, characters.of(inside), strict=True):
        examples = examples[torch.randperm(len(examples), generator=generator)]
        rows = int(torch.randint(1, MOST_ROWS + 1, (), generator=generator))
        for example in examples[:rows].tolist():
            key = characters.embeddings[example].numpy()
            world.memory.stage(key, NewRow(label, key))
        left.append(examples[rows:])

    def some(pool: Tensor) -> Tensor:
        return pool[torch.randperm(len(pool), generator=generator)[:queries]]

    old, new = some(torch.cat(left)), some(torch.cat(characters.of(outside)))
    asked = torch.cat([old, new])
    classes = torch.tensor(world.memory.classes)
    parts = []
    for part in asked.split(256):
        belief = world.believe(characters.embeddings[part].numpy())
        parts.append(
            Verdicts(
                torch.from_numpy(belief.log_none),
                known - torch.from_numpy(belief.neighbours.is_first[0].sum(1)),
                torch.zeros(len(part), dtype=torch.bool),
                torch.from_numpy(belief.known.max(1)),
                classes[belief.best] == characters.labels[part],
            )
        )
    whole = Verdicts.join(parts)
    is_new = torch.arange(len(asked)) >= len(old)
    return Verdicts(whole.log_none, whole.not_recalled, is_new, whole.confidence, whole.correct)


def calibration_error(confidence: Float[Tensor, " query"], correct: Bool[Tensor, " query"]) -> float:
    """Expected calibration error over bins of equal width."""
    bin = (confidence * BINS).long().clamp(max=BINS - 1)
    error = 0.0
    for b in range(BINS):
        inside = bin == b
        if bool(inside.any()):
            gap = (confidence[inside].mean() - correct[inside].float().mean()).abs()
            error += float(inside.float().mean() * gap)
    return error


def fit(model: str = "omniglot", seed: int = 0) -> NewClassRule:
    """On validation characters only."""
    learner = Learner.load(model)
    generator = torch.Generator().manual_seed(seed)
    plain, turned = embedded(learner, "validation"), embedded(learner, "validation", rotations=True)
    asked = [ask(learner, plain, known, 400, generator) for known in (2, 5, 10, 20, 50, 80) for _ in range(3)]
    asked += [ask(learner, turned, known, 400, generator) for known in (100, 250) for _ in range(2)]
    data = Verdicts.join(asked)
    rule = fit_rule(data.log_none.numpy(), data.not_recalled.numpy(), data.is_new.numpy())
    fitted_on = "Omniglot, validation characters of the paper's split; half of the queries of classes not in memory"
    write_json(Path(find_model(model)) / FILE, {**asdict(rule), "fitted_on": fitted_on, "queries": len(data.is_new)})
    return rule


def run(model: str = "omniglot", seed: int = 1) -> Path:
    """On test characters."""
    learner, rule = Learner.load(model), NewClassRule.of_model(model)
    characters = embedded(learner, "test")
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for known, draws in ((5, 20), (20, 10), (100, 5), (300, 3)):
        asked = Verdicts.join([ask(learner, characters, known, 500, generator) for _ in range(draws)])
        p_new = torch.from_numpy(rule.probability(asked.log_none.numpy(), asked.not_recalled.numpy()))
        old = ~asked.is_new
        rows.append(
            {
                "known_classes": known,
                "draws": draws,
                "queries": len(p_new),
                "accuracy": float(asked.correct[old].float().mean()),
                "ece": calibration_error(asked.confidence[old], asked.correct[old]),
                "mean_confidence": float(asked.confidence[old].mean()),
                "auroc_new": float(roc_auc_score(asked.is_new.numpy(), p_new.numpy())),
                "ece_new": calibration_error(p_new, asked.is_new),
                "new_called_new": float((p_new[asked.is_new] > 0.5).float().mean()),
                "known_called_new": float((p_new[old] > 0.5).float().mean()),
            }
        )
    return save_result("calibration", rows, model=model, seed=seed, split="paper", part="test", rule=asdict(rule))
