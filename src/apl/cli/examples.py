"""Examples as people keep them: folders of pictures, one per label, tables of texts, and standard input."""

from __future__ import annotations

import hashlib
import sys
import unicodedata
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from apl.cli.contact_sheet import MARK
from apl.cli.terminal import counted, remark, utf8
from apl.cli.text_table import is_text_table, read_texts
from apl.pictures.folders import picture_folders
from apl.pictures.image_file import open_image
from apl.store import Label


@dataclass(frozen=True)
class FoundExample:
    """A picture or a text somewhere, with the label it stands under."""

    where: str
    """For people: a path, or a table and its line."""
    place: str
    """A picture's folder, as it was named, and its path inside; or a table's name."""
    label: str | None
    content: Path | str
    """A picture's absolute path, or a text."""
    source: str = ""
    """Under which a memory keeps it; set by `with_source`."""

    def open(self) -> Any:
        return open_picture(self.content) if isinstance(self.content, Path) else self.content

    def named(self) -> dict[str, str]:
        """The picture's path or the text, as JSON shows it."""
        return {"image": utf8(self.where)} if isinstance(self.content, Path) else {"text": utf8(self.content)}

    def with_source(self) -> FoundExample:
        """A picture's place and a mark of its content, or a text's mark: lines of a table may move.

        The source stays the same wherever the folder or the table is moved to.
        """
        if isinstance(self.content, Path):
            return replace(self, source=f"{self.place}#{_mark(self.content.read_bytes())}")
        return replace(self, source=f"{self.place}/{_mark(self.content.encode('utf-8', 'surrogatepass'))}")


def _mark(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def place_of(source: str) -> str:
    """A source without the mark of a picture's content."""
    return source.rpartition("#")[0] or source


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
    asked = [example for name in names for example in (_texts(name) if kind == "text" else _pictures(name))]
    if not asked:
        raise ValueError("standard input is empty")
    return asked


def _texts(given: str) -> list[FoundExample]:
    if given == "-":
        return _text_lines(sys.stdin.buffer.read(), "standard input", "-")
    if is_text_table(Path(given)):
        return _texts_of(Path(given))
    if Path(given).suffix and Path(given).is_file():
        remark(f"{given} is a file, and this memory takes text: its name is asked about")
    return [FoundExample(given, given, None, given)]


def _texts_of(table: Path, labelled: bool = False) -> list[FoundExample]:
    return _text_lines(table.read_bytes(), str(table), table.name, table.suffix.lower(), labelled)


def _text_lines(content: bytes, name: str, place: str, suffix: str = "", labelled: bool = False) -> list[FoundExample]:
    lines = read_texts(content, name, suffix, labelled)
    return [FoundExample(f"{name}, line {one.line}", place, one.label and normal(one.label), one.text) for one in lines]


def _pictures(given: str) -> Iterator[FoundExample]:
    """A picture, or all of a directory."""
    for name in filter(None, sys.stdin.read().splitlines()) if given == "-" else (given,):
        if not name:
            raise ValueError("the name of a picture is empty")
        if Path(name).is_dir():
            yield from _pictures_in(Path(name))
        else:
            yield FoundExample(name, name, None, Path(name).absolute())


def _pictures_in(directory: Path, labelled: bool = False) -> list[FoundExample]:
    """The pictures in a directory's folders, which are their labels. A picture that lies outside of a folder is left out if
    examples must be `labelled`; otherwise the directory is its label. What is left out is reported."""
    found = picture_folders(directory)
    name, pictures, remarks = directory.resolve().name, found.pictures, found.remarks
    if labelled:
        remarks += [f"{folder}: no pictures inside" for folder, paths in pictures.items() if not paths]
        if loose := pictures.pop(directory, None):
            remarks.append(
                f"{directory}: {counted(len(loose), 'picture')} outside of a folder, which would be the label"
            )
        for folder in [folder for folder in pictures if utf8(folder.name) != folder.name]:
            remarks.append(f"{utf8(folder.name)}: left out, its name is not UTF-8 and cannot be a label")
            del pictures[folder]
    for folder, files in found.others.items():
        suffixes = sorted({path.suffix.lower() or path.name for path in files})
        remarks.append(f"{folder}: {counted(len(files), 'file')} left out ({', '.join(suffixes)})")
    if not any(pictures.values()):
        why = "".join(f"; {left_out}" for left_out in remarks)
        expected = f": expected {directory}/LABEL/picture.png{why}" if labelled else ""
        raise ValueError(f"no pictures in {directory}{expected}")
    for left_out in remarks:
        remark(left_out)
    return [
        FoundExample(str(path), utf8(f"{name}/{path.relative_to(directory).as_posix()}"), label, path.absolute())
        for folder, paths in sorted(pictures.items())
        for label in [normal(name if folder == directory else folder.name)]
        for path in paths
    ]


def normal(label: str) -> str:
    """A label in NFC. Some file systems keep Ü as U and two dots: the same letter must be the same label."""
    return unicodedata.normalize("NFC", label)


def as_label(name: str, known: Container[Label]) -> Label | None:
    """The known label that a name means: itself, or the number it spells."""
    number = int(name) if name.removeprefix("-").isdecimal() else None
    return next((label for label in (normal(name), number) if label in known), None)


def open_picture(path: Path) -> Image.Image:
    """A picture to learn or to ask about; a `ValueError` says what is wrong with it."""
    image = open_image(path)
    if image.info.get("Software") == MARK:
        raise ValueError("this is a picture that apl made, not an example")
    return image
