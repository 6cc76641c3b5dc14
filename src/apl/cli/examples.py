"""Examples as people keep them: folders of pictures, one per label, tables of texts, and standard input."""

from __future__ import annotations

import hashlib
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from apl.cli.terminal import one_line, utf8
from apl.cli.text_table import is_text_table, read_text_table, read_texts
from apl.pictures.folders import picture_folders
from apl.pictures.image_file import open_image

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
    source: str = ""
    """Its place and a mark of its content, under which a memory keeps it; set by `with_source`."""

    def open(self) -> Any:
        return open_picture(self.content) if isinstance(self.content, Path) else self.content

    def with_source(self) -> FoundExample:
        """The source stays the same wherever the folder or the table is moved to. Raises `ValueError` if it cannot be read."""
        try:
            content = self.content.read_bytes() if isinstance(self.content, Path) else self.content.encode()
        except OSError as error:
            raise ValueError((error.strerror or "cannot be read").lower()) from None
        return replace(self, source=f"{self.place}#{hashlib.sha256(content).hexdigest()[:12]}")


def labelled_examples(place: Path) -> list[FoundExample]:
    """Examples to learn: those of DIR/LABEL/picture.png, or of a table with a text and a label in each line."""
    if is_text_table(place):
        return _texts_of(place, labelled=True)
    if not place.is_dir():
        raise ValueError(f"{place} is not a directory, nor a table of texts (.csv, .tsv, .jsonl)")
    return _pictures_in(place, labelled=True)


def asked_examples(names: list[str], kind: str) -> list[FoundExample]:
    """What the arguments of a command name, for a memory of texts or of pictures; - is standard input."""
    if not names:
        raise ValueError("name at least one picture, or give a text")
    asked = [example for name in names for example in (_text(name) if kind == "text" else _picture(name))]
    if not asked:
        raise ValueError("standard input is empty")
    return asked


def _text(name: str) -> list[FoundExample]:
    if name == "-":
        lines = read_texts(sys.stdin.buffer.read(), "standard input", "")
        return [FoundExample(f"standard input, line {one.line}", "-", normal(one.label), one.text) for one in lines]
    if is_text_table(Path(name)):
        return _texts_of(Path(name), labelled=False)
    if Path(name).suffix and Path(name).is_file():
        print(f"{name} is a file, and this memory takes text: its name is asked about", file=sys.stderr)
    return [FoundExample(name, name, None, name)]


def _texts_of(table: Path, labelled: bool) -> list[FoundExample]:
    lines = read_text_table(table, labelled)
    return [FoundExample(f"{table}, line {one.line}", table.name, normal(one.label), one.text) for one in lines]


def _picture(given: str) -> Iterator[FoundExample]:
    """A picture, or all of a directory."""
    for name in filter(None, sys.stdin.read().splitlines()) if given == "-" else (given,):
        if not name:
            raise ValueError("the name of a picture is empty")
        if Path(name).is_dir():
            yield from _pictures_in(Path(name), labelled=False)
        else:
            yield FoundExample(name, name, None, Path(name))


def _pictures_in(directory: Path, labelled: bool) -> list[FoundExample]:
    """The pictures in a directory's folders, which are their labels. A picture that lies outside of a folder is left out if
    examples must be `labelled`; otherwise the directory is its label. What is left out is reported."""
    found = picture_folders(directory)
    name, pictures, remarks = directory.resolve().name, found.pictures, found.remarks
    if labelled:
        remarks += [f"{folder}: no pictures inside" for folder, paths in pictures.items() if not paths]
        if loose := pictures.pop(directory, None):
            remarks.append(f"{directory}: {len(loose)} pictures lie outside of a folder, which would be their label")
        for folder in [folder for folder in pictures if utf8(folder.name) != folder.name]:
            remarks.append(f"{utf8(folder.name)}: left out, its name is not UTF-8 and cannot be a label")
            del pictures[folder]
    for folder, files in found.others.items():
        suffixes = sorted({path.suffix.lower() or path.name for path in files})
        remarks.append(f"{folder}: {len(files)} files left out ({', '.join(suffixes)})")
    if not any(pictures.values()):
        why = "".join(f"; {remark}" for remark in remarks)
        expected = f": expected {directory}/LABEL/picture.png{why}" if labelled else ""
        raise ValueError(f"no pictures in {directory}{expected}")
    for remark in remarks:
        print(one_line(remark), file=sys.stderr)
    return [
        FoundExample(str(path), utf8(f"{name}/{path.relative_to(directory).as_posix()}"), label, path)
        for folder, paths in sorted(pictures.items())
        for label in [normal(name if folder == directory else folder.name)]
        for path in paths
    ]


def normal(label: str | None) -> str | None:
    """A label in NFC. Some file systems keep Ü as U and two dots: the same letter must be the same label."""
    return None if label is None else unicodedata.normalize("NFC", label)


def open_picture(path: Path) -> Image.Image:
    """A picture to learn or to ask about; a `ValueError` says what is wrong with it."""
    image = open_image(path)
    if all(image.info.get(name) == text for name, text in EXPLANATION_MARK.items()):
        raise ValueError("this is a picture that `apl explain` made, not an example")
    return image
