"""`apl demo`: an online episode on invented characters. Needs no data set."""

from __future__ import annotations

import json as json_format
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated

import tyro

from apl.checkpoint import FOR_DRAWINGS
from apl.cli.options import JsonOption, TrainedModel
from apl.cli.terminal import table

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
        import numpy as np

        from apl.classifier.online import OnlineClassifier
        from apl.data.glyphs import draw_glyphs
        from apl.progress import progress

        if self.way < 2 or self.drawings < 2:
            raise ValueError(f"way and drawings must be at least 2, got {self.way} and {self.drawings}")
        if self.seed < 0:
            raise ValueError(f"seed must not be negative, got {self.seed}")
        generator = np.random.default_rng(1_000_000 + self.seed)
        glyphs = draw_glyphs(self.way, self.drawings, generator, SIDE)
        course = Course()
        with (
            OnlineClassifier.from_pretrained(self.model, ink="light", keep_images=False) as classifier,
            progress("drawings", len(glyphs)) as done,
        ):
            for number in generator.permutation(len(glyphs)):
                truth = int(glyphs.labels[number])
                receipt = classifier.learn_one(glyphs.images[number, 0], truth)
                course.add(truth, receipt.predicted == truth, len(classifier))
                done(len(course.right))
        print(json_format.dumps(course.summary()) if self.json else self._readable(course))

    def _readable(self, course: Course) -> str:
        summary = course.summary()
        return (
            f"{self.way} invented characters, {len(course.right)} drawings, no gradient step:\n\n{course.table()}\n\n"
            f"It kept {course.stored[-1]} drawings, {summary['stored_per_class']:.1f} per character, and named "
            f"{summary['accuracy_on_classes_met_before']:.1%} of the characters that it had met before.\n\n"
            "Next: teach it your own labels from folders of images: apl learn DIR --memory letters.apl"
        )


@dataclass
class Course:
    """What happened at each drawing."""

    right: list[bool] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)
    truths: list[int] = field(default_factory=list)

    def add(self, truth: int, right: bool, stored: int) -> None:
        self.right.append(right)
        self.stored.append(stored)
        self.truths.append(truth)

    def summary(self) -> dict[str, int | float]:
        met_before = [self.truths.index(truth) < number for number, truth in enumerate(self.truths)]
        way = len(set(self.truths))
        return {
            "way": way,
            "examples": len(self.right),
            "accuracy": _mean(self.right),
            "accuracy_on_classes_met_before": _mean([r for r, met in zip(self.right, met_before, strict=True) if met]),
            "accuracy_last_100": _mean(self.right[-100:]),
            "stored": self.stored[-1],
            "stored_per_class": self.stored[-1] / way,
        }

    def table(self) -> str:
        ends = sorted({max(1, len(self.right) * line // LINES) for line in range(1, LINES + 1)})
        lines = [
            (f"{start + 1} to {end}", f"{_mean(self.right[start:end]):.0%}", self.stored[end - 1])
            for start, end in pairwise([0, *ends])
        ]
        return table(("drawings", "named right", "kept in memory"), lines)


def _mean(values: list[bool]) -> float:
    return sum(values) / max(1, len(values))
