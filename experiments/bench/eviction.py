"""Which row to give up when the memory is full: the rule of `apl.classifier.eviction` against a random row and the oldest.

Two streams of test characters: all classes mixed, and one group of classes after the other (where the oldest rows
are the only memory of the first groups). Measured: accuracy while learning, and on drawings never shown, at the end.
σ is low, so that the budget is reached; every rule meets the same streams.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean, stdev

import numpy as np
import torch
from torch import Tensor

from apl.checkpoint import FOR_DRAWINGS
from apl.classifier.durable_memory import DurableMemory
from apl.controller import ConsolidatingController
from apl.learner import Learner
from experiments.bench.streams import accuracy, counted, embedded, new_world, report, save_result

CLASSES, SHOWN, ASKED, GROUPS = 40, 10, 8, 5
SIGMA_NATS = 0.05


class OldestGoes(DurableMemory):
    def victim(self, among: np.ndarray) -> int:
        return int(among.argmax())


class RandomGoes(DurableMemory):
    _chance = np.random.default_rng(0)

    def victim(self, among: np.ndarray) -> int:
        return int(self._chance.choice(among.nonzero()[0]))


RULES = {"least important": DurableMemory, "random": RandomGoes, "oldest": OldestGoes}


def run(model: str = FOR_DRAWINGS, seeds: int = 10, part: str = "test") -> Path:
    learner = Learner.load(model)
    characters = embedded(learner, part)
    rows = []
    for stream in ("mixed", "group by group"):
        for max_rows in (CLASSES, 3 * CLASSES // 2):
            for name, memory in RULES.items():
                while_learning, at_end, evictions = [], [], []
                for seed in counted(f"{stream}, {max_rows} rows, {name}", range(seeds)):
                    generator = torch.Generator().manual_seed(seed)
                    shown, asked = stream_of(characters, stream, generator)
                    controller = ConsolidatingController(sigma_nats=SIGMA_NATS)
                    world = new_world(learner, controller=controller, max_rows=max_rows, memory=memory)
                    right = gone = 0
                    for example in shown.tolist():
                        label = int(characters.labels[example])
                        receipt = world.learn(characters.embeddings[example].numpy(), label)
                        right += receipt.predicted == label
                        gone += len(receipt.evicted)
                        world.commit()
                    while_learning.append(right / len(shown))
                    at_end.append(accuracy(world, characters, asked))
                    evictions.append(gone)
                rows.append(
                    {
                        "stream": stream,
                        "max_rows": max_rows,
                        "rule": name,
                        "accuracy": mean(at_end),
                        "ci95": 1.96 * stdev(at_end) / seeds**0.5 if seeds > 1 else None,
                        "accuracy_while_learning": mean(while_learning),
                        "evictions": mean(evictions),
                    }
                )
                report(rows[-1])
    about = {
        "classes": CLASSES,
        "shown_per_class": SHOWN,
        "asked_per_class": ASKED,
        "seeds": seeds,
        "part": part,
        "sigma_nats": SIGMA_NATS,
    }
    return save_result("eviction", rows, model=model, **about)


def stream_of(characters, stream: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The examples in the order shown, and others of the same classes to ask about."""
    classes = torch.randperm(characters.classes, generator=generator)[:CLASSES].tolist()
    shown, asked = [], []
    for examples in characters.of(classes):
        examples = examples[torch.randperm(len(examples), generator=generator)]
        shown.append(examples[:SHOWN])
        asked.append(examples[SHOWN : SHOWN + ASKED])
    per_group = CLASSES if stream == "mixed" else CLASSES // GROUPS
    ordered = []
    for start in range(0, CLASSES, per_group):
        group = torch.cat(shown[start : start + per_group])
        ordered.append(group[torch.randperm(len(group), generator=generator)])
    return torch.cat(ordered), torch.cat(asked)
