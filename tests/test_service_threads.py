"""Sixteen clients at once, who teach, ask and forget in one memory: every answer is one that some order explains."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
from serving import alike, lesson, question, running, save_small_model, settings

HOME = "/v1/memories/default"
CLIENTS, TURNS = 16, 8


@dataclass(frozen=True)
class Event:
    """A request and its answer, and when it was under way."""

    began: float
    ended: float
    what: str
    answer: dict


def client_at_work(service: httpx.Client, number: int, events: list[Event], start: threading.Barrier) -> None:
    chance, mine = random.Random(number), []
    start.wait()
    for turn in range(TURNS):
        what = chance.choice(["learn", "learn", "predict", "forget"])
        sign, drawing = chance.randrange(6), chance.randrange(12)
        match what:
            case "learn":
                # A label of its own is always written; a shared one if it surprises.
                label = f"sign {sign}" if turn % 2 else f"{number} {turn}"
                sent = {"path": f"{HOME}/learn", "json": lesson(sign, drawing, label=label, source=f"client {number}")}
            case "predict":
                sent = {"path": f"{HOME}/predict?top=200", "json": question(sign, drawing)}
            case "forget":
                sent = {"path": f"{HOME}/forget", "json": {"row": mine.pop()} if mine else {"source": "nobody"}}
        began = time.monotonic()
        answer = service.post(sent["path"], json=sent["json"])
        assert answer.status_code == 200, answer.text
        events.append(Event(began, time.monotonic(), what, answer.json()))
        if what == "learn" and answer.json()["written"]:
            mine.append(answer.json()["row"])


def test_many_clients_and_a_sequential_model_agree(tmp_path: Path) -> None:
    model = save_small_model(tmp_path / "model")
    events: list[Event] = []
    with running(settings(tmp_path / "m.apl", model)) as service:
        start = threading.Barrier(CLIENTS)
        with ThreadPoolExecutor(CLIENTS) as threads:
            jobs = [threads.submit(client_at_work, service, number, events, start) for number in range(CLIENTS)]
            for job in jobs:
                job.result()
        written = {e.answer["row"]: e for e in events if e.what == "learn" and e.answer["written"]}
        forgotten = {row: e for e in events if e.what == "forget" for row in e.answer["rows"]}
        lessons = [e for e in events if e.what == "learn"]
        # Ids are given once, in one order, and what is there now is what was written and not forgotten.
        assert sorted(written) == list(range(1, len(written) + 1))
        kept = {row: e.answer["label"] for row, e in written.items() if row not in forgotten}
        rows = service.get(f"{HOME}/rows?limit=500").json()["rows"]
        assert {row["row"]: row["label"] for row in rows} == kept
        state = service.get(HOME).json()
        assert state["curve"]["seen"] == len(lessons)
        assert {c["label"] for c in state["classes"]} == set(kept.values())
        for e in (e for e in events if e.what == "predict"):
            # Rows that must be known, rows that may be, and no others.
            surely = {
                row
                for row, by in written.items()
                if by.ended < e.began and not (row in forgotten and forgotten[row].began < e.ended)
            }
            perhaps = {
                row
                for row, by in written.items()
                if by.began < e.ended and not (row in forgotten and forgotten[row].ended < e.began)
            }
            named = {share["label"] for share in e.answer["probabilities"]}
            assert {written[row].answer["label"] for row in surely} <= named
            assert named <= {written[row].answer["label"] for row in perhaps}
            assert abs(sum(share["probability"] for share in e.answer["probabilities"]) - bool(named)) < 1e-6
        for e in lessons:
            before = [
                other for other in lessons if other.ended < e.began and other.answer["label"] == e.answer["label"]
            ]
            if e.answer["new_label"] and before:
                assert any(written[row].answer["label"] == e.answer["label"] for row in forgotten)
        answers = ask_all(service)
    with running(settings(tmp_path / "m.apl", model)) as service:
        assert alike(ask_all(service), answers)


def ask_all(service: httpx.Client) -> list[dict]:
    """Without the order of equally probable classes, which is that of their rows."""
    found = [service.post(f"{HOME}/predict?top=200", json=question(sign)).json() for sign in range(6)]
    return [
        {**answer, "probabilities": {share["label"]: share["probability"] for share in answer["probabilities"]}}
        for answer in found
    ]
