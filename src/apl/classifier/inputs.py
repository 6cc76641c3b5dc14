"""Examples as a user hands them over, checked and ready to be embedded: pictures, vectors, or what an encoder takes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from apl.classifier.embedded import Embedded
from apl.classifier.notebook import counted
from apl.encoders import FrozenEncoder, read_many
from apl.pictures.drawings import Ink, looks_like_a_photograph, read_image, read_images
from apl.pictures.image_file import opened, opened_many
from apl.pictures.pixels import as_array, is_tensor
from apl.store.validation import LONGEST_KEY


@dataclass(frozen=True)
class Examples:
    """Checked, and not yet embedded: vectors, or examples in the form of an encoder (`apl.encoders`)."""

    items: Any
    """A sequence of the encoder's own forms, or an array of vectors."""
    encoder: FrozenEncoder | None = None
    """None: they are vectors."""

    def __len__(self) -> int:
        return len(self.items)

    def embed(self, shown: bool = False) -> Float[np.ndarray, "example embed"]:
        """`shown`: with a bar."""
        if self.encoder is None:
            return np.asarray(self.items)
        if not shown:
            return self._embedded
        starts = range(0, len(self), EXAMPLES_AT_ONCE)
        return np.concatenate(
            [
                self.encoder.embed(self.items[start : start + EXAMPLES_AT_ONCE])
                for start in counted(starts, "embedding", shown, len(self))
            ]
        )

    @cached_property
    def _embedded(self) -> Float[np.ndarray, "example embed"]:
        # What was embedded to learn its width is not embedded again.
        assert self.encoder is not None
        return self.encoder.embed(self.items)

    @property
    def width(self) -> int:
        width = None if self.encoder is None else self.encoder.width
        return width or int(self.embed().shape[1])

    def payload(self, number: int) -> bytes | None:
        return None if self.encoder is None else self.encoder.payload(self.items[number])

    def take(self, numbers: Sequence[int]) -> Examples:
        """Some of them."""
        items = self.items[numbers] if isinstance(self.items, np.ndarray) else [self.items[i] for i in numbers]
        return Examples(items, self.encoder)

    @staticmethod
    def joined(parts: Sequence[Examples]) -> Examples:
        """One batch of several of the same encoder, in their order."""
        items = [item for part in parts for item in part.items]
        return Examples(items if parts[0].encoder is not None else np.stack(items), parts[0].encoder)


EXAMPLES_AT_ONCE = 256

PICTURES_LOOKED_AT = 10
"""Number of first pictures that are checked for photographs."""


class PhotographWarning(UserWarning):
    """A model of drawings was given what looks like a photograph: it answers, and badly."""


def one_vector(x: Any) -> Examples:
    values = _numbers(x)
    if values.ndim != 1:
        raise ValueError(f"expected one vector, got shape {list(values.shape)}: for many use the verbs without _one")
    return Examples(values[None])


def many_vectors(x: Any) -> Examples:
    values = _numbers(x)
    if values.ndim != 2:
        shape = list(values.shape)
        raise ValueError(f"expected vectors N×D, got shape {shape}. Reshape your data, or use the _one verbs")
    return Examples(values)


def _numbers(x: Any) -> np.ndarray:
    if isinstance(x, (list, tuple)):
        x = [as_array(one) if is_tensor(one) else one for one in x]
    elif not isinstance(x, np.ndarray):
        x = as_array(x) if is_tensor(x) else x
        refuse_sparse(x)
    if isinstance(x, np.ndarray) and x.dtype == np.float32:
        values = x.copy()
    elif np.iscomplexobj(x):
        raise ValueError("a vector consists of real numbers, got complex ones")
    else:
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
    """Reads what a user hands over as the examples of one encoder, or as vectors."""

    def __init__(self, encoder: FrozenEncoder | None) -> None:
        self.encoder = encoder
        self._unchecked = PICTURES_LOOKED_AT

    def one(self, x: Any, ink: Ink, warn: bool = True) -> Examples | Embedded:
        if isinstance(x, Embedded):
            if len(x) != 1:
                raise ValueError(f"expected one example, got {len(x)}: for many use the verbs without _one")
            return x
        if self.encoder is None:
            return one_vector(x)
        if self.encoder.kind != "drawing":
            return Examples([self.encoder.read(x)], self.encoder)
        x = opened(x)
        canvas = read_image(x, ink)
        if warn:
            self._warn_of_photographs([x])
        return Examples([canvas], self.encoder)

    def many(self, x: Any, ink: Ink) -> Examples | Embedded:
        if isinstance(x, Embedded):
            return x
        if isinstance(x, list) and x and all(isinstance(one, Examples) for one in x):
            return Examples.joined(x)
        x = list(x) if isinstance(x, Iterator) else x
        if self.encoder is None:
            return many_vectors(x)
        if self.encoder.kind != "drawing":
            return Examples(read_many(self.encoder, x), self.encoder)
        x = opened_many(x)
        canvases = read_images(x, ink)
        self._warn_of_photographs(x)
        return Examples(canvases, self.encoder)

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
