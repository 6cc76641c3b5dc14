"""`apl forget`: rows out of a memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from apl.cli.options import JsonOption, MemoryOption, NameOption
from apl.cli.terminal import print_json

if TYPE_CHECKING:
    from apl.store import Store


@dataclass
class Command:
    """Forget a class, a row, or what came from a source: exactly one of them."""

    memory: MemoryOption
    label: Annotated[str | None, tyro.conf.arg(metavar="LABEL")] = None
    """A class. If no class has this name, the one with this number."""
    row: Annotated[int | None, tyro.conf.arg(metavar="ID")] = None
    """A row's id."""
    source: Annotated[str | None, tyro.conf.arg(metavar="SOURCE")] = None
    """Where examples came from, as `apl memory show --rows` lists it; the mark after # may be left out."""
    name: NameOption = "default"
    json: JsonOption = False

    def run(self) -> int:
        from apl.store import open_store

        if sum(what is not None for what in (self.label, self.row, self.source)) != 1:
            raise ValueError("choose what to forget: --label, --row or --source")
        with open_store(self.memory, self.name) as store:
            gone, rebuilt = self._forget(store)
            left = store.count()
        if self.json:
            print_json({"forgotten": gone, "rebuilt": rebuilt, "rows": left})
        else:
            others = f", rebuilt without it: {len(rebuilt)}" if rebuilt else ""
            print(f"rows forgotten: {len(gone)}{others}, left: {left}")
        return 0 if gone or rebuilt else 1

    def _forget(self, store: Store) -> tuple[list[int], list[int]]:
        """Ids of the rows that went, and of those that were rebuilt."""
        from apl.cli.examples import as_label, place_of
        from apl.memory.staging import NOTHING_LEARNT

        if self.row is not None:
            return store.delete([self.row]), []
        if self.label is not None:
            label = as_label(self.label, store.class_counts())
            return ([] if label is None else store.delete_label(label)), []
        gone, rebuilt = [], set()
        for source in sorted({one for one, _ in store.sources() if self.source in (one, place_of(one))}):
            forgotten = store.forget_source(source, settings=NOTHING_LEARNT)
            gone += forgotten.gone
            rebuilt |= set(forgotten.rebuilt)
        return gone, sorted(rebuilt - set(gone))
