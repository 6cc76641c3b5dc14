"""Lake's one-shot challenge (Lake, Salakhutdinov and Tenenbaum 2015): 20 runs within an alphabet, 20 characters each."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from apl.data.files import PublishedFile, damaged, find_file
from apl.data.labelled import LabelledImages

RUNS = PublishedFile("omniglot", "lake_oneshot_runs.json", "", ())
"""The runs of the authors' all_runs.zip as a list: each 20 pairs [test image, training image] of one character."""

_DRAWING = re.compile(r"images_evaluation/([^/]+/character\d+)/\d+_(\d+)\.png")


@dataclass(frozen=True)
class OneShotRun:
    """Which of 20 stored drawings shows the same character? One question for each of 20 others."""

    alphabet: str
    stored: Int[Tensor, " character"]
    """Positions in the data; the n-th question is about the n-th stored drawing's character."""
    asked: Int[Tensor, " character"]


def lake_runs(data: LabelledImages) -> list[OneShotRun]:
    """The authors' 20 runs, in drawings of `load_omniglot` (ordered by character and drawer)."""
    path = find_file(RUNS)
    start = dict(
        zip(data.class_names, (data.labels.bincount().cumsum(0) - data.labels.bincount()).tolist(), strict=True)
    )
    runs = []
    try:
        for pairs in json.loads(path.read_text()):
            found = [[_drawing(name) for name in pair] for pair in pairs]
            position = torch.tensor([[start[name] + int(drawer) - 1 for name, drawer in pair] for pair in found])
            runs.append(OneShotRun(found[0][0][0].split("/")[0], position[:, 1], position[:, 0]))
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise damaged(path, f"it is no list of runs of pairs of drawings ({error})") from error
    return runs


def _drawing(name: str) -> tuple[str, str]:
    """Character and drawer."""
    match = _DRAWING.fullmatch(name)
    if match is None:
        raise ValueError(f"{name} is no drawing of the evaluation set")
    return match[1], match[2]


def runs_like_lakes(data: LabelledImages, runs: int, generator: torch.Generator) -> list[OneShotRun]:
    """Runs of the same form from other characters, to choose by: one drawer's 20 characters against another's."""
    alphabets: dict[str, list[int]] = {}
    for number, name in enumerate(data.class_names):
        alphabets.setdefault(name.split("/")[0], []).append(number)
    count = data.labels.bincount()
    start = count.cumsum(0) - count
    large = [a for a, members in alphabets.items() if len(members) >= 20]
    made = []
    for i in range(runs):
        members = torch.tensor(alphabets[large[i % len(large)]])
        chosen = members[torch.randperm(len(members), generator=generator)[:20]]
        one, other = torch.randperm(int(count.min()), generator=generator)[:2]
        made.append(OneShotRun(large[i % len(large)], start[chosen] + one, start[chosen] + other))
    return made
