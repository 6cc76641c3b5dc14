"""The same examples in other orders: how much do the answers of OnlineClassifier depend on the order?"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from statistics import mean, stdev

import torch

from apl.checkpoint import FOR_DRAWINGS
from experiments.baselines.shipped import Shipped
from experiments.bench.features import shuffled
from experiments.bench.quality import report, save
from experiments.paper.results import Row
from experiments.paper.subjects import characters

SHOWN, ASKED, ORDERS, SEED = 10, 10, 8, 0


def run(model: str = FOR_DRAWINGS) -> Path:
    data, method = characters(False, model=model), Shipped(model)
    rows: list[Row] = []
    for way in (20, 100):
        generator = torch.Generator().manual_seed(SEED)
        classes = shuffled(data.labels.unique(), generator)[:way]
        drawings = torch.stack([shuffled((data.labels == c).nonzero()[:, 0], generator) for c in classes])
        number = torch.arange(way)[:, None].expand(-1, SHOWN)
        shown, asked = drawings[:, :SHOWN].flatten(), drawings[:, SHOWN : SHOWN + ASKED].flatten()
        given, stored = [], []
        for _ in range(ORDERS):
            order = torch.randperm(len(shown), generator=generator)
            method.adapt(data.embeddings[:0], number[0, :0], way)
            for example, label in zip(shown[order], number.flatten()[order].tolist(), strict=True):
                method.observe(data.embeddings[example], label)
            given.append(method.predict(data.embeddings[asked]).log_probs.argmax(1))
            stored.append(method.kept())
        truth = torch.arange(way).repeat_interleave(ASKED)
        right = [float((answer == truth).float().mean()) for answer in given]
        rows.append(
            {
                "way": way,
                "shown_per_class": SHOWN,
                "orders": ORDERS,
                "accuracy": mean(right),
                "accuracy_std": stdev(right),
                "accuracy_min": min(right),
                "accuracy_max": max(right),
                "agreement": mean([float((a == b).float().mean()) for a, b in combinations(given, 2)]),
                "rows": mean(stored),
                "rows_std": stdev(stored),
            }
        )
        report(rows[-1:])
    return save("order", rows, model=model, seed=SEED, split=data.split, part="test")
