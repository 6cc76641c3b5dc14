"""Labels: what a user may give, and arrays of them."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np

from apl.store import Label
from apl.store.validation import checked_label


def plain_labels(labels: Any) -> list[Label]:
    """Labels as `str` or `int`; whole floats, as numpy often makes them, count as integers."""
    if getattr(labels, "ndim", 1) != 1:
        raise ValueError(f"labels are one column, got an array of shape {list(np.shape(labels))}")
    plain: list[Label] = []
    for label in labels:
        if isinstance(label, np.generic):
            label = label.item()
        if isinstance(label, float) and label.is_integer():
            label = int(label)
        if not isinstance(label, (str, int)):
            raise TypeError(f"a label is text or an integer, got {type(label).__name__} {label!r}")
        if label == "":
            raise ValueError("a label must not be empty")
        # NFC: the same letters are the same class, however a system spells them.
        plain.append(checked_label(unicodedata.normalize("NFC", label) if isinstance(label, str) else label))
    return plain


def label_array(classes: Sequence[Label]) -> np.ndarray:
    if len({type(label) for label in classes}) > 1:
        return np.array(list(classes), dtype=object)
    return np.array(list(classes))
