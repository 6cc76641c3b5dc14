"""The same examples in other orders: how much do the answers depend on the order in which they came?"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from statistics import mean, stdev

import torch

from apl.checkpoint import FOR_DRAWINGS
from apl.learner import Learner
from experiments.bench.streams import answers, embedded, new_world, report, save_result

SHOWN, ASKED = 10, 10


def run(model: str = FOR_DRAWINGS, orders: int = 8, seed: int = 0) -> Path:
    learner = Learner.load(model)
    characters = embedded(learner, "test")
    rows = []
    for way in (20, 100):
        generator = torch.Generator().manual_seed(seed)
        classes = torch.randperm(characters.classes, generator=generator)[:way].tolist()
        shuffled = [e[torch.randperm(len(e), generator=generator)] for e in characters.of(classes)]
        shown = torch.cat([e[:SHOWN] for e in shuffled])
        asked = torch.cat([e[SHOWN : SHOWN + ASKED] for e in shuffled])
        given, stored = [], []
        for _ in range(orders):
            world = new_world(learner)
            for example in shown[torch.randperm(len(shown), generator=generator)].tolist():
                world.learn(characters.embeddings[example].numpy(), int(characters.labels[example]))
            given.append(answers(world, characters, asked))
            stored.append(len(world.memory))
        right = [float((answer == characters.labels[asked]).float().mean()) for answer in given]
        agreement = [float((a == b).float().mean()) for a, b in combinations(given, 2)]
        rows.append(
            {
                "way": way,
                "shown_per_class": SHOWN,
                "orders": orders,
                "accuracy": mean(right),
                "accuracy_std": stdev(right),
                "accuracy_min": min(right),
                "accuracy_max": max(right),
                "agreement": mean(agreement),
                "rows": mean(stored),
                "rows_std": stdev(stored),
            }
        )
        report(rows[-1])
    return save_result("order", rows, model=model, seed=seed, split="paper", part="test")
