"""Many threads on one classifier: what it answers is what a sequential model would have answered at some moment."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import apl

WIDTH = 8


def corner(label: int) -> np.ndarray:
    """Every label has a place of its own, so that the answer to a question is known once it was learnt."""
    return 10 * np.eye(WIDTH, dtype=np.float32)[label % WIDTH] * (1 + label // WIDTH)


@pytest.mark.parametrize("home", ["ram", "file"])
def test_the_first_lessons_of_many_threads_all_arrive(home: str, tmp_path: Path) -> None:
    classifier = apl.OnlineClassifier(memory=None if home == "ram" else tmp_path / "rows.apl")
    start = threading.Barrier(6)

    def teach(thread: int) -> int:
        start.wait()
        return sum(classifier.learn_one(corner(thread), f"{thread}.{n}").written for n in range(4))

    with ThreadPoolExecutor(6) as threads:
        written = sum(threads.map(teach, range(6)))
    assert written == 24 == len(classifier.classes_) and len(classifier) == 24
    classifier.close()


def test_learners_predictors_and_forgetters_at_once_see_only_what_was_there() -> None:
    classifier = apl.OnlineClassifier.for_features(WIDTH)
    # These stay; the threads add and forget others, far away from them.
    settled = {f"settled {n}": corner(n) for n in range(4)}
    for label, place in settled.items():
        classifier.learn_one(place, label)
    wrong: list[object] = []
    stop = threading.Event()

    def learn_and_forget(thread: int) -> None:
        place = corner(4 + thread % 4) * (2 + thread)
        for _ in range(5):
            label = f"passing {thread}"
            receipt = classifier.learn_one(place, label)
            if not receipt.written or classifier.forget(label=label) == []:
                wrong.append(("lesson", thread))

    def ask() -> None:
        X, truth = np.stack(list(settled.values())), np.array(list(settled))
        while not stop.is_set():
            if (said := classifier.predict(X)).tolist() != truth.tolist():
                wrong.append(("predict", said))
            probabilities = classifier.predict_proba_one(X[0])
            if max(probabilities, key=probabilities.get) != truth[0] or not set(settled) <= set(probabilities):
                wrong.append(("predict_proba_one", probabilities))
            if not set(settled) <= set(classifier.classes_.tolist()):
                wrong.append(("classes_", classifier.classes_))

    with ThreadPoolExecutor(6) as threads:
        questions = [threads.submit(ask) for _ in range(2)]
        lessons = [threads.submit(learn_and_forget, n) for n in range(4)]
        for lesson in lessons:
            lesson.result()
        stop.set()
        for question in questions:
            question.result()
    assert wrong == []
    assert sorted(classifier.classes_) == sorted(settled)
