"""A folder of one's own pictures, one folder per class, as a data set to train on.

Pictures of any size and colour become square and grey, the ground dark. Whole classes are held out: one in six to validate
on, one in six to test on, chosen by the hash of their names, so that a class stays on its side when others are added.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

from apl.data.files import DataError
from apl.data.labelled import LabelledImages
from apl.data.omniglot import Part, SplitClasses
from apl.pictures.image_file import SUFFIXES, open_image

FEWEST_CLASSES = 6
FEWEST_PICTURES = 6
"""Of each class: five to know it by and one to ask about."""


def load_folder(directory: str, part: Part, size: int) -> LabelledImages:
    """One part of the folder, its classes in the order of their names."""
    pictures = _pictures(Path(directory))
    chosen = getattr(split_folder(directory), part)
    images, labels = [], []
    for label, name in enumerate(chosen):
        for path in pictures[name]:
            try:
                images.append(_square(open_image(path), size))
            except ValueError as error:
                raise DataError(f"{path}: {error}") from None
            labels.append(label)
    return LabelledImages(torch.from_numpy(np.stack(images)[:, None]), torch.tensor(labels), chosen)


def split_folder(directory: str) -> SplitClasses:
    names = sorted(_pictures(Path(directory)), key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    held_out = max(2, len(names) // 6)
    test, validation, train = names[:held_out], names[held_out : 2 * held_out], names[2 * held_out :]
    return SplitClasses(tuple(sorted(train)), tuple(sorted(validation)), tuple(sorted(test)))


def _pictures(directory: Path) -> dict[str, list[Path]]:
    if not directory.is_dir():
        raise DataError(f"{directory} is not a directory")
    found = {
        folder.name: sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
        for folder in sorted(directory.iterdir())
        if folder.is_dir() and not folder.name.startswith(".")
    }
    small = [name for name, paths in found.items() if len(paths) < FEWEST_PICTURES]
    if small:
        raise DataError(
            f"{directory}/{small[0]} holds fewer than {FEWEST_PICTURES} pictures: add some, or move it away"
        )
    if len(found) < FEWEST_CLASSES:
        raise DataError(f"{directory} holds {len(found)} folders of pictures: training needs {FEWEST_CLASSES} classes")
    return found


def _square(image: Image.Image, size: int) -> np.ndarray:
    """Grey, a square of this size, the ground (what most of the border shows) dark."""
    grey = image.convert("L")
    pixels = np.asarray(grey)
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    if np.median(border) > 127:
        grey = ImageOps.invert(grey)
    ground = int(min(np.median(border), 255 - np.median(border)))
    return np.asarray(ImageOps.pad(grey, (size, size), Image.Resampling.LANCZOS, color=ground))
