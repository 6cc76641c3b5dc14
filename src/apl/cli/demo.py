"""`apl demo`: an online episode on invented characters, live, with a picture at the end. Needs no data set."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from apl.checkpoint import FOR_DRAWINGS
from apl.cli.options import JsonOption, TrainedModel

if TYPE_CHECKING:
    from PIL import Image

    from apl.data.glyphs import Glyphs

SIDE = 56
"""Pixels of a drawing."""
OURS, OTHER = "#c8443c", "#33658a"


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
    picture: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("apl-demo.png")
    """Where the curve goes."""
    json: JsonOption = False

    def run(self) -> None:
        import numpy as np

        from apl.classifier.online import OnlineClassifier
        from apl.data.glyphs import draw_glyphs

        if self.way < 2 or self.drawings < 2:
            raise ValueError(f"way and drawings must be at least 2, got {self.way} and {self.drawings}")
        if self.seed < 0:
            raise ValueError(f"seed must not be negative, got {self.seed}")
        if not self.picture.resolve().parent.is_dir():
            raise ValueError(f"there is no folder {self.picture.resolve().parent} to put the picture in")
        generator = np.random.default_rng(1_000_000 + self.seed)
        glyphs = draw_glyphs(self.way, self.drawings, generator, SIDE)
        right: list[bool] = []
        stored: list[int] = []
        met: set[int] = set()
        on_known: list[bool] = []
        with (
            OnlineClassifier.from_pretrained(self.model, ink="light", keep_images=False) as classifier,
            _Screen(self.way, len(glyphs)) as show,
        ):
            for number in generator.permutation(len(glyphs)):
                truth = int(glyphs.labels[number])
                receipt = classifier.learn_one(glyphs.images[number, 0], truth)
                right.append(receipt.predicted == truth)
                stored.append(len(classifier))
                if truth in met:
                    on_known.append(right[-1])
                met.add(truth)
                show(right, stored, len(met))
        summary = {
            "way": self.way,
            "examples": len(right),
            "accuracy": sum(right) / len(right),
            "accuracy_on_classes_met_before": sum(on_known) / len(on_known),
            "accuracy_last_100": sum(right[-100:]) / len(right[-100:]),
            "stored": stored[-1],
            "stored_per_class": stored[-1] / self.way,
            "picture": str(self.picture),
        }
        _drawn(glyphs, right, stored, self.way).save(self.picture, "PNG")
        if self.json:
            print(json_format.dumps(summary))
            return
        print(
            f"\n{self.way} invented characters, {len(right)} drawings, no gradient step:\n"
            f"  right on characters met before   {summary['accuracy_on_classes_met_before']:.1%}\n"
            f"  right on the last 100            {summary['accuracy_last_100']:.1%}\n"
            f"  kept in memory                   {stored[-1]} drawings, {stored[-1] / self.way:.1f} per character\n"
            f"  the curve                        {self.picture}\n\n"
            "Next: teach it your own labels from folders of images: apl learn DIR --memory letters.apl"
        )


class _Screen:
    """A live line on a terminal; a line now and then elsewhere."""

    def __init__(self, way: int, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(stderr=True)
        self.way, self.total, self.live = way, total, console.is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"))
        self.bar = Progress(*columns, console=console, disable=not self.live)
        self.task = self.bar.add_task("drawings", total=total, figures="")

    def __enter__(self) -> Callable[[list[bool], list[int], int], None]:
        self.bar.start()
        return self.show

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def show(self, right: list[bool], stored: list[int], met: int) -> None:
        recent = right[-50:]
        figures = (
            f"{len(right):>4} seen  {met:>3} characters met  {sum(recent) / len(recent):>4.0%} right of the last 50  "
            f"{stored[-1]:>3} in memory"
        )
        self.bar.update(self.task, completed=len(right), figures=figures)
        if not self.live and (len(right) % 50 == 0 or len(right) == self.total):
            print(figures, file=sys.stderr)


def _drawn(glyphs: Glyphs, right: list[bool], stored: list[int], way: int) -> Image.Image:
    """The curve, and beside it a drawing of each character."""
    from apl.cli.chart import Curve, beside, chart

    recent = [sum(part) / len(part) for end in range(1, len(right) + 1) if (part := right[max(0, end - 25) : end])]
    curve = chart(
        f"{way} invented characters, online",
        "drawings seen",
        Curve(recent, 1.0, OURS, "right, of the last 25", percent=True),
        Curve(stored, max(3 * way, stored[-1]), OTHER, "drawings in memory"),
    )
    return beside(curve, _alphabet(glyphs, min(way, 20)))


def _alphabet(glyphs: Glyphs, shown: int) -> Image.Image:
    from PIL import Image

    columns, gap = 4, 10
    sheet = Image.new("RGB", (columns * (SIDE + gap) + gap, -(-shown // columns) * (SIDE + gap) + gap), "white")
    for label in range(shown):
        first = int((glyphs.labels == label).argmax())
        where = gap + label % columns * (SIDE + gap), gap + label // columns * (SIDE + gap)
        sheet.paste(Image.fromarray(255 - glyphs.images[first, 0]), where)
    return sheet
