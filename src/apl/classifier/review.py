"""Which labels look wrong: every example is asked about by the others, and its own label should not surprise them.

Examples are left out in parts, spread evenly over each class, so that each is judged by a memory without it. A row that is the mean
of examples of several sources is judged source by source, and the other sources stay in it. Where sources have no names, one example
is left out of a row, which keeps its place: what was merged did not surprise.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Int

from apl.classifier.opened import EXAMPLES_AT_ONCE, Opened
from apl.memory import COUNT, LABEL, RamMemory
from apl.reading.ensemble_state import EnsembleState
from apl.store import Label, NewRow, Row, RowUpdate, Snapshot, SourceShare, Store, StoreError
from apl.store.rows import kept_shares

FOLDS = 10


@dataclass(frozen=True)
class Suspect:
    """A row, or what one source contributed to it, and how well its label goes with the other rows.

    Examples:
        >>> from apl import OnlineClassifier
        >>> clf = OnlineClassifier()
        >>> _ = clf.learn_many([[n % 2, n / 40] for n in range(40)], ["even", "odd"] * 20)
        >>> mistake = clf.learn_one([0, 0.51], "odd")
        >>> [(suspect.row == mistake.row, suspect.suggested) for suspect in clf.review()]
        [(True, 'even')]
    """

    row: int
    source: str | None
    label: Label
    suggested: Label
    """The most probable label by the other rows."""
    surprise_nats: float
    """-ln of the probability that the label had by the other rows."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class _Part:
    """What one source contributed to a row, or a single example of it."""

    place: int
    """Of its row among all."""
    share: SourceShare
    asked: bool = True
    """False for what is left of a row when those that are asked about are taken from it: it stays in all memories."""


def review(opened: Opened, everything: bool = False) -> list[Suspect]:
    """Rows whose most probable label is another one, the most surprising first; or all rows that can be judged. The only example
    of a class cannot."""
    memory = opened.memory
    snapshot = memory.store.load()
    if not len(snapshot):
        return []
    names = memory.names
    number = np.array([names.add(label) for label in snapshot.labels], np.int64)
    parts = _parts_of(memory.store, snapshot)
    truth = number[[part.place for part in parts]]
    counts = np.array([part.share.count for part in parts], np.float32)
    keys = (np.array([part.share.total for part in parts]) / counts[:, None]).astype(np.float32)
    fold = np.where([part.asked for part in parts], _folds(truth), -1)
    found = []
    for left_out in range(FOLDS):
        rest = fold != left_out
        chosen = (~rest & np.isin(truth, truth[rest])).nonzero()[0]
        if not len(chosen):
            continue
        others = _memory_of(opened, keys[rest], truth[rest], counts[rest])
        for start in range(0, len(chosen), EXAMPLES_AT_ONCE):
            some = chosen[start : start + EXAMPLES_AT_ONCE]
            prediction = opened.learner.answer(others, keys[some][None], len(names) + 1)
            surprise = opened.learner.surprise(prediction, truth[some][None], among=max(2, len(names)))[0]
            best = prediction.best(names.order)[0]
            for at, suggested, nats in zip(some.tolist(), best.tolist(), surprise.tolist(), strict=True):
                if everything or suggested != truth[at]:
                    row, source = int(snapshot.ids[parts[at].place]), parts[at].share.source
                    label, other = names.names[truth[at]], names.names[suggested]
                    found.append(Suspect(row, source, label, other, nats))
    return sorted(found, key=lambda one: (-one.surprise_nats, one.row))


def relabel(store: Store, id: int, label: Label, source: str | None = None) -> int:
    """Give a row, or what a source contributed to it, another label, in one transaction. Returns the row that has it then."""
    row = store.row(id)
    if _same(row.label, label):
        return id
    shares = store.shares([id]).get(id, [])
    own = [share for share in shares if share.source == source]
    if source is not None and not own and (shares or row.source != source):
        raise StoreError(f"nothing of source {source!r} is in row {id}")
    if source is None or len(own) == len(shares):
        store.replace((), (), update=[RowUpdate(id, label=label, seen_generation=row.generation)])
        return id
    rest, new = _split(row, shares, own[0], label)
    return store.replace((), [new], update=[rest])[0]


def _split(row: Row, shares: list[SourceShare], own: SourceShare, label: Label) -> tuple[RowUpdate, NewRow]:
    """The row without a source, and a row of that source alone under another label."""
    left = [share for share in shares if share is not own]
    count = sum(share.count for share in left)
    key = (np.sum([share.total for share in left], axis=0) / count).astype(np.float32)
    # The payload is that of the row's first example.
    begun = row.source == own.source
    first = left[0].source if begun else row.source
    kept = tuple(kept_shares(left, first))
    update = RowUpdate(
        row.id, key=key, count=count, shares=kept, source=first, rebuilt=True, seen_generation=row.generation
    )
    own_key, payload = (own.total / own.count).astype(np.float32), row.payload if begun else None
    new = NewRow(label, own_key, row.surprise_nats, row.written_at, own.source, payload, own.count)
    return replace(update, payload=None) if begun else update, new


def _folds(truth: Int[np.ndarray, " part"]) -> Int[np.ndarray, " part"]:
    """The fold of each: those of a class take turns."""
    order = np.argsort(truth, kind="stable")
    start = np.searchsorted(truth[order], truth[order])
    fold = np.empty(len(truth), np.int64)
    fold[order] = (np.arange(len(truth)) - start + truth[order]) % FOLDS
    return fold


def _parts_of(store: Store, snapshot: Snapshot) -> list[_Part]:
    shares, parts = store.shares(snapshot.ids[snapshot.counts > 1].tolist()), []
    for place, (id, key, count) in enumerate(zip(snapshot.ids.tolist(), snapshot.keys, snapshot.counts, strict=True)):
        source, whole = snapshot.sources[place], key.astype(np.float64) * count
        alone = SourceShare(None, key) if source is None else SourceShare(source, whole, int(count))
        mine = shares.get(id) or [alone]
        parts += [_Part(place, share) for share in mine]
        left = int(count) - sum(share.count for share in mine)
        if left > 0:
            rest = SourceShare(None, whole - np.sum([share.total for share in mine], axis=0), left)
            parts.append(_Part(place, rest, asked=False))
    return parts


def _memory_of(opened: Opened, keys: np.ndarray, number: np.ndarray, counts: np.ndarray) -> RamMemory:
    """A memory of some of the parts, each a row, read as the whole one is."""
    memory = opened.learner.new_memory()
    cells = {opened.memory.keys[0]: keys[None], LABEL: number[None], COUNT: counts[None]}
    memory.write(cells, np.ones((1, len(keys)), bool))
    state = opened.memory.state
    # The regression on all rows of a batch follows wrong labels too closely.
    memory.state = replace(state, batch=False) if isinstance(state, EnsembleState) else state
    return memory


def _same(one: Label, other: Label) -> bool:
    return one == other and isinstance(one, str) == isinstance(other, str)
