"""Numbers a user may set, checked before anything is opened or written."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any, get_args

from apl.config import Metric
from apl.pictures.drawings import check_ink

MOST_NEIGHBOURS = 1024
"""Rows that one question may recall: they are compared with one another too."""


def check_parameters(
    *,
    max_rows: Any = None,
    max_rows_per_class: Any = None,
    sigma: float | None = None,
    k: Any = None,
    metric: str | None = None,
    ink: str = "auto",
) -> None:
    for name, value in (("max_rows", max_rows), ("max_rows_per_class", max_rows_per_class), ("k", k)):
        if value is not None:
            check_whole(name, value)
    if k is not None and k > MOST_NEIGHBOURS:
        raise ValueError(f"k may be {MOST_NEIGHBOURS} at most, got {k}: every question would look at so many rows")
    if sigma is not None and not (isinstance(sigma, Real) and 0 <= sigma < math.inf):
        raise ValueError(f"sigma must be at least 0 nats, and a number, got {sigma!r}")
    if metric not in (None, *get_args(Metric)):
        raise ValueError(f"metric is 'euclidean' or 'cosine', got {metric!r}")
    check_ink(ink)


def check_whole(name: str, value: Any) -> None:
    if not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} must be at least 1, and a whole number, got {value}")


def check_new_above(new_above: float | None) -> None:
    if new_above is not None and not 0 <= new_above <= 1:
        raise ValueError(f"new_above is a probability from 0 to 1, got {new_above}")
