"""What can go wrong with a lasting memory. A message is one sentence, and says what to do if anything can."""

from __future__ import annotations


class StoreError(RuntimeError):
    """The memory could not be opened, read or written. What was acknowledged before is still there."""


class StoreBusy(StoreError):
    """Somebody else has the memory open for writing."""


class StoreAway(StoreError):
    """The server of the memory does not answer at the moment. It is asked again at the next call."""


class AlreadyAnswered(StoreError):
    """A receipt of this key is there already: the request has been answered before, perhaps by another process."""

    def __init__(self, key: str) -> None:
        super().__init__(f"there is a receipt for {key!r} already; nothing was written")
        self.key = key


class RowChanged(StoreError):
    """Somebody else has changed a row since it was read; nothing was written, read it again."""


class StoreDamaged(StoreError):
    """The file is not a memory, or no longer a whole one."""


class NewerSchema(StoreError):
    """The memory was written by a later version of apl."""


class NoSuchMemory(StoreError):
    """There is no memory of this name here."""


class MissingExtra(StoreError):
    """The library that talks to this kind of server is not installed."""


class FingerprintMismatch(StoreError):
    """The keys of the memory were made by another encoder."""

    def __init__(self, name: str, found: str, wanted: str) -> None:
        super().__init__(
            f"the keys of memory {name!r} were made by encoder {found!r} and cannot be compared with those "
            f"of {wanted!r}: use that encoder, or compute the keys anew with `apl memory reembed`"
        )
        self.found, self.wanted = found, wanted
