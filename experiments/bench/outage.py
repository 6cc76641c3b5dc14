"""Services on one memory, many clients, and everything that can be killed is killed on the way.

Each client teaches for a while, now at one service, now at the other, every second lesson of a class of its own (a row)
and the others of classes that all share (rows and merges). A lesson that was not acknowledged is sent again under the same
Idempotency-Key, to the next service. Meanwhile services are killed (-9) and started again, and a database may stop as if it
had lost its power. Afterwards every lesson names itself as the source of a row or of an example merged into one: acknowledged
lessons must be there once, all others once at most.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apl.store import SourceShare, open_store
from experiments.bench.http_load import LOST, Sent, connected
from experiments.bench.servers import drawings, serving

SHARED_CLASSES = 20
LEARN = "/v1/memories/default/learn"
PATIENCE_SECONDS = 120.0
"""How long a client tries to be heard with a lesson after the time is over."""


@dataclass
class Outcome:
    """What the clients saw."""

    acknowledged: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Receipts by the source of the lesson."""
    sent: set[str] = field(default_factory=set)
    statuses: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    differing: int = 0
    """Lessons sent once more after they were acknowledged, and answers to them that differ."""


class Service:
    """May be killed and started again."""

    def __init__(self, model: str, memory: str | Path) -> None:
        self.model, self.memory = model, memory
        self.port: int | None = None
        self._running = ExitStack()

    def start(self) -> None:
        self.port = self._running.enter_context(serving(self.model, self.memory)).port

    def kill(self) -> None:
        self.port = None
        self._running.close()

    def restart(self) -> None:
        self.kill()
        self.start()


Blow = tuple[float, Callable[[list[Service]], None]]
"""When, as a share of the time, and what happens."""


def kills(number: int) -> list[Blow]:
    """The first service is killed this often."""
    return [((n + 1) / (number + 1), lambda services: services[0].restart()) for n in range(number)]


def outage(
    model: str, memory: str | Path, blows: Sequence[Blow], *, services: int, clients: int, seconds: float
) -> dict[str, Any]:
    running = [Service(model, memory) for _ in range(services)]
    try:
        outcome = asyncio.run(_under_load(running, blows, clients, seconds))
    finally:
        for one in running:
            one.kill()
    return {"clients": clients, "seconds": seconds, **judged(memory, outcome)}


async def _under_load(services: list[Service], blows: Sequence[Blow], clients: int, seconds: float) -> Outcome:
    outcome, pictures = Outcome(), [picture for _, picture in drawings(56, seed=2)]
    await asyncio.gather(*(asyncio.to_thread(one.start) for one in services))
    started = time.perf_counter()

    async def teach(client: int) -> None:
        number = 0
        while time.perf_counter() - started < seconds:
            source = f"lesson {client} {number}"
            label = f"own {client} {number}" if number % 2 else f"shared {(client + number) % SHARED_CLASSES}"
            body = {"image": pictures[(7 * client + number) % len(pictures)], "label": label, "source": source}
            lesson = Sent(LEARN, body, {"Idempotency-Key": source})
            outcome.sent.add(source)
            receipt = await insist(lesson, client + number)
            if receipt is not None:
                outcome.acknowledged[source] = receipt
                if number % 10 == 0:
                    again = await insist(lesson, client + number + 1)
                    outcome.repeated += again is not None
                    outcome.differing += again is not None and again != receipt
            number += 1

    async def insist(lesson: Sent, turn: int) -> dict[str, Any] | None:
        """Send a lesson until it is acknowledged, by one service or the other."""
        while time.perf_counter() - started < seconds + PATIENCE_SECONDS:
            status, content = await post(services[turn % len(services)].port, lesson)
            outcome.statuses[status] += 1
            if status == "200":
                receipt: dict[str, Any] = json.loads(content)
                return receipt
            turn += 1
            await asyncio.sleep(0.1)
        return None

    async def strike() -> None:
        for share, blow in blows:
            await asyncio.sleep(max(0.0, share * seconds - (time.perf_counter() - started)))
            await asyncio.to_thread(blow, services)

    await asyncio.gather(strike(), *(teach(client) for client in range(clients)))
    return outcome


async def post(port: int | None, sent: Sent) -> tuple[str, bytes]:
    if port is None:
        return "no service", b""
    try:
        async with connected(port) as connection:
            status, content = await connection(sent)
            return str(status), content
    except LOST:
        return "connection lost", b""


def judged(memory: str | Path, outcome: Outcome) -> dict[str, Any]:
    """What the memory holds against what was acknowledged."""
    with open_store(memory, read_only=True) as store:
        rows = list(store.rows())
        shares = store.shares([row.id for row in rows])
    kept: Counter[str | None] = Counter()
    for row in rows:
        for share in shares.get(row.id, [SourceShare(row.source, row.key, row.count)]):
            kept[share.source] += share.count
    ids = {row.id for row in rows}
    named = [receipt["row"] or receipt["merged_into"] for receipt in outcome.acknowledged.values()]
    return {
        "lessons_acknowledged": len(outcome.acknowledged),
        "lessons_never_acknowledged": len(outcome.sent) - len(outcome.acknowledged),
        "rows": len(rows),
        "merged": sum(row.count for row in rows) - len(rows),
        "lost": sum(kept[source] == 0 for source in outcome.acknowledged),
        "twice": sum(count > 1 for count in kept.values()),
        "receipts_that_name_no_row": sum(id not in ids for id in named),
        "repeated_requests": outcome.repeated,
        "answered_differently": outcome.differing,
        "answers": dict(sorted(outcome.statuses.items())),
        "errors_other_than_503": sum(
            count for status, count in outcome.statuses.items() if status.startswith("5") and status != "503"
        ),
    }
