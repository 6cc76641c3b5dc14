"""The parameters of a classifier: checked before anything is opened, recorded in its memory, and handled as scikit-learn does.

scikit-learn is never imported here, and obeyed to the letter where it is in use: in a process that has imported it, inputs are
checked by its own functions and errors are of its own kinds; in one that has not, the plain checks here do.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import Any, Literal, cast, get_args

import numpy as np

from apl.checkpoint import BUNDLED
from apl.classifier.inputs import refuse_sparse
from apl.config import Metric
from apl.encoders import FrozenEncoder, encoder_name, plugged_encoder
from apl.learner import Learner
from apl.pictures.drawings import Ink, check_ink
from apl.store import StoreDamaged, StoreError, open_store

SETTING = "classifier"
"""Under this name a memory records the configuration that `OnlineClassifier.load` needs."""
Recall = Literal["ram", "engine", "approximate"]
"""Where a memory is searched: in a copy in RAM, or on the server it lives on, exactly or through an index that misses
some neighbours."""
ADJUSTABLE = ("max_rows", "sigma", "k", "ageing")
"""Parameters that may change while a memory is open."""
MOST_NEIGHBOURS = 1024
"""Largest k: recalled rows are compared with one another too."""
RECORDED = ("width", "metric", "consolidate", "ink", "keep_images", *ADJUSTABLE)


class UnknownWidth(ValueError):
    """A memory of vectors cannot be made before one of them was seen."""


class NotFitted(ValueError, AttributeError):
    """Something was asked of an estimator that has learnt nothing yet."""


def not_fitted(message: str) -> Exception:
    """The error to raise; scikit-learn's own where it is in use."""
    if "sklearn" in sys.modules:
        from sklearn.exceptions import NotFittedError

        error: Exception = NotFittedError(message)
        return error
    return NotFitted(message)


@dataclass(eq=False, repr=False)
class Configuration:
    """The parameters of `OnlineClassifier`, which documents them. scikit-learn takes it for one of its own estimators."""

    model: Any = None
    _: KW_ONLY
    memory: Any = None
    name: str = "default"
    max_rows: int | None = None
    consolidate: bool = True
    sigma: float | None = None
    k: int | None = None
    ageing: bool = True
    ink: Ink = "auto"
    keep_images: bool = True
    width: int | None = None
    read_only: bool = False
    encoder: Any = None
    recall: str | None = None
    metric: str | None = None
    index: str | None = None
    keep_sources: bool | None = None

    def check(self, encoder: FrozenEncoder | None, of_vectors: bool) -> None:
        """Raise if these parameters are not valid, or do not go together. `of_vectors`: the memory is one of vectors, also of
        those that `encoder` gives."""
        check_parameters(**{name: getattr(self, name) for name in (*ADJUSTABLE, "metric", "ink")})
        if self.recall not in (None, *get_args(Recall)):
            raise ValueError(f"recall is 'ram', 'engine' or 'approximate', got {self.recall!r}")
        for name in ("width", "metric"):
            if getattr(self, name) is not None and not of_vectors:
                raise ValueError(f"{name}= is for vectors: it is not valid with a model of pictures")
        if encoder is not None and encoder.width is not None and self.width not in (None, encoder.width):
            raise ValueError(f"the encoder gives vectors of {encoder.width} numbers, not of width={self.width}")

    def recorded(self, width: int) -> dict[str, Any]:
        """What a memory records, so that it can be opened by its location alone."""
        model, encoder = self.model, plugged_encoder(self.model, self.encoder)
        if encoder is not None:
            model = None
        elif isinstance(model, Learner):
            model = ""
        elif model is not None:
            # A bundled model is found by name on any machine, another one only where it lies.
            model = str(model) if (BUNDLED / str(model)).is_dir() else str(Path(model).absolute())
        kept = {name: getattr(self, name) for name in RECORDED}
        kept |= {name: bool(kept[name]) for name in ("consolidate", "keep_images")}
        return {**kept, "width": width, "model": model, "encoder": None if encoder is None else encoder_name(encoder)}

    # --- scikit-learn's conventions -------------------------------------------------------------------------------

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


