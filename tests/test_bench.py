from __future__ import annotations

from functools import partial

import pytest
import torch

from experiments.bench import features
from experiments.bench.measurement import calibration_error, ratio, take_turns, threads
from experiments.bench.soak import compared
from experiments.bench.training_step import training_step
from experiments.data.embedded import Embedded


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


def vectors(classes: int = 6, drawings: int = 20, width: int = 256) -> Embedded:
    """Classes that are easy to tell apart, as long as the bundled encoder's embeddings."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat_interleave(drawings)
    centres = torch.randn(classes, width, generator=generator)
    x = centres[labels] + 0.2 * torch.randn(len(labels), width, generator=generator)
    return Embedded(torch.nn.functional.normalize(x, dim=1) * width**0.5, labels, "made", "0")


def test_a_service_that_grows_is_noticed_and_the_warm_up_is_not_held_against_it() -> None:
    def looks(*rss: float) -> list[dict[str, float]]:
        return [{"rss_mb": mb, "threads": 9.0, "descriptors": 30.0} for mb in rss]

    assert compared(looks(10.0, 50.0, *[100.0] * 6))["growth"] == 1.0
    assert compared(looks(10.0, 50.0, 100.0, 100.0, 110.0, 120.0, 130.0, 130.0))["growth"] == 1.3


def test_calibration_error_is_the_gap_between_confidence_and_accuracy() -> None:
    sure, right = torch.tensor([0.9, 0.9, 0.9, 0.9]), torch.tensor([True, True, True, False])
    assert calibration_error(sure, right) == pytest.approx(0.15)
    assert calibration_error(torch.tensor([1.0, 0.0]), torch.tensor([True, False])) == 0


def test_half_of_the_questions_are_about_classes_that_were_not_learnt() -> None:
    data = vectors(classes=6, drawings=6, width=8)
    (task,) = features.new_or_known_tasks(data, data, shot=2, draws=1, way=None)
    assert task.way == 3 and int((task.truth < 0).sum()) == int((task.truth >= 0).sum()) == 12
    (row, *rivals) = features.new_or_known_rows("made", 2, iter([task]))
    assert row["auroc"] > 0.9 and [r["method"] for r in rivals] == ["1-NN", "class mean"]


def test_out_of_scope_requests_are_the_new_ones_where_there_are_some() -> None:
    data = vectors(classes=4, drawings=6, width=8)
    asked = Embedded(data.embeddings, torch.where(data.labels == 3, -1, data.labels), "made", "")
    learnt = Embedded(data.embeddings[data.labels < 3], data.labels[data.labels < 3], "made", "")
    (task,) = features.new_or_known_tasks(learnt, asked, shot=2, draws=1, way=None)
    assert task.way == 3 and int((task.truth < 0).sum()) == 6
