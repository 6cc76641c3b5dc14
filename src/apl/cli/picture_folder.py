"""Folders of pictures as people keep them: one folder per label, and things beside that are no pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from apl.image_file import SUFFIXES, open_image

EXPLANATION_MARK = {"Software": "apl explain"}
"""The text that `apl explain` puts into its pictures, so that they are never learnt by mistake."""


@dataclass(frozen=True)
class Folder:
    """What is in a directory."""

    pictures: tuple[tuple[Path, str], ...]
    """Pictures with their labels, which are the names of the folders directly inside the directory."""
    remarks: tuple[str, ...]
    """What was left out, in words."""


def find_pictures(directory: Path) -> Folder:
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a directory")
    labels = sorted(path for path in directory.iterdir() if path.is_dir() and not _hidden(path))
    found: list[tuple[Path, str]] = []
    remarks: list[str] = []
    for folder in labels:
        files = sorted(path for path in folder.rglob("*") if path.is_file() and not _hidden(path))
        pictures = [path for path in files if is_picture(path)]
        found += [(path, folder.name) for path in pictures]
        if len(pictures) < len(files):
            others = sorted({path.suffix.lower() or path.name for path in files if not is_picture(path)})
            remarks.append(f"{folder}: {len(files) - len(pictures)} files left out ({', '.join(others)})")
        if not pictures:
            remarks.append(f"{folder}: no pictures inside")
    loose = sum(path.is_file() and is_picture(path) for path in directory.iterdir())
    if loose:
        remarks.append(f"{directory}: {loose} pictures lie outside of a folder that would be their label: left out")
    if not found:
        told = "".join(f"; {remark}" for remark in remarks)
        raise ValueError(f"no pictures in {directory}: expected {directory}/LABEL/picture.png{told}")
    return Folder(tuple(found), tuple(remarks))


def is_picture(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def open_picture(path: Path) -> Image.Image:
    """A picture to learn or to ask about; a `ValueError` says what is wrong with it."""
    image = open_image(path)
    if all(image.info.get(name) == text for name, text in EXPLANATION_MARK.items()):
        raise ValueError("this is a picture that `apl explain` made, not an example")
    return image


def _hidden(path: Path) -> bool:
    return path.name.startswith(".")
