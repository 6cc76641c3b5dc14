"""Lake's challenge: the right drawings are asked about, and the nearest stored one is the answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from apl.data.files import DataError
from apl.data.labelled import LabelledImages
from experiments.data.lake import lake_runs, runs_like_lakes
from experiments.paper.lake import answered

NAMES = tuple(f"{alphabet}/character{n:02}" for alphabet in ("Angelic", "Keble") for n in range(1, 23))
DATA = LabelledImages(
    torch.zeros(len(NAMES) * 20, 1, 2, 2, dtype=torch.uint8), torch.arange(len(NAMES)).repeat_interleave(20), NAMES
)


def path(character: int, drawer: int, alphabet: str = "Keble") -> str:
    return f"images_evaluation/{alphabet}/character{character:02}/{1000 + character}_{drawer:02}.png"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("APL_DATA", str(tmp_path))
    (tmp_path / "omniglot").mkdir()
    return tmp_path / "omniglot" / "lake_oneshot_runs.json"


def test_a_run_names_the_drawings_of_the_file(place: Path) -> None:
    place.write_text(json.dumps([[[path(c, 8), path(c, 5)] for c in range(1, 21)]]))
    (run,) = lake_runs(DATA)
    assert run.alphabet == "Keble"
    assert run.asked.tolist() == [(22 + c - 1) * 20 + 7 for c in range(1, 21)]
    assert run.stored.tolist() == [(22 + c - 1) * 20 + 4 for c in range(1, 21)]


@pytest.mark.parametrize("content", ["{", "[[[1, 2]]]", json.dumps([[[path(1, 1), path(1, 2, "Nowhere")]]])])
def test_another_file_is_a_clear_error(place: Path, content: str) -> None:
    place.write_text(content)
    with pytest.raises(DataError, match="no list of runs of pairs"):
        lake_runs(DATA)


def test_runs_to_choose_by_stay_within_an_alphabet_and_ask_about_another_drawer() -> None:
    for run in runs_like_lakes(DATA, 6, torch.Generator().manual_seed(0)):
        names = {NAMES[int(DATA.labels[i])].split("/")[0] for i in run.stored}
        assert names == {run.alphabet} and len(set(run.stored.tolist())) == 20
        assert torch.equal(DATA.labels[run.stored], DATA.labels[run.asked])
        assert not set(run.stored.tolist()) & set(run.asked.tolist())


def test_the_nearest_stored_drawing_is_the_answer() -> None:
    runs = runs_like_lakes(DATA, 4, torch.Generator().manual_seed(0))
    by_class = torch.eye(len(NAMES))[DATA.labels]
    assert float(answered(by_class, runs).mean()) == 1
    misled = by_class.clone()
    misled[runs[0].asked[0]] = by_class[runs[0].stored[1]]
    assert answered(misled, runs[:1])[0].tolist() == [0.0] + [1.0] * 19
