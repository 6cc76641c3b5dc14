"""ONNX sessions: how many threads they take, and that they outlive a fork."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from apl.onnx_session import MOST_THREADS, usual_threads


def test_the_number_of_threads_is_the_one_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert usual_threads() == 3


@pytest.mark.parametrize("asked", ["", "0", "-2", "many"])
def test_without_a_sensible_wish_it_is_the_number_of_cores_within_reason(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    for cores, threads in [(1, 1), (2, 2), (64, MOST_THREADS)]:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
        assert usual_threads() == threads


FORKED = """
import multiprocessing, sys
import numpy as np
from apl import OnlineClassifier

classifier = OnlineClassifier.from_pretrained("omniglot")
drawing = np.zeros((56, 56), np.uint8)
drawing[10:40, 20:24] = 255
classifier.learn_one(drawing, "bar")
classifier.learn_one(drawing.T, "line")
with multiprocessing.get_context("fork").Pool(2) as pool:
    said = pool.map(classifier.predict_one, [drawing, drawing.T])
assert said == ["bar", "line"] == [classifier.predict_one(drawing), classifier.predict_one(drawing.T)], said
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_classifier_with_several_threads_answers_in_a_forked_process() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", FORKED], env=environment, capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
