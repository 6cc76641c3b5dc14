"""Bearer tokens: who may do what in which memory.

The file, JSON or TOML, holds hashes only:

    {"tokens": [{"name": "phone", "sha256": "…", "memories": {"letters": ["read", "learn"], "*": ["read"]}}]}

`read` allows predictions, looking and exporting; `learn` teaching and forgetting; `admin` making, importing and
deleting memories. Each scope includes those before it, and `*` stands for every memory. A guest's entry also has `identity`, which
ties its grants to the memory that was shared: a new memory of the same name is another one. A token is 256 random bits, so a
plain hash of it cannot be reversed by guessing.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import tempfile
import threading
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from filelock import FileLock

from apl.durable_file import replace_durably
from apl.store.validation import checked_name

Scope = Literal["read", "learn", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
EVERY = "*"


@dataclass(frozen=True)
class Client:
    """A token's owner, and the highest scope granted in each memory."""

    name: str
    memories: Mapping[str, Scope]
    identities: Mapping[str, str] = field(default_factory=dict)
    """The identity a memory must have for its grant to hold, where the grant is bound to one."""

    def scope(self, memory: str, identity: str | None = None) -> Scope | None:
        """The highest scope in the memory of this name and identity."""
        granted = [self.memories[EVERY]] if EVERY in self.memories else []
        if memory in self.memories and self.identities.get(memory, identity) == identity:
            granted.append(self.memories[memory])
        return max(granted, key=SCOPES.index, default=None)

    def may(self, scope: Scope, memory: str, identity: str | None = None) -> bool:
        granted = self.scope(memory, identity)
        return granted is not None and SCOPES.index(granted) >= SCOPES.index(scope)


ANYBODY = Client("local", {EVERY: "admin"})
"""Without tokens, on the loopback interface."""


class Tokens:
    """The known tokens, by their hashes. Threads may add at the same time."""

    def __init__(self, clients: Mapping[str, Client], path: Path | None = None) -> None:
        self._clients = dict(clients)
        self._path = path
        """Where tokens made later are written too; None for tokens that end with the process."""
        self._adding = threading.Lock()

    def client(self, token: str) -> Client | None:
        """The owner of this token. Every hash is compared, so that the time taken reveals nothing."""
        digest, found = hash_of(token), None
        for known, client in list(self._clients.items()):
            if hmac.compare_digest(known, digest):
                found = client
        return found

    def add(self, entry: Mapping[str, Any]) -> None:
        with self._adding:
            if self._path is not None:
                add_to_file(self._path, entry)
            self._clients[entry["sha256"]] = _client(entry, self._path or "this service")

    @staticmethod
    def load(path: str | Path) -> Tokens:
        return Tokens({entry["sha256"]: _client(entry, path) for entry in _entries(Path(path))}, Path(path))


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def make_token(
    name: str, grants: Sequence[str], identities: Mapping[str, str] | None = None
) -> tuple[str, dict[str, Any]]:
    """A new token and its entry for the file. A grant is `memory=scope`, such as `letters=learn` or `*=read`."""
    memories = {}
    for grant in grants:
        memory, found, scope = grant.partition("=")
        if not found or scope not in SCOPES:
            raise ValueError(f"a grant is MEMORY=SCOPE with the scope {', '.join(SCOPES)}; got {grant!r}")
        memories[memory if memory == EVERY else checked_name(memory)] = [scope]
    token = "apl_" + secrets.token_urlsafe(32)
    entry = {"name": name, "sha256": hash_of(token), "memories": memories}
    return token, entry if identities is None else {**entry, "identity": dict(identities)}


def add_to_file(path: Path, entry: Mapping[str, Any]) -> None:
    """Append an entry to a JSON token file, made if needed, readable by its owner alone. One writer at a time; readers see
    the old file or the new one."""
    if path.suffix == ".toml":
        raise ValueError(f"{path} is TOML, which apl does not write: add the entry by hand")
    with FileLock(path.with_name(path.name + ".lock"), mode=0o600):
        entries = _entries(path) if path.exists() else []
        handle, part = tempfile.mkstemp(prefix=path.name, suffix=".part", dir=path.absolute().parent)
        try:
            with os.fdopen(handle, "w") as file:
                json.dump({"tokens": [*entries, dict(entry)]}, file, indent=1)
            replace_durably(Path(part), path)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise


def _entries(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text()
        content = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise ValueError(f"the token file {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"the token file {path} is neither JSON nor TOML: {error}") from None
    entries = content.get("tokens") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"the token file {path} has no list `tokens`")
    for entry in entries:
        digest = entry.get("sha256")
        if not isinstance(digest, str) or len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            raise ValueError(f"the token file {path} has an entry without `sha256`, 64 digits 0-9a-f")
    return entries


def _client(entry: Mapping[str, Any], path: str | Path) -> Client:
    name, memories, identities = entry.get("name", "unnamed"), entry.get("memories"), entry.get("identity", {})
    if not isinstance(name, str) or not isinstance(memories, dict) or not isinstance(identities, dict):
        raise ValueError(f"a token in {path} needs `name` and `memories`")
    highest = {}
    for memory, scopes in memories.items():
        if memory != EVERY:
            checked_name(memory)
        if not isinstance(scopes, list) or not scopes or not set(scopes) <= set(SCOPES):
            raise ValueError(f"the scopes of token {name!r} for {memory!r} must be some of {', '.join(SCOPES)}")
        highest[memory] = max(scopes, key=SCOPES.index)
    return Client(name, highest, identities)
