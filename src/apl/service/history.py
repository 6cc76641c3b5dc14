"""What the service keeps beside a memory's rows, in the memory's own settings: how lessons went, and which requests
were answered already.

A repeated request is recognised by its `Idempotency-Key`. Its receipt is written in the same transaction as its rows,
so after a crash either both are there or neither. Ids of rows are known only once that transaction is over; until
the next one, the receipt on disk holds the provisional ids, and the list of them in the order of the rows. Nothing
else is written in between, so the rows they stand for are the last ones of the memory.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CURVE_SETTING = "service curve"
RETRY_SETTING = "service retry "
STAGED_SETTING = "service retries staged"
LESSONS_REMEMBERED = 1000
KEYS_REMEMBERED = 1000
"""Each new key takes the place of the oldest."""


@dataclass
class History:
    """One letter per lesson, and the rows after it; the latest last."""

    seen: int = 0
    outcomes: str = ""
    rows: list[int] = field(default_factory=list)

    @staticmethod
    def read(settings: Mapping[str, Any]) -> History:
        kept = settings.get(CURVE_SETTING) or {}
        return History(kept.get("seen", 0), kept.get("outcomes", ""), list(kept.get("rows", [])))

    def add(self, receipt: Mapping[str, Any], rows: int) -> None:
        right = receipt["predicted"] == receipt["label"] and type(receipt["predicted"]) is type(receipt["label"])
        self.seen += 1
        self.outcomes = (self.outcomes + ("n" if receipt["new_label"] else "r" if right else "w"))[-LESSONS_REMEMBERED:]
        self.rows = [*self.rows, rows][-LESSONS_REMEMBERED:]

    def copy(self) -> History:
        return History(self.seen, self.outcomes, list(self.rows))

    def settings(self) -> dict[str, Any]:
        return {CURVE_SETTING: vars(self)}


@dataclass(frozen=True)
class Answered:
    """A request that was answered, and how."""

    digest: str
    receipts: list[dict[str, Any]]


class Retries:
    """The latest idempotency keys of one memory."""

    def __init__(self, settings: Mapping[str, Any], ids: Sequence[int]) -> None:
        self._answered: OrderedDict[str, Answered] = OrderedDict()
        self._unsettled: dict[str, Any] = {}
        """Receipts whose final ids are not yet on disk."""
        kept = sorted((v["number"], v) for name, v in settings.items() if name.startswith(RETRY_SETTING))
        self._next = kept[-1][0] + 1 if kept else 0
        staged = settings.get(STAGED_SETTING) or []
        final = dict(zip(staged, list(ids)[len(ids) - len(staged) :], strict=False))
        for number, value in kept:
            if any((receipt.get(name) or 0) < 0 for receipt in value["receipts"] for name in IDS):
                value = {**value, "receipts": _with_ids(value["receipts"], final)}
                self._unsettled[_slot(number)] = value
            self._answered[value["key"]] = Answered(value["digest"], value["receipts"])

    def find(self, key: str | None) -> Answered | None:
        return None if key is None else self._answered.get(hash_key(key))

    def add(self, keys: Mapping[str, Answered], staged: Sequence[int]) -> dict[str, Any]:
        """What to write together with the rows staged for these requests; also makes earlier receipts final."""
        settings, self._pending = dict(self._unsettled), {}
        for key, answered in keys.items():
            value = {"number": self._next, "key": hash_key(key), **vars(answered)}
            self._pending[_slot(self._next)] = settings[_slot(self._next)] = value
            self._next += 1
        if keys:
            settings[STAGED_SETTING] = list(staged)
        return settings

    def settle(self, final: Mapping[int, int]) -> None:
        """The rows are written; these are their ids."""
        self._unsettled = {}
        for slot, value in self._pending.items():
            receipts = _with_ids(value["receipts"], final)
            if receipts != value["receipts"]:
                self._unsettled[slot] = {**value, "receipts": receipts}
            self._answered[value["key"]] = Answered(value["digest"], receipts)
        self._pending = {}
        while len(self._answered) > KEYS_REMEMBERED:
            self._answered.popitem(last=False)

    def unsettled(self) -> dict[str, Any]:
        """To be written before anything else changes the rows."""
        settings, self._unsettled = self._unsettled, {}
        return {**settings, STAGED_SETTING: []} if settings else {}


IDS = ("row", "merged_into")
"""The fields of a receipt that name rows."""


def hash_key(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def is_ours(setting: str) -> bool:
    """Whether a setting belongs to the service and means nothing in another memory."""
    return setting.startswith((RETRY_SETTING, STAGED_SETTING))


def _slot(number: int) -> str:
    return f"{RETRY_SETTING}{number % KEYS_REMEMBERED:04d}"


def _with_ids(receipts: Sequence[Mapping[str, Any]], final: Mapping[int, int]) -> list[dict[str, Any]]:
    def id_of(row: int | None) -> int | None:
        return row if row is None or row > 0 else final.get(row)

    return [{**receipt, **{name: id_of(receipt.get(name)) for name in IDS}} for receipt in receipts]
