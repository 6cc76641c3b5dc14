"""`apl predict`: what pictures show, by a memory."""

from __future__ import annotations

import json as json_format
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass
class Command:
    """Say what is on pictures. One line each: file, label, its probability, and that of a new class."""

    images: Annotated[list[Path], tyro.conf.Positional]
    memory: str
    """Where the memory lives: a path such as letters.apl, or a URL."""
    name: str = "default"
    model: str | None = None
    """By default the model the memory was made with."""
    ink: str = "auto"
    """dark, light or auto."""
    new_above: float | None = None
    """Answer "new" when the probability of a new class exceeds this."""
    top: int = 5
    """With --json: so many of the most probable labels."""
    json: bool = False
    """Print one JSON object per picture."""

    def run(self) -> None:
        from itertools import islice

        from apl.cli.learn import open_picture
        from apl.cli.memory_option import open_classifier

        if not self.images:
            raise ValueError("name at least one picture")
        with open_classifier(self.memory, self.name, self.model, ink=self.ink, read_only=True) as classifier:
            for path in self.images:
                probabilities = classifier.predict_proba_one(open_picture(path))
                label, probability = next(iter(probabilities.items()), (None, 0.0))
                is_new = self.new_above is not None and probabilities.new_class > self.new_above
                if self.json:
                    best = [{"label": label, "probability": p} for label, p in islice(probabilities.items(), self.top)]
                    print(
                        json_format.dumps(
                            {
                                "image": str(path),
                                "label": None if is_new else label,
                                "probabilities": best,
                                "probability_new": probabilities.new_class,
                            },
                            ensure_ascii=False,
                        )
                    )
                else:
                    answer = "(new)" if is_new or label is None else label
                    print(f"{path}\t{answer}\t{probability:.3f}\tnew {probabilities.new_class:.3f}")
