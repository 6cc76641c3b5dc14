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

from apl.cli.options import InkOption, JsonOption, MemoryOption, ModelOption, NameOption, open_classifier
from apl.cli.terminal import one_line, utf8

if TYPE_CHECKING:
    from apl.classifier.answers import Probabilities
    from apl.cli.found_examples import FoundExample
    from apl.store import Label


@dataclass
class Command:
    """Say what is on pictures, or what texts are about. One line each: which, label, its probability, that of a new
    class.

    Of a directory, all pictures in it; where its folders are labels that the memory knows, also how many answers are
    right. Likewise the texts of a table. A memory of texts (--model text) is asked with the text itself.
    """

    images: Annotated[list[str], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE|DIR|TEXT|TABLE …")]
    """Pictures or directories of pictures; texts or tables of texts (.csv, .tsv, .jsonl)."""
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
        from apl.cli.found_examples import PhotographCount

        check_new_above(self.new_above)
        if self.top < 1:
            raise ValueError(f"top must be at least 1, got {self.top}")
        if not self.images:
            raise ValueError("name at least one picture, or give a text")
        score = Score()
        with open_classifier(self.memory, self.name, self.model, ink=self.ink, read_only=True) as classifier:
            asked = list(self._texts() if classifier.input_kind == "text" else self._pictures())
            photographs = PhotographCount(classifier)
            known = classifier.counts()
            for found in asked:
                try:
                    example = found.open()
                    probabilities = classifier.predict_proba_one(example)
                except ValueError as error:
                    print(one_line(f"{found.where}: {error}"), file=sys.stderr)
                    score.unreadable += 1
                    continue
                photographs.add(example)
                self._tell(found, probabilities, known, score)
        if (remark := photographs.remark()) is not None:
            print(remark, file=sys.stderr)
        if any(found.label is not None for found in asked):
            print(json_format.dumps(score.to_dict()) if self.json else score)
        return 1 if score.unreadable else 0

    def _pictures(self) -> Iterator[FoundExample]:
        """Each picture, with the folder that may be its label if it was found in a directory."""
        from apl.cli.found_examples import FoundExample, files_below, folder_label, is_picture

        if "" in self.images:
            raise ValueError("the name of a picture is empty")
        for image in map(Path, self.images):
            if not image.is_dir():
                yield FoundExample(str(image), str(image), None, image)
                continue
            remarks: list[str] = []
            found = [path for path in files_below(image, remarks) if is_picture(path)]
            for remark in remarks:
                print(one_line(remark), file=sys.stderr)
            if not found:
                raise ValueError(f"no pictures in {image}")
            for path in found:
                folders = path.relative_to(image).parts[:-1]
                label = folder_label(folders[0] if folders else image.resolve().name)
                yield FoundExample(str(path), str(path), label, path)

    def _texts(self) -> Iterator[FoundExample]:
        from apl.cli.found_examples import FoundExample, table_examples
        from apl.cli.text_table import is_text_table

        for text in self.images:
            if is_text_table(Path(text)):
                yield from table_examples(Path(text))
            else:
                if Path(text).suffix and Path(text).is_file():
                    print(f"{text} is a file, and this memory takes text: its name is asked about", file=sys.stderr)
                yield FoundExample(text, text, None, text)

    def _tell(self, found: FoundExample, probabilities: Probabilities, known: dict[Label, int], score: Score) -> None:
        label, probability = next(iter(probabilities.items()), (None, 0.0))
        if self.new_above is not None and probabilities.new_class > self.new_above:
            label = None
        expected = None if found.label is None else as_label(found.label, known)
        score.add(label, expected, found.label)
        if not self.json:
            answer = "(new)" if label is None else one_line(label)
            print(f"{one_line(found.where)}\t{answer}\t{probability:.3f}\tnew {probabilities.new_class:.3f}")
            return
        told = {
            "text" if isinstance(found.content, str) else "image": utf8(str(found.content)),
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
            parts.append(f"{self.unknown} under {len(self.unknown_folders)} names that are no known labels")
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
