"""Training of a decoder of fixed labels that starts by copying the labels it recalls.

Deviation: the first weights are set by hand (`decoder_start`); not the paper's form.
"""

from __future__ import annotations

from dataclasses import dataclass

from apl.learner import Learner
from apl.training.episodic import TrainConfig, train
from apl.training.run import RunOptions
from experiments.training.decoder_start import start_by_copying

SHARPNESS = 20.0


@dataclass(frozen=True)
class CopyingConfig(TrainConfig):
    copying: bool = True
    """False: from random weights, or those of `decoder_from`."""

    def train(self, options: RunOptions) -> Learner:
        return train(self, options, self.set_first_weights if self.copying else None)

    @staticmethod
    def set_first_weights(learner: Learner) -> None:
        start_by_copying(learner.decoder, SHARPNESS)
