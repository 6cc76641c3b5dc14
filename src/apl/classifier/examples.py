"""Examples as a user hands them over, checked and ready to be embedded: pictures or vectors; and their labels."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Num

from apl.classifier.embedded import Embedded
from apl.classifier.encoded import EncodedExamples
from apl.pictures.drawings import fit, looks_like_a_photograph, read_image, read_images, to_png
from apl.pictures.pixels import as_array, is_tensor
from apl.store import Label
from apl.store.validation import LONGEST_KEY, checked_label


@dataclass(frozen=True)
class Pictures:
    """Sheets (see `apl.pictures.drawings`)."""

    sheets: Sequence[np.ndarray]

    def __len__(self) -> int:
        return len(self.sheets)

    def encoder_input(self, size: int) -> Num[np.ndarray, "example *input"]:
        return fit(self.sheets, size)

    def payload(self, number: int) -> bytes | None:
        return to_png(self.sheets[number])

    def part(self, start: int, stop: int) -> Pictures:
        return Pictures(self.sheets[start:stop])


@dataclass(frozen=True)
class Vectors:
    """Features computed elsewhere."""

    values: np.ndarray

    def __len__(self) -> int:
        return len(self.values)

    @property
    def width(self) -> int:
        return self.values.shape[1]

    def encoder_input(self, size: int) -> Num[np.ndarray, "example *input"]:
        return self.values

    def payload(self, number: int) -> bytes | None:
        return None

    def part(self, start: int, stop: int) -> Vectors:
        return Vectors(self.values[start:stop])


Examples = Pictures | Vectors | EncodedExamples
"""Checked, and not yet embedded."""


def joined(parts: Sequence[Examples]) -> Examples:
    """One batch of several of the same kind, in their order."""
    first = parts[0]
    if isinstance(first, Pictures):
        return Pictures([sheet for part in parts for sheet in part.sheets])
    if isinstance(first, Vectors):
        return Vectors(np.concatenate([part.values for part in parts]))
    return EncodedExamples(first.encoder, [example for part in parts for example in part.examples])


def one_embedded(x: Embedded) -> Embedded:
    if len(x) != 1:
        raise ValueError(f"expected one example, got {len(x)}: for many use the verbs without _one")
    return x


PICTURES_LOOKED_AT = 10
"""Whoever hands photographs to a model of drawings does so from the start: later pictures are not looked at for it."""


class PhotographWarning(UserWarning):
    """A model of drawings was given what looks like a photograph: it answers, and badly."""


def warn_of_photographs(pictures: Iterable[Any]) -> bool:
    """Say so if one of these is a photograph, once; whether it was said."""
    if found := any(looks_like_a_photograph(picture) for picture in pictures):
        warnings.warn(
            "this looks like a photograph, and this model knows drawings: "
            'OnlineClassifier.from_pretrained("photo") is for photographs',
            PhotographWarning,
            stacklevel=5,
        )
    return found


def one_picture(x: Any, ink: str) -> Pictures:
    return Pictures([read_image(x, ink)])


def many_pictures(x: Any, ink: str) -> Pictures:
    return Pictures(read_images(x, ink))


def one_vector(x: Any) -> Vectors:
    values = _numbers(x)
    if values.ndim != 1:
        raise ValueError(f"expected one vector, got shape {list(values.shape)}: for many use the verbs without _one")
    return Vectors(values[None])


def many_vectors(x: Any) -> Vectors:
    values = _numbers(x)
    if values.ndim != 2:
        shape = list(values.shape)
        raise ValueError(f"expected vectors N×D, got shape {shape}. Reshape your data, or use the _one verbs")
    return Vectors(values)


def _numbers(x: Any) -> np.ndarray:
    if is_tensor(x):
        x = as_array(x)
    elif isinstance(x, (list, tuple)):
        x = [as_array(one) if is_tensor(one) else one for one in x]
    refuse_sparse(x)
    if np.iscomplexobj(x):
        raise ValueError("a vector consists of real numbers, got complex ones")
    try:
        with np.errstate(over="ignore"):
            values = np.array(x, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a vector consists of numbers: {error}") from None
    if values.size == 0:
        raise ValueError(f"there is nothing in an array of shape {list(values.shape)}")
    if not np.isfinite(values).all():
        raise ValueError("the vector contains NaN or infinity (or a number too large for float32)")
    if float(np.abs(values).max()) * values.shape[-1] ** 0.5 > LONGEST_KEY:
        raise ValueError(f"the vector may be longer than {LONGEST_KEY:g}: distances to it could not be computed")
    return values


def refuse_sparse(x: Any) -> None:
    """numpy would take one for a single object."""
    if type(x).__module__.startswith("scipy.sparse"):
        raise ValueError("a sparse matrix is not taken: hand over its .toarray()")


def plain_labels(labels: Iterable[Any]) -> list[Label]:
    """Labels as `str` or `int`; whole floats, as numpy likes to make them, count as integers."""
    if getattr(labels, "ndim", 1) != 1:
        raise ValueError(f"labels are one column, got an array of shape {list(labels.shape)}")
    plain = []
    for label in labels:
        if isinstance(label, np.generic):
            label = label.item()
        if isinstance(label, float) and label.is_integer():
            label = int(label)
        if not isinstance(label, (str, int)):
            raise TypeError(f"a label is text or an integer, got {type(label).__name__} {label!r}")
        if label == "":
            raise ValueError("a label must not be empty")
        # NFC: the same letters are the same class, however a system spells them.
        plain.append(checked_label(unicodedata.normalize("NFC", label) if isinstance(label, str) else label))
    return plain


def sort_key(label: Label) -> tuple[bool, Label]:
    """Integers before text, each sorted."""
    return isinstance(label, str), label


def sorted_order(classes: Sequence[Label]) -> list[int]:
    return sorted(range(len(classes)), key=lambda i: sort_key(classes[i]))


def label_array(classes: Sequence[Label]) -> np.ndarray:
    if len({type(label) for label in classes}) > 1:
        return np.array(list(classes), dtype=object)
    return np.array(list(classes))
