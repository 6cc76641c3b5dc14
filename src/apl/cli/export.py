"""`apl export`: a trained model as ONNX graphs, for use without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from apl.cli.options import TrainedModel


@dataclass
class Command:
    """Write encoder.onnx and decoder.onnx beside a model's weights, so that it can be used where torch is not installed."""

    model: tyro.conf.Positional[TrainedModel]
    directory: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")] = None
    """Where the exported model goes, with a copy of its weights; by default the graphs go beside the weights."""

    def run(self) -> None:
        from apl.training.export import export_model

        made = export_model(self.model, self.directory)
        print(f"exported to {made}: OnlineClassifier.from_pretrained({str(made)!r}) needs no torch")
