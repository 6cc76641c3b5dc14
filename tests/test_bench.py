from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from experiments.bench import batch
from experiments.bench.measurement import calibration_error, ratio, take_turns, threads
from experiments.bench.soak import compared
from experiments.bench.training_step import training_step


def test_contenders_take_turns_and_the_first_rounds_do_not_count() -> None:
    calls: list[str] = []
    clock = iter(range(1000))
    contenders = {name: partial(calls.append, name) for name in ("a", "b")}
    seconds = take_turns(contenders, rounds=2, clock=lambda: float(next(clock)))
    assert calls == ["a", "b", "b", "a"] * 2 and seconds == {"a": [1.0, 1.0], "b": [1.0, 1.0]}


def test_the_ratio_is_the_median_of_the_rounds_ratios() -> None:
    assert ratio([1.0, 2.0, 90.0], [1.0, 1.0, 30.0]) == 2.0


def test_the_number_of_threads_is_put_back() -> None:
    before = torch.get_num_threads()
    with threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_a_training_step_is_measured_beside_the_bare_network() -> None:
    with threads(1):
        step = training_step(rounds=1)
    assert step["whole_milliseconds"] > 0 and step["ratio"] > 0


def test_a_service_that_grows_is_noticed_and_the_warm_up_is_not_held_against_it() -> None:
    def looks(*rss: float) -> list[dict[str, float]]:
        return [{"rss_mb": mb, "threads": 9.0, "descriptors": 30.0} for mb in rss]

    assert compared(looks(10.0, 50.0, *[100.0] * 6))["growth"] == 1.0
    assert compared(looks(10.0, 50.0, 100.0, 100.0, 110.0, 120.0, 130.0, 130.0))["growth"] == 1.3


def test_calibration_error_is_the_gap_between_confidence_and_accuracy() -> None:
    sure, right = torch.tensor([0.9, 0.9, 0.9, 0.9]), torch.tensor([True, True, True, False])
    assert calibration_error(sure, right) == pytest.approx(0.15)
    assert calibration_error(torch.tensor([1.0, 0.0]), torch.tensor([True, False])) == 0


def test_half_of_the_classes_are_learnt_and_what_is_asked_is_of_both_halves() -> None:
    chance = np.random.default_rng(0)
    y = np.repeat(np.arange(6), 8)
    x = chance.normal(size=(6, 8))[y] + 0.1 * chance.normal(size=(len(y), 8))
    (split,) = batch.halves(x, y, shot=5, draws=1)
    assert len(np.unique(split.y)) == 3 and int(split.truth.sum()) == 9 and int((~split.truth).sum()) == 24
    rows = list(batch.false_alarm_rows("made", 5, batch.halves(x, y, shot=5, draws=2)))
    assert [row["asked"] for row in rows] == list(batch.RATES) and rows[0]["auroc"] > 0.9
