"""Whether surprise has risen."""

from __future__ import annotations

import numpy as np
import pytest

from apl import OnlineClassifier
from apl.classifier.drift import drift_report, rise
from apl.memory.history import History

CLASSES, WIDTH = 6, 8
CENTRES = 3 * np.random.default_rng(0).normal(size=(CLASSES, WIDTH))


def stream(number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    label = random.integers(0, CLASSES, number)
    return (CENTRES[label] + random.normal(size=(number, WIDTH))).astype(np.float32), label


def learn(classifier: OnlineClassifier, x: np.ndarray, y: np.ndarray) -> None:
    for one, label in zip(x, y, strict=True):
        classifier.learn_one(one, f"class {label}")


@pytest.fixture(scope="module")
def steady() -> OnlineClassifier:
    classifier = OnlineClassifier(ageing=False)
    learn(classifier, *stream(120, 1))
    return classifier


def test_a_steady_stream_gives_no_alarm(steady):
    report = steady.drift()
    assert not report.alarm and report.since is None and report.labels == () and report.before == report.now


def test_labels_that_change_their_meaning_give_an_alarm_that_names_them(tmp_path):
    with OnlineClassifier(memory=tmp_path / "a.apl", ageing=False) as classifier:
        learn(classifier, *stream(130, 1))
        x, y = stream(50, 2)
        learn(classifier, x, np.where(y == 0, 1, np.where(y == 1, 0, y)))
        report = classifier.drift()
    assert report.alarm and report.now > report.before
    assert report.since is not None and 25 <= report.since <= 80
    assert set(report.labels[:2]) == {"class 0", "class 1"}
    with OnlineClassifier.load(tmp_path / "a.apl") as again:
        assert again.drift() == report


def history_of(surprise: list[float]) -> History:
    history = History()
    for nats in surprise:
        history = history.after(nats, nats, "a")
    return history


def test_the_alarm_ends_when_surprise_falls_again():
    high, low = [3.0] * 60, [0.01] * 120
    assert drift_report(history_of(low + high), ["a"]).alarm
    assert not drift_report(history_of(low + high + low), ["a"]).alarm
    assert not drift_report(history_of(high + low), ["a"]).alarm


def test_a_class_that_is_forgotten_is_not_named():
    report = drift_report(history_of([0.01] * 120 + [3.0] * 60), [])
    assert report.alarm and report.labels == ()


def test_before_any_example_there_is_no_alarm():
    report = OnlineClassifier().drift()
    assert not report.alarm and report.examples == 0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("usual", "later"), [(0.1, 0.6), (0.3, 0.75)])
def test_the_test_is_as_quick_as_adwin_of_river_and_as_quiet(seed, usual, later):
    detector = pytest.importorskip("river.drift").ADWIN(clock=1)
    random = np.random.default_rng(seed)
    values = np.concatenate([random.random(300) < usual, random.random(100) < later]).astype(float)
    noticed = None
    for time, value in enumerate(values):
        detector.update(value)
        if noticed is None and detector.drift_detected:
            noticed = time
    ours = [rise(values[: time + 1]) is not None for time in range(20, len(values))]
    assert noticed is not None and not any(ours[:280]) and 300 <= ours.index(True) + 20 <= noticed


def test_ageing_hears_of_a_change_among_classes_that_were_shown_a_few_times():
    right = {}
    for ageing in (True, False):
        classifier = OnlineClassifier(ageing=ageing)
        x, y = stream(200, 4)
        y[60:] = (y[60:] + 1) % CLASSES
        learn(classifier, x[:150], y[:150])
        right[ageing] = float(np.mean(classifier.predict(x[150:]) == [f"class {label}" for label in y[150:]]))
    assert right[True] > right[False] + 0.1
