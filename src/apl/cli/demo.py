"""`apl demo`: an online episode on invented characters. Needs no data set."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import tyro

from apl.checkpoint import FOR_DRAWINGS
from apl.cli.options import JsonOption, TrainedModel
from apl.cli.terminal import print_json, table

SIDE = 56
"""Pixels of a drawing."""
LINES = 8
"""Lines of the table."""


@dataclass
class Command:
    """Watch the learner meet characters that nobody has ever seen, and stop writing once it knows them."""

    model: TrainedModel = FOR_DRAWINGS
    way: Annotated[int, tyro.conf.arg(metavar="CHARACTERS")] = 20
    """How many characters to invent."""
    drawings: Annotated[int, tyro.conf.arg(metavar="TIMES")] = 20
    """How often each is drawn."""
    seed: Annotated[int, tyro.conf.arg(metavar="NUMBER")] = 0
    """Another seed invents another alphabet."""
    json: JsonOption = False

    def run(self) -> None:
        if self.way < 2 or self.drawings < 2:
            raise ValueError(f"way and drawings must be at least 2, got {self.way} and {self.drawings}")
        if self.seed < 0:
            raise ValueError(f"seed must not be negative, got {self.seed}")
        right, met_before, stored = self._episode()
        known = [named for named, met in zip(right, met_before, strict=True) if met]
        summary = {
            "way": self.way,
            "examples": len(right),
            "accuracy": _mean(right),
            "accuracy_on_classes_met_before": _mean(known),
            "accuracy_last_100": _mean(right[-100:]),
            "stored": stored[-1],
            "stored_per_class": stored[-1] / self.way,
        }
        if self.json:
            print_json(summary)
            return
        ends = sorted({max(1, len(right) * line // LINES) for line in range(1, LINES + 1)})
        lines = [
            (f"{start + 1} to {end}", f"{_mean(right[start:end]):.0%}", stored[end - 1])
            for start, end in pairwise([0, *ends])
        ]
        print(
            f"{self.way} invented characters, {len(right)} drawings, no gradient step:\n\n"
            f"{table(('drawings', 'named right', 'kept in memory'), lines)}\n\n"
            f"It kept {stored[-1]} drawings, {stored[-1] / self.way:.1f} per character, and named "
            f"{_mean(known):.1%} of the characters that it had met before.\n\n"
            "Next: teach it your own labels from folders of images: apl learn DIR --memory letters.apl"
        )

    def _episode(self) -> tuple[list[bool], list[bool], list[int]]:
        """Of each drawing: whether it was named right, whether its character was met before, and the rows after it."""
        import numpy as np

        from apl.classifier.online import OnlineClassifier
        from apl.data.glyphs import draw_glyphs
        from apl.progress import progress

        generator = np.random.default_rng(1_000_000 + self.seed)
        glyphs = draw_glyphs(self.way, self.drawings, generator, SIDE)
        right, met_before, stored, met = [], [], [], set()
        with (
            OnlineClassifier.from_pretrained(self.model, ink="light", keep_images=False) as classifier,
            progress("drawings", len(glyphs)) as done,
        ):
            for number in generator.permutation(len(glyphs)):
                truth = int(glyphs.labels[number])
                receipt = classifier.learn_one(glyphs.images[number, 0], truth)
                right.append(receipt.predicted == truth)
                met_before.append(truth in met)
                stored.append(len(classifier))
                met.add(truth)
                done(len(right))
        return right, met_before, stored


def _mean(values: list[bool]) -> float:
    return sum(values) / max(1, len(values))
