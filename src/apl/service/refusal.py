"""An answer that is not the one asked for."""

from __future__ import annotations


class Refused(Exception):
    """A status, a code for programs and a sentence for people."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers


def invalid(message: str) -> Refused:
    return Refused(422, "invalid", message)


def busy(message: str, seconds: int = 1) -> Refused:
    return Refused(503, "busy", message, **{"retry-after": str(seconds)})
