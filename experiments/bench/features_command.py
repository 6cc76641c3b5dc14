"""Photographs and sentences, against what a user would take instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import arg


@dataclass
class Command:
    """Learn vectors of frozen encoders and write results/features.json. Needs ImageNet-mini and the intents (APL_DATA)."""

    draws: Annotated[int, arg(metavar="N")] = 10
    """Draws of 20 classes."""
    draws_of_all: Annotated[int, arg(metavar="N")] = 3
    """Draws of all classes."""
    only: Annotated[str, arg(metavar="TEXT")] = ""
    """Only the sets whose name contains this."""

    peers: bool = False
    """Instead: the published sets beside adaptive-classifier and SetFit, where they are installed (results/text-peers.json)."""

    def run(self) -> None:
        from experiments.bench.features import run, run_text_peers
        from experiments.bench.timing import threads

        if self.draws < 1 or self.draws_of_all < 1:
            raise ValueError("draws must be at least 1")
        with threads(1):
            print(run_text_peers() if self.peers else run(self.draws, self.draws_of_all, self.only))
