"""Figures that several benches report, and how they are saved."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from experiments.paper.results import Row, save_rows

BINS = 15


def calibration_error(confidence: Float[Tensor, " query"], right: Bool[Tensor, " query"]) -> float:
    """Expected calibration error over bins of equal width."""
    p, hit = confidence.numpy(), right.numpy()
    bins = np.minimum((p * BINS).astype(int), BINS - 1)
    gaps = [abs(p[bins == b].mean() - hit[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins)]
    return float(sum(gaps))


def auroc(score: Float[Tensor, " query"], positive: Bool[Tensor, " query"]) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(positive.numpy(), score.numpy()))


def report(rows: Sequence[Mapping[str, Any]]) -> None:
    """A line of progress for each row."""
    for row in rows:
        print(dict(row), file=sys.stderr, flush=True)


def save(name: str, rows: Sequence[Row], **about: Any) -> Path:
    machine = {"machine": platform.machine(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    return save_rows(name, rows, False, **machine, python=platform.python_version(), **about)
