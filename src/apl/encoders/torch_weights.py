"""Reads the weights of a torch `.pth` file (the stream of pickles torch wrote before 1.6) without torch.

A pickle is a program: it may call anything it can name. Callers check the file's hash first, and this reader knows the
names of tensors and of the dictionary that holds them, and refuses every other one before it is looked up. The file is:
three small pickles (a number, a version, the machine's integer sizes), one with the dictionary, one with the keys of the
storages, then their bytes.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np

_STORAGES = {"FloatStorage": np.dtype("<f4"), "LongStorage": np.dtype("<i8")}


def read_torch_weights(content: bytes) -> dict[str, np.ndarray]:
    """Name → array."""
    stream = io.BytesIO(content)
    for _ in range(3):
        _Unpickler(stream).load()
    unpickler = _Unpickler(stream)
    tensors = unpickler.load()
    for key in _Unpickler(stream).load():
        values = unpickler.storages[key]
        stream.read(8)  # how many numbers follow, as announced before
        values[:] = np.frombuffer(stream.read(values.nbytes), values.dtype)
    return {name: np.array(view, order="C") for name, view in tensors.items()}


def _tensor(storage: np.ndarray, offset: int, size: tuple, stride: tuple, *_: Any) -> np.ndarray:
    """Stands for torch's `_rebuild_tensor_v2`: a view of a storage, which is filled later."""
    steps = tuple(step * storage.itemsize for step in stride)
    return np.lib.stride_tricks.as_strided(storage[offset:], size, steps)


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.storages: dict[str, np.ndarray] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        raise ValueError(f"refused: the file asks for {module}.{name}, and weights consist of tensors alone")

    def persistent_load(self, description: Any) -> np.ndarray:
        _, dtype, key, _, count, _ = description
        return self.storages.setdefault(key, np.zeros(count, dtype))
