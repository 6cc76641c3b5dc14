"""Two services on one memory on a database server, many clients, and everything that can be killed is killed on the way.

Each client teaches for a while, now at one service, now at the other, every second lesson of a class of its own (a row)
and the others of classes that all share (rows and merges). A lesson that was not acknowledged is sent again under the same
Idempotency-Key, to the other service. In the middle, each service is killed (-9) and started again, and the database stops
as if it had lost its power and comes back. Afterwards every lesson names itself as the source of a row or of an
example merged into one: acknowledged lessons must be there once, all others once at most.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from apl.store import NoSuchMemory, SourceShare, delete_memory, open_store
from experiments.bench.servers import PostgresServer
from experiments.bench.service import Running, drawings, serving

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


class Services:
    """Two of them, each of which may be killed and started again."""

    def __init__(self, model: str, memory: str) -> None:
        self.model, self.memory = model, memory
        self._running: list[tuple[ExitStack, Running] | None] = [None, None]

    def start(self, *numbers: int) -> None:
        """At the same time."""
        threads = [threading.Thread(target=self._start, args=(number,)) for number in numbers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _start(self, number: int) -> None:
        stack = ExitStack()
        self._running[number] = (stack, stack.enter_context(serving(self.model, self.memory)))

    def kill(self, number: int) -> None:
        found, self._running[number] = self._running[number], None
        if found is not None:
            found[1].process.kill()
            found[0].close()

    def port(self, number: int) -> int | None:
        found = self._running[number]
        return None if found is None else found[1].port

    def close(self) -> None:
        self.kill(0)
        self.kill(1)


def outage(server: PostgresServer, model: str, clients: int, seconds: float) -> dict[str, Any]:
    pictures = [picture for _, picture in drawings(56, seed=2)]
    outcome, lock = Outcome(), threading.Lock()
    with suppress(NoSuchMemory):
        delete_memory(server.url, "default")
    services = Services(model, server.url)
    started = time.perf_counter()

    def teach(client: int) -> None:
        number = 0
        while time.perf_counter() - started < seconds:
            source = f"lesson {client} {number}"
            label = f"own {client} {number}" if number % 2 else f"shared {(client + number) % SHARED_CLASSES}"
            body = {"image": pictures[(7 * client + number) % len(pictures)], "label": label, "source": source}
            with lock:
                outcome.sent.add(source)
            receipt = insist(body, client + number)
            if receipt is not None:
                with lock:
                    outcome.acknowledged[source] = receipt
                if number % 10 == 0:
                    again = insist(body, client + number + 1)
                    with lock:
                        outcome.repeated += again is not None
                        outcome.differing += again is not None and again != receipt
            number += 1

    def insist(body: dict[str, Any], turn: int) -> dict[str, Any] | None:
        """Send a lesson until it is acknowledged, by one service or the other."""
        while time.perf_counter() - started < seconds + PATIENCE_SECONDS:
            answer: dict[str, Any] | None
            status, answer = send(services.port(turn % 2), body)
            with lock:
                outcome.statuses[status] += 1
            if status == "200":
                return answer
            turn += 1
            time.sleep(0.1)
        return None

    try:
        services.start(0, 1)
        started = time.perf_counter()
        threads = [threading.Thread(target=teach, args=(client,)) for client in range(clients)]
        for thread in threads:
            thread.start()
        for share, number in ((0.2, 0), (0.5, None), (0.75, 1)):
            time.sleep(max(0.0, share * seconds - (time.perf_counter() - started)))
            if number is None:
                server.stop()
                server.start()
            else:
                services.kill(number)
                services.start(number)
        for thread in threads:
            thread.join()
    finally:
        services.close()
    return {"clients": clients, "seconds": seconds, **judged(server.url, outcome)}


def send(port: int | None, body: dict[str, Any]) -> tuple[str, Any]:
    if port is None:
        return "no service", None
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        headers = {"Content-Type": "application/json", "Idempotency-Key": body["source"]}
        connection.request("POST", LEARN, json.dumps(body), headers)
        answer = connection.getresponse()
        return str(answer.status), json.loads(answer.read())
    except (OSError, http.client.HTTPException):
        return "connection lost", None
    finally:
        connection.close()


def judged(url: str, outcome: Outcome) -> dict[str, Any]:
    """What the database holds against what was acknowledged."""
    with open_store(url, read_only=True) as store:
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
