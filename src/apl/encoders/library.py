"""What the encoders of other libraries (`from_*.py`) share: importing, loading, and a fingerprint of weights."""

from __future__ import annotations

import hashlib
import importlib
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float
from PIL import Image

from apl.encoders.contract import EncoderError, checked_vectors, missing_extra

Loaded = TypeVar("Loaded")
_AT_ONCE = 16
_HUB = "huggingface.co"
_UNREACHABLE = ("hub", "download", "connect", "any source")


def import_library(module: str, extra: str) -> Any:
    """The module, or one sentence that says how to install it."""
    _stay_offline_without_hub()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or module, extra) from None
    except Exception as error:
        told = f"the package {module} is installed and cannot be imported: {_one_line(error)}"
        if "torchvision" in told:
            told += " (torch and torchvision must be builds of one kind: install both from the same index)"
        raise EncoderError(told) from error


def _stay_offline_without_hub() -> None:
    """Use local files alone where the hub's name cannot be resolved: its library would retry for a minute."""
    if os.environ.keys() & {"HF_HUB_OFFLINE", "HF_ENDPOINT", "HTTPS_PROXY", "https_proxy"}:
        return
    try:
        socket.getaddrinfo(_HUB, 443)
    except OSError:
        os.environ["HF_HUB_OFFLINE"] = "1"


def load_model(library: str, name: str, load: Callable[[], Loaded]) -> Loaded:
    """What `load` returns. Libraries raise many kinds of errors; here each becomes one sentence."""
    try:
        return load()
    except EncoderError:
        raise
    except Exception as error:
        told = f"{library} cannot load {name!r}: {_one_line(error)}"
        if any(word in told.lower() for word in _UNREACHABLE):
            told += (
                f" (weights come from {_HUB} at first use; a model that is on this machine opens with HF_HUB_OFFLINE=1)"
            )
        raise EncoderError(told) from error


def embed_photos(
    network: Callable[[Any], Any], prepare: Callable[[Image.Image], Any], photos: Sequence[Image.Image], width: int
) -> Float[np.ndarray, "example embed"]:
    """The vectors that a torch network gives for photographs, a few at a time."""
    import torch

    parts = [np.zeros((0, width), np.float32)]
    for start in range(0, len(photos), _AT_ONCE):
        pixels = torch.stack([prepare(photo) for photo in photos[start : start + _AT_ONCE]])
        with torch.inference_mode():
            parts.append(checked_vectors(network(pixels), len(pixels), width, "of photographs"))
    return np.concatenate(parts)


def weights_digest(weights: Mapping[str, Any]) -> str:
    """A short name for the content of torch weights."""
    summary = hashlib.sha256()
    for name in sorted(weights):
        value = weights[name].detach().cpu().contiguous()
        summary.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        summary.update(value.float().numpy().tobytes())
    return summary.hexdigest()[:16]


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
