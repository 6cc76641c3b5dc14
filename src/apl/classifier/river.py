"""The classifier of vectors for river's pipelines: examples are dictionaries of named numbers, which may come and go.

`OnlineClassifier` itself has river's verbs; this wrapper adds river's types (river must be installed for it).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np
from river import base

from apl.classifier.features import NARROW
from apl.classifier.online import OnlineClassifier
from apl.store import SourceShare


class RiverClassifier(base.Classifier):
    """Names become places in a vector in the order of their first appearance; a missing name counts as zero."""

    def __init__(
        self,
        max_rows: int | None = None,
        max_rows_per_class: int | None = None,
        sigma: float | None = None,
        k: int | None = None,
    ) -> None:
        self.max_rows = max_rows
        self.max_rows_per_class = max_rows_per_class
        self.sigma = sigma
        self.k = k
        self._names: dict[Hashable, int] = {}
        self._labels: list[Any] = []
        self._numbers: dict[Hashable, int] = {}
        self._inner: OnlineClassifier | None = None

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: dict, y: Any) -> None:
        vector = self._vector(x, widen=True)
        # Labels of any kind, truth values too, are kept here; the memory holds their numbers.
        number = self._numbers.setdefault(y, len(self._numbers))
        if number == len(self._labels):
            self._labels.append(y)
        self._inner.learn_one(vector, number)

    def predict_proba_one(self, x: dict, **kwargs: Any) -> dict[Any, float]:
        if self._inner is None:
            return {}
        probabilities = self._inner.predict_proba_one(self._vector(x, widen=False))
        return {self._labels[number]: p for number, p in probabilities.items()}

    def _vector(self, x: dict, widen: bool) -> np.ndarray:
        names = dict(self._names)
        # Sorted, so that the order of a dictionary's entries makes no difference.
        for name in sorted(x, key=str) if widen else ():
            names.setdefault(name, len(names))
        width = 0 if self._inner is None else self._inner.store.width
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
            if self._inner is None or width > self._inner.store.width:
                self._inner = self._widened(width)
            self._names = names
        return vector

    def _widened(self, width: int) -> OnlineClassifier:
        """The same memory with more columns, zero in all rows so far."""
        parameters = {name: getattr(self, name) for name in ("max_rows", "max_rows_per_class", "sigma", "k")}
        wider = OnlineClassifier.for_features(width, **parameters)
        if self._inner is not None:
            pad = width - self._inner.store.width
            rows = [
                replace(
                    row,
                    key=np.pad(row.key, (0, pad)),
                    shares=tuple(SourceShare(s.source, np.pad(s.total, (0, pad)), s.count) for s in row.shares),
                )
                for row in self._inner.store.new_rows()
            ]
            wider.adopt(rows, {})
            self._inner.close()
        return wider
