"""`apl forget`: rows out of a memory."""

from __future__ import annotations

import json as json_format
from dataclasses import dataclass
from typing import Annotated

import tyro

from apl.cli.options import JsonOption, MemoryOption, NameOption


@dataclass
class Command:
    """Forget a class, a row, or what came from a source (say exactly one)."""

    memory: MemoryOption
    label: Annotated[str | None, tyro.conf.arg(metavar="LABEL")] = None
    """A class. If there is none of this name but one with this number, that is meant."""
    row: Annotated[int | None, tyro.conf.arg(metavar="ID")] = None
    """A row's id."""
    source: Annotated[str | None, tyro.conf.arg(metavar="PICTURE")] = None
    """A picture's path inside the directory it was learnt from."""
    name: NameOption = "default"
    json: JsonOption = False

    def run(self) -> int:
        from apl.classifier.durable_memory import forget_source
        from apl.store import open_store

        rebuilt: list[int] = []
        if sum(what is not None for what in (self.label, self.row, self.source)) != 1:
            raise ValueError("say what to forget: --label, --row or --source")
        with open_store(self.memory, self.name) as store:
            if self.label is not None:
                gone = store.delete_label(self.label)
                if not gone and self.label.lstrip("-").isdecimal():
                    gone = store.delete_label(int(self.label))
            elif self.row is not None:
                gone = store.delete([self.row])
            else:
                forgotten = forget_source(store, self.source)
                gone, rebuilt = list(forgotten), list(forgotten.rebuilt)
            left = store.count()
        if self.json:
            print(json_format.dumps({"forgotten": gone, "rebuilt": rebuilt, "rows": left}))
        else:
            again = "; `apl learn DIR --again` learns them anew" if gone and self.row is None else ""
            others = f", made {len(rebuilt)} anew without it" if rebuilt else ""
            print(f"forgot {len(gone)} rows{others}, {left} are left{again}")
        return 0 if gone or rebuilt else 1
