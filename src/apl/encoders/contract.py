"""The contract of encoders: examples in, float32 vectors out, and never trained.

`read` checks an example and brings it into the encoder's own form, `embed` takes many of those, and `payload` is what a memory
keeps of one, to show in explanations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float
from PIL import Image

from apl.store.checks import LONGEST_KEY

EncoderKind = Literal["drawing", "photo", "text", "vector"]


class EncoderError(ValueError):
    """An encoder cannot be used, or did not return vectors. Nothing has been written."""


class MissingExtraError(ImportError):
    """A package that an encoder needs is not installed; the message names the command that installs it."""


def missing_extra(package: str, extra: str) -> MissingExtraError:
    return MissingExtraError(f"the package {package} is not installed: {install_command(extra)}")


def install_command(extra: str) -> str:
    return f"pip install 'apl-memory[{extra}]'"


@runtime_checkable
class FrozenEncoder(Protocol):
    """Examples → vectors. The same example always gives the same vector, up to rounding."""

    kind: EncoderKind
    fingerprint: str
    """Changes whenever the vectors would. A memory holds keys of one fingerprint."""

    @property
    def width(self) -> int | None:
        """Numbers in a vector; None until the first example."""

    def read(self, example: Any) -> Any:
        """One example, checked, in the encoder's own form. Raises `TypeError` or `ValueError`."""

    def embed(self, examples: Sequence[Any]) -> Float[np.ndarray, "example embed"]:
        """The vectors of examples that `read` returned."""

    def payload(self, example: Any) -> bytes | None:
        """What a memory keeps of an example that was read: a small picture, or its text in UTF-8."""

    def from_payload(self, payload: bytes) -> Any:
        """The example, as far as the payload kept it."""


def read_many(read: Callable[[Any], Any], examples: Any) -> list[Any]:
    """A batch, each example checked by `read`; an error says which one is wrong."""
    if isinstance(examples, (str, bytes, Image.Image)):
        raise TypeError("expected a batch of examples, got one: put it into a list, or use the verb that ends in _one")
    try:
        examples = list(examples)
    except TypeError:
        raise TypeError(f"expected a batch of examples, got {type(examples).__name__}") from None
    checked = []
    for number, example in enumerate(examples):
        try:
            checked.append(read(example))
        except (TypeError, ValueError) as error:
            raise type(error)(f"example {number} of {len(examples)}: {error}") from None
    return checked


def checked_vectors(vectors: Any, count: int, width: int | None, name: str) -> Float[np.ndarray, "example embed"]:
    """An encoder's output as float32, if it is one finite vector of the right width for each example."""
    if hasattr(vectors, "detach"):  # a torch tensor, of any precision and on any device
        vectors = vectors.detach().cpu().float().numpy()
    if np.iscomplexobj(vectors):
        raise EncoderError(f"the encoder {name} gave complex numbers")
    try:
        with np.errstate(over="ignore"):
            found: np.ndarray = np.asarray(vectors).astype(np.float32)
    except (TypeError, ValueError) as error:
        raise EncoderError(f"the encoder {name} gave no numbers: {error}") from None
    shape = list(found.shape)
    if found.ndim != 2 or len(found) != count or not found.shape[1]:
        raise EncoderError(f"the encoder {name} must give {count} × width numbers for {count} examples, got {shape}")
    if width is not None and found.shape[1] != width:
        raise EncoderError(f"the encoder {name} gave vectors of {found.shape[1]} numbers, so far they had {width}")
    if not np.isfinite(found).all():
        raise EncoderError(f"the encoder {name} gave NaN or infinity")
    if float(np.abs(found).max(initial=0)) * found.shape[1] ** 0.5 > LONGEST_KEY:
        raise EncoderError(f"the encoder {name} gave a vector longer than {LONGEST_KEY:g}")
    return found
