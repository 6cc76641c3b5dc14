"""Every experiment by name, in the order of the paper: what `python -m experiments NAME` runs."""

from __future__ import annotations

import importlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Experiment:
    """A table or figure, and the function that measures it; what the paper says of it stands in `verdicts.py`."""

    module: str
    title: str
    function: str = "reproduce"
    needs: str = "omniglot"
    """The model it cannot do without: part of the package, or of a checkout."""

    def run(self, quick: bool) -> None:
        getattr(importlib.import_module(f"experiments.paper.{self.module}"), self.function)(quick)


EXPERIMENTS = {
    "table1": Experiment("table1", "Omniglot, fixed context"),
    "fixed-labels": Experiment("fixed_labels", "Omniglot, the paper's labels and decoder"),
    "paper-form": Experiment("paper_form", "The paper's system alone", needs="paper-recipe"),
    "ablations": Experiment("ablations", "What each choice of the training is worth", needs="paper-recipe"),
    "online": Experiment("online", "5-way online episode"),
    "posterior": Experiment("posterior", "Posterior of three inputs over a 20-way episode"),
    "per-class": Experiment("online", "Stored items per class, 20-way", "reproduce_per_class"),
    "thousand-way": Experiment("thousand_way", "1000-way, accuracy against items written"),
    "mnist": Experiment("mnist", "Transfer to MNIST"),
    "pens": Experiment("pens", "Other pens", needs="drawings"),
    "decoders": Experiment("decoders", "Decoders compared"),
    "sigma": Experiment("sigma", "Threshold of surprise, 200-way"),
    "continual": Experiment("continual", "Continual learning"),
    "lake": Experiment("lake", "Lake's one-shot challenge, trained on the background set alone", needs="lake"),
    "imagenet": Experiment("imagenet", "ImageNet, shuffled labels, frozen encoder"),
    "analogy": Experiment("analogy", "Number analogy", needs="analogy-shuffled"),
    "baselines": Experiment("baselines", "Published methods on the same embeddings"),
}
