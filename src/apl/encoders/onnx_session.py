"""An ONNX graph made ready to run, with weights that come from elsewhere handed over to it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime

from apl.encoders.contract import EncoderError, MissingExtraError

GRAPHS = Path(__file__).parent / "graphs"


def onnx_session(
    graph: Path, weights: Mapping[str, np.ndarray] | None = None, *, threads: int = 1
) -> onnxruntime.InferenceSession:
    """`weights` must be exactly those the graph leaves open."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    if weights is not None:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value)) for value in weights.values()]
        options.add_external_initializers(list(weights), values)
    try:
        # A path, not bytes: a graph may keep large weights in a file beside it.
        return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        # ONNX Runtime's own errors share no class that is part of its public face.
        raise EncoderError(f"{graph} cannot be used: {error}") from None


def installed_folder(package: str, needs: str) -> Path:
    """Where a registry package's files lie; it is not imported. `needs` is the command that would install it."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise MissingExtraError(f"the package {package} is not installed: {needs}")
    return Path(found.submodule_search_locations[0])


def digest(*parts: Path | bytes | str) -> str:
    """A short name for what these files and values say together."""
    summary = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part.encode() if isinstance(part, str) else part
        summary.update(len(data).to_bytes(8, "little"))
        summary.update(data)
    return summary.hexdigest()[:16]
