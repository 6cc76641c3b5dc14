"""Sets of labels that contain the true one as often as was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from apl.classifier.opened import Opened
from apl.learner import Prediction
from apl.memory.history import MOST_NATS
from apl.store import Label


@dataclass(frozen=True)
class LabelSet:
    """The labels that one example may have.

    >>> from apl import OnlineClassifier
    >>> clf = OnlineClassifier()
    >>> _ = clf.learn_many([[n % 2, n / 40] for n in range(40)], ["even", "odd"] * 20)
    >>> clf.predict_set([0, 0.5]).labels
    ('even',)
    """

    labels: tuple[Label, ...]
    """The most probable first. Empty if every known label would be unusual, which is an answer as well."""
    new: bool
    """A class that was never shown belongs to the set."""
    coverage: float
    """The share of examples whose label, or whose being new, such sets contain."""
    examples: int
    """Past examples that the set rests on. With fewer than coverage / (1 - coverage), 9 for 0.9, it holds every label."""

    def __len__(self) -> int:
        return len(self.labels) + self.new

    def __contains__(self, label: object) -> bool:
        return any(label == one and isinstance(label, str) == isinstance(one, str) for one in self.labels)

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "labels": list(self.labels)}


def check_coverage(coverage: Any) -> float:
    if isinstance(coverage, bool) or not isinstance(coverage, Real) or not 0 < float(coverage) < 1:
        raise ValueError(f"coverage is a share between 0 and 1, both excluded, got {coverage!r}")
    return float(coverage)


def label_sets(opened: Opened, prediction: Prediction, coverage: float) -> list[LabelSet]:
    """The set of each query, by the history of the memory."""
    memory, history = opened.memory, opened.memory.history
    names, order = memory.names.names, memory.names.order
    if not names:
        return [LabelSet((), True, coverage, len(history)) for _ in prediction.embedding[0]]
    score = -opened.learner.networks.array(prediction.log_probs)[0]
    # Compared as they were recorded.
    within = np.minimum(score, np.float32(MOST_NATS)) <= np.float32(history.threshold_nats(coverage))
    found = []
    for scores, inside in zip(score, within, strict=True):
        chosen = order[inside[order]]
        chosen = chosen[np.argsort(scores[chosen], kind="stable")]
        labels = tuple(names[number] for number in chosen.tolist())
        found.append(LabelSet(labels, bool(inside[len(names)]), coverage, len(history)))
    return found
