"""Encoder and decoder as ONNX graphs: inference in processes without torch.

A model directory holds `encoder.onnx` and `decoder.onnx` (made by `apl export`), whose weights lie beside them in
`model.safetensors`. The learner is the same as in training; only the networks differ.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Num

from apl.checkpoint import CheckpointError, find_model, learner_config, read_description
from apl.learner import Learner
from apl.memory import Neighbours
from apl.onnx_session import GraphError, onnx_session
from apl.posterior import Posterior

ENCODER, DECODER, DESCRIPTION = "encoder.onnx", "decoder.onnx", "model.json"
OUTSIDE = "model.safetensors/"
"""In front of the names of weights that are not in the graph itself."""


class ExportedNetworks:
    """The networks of one model directory. Graphs are opened when first needed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        described = read_description(directory).get("exported")
        if not isinstance(described, dict) or not (directory / DECODER).is_file():
            raise CheckpointError(
                f"{directory} has no ONNX graphs, which everyday use needs: make them with "
                f"`apl export {directory.name}` (needs the extra `train`)"
            )
        self.width: int = described["width"]
        self.key_widths: Mapping[str, int] = {"embedding": self.width}
        self._fingerprint: str = described["fingerprint"]
        self._graphs: Mapping[str, str] = described["graphs"]

    @cached_property
    def _weights(self) -> dict[str, np.ndarray]:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        path = self.directory / "model.safetensors"
        try:
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"{path} is missing or damaged ({error}): restore it, or export the model anew"
            ) from None

    def _open(self, name: str, threads: int | None = None) -> Any:
        path = self.directory / name
        graph = path.read_bytes()
        # A graph holds weights too: those that the exporter has folded.
        if self._graphs[name] != graph_hash(graph):
            raise CheckpointError(
                f"{path} is of another model, or damaged: make it anew with `apl export {self.directory.name}`"
            )
        # A session refuses weights that its graph does not name.
        named = {OUTSIDE + name: weight for name, weight in self._weights.items()}
        wanted = {name: weight.astype(np.float32) for name, weight in named.items() if name.encode() in graph}
        try:
            return onnx_session(graph, wanted, threads)
        except GraphError as error:
            raise CheckpointError(
                f"{path} cannot be used with the weights beside it ({error}): is it of another model? "
                f"Make it anew with `apl export {self.directory.name}`"
            ) from None

    @cached_property
    def _encoder(self) -> tuple[Any, list[int]]:
        """The graph, and the shape of one image."""
        graph = self._open(ENCODER)
        return graph, graph.get_inputs()[0].shape[1:]

    @cached_property
    def _decoder(self) -> tuple[Any, list[str], list[str]]:
        """The graph, and the names of its inputs and outputs."""
        graph = self._open(DECODER, threads=1)
        return graph, [entry.name for entry in graph.get_inputs()], [entry.name for entry in graph.get_outputs()]

    tensor = array = staticmethod(np.asarray)

    def embed(self, x: Num[np.ndarray, "example *input"]) -> Float[np.ndarray, "example embed"]:
        """Byte images are scaled to 0..1."""
        x = np.asarray(x)
        images = x.astype(np.float32) / np.float32(255) if x.dtype == np.uint8 else np.asarray(x, np.float32)
        graph, shape = self._encoder
        if list(images.shape[1:]) != shape:
            raise ValueError(f"expected images of shape {['any', *shape]}, got {list(images.shape)}")
        embedding: np.ndarray = graph.run(None, {"images": images})[0]
        return embedding

    def decode(
        self, query: Float[np.ndarray, "query embed"], neighbours: Neighbours, log_elsewhere: np.ndarray
    ) -> Posterior:
        def flat(array: np.ndarray) -> np.ndarray:
            return array.reshape(-1, *array.shape[2:])

        given = {
            "query": query,
            "embedding": flat(neighbours.columns["embedding"]),
            "distance": flat(neighbours.distance),
            "mask": flat(neighbours.mask),
            "same": flat(neighbours.same),
            "log_elsewhere": flat(log_elsewhere),
            "label": flat(neighbours.columns["label"]),
        }
        graph, asked, said = self._decoder
        return Posterior(**dict(zip(said, graph.run(None, {name: given[name] for name in asked}), strict=True)))

    def fingerprint(self) -> str:
        return self._fingerprint


def graph_hash(graph: bytes) -> str:
    """Identifies a graph; it stands in model.json."""
    return hashlib.sha256(graph).hexdigest()[:16]


def load_for_use(name_or_dir: str | Path) -> Learner:
    """A model for inference: its graphs, or torch for one that is not exported yet."""
    directory = find_model(name_or_dir)
    if (directory / ENCODER).is_file() or importlib.util.find_spec("torch") is None:
        return load_exported(directory)
    return Learner.load(directory)


def load_exported(name_or_dir: str | Path) -> Learner:
    """A bundled model by name, or any exported one by its directory."""
    directory = find_model(name_or_dir)
    return Learner(learner_config(directory), networks=ExportedNetworks(directory))
