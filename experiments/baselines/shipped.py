"""`OnlineClassifier` as it ships, with its default settings, behind the interface of the other methods.

It is given embeddings: those of a bundled model's encoder, or any vectors where `model` is None. Nothing here scores or decides:
answers are `predict_proba_many`, how new an example looks is its P(new), and examples are learnt by `learn_many` and `learn_one`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from apl.classifier.inputs import Examples
from apl.classifier.online import OnlineClassifier
from experiments.baselines.methods import Scores


class Shipped:
    """The model is opened once; every `adapt` starts an empty memory in RAM."""

    def __init__(self, model: str | None, width: int | None = None, **parameters: Any) -> None:
        """`parameters` of the classifier: `consolidate=False` is the paper's rule, read by its decoder alone."""
        if model is None:
            self.first = OnlineClassifier.for_features(width, **parameters)
        else:
            self.first = OnlineClassifier(model, keep_images=False, **parameters).open()
        self.encoder = None if model is None else self.first._inputs().encoder
        self.classifier = self.first

    def adapt(self, x: Float[Tensor, "example embed"], y: Int[Tensor, " example"], way: int) -> None:
        self.way = way
        self.classifier = self.first.sibling()
        if len(x):
            self.classifier.learn_many(self._given(x), y.tolist())

    def observe(self, x: Float[Tensor, " embed"], y: int) -> None:
        self.classifier.learn_one(x.numpy() if self.encoder is None else self._given(x[None]), y)

    def predict(self, x: Float[Tensor, "query embed"]) -> Scores:
        log_probs = torch.full((len(x), self.way), -torch.inf)
        new = torch.ones(len(x))
        for row, answer in enumerate(self.classifier.predict_proba_many(self._given(x))):
            known = torch.tensor(list(answer), dtype=torch.int64)
            log_probs[row, known] = torch.tensor(list(answer.values())).clamp(min=1e-12).log()
            new[row] = answer.new_class
        return Scores(log_probs, new)

    def kept(self) -> int:
        return len(self.classifier)

    def _given(self, x: Float[Tensor, "example embed"]) -> Examples | np.ndarray:
        if self.encoder is None:
            return x.numpy()
        return Examples([None] * len(x), self.encoder, x.numpy())
