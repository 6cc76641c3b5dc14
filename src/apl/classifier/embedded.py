"""Examples after the encoder: what a caller keeps to ask, teach and explain without embedding twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class Embedded:
    """A batch of embedded examples. Every verb of `OnlineClassifier` takes it in place of the examples.

    It belongs to an encoder, not to a memory: classifiers of the same model share it.
    """

    vectors: Float[np.ndarray, "example embed"]
    payloads: tuple[Callable[[], bytes | None], ...]
    """What a row keeps of each example; made only if the example is written."""
    fingerprint: str
    """Of the encoder."""

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, part: slice | Sequence[int]) -> Embedded:
        """A slice, or the examples at these places."""
        some = range(len(self))[part] if isinstance(part, slice) else part
        return Embedded(self.vectors[list(some)], tuple(self.payloads[n] for n in some), self.fingerprint)

    def take(self, numbers: Sequence[int]) -> Embedded:
        """Some of them."""
        return Embedded(self.vectors[list(numbers)], tuple(self.payloads[i] for i in numbers), self.fingerprint)

    @property
    def width(self) -> int:
        return int(self.vectors.shape[1])

    def payload(self, number: int) -> bytes | None:
        return self.payloads[number]()

    @staticmethod
    def joined(parts: Sequence[Embedded]) -> Embedded:
        """One batch of several, in their order."""
        if len({part.fingerprint for part in parts}) != 1:
            raise ValueError("only examples embedded by the same encoder can be joined")
        vectors = np.concatenate([part.vectors for part in parts])
        return Embedded(vectors, tuple(payload for part in parts for payload in part.payloads), parts[0].fingerprint)
