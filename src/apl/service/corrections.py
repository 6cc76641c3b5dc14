"""Changing what a memory holds: forgetting, bringing back, renaming. To be run at its worker, which has it for itself."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import Any

from apl.classifier.session import Session
from apl.service.guard import Refused
from apl.store import Label, NewRow, RowUpdate

UNDO_ROWS = 2000
"""A forgetting of more rows than this cannot be undone: they would have to be kept in RAM."""
UNDO_STEPS = 20


class Corrections:
    """Of one memory; remembers the latest forgettings, so that they can be undone."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._forgotten: OrderedDict[str, list[NewRow]] = OrderedDict()

    def forget(self, label: Label | None, row: int | None, source: str | None) -> dict[str, Any]:
        with self.session.alone() as world:
            ids = [row] if row is not None else world.memory.ids_of(label, source)
            ids = world.memory.existing(ids)
            kept = [self._kept(id) for id in ids] if len(ids) <= UNDO_ROWS else []
            gone = world.forget(ids) if source is None else world.forget_source(source)
        undo = None
        if kept and not gone.rebuilt:  # rows that were merged with others are no longer what they were
            undo = secrets.token_hex(8)
            self._forgotten[undo] = kept
            while len(self._forgotten) > UNDO_STEPS:
                self._forgotten.popitem(last=False)
        return {"rows": list(gone), "rebuilt": list(gone.rebuilt), "undo": undo}

    def restore(self, undo: str) -> dict[str, Any]:
        if undo not in self._forgotten:
            raise Refused(404, "nothing_to_undo", "there is no such forgetting, or it was undone already")
        with self.session.alone() as world:
            ids = self.session.store.append(self._forgotten[undo])
            del self._forgotten[undo]
            world.reload()
        return {"rows": ids}

    def rename(self, label: Label, to: Label) -> dict[str, Any]:
        with self.session.alone() as world:
            ids = world.memory.ids_of(label)
            if not ids:
                raise Refused(404, "no_such_class", f"there is no class {label!r}")
            joined = world.memory.number(to) is not None and to != label
            self.session.store.replace((), (), update=[RowUpdate(id, label=to) for id in ids])
            world.reload()
        return {"rows": ids, "joined": joined}

    def _kept(self, id: int) -> NewRow:
        row = self.session.store.row(id)
        return row.as_new(merged=tuple(self.session.store.merged(id)))
