"""Which row to give up when the memory is full: the rule of OnlineClassifier against a random row and the oldest.

Two streams of test characters: all classes mixed, and one group of classes after the other (where the oldest rows
are the only memory of the first groups). Measured: accuracy while learning, and on drawings never shown, at the end.
σ is low, so that the budget is reached; every rule gets the same streams.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from apl.checkpoint import FOR_DRAWINGS
from apl.classifier.embedded import Embedded as EmbeddedBatch
from apl.classifier.online import OnlineClassifier
from apl.evaluate import Estimate
from experiments.bench.features import shuffled
from experiments.bench.quality import report, save
from experiments.paper.results import Row
from experiments.paper.subjects import Embedded, characters

CLASSES, SHOWN, ASKED, GROUPS, SEEDS = 40, 10, 8, 5, 10
SIGMA_NATS = 0.05
RULES = ("least important", "random", "oldest")


class Budgeted:
    """A classifier that keeps at most `max_rows` rows by one of the rules."""

    def __init__(self, first: OnlineClassifier, rule: str, max_rows: int, seed: int) -> None:
        own = rule == RULES[0]
        self.classifier = first.sibling(max_rows=max_rows if own else None)
        self.rule, self.max_rows, self.generator = rule, max_rows, torch.Generator().manual_seed(seed)
        self.fingerprint, self.evictions = first.store.fingerprint, 0
        self.rows: list[int] = []

    def learn(self, x: Tensor, label: int) -> bool:
        """Whether the answer was right before."""
        receipt = self.classifier.learn_one(self._given(x[None]), label)
        self.evictions += len(receipt.evicted)
        if receipt.row is not None:
            self.rows.append(receipt.row)
        if self.rule != RULES[0] and len(self.classifier) > self.max_rows:
            oldest = self.rule == "oldest"
            place = 0 if oldest else int(torch.randint(len(self.rows), (), generator=self.generator))
            self.classifier.forget(row=self.rows.pop(place))
            self.evictions += 1
        return bool(receipt.predicted == label)

    def accuracy(self, x: Tensor, labels: Tensor) -> float:
        answers = self.classifier.predict(self._given(x))
        return float((torch.as_tensor(answers.astype(int)) == labels).float().mean())

    def _given(self, x: Tensor) -> EmbeddedBatch:
        return EmbeddedBatch(x.numpy(), (lambda: None,) * len(x), self.fingerprint)


def stream_of(data: Embedded, stream: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The examples in the order shown, and others of the same classes to ask about."""
    classes = shuffled(data.labels.unique(), generator)[:CLASSES]
    drawings = torch.stack([shuffled((data.labels == c).nonzero()[:, 0], generator) for c in classes])
    groups = drawings[:, :SHOWN].split(CLASSES if stream == "mixed" else CLASSES // GROUPS)
    return torch.cat([shuffled(g.flatten(), generator) for g in groups]), drawings[:, SHOWN : SHOWN + ASKED].flatten()


def run(model: str = FOR_DRAWINGS) -> Path:
    data = characters(False, model=model)
    first = OnlineClassifier(model, keep_images=False, sigma=SIGMA_NATS).open()
    rows: list[Row] = []
    for stream in ("mixed", "group by group"):
        for max_rows in (CLASSES, 3 * CLASSES // 2):
            rows += [measured(first, data, stream, max_rows, rule) for rule in RULES]
            ours = rows[-len(RULES)].pop("values")
            for row in rows[1 - len(RULES) :]:
                difference = Estimate.of_difference(ours, row.pop("values"))
                row |= {"difference": difference.mean, "difference_ci95": difference.ci95}
            report(rows[-len(RULES) :])
    sizes = {"classes": CLASSES, "shown_per_class": SHOWN, "asked_per_class": ASKED}
    about = {"seeds": SEEDS, "split": data.split, "part": "test", "sigma_nats": SIGMA_NATS}
    return save("eviction", rows, model=model, **sizes, **about)


def measured(first: OnlineClassifier, data: Embedded, stream: str, max_rows: int, rule: str) -> Row:
    at_end, while_learning, evictions = [], [], []
    for seed in range(SEEDS):
        shown, asked = stream_of(data, stream, torch.Generator().manual_seed(seed))
        method = Budgeted(first, rule, max_rows, seed)
        right = [method.learn(data.embeddings[example], int(data.labels[example])) for example in shown]
        while_learning.append(sum(right) / len(right))
        at_end.append(method.accuracy(data.embeddings[asked], data.labels[asked]))
        evictions.append(method.evictions)
    accuracy = Estimate.of(at_end)
    return {
        "stream": stream,
        "max_rows": max_rows,
        "rule": rule,
        "seeds": SEEDS,
        "accuracy": accuracy.mean,
        "ci95": accuracy.ci95,
        "accuracy_while_learning": sum(while_learning) / SEEDS,
        "evictions": sum(evictions) / SEEDS,
        "values": at_end,
    }
