"""Labels and examples as a user hands them over, checked: pictures, vectors, or what an encoder takes."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from apl.classifier.notebook import counted
from apl.encoders import FrozenEncoder, read_many
from apl.pictures.drawings import Ink, looks_like_a_photograph, read_image
from apl.pictures.image_file import opened
from apl.pictures.pixels import as_array, is_tensor
from apl.store import Label
from apl.store.checks import LONGEST_KEY
from apl.store.rows import checked_label

EMBEDDED_AT_ONCE = 256
"""Examples between two steps of a bar."""
PICTURES_LOOKED_AT = 10
"""Number of first pictures that are checked for photographs."""


class PhotographWarning(UserWarning):
    """A model of drawings was given what looks like a photograph: it answers, and badly."""


def plain_labels(labels: Any) -> list[Label]:
    """Labels as `str` or `int`. Whole floats, as numpy often makes them, count as integers, and truth values as 1 and 0."""
    if getattr(labels, "ndim", 1) != 1:
        raise ValueError(f"labels are one column, got an array of shape {list(np.shape(labels))}")
    plain: list[Label] = []
    for label in labels:
        if isinstance(label, np.generic):
            label = label.item()
        if isinstance(label, bool) or (isinstance(label, float) and label.is_integer()):
            label = int(label)
        if not isinstance(label, (str, int)):
            raise TypeError(f"a label is text or an integer, got {type(label).__name__} {label!r}")
        if label == "":
            raise ValueError("a label must not be empty")
        # NFC: the same letters are the same class, however a system spells them.
        plain.append(checked_label(unicodedata.normalize("NFC", label) if isinstance(label, str) else label))
    return plain


def label_array(classes: Sequence[Label], truth_values: bool = False) -> np.ndarray:
    """`truth_values`: labels were given as such; they are returned as such while there are no others."""
    if truth_values and set(classes) <= {0, 1}:
        return np.array(classes, bool)
    if len({type(label) for label in classes}) > 1:
        return np.array(list(classes), dtype=object)
    return np.array(list(classes))


def interleaved(labels: Sequence[Hashable]) -> list[int]:
    """Positions of a batch, round-robin by class.

    First the first example of each class, then the second of each, and so on; classes take turns in the order of their first
    appearance. Folders and tables usually come sorted by class, and examples of one class in a row are a poor stream to
    learn from: each but the first confirms that nothing else exists.

    Examples:
        >>> interleaved(["a", "a", "a", "b", "c", "c"])
        [0, 3, 4, 1, 5, 2]
    """
    seen: dict[Hashable, int] = {}
    place = []
    for label in labels:
        turn = seen.get(label, 0)
        seen[label] = turn + 1
        place.append(turn)
    rank = {label: number for number, label in enumerate(seen)}
    return sorted(range(len(labels)), key=lambda i: (place[i], rank[labels[i]]))


@dataclass(frozen=True)
class _SentFrom:
    """Stands for the encoder of examples that another process embedded: their items are payloads."""

    fingerprint: str
    width: int | None

    def payload(self, item: bytes | None) -> bytes | None:
        return item


class Examples:
    """A batch of examples, checked, and embedded once. Every verb of `OnlineClassifier` takes it in place of the examples.

    It belongs to an encoder, not to a memory: classifiers of the same model share it.

    Args:
        items: in the encoder's own form (`apl.encoders`), or an array of vectors.
        encoder: None for vectors, which are their own embeddings.
        vectors: the embeddings, if they are there already.
    """

    def __init__(self, items: Any, encoder: FrozenEncoder | None = None, vectors: np.ndarray | None = None) -> None:
        self.items, self.encoder = items, encoder
        self.vectors: Any = items if encoder is None else vectors
        """The embeddings; None until `embed` was called."""

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, part: slice | Sequence[int]) -> Examples:
        """A slice, or the examples at these places."""
        some = list(range(len(self))[part] if isinstance(part, slice) else part)
        items = self.items[some] if self.encoder is None else [self.items[n] for n in some]
        return Examples(items, self.encoder, None if self.vectors is None else self.vectors[some])

    def embed(self, shown: bool = False) -> Float[np.ndarray, "example embed"]:
        """The vectors, computed now if they were not; `shown`: with a bar."""
        if self.vectors is None and self.encoder is not None:
            step = EMBEDDED_AT_ONCE if shown else max(1, len(self))
            starts = counted(range(0, max(1, len(self)), step), "embedding", shown, len(self))
            self.vectors = np.concatenate([self.encoder.embed(self.items[start : start + step]) for start in starts])
        vectors: np.ndarray = self.vectors
        return vectors

    @property
    def fingerprint(self) -> str | None:
        """Of the encoder."""
        return None if self.encoder is None else self.encoder.fingerprint

    @property
    def width(self) -> int:
        width = None if self.encoder is None else self.encoder.width
        return width or int(self.embed().shape[1])

    def payload(self, number: int) -> bytes | None:
        """What a row keeps of an example; made only if the example is written."""
        return None if self.encoder is None else self.encoder.payload(self.items[number])

    def __getstate__(self) -> dict[str, Any]:
        """What another process is sent: vectors and payloads, instead of pictures and an encoder."""
        if self.encoder is None:
            return vars(self)
        items, sent = [self.payload(n) for n in range(len(self))], _SentFrom(self.encoder.fingerprint, self.width)
        return {"items": items, "encoder": sent, "vectors": self.embed()}

    @staticmethod
    def joined(parts: Sequence[Examples]) -> Examples:
        """One batch of several of the same encoder, in their order."""
        encoder = parts[0].encoder
        if len({part.fingerprint for part in parts}) != 1:
            raise ValueError("only examples of the same encoder can be joined")
        if encoder is None:
            return Examples(np.concatenate([part.vectors for part in parts]))
        items, vectors = [item for part in parts for item in part.items], [part.vectors for part in parts]
        return Examples(items, encoder, None if any(some is None for some in vectors) else np.concatenate(vectors))


def as_vectors(x: Any, one: bool) -> Float[np.ndarray, "example embed"]:
    """Vectors in single precision: a single one, or the rows of a table."""
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
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"a vector consists of numbers: {error}") from None
    if values.size == 0 or values.ndim == 0:
        raise ValueError(f"there is nothing in an array of shape {list(values.shape)}")
    largest = float(np.abs(values).max())
    if not largest < np.inf:
        raise ValueError("the vector contains NaN or infinity (or a number too large for float32)")
    if largest * values.shape[-1] ** 0.5 > LONGEST_KEY:
        raise ValueError(f"the vector may be longer than {LONGEST_KEY:g}: distances to it could not be computed")
    if one and values.ndim != 1:
        raise ValueError(f"expected one vector, got shape {list(values.shape)}: for many use the verbs without _one")
    if not one and values.ndim != 2:
        shape = list(values.shape)
        raise ValueError(f"expected vectors N×D, got shape {shape}. Reshape your data, or use the _one verbs")
    return values[None] if one else values


def refuse_sparse(x: Any) -> None:
    """numpy would take one for a single object."""
    if type(x).__module__.startswith("scipy.sparse"):
        raise ValueError("a sparse matrix is not taken: hand over its .toarray()")


class InputReader:
    """Reads what a user hands over as the examples of one encoder, or as_vectors."""

    def __init__(self, encoder: FrozenEncoder | None) -> None:
        self.encoder = encoder
        self._unchecked = PICTURES_LOOKED_AT

    def one(self, x: Any, ink: Ink, warn: bool = True) -> Examples:
        if isinstance(x, Examples):
            if len(x) != 1:
                raise ValueError(f"expected one example, got {len(x)}: for many use the verbs without _one")
            return self.many(x, ink)
        if self.encoder is None:
            return Examples(as_vectors(x, one=True))
        if self.encoder.kind != "drawing":
            return Examples([self.encoder.read(x)], self.encoder)
        return Examples([self._canvas(x, ink, warn)], self.encoder)

    def many(self, x: Any, ink: Ink) -> Examples:
        if isinstance(x, Examples):
            if x.fingerprint != (None if self.encoder is None else self.encoder.fingerprint):
                raise ValueError("these examples were embedded by another encoder than this memory's")
            return x
        if isinstance(x, list) and x and all(isinstance(one, Examples) for one in x):
            return Examples.joined(x)
        x = list(x) if isinstance(x, Iterator) else x
        if self.encoder is None:
            return Examples(as_vectors(x, one=False))
        if self.encoder.kind != "drawing":
            return Examples(read_many(self.encoder.read, x), self.encoder)
        if getattr(x, "ndim", 1) == 2:
            raise ValueError(
                f"expected a batch N×H×W, N×H×W×C or N×C×H×W, got shape {list(x.shape)}: "
                "for a single image use the verb that ends in _one"
            )
        return Examples(read_many(lambda picture: self._canvas(picture, ink), x), self.encoder)

    def _canvas(self, picture: Any, ink: Ink, warn: bool = True) -> np.ndarray:
        """A photograph among the first pictures for a model of drawings is worth a warning, once."""
        picture = opened(picture)
        canvas = read_image(picture, ink)
        if warn and self._unchecked:
            self._unchecked -= 1
            if looks_like_a_photograph(picture):
                self._unchecked = 0
                warnings.warn(
                    "this looks like a photograph, and this model knows drawings: "
                    'OnlineClassifier.from_pretrained("photo") is for photographs',
                    PhotographWarning,
                    stacklevel=4,
                )
        return canvas
