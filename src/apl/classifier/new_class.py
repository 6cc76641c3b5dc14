"""The probability that a query belongs to no class in memory.

The decoder puts a share of its belief on "none of the rows I was shown". That happens for two reasons: the class is
new, or it is known and none of its rows was recalled. Asked as if one more class existed than is known, the learner
always has such a share, even when every known class was recalled. A logistic curve turns it into a probability:

    P(new) = 1 / (1 + exp(-(intercept + slope · logit(none) + crowding · ln(1 + classes not recalled))))

Its three numbers belong to a model and stand in `new_class.json` beside its weights. They are fitted on characters
held out for validation (`fit_rule`), half of whose queries were of classes not in memory. A model without the file
uses the share as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int

from apl.checkpoint import CheckpointError, find_model, read_json

FILE = "new_class.json"
MOST_CERTAIN = 1e-6
"""Shares are kept this far from 0 and 1, so that their logits are finite."""


@dataclass(frozen=True)
class NewClassRule:
    """From the share on "none of these" to the probability of a new class."""

    intercept: float = 0.0
    slope: float = 1.0
    crowding: float = 0.0
    """How the verdict shifts with the number of known classes that were not recalled."""

    def probability(
        self, log_none: Float[np.ndarray, " query"], not_recalled: Int[np.ndarray, " query"]
    ) -> Float[np.ndarray, " query"]:
        weights = np.array([self.intercept, self.slope, self.crowding], np.float32)
        return 1 / (1 + np.exp(-(features(log_none, not_recalled) @ weights)))

    @staticmethod
    def of_model(name_or_dir: str | Path) -> NewClassRule:
        """The rule that was fitted for a saved model; the share as it is, if none was."""
        path = find_model(name_or_dir) / FILE
        if not path.is_file():
            return NewClassRule()
        values = read_json(path)
        try:
            return NewClassRule(*(float(values[name]) for name in ("intercept", "slope", "crowding")))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path} is damaged ({error!r}): restore it or fit it anew") from None


def features(
    log_none: Float[np.ndarray, " query"], not_recalled: Int[np.ndarray, " query"]
) -> Float[np.ndarray, "query 3"]:
    share = np.exp(log_none).clip(MOST_CERTAIN, 1 - MOST_CERTAIN)
    crowd = np.log1p(not_recalled, dtype=np.float32)
    return np.stack([np.ones_like(share), np.log(share / (1 - share)), crowd], -1)


def fit_rule(
    log_none: Float[np.ndarray, " query"], not_recalled: Int[np.ndarray, " query"], is_new: Bool[np.ndarray, " query"]
) -> NewClassRule:
    """Logistic regression, all but unpenalised."""
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(C=1e4, fit_intercept=False, max_iter=1000).fit(features(log_none, not_recalled), is_new)
    return NewClassRule(*fitted.coef_[0].tolist())
