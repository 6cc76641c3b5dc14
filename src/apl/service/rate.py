"""How often a client may ask."""

from __future__ import annotations

import time
from collections import OrderedDict

CLIENTS_REMEMBERED = 10_000
"""The longest unused bucket goes first."""


class RequestRate:
    """A bucket of requests per client, refilled steadily; a full one holds those of two seconds."""

    def __init__(self, per_second: float) -> None:
        self.per_second, self.burst = per_second, max(1.0, 2 * per_second)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_seconds(self, who: str) -> float:
        """0 if the client may go on, and then one request is taken; else the time until it may."""
        if self.per_second <= 0:
            return 0.0
        now = time.monotonic()
        left, since = self._buckets.pop(who, (self.burst, now))
        left = min(self.burst, left + (now - since) * self.per_second)
        allowed = left >= 1
        self._buckets[who] = (left - allowed, now)
        if len(self._buckets) > CLIENTS_REMEMBERED:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else max(1.0, (1 - left) / self.per_second)
