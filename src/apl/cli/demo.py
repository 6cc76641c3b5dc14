"""`apl demo`: an online episode on invented characters. Needs no data set."""

from __future__ import annotations

import json as json_format
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from apl.checkpoint import FOR_DRAWINGS
from apl.cli.options import JsonOption, TrainedModel

if TYPE_CHECKING:
    from apl.data.glyphs import Glyphs

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
    picture: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also draw the curve and the characters into this file (needs matplotlib)."""
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
        if self.picture is not None:
            _check_drawable(self.picture)
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
        if self.picture is not None:
            _draw(glyphs, course, self.way, self.picture)
        print(json_format.dumps(course.summary(self.way)) if self.json else self._readable(course))

    def _readable(self, course: Course) -> str:
        summary = course.summary(self.way)
        drawn = "" if self.picture is None else f"The curve is in {self.picture}.\n"
        return (
            f"{self.way} invented characters, {len(course.right)} drawings, no gradient step:\n\n{course.table()}\n\n"
            f"It kept {course.stored[-1]} drawings, {summary['stored_per_class']:.1f} per character, and named "
            f"{summary['accuracy_on_classes_met_before']:.1%} of the characters that it had met before.\n"
            f"{drawn}\n"
            "Next: teach it your own labels from folders of images: apl learn DIR --memory letters.apl"
        )


@dataclass
class Course:
    """What happened at each drawing."""

    right: list[bool] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)
    on_known: list[bool] = field(default_factory=list)
    met: set[int] = field(default_factory=set)

    def add(self, truth: int, right: bool, stored: int) -> None:
        self.right.append(right)
        self.stored.append(stored)
        if truth in self.met:
            self.on_known.append(right)
        self.met.add(truth)

    def summary(self, way: int) -> dict[str, int | float]:
        return {
            "way": way,
            "examples": len(self.right),
            "accuracy": _mean(self.right),
            "accuracy_on_classes_met_before": _mean(self.on_known),
            "accuracy_last_100": _mean(self.right[-100:]),
            "stored": self.stored[-1],
            "stored_per_class": self.stored[-1] / way,
        }

    def table(self) -> str:
        from apl.cli.terminal import table

        ends = sorted({max(1, len(self.right) * line // LINES) for line in range(1, LINES + 1)})
        starts = [0, *ends[:-1]]
        lines = [
            (f"{start + 1} to {end}", f"{_mean(self.right[start:end]):.0%}", self.stored[end - 1])
            for start, end in zip(starts, ends, strict=True)
        ]
        return table(("drawings", "named right", "kept in memory"), lines)


def _mean(values: list[bool]) -> float:
    return sum(values) / max(1, len(values))


def _check_drawable(picture: Path) -> None:
    import importlib.util

    if not picture.resolve().parent.is_dir():
        raise ValueError(f"there is no folder {picture.resolve().parent} to put the picture in")
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("--picture needs matplotlib, which is not installed: pip install matplotlib")


def _draw(glyphs: Glyphs, course: Course, way: int, picture: Path) -> None:
    """The curve, and beside it a drawing of each character."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 4.8), layout="constrained")
    grid = figure.add_gridspec(5, 12)
    axes = figure.add_subplot(grid[:, :8])
    recent = [_mean(course.right[max(0, end - 25) : end]) for end in range(1, len(course.right) + 1)]
    axes.plot(recent, color="#c8443c", label="named right, of the last 25")
    axes.set(title=f"{way} invented characters, online", xlabel="drawings seen", ylim=(0, 1.02))
    axes.yaxis.set_major_formatter("{x:.0%}")
    kept = axes.twinx()
    kept.plot(course.stored, color="#33658a", label="drawings in memory")
    kept.set_ylim(0, max(3 * way, course.stored[-1]))
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    for label in range(min(way, 20)):
        place = figure.add_subplot(grid[label // 4, 8 + label % 4])
        place.imshow(255 - glyphs.images[int((glyphs.labels == label).argmax()), 0], cmap="gray")
        place.axis("off")
    figure.savefig(picture, format="png", dpi=100)
