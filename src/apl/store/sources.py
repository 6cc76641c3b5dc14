"""What named sources contributed to rows.

A row without shares consists of examples of its own `source` alone (which may be None). As soon as examples of a second
source are merged into it, one share is kept for each source. So storage grows with rows and with named sources, never
with examples.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from apl.store.rows import Row, RowUpdate, SourceShare


def by_source(shares: Iterable[SourceShare]) -> dict[str | None, SourceShare]:
    """One share per source, in the order in which the sources first appear."""
    joined: dict[str | None, SourceShare] = {}
    for share in shares:
        before = joined.get(share.source)
        if before is not None:
            share = SourceShare(share.source, before.total + share.total, before.count + share.count)
        joined[share.source] = share
    return joined


def kept_shares(shares: Iterable[SourceShare], source: str | None) -> list[SourceShare]:
    """The shares that are worth keeping for a row of this source: none if all examples are of it."""
    joined = by_source(shares)
    return [] if set(joined) <= {source} else list(joined.values())


def added_shares(row: Row, after: Row, update: RowUpdate) -> list[SourceShare]:
    """The shares to be added to those stored for a row that an update changes; none if the row needs no shares yet."""
    added = list(update.shares)
    grown = after.count - row.count - sum(share.count for share in added)
    if grown < 0:
        raise ValueError(f"update of row {row.id}: its shares are of more examples than it gains; nothing was written")
    if grown:
        rest = after.key.astype(np.float64) * after.count - row.key.astype(np.float64) * row.count
        added.append(SourceShare(None, rest - sum(share.total for share in added), grown))
    if row.has_shares:
        return list(by_source(added).values())
    before = SourceShare(row.source, row.key.astype(np.float64) * row.count, row.count)
    return kept_shares([before, *added], row.source)
