"""Requests that come twice are answered once.

A repeated request is recognised by its `Idempotency-Key`. Its receipts are written in the same transaction as its rows,
whose ids are known by then: after a crash either both are there or neither, and whoever writes in between, they name the
same rows.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from apl.service.guard import Refused


@dataclass(frozen=True)
class AnsweredRequest:
    """What was asked, as a digest, and what was answered."""

    digest: str
    receipts: list[dict[str, Any]]

    def again(self, digest: str) -> list[dict[str, Any]]:
        """The answer to the same request."""
        if digest != self.digest:
            raise Refused(422, "key_reused", "this Idempotency-Key was used for another request")
        return self.receipts


def hash_key(key: str) -> str:
    """Under this a memory keeps the receipts: keys may be long, and are nobody else's business."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
