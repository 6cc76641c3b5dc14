"""An answer that is not the one asked for."""

from __future__ import annotations

from starlette.responses import JSONResponse

from apl.store import FingerprintMismatch, NoSuchMemory, RowChanged, StoreBusy, StoreError, StoreUnavailable


class Refused(Exception):
    """A status, a code for programs and a sentence for people."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers

    def response(self) -> JSONResponse:
        return JSONResponse({"error": {"code": self.code, "message": self.message}}, self.status, self.headers)


def invalid(message: str) -> Refused:
    return Refused(422, "invalid", message)


def busy(message: str, seconds: int = 1) -> Refused:
    return Refused(503, "busy", message, **{"retry-after": str(seconds)})


def storage(error: StoreError) -> Refused:
    """What a store could not do."""
    match error:
        case FingerprintMismatch():
            return Refused(409, "other_model", str(error))
        case NoSuchMemory():
            return Refused(404, "no_such_memory", str(error))
        case StoreBusy():
            return Refused(409, "memory_busy", f"the memory is being written by another program: {error}")
        case RowChanged():
            return busy(str(error))
        case StoreUnavailable():
            return Refused(503, "memory_away", f"nothing was written: {error}", **{"retry-after": "1"})
    return Refused(507, "storage", f"nothing was written: {error}")
