"""A folder of your own pictures, one folder per class, as a data set to train on.

Pictures are prepared as the classifier prepares them: as drawings in grey, or as photographs in colour. Whole classes are
held out: one in six for validation, one in six for the test, chosen by the hash of their names. Adding or removing a class
changes the split.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from apl.data import Part
from apl.data.files import DataError
from apl.data.labelled import LabelledImages
from apl.data.omniglot import SplitClasses
from apl.pictures.drawings import fit, read_image
from apl.pictures.folders import picture_folders
from apl.pictures.image_file import open_image
from apl.pictures.photographs import fit_coloured, read_coloured

FEWEST_CLASSES = 6
FEWEST_PICTURES = 6
"""Of each class: five to know it by and one to ask about."""
WRONG_NAMED = 20
COLOURED = 8
"""How far, of 255, the channels of a coloured picture lie from their mean."""


def load_folder(directory: str, part: Part, size: int, colour: bool = False) -> LabelledImages:
    """One part of the folder, its classes in the order of their names."""
    pictures = _pictures(Path(directory))
    chosen = getattr(split_folder(directory), part)
    images, labels, wrong = [], [], []
    for label, name in enumerate(chosen):
        for path in pictures[name]:
            labels.append(label)
            try:
                image = open_image(path)
                images.append(
                    fit_coloured([read_coloured(image, size)], size) if colour else fit([read_image(image)], size)
                )
            except ValueError as error:
                wrong.append(f"{path}: {error}")
    if wrong:
        some = "; ".join(wrong[:WRONG_NAMED])
        raise DataError(f"{len(wrong)} pictures cannot be read, repair them or move them away: {some}")
    return LabelledImages(torch.from_numpy(np.concatenate(images)), torch.tensor(labels), chosen)


def has_colours(directory: str) -> bool:
    """Whether most of its classes begin with a picture that is more than shades of one colour."""
    hues = []
    for path, *_ in _pictures(Path(directory)).values():
        with suppress(ValueError):  # loading it will say so
            hues.append(np.asarray(open_image(path).convert("RGB").resize((32, 32)), int))
    return sum(bool(np.abs(rgb - rgb.mean(2, keepdims=True)).mean() > COLOURED) for rgb in hues) * 2 > len(hues)


def split_folder(directory: str) -> SplitClasses:
    names = sorted(_pictures(Path(directory)), key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    held_out = max(2, len(names) // 6)
    test, validation, train = names[:held_out], names[held_out : 2 * held_out], names[2 * held_out :]
    return SplitClasses(tuple(sorted(train)), tuple(sorted(validation)), tuple(sorted(test)))


def _pictures(directory: Path) -> dict[str, list[Path]]:
    if not directory.is_dir():
        raise DataError(f"{directory} is not a directory")
    pictures = picture_folders(directory).pictures
    found = {folder.name: paths for folder, paths in sorted(pictures.items()) if folder != directory}
    small = [name for name, paths in found.items() if len(paths) < FEWEST_PICTURES]
    if small:
        raise DataError(
            f"{directory}/{small[0]} holds fewer than {FEWEST_PICTURES} pictures: add some, or move it away"
        )
    if len(found) < FEWEST_CLASSES:
        raise DataError(f"{directory} holds {len(found)} folders of pictures: training needs {FEWEST_CLASSES} classes")
    return found
