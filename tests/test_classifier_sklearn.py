"""scikit-learn's own checks, on the form of the classifier that takes vectors."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import apl

CANNOT_APPLY = {
    "check_do_not_raise_errors_in_init_or_set_params": "under pytest the types of arguments are checked",
}


@parametrize_with_checks([apl.OnlineClassifier()], expected_failed_checks=lambda _: CANNOT_APPLY)
def test_scikit_learn_check(estimator, check) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def blobs() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    labels = np.arange(90) % 3
    return random.normal(size=(90, 6)) + 6 * np.eye(3, 6)[labels], np.array(["a", "b", "c"])[labels]


def test_works_behind_a_feature_extractor_in_a_pipeline(blobs) -> None:
    X, y = blobs
    pipeline = make_pipeline(PCA(4), apl.OnlineClassifier())
    assert cross_val_score(pipeline, X, y, cv=3).min() > 0.9


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_scale_of_the_features_does_not_matter(blobs, scale: float) -> None:
    X, y = blobs
    plain, scaled = apl.OnlineClassifier().fit(X, y), apl.OnlineClassifier().fit(X * scale, y)
    assert len(plain) == len(scaled)
    np.testing.assert_allclose(plain.predict_proba(X), scaled.predict_proba(X * scale), atol=1e-3)


def test_a_clone_has_the_parameters_and_none_of_the_memory(blobs) -> None:
    classifier = apl.OnlineClassifier(max_rows=7, sigma=0.5).fit(*blobs)
    copy = clone(classifier)
    assert copy.get_params() == classifier.get_params()
    assert len(classifier) and not len(copy)


def test_partial_fit_may_meet_a_class_late_and_unannounced(blobs) -> None:
    X, y = blobs
    early = y != "c"
    classifier = apl.OnlineClassifier().partial_fit(X[early], y[early])
    assert list(classifier.classes_) == ["a", "b"]
    classifier.partial_fit(X[~early], y[~early])
    assert list(classifier.classes_) == ["a", "b", "c"]
    assert classifier.score(X, y) > 0.9
