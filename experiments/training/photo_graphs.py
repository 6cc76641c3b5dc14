"""Writes the graphs of the photograph encoders without their weights (`python -m experiments.training.photo_graphs`).

The weights stay in the registry packages they come from; a graph names each of them as its package does, and they are
passed when a session is made (`apl.onnx_session`). Needs the package `onnx`; using the graphs does not.
"""

import math
from pathlib import Path
from typing import Any

from onnx import TensorProto, helper, save

from apl.encoders.origins import GRAPHS


class GraphUnderConstruction:
    """Nodes, and weights that are declared without values. Each step returns the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: dict[str, Any] = {}

    def weight(self, name: str, *shape: int) -> str:
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
        # ONNX wants a place for each; ONNX Runtime replaces the tensor before it would look there.
        tensor.external_data.add(key="location", value="handed over with the session")
        self.weights[name] = tensor
        return name

    def step(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        output = name or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def save(self, path: Path, inputs: list[Any], output: tuple[str, list[Any]]) -> None:
        wanted = [helper.make_tensor_value_info(output[0], TensorProto.FLOAT, output[1])]
        graph = helper.make_graph(self.nodes, path.stem, inputs, wanted, list(self.weights.values()))
        # IR 8 and opset 17: read by every ONNX Runtime since 1.13.
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def _same_padding(size: int, kernel: int, stride: int) -> list[int]:
    """TensorFlow's "same": the odd pixel goes right and below."""
    total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
    return [total // 2, total // 2, total - total // 2, total - total // 2]


# Tan & Le, "EfficientNet" (2019), table 1, as the Lite variants have it: repeats, kernel, stride, expansion, width.
_STAGES = [
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
]


def efficientnet_lite(path: Path, *, size: int, width: float, depth: float) -> None:
    """Pixels [photo, 3, size, size] → features [photo, 1280], the mean of the last map, before the classifier."""
    graph, side = GraphUnderConstruction(), size

    def convolution(
        x: str,
        name: str,
        norm: str,
        out: int,
        within: int,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        size: int = 0,
        relu: bool = True,
    ) -> str:
        shape = (out, within // groups, kernel, kernel)
        x = graph.step(
            "Conv",
            x,
            graph.weight(f"{name}.weight", *shape),
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=_same_padding(size, kernel, stride),
            group=groups,
        )
        parts = [graph.weight(f"{norm}.{part}", out) for part in ("weight", "bias", "running_mean", "running_var")]
        x = graph.step("BatchNormalization", x, *parts, epsilon=1e-3)
        return graph.step("Clip", x, "zero", "six") if relu else x

    for name, value in (("zero", 0.0), ("six", 6.0)):
        graph.weights[name] = helper.make_tensor(name, TensorProto.FLOAT, [], [value])
    x = convolution("pixels", "_conv_stem", "_bn0", 32, 3, kernel=3, stride=2, size=size)
    size, within, block = math.ceil(size / 2), 32, 0
    for stage, (repeats, kernel, first_stride, expansion, filters) in enumerate(_STAGES):
        edge = stage in (0, len(_STAGES) - 1)  # the Lite variants deepen all but the first and last stage
        out = _rounded(filters * width)
        for repeat in range(repeats if edge else math.ceil(depth * repeats)):
            stride, before = (first_stride if repeat == 0 else 1), x
            name, inner = f"_blocks.{block}", within * expansion
            if expansion > 1:
                x = convolution(x, f"{name}._expand_conv", f"{name}._bn0", inner, within, size=size)
            x = convolution(x, f"{name}._depthwise_conv", f"{name}._bn1", inner, inner, kernel, stride, inner, size)
            size = math.ceil(size / stride)
            x = convolution(x, f"{name}._project_conv", f"{name}._bn2", out, inner, size=size, relu=False)
            if stride == 1 and within == out:
                x = graph.step("Add", x, before)
            within, block = out, block + 1
    x = convolution(x, "_conv_head", "_bn1", 1280, within, size=size)
    x = graph.step("ReduceMean", x, name="features", axes=[2, 3], keepdims=0)
    pixels = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["photo", 3, side, side])
    graph.save(path, [pixels], (x, ["photo", 1280]))


def _rounded(filters: float) -> int:
    """To a multiple of eight, by no more than a tenth downwards."""
    rounded = max(8, int(filters + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * filters else rounded


if __name__ == "__main__":
    GRAPHS.mkdir(exist_ok=True)
    efficientnet_lite(GRAPHS / "lite0.onnx", size=224, width=1.0, depth=1.0)
    efficientnet_lite(GRAPHS / "lite2.onnx", size=260, width=1.1, depth=1.2)
