"""ONNX graphs as sessions of ONNX Runtime; weights may be passed separately."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

MOST_THREADS = 4
"""One picture has no work for more, and a laptop has other things to do."""


class GraphError(ValueError):
    """ONNX Runtime cannot use a graph, or not with these weights."""


def onnx_session(
    graph: Path | bytes, weights: Mapping[str, np.ndarray] | None = None, threads: int | None = None
) -> Any:
    """`weights` must be exactly those the graph leaves open. A graph too small to share its work takes one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads or usual_threads(), 1
    options.log_severity_level = 3
    if weights:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(w, order="C")) for w in weights.values()]
        options.add_external_initializers(list(weights), values)
    try:
        # A path where there is one: a graph may keep large weights in a file beside it.
        content = str(graph) if isinstance(graph, Path) else graph
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        # ONNX Runtime's own errors share no class that is part of its public face.
        raise GraphError(str(error).splitlines()[0]) from None


def usual_threads() -> int:
    """As many as `OMP_NUM_THREADS` asks for, as it does for numpy and torch; otherwise one for each core, within reason."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_THREADS)
