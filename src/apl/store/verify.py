"""Looking for damage in a memory."""

from __future__ import annotations

from collections.abc import Callable

from apl.store.checks import settings_problems
from apl.store.errors import StoreDamaged
from apl.store.writing import Store


def verify(store: Store) -> list[str]:
    """What is wrong with a memory, one sentence each; empty if nothing is."""
    return store.file_problems() or _problems(store) or settings_problems(store.settings())


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
    return found + store.strays()
