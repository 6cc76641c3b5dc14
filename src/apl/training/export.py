"""A trained model as ONNX graphs, for use without torch (`apl.exported`).

A model directory gains `encoder.onnx` and `decoder.onnx`: graphs alone, a few hundred kilobytes. Their weights stay in
`model.safetensors` beside them, under the same names, and are passed when the graphs are opened.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from apl.checkpoint import CheckpointError, find_model, read_json, write_json
from apl.config import ConvConfig, JointConfig
from apl.decoder.inputs import Neighbourhood
from apl.exported import DECODER, DESCRIPTION, ENCODER, OUTSIDE, graph_hash
from apl.learner import Learner
from apl.networks import TorchNetworks


class DecoderGraph(nn.Module):
    """The whole decoder, with the shares of neighbours and of "none", as one function of arrays."""

    def __init__(self, decoder: nn.Module, fixed: bool) -> None:
        super().__init__()
        self.decoder = decoder
        self.fixed = fixed

    def forward(
        self,
        query: Tensor,
        embedding: Tensor,
        distance: Tensor,
        mask: Tensor,
        same: Tensor,
        log_elsewhere: Tensor,
        label: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        said = self.decoder(query, Neighbourhood(embedding, distance, mask, same, log_elsewhere, label))
        return said.log_none, said.weight, said.log_probs if self.fixed else said.log_class


def export_model(name_or_dir: str | Path, directory: Path | None = None) -> Path:
    """Write the graphs beside a model's weights; into another directory, together with a copy of the model."""
    source = find_model(name_or_dir)
    target = Path(directory) if directory is not None else source
    learner = Learner.load(source)
    config = learner.config
    if not isinstance(config.encoder, ConvConfig | JointConfig):
        raise CheckpointError(f"{source} has an encoder that only experiments use: models of pictures can be exported")
    if config.decoder.kind == "lstm":
        raise CheckpointError(
            f"{source} has an lstm decoder, which reads its neighbours one by one: it cannot be exported"
        )
    if target != source:
        target.mkdir(parents=True, exist_ok=True)
        learner.save(target, read_json(source / DESCRIPTION)["provenance"])
    networks = cast(TorchNetworks, learner.networks)
    width, size = networks.width, config.encoder.image_size
    weights = networks.state_dict()
    images = {"images": torch.rand(3, config.encoder.channels, size, size)}
    encoder = nn.Sequential(OrderedDict(encoder=learner.encoder))
    write_graph(encoder, images, ("embedding",), target / ENCODER, weights)
    fixed = config.decoder.labels == "fixed"
    queries, k = 3, 4
    example = {
        "query": torch.randn(queries, width),
        "embedding": torch.randn(queries, k, width),
        "distance": torch.rand(queries, k),
        "mask": torch.ones(queries, k, dtype=torch.bool),
        "same": torch.eye(k, dtype=torch.bool).expand(queries, k, k).clone(),
        "log_elsewhere": torch.zeros(queries),
        "label": torch.zeros(queries, k, dtype=torch.int64),
    }
    said = ("log_none", "weight", "log_probs" if fixed else "log_class")
    write_graph(DecoderGraph(learner.decoder, fixed), example, said, target / DECODER, weights)
    described = read_json(target / DESCRIPTION)
    graphs = {name: graph_hash((target / name).read_bytes()) for name in (ENCODER, DECODER)}
    exported = {"fingerprint": learner.fingerprint(), "width": width, "graphs": graphs}
    write_json(target / DESCRIPTION, {**described, "exported": exported})
    return target


def write_graph(
    module: nn.Module,
    example: Mapping[str, Tensor],
    outputs: tuple[str, ...],
    path: Path,
    weights: Mapping[str, Tensor],
) -> None:
    """Export with free numbers of queries and neighbours, then leave the weights out."""
    import onnx

    query, neighbours = torch.export.Dim("queries"), torch.export.Dim("neighbours")
    free = [
        {0: query, **{axis: neighbours for axis in (1, 2) if tensor.shape[axis : axis + 1] == (4,)}}
        for tensor in example.values()
    ]
    with quiet():
        program = torch.onnx.export(
            module.eval(),
            tuple(example.values()),
            dynamo=True,
            dynamic_shapes=tuple(free),
            input_names=list(example),
            output_names=list(outputs),
            external_data=False,
            verbose=False,
            custom_translation_table={torch.ops.aten.scaled_dot_product_attention.default: attention},
        )
    if program is None:
        raise CheckpointError("torch made no graph of this network")
    model = program.model_proto
    renamed = {}
    for tensor in model.graph.initializer:
        if tensor.name not in weights:
            continue
        if np.array_equal(onnx.numpy_helper.to_array(tensor), weights[tensor.name].numpy()):
            renamed[tensor.name] = OUTSIDE + tensor.name
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="model.safetensors")
        else:
            # The exporter has folded a normalisation into it: it is no longer what its name says.
            renamed[tensor.name] = f"folded_{len(renamed)}"
        tensor.name = renamed[tensor.name]
    for node in model.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        # An exported graph must not depend on the source lines of its operations.
        node.ClearField("doc_string")
        del node.metadata_props[:]
    del model.graph.value_info[:]
    del model.metadata_props[:], model.graph.metadata_props[:]
    part = path.with_name(path.name + ".part")
    part.write_bytes(model.SerializeToString())
    part.replace(path)


def attention(query: Any, key: Any, value: Any, attn_mask: Any, *_: Any, **__: Any) -> Any:
    """Scaled dot-product attention with a mask that never hides every state. The exporter's general form has five times as many
    nodes, each of which costs every question two microseconds."""
    from onnxscript import opset18 as op

    scale = op.Constant(value_float=float(query.shape[-1]) ** -0.5)
    scores = op.MatMul(op.Mul(query, scale), op.Transpose(key, perm=[0, 1, 3, 2]))
    scores = op.Where(attn_mask, scores, op.Constant(value_float=float("-inf")))
    return op.MatMul(op.Softmax(scores, axis=-1), value)


@contextlib.contextmanager
def quiet() -> Any:
    """The exporter reports every step; what goes wrong is an exception all the same."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
