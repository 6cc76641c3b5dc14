"""Metrics for Prometheus, and one JSON line per event."""

from __future__ import annotations

import json
import logging
import sys
import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

LATENCY_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
SURPRISE_NATS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)

log = logging.getLogger("apl.service")


class Metrics:
    """One registry per service, so that several can live in one process (as they do in tests)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self.requests = Counter("apl_requests", "Requests answered.", labels, registry=self.registry)
        self.latency = Histogram(
            "apl_request_seconds", "Time to answer.", ("route",), buckets=LATENCY_SECONDS, registry=self.registry
        )
        self.rows = Gauge("apl_memory_rows", "Rows in a memory.", ("memory",), registry=self.registry)
        self.drift = Gauge(
            "apl_memory_drift", "1 while surprise at what is taught has risen.", ("memory",), registry=self.registry
        )
        self.surprise = Histogram(
            "apl_surprise_nats",
            "Surprise at what was taught.",
            ("memory",),
            buckets=SURPRISE_NATS,
            registry=self.registry,
        )
        self.lessons = Counter("apl_lessons", "Examples taught.", ("memory", "written"), registry=self.registry)
        self.batch = Histogram(
            "apl_encoder_batch", "Examples embedded at once.", buckets=BATCH_SIZES, registry=self.registry
        )

    def forget_memory(self, name: str) -> None:
        """Drop the series of a deleted memory."""
        for metric in (self.rows, self.drift, self.surprise, self.lessons):
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


class FewAlike(logging.Filter):
    """Of warnings and refused requests, a few of each kind in a while; the next line says how many were left out.

    Otherwise a hostile client fills the disk with log lines.
    """

    def __init__(self, most: int = 20, seconds: float = 10.0) -> None:
        super().__init__()
        self.most, self.seconds = most, seconds
        self._since: dict[tuple[str, int, int], float] = {}
        self._count: dict[tuple[str, int, int], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        fields = getattr(record, "fields", {})
        status = fields.get("status", 0)
        if record.levelno < logging.WARNING and status < 400:
            return True
        kind = (record.pathname, record.lineno, status)
        if record.created - self._since.get(kind, 0.0) >= self.seconds:
            left_out = self._count.get(kind, 0) - self.most
            if left_out > 0:
                record.fields = {**fields, "left_out_before": left_out}
            self._since[kind], self._count[kind] = record.created, 0
        self._count[kind] += 1
        return self._count[kind] <= self.most


def start_logging() -> None:
    """JSON lines on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    handler.addFilter(FewAlike())
    for name in ("apl", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
