from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from apl.data.files import DataError, PublishedFile
from experiments.data.mnist import load_mnist, read_mnist

COUNT = 6
FILES = (PublishedFile("mnist", "images.gz", "", ()), PublishedFile("mnist", "labels.gz", "", ()), COUNT)


def images_idx(magic: int = 2051, count: int = COUNT) -> bytes:
    pixels = np.zeros((count, 28, 28), dtype=np.uint8)
    for i in range(count):
        pixels[i, 4 * i : 4 * i + 4] = 200 + i
    return struct.pack(">4I", magic, count, 28, 28) + pixels.tobytes()


def labels_idx(labels: bytes = bytes([3, 1, 4, 1, 5, 9]), magic: int = 2049) -> bytes:
    return struct.pack(">2I", magic, len(labels)) + labels


@pytest.fixture
def folder(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    (folder / "images.gz").write_bytes(gzip.compress(images_idx()))
    (folder / "labels.gz").write_bytes(gzip.compress(labels_idx()))
    monkeypatch.setenv("APL_DATA", str(folder.parent))
    return folder


def test_digits_come_with_their_labels_and_bright_ink(folder: Path) -> None:
    data = read_mnist(*FILES)
    assert data.labels.tolist() == [3, 1, 4, 1, 5, 9]
    assert data.class_names == tuple("0123456789")
    assert data.images.shape == (COUNT, 1, 28, 28)
    assert data.images.amax((1, 2, 3)).tolist() == [200, 201, 202, 203, 204, 205]
    assert (data.images[2, 0] > 0).any(1).nonzero().flatten().tolist() == [8, 9, 10, 11]


def test_digits_come_in_the_size_asked_for(folder: Path) -> None:
    data = read_mnist(*FILES, size=14)
    assert data.images.shape == (COUNT, 1, 14, 14)
    assert (data.images[2, 0] > 100).any(1).nonzero().flatten().tolist() == [4, 5]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("images.gz", gzip.compress(images_idx(magic=2049)), "number 2049 where 2051 is expected"),
        ("labels.gz", gzip.compress(labels_idx(magic=7)), "number 7 where 2049 is expected"),
        ("images.gz", gzip.compress(images_idx(count=5)), r"shape is \(5, 28, 28\) where \(6, 28, 28\)"),
        ("images.gz", gzip.compress(images_idx()[:-10]), "holds 4694 elements where 4704 are expected"),
        ("labels.gz", gzip.compress(labels_idx()[:6]), "ends inside its header"),
        ("labels.gz", gzip.compress(labels_idx(bytes([3, 1, 4, 1, 5, 10]))), "label 10"),
        ("images.gz", gzip.compress(images_idx())[:-20], "ended before"),
        ("images.gz", b"<html>not found</html>", "[Nn]ot a gzip"),
        ("labels.gz", b"", "header"),
    ],
    ids=["magic", "label magic", "count", "short", "header", "label", "truncated gzip", "no gzip", "empty"],
)
def test_a_damaged_file_is_an_error_that_names_it_and_the_way_out(
    folder: Path, name: str, content: bytes, problem: str
) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name} is damaged.*{problem}.*Delete it"):
        read_mnist(*FILES)


@pytest.mark.data
def test_mnist_has_its_published_counts(real_data: Path) -> None:
    data = load_mnist("test")
    assert data.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert len(load_mnist("train")) == 60_000
    # A one covers less paper than a zero.
    ink = [(data.images[data.labels == digit] > 127).float().mean() for digit in (0, 1)]
    assert ink[1] < 0.6 * ink[0]
