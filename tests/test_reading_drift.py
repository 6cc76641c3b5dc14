"""Signs that labels have changed their meaning."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from apl.reading.drift import LONGEST, MARK_EVERY, OFTEN, Drift


def after(drift: Drift, contradictions: np.ndarray, before: int = OFTEN, first_row: int = 0) -> Drift:
    for number, contradicts in enumerate(contradictions.tolist()):
        drift = drift.learnt(contradicts, before, first_row + number)
    return drift


def rarely(count: int, share: float = 0.1) -> np.ndarray:
    return np.random.default_rng(0).random(count) < share


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3])
def test_a_steady_rate_is_no_drift(share):
    drift = Drift()
    for contradicts in rarely(3000, share).tolist():
        drift = drift.learnt(contradicts, OFTEN, 0)
        assert not drift.began


def test_a_sudden_change_is_noticed_and_is_over_when_the_rate_falls():
    changed = after(after(Drift(), rarely(400)), np.ones(15, bool))
    assert changed.began
    assert not after(changed, np.zeros(80, bool)).began


def test_what_lasts_becomes_usual():
    drift = after(after(Drift(), rarely(400)), np.ones(LONGEST + 50, bool))
    assert not drift.began


def test_classes_that_were_shown_a_few_times_contradict_nothing():
    drift = after(after(Drift(), rarely(400)), np.ones(200, bool), before=OFTEN - 1)
    assert not drift.began


def test_risen_surprise_is_drift_also_among_classes_that_were_shown_a_few_times():
    drift = after(Drift(), rarely(100), before=3).learnt(True, 3, 100, risen=True)
    assert drift.began and not after(drift, np.zeros(80, bool), before=3).began


def test_rows_written_since_the_change_are_not_old():
    steady = after(Drift(), rarely(400))
    changed = after(steady, np.ones(15, bool), first_row=400)
    assert changed.began
    assert 400 - 2 * MARK_EVERY <= changed.earlier < 400 + MARK_EVERY


def test_it_is_kept_and_read_back():
    drift = after(Drift(), rarely(100))
    assert Drift.from_dict(asdict(drift)) == drift
    assert Drift.from_dict(None) == Drift()


@pytest.mark.parametrize(
    "damage", [5, {}, {"recent": "x"}, {"recent": float("nan")}, {"examples": 1.5}, {"usual": 1e400}, {"began": True}]
)
def test_damaged_numbers_are_one_clear_error(damage):
    kept = {**asdict(Drift()), **damage} if isinstance(damage, dict) and damage else damage
    with pytest.raises(ValueError, match="drift in the memory is damaged"):
        Drift.from_dict(kept)
