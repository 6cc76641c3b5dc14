"""Encoders: from examples to vectors, none of them trained here.

"photo", "photo-lite2"            photographs (extra `photo`)
"text", "text-multilingual"       sentences (extras `text`, `text-multilingual`)
"timm:NAME", "open_clip:NAME"     photographs, by a library's model (`names.py` lists the libraries)
"sentence-transformers:NAME"      sentences; also "fastembed:NAME"
"model.onnx"                      an ONNX file with a small JSON beside it (`onnx_file.py`)
any callable                      from a list of examples to vectors
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from apl.encoders.contract import EncoderError, FrozenEncoder, MissingExtraError, checked_vectors, read_many
from apl.encoders.names import LIBRARIES, NAMED, encoder_name, is_encoder_name, open_named, plugins

__all__ = [
    "LIBRARIES",
    "NAMED",
    "EncoderError",
    "FrozenEncoder",
    "MissingExtraError",
    "checked_vectors",
    "encoder_name",
    "is_encoder_name",
    "open_encoder",
    "plugged_encoder",
    "plugins",
    "read_many",
]


def open_encoder(encoder: Any) -> FrozenEncoder:
    """An encoder by its name, its ONNX file, as a callable, or one that is open already.

    Examples:
        >>> open_encoder(lambda words: [[len(word), word.count("a")] for word in words]).embed(["banana"])
        array([[6., 3.]], dtype=float32)
    """
    if is_encoder_name(encoder):
        encoder = open_named(encoder)
    elif isinstance(encoder, (str, os.PathLike)):
        if Path(encoder).suffix == ".onnx":
            from apl.encoders.onnx_file import OnnxFileEncoder

            return OnnxFileEncoder(encoder)
        libraries = ", ".join(f"{name}:MODEL" for name in (*LIBRARIES, *plugins()))
        raise EncoderError(f"there is no encoder {str(encoder)!r}: use {', '.join(NAMED)}, {libraries} or a .onnx file")
    if isinstance(encoder, FrozenEncoder):
        return encoder
    if not callable(encoder):
        raise EncoderError(f"an encoder is a name, a .onnx file or a callable; {encoder!r} cannot be called")
    from apl.encoders.python_callable import CallableEncoder

    return CallableEncoder(encoder)


def plugged_encoder(model: Any, encoder: Any) -> Any:
    """The encoder that was asked for, or None: `encoder`, or a model that is an encoder by its name."""
    if encoder is None:
        return model if is_encoder_name(model) else None
    if model is not None:
        raise ValueError("both model= and encoder= say what reads examples: give one")
    return encoder
