"""MNIST (LeCun et al. 1998): ten handwritten digits, for the transfer from Omniglot (paper, section 4.2)."""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image

from apl.data import Part
from apl.data.files import PublishedFile, damaged, find_file
from apl.data.labelled import LabelledImages
from apl.data.source import DataSource, short_hash

# The author's own site now refuses most visitors.
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)

IMAGES_MAGIC = 2051
LABELS_MAGIC = 2049

DigitPart = Literal["encoder", "train", "validation", "test"]
"""Disjoint sets of digits: MNIST's training images in three parts, and its test images."""
PARTS = {"encoder": slice(0, 45_000), "train": slice(45_000, 55_000), "validation": slice(55_000, 60_000)}


def _published(name: str, md5: str) -> PublishedFile:
    return PublishedFile("mnist", name, md5, tuple(mirror + name for mirror in MIRRORS))


TRAIN = (
    _published("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    _published("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
)
TEST = (
    _published("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
    _published("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
)


@dataclass(frozen=True)
class Digits(DataSource):
    """The digits as a data set to train an encoder on."""

    rotations: bool = False

    def load(self, part: Part, size: int) -> LabelledImages:
        return mnist_part("encoder" if part == "train" else part, size)

    def split_name(self) -> str:
        return "mnist"

    def split_hash(self) -> str:
        return short_hash("mnist 45000 10000 5000 10000")


def load_mnist(part: Literal["train", "test"], size: int = 28) -> LabelledImages:
    """The digits of one part, classes named `0` to `9`. MNIST's ink is bright already."""
    return read_mnist(*TRAIN, 60_000, size) if part == "train" else read_mnist(*TEST, 10_000, size)


def mnist_part(part: DigitPart, size: int = 28) -> LabelledImages:
    """An encoder learns from its own part, so that on "train" it errs as often as on digits still to come."""
    if part == "test":
        return load_mnist("test", size)
    whole, chosen = load_mnist("train", size), PARTS[part]
    return LabelledImages(whole.images[chosen], whole.labels[chosen], whole.class_names)


def read_mnist(image_file: PublishedFile, label_file: PublishedFile, count: int, size: int = 28) -> LabelledImages:
    """`count`: the number of digits in complete files."""
    label_path = find_file(label_file)
    images = _read_idx(find_file(image_file), IMAGES_MAGIC, (count, 28, 28))
    labels = _read_idx(label_path, LABELS_MAGIC, (count,))
    if labels.max() > 9:
        raise damaged(label_path, f"it holds the label {labels.max()} where digits are expected")
    if size != 28:
        resized = (Image.fromarray(image).resize((size, size), Image.Resampling.LANCZOS) for image in images)
        images = np.stack([np.asarray(image) for image in resized])
    return LabelledImages(
        torch.from_numpy(images).unsqueeze(1),
        torch.from_numpy(labels.astype(np.int64)),
        tuple(str(digit) for digit in range(10)),
    )


def _read_idx(path: Path, magic: int, shape: tuple[int, ...]) -> np.ndarray:
    """One byte per element after a header of big-endian words: magic, then the length of each axis."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (EOFError, OSError, zlib.error) as error:
        raise damaged(path, str(error)) from error
    header = struct.calcsize(f">{1 + len(shape)}I")
    if len(content) < header:
        raise damaged(path, f"it ends inside its header of {header} bytes")
    found_magic, *found_shape = struct.unpack_from(f">{1 + len(shape)}I", content)
    if found_magic != magic:
        raise damaged(path, f"it begins with the number {found_magic} where {magic} is expected")
    if tuple(found_shape) != shape:
        raise damaged(path, f"its shape is {tuple(found_shape)} where {shape} is expected")
    elements = len(content) - header
    if elements != np.prod(shape):
        raise damaged(path, f"it holds {elements} elements where {np.prod(shape)} are expected")
    # A copy, because torch warns of arrays it may not write to.
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape).copy()
