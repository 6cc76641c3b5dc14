"""scikit-learn's conventions without scikit-learn: it is never imported here, and obeyed to the letter where it is in use.

Parameters are the constructor's arguments; `get_params`, `set_params`, `clone`, pipelines and searches work. In a
process that has imported scikit-learn, inputs are checked by its own functions and errors are of its own kinds; in
one that has not, the plain checks here do.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import Any

import numpy as np

from apl.classifier.configuration import Configuration
from apl.classifier.inputs import refuse_sparse
from apl.classifier.labels import plain_labels


class NotFitted(ValueError, AttributeError):
    """Something was asked of an estimator that has learnt nothing yet."""


def not_fitted(message: str) -> Exception:
    """The error to raise; scikit-learn's own where it is in use."""
    if "sklearn" in sys.modules:
        from sklearn.exceptions import NotFittedError

        error: Exception = NotFittedError(message)
        return error
    return NotFitted(message)


class Estimator(Configuration):
    """A classifier that scikit-learn takes for one of its own."""

    n_features_in_: int

    def predict(self, X: Any) -> np.ndarray:
        raise NotImplementedError

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments. None of them is an estimator, so `deep` changes nothing."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def set_params(self, **parameters: Any) -> Any:
        valid = sorted(field.name for field in fields(self))
        for name, value in parameters.items():
            if name not in valid:
                raise ValueError(f"Invalid parameter {name!r} for estimator {self}. Valid parameters are: {valid!r}.")
            setattr(self, name, value)
        return self

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        given = ((field.name, getattr(self, field.name), field.default) for field in fields(self))
        changed = [f"{name}={value!r}" for name, value, usual in given if repr(value) != repr(usual)]
        return f"{type(self).__name__}({', '.join(changed)})"[:N_CHAR_MAX]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of examples whose most probable known class is the right one."""
        answers = zip(self.predict(X).tolist(), plain_labels(y), strict=True)
        return float(np.average([answer == truth for answer, truth in answers], weights=sample_weight))

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            transformer_tags=None,
            regressor_tags=None,
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(),
        )

    def _checked_vectors(self, X: Any, y: Any = None, *, reset: bool) -> tuple[Any, Any]:
        """Vectors (and labels) as arrays of as many numbers each as at first; `reset` decides what is first."""
        if "sklearn" in sys.modules:
            from sklearn.utils.multiclass import check_classification_targets
            from sklearn.utils.validation import validate_data

            if y is None:
                return validate_data(self, X, reset=reset, dtype=np.float32), None
            X, y = validate_data(self, X, y, reset=reset, dtype=np.float32)
            check_classification_targets(y)
            return X, y
        refuse_sparse(X)
        X = np.asarray(X)
        if X.ndim != 2:
            raise ValueError(f"Expected 2D array, got shape {list(X.shape)}. Reshape your data: one row an example")
        if reset:
            self.n_features_in_ = X.shape[1]
        elif X.shape[1] != self.n_features_in_:
            raise ValueError(f"X has {X.shape[1]} features, but this classifier expects {self.n_features_in_}")
        return X, y
