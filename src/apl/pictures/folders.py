"""Pictures in the folders of a directory, as people sort them: one folder per class, folders inside and links to others."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from apl.pictures.image_file import SUFFIXES


@dataclass
class PictureFolders:
    """What a directory holds. Hidden files and folders are left out."""

    pictures: dict[Path, list[Path]] = field(default_factory=dict)
    """The pictures below each folder of the directory, in order; those outside of a folder under the directory itself."""
    others: dict[Path, list[Path]] = field(default_factory=dict)
    """Files that are no pictures, likewise."""
    remarks: list[str] = field(default_factory=list)
    """One line for each thing that could not be entered or read."""


def picture_folders(directory: Path) -> PictureFolders:
    """Links are followed; those that lead nowhere, or back to a folder that was entered before, are left out with a remark."""
    found = PictureFolders()
    entered = {directory.resolve()}

    def failed(error: OSError) -> None:
        found.remarks.append(f"{error.filename}: {(error.strerror or 'cannot be read').lower()}")

    for place, folders, names in os.walk(directory, onerror=failed, followlinks=True):
        inner = [Path(place, name) for name in sorted(folders) if not name.startswith(".")]
        back = [path for path in inner if path.is_symlink() and _leads_back(path, entered)]
        found.remarks += [f"{path}: left out, a link back to a folder above or beside it" for path in back]
        folders[:] = [path.name for path in inner if path not in back]
        entered |= {path.resolve() for path in inner}
        parts = Path(place).relative_to(directory).parts
        for path in (Path(place, name) for name in sorted(names) if not name.startswith(".")):
            if path.is_file():
                kind = found.pictures if path.suffix.lower() in SUFFIXES else found.others
                kind.setdefault(directory.joinpath(*parts[:1]), []).append(path)
            else:
                found.remarks.append(f"{path}: left out, a link that leads nowhere or no file at all")
        if not parts:
            found.pictures |= {Path(place, name): [] for name in folders}
    for paths in found.pictures.values():
        paths.sort()
    return found


def _leads_back(link: Path, entered: set[Path]) -> bool:
    target = link.resolve()
    return target in entered or link.parent.resolve().is_relative_to(target)
