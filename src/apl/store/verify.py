"""Looking for damage in a memory."""

from __future__ import annotations

from collections.abc import Callable

from apl.store.errors import StoreDamaged
from apl.store.writing import Store

LOST = "AS p WHERE memory = ? AND NOT EXISTS (SELECT 1 FROM rows WHERE memory = p.memory AND id = p.id)"
MISCOUNTED = (
    "SELECT label FROM (SELECT label, COUNT(*) AS n, SUM(count) AS e FROM rows WHERE memory = ? GROUP BY label"
    " UNION ALL SELECT label, rows, examples FROM classes WHERE memory = ?) AS counted GROUP BY label"
    " HAVING COUNT(*) <> 2 OR MIN(n) <> MAX(n) OR MIN(e) <> MAX(e)"
)


def verify(store: Store) -> list[str]:
    """What is wrong with a memory, one sentence each; empty if nothing is."""
    return store.file_problems() or _problems(store)


def _problems(store: Store) -> list[str]:
    found = list[str]()

    def attempt(check: Callable[..., object], *values: object) -> bool:
        try:
            check(*values)
        except (StoreDamaged, ValueError, RecursionError) as error:
            found.append(str(error))
            return False
        return True

    def whole(ids: list[int]) -> None:
        store.as_new(store.some_rows(ids))

    for ids in store.blocks():
        if not attempt(whole, ids):
            # Which of them?
            found.pop()
            for id in ids:
                attempt(whole, [id])
    for check in (store.settings, store.check_receipts, store.load):
        attempt(check)
    mine = (store._memory,)
    payloads, shares, classes = store._ask(
        [
            (f"SELECT id FROM payloads {LOST}", mine),
            (f"SELECT DISTINCT id FROM shares {LOST}", mine),
            (MISCOUNTED, 2 * mine),
        ]
    )
    found += [f"payload {id} belongs to no row" for (id,) in payloads]
    found += [f"a source's share of row {id} belongs to no row" for (id,) in shares]
    return found + [f"class {label[1:]!r}: its counters are not those of its rows" for (label,) in classes]
