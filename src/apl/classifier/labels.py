"""Labels: what a user may give, arrays of them, and the order in which they are learnt."""

from __future__ import annotations

import unicodedata
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from apl.store import Label
from apl.store.validation import checked_label


def plain_labels(labels: Any) -> list[Label]:
    """Labels as `str` or `int`. Whole floats, as numpy often makes them, count as integers, and truth values as 1 and 0."""
    if getattr(labels, "ndim", 1) != 1:
        raise ValueError(f"labels are one column, got an array of shape {list(np.shape(labels))}")
    plain: list[Label] = []
    for label in labels:
        if isinstance(label, np.generic):
            label = label.item()
        if isinstance(label, bool) or (isinstance(label, float) and label.is_integer()):
            label = int(label)
        if not isinstance(label, (str, int)):
            raise TypeError(f"a label is text or an integer, got {type(label).__name__} {label!r}")
        if label == "":
            raise ValueError("a label must not be empty")
        # NFC: the same letters are the same class, however a system spells them.
        plain.append(checked_label(unicodedata.normalize("NFC", label) if isinstance(label, str) else label))
    return plain


def label_array(classes: Sequence[Label], truth_values: bool = False) -> np.ndarray:
    """`truth_values`: labels were given as such; they are returned as such while there are no others."""
    if truth_values and set(classes) <= {0, 1}:
        return np.array(classes, bool)
    if len({type(label) for label in classes}) > 1:
        return np.array(list(classes), dtype=object)
    return np.array(list(classes))


def interleaved(labels: Sequence[Hashable]) -> list[int]:
    """Positions of a batch, round-robin by class.

    First the first example of each class, then the second of each, and so on; classes take turns in the order of their first
    appearance. Folders and tables usually come sorted by class, and examples of one class in a row are a poor stream to
    learn from: each but the first confirms that nothing else exists.

    >>> interleaved(["a", "a", "a", "b", "c", "c"])
    [0, 3, 4, 1, 5, 2]
    """
    seen: dict[Hashable, int] = {}
    place = []
    for label in labels:
        turn = seen.get(label, 0)
        seen[label] = turn + 1
        place.append(turn)
    rank = {label: number for number, label in enumerate(seen)}
    return sorted(range(len(labels)), key=lambda i: (place[i], rank[labels[i]]))
