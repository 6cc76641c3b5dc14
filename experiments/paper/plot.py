"""The look of the figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from jaxtyping import Float
from torch import Tensor

OURS, OTHER, THIRD, QUIET = "#c8443c", "#33658a", "#5b8c5a", "#8a8a8a"
PALETTE = (OURS, OTHER, THIRD, "#d9a441", "#8c6bb1", QUIET)


@contextmanager
def figure(path: Path, columns: int = 1, width: float = 4.6, height: float = 3.4) -> Iterator[list[plt.Axes]]:
    """Axes side by side, saved as PNG at the end."""
    style: Any = {"axes.spines.top": False, "axes.spines.right": False, "font.size": 9, "axes.titlesize": 10}
    with plt.rc_context(style):
        canvas, axes = plt.subplots(1, columns, figsize=(width * columns, height), layout="constrained")
        yield [axes] if columns == 1 else list(axes)
        canvas.savefig(path, dpi=150)
        plt.close(canvas)


def smooth(values: Float[Tensor, " time"], span: int) -> Float[Tensor, " time"]:
    """Running mean over the last `span` values (fewer at the start)."""
    total = torch.cat([torch.zeros(1), values.float().cumsum(0)])
    end = torch.arange(1, len(values) + 1)
    start = (end - span).clamp(min=0)
    return (total[end] - total[start]) / (end - start)
