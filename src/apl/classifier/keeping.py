"""What a classifier does with its model and memory as a whole: opening and closing, forgetting, saving, copying."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from numbers import Integral
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from apl.classifier.answers import Forgotten
from apl.classifier.configuration import Configuration, UnknownWidth
from apl.classifier.drift import DriftReport, drift_report
from apl.classifier.inputs import Examples, InputReader, plain_labels
from apl.classifier.notebook import html_table
from apl.classifier.opened import Opened
from apl.classifier.opening import open_classifier
from apl.classifier.review import Suspect, relabel, review
from apl.encoders import FrozenEncoder, open_encoder, plugged_encoder
from apl.encoders.trained import trained_encoder
from apl.memory.history import History
from apl.memory.remote import RemoteMemory
from apl.memory.staging import STATE_SETTING
from apl.memory.stored import StoredMemory
from apl.store import Label, NewRow, RowUpdate, Store, StoreError, find_memory
from apl.store.transfer import Copied, Exported, import_memory, save_copy

_OPENING = threading.RLock()
"""Held while a classifier opens its memory: threads whose first examples come at once must find the same one."""
CLASSES_SHOWN = 20
"""In a notebook, those with the most rows first."""
Self = TypeVar("Self", bound="MemoryKeeping")


class MemoryKeeping(Configuration):
    """The part of `OnlineClassifier` that opens and keeps a memory."""

    _opened: Opened | None = None
    _ended = False
    """The memory was in RAM, held something, and was closed: going on would be with an empty one."""
    _reader: InputReader | None = None
    _truth_values = False
    """`fit` was given truth values for labels."""

    def open(self: Self) -> Self:
        """Open model and memory now, rather than at the first example. A memory in RAM that was closed is a new one."""
        self._ended = False
        self._open()
        return self

    def close(self) -> None:
        """Close the memory, so that others may write it. A memory in RAM ends here: `open` begins another."""
        if self._opened is not None:
            self._ended = self._in_ram() and len(self) > 0
            with suppress(StoreError):  # what was learnt is written; the history of predictions may be behind
                if not self._in_ram():
                    self._opened.memory.save_state()
            self._opened.store.close()
            self._opened = None

    def __enter__(self: Self) -> Self:
        with suppress(UnknownWidth):  # the first example opens it
            self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def forget(self, *, label: Any = None, row: int | None = None, source: str | None = None) -> Forgotten:
        """Forget a class, a row, or what came from a source. Returns the ids of the rows that went.

        Nothing of a source is left: rows that others share with it become the mean of theirs alone (`.rebuilt`).
        """
        if sum(what is not None for what in (label, row, source)) != 1:
            raise ValueError("say what to forget: label=, row= or source=")
        with self._open().current() as memory:
            if source is not None:
                forgotten = memory.forget_source(source)
                return Forgotten(forgotten.gone, forgotten.rebuilt)
            if row is not None:
                return Forgotten(memory.forget([_row_number(row)]))
            return Forgotten(memory.forget_label(plain_labels([label])[0]))

    def review(self, *, everything: bool = False) -> list[Suspect]:
        """Rows whose label looks wrong, the most suspicious first: the other rows make another label more probable. Of a
        merged row, one answer per source. With `everything`, all rows but those that are alone in their class.

        Examples:
            >>> from apl import OnlineClassifier
            >>> clf = OnlineClassifier()
            >>> _ = clf.learn_many([[n % 2, n / 40] for n in range(40)], ["even", "odd"] * 20)
            >>> mistake = clf.learn_one([0, 0.51], "odd")
            >>> suspect = clf.review()[0]
            >>> suspect.row == mistake.row, suspect.suggested
            (True, 'even')
            >>> _ = clf.relabel(suspect.row, suspect.suggested)
            >>> clf.review()
            []
        """
        opened = self._known()
        if opened is None:
            return []
        with opened.current():
            return review(opened, everything)

    def drift(self) -> DriftReport:
        """Whether surprise has risen over the latest examples (500 at most), since when, and with which classes."""
        opened = self._known()
        if opened is None:
            return drift_report(History(), [])
        with opened.current() as memory:
            return drift_report(memory.history, memory.classes)

    def relabel(self, row: int, label: Any, *, source: str | None = None) -> int:
        """Give a row another label, in one transaction. With `source`, only what came from there: if others share the row, they
        keep it, and the examples of the source become a row of their own. Returns the row that has the label then. A row that
        has it already stays as it is."""
        number, [to] = _row_number(row), plain_labels([label])
        with self._writing() as memory:
            return relabel(memory.store, number, to, source)

    def rename(self, label: Any, to: Any) -> list[int]:
        """Give a class another name. If there is a class of that name, the two become one. Returns the rows of `label`."""
        label, to = plain_labels([label, to])
        with self._writing() as memory:
            ids = memory.ids_of(label)
            if not ids:
                raise KeyError(f"there is no class {label!r}")
            memory.store.replace((), (), update=[RowUpdate(id, label=to) for id in ids])
            return ids

    def counts(self) -> dict[Label, int]:
        """Rows of each known class."""
        opened = self._known()
        if opened is None:
            return {}
        with opened.current() as memory:
            return memory.rows_of_classes()

    def __len__(self) -> int:
        """Rows in memory."""
        opened = self._known()
        return 0 if opened is None else len(opened.memory)

    def __bool__(self) -> bool:
        return True

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """Parameters, and what an open memory holds. Nothing is opened for it."""
        opened, parameters = self._opened, super().__repr__(N_CHAR_MAX)
        if opened is None:
            return parameters
        # A model or an encoder is one of the parameters.
        vectors = f", vectors of {opened.store.width} numbers" if self._takes_vectors() else ""
        return f"<{parameters}: {len(opened.memory)} rows, {len(opened.memory.classes)} classes{vectors}>"

    def _repr_html_(self) -> str:
        opened = self._opened
        counts = {} if opened is None else opened.memory.rows_of_classes()
        most = sorted(counts.items(), key=lambda item: -item[1])[:CLASSES_SHOWN]
        return html_table(({"class": label, "rows": rows} for label, rows in most), caption=repr(self))

    @property
    def store(self) -> Store:
        """The store of the rows, with payloads and settings. Read it freely; write through the classifier."""
        opened = self._open()
        with opened.lock:
            opened.memory.save_state()
        return opened.store

    def save(self, path: Any, name: str | None = None, overwrite: bool = False) -> None:
        """Copy the memory into a file of its own. An existing file is replaced if it is a copy of this very memory, or with
        `overwrite`. Rows are numbered afresh there.

        This classifier stays with its own memory; one that lives in a file is saved at all times.
        """
        with self._open().lock:
            save_copy(self.store, Path(path), self.name if name is None else name, overwrite)

    def adopt(self, rows: Sequence[NewRow], settings: dict[str, Any] | None = None) -> list[int]:
        """Take over rows whose keys this encoder made, without asking whether they surprise."""
        with self._writing() as memory:
            return memory.store.append(rows, settings=settings)

    def import_memory(self, exported: Exported) -> Copied:
        """Copy an exported memory (`apl.store.transfer.read_exported`) into this one. Rows it has already are left out."""
        learner = self._open().learner
        if (kept := exported.settings.get(STATE_SETTING)) is not None:
            # Refused before anything is written, if it could not be read back.
            learner.reading.new_state(1, learner.networks.width, kept)
        with self._writing() as memory:
            return import_memory(exported, memory.store)

    def embed_payloads(self, payloads: Sequence[bytes]) -> np.ndarray:
        """The keys of rows whose pictures or texts were kept, made by this classifier's encoder."""
        encoder = self._inputs().encoder
        if encoder is None:
            raise ValueError("vectors are their own keys: nothing was kept that could be embedded")
        return encoder.embed([encoder.from_payload(payload) for payload in payloads])

    def sibling(self: Self, **parameters: Any) -> Self:
        """A classifier of another memory (`memory=`, `name=`, …) that shares this one's open model."""
        other = type(self)(**{**self.get_params(deep=False), **parameters})
        other._reader = self._inputs()
        return other

    @property
    def input_kind(self) -> str:
        """What examples are: "drawing", "vector", or what the encoder that was plugged in takes ("photo", "text")."""
        encoder = self._inputs().encoder
        return "vector" if encoder is None else encoder.kind

    # --- inside --------------------------------------------------------------------------------------------------

    def _inputs(self) -> InputReader:
        """The reader of examples, with the encoder that was plugged in or the model's own."""
        if self._reader is None:
            encoder: FrozenEncoder | None = None
            if not self._takes_vectors():
                plugged = plugged_encoder(self.model, self.encoder)
                encoder = trained_encoder(self.model) if plugged is None else open_encoder(plugged)
            self._reader = InputReader(encoder)
        return self._reader

    def _takes_vectors(self) -> bool:
        return self.model is None and self.encoder is None

    @contextmanager
    def _writing(self) -> Iterator[StoredMemory | RemoteMemory]:
        """The memory, locked, for a change of its store beside the learner; it is read anew afterwards."""
        with self._open().current() as memory:
            memory.save_state()
            try:
                yield memory
            finally:
                memory.reload()

    def _in_ram(self) -> bool:
        return self.memory in (None, "ram:")

    def _known(self) -> Opened | None:
        """What is open. A memory that lasts is opened if it exists, since what it holds is known; none is made."""
        if self._opened is None and not self._in_ram() and find_memory(self.memory, self.name) is not None:
            self._open()
        return self._opened

    def _open(self, examples: Examples | None = None) -> Opened:
        """What is open, with the present parameters; opened now if nothing is."""
        opened = self._opened
        if opened is None:
            opened = self._open_now(None if examples is None else examples.width)
        asked = (self.max_rows, self.sigma, self.k, self.ageing)
        if asked != opened.adjusted:
            opened.adjust(asked)
        return opened

    def _open_now(self, width: int | None) -> Opened:
        if self._ended:
            raise StoreError("this memory lived in RAM and ended when it was closed: open() begins a new one")
        with _OPENING:
            if self._opened is None:
                self._opened = open_classifier(self, width, self._inputs().encoder)
            return self._opened

    def __sklearn_is_fitted__(self) -> bool:
        return len(self) > 0

    def __getstate__(self) -> dict[str, Any]:
        """Copies and processes of joblib take a memory in RAM along; one that lasts is opened again there."""
        state = dict(vars(self))
        opened = state.pop("_opened", None)
        state.pop("_reader", None)
        if opened is not None and self._in_ram():
            opened.memory.save_state()
            rows = [vars(row) for row in opened.store.new_rows()]
            state["_carried"] = (opened.store.width, rows, opened.store.settings())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        carried = state.pop("_carried", None)
        vars(self).update(state)
        if carried is not None:
            width, rows, settings = carried
            self._open_now(width)
            self.adopt([NewRow(**row) for row in rows], settings)


def _row_number(row: Any) -> int:
    if isinstance(row, bool) or not isinstance(row, Integral):
        raise TypeError(f"a row is named by its number, got {row!r}")
    return int(row)
