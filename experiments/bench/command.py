"""Benches of OnlineClassifier, one result file per question."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Annotated

import tyro

from apl.checkpoint import FOR_DRAWINGS
from apl.cli.options import TrainedModel


@dataclass
class Command:
    """Measure OnlineClassifier and write results/NAME.json. All but `classifier-speed` need Omniglot (APL_DATA)."""

    name: Annotated[str, tyro.conf.Positional]
    """Which question."""
    model: TrainedModel = FOR_DRAWINGS

    def run(self) -> None:
        print(importlib.import_module(f"experiments.bench.{self.name.replace('-', '_')}").run(self.model))
