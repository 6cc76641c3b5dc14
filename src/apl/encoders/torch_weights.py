"""Reads the weights of a torch `.pth` file (the stream of pickles torch wrote before 1.6) without torch and without trust.

A pickle is a program: it may call anything it can name. This reader knows the names of tensors and of the dictionary
that holds them, and refuses every other one before it is looked up. The file is: three small pickles (a number, a
version, the machine's integer sizes), one with the dictionary, one with the keys of the storages, then their bytes.
"""

from __future__ import annotations

import io
import math
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

_MAGIC = 0x1950A86A20F9469CFC6C
_STORAGES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "<i1",
    "ByteStorage": "<u1",
    "BoolStorage": "?",
}


def read_torch_weights(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Name → array. Raises `ValueError` if the file is damaged; nothing in it is ever called."""
    try:
        return _read(Path(path).read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    except Exception as error:
        # A damaged pickle fails in as many ways as there are instructions.
        raise ValueError(f"{path} is damaged, or not a file of torch weights ({type(error).__name__})") from None


def _read(data: bytes) -> dict[str, np.ndarray]:
    if data[:2] == b"PK":
        raise ValueError("this is torch's newer zip format: save it with _use_new_zipfile_serialization=False")
    stream = io.BytesIO(data)
    if _Unpickler(stream, len(data)).load() != _MAGIC:
        raise ValueError("this is not a file of torch weights")
    for _ in range(2):  # version and integer sizes
        _Unpickler(stream, len(data)).load()
    unpickler = _Unpickler(stream, len(data))
    tensors = unpickler.load()
    keys = _Unpickler(stream, len(data)).load()
    if sorted(keys) != sorted(unpickler.storages):
        raise ValueError("the storages are not those of the tensors")
    for key in keys:
        values = unpickler.storages[key]
        count = int.from_bytes(stream.read(8), "little")
        if count != len(values):
            raise ValueError(f"a storage was announced with {len(values)} numbers and has {count}")
        raw = stream.read(values.nbytes)
        if len(raw) != values.nbytes:
            raise ValueError("the file ends too soon")
        values[:] = np.frombuffer(raw, values.dtype)
    if not isinstance(tensors, dict) or not all(isinstance(value, np.ndarray) for value in tensors.values()):
        raise ValueError("expected a dictionary of tensors and nothing else")
    return {str(name): np.array(value, order="C") for name, value in tensors.items()}


class _StorageKind:
    """Stands for a storage class of torch: a type of number. Holds nothing a pickle could change."""

    __slots__ = ("dtype",)

    def __init__(self, dtype: str) -> None:
        self.dtype = np.dtype(dtype)

    def __setstate__(self, _: Any) -> None:
        raise ValueError("the file tries to change the reader")


class _TensorRebuilder:
    """Stands for torch's `_rebuild_tensor_v2`: a view of a storage, checked to lie inside it."""

    __slots__ = ()

    def __call__(self, storage: Any, offset: int, size: tuple, stride: tuple, *_: Any) -> np.ndarray:
        numbers = (offset, *size, *stride)
        if not isinstance(storage, np.ndarray) or not all(isinstance(n, int) and n >= 0 for n in numbers):
            raise ValueError("a tensor has an unknown description")
        last = offset + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))
        if 0 not in size and (last >= len(storage) or math.prod(size) > len(storage)):
            raise ValueError("a tensor reaches beyond its storage")
        steps = tuple(step * storage.itemsize for step in stride)
        return np.lib.stride_tricks.as_strided(storage[offset:], size, steps, writeable=False)

    def __setstate__(self, _: Any) -> None:
        raise ValueError("the file tries to change the reader")


class _StateDict(OrderedDict):
    """Stands for the dictionary. torch attaches version numbers to it, which do not matter here."""

    def __setstate__(self, _: Any) -> None:
        pass


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, most_bytes: int) -> None:
        super().__init__(stream)
        self.storages: dict[str, np.ndarray] = {}
        self._left = most_bytes

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return _StorageKind(_STORAGES[name])
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _TensorRebuilder()
        if (module, name) == ("collections", "OrderedDict"):
            return _StateDict
        raise ValueError(f"refused: the file asks for {module}.{name}, and weights consist of tensors alone")

    def persistent_load(self, description: Any) -> np.ndarray:
        word, kind, key, _, count, view = description
        if word != "storage" or not isinstance(kind, _StorageKind) or not isinstance(count, int) or view is not None:
            raise ValueError("a storage has an unknown description")
        if key not in self.storages:
            self._left -= count * kind.dtype.itemsize
            if count < 0 or self._left < 0:
                raise ValueError("the file announces more numbers than it holds")
            self.storages[key] = np.zeros(count, kind.dtype)
        return self.storages[key]
