"""Which labels look wrong: every row is asked about by the others, and its own label should not surprise them.

Rows are left out in parts, spread evenly over each class, so that each is judged by a memory without it. A row that is the mean
of examples of several sources is judged source by source.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from apl.classifier.opened import EXAMPLES_AT_ONCE, Opened
from apl.memory import COUNT, LABEL, RamMemory
from apl.store import Label, NewRow, Row, RowUpdate, SourceShare, Store, StoreError
from apl.store.sources import kept_shares

PARTS = 10
"""Parts that rows are left out in."""


@dataclass(frozen=True)
class Suspect:
    """A row, or what one source contributed to it, and how well its label goes with the other rows."""

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
class _Asked:
    """Keys to ask about."""

    place: Int[np.ndarray, " asked"]
    """Of the row each belongs to."""
    key: Float[np.ndarray, "asked embed"]
    source: list[str | None]


def review(opened: Opened, everything: bool = False) -> list[Suspect]:
    """Rows whose most probable label is another one, the most surprising first; or all rows that can be judged. The only row
    of a class cannot."""
    memory = opened.memory
    snapshot = memory.store.load()
    if not len(snapshot):
        return []
    names = memory.names
    number = np.array([names.add(label) for label in snapshot.labels], np.int64)
    part = _parts(number)
    asked = _asked(memory.store, snapshot.ids, snapshot.keys, snapshot.counts, snapshot.sources)
    found = []
    for left_out in range(PARTS):
        rest = part != left_out
        known = np.isin(number, number[rest])
        chosen = (~rest & known)[asked.place].nonzero()[0]
        if not len(chosen):
            continue
        others = _memory_of(opened, snapshot.keys[rest], number[rest], snapshot.counts[rest])
        for start in range(0, len(chosen), EXAMPLES_AT_ONCE):
            some = chosen[start : start + EXAMPLES_AT_ONCE]
            prediction = opened.learner.predict(others, asked.key[some][None], len(names) + 1)
            truth = number[asked.place[some]]
            surprise = opened.learner.surprise(prediction, truth[None], among=max(2, len(names)))[0]
            best = prediction.best(names.order)[0]
            for at, y, suggested, nats in zip(some.tolist(), truth.tolist(), best.tolist(), surprise, strict=True):
                if everything or suggested != y:
                    row = int(snapshot.ids[asked.place[at]])
                    label, other = names.names[y], names.names[suggested]
                    found.append(Suspect(row, asked.source[at], label, other, float(nats)))
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
    first = left[0].source if row.source == own.source else row.source
    # The payload is that of the row's first example.
    begun = row.source == own.source
    update = RowUpdate(row.id, source=first, rebuilt=True, seen_generation=row.generation)
    if begun:
        update = replace(update, payload=None)
    count = sum(share.count for share in left)
    key = (np.sum([share.total for share in left], axis=0) / count).astype(np.float32)
    update = replace(update, key=key, count=count, shares=tuple(kept_shares(left, first)))
    new = NewRow(
        label,
        (own.total / own.count).astype(np.float32),
        row.surprise_nats,
        row.written_at,
        own.source,
        row.payload if begun else None,
        own.count,
    )
    return update, new


def _parts(number: Int[np.ndarray, " row"]) -> Int[np.ndarray, " row"]:
    """The part of each row: rows of a class take turns."""
    order = np.argsort(number, kind="stable")
    start = np.searchsorted(number[order], number[order])
    part = np.empty(len(number), np.int64)
    part[order] = (np.arange(len(number)) - start + number[order]) % PARTS
    return part


def _asked(store: Store, ids: np.ndarray, keys: np.ndarray, counts: np.ndarray, sources: list[str | None]) -> _Asked:
    shares = store.shares(ids[counts > 1].tolist())
    place, key, source = [], [], []
    for at, id in enumerate(ids.tolist()):
        parts = shares.get(id)
        place += [at] * (len(parts) if parts else 1)
        key += [(one.total / one.count).astype(np.float32) for one in parts] if parts else [keys[at]]
        source += [one.source for one in parts] if parts else [sources[at]]
    return _Asked(np.array(place), np.array(key, np.float32), source)


def _memory_of(opened: Opened, keys: np.ndarray, number: np.ndarray, counts: np.ndarray) -> RamMemory:
    """A memory of some of the rows, read as the whole one is."""
    memory = opened.learner.new_memory(capacity=len(keys))
    cells = {opened.memory.keys[0]: keys[None], LABEL: number[None], COUNT: counts[None].astype(np.float32)}
    memory.write(cells, np.ones((1, len(keys)), bool))
    memory.state = opened.memory.state
    return memory


def _same(one: Label, other: Label) -> bool:
    return one == other and isinstance(one, str) == isinstance(other, str)
