"""What a memory has learnt from one folder or table: it keeps a source with each example."""

from __future__ import annotations

from collections.abc import Iterable

from apl.cli.examples import FoundExample, place_of
from apl.cli.terminal import remark
from apl.store import Label, Store


class Learnt:
    """Sources and labels of a folder or a table. A picture whose content changed replaces what was learnt from its place."""

    def __init__(self, store: Store, folder: str) -> None:
        self._known: dict[str, dict[str, Label]] = {}
        for source, label in store.sources():
            if source.startswith(f"{folder}/"):
                self._known.setdefault(place_of(source), {})[source] = label

    def earlier(self, one: FoundExample) -> dict[str, Label]:
        """What learning this example replaces."""
        return self._known.get(place_of(one.source), {})

    def holds(self, one: FoundExample) -> bool:
        """True if this very example was learnt under its label."""
        return self.earlier(one) == {one.source: one.label}

    def gone(self, present: Iterable[FoundExample]) -> list[str]:
        """Sources of examples that are not in the folder or table any more."""
        here = {place_of(one.source) for one in present}
        return sorted(source for place, sources in self._known.items() if place not in here for source in sources)


def once_each(found: Iterable[FoundExample]) -> tuple[list[FoundExample], int]:
    """The examples that can be read, with their sources, and the number of the others.

    A table may hold a text twice: the first line counts, and one that contradicts it is reported.
    """
    first: dict[str, FoundExample] = {}
    unreadable = 0
    for example in found:
        try:
            now = example.with_source()
        except OSError as error:
            remark(f"{example.where}: {(error.strerror or 'cannot be read').lower()}")
            unreadable += 1
            continue
        before = first.setdefault(now.source, now)
        if before.label != now.label:
            line = before.where.rpartition(", ")[2]
            remark(f"{now.where}: left out, {line} says {before.label!r} of the same text")
    return list(first.values()), unreadable
