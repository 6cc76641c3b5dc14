"""Behaviour frozen: five streams are replayed, and their receipts compared with those kept in tests/golden.json.

An answer may change only on purpose. Then `python tests/test_golden.py` writes the file anew, and the commit says why.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apl import OnlineClassifier

KEPT = Path(__file__).with_name("golden.json")
TOLERANCE = 2e-3
"""Relative, of a surprise: machines round differently."""
MARGIN = 1e-3
"""Nats. No decision of a stream may lie closer to its threshold, or rounding could turn it."""


def drawings(classes: int, each: int, seed: int) -> tuple[list[np.ndarray], list[str]]:
    """Characters of four strokes, each drawn several times by an unsteady hand, in random order."""
    chance = np.random.default_rng(seed)
    images, labels = [], []
    for number in range(classes):
        strokes = chance.uniform(10, 54, (4, 2, 2))
        for _ in range(each):
            image = np.full((64, 64), 255, np.uint8)
            for start, end in strokes + chance.normal(0, 2.5, strokes.shape):
                for share in np.linspace(0, 1, 90):
                    row, column = (start + share * (end - start)).round().astype(int).clip(1, 62)
                    image[row - 1 : row + 2, column - 1 : column + 2] = 0
            images.append(image)
            labels.append(f"c{number}")
    order = chance.permutation(len(images))
    return [images[i] for i in order], [labels[i] for i in order]


def vectors(classes: int, each: int, width: int, seed: int) -> tuple[list[np.ndarray], list[str]]:
    """Clouds with columns of different units."""
    chance = np.random.default_rng(seed)
    centres, unit = chance.normal(size=(classes, width)), chance.uniform(0.5, 20, width)
    number = chance.permutation(np.repeat(np.arange(classes), each))
    points = (centres[number] + 0.7 * chance.normal(size=(len(number), width))) * unit
    return list(points.astype(np.float32)), [f"c{n}" for n in number]


STREAMS: dict[str, tuple[Any, Any]] = {
    "drawings": (lambda: OnlineClassifier.from_pretrained("drawings"), lambda: drawings(8, 5, 1)),
    "drawings, the paper's rule": (
        lambda: OnlineClassifier.from_pretrained("drawings", consolidate=False),
        lambda: drawings(8, 5, 2),
    ),
    "a table": (lambda: OnlineClassifier.for_features(6), lambda: vectors(4, 20, 6, 3)),
    "wide vectors": (lambda: OnlineClassifier.for_features(96), lambda: vectors(8, 12, 96, 4)),
    "a budget": (lambda: OnlineClassifier.for_features(8, max_rows=9), lambda: vectors(4, 20, 8, 5)),
}


def replay(name: str) -> list[dict[str, Any]]:
    make, stream = STREAMS[name]
    with make() as classifier:
        return [_told(classifier.learn_one(x, y)) for x, y in zip(*stream(), strict=True)]


def _told(receipt: Any) -> dict[str, Any]:
    if not receipt.new_label:
        assert abs(receipt.surprise_nats - receipt.threshold_nats) > MARGIN, "choose another seed: this is too close"
    kept = ("predicted", "surprise_nats", "row", "merged_into", "evicted")
    told = {field: getattr(receipt, field) for field in kept}
    return {**told, "surprise_nats": round(told["surprise_nats"], 6), "evicted": list(told["evicted"])}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_gets_the_receipts_it_always_got(name: str) -> None:
    expected = json.loads(KEPT.read_text())[name]
    for number, (now, before) in enumerate(zip(replay(name), expected, strict=True)):
        assert now.pop("surprise_nats") == pytest.approx(before.pop("surprise_nats"), rel=TOLERANCE, abs=1e-4), number
        assert now == before, number


if __name__ == "__main__":
    kept = json.dumps({name: replay(name) for name in STREAMS}).replace("}, ", "},\n ")
    KEPT.write_text(kept + "\n")
    sys.stdout.write(f"{KEPT} written\n")
