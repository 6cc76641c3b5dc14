"""Every experiment by name, in the order of the paper: what `apl reproduce NAME` runs."""

from __future__ import annotations

import importlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Experiment:
    """A table or figure: the function that measures it, and what the paper shows there."""

    module: str
    title: str
    paper: str
    function: str = "reproduce"

    def run(self, quick: bool) -> None:
        getattr(importlib.import_module(f"apl.paper.{self.module}"), self.function)(quick)


EXPERIMENTS = {
    "table1": Experiment(
        "table1",
        "Omniglot, fixed context",
        "5-way 97.9 / 99.9, 20-way 97.2 / 97.6, 423-way 73.5 / 88.0, 1000-way 68.9 / 78.9 (1 / 5 shots)",
    ),
    "online": Experiment("online", "5-way online episode", "fewer than 2 stored per class when it saturates"),
    "posterior": Experiment(
        "posterior",
        "Posterior of three inputs over a 20-way episode",
        "uniform at first, confident once the class was seen",
    ),
    "per-class": Experiment(
        "online", "Stored items per class, 20-way", "44 stored in all, 98.5 % accuracy", "reproduce_per_class"
    ),
    "thousand-way": Experiment(
        "thousand_way", "1000-way, accuracy against items written", "2000 written beat the fixed context of 5000"
    ),
    "mnist": Experiment("mnist", "Transfer to MNIST", "61 % at 1 shot; 86 % online with 45 stored per class"),
    "decoders": Experiment("decoders", "Decoders compared", "all three alike"),
    "sigma": Experiment(
        "sigma",
        "Threshold of surprise, 200-way",
        "flat over a wide range; σ = 0 slightly better at about 8 times the memory",
    ),
    "continual": Experiment("continual", "Continual learning", "as good as or better than a progressive network"),
    "lake": Experiment(
        "lake",
        "Lake's one-shot challenge, trained on the background set alone",
        "not in the paper; people err in 4.5 %, BPL 3.3 %, attentive recurrent comparators 1.5 %",
    ),
    "analogy": Experiment("analogy", "Number analogy", "97.6 % with one example per symbol; shuffled: beats one-shot"),
}
