"""The classifier of vectors for river's pipelines: examples are dictionaries of named numbers, which may come and go.

`OnlineClassifier` itself has river's verbs; this wrapper adds river's types (river must be installed for it).
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from river import base

from apl.classifier.online import OnlineClassifier
from apl.classifier.opening import NARROW
from apl.store import NewRow, SourceShare, StoreError, find_memory

PASSED_ON = ("max_rows", "sigma", "k", "ageing", "metric", "consolidate")
"""Parameters of `OnlineClassifier` that mean the same here."""
SETTING = "river"
"""Under this name a memory in a file keeps the names of features and the labels."""


class RiverClassifier(base.Classifier):
    """Names become places in a vector in the order of their first appearance; a missing name counts as zero.

    Args:
        memory: None (in RAM) or the path of a file. There names of features are text, and labels what JSON can hold.

    Examples:
        >>> model = RiverClassifier()
        >>> for x in range(10):
        ...     model.learn_one({"height": x}, x > 4)
        >>> model.predict_one({"height": 7})
        True
    """

    def __init__(
        self,
        max_rows: int | None = None,
        sigma: float | None = None,
        k: int | None = None,
        ageing: bool = True,
        metric: str | None = None,
        consolidate: bool = True,
        memory: str | Path | None = None,
    ) -> None:
        self.max_rows = max_rows
        self.sigma = sigma
        self.k = k
        self.ageing = ageing
        self.metric = metric
        self.consolidate = consolidate
        self.memory = memory
        self._names: dict[Hashable, int] = {}
        self._numbers: dict[Hashable, int] = {}
        """Labels of any kind, truth values too, and their numbers in the memory."""
        self._inner: OnlineClassifier | None = None
        self._width = 0

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: dict, y: Any) -> None:
        self._open()
        names, numbers, width, inner = self._names, self._numbers, self._width, self._inner
        if not x.keys() <= names.keys() or inner is None:
            # Sorted, so that the order of a dictionary's entries makes no difference.
            names = {name: place for place, name in enumerate(dict.fromkeys([*names, *sorted(x, key=str)]))}
        if y not in numbers:
            numbers = {**numbers, y: len(numbers)}
        if len(names) > width or inner is None:
            # Ahead of the names once columns have no units of their own: each widening makes the memory anew.
            width = max(1, len(names)) if len(names) <= NARROW else max(len(names), 2 * width)
        vector = _vector(x, names, width)
        if names is self._names and numbers is self._numbers and inner is not None:
            inner.learn_one(vector, numbers[y])
            return
        settings = {} if self.memory is None else {SETTING: {"names": list(names), "labels": list(numbers)}}
        if inner is None or width > self._width:
            inner = self._widened(width, settings)
        inner.learn_many([vector], [numbers[y]], settings=settings)
        self._inner, self._names, self._numbers, self._width = inner, names, numbers, width

    def predict_proba_one(self, x: dict, **kwargs: Any) -> dict[Any, float]:
        self._open()
        if self._inner is None:
            return {}
        labels = list(self._numbers)
        probabilities = self._inner.predict_proba_one(_vector(x, self._names, self._width))
        return {labels[int(number)]: p for number, p in probabilities.items()}

    def close(self) -> None:
        """Close a memory in a file, so that others may write it."""
        if self._inner is not None and self.memory is not None:
            self._inner.close()
            self._inner = None

    def _open(self) -> None:
        """Go on with the memory in a file, if there is one."""
        if self._inner is not None or self.memory is None or find_memory(self.memory, "default") is None:
            return
        inner = self._in_file()
        kept = inner.store.setting(SETTING)
        if not isinstance(kept, dict) or set(kept) != {"names", "labels"}:
            inner.close()
            raise StoreError(f"{self.memory} was not made by RiverClassifier: it has no names of features")
        self._names = {name: place for place, name in enumerate(kept["names"])}
        self._numbers = {label: number for number, label in enumerate(kept["labels"])}
        self._inner, self._width = inner, inner.store.width

    def _in_file(self) -> OnlineClassifier:
        return OnlineClassifier.load(self.memory, **{name: getattr(self, name) for name in PASSED_ON})

    def _widened(self, width: int, settings: dict[str, Any]) -> OnlineClassifier:
        """The same memory with more columns, zero in all rows so far."""
        wider = OnlineClassifier.for_features(width, **{name: getattr(self, name) for name in PASSED_ON})
        if self._inner is not None:
            pad = (0, width - self._width)
            wider.adopt([_padded(row, pad) for row in self._inner.store.new_rows()], {})
            self._inner.close()
            self._inner = None
        if self.memory is None:
            return wider
        wider.store.update_settings(settings)
        # The file is replaced as a whole: an interruption leaves the one before.
        wider.save(self.memory, overwrite=True)
        return self._in_file()


def _vector(x: dict, names: dict[Hashable, int], width: int) -> np.ndarray:
    vector = np.zeros(width, np.float32)
    for name, value in x.items():
        if name in names:
            try:
                vector[names[name]] = value
            except (TypeError, ValueError) as error:
                raise ValueError(f"the feature {name!r} is no number: {error}") from None
            if not math.isfinite(vector[names[name]]):
                raise ValueError(f"the feature {name!r} is NaN or infinite")
    return vector


def _padded(row: NewRow, pad: tuple[int, int]) -> NewRow:
    shares = [SourceShare(share.source, np.pad(share.total, pad), share.count) for share in row.shares]
    return replace(row, key=np.pad(row.key, pad), shares=tuple(shares))
