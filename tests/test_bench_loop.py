"""The bench of the loop runs on small sets, and goes on where it was stopped."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.bench import loop, loop_sets, loop_streams, loop_suggest
from experiments.paper.results import load_rows

CLASSES, EACH, WIDTH = 8, 30, 70


def small(name: str, chosen_on: bool = False) -> loop_sets.Pool:
    chance = np.random.default_rng(0)
    centres = chance.normal(size=(CLASSES, WIDTH))
    y = np.arange(CLASSES * EACH) % CLASSES
    x = (centres[y] + 0.7 * chance.normal(size=(len(y), WIDTH))).astype(np.float32)
    return loop_sets.Pool(x[:160], y[:160], x[160:], y[160:], "made")


@pytest.fixture(autouse=True)
def small_sets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for module in (loop_sets, loop_streams):
        monkeypatch.setattr(module, "source", small)
    for module in (loop, loop_streams, loop_suggest):
        monkeypatch.setattr(module, "SETS", ("omniglot",))
    monkeypatch.setattr(loop_sets, "POOL", 120)
    monkeypatch.setattr(loop_streams, "WAY", CLASSES)
    monkeypatch.setattr(loop_streams, "LENGTH", 120)


def test_a_pool_is_even_or_uneven_or_holds_near_duplicates() -> None:
    even, uneven, repeated = (loop_sets.pool("omniglot", kind, 0, most=120) for kind in loop_sets.KINDS)
    assert set(np.bincount(even.y)) == {15}
    number = np.sort(np.bincount(uneven.y))
    assert number[-1] >= 4 * number[0] >= 4
    distance = np.linalg.norm(repeated.x[:, None] - repeated.x[None], axis=2)
    assert (np.sort(distance, axis=1)[:, 1] < 0.1 * np.linalg.norm(repeated.x, axis=1)).mean() > 0.4


def test_every_part_is_measured_once(capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("coverage", "review", "suggest"):
        loop.Command(only=part, quick=True).run()
    result = json.loads(Path("results/quick/loop.json").read_text())
    rows = result["rows"]
    assert {row["part"] for row in rows} == {"coverage", "review", "suggest"}
    assert all(0.7 < row["coverage"] <= 1 for row in rows if row["part"] == "coverage")
    [ours] = [row for row in rows if row["part"] == "review" and row["method"] == "review"]
    assert ours["auroc"] > 0.9
    needed = {(row["kind"], row["method"]): row["labels"] for row in result["labels_needed"]}
    assert needed["near-duplicates", "suggest"] < needed["near-duplicates", "random"]
    [random] = [r for r in result["labels_needed"] if (r["kind"], r["method"]) == ("near-duplicates", "random")]
    assert random["labels_ours_more"] == needed["near-duplicates", "suggest"] - random["labels"]
    capsys.readouterr()
    loop.Command(only="suggest", quick=True).run()
    assert capsys.readouterr().err == "" and len(load_rows("loop", quick=True)) == len(rows)


def test_an_accuracy_counts_as_reached_once_it_holds_a_round_later(monkeypatch: pytest.MonkeyPatch) -> None:
    accuracies = iter([0.5, 0.9, 0.7, 0.8, 0.9])
    monkeypatch.setattr(loop_suggest.OnlineClassifier, "score", lambda *_: next(accuracies))
    given = loop_sets.pool("omniglot", "even", 0)
    accuracy, labels = loop_suggest.curve(given, loop_suggest.at_random, 0.75, 0)
    assert accuracy == [0.0, 0.5, 0.9, 0.7, 0.8, 0.9] and labels == pytest.approx(70)


def test_labels_are_exchanged_for_other_ones_in_the_middle() -> None:
    _, before = loop_streams.stream("omniglot", "random order", 3)
    _, after = loop_streams.stream("omniglot", loop_streams.EXCHANGED, 3)
    half = len(before) // 2
    assert np.array_equal(before[:half], after[:half]) and (before[half:] != after[half:]).all()
    assert len({(a, b) for a, b in zip(before[half:].tolist(), after[half:].tolist(), strict=True)}) == CLASSES


def test_half_of_the_classes_come_in_the_second_half() -> None:
    _, y = loop_streams.stream("omniglot", "classes change half-way", 3)
    assert len(y) == 120 and set(y[:60].tolist()) == set(range(4)) and (np.diff(y[:60]) != 0).mean() > 0.5


def test_the_delay_of_an_alarm_is_measured() -> None:
    pytest.importorskip("river")
    x, y = loop_streams.stream("omniglot", loop_streams.EXCHANGED, 1, 160)
    assert all(time >= len(y) // 2 for time in loop_streams.alarms_on(x, y)["drift"])
