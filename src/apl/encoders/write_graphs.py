"""Writes the graphs of the photograph and text encoders, without their weights (`python -m apl.encoders.write_graphs`).

The weights stay in the registry packages they come from; a graph names each of them as its package does, and they are
handed over when a session is made (`session.py`). Needs the package `onnx`; using the graphs does not.
"""

import math
from pathlib import Path

from onnx import TensorProto, helper, save

GRAPHS = Path(__file__).parent / "graphs"


class GraphUnderConstruction:
    """Nodes and promised weights, in the order they are added; every step gives back the name of its output."""

    def __init__(self) -> None:
        self.nodes, self.weights = [], {}

    def weight(self, name: str, *shape: int) -> str:
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
        # ONNX wants a place for each; ONNX Runtime replaces the tensor before it would look there.
        tensor.external_data.add(key="location", value="handed over with the session")
        self.weights[name] = tensor
        return name

    def constant(self, name: str, values: list, kind: int = TensorProto.INT64) -> str:
        self.weights[name] = helper.make_tensor(name, kind, [len(values)], values)
        return name

    def step(self, kind: str, *inputs: str, name: str = "", **attributes) -> str:
        output = name or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def save(self, path: Path, inputs: list, output: tuple[str, list]) -> None:
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

    def convolution(x, name, norm, out, within, kernel=1, stride=1, groups=1, size=0, relu=True):
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


def minilm(path: Path, *, layers: int = 6, width: int = 384, heads: int = 12) -> None:
    """Token numbers and mask [text, token] → unit vectors [text, 384]: the mean over the tokens of BERT's last layer."""
    graph = GraphUnderConstruction()
    integers = {"zero": [0], "axis_1": [1], "axis_2": [2], "axes_1_2": [1, 2], "rows": [-1, width], "width": [width]}
    for name, values in {**integers, "by_head": [heads, width // heads]}.items():
        graph.constant(name, values)
    floats = {"scale": (width // heads) ** -0.5, "one": 1.0, "half": 0.5, "root_half": 0.5**0.5}
    for name, value in {**floats, "far_below": -1e9, "least_length": 1e-12}.items():
        graph.constant(name, [value], TensorProto.FLOAT)

    def linear(x, name, out, within):
        weight, bias = graph.weight(f"{name}.weight", out, within), graph.weight(f"{name}.bias", out)
        return graph.step("Gemm", x, weight, bias, transB=1)

    def norm(x, name):
        scale, shift = graph.weight(f"{name}.weight", width), graph.weight(f"{name}.bias", width)
        return graph.step("LayerNormalization", x, scale, shift, epsilon=1e-12)

    shape = graph.step("Shape", "tokens")
    length = graph.step("Slice", shape, "axis_1", "axis_2", "zero")
    words = graph.step("Gather", graph.weight("embeddings.word_embeddings.weight", 30522, width), "tokens")
    places = graph.step(
        "Slice", graph.weight("embeddings.position_embeddings.weight", 512, width), "zero", length, "zero"
    )
    kinds = graph.step("Gather", graph.weight("embeddings.token_type_embeddings.weight", 2, width), "zero")
    x = graph.step("Add", graph.step("Add", words, places), kinds)
    x = norm(graph.step("Reshape", x, "rows"), "embeddings.LayerNorm")

    mask = graph.step("Cast", "mask", to=TensorProto.FLOAT)
    hidden = graph.step("Mul", graph.step("Sub", "one", mask), "far_below")
    hidden = graph.step("Unsqueeze", hidden, "axes_1_2")
    by_head = graph.step("Concat", shape, "by_head", axis=0)
    for layer in range(layers):
        name = f"encoder.layer.{layer}"

        def split(part, order):
            y = linear(x, f"{name}.attention.self.{part}", width, width)
            return graph.step("Transpose", graph.step("Reshape", y, by_head), perm=order)

        query, key, value = split("query", [0, 2, 1, 3]), split("key", [0, 2, 3, 1]), split("value", [0, 2, 1, 3])
        weights = graph.step("Mul", graph.step("MatMul", query, key), "scale")
        weights = graph.step("Softmax", graph.step("Add", weights, hidden), axis=-1)
        seen = graph.step("Transpose", graph.step("MatMul", weights, value), perm=[0, 2, 1, 3])
        seen = linear(graph.step("Reshape", seen, "rows"), f"{name}.attention.output.dense", width, width)
        x = norm(graph.step("Add", seen, x), f"{name}.attention.output.LayerNorm")
        inner = linear(x, f"{name}.intermediate.dense", 4 * width, width)
        below = graph.step("Erf", graph.step("Mul", inner, "root_half"))
        gate = graph.step("Mul", graph.step("Add", below, "one"), "half")
        inner = linear(graph.step("Mul", inner, gate), f"{name}.output.dense", width, 4 * width)
        x = norm(graph.step("Add", inner, x), f"{name}.output.LayerNorm")

    x = graph.step("Reshape", x, graph.step("Concat", shape, "width", axis=0))
    mask = graph.step("Unsqueeze", mask, "axis_2")
    total = graph.step("ReduceSum", graph.step("Mul", x, mask), "axis_1", keepdims=0)
    count = graph.step("ReduceSum", mask, "axis_1", keepdims=0)
    mean = graph.step("Div", total, count)
    long = graph.step("Max", graph.step("ReduceL2", mean, axes=[1], keepdims=1), "least_length")
    vector = graph.step("Div", mean, long, name="vector")
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, ["text", "token"]) for n in ("tokens", "mask")]
    graph.save(path, inputs, (vector, ["text", width]))


if __name__ == "__main__":
    GRAPHS.mkdir(exist_ok=True)
    efficientnet_lite(GRAPHS / "lite0.onnx", size=224, width=1.0, depth=1.0)
    efficientnet_lite(GRAPHS / "lite2.onnx", size=260, width=1.1, depth=1.2)
    minilm(GRAPHS / "minilm.onnx")
