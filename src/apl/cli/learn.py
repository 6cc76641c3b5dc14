"""`apl learn`: a directory of pictures, one folder per label, into a memory."""

from __future__ import annotations

import hashlib
import json as json_format
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from apl.classifier.online import OnlineClassifier

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
FILES_AT_ONCE = 64
"""One transaction each: what an interrupted run has learnt so far stays learnt."""
SEEN_SETTING = "files seen/"


@dataclass
class Command:
    """Learn pictures from DIR/LABEL/picture.png. Run again, it learns only what is new or has changed."""

    directory: Annotated[Path, tyro.conf.Positional]
    """One folder per label, with pictures inside (in subfolders too)."""
    memory: str
    """Where the memory lives: a path such as letters.apl, or a URL."""
    name: str = "default"
    """The memory's name there."""
    model: str | None = None
    """A bundled model's name or a saved model's directory; by default the one the memory was made with, or omniglot."""
    max_rows: int | None = None
    """Keep at most so many rows."""
    sigma: float | None = None
    """The threshold of surprise in nats."""
    ink: str = "auto"
    """dark, light or auto."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        from apl.cli.memory_option import open_classifier
        from apl.cli.show import progress

        files = find_pictures(self.directory)
        parameters = {name: value for name in ("max_rows", "sigma") if (value := getattr(self, name)) is not None}
        with open_classifier(self.memory, self.name, self.model, ink=self.ink, **parameters) as classifier:
            seen = {
                mark
                for key, marks in classifier.store.settings().items()
                if key.startswith(SEEN_SETTING)
                for mark in marks
            }
            fresh = [(path, label, mark) for path, label in files if (mark := self._mark(path, label)) not in seen]
            result = {"learnt": 0, "written": 0, "evicted": 0, "unreadable": 0}
            result["already_known"] = len(files) - len(fresh)
            with progress("pictures", len(fresh)) as done:
                for start in range(0, len(fresh), FILES_AT_ONCE):
                    self._learn(classifier, fresh[start : start + FILES_AT_ONCE], result)
                    done(start + FILES_AT_ONCE)
            result |= {"rows": len(classifier), "classes": len(classifier.counts())}
        if self.json:
            print(json_format.dumps(result))
        else:
            print(", ".join(f"{name.replace('_', ' ')} {count}" for name, count in result.items()))
        return 1 if result["unreadable"] else 0

    def _source(self, path: Path) -> str:
        return path.relative_to(self.directory).as_posix()

    def _mark(self, path: Path, label: str) -> str:
        """Changes when the picture, its place or its label does."""
        told = f"{label}\0{self._source(path)}\0".encode()
        return hashlib.sha256(told + path.read_bytes()).hexdigest()[:16]

    def _learn(self, classifier: OnlineClassifier, files: list[tuple[Path, str, str]], result: dict[str, int]) -> None:
        images, labels, sources, marks = [], [], [], []
        for path, label, mark in files:
            try:
                images.append(open_picture(path))
            except (OSError, ValueError) as error:
                print(f"{path}: {error}", file=sys.stderr)
                result["unreadable"] += 1
                continue
            labels.append(label)
            sources.append(self._source(path))
            marks.append(mark)
        # A picture that changed under its old name replaces what was learnt from it.
        for source in set(sources):
            classifier.forget(source=source)
        # The examples that were no surprise leave no row, so what was seen is noted apart, in the same transaction.
        if not marks:
            return
        noted = {SEEN_SETTING + marks[0]: marks}
        receipts = classifier.learn_many(images, labels, sources=sources, settings=noted)
        result["learnt"] += len(receipts)
        result["written"] += sum(receipt.written for receipt in receipts)
        result["evicted"] += sum(len(receipt.evicted) for receipt in receipts)


def find_pictures(directory: Path) -> list[tuple[Path, str]]:
    """Pictures with their labels, which are the names of the folders directly inside the directory."""
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a directory")
    found = [
        (path, folder.name)
        for folder in sorted(directory.iterdir())
        if folder.is_dir()
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in SUFFIXES and path.is_file()
    ]
    if not found:
        raise ValueError(f"no pictures in {directory}: expected {directory}/LABEL/picture.png")
    return found


def open_picture(path: Path):
    from PIL import Image, UnidentifiedImageError

    from apl.classifier.images import read_image

    try:
        with Image.open(path) as image:
            image.load()
            read_image(image)
            return image
    except UnidentifiedImageError:
        raise ValueError("not a picture") from None
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
