"""What can go wrong with a stored memory. A message is one sentence, and says what to do where something can be done."""

from __future__ import annotations


class StoreError(RuntimeError):
    """The memory could not be opened, read or written. What was acknowledged before is still there."""


class StoreBusy(StoreError):
    """Another process has the memory open for writing."""


class StoreUnavailable(StoreError):
    """The server of the memory does not answer at the moment. The next call tries again."""


class AlreadyAnswered(StoreError):
    """A receipt of this key exists: the request has been answered before, perhaps by another process."""

    def __init__(self, key: str) -> None:
        super().__init__(f"there is a receipt for {key!r} already; nothing was written")
        self.key = key


class RowChanged(StoreError):
    """A row was changed by another process since it was read; nothing was written, read it again."""


class StoreDamaged(StoreError):
    """The file is not a memory, or no longer a whole one."""


class OtherSchema(StoreError):
    """The memory was written by an earlier or a later version of apl."""


class NoSuchMemory(StoreError):
    """There is no memory of this name here."""


class MissingExtra(StoreError):
    """The client library of this kind of server is not installed."""


class FingerprintMismatch(StoreError):
    """The keys of the memory were made by another encoder."""

    def __init__(self, name: str, found: str, wanted: str) -> None:
        super().__init__(
            f"the keys of memory {name!r} were made by encoder {found!r} and cannot be compared with those "
            f"of {wanted!r}: use that encoder, or compute the keys anew with `apl memory reembed`"
        )
        self.found, self.wanted = found, wanted
