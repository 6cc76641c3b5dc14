"""Bearer tokens: who may do what in which memory; and links that carry one.

The file holds hashes only:

    {"tokens": [{"name": "phone", "sha256": "…", "memories": {"letters": ["read", "learn"], "*": ["read"]}}]}

`read` allows predictions, looking and exporting; `learn` teaching and forgetting; `admin` making, importing and
deleting memories. Each scope includes those before it, and `*` stands for every memory. A guest's entry also has `identity`, which
ties its grants to the memory that was shared: a new memory of the same name is another one. A token is 256 random bits, so a
plain hash of it cannot be reversed by guessing.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, get_args
from urllib.parse import urlencode

from filelock import FileLock
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from apl.durable_file import replace_durably
from apl.service.settings import is_loopback
from apl.store.checks import checked_name

Scope = Literal["read", "learn", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
EVERY = "*"
Granted = Annotated[str, AfterValidator(lambda name: name if name == EVERY else checked_name(name))]
ELSEWHERE = "192.0.2.1"
"""An address reserved for documentation. Connecting a datagram socket to it sends nothing, and shows our own address."""


class Client(BaseModel):
    """A token's owner, and what it may do in each memory: an entry of the token file."""

    name: str = "unnamed"
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    memories: dict[Granted, Annotated[list[Scope], Field(min_length=1)]]
    identity: dict[str, str] = {}
    """The identity a memory must have for its grant to hold, where the grant is bound to one."""

    def scope(self, memory: str, identity: str | None = None) -> Scope | None:
        """The highest scope in the memory of this name and identity."""
        granted = list(self.memories.get(EVERY, ()))
        if self.identity.get(memory, identity) == identity:
            granted += self.memories.get(memory, ())
        return max(granted, key=SCOPES.index, default=None)

    def may(self, scope: Scope, memory: str, identity: str | None = None) -> bool:
        granted = self.scope(memory, identity)
        return granted is not None and SCOPES.index(granted) >= SCOPES.index(scope)


ANYBODY = Client(name="local", sha256="0" * 64, memories={EVERY: ["admin"]})
"""Without tokens, on the loopback interface."""


class TokenFile(BaseModel):
    tokens: list[Client]


class Tokens:
    """The known tokens, by their hashes. Threads may add at the same time."""

    def __init__(self, clients: Sequence[Client] = (), path: Path | None = None) -> None:
        self._clients = list(clients)
        self._path = path
        """Where tokens made later are written too; None for tokens that end with the process."""
        self._adding = threading.Lock()

    def client(self, token: str) -> Client | None:
        """The owner of this token. Every hash is compared, so that the time taken reveals nothing."""
        digest, found = hash_of(token), None
        for client in list(self._clients):
            if hmac.compare_digest(client.sha256, digest):
                found = client
        return found

    def add(self, client: Client) -> None:
        with self._adding:
            if self._path is not None:
                add_to_file(self._path, client)
            self._clients.append(client)

    @staticmethod
    def load(path: str | Path) -> Tokens:
        return Tokens(_read(Path(path)), Path(path))


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def make_token(name: str, grants: Sequence[str], identity: dict[str, str] | None = None) -> tuple[str, Client]:
    """A new token and its owner. A grant is `memory=scope`, such as `letters=learn` or `*=read`."""
    memories: dict[str, list[Scope]] = {}
    for grant in grants:
        memory, _, asked = grant.partition("=")
        scopes = [scope for scope in SCOPES if scope == asked]
        if not scopes:
            raise ValueError(f"a grant is MEMORY=SCOPE with the scope {', '.join(SCOPES)}; got {grant!r}")
        memories[memory if memory == EVERY else checked_name(memory)] = scopes
    token = "apl_" + secrets.token_urlsafe(32)
    return token, Client(name=name, sha256=hash_of(token), memories=memories, identity=identity or {})


def add_to_file(path: Path, client: Client) -> None:
    """Append an entry to a token file, made if needed, readable by its owner alone. One writer at a time; readers see
    the old file or the new one."""
    with FileLock(path.with_name(path.name + ".lock"), mode=0o600):
        content = TokenFile(tokens=[*(_read(path) if path.exists() else ()), client])
        handle, part = tempfile.mkstemp(prefix=path.name, suffix=".part", dir=path.absolute().parent)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(content.model_dump_json(indent=1, exclude_defaults=True))
            replace_durably(Path(part), path)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise


def _read(path: Path) -> list[Client]:
    try:
        return TokenFile.model_validate_json(path.read_bytes()).tokens
    except OSError as error:
        raise ValueError(f"the token file {path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"the token file {path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def link(address: str, port: int, **fragment: str) -> str:
    """For a browser. A token goes behind the `#`, which browsers send to no server: it is in no log."""
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}/" + (f"#{urlencode(fragment)}" if fragment else "")


def local_address() -> str | None:
    """The address under which others on the network may reach this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((ELSEWHERE, 9))
            found = str(probe.getsockname()[0])
        except OSError:
            return None  # no network at all
    return None if is_loopback(found) else found
