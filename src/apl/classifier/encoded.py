"""Examples in front of an encoder that was plugged in (`apl.encoders`): it makes vectors of them, the rest is as for vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from apl.encoders import FrozenEncoder, read_many


@dataclass(frozen=True)
class EncodedExamples:
    """Examples in the encoder's own form, checked."""

    encoder: FrozenEncoder
    examples: Sequence[Any]

    def __len__(self) -> int:
        return len(self.examples)

    @cached_property
    def vectors(self) -> Float[np.ndarray, "example embed"]:
        return self.encoder.embed(self.examples)

    @property
    def width(self) -> int:
        return self.encoder.width or self.vectors.shape[1]

    def encoder_input(self, size: int) -> Float[np.ndarray, "example embed"]:
        return self.vectors

    def payload(self, number: int) -> bytes | None:
        return self.encoder.payload(self.examples[number])

    def part(self, start: int, stop: int) -> EncodedExamples:
        # What was embedded to learn its width is not embedded again.
        return self if start == 0 and stop >= len(self) else EncodedExamples(self.encoder, self.examples[start:stop])


def one_encoded(encoder: FrozenEncoder, x: Any) -> EncodedExamples:
    return EncodedExamples(encoder, [encoder.read(x)])


def many_encoded(encoder: FrozenEncoder, x: Iterable[Any]) -> EncodedExamples:
    return EncodedExamples(encoder, read_many(encoder, x))