def recorded_parameters(location: Any, name: str, model: Any, encoder: Any = None) -> dict[str, Any]:
    """The parameters that a memory records, with this model or encoder if one is given."""
    where = f"memory {name!r} in {location}"
    with open_store(location, name, read_only=True) as store:
        kept = store.setting(SETTING) or {}
    if problem := settings_problem({SETTING: kept}):
        raise StoreDamaged(f"{where} cannot be used ({problem}): see `apl memory verify`")
    found = {key: kept[key] for key in (*RECORDED, "model", "encoder") if key in kept}
    if not found and model is None and encoder is None:
        raise StoreError(f"{where} does not say which model it belongs to: give model= (--model)")
    if model is None and found.get("model") == "":
        raise StoreError(f"{where} was made with a learner that has no name: give model= (--model)")
    if model is None and encoder is None and found.get("encoder") == "":
        raise StoreError(f"{where} was made with an encoder that has no name: give encoder=")
    if plugged_encoder(model, encoder) is not None:
        found |= {"model": None, "encoder": plugged_encoder(model, encoder)}
    elif model is not None:
        found |= {"model": model, "encoder": None}
    if found.get("model") is not None:
        found.pop("width", None)
    return {**found, "memory": location, "name": name}


def check_parameters(
    *,
    max_rows: Any = None,
    sigma: Any = None,
    k: Any = None,
    ageing: Any = True,
    metric: Any = None,
    ink: Any = "auto",
) -> None:
    for name, value in (("max_rows", max_rows), ("k", k)):
        if value is not None:
            check_whole(name, value)
    if k is not None and k > MOST_NEIGHBOURS:
        raise ValueError(f"k may be {MOST_NEIGHBOURS} at most, got {k}: every question would look at that many rows")
    if not isinstance(ageing, bool):
        raise ValueError(f"ageing is True or False, got {ageing!r}")
    if sigma is not None and (
        isinstance(sigma, bool) or not isinstance(sigma, Real) or not 0 <= cast(float, sigma) <= 1e308
    ):
        raise ValueError(f"sigma must be at least 0 nats, and a number, got {sigma!r}")
    if metric not in (None, *get_args(Metric)):
        raise ValueError(f"metric is 'euclidean' or 'cosine', got {metric!r}")
    check_ink(ink)


def settings_problem(settings: Mapping[str, Any]) -> str | None:
    """Why the parameters that a memory records could not be used. A file or an archive from elsewhere may hold anything."""
    kept = settings.get(SETTING) or {}
    try:
        if not isinstance(kept, dict):
            raise ValueError(f"it must be a dictionary, it is {kept!r:.40}")
        check_parameters(**{name: kept[name] for name in ("metric", "ink", *ADJUSTABLE) if name in kept})
        if kept.get("width") is not None:
            check_whole("width", kept["width"])
        kinds = {"model": (str, NoneType), "encoder": (str, NoneType), "consolidate": (bool,), "keep_images": (bool,)}
        for name, kind in kinds.items():
            if name in kept and not isinstance(kept[name], kind):
                raise ValueError(f"{name} is of the wrong type, it is {kept[name]!r:.40}")
    except ValueError as error:
        return f"setting {SETTING!r}: {error}"
    return None


def check_whole(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} must be at least 1, and a whole number, got {value}")


def check_new_above(new_above: float | None, false_alarms: float | None = None) -> None:
    if new_above is not None and false_alarms is not None:
        raise ValueError("give new_above= or false_alarms=, not both")
    if false_alarms is not None and not 0 < false_alarms < 1:
        raise ValueError(f"false_alarms is a share between 0 and 1, got {false_alarms}")
    if new_above is not None and not 0 <= new_above <= 1:
        raise ValueError(f"new_above is a probability from 0 to 1, got {new_above}")
