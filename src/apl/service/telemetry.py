"""Metrics for Prometheus, and one JSON line per event."""

from __future__ import annotations

import json
import logging
import sys
import time
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

LATENCY_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
SURPRISE_NATS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8)

log = logging.getLogger("apl.service")


class Metrics:
    """One registry per service, so that several can live in one process (as they do in tests)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        gauge, histogram = partial(Gauge, registry=self.registry), partial(Histogram, registry=self.registry)
        by = ("method", "route", "status")
        self.requests = Counter("apl_requests", "Requests answered.", by, registry=self.registry)
        self.latency = histogram("apl_request_seconds", "Time to answer.", ("route",), buckets=LATENCY_SECONDS)
        self.rows = gauge("apl_memory_rows", "Rows in a memory.", ("memory",))
        self.drift = gauge("apl_memory_drift", "1 while surprise at what is taught has risen.", ("memory",))
        self.surprise = histogram(
            "apl_surprise_nats", "Surprise at what was taught.", ("memory",), buckets=SURPRISE_NATS
        )

    def forget_memory(self, name: str) -> None:
        """Drop the series of a deleted memory."""
        for metric in (self.rows, self.drift, self.surprise):
            metric.remove_by_labels({"memory": name})

    def page(self) -> bytes:
        return generate_latest(self.registry)


class JsonLines(logging.Formatter):
    """A log record as one line of JSON. Values are escaped, so a client cannot forge a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def start_logging() -> None:
    """JSON lines on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("apl", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
