"""Which examples of a folder or a table a memory has learnt: it keeps a source with each."""

from __future__ import annotations

from collections.abc import Iterable

from apl.cli.examples import FoundExample
from apl.store import Label, Store


class Learnt:
    """What a memory has learnt from one folder or table.

    A picture is recognised by its place, so that changed content replaces what was learnt before. A text is recognised by
    its content, so that lines may move.
    """

    def __init__(self, store: Store, some: FoundExample) -> None:
        self._by_content = isinstance(some.content, str)
        root = f"{some.place}#" if self._by_content else f"{some.place.partition('/')[0]}/"
        self._known: dict[str, dict[str, Label]] = {}
        for source, label in store.sources():
            if source.startswith(root):
                self._known.setdefault(self._identity(source), {})[source] = label

    def holds(self, one: FoundExample) -> bool:
        """True if this very example was learnt under its label."""
        return self._known.get(self._identity(one.source)) == {one.source: one.label}

    def earlier(self, one: FoundExample) -> list[str]:
        """Sources that learning this example replaces."""
        return list(self._known.get(self._identity(one.source), ()))

    def gone(self, present: Iterable[FoundExample]) -> list[str]:
        """Sources of examples that are not in the folder or table any more."""
        here = {self._identity(one.source) for one in present}
        return sorted(source for name, sources in self._known.items() if name not in here for source in sources)

    def _identity(self, source: str) -> str:
        return source if self._by_content else place_of(source)


def place_of(source: str) -> str:
    """A source without the mark of its content."""
    return source.rpartition("#")[0] or source
