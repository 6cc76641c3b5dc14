"""Examples as people keep them: folders of pictures, one per label, and tables of texts."""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from apl.cli.terminal import utf8
from apl.cli.text_table import TextLine, is_text_table, read_text_table
from apl.pictures.image_file import SUFFIXES, open_image

EXPLANATION_MARK = {"Software": "apl explain"}
"""The text that `apl explain` puts into its pictures, so that they are never learnt by mistake."""


@dataclass(frozen=True)
class FoundExample:
    """A picture or a text somewhere, with the label it stands under."""

    where: str
    """For people: a path, or a table and its line."""
    place: str
    """A picture's folder, as it was named, and its path inside; or a table's name."""
    label: str | None
    content: Path | str

    def open(self) -> Any:
        return open_picture(self.content) if isinstance(self.content, Path) else self.content

    def source(self) -> str:
        """Its place and a mark of its content. It stays the same wherever the folder or the table is moved to."""
        try:
            content = self.content.read_bytes() if isinstance(self.content, Path) else self.content.encode()
        except OSError as error:
            raise ValueError((error.strerror or "cannot be read").lower()) from None
        return f"{self.place}#{hashlib.sha256(content).hexdigest()[:12]}"


@dataclass(frozen=True)
class FoundExamples:
    """What is in a directory or a table."""

    examples: tuple[FoundExample, ...]
    remarks: tuple[str, ...]
    """One line for each thing that was left out."""


def find_examples(place: Path) -> FoundExamples:
    """Labelled examples to learn: those of DIR/LABEL/picture.png, or of a table with a text and a label in each line."""
    if is_text_table(place):
        return FoundExamples(tuple(table_examples(place)), ())
    if not place.is_dir():
        raise ValueError(f"{place} is not a directory, nor a table of texts (.csv, .tsv, .jsonl)")
    return _find_pictures(place)


def table_examples(table: Path, labelled: bool = True) -> Iterator[FoundExample]:
    for line in read_text_table(table, labelled):
        yield text_example(line, str(table), table.name)


def text_example(line: TextLine, where: str, name: str) -> FoundExample:
    return FoundExample(f"{where}, line {line.line}", name, normal(line.label), line.text)


def _find_pictures(directory: Path) -> FoundExamples:
    labels = sorted(path for path in directory.iterdir() if path.is_dir() and not _hidden(path.name))
    name = directory.resolve().name
    found: list[FoundExample] = []
    remarks: list[str] = []
    for folder in labels:
        if utf8(folder.name) != folder.name:
            remarks.append(f"{utf8(folder.name)}: left out, its name is not UTF-8 and cannot be a label")
            continue
        if directory.resolve().is_relative_to(folder.resolve()):
            remarks.append(f"{folder}: left out, a link back to where it lies")
            continue
        files = files_below(folder, remarks)
        pictures = [path for path in files if is_picture(path)]
        found += [
            FoundExample(str(path), utf8(f"{name}/{path.relative_to(directory).as_posix()}"), normal(folder.name), path)
            for path in pictures
        ]
        if len(pictures) < len(files):
            others = sorted({path.suffix.lower() or path.name for path in files if not is_picture(path)})
            remarks.append(f"{folder}: {len(files) - len(pictures)} files left out ({', '.join(others)})")
        if not pictures:
            remarks.append(f"{folder}: no pictures inside")
    loose = sum(path.is_file() and is_picture(path) for path in directory.iterdir())
    if loose:
        remarks.append(f"{directory}: {loose} pictures lie outside of a folder that would be their label: left out")
    if not found:
        why = "".join(f"; {remark}" for remark in remarks)
        raise ValueError(f"no pictures in {directory}: expected {directory}/LABEL/picture.png{why}")
    return FoundExamples(tuple(found), tuple(remarks))


def normal(label: str | None) -> str | None:
    """A label in NFC. Some file systems keep Ü as U and two dots: the same letter must be the same label."""
    return None if label is None else unicodedata.normalize("NFC", label)


def files_below(folder: Path, remarks: list[str]) -> list[Path]:
    """Every file in a folder and in its folders, linked ones included; hidden ones are left out.

    Links that lead nowhere, or back to a folder that was entered before, are left out with a remark.
    """
    found: list[Path] = []
    entered = {folder.resolve()}
    for place, folders, names in os.walk(
        folder, onerror=lambda error: remarks.append(_failure(error)), followlinks=True
    ):
        inner = [Path(place, name) for name in sorted(folders) if not _hidden(name)]
        back = [path for path in inner if path.is_symlink() and _leads_back(path, entered)]
        remarks += [f"{path}: left out, a link back to a folder above or beside it" for path in back]
        folders[:] = [path.name for path in inner if path not in back]
        entered |= {path.resolve() for path in inner}
        for path in (Path(place, name) for name in names if not _hidden(name)):
            if path.is_file():
                found.append(path)
            else:
                remarks.append(f"{path}: left out, a link that leads nowhere or no file at all")
    return sorted(found)


def _leads_back(link: Path, entered: set[Path]) -> bool:
    target = link.resolve()
    return target in entered or link.parent.resolve().is_relative_to(target)


def is_picture(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def open_picture(path: Path) -> Image.Image:
    """A picture to learn or to ask about; a `ValueError` says what is wrong with it."""
    image = open_image(path)
    if all(image.info.get(name) == text for name, text in EXPLANATION_MARK.items()):
        raise ValueError("this is a picture that `apl explain` made, not an example")
    return image


def _hidden(name: str) -> bool:
    return name.startswith(".")


def _failure(error: OSError) -> str:
    return f"{error.filename}: {(error.strerror or 'cannot be read').lower()}"
