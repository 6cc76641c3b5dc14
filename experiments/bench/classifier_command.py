"""What the classifier costs and is worth, one result file per question."""

from __future__ import annotations

import importlib
import json as json_format
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from apl.checkpoint import FOR_DRAWINGS
from apl.cli.options import JsonOption, TrainedModel


@dataclass
class Command:
    """Measure the classifier and write results/*.json. All but `classifier-speed` need Omniglot.

    classifier-speed: against the bare encoder, and durable insert-then-search against a numpy scan. peers: against what a user
    would take instead. calibration: whether probabilities mean what they say. eviction: the rule for a full memory
    against random and oldest. order: how much the order of the examples matters.
    """

    what: Annotated[Literal["classifier-speed", "peers", "calibration", "eviction", "order"], tyro.conf.Positional]
    """Which question."""
    model: TrainedModel = FOR_DRAWINGS
    json: JsonOption = False

    def run(self) -> None:
        from experiments.bench.timing import threads

        module = importlib.import_module(f"experiments.bench.{self.what.replace('-', '_')}")
        with threads(1):
            path = module.run(self.model)
        result = json_format.loads(path.read_text())
        if self.json:
            print(json_format.dumps(result))
            return
        for row in result["rows"]:
            print("  ".join(f"{name} {_short(value)}" for name, value in row.items()))
        print(path)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
