"""`apl demo`: an online episode on invented characters. Needs no data set."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import tyro

from apl.checkpoint import FOR_DRAWINGS
from apl.cli.options import TrainedModel
from apl.cli.terminal import table

SEED, SIDE = 1_000_000, 56
"""Of the invented alphabet; and the pixels of a drawing."""
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

    def run(self) -> None:
        import numpy as np

        from apl.classifier.online import OnlineClassifier
        from apl.data.glyphs import draw_glyphs
        from apl.progress import progress

        if self.way < 2 or self.drawings < 2:
            raise ValueError(f"way and drawings must be at least 2, got {self.way} and {self.drawings}")
        chance = np.random.default_rng(SEED)
        glyphs = draw_glyphs(self.way, self.drawings, chance, SIDE)
        right, met_before, stored = list[bool](), list[bool](), list[int]()
        with (
            OnlineClassifier.from_pretrained(self.model, ink="light", keep_images=False) as classifier,
            progress("drawings", len(glyphs)) as done,
        ):
            for number in chance.permutation(len(glyphs)):
                receipt = classifier.learn_one(glyphs.images[number, 0], int(glyphs.labels[number]))
                right.append(receipt.predicted == receipt.label)
                met_before.append(not receipt.new_label)
                stored.append(len(classifier))
                done(len(right))
        ends = np.unique(np.linspace(0, len(right), LINES + 1).astype(int)).tolist()
        lines = [
            (f"{start + 1} to {end}", f"{np.mean(right[start:end]):.0%}", stored[end - 1])
            for start, end in pairwise(ends)
        ]
        print(
            f"{self.way} invented characters, {len(right)} drawings, no gradient step:\n\n"
            f"{table(('drawings', 'named right', 'kept in memory'), lines)}\n\n"
            f"It kept {stored[-1]} drawings, {stored[-1] / self.way:.1f} per character, and named "
            f"{sum(right) / sum(met_before):.1%} of the characters that it had met before.\n\n"
            "Next: teach it your own labels from folders of images: apl learn DIR --memory letters.apl"
        )
