"""A link for others on the local network: an address they can reach, a token of their own, and both as a QR code.

The token is behind the `#`, which browsers send to no server: it is in no log.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from urllib.parse import urlencode

import segno

from apl.service.answers import Shared
from apl.service.refusal import Refused
from apl.service.settings import is_loopback
from apl.service.tokens import Tokens, make_token

ELSEWHERE = "192.0.2.1"
"""An address reserved for documentation. Connecting a datagram socket to it sends nothing, and shows our own address."""


def local_address() -> str | None:
    """The address under which others on the network may reach this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((ELSEWHERE, 9))
            found = str(probe.getsockname()[0])
        except OSError:
            return None  # no network at all
    return None if is_loopback(found) else found


def link(address: str, port: int, **fragment: str) -> str:
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}/" + (f"#{urlencode(fragment)}" if fragment else "")


def invite(tokens: Tokens | None, host: str, port: int, memory: str, identity: str, scope: str) -> Shared:
    """A new token with this scope in one memory, and the links that carry it."""
    if tokens is None or is_loopback(host):
        raise Refused(
            409, "not_shared", "this service can be reached from this machine only: start it with `apl serve --share`"
        )
    address = local_address() if ipaddress.ip_address(host.strip("[]")).is_unspecified else host
    if address is None:
        raise Refused(409, "no_network", "this machine has no address that others could reach")
    token, guest = make_token(f"guest {secrets.token_hex(3)}", [f"{memory}={scope}"], {memory: identity})
    try:
        tokens.add(guest)
    except (OSError, ValueError) as error:
        raise Refused(409, "not_shared", f"the token file could not be written: {error}") from None
    found = link(address, port, memory=memory, token=token)
    code = ["".join(map(str, row)) for row in segno.make_qr(found, error="m").matrix]
    return Shared(link=found, qr=code, token_name=guest.name)
