"""Which files of which directory a memory has been shown: so that `apl learn` can be run again and again.

Most examples leave no row, so what was seen is noted apart, in the memory's settings: a journal of
{source: mark of the content}, one entry per transaction, the latest word on a source being the valid one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PREFIX = "files seen/"


class SeenFiles:
    """What the journal says about one directory."""

    def __init__(self, settings: Mapping[str, Any], directory: Path) -> None:
        self.directory = str(directory.resolve())
        entries = {key: value for key, value in settings.items() if key.startswith(PREFIX)}
        # Memories written before there was a journal know marks alone.
        self._old_marks = {mark for value in entries.values() if isinstance(value, list) for mark in value}
        self._marks: dict[str, str | None] = {}
        self._homes: dict[str, str] = {}
        journal = sorted(key for key, value in entries.items() if isinstance(value, dict))
        self._next = 1 + int(journal[-1].removeprefix(PREFIX)) if journal else 0
        for key in journal:
            for source, mark in entries[key]["files"].items():
                self._marks[source] = mark
                self._homes[source] = entries[key]["directory"]

    def source(self, relative: str) -> str:
        """The name under which a file's rows are kept: its path inside the directory, unless a file of another
        directory that is still there goes by that name."""
        home = self._homes.get(relative, self.directory)
        taken = home != self.directory and self._marks[relative] is not None and (Path(home) / relative).exists()
        return f"{self.directory}/{relative}" if taken else relative

    def knows(self, source: str, mark: str) -> bool:
        return self._marks[source] == mark if source in self._marks else mark in self._old_marks

    def is_known(self, source: str) -> bool:
        """Whether anything was learnt under this name."""
        return self._marks.get(source) is not None or bool(self._old_marks)

    def gone(self, present: Iterable[str]) -> list[str]:
        """Files of this directory that were seen once and are not there any more."""
        here = set(present)
        return sorted(
            source
            for source, mark in self._marks.items()
            if mark is not None and source not in here and self._homes[source] == self.directory
        )

    def entry(self, marks: Mapping[str, str | None]) -> dict[str, Any]:
        """Settings that note these files as seen (None: as gone)."""
        key = f"{PREFIX}{self._next:010d}"
        self._next += 1
        for source, mark in marks.items():
            self._marks[source], self._homes[source] = mark, self.directory
        return {key: {"directory": self.directory, "files": dict(marks)}}
