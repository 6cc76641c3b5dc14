from __future__ import annotations

import math

import numpy as np

from apl.controller import Action, ConsolidatingController, SurpriseController, WriteAll

IGNORE, MERGE, WRITE = Action


def test_what_surprised_more_than_the_threshold_is_written() -> None:
    threshold = 0.75 * math.log(20)
    surprise = np.array([[0.0, threshold - 1e-3, threshold + 1e-3, 50.0, math.inf]])
    assert SurpriseController().decide(surprise, 20).tolist() == [[IGNORE, IGNORE, WRITE, WRITE, WRITE]]
    assert ConsolidatingController().decide(surprise, 20).tolist() == [[MERGE, MERGE, WRITE, WRITE, WRITE]]


def test_a_surprise_equal_to_the_threshold_is_not_written() -> None:
    assert SurpriseController(sigma_nats=1.5).decide(np.array([[1.5]]), 20) == IGNORE


def test_the_threshold_grows_with_the_logarithm_of_the_number_of_classes() -> None:
    controller = SurpriseController(ratio=0.5)
    assert math.isclose(controller.threshold_nats(100), 2 * controller.threshold_nats(10))


def test_the_threshold_can_be_kept_from_growing_further() -> None:
    controller = SurpriseController(ratio=0.5, most_nats=1.2)
    assert math.isclose(controller.threshold_nats(10), 0.5 * math.log(10))
    assert controller.threshold_nats(100) == 1.2


def test_a_threshold_in_nats_does_not_depend_on_the_number_of_classes() -> None:
    controller = SurpriseController(sigma_nats=2.0)
    assert controller.threshold_nats(5) == controller.threshold_nats(1000) == 2.0


def test_by_default_a_uniform_guess_is_written_and_at_ratio_one_it_is_not() -> None:
    for way in (2, 20, 1000):
        uniform = np.full((1, 1), -math.log(1 / way), np.float32)
        assert SurpriseController().decide(uniform, way) == WRITE
        assert SurpriseController(ratio=1.0 + 1e-6).decide(uniform, way) == IGNORE


def test_the_ablations_write_all_and_nothing() -> None:
    surprise = np.array([[0.0, 3.0], [100.0, 1e-9]])
    assert WriteAll().decide(surprise, 5).tolist() == [[WRITE, WRITE]] * 2
    assert SurpriseController(sigma_nats=math.inf).decide(surprise, 5).tolist() == [[IGNORE, IGNORE]] * 2
