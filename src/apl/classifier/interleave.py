"""The order in which a batch is learnt."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def interleaved(labels: Sequence[Hashable]) -> list[int]:
    """Positions of a batch, round-robin by class.

    First the first example of each class, then the second of each, and so on; classes take turns in the order of their first
    appearance. Folders and tables usually come sorted by class, and examples of one class in a row are a poor stream to
    learn from: each but the first confirms that nothing else exists.

    >>> interleaved(["a", "a", "a", "b", "c", "c"])
    [0, 3, 4, 1, 5, 2]
    """
    seen: dict[Hashable, int] = {}
    place = []
    for label in labels:
        turn = seen.get(label, 0)
        seen[label] = turn + 1
        place.append(turn)
    rank = {label: number for number, label in enumerate(seen)}
    return sorted(range(len(labels)), key=lambda i: (place[i], rank[labels[i]]))
