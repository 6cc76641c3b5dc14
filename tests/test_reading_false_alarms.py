"""The line between new and known at an asked rate."""

from __future__ import annotations

import numpy as np
import pytest

from apl.memory import COUNT, LABEL, Neighbours
from apl.reading.false_alarms import line, without_itself


def test_the_line_is_exceeded_by_the_asked_share():
    log_odds = np.random.default_rng(0).normal(size=199)
    for share in (0.05, 0.1, 0.5):
        assert (log_odds > line(log_odds, share)).mean() == pytest.approx(share, abs=0.006)
    assert line(np.zeros(0), 0.05) == np.inf


def test_an_example_is_taken_out_of_the_mean_of_its_row():
    examples = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    columns = {
        "embedding": np.array([[[examples.mean(0), [3.0, 3.0]]]], np.float32),
        LABEL: np.zeros((1, 1, 2), int),
        COUNT: np.array([[[2.0, 1.0]]], np.float32),
    }
    found = Neighbours(columns, np.zeros((1, 1, 2)), np.ones((1, 1, 2), bool), np.array([[[7, 9]]]))
    left = without_itself(found, examples[None, :1], np.array([7]))
    assert left.columns["embedding"][0, 0].tolist() == [[0, 1], [3, 3]]
    assert left.examples[0, 0].tolist() == [1, 1] and left.mask.all()
    alone = without_itself(found, examples[None, :1], np.array([9]))
    assert alone.mask[0, 0].tolist() == [True, False]
