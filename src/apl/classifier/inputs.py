"""Examples as a user hands them over, checked and ready to be embedded: pictures, vectors, or what an encoder takes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Num

from apl.classifier.embedded import Embedded
from apl.encoders import FrozenEncoder, read_many
from apl.pictures.drawings import Ink, fit, looks_like_a_photograph, read_image, read_images, to_png
from apl.pictures.image_file import opened, opened_many
from apl.pictures.pixels import as_array, is_tensor
from apl.store.validation import LONGEST_KEY


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
        return int(self.values.shape[1])

    def encoder_input(self, size: int) -> Num[np.ndarray, "example *input"]:
        return self.values

    def payload(self, number: int) -> bytes | None:
        return None

    def part(self, start: int, stop: int) -> Vectors:
        return Vectors(self.values[start:stop])


@dataclass(frozen=True)
class EncodedExamples:
    """Examples in the form of an encoder that was plugged in (`apl.encoders`), checked."""

    encoder: FrozenEncoder
    examples: Sequence[Any]

    def __len__(self) -> int:
        return len(self.examples)

    @cached_property
    def vectors(self) -> Float[np.ndarray, "example embed"]:
        return self.encoder.embed(self.examples)

    @property
    def width(self) -> int:
        return int(self.encoder.width or self.vectors.shape[1])

    def encoder_input(self, size: int) -> Float[np.ndarray, "example embed"]:
        return self.vectors

    def payload(self, number: int) -> bytes | None:
        return self.encoder.payload(self.examples[number])

    def part(self, start: int, stop: int) -> EncodedExamples:
        # What was embedded to learn its width is not embedded again.
        return self if start == 0 and stop >= len(self) else EncodedExamples(self.encoder, self.examples[start:stop])


Examples = Pictures | Vectors | EncodedExamples
"""Checked, and not yet embedded."""


def joined(parts: Sequence[Examples]) -> Examples:
    """One batch of several of the same kind, in their order."""
    pictures = [part for part in parts if isinstance(part, Pictures)]
    if pictures:
        return Pictures([sheet for part in pictures for sheet in part.sheets])
    vectors = [part for part in parts if isinstance(part, Vectors)]
    if vectors:
        return Vectors(np.concatenate([part.values for part in vectors]))
    encoded = [part for part in parts if isinstance(part, EncodedExamples)]
    return EncodedExamples(encoded[0].encoder, [example for part in encoded for example in part.examples])


PICTURES_LOOKED_AT = 10
"""Number of first pictures that are checked for photographs."""


class PhotographWarning(UserWarning):
    """A model of drawings was given what looks like a photograph: it answers, and badly."""


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
    largest = float(np.abs(values).max())
    if not largest < np.inf:
        raise ValueError("the vector contains NaN or infinity (or a number too large for float32)")
    if largest * values.shape[-1] ** 0.5 > LONGEST_KEY:
        raise ValueError(f"the vector may be longer than {LONGEST_KEY:g}: distances to it could not be computed")
    return values


def refuse_sparse(x: Any) -> None:
    """numpy would take one for a single object."""
    if type(x).__module__.startswith("scipy.sparse"):
        raise ValueError("a sparse matrix is not taken: hand over its .toarray()")


class InputReader:
    """Reads what a user hands over as the examples of one model: pictures, vectors, or what a plugged-in encoder takes."""

    def __init__(self, encoder: FrozenEncoder | None, drawings: bool) -> None:
        self.encoder = encoder
        self.drawings = drawings
        self._unchecked = PICTURES_LOOKED_AT

    def one(self, x: Any, ink: Ink, warn: bool = True) -> Examples | Embedded:
        if isinstance(x, Embedded):
            if len(x) != 1:
                raise ValueError(f"expected one example, got {len(x)}: for many use the verbs without _one")
            return x
        if self.encoder is not None:
            return EncodedExamples(self.encoder, [self.encoder.read(x)])
        if not self.drawings:
            return one_vector(x)
        x = opened(x)
        picture = Pictures([read_image(x, ink)])
        if warn:
            self._warn_of_photographs([x])
        return picture

    def many(self, x: Any, ink: Ink) -> Examples | Embedded:
        if isinstance(x, Embedded):
            return x
        if isinstance(x, list) and x and all(isinstance(one, (Pictures, Vectors, EncodedExamples)) for one in x):
            return joined(x)
        x = list(x) if isinstance(x, Iterator) else x
        if self.encoder is not None:
            return EncodedExamples(self.encoder, read_many(self.encoder, x))
        if not self.drawings:
            return many_vectors(x)
        x = opened_many(x)
        pictures = Pictures(read_images(x, ink))
        self._warn_of_photographs(x)
        return pictures

    def _warn_of_photographs(self, pictures: Any) -> None:
        """A photograph among the first pictures for a model of drawings is worth a warning, once."""
        if not self._unchecked:
            return
        some = pictures[: self._unchecked]
        found = any(looks_like_a_photograph(picture) for picture in some)
        self._unchecked = 0 if found else self._unchecked - len(some)
        if found:
            warnings.warn(
                "this looks like a photograph, and this model knows drawings: "
                'OnlineClassifier.from_pretrained("photo") is for photographs',
                PhotographWarning,
                stacklevel=5,
            )
