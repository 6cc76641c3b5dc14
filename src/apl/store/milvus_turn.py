"""Whose turn it is to write a memory on Milvus, which has no locks.

It has names of collections, though, and renaming one is atomic: of several who rename the same collection one succeeds.
So each memory has an empty collection whose name says who writes it, and taking a turn is renaming it. Whoever has a
memory alone keeps the turn for as long as it is open. Who shares it takes it for one write and gives it back; if somebody
else's turn lasts longer than `LEASE_SECONDS`, its owner is held for dead and the turn is taken over. The one who takes
over declares the other's write void (`milvus_journal.Record.void`), so that even an owner who was only asleep cannot
complete it, and finds out.
"""

from __future__ import annotations

import random
import time
import uuid
from contextlib import suppress

from apl.store.errors import NoSuchMemory, StoreBusy
from apl.store.milvus_journal import DataType, MilvusClient, MilvusException, RpcError

LEASE_SECONDS = 20.0
POLL_SECONDS = 0.02
FREE, ALONE = "free", "alone_"


class Turn:
    """The right of one process to write one memory."""

    def __init__(self, client: MilvusClient, rows: str, memory: str) -> None:
        self._client = client
        self._prefix = rows.replace("apl_memory_", "apl_turn_") + "__"
        self._memory = memory
        self._mine = ""
        self._since = 0.0

    def make(self) -> None:
        """To be called by the one who makes the memory."""
        schema = MilvusClient.create_schema(enable_dynamic_field=False)
        schema.add_field("key", DataType.INT64, is_primary=True)
        schema.add_field("unused", DataType.FLOAT_VECTOR, dim=2)
        self._client.create_collection(self._prefix + FREE, schema=schema, num_shards=1)

    def take_alone(self) -> None:
        """From whoever has it; from one who shares the memory once its write is done, or its lease over."""
        while not self._rename(self._free_or_expired(of_alone=True), ALONE):
            pass

    def take(self, by_force: bool = False) -> bool:
        """Wait for the turn. True if it was taken over from somebody whose write may be half done."""
        free = self._prefix + FREE
        with suppress(MilvusException):  # it is there as a rule
            self._client.rename_collection(free, mine := self._new_name(""))
            self._mine, self._since = mine, time.monotonic()
            return False
        while True:
            holder = self._free_or_expired(of_alone=by_force)
            if self._rename(holder, ""):
                return holder != free

    def give_back(self) -> None:
        # If this fails, the others wait until the lease is over; what was written stays written.
        with suppress(MilvusException, RpcError):
            self._client.rename_collection(self._mine, self._prefix + FREE)
        self._mine = ""

    def is_mine(self) -> bool:
        return bool(self._mine) and self._client.has_collection(self._mine)

    def is_held_alone(self) -> bool:
        return any(name.startswith(self._prefix + ALONE) for name in self._names())

    def renew(self) -> None:
        """A long write says now and then that it is still at work. Raises if the turn was lost."""
        if ALONE in self._mine or time.monotonic() - self._since < LEASE_SECONDS / 4:
            return
        if not self._rename(self._mine, ""):
            raise StoreBusy(f"the write to memory {self._memory!r} took too long and was given up; nothing was written")

    def drop(self) -> None:
        for name in self._names():
            self._client.drop_collection(name)

    def _free_or_expired(self, of_alone: bool) -> str:
        """The name of the turn once it can be taken."""
        watched, since = "", 0.0
        while True:
            names = self._names()
            if not names:
                if not self._client.has_collection(self._prefix.replace("apl_turn_", "apl_memory_")[:-2]):
                    raise NoSuchMemory(f"memory {self._memory!r} has been deleted")
                self.make()
                continue
            (holder,) = names[:1]
            owner = holder.removeprefix(self._prefix)
            if owner == FREE or (of_alone and owner.startswith(ALONE)):
                return holder
            if owner.startswith(ALONE):
                raise StoreBusy(f"memory {self._memory!r} is open for writing elsewhere, by one who does not share it")
            if holder != watched:
                watched, since = holder, time.monotonic()
            elif time.monotonic() - since > LEASE_SECONDS:
                return holder
            time.sleep(POLL_SECONDS * (1 + random.random()))

    def _rename(self, holder: str, kind: str) -> bool:
        mine = self._new_name(kind)
        try:
            self._client.rename_collection(holder, mine)
        except MilvusException:
            if holder in self._names():
                raise  # nobody was faster: the server failed
            return False
        self._mine, self._since = mine, time.monotonic()
        return True

    def _new_name(self, kind: str) -> str:
        return f"{self._prefix}{kind}{uuid.uuid4().hex}"

    def _names(self) -> list[str]:
        return [name for name in self._client.list_collections() if name.startswith(self._prefix)]
