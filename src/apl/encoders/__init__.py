"""What a practitioner plugs in: encoders from examples to vectors, none of which needs torch.

"photo", "photo-lite2"     photographs (extra `photo`)
"text"                     English sentences (extra `text`)
"model.onnx"               an ONNX file with a small JSON beside it (`onnx_file.py`)
any callable               from a list of examples to vectors
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from apl.encoders.contract import EncoderError, FrozenEncoder, MissingExtraError, checked_vectors, read_many

NAMED = ("photo", "photo-lite2", "text")

__all__ = [
    "NAMED",
    "EncoderError",
    "FrozenEncoder",
    "MissingExtraError",
    "checked_vectors",
    "encoder_name",
    "open_encoder",
    "plugged_encoder",
    "read_many",
]


def open_encoder(encoder: Any) -> FrozenEncoder:
    """An encoder by its name, its ONNX file, as a callable, or one that is ready."""
    match encoder:
        case "photo" | "photo-lite2" | "text":
            return _named(encoder)
        case str() | os.PathLike() if Path(encoder).suffix == ".onnx":
            from apl.encoders.onnx_file import OnnxFileEncoder

            return OnnxFileEncoder(encoder)
        case str() | os.PathLike():
            raise EncoderError(f"there is no encoder {str(encoder)!r}: take {', '.join(NAMED)} or a .onnx file")
    if isinstance(encoder, FrozenEncoder):
        return encoder
    if not callable(encoder):
        raise EncoderError(f"an encoder is a name, a .onnx file or a callable; {encoder!r} cannot be called")
    from apl.encoders.python_callable import CallableEncoder

    return CallableEncoder(encoder)


@cache
def _named(name: str) -> FrozenEncoder:
    """One for all classifiers of a process: it holds tens of megabytes, and never changes."""
    if name == "text":
        from apl.encoders.text import TextEncoder

        return TextEncoder()
    from apl.encoders.photo import PhotoEncoder

    return PhotoEncoder("lite2" if name == "photo-lite2" else "lite0")


def plugged_encoder(model: Any, encoder: Any) -> Any:
    """What was asked for as an encoder, if anything: `encoder`, or a model that is one by its name."""
    if encoder is None:
        return model if isinstance(model, str) and model in NAMED else None
    if model is not None:
        raise ValueError("both model= and encoder= say what reads examples: give one (decoder_of= names a decoder)")
    return encoder


def encoder_name(encoder: Any) -> str:
    """How a memory remembers its encoder: found again by name or path; a callable is not ("")."""
    if isinstance(encoder, str) and encoder in NAMED:
        return encoder
    if isinstance(encoder, (str, os.PathLike)):
        return str(Path(encoder).absolute())
    return ""
