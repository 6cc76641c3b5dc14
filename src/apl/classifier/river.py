"""The classifier of vectors for river's pipelines: examples are dictionaries of named numbers, which may come and go.

`OnlineClassifier` itself has river's verbs; this wrapper adds river's types (river must be installed for it).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np
from river import base

from apl.classifier.online import OnlineClassifier
from apl.classifier.opening import NARROW
from apl.store import NewRow, SourceShare

PASSED_ON = ("max_rows", "max_rows_per_class", "sigma", "k", "ageing", "metric", "consolidate")
"""Parameters of `OnlineClassifier` that mean the same here."""


class RiverClassifier(base.Classifier):
    """Names become places in a vector in the order of their first appearance; a missing name counts as zero."""

    def __init__(
        self,
        max_rows: int | None = None,
        max_rows_per_class: int | None = None,
        sigma: float | None = None,
        k: int | None = None,
        ageing: bool = True,
        metric: str | None = None,
        consolidate: bool = True,
    ) -> None:
        self.max_rows = max_rows
        self.max_rows_per_class = max_rows_per_class
        self.sigma = sigma
        self.k = k
        self.ageing = ageing
        self.metric = metric
        self.consolidate = consolidate
        self._names: dict[Hashable, int] = {}
        self._labels: list[Any] = []
        self._numbers: dict[Hashable, int] = {}
        self._inner: OnlineClassifier | None = None
        self._width = 0

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: dict, y: Any) -> None:
        vector = self._vector(x, widen=True)
        # Labels of any kind, truth values too, are kept here; the memory holds their numbers.
        number = self._numbers.setdefault(y, len(self._numbers))
        if number == len(self._labels):
            self._labels.append(y)
        assert self._inner is not None
        self._inner.learn_one(vector, number)

    def predict_proba_one(self, x: dict, **kwargs: Any) -> dict[Any, float]:
        if self._inner is None:
            return {}
        probabilities = self._inner.predict_proba_one(self._vector(x, widen=False))
        return {self._labels[int(number)]: p for number, p in probabilities.items()}

    def _vector(self, x: dict, widen: bool) -> np.ndarray:
        names = dict(self._names)
        # Sorted, so that the order of a dictionary's entries makes no difference.
        for name in sorted(x, key=str) if widen else ():
            names.setdefault(name, len(names))
        width = self._width
        if len(names) > width or not width:
            # Ahead of the names once columns have no units of their own: each widening makes the memory anew.
            width = max(1, len(names)) if len(names) <= NARROW else max(len(names), 2 * width)
        vector = np.zeros(width, np.float32)
        for name, value in x.items():
            if name in names:
                try:
                    vector[names[name]] = value
                except (TypeError, ValueError) as error:
                    raise ValueError(f"the feature {name!r} is no number: {error}") from None
                if not np.isfinite(vector[names[name]]):
                    raise ValueError(f"the feature {name!r} is NaN or infinite")
        if widen:
            if self._inner is None or width > self._width:
                self._inner, self._width = self._widened(width), width
            self._names = names
        return vector

    def _widened(self, width: int) -> OnlineClassifier:
        """The same memory with more columns, zero in all rows so far."""
        wider = OnlineClassifier.for_features(width, **{name: getattr(self, name) for name in PASSED_ON})
        if self._inner is not None:
            pad = (0, width - self._width)
            wider.adopt([_padded(row, pad) for row in self._inner.store.new_rows()], {})
            self._inner.close()
        return wider


def _padded(row: NewRow, pad: tuple[int, int]) -> NewRow:
    shares = [SourceShare(share.source, np.pad(share.total, pad), share.count) for share in row.shares]
    return replace(row, key=np.pad(row.key, pad), shares=tuple(shares))
