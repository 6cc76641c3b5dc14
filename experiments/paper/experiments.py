"""Every experiment by name, in the order of the paper: what `python -m experiments NAME` runs."""

from __future__ import annotations

import importlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Experiment:
    """A table or figure, and the function that measures it."""

    module: str
    """Below `experiments`."""
    title: str
    function: str = "reproduce"
    needs: str = "omniglot"
    """The model it cannot do without: part of the package, or of a checkout."""

    def run(self, quick: bool) -> None:
        getattr(importlib.import_module(f"experiments.{self.module}"), self.function)(quick)


EXPERIMENTS = {
    "paper-form": Experiment("paper.paper_form", "The paper's system alone", needs="paper-recipe-20way"),
    "extended": Experiment("paper.paper_form", "Our extension on the same figures", "reproduce_extended"),
    "ablations": Experiment("paper.ablations", "What each choice of the training is worth", needs="paper-recipe-20way"),
    "lake": Experiment("paper.lake", "Lake's one-shot challenge, trained on the background set alone", needs="lake"),
    "imagenet": Experiment("paper.imagenet", "ImageNet, shuffled labels, frozen encoder"),
    "analogy": Experiment("paper.analogy", "Number analogy", needs="digits"),
    "baselines": Experiment("bench.baselines", "OnlineClassifier beside simple methods, on Omniglot"),
    "peers": Experiment("bench.baselines", "OnlineClassifier beside simple methods, on streams", "reproduce_peers"),
}
