"""`apl predict`: what pictures show, by a memory."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from apl.cli.options import InkOption, JsonOption, MemoryOption, ModelOption, NameOption

if TYPE_CHECKING:
    from apl.classifier.answers import Probabilities
    from apl.store import Label


@dataclass
class Command:
    """Say what is on pictures. One line each: file, label, its probability, and that of a new class.

    Of a directory, all pictures in it; where its folders are labels that the memory knows, also how many answers are
    right.
    """

    images: Annotated[list[Path], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE|DIR [IMAGE|DIR ...]")]
    """Pictures, or directories of pictures."""
    memory: MemoryOption
    name: NameOption = "default"
    model: ModelOption = None
    ink: InkOption = "auto"
    new_above: Annotated[float | None, tyro.conf.arg(metavar="PROBABILITY")] = None
    """Answer "(new)" when the probability of a new class exceeds this, from 0 to 1."""
    top: Annotated[int, tyro.conf.arg(metavar="LABELS")] = 5
    """With --json: so many of the most probable labels."""
    json: JsonOption = False
    """Print one JSON object per picture, and for directories one at the end with the accuracy."""

    def run(self) -> int:
        from apl.classifier.parameters import check_new_above
        from apl.cli.memory_option import open_classifier
        from apl.cli.picture_folder import open_picture

        check_new_above(self.new_above)
        if self.top < 1:
            raise ValueError(f"top must be at least 1, got {self.top}")
        files = list(self._files())
        score = Score()
        with open_classifier(self.memory, self.name, self.model, ink=self.ink, read_only=True) as classifier:
            known = classifier.counts()
            for path, folder in files:
                try:
                    probabilities = classifier.predict_proba_one(open_picture(path))
                except ValueError as error:
                    print(f"{path}: {error}", file=sys.stderr)
                    score.unreadable += 1
                    continue
                expected = None if folder is None else as_label(folder, known)
                self._tell(path, probabilities, expected, folder, score)
        if any(folder is not None for _, folder in files):
            print(json_format.dumps(score.to_dict()) if self.json else score)
        return 1 if score.unreadable else 0

    def _files(self) -> Iterator[tuple[Path, str | None]]:
        """Each picture, with the folder that may be its label if it was found in a directory."""
        from apl.cli.picture_folder import is_picture

        if not self.images:
            raise ValueError("name at least one picture")
        for image in self.images:
            if not image.is_dir():
                yield image, None
                continue
            found = sorted(path for path in image.rglob("*") if path.is_file() and is_picture(path))
            if not found:
                raise ValueError(f"no pictures in {image}")
            for path in found:
                folders = path.relative_to(image).parts[:-1]
                yield path, folders[0] if folders else image.resolve().name

    def _tell(
        self, path: Path, probabilities: Probabilities, expected: Label | None, folder: str | None, score: Score
    ) -> None:
        label, probability = next(iter(probabilities.items()), (None, 0.0))
        if self.new_above is not None and probabilities.new_class > self.new_above:
            label = None
        score.add(label, expected, folder)
        if not self.json:
            answer = "(new)" if label is None else label
            print(f"{path}\t{answer}\t{probability:.3f}\tnew {probabilities.new_class:.3f}")
            return
        told = {
            "image": str(path),
            "label": label,
            "probabilities": [{"label": name, "probability": p} for name, p in islice(probabilities.items(), self.top)],
            "probability_new": probabilities.new_class,
        }
        if expected is not None:
            told |= {"expected": expected, "right": label == expected}
        print(json_format.dumps(told, ensure_ascii=False))


@dataclass
class Score:
    """How many pictures of directories were answered by the name of their folder."""

    asked: int = 0
    right: int = 0
    unknown: int = 0
    """Pictures whose folder is no label that the memory knows."""
    unknown_folders: set[str] = field(default_factory=set)
    unreadable: int = 0

    def add(self, label: Label | None, expected: Label | None, folder: str | None) -> None:
        if expected is not None:
            self.asked += 1
            self.right += label == expected
        elif folder is not None:
            self.unknown += 1
            self.unknown_folders.add(folder)

    def to_dict(self) -> dict[str, object]:
        return {
            "asked": self.asked,
            "right": self.right,
            "accuracy": self.right / self.asked if self.asked else None,
            "of_unknown_labels": self.unknown,
            "unreadable": self.unreadable,
        }

    def __str__(self) -> str:
        parts = []
        if self.asked:
            parts.append(f"{self.right} of {self.asked} right ({self.right / self.asked:.1%})")
        if self.unknown:
            parts.append(f"{self.unknown} in {len(self.unknown_folders)} folders whose names are no known labels")
        if self.unreadable:
            parts.append(f"{self.unreadable} unreadable")
        return "; ".join(parts)


def as_label(folder: str, known: dict[Label, int]) -> Label | None:
    """The known label that a folder's name means: itself, or the number it spells."""
    if folder in known:
        return folder
    try:
        number = int(folder)
    except ValueError:
        return None
    return number if number in known else None
