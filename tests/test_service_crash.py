"""Stopping in every way: killed under load, and asked politely."""

from __future__ import annotations

import concurrent.futures
import json
import threading
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from serving import Process, drawing, lesson, running, save_small_model, settings

from apl.classifier.online import OnlineClassifier
from apl.service.tokens import add_to_file, make_token
from apl.store import open_store
from experiments.bench.engine import two_services
from experiments.bench.outage import kills, outage
from experiments.bench.servers import PostgresServer

pytest_plugins = ["store_servers"]
HOME = "/v1/memories/default"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_small_model(tmp_path_factory.mktemp("model")))


def test_no_acknowledged_lesson_is_lost_when_it_is_killed(model: str, tmp_path: Path) -> None:
    outcome = outage(model, tmp_path / "m.apl", kills(2), services=1, clients=8, seconds=6.0)
    assert outcome["lessons_acknowledged"] >= 4 and outcome["lessons_never_acknowledged"] == 0
    assert outcome["lost"] == outcome["twice"] == outcome["answered_differently"] == 0
    assert outcome["answers"]["connection lost"] > 0 and outcome["errors_other_than_503"] == 0


def test_two_services_on_one_memory_lose_nothing_to_kills_and_a_restart_of_the_database(
    postgres_server: PostgresServer,
) -> None:
    outcome = two_services(postgres_server, clients=4, seconds=4.0)
    assert outcome["lessons_acknowledged"] >= 4 and outcome["lessons_never_acknowledged"] == 0
    assert outcome["lost"] == outcome["twice"] == outcome["receipts_that_name_no_row"] == 0
    assert outcome["answered_differently"] == 0 and outcome["errors_other_than_503"] == 0, outcome["answers"]


def test_a_page_of_one_service_hears_of_what_another_teaches(model: str, postgres_url: str) -> None:
    with running(settings(postgres_url, model)) as one, running(settings(postgres_url, model)) as other:
        for client in (one, other):
            client.put("/v1/memories/watched").raise_for_status()
        with one.stream("GET", "/v1/memories/watched/events") as stream:
            events = (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))
            assert next(events) == {"event": "changed", "rows": 0}
            other.post("/v1/memories/watched/learn", json=lesson(0)).raise_for_status()
            assert next(events) == {"event": "changed", "rows": 1}
            other.post("/v1/memories/watched/relabel", json={"row": 1, "label": "house"}).raise_for_status()
            assert next(events)["event"] == "changed"
        assert one.get("/v1/memories/watched").json()["classes"] == [{"label": "house", "rows": 1}]


def test_what_one_service_makes_and_deletes_the_other_knows(model: str, postgres_url: str, tmp_path: Path) -> None:
    chief, entry = make_token("chief", ["*=admin"])
    add_to_file(tmp_path / "tokens.json", entry)
    options = settings(postgres_url, model, host="0.0.0.0", tokens=str(tmp_path / "tokens.json"), share=True)
    own, home = {"authorization": f"Bearer {chief}"}, "/v1/memories/passed-on"
    with running(options) as one:
        one.headers.update(own)
        one.put(home).raise_for_status()
        shared = one.post(f"{home}/share", json={}).raise_for_status().json()
        guest = {"authorization": "Bearer " + parse_qs(urlsplit(shared["link"]).fragment)["token"][0]}
        with running(options) as other:
            other.headers.update(own)
            one.put(f"{home}-later").raise_for_status()
            assert other.get(f"{home}-later").status_code == 200
            one.delete(home).raise_for_status()
            one.put(home).raise_for_status()
            assert other.get(home, headers=guest).status_code == 403, "it is another memory now"
            other.post(f"{home}/learn", json=lesson(0)).raise_for_status()
            one.delete(home).raise_for_status()
            for _ in range(2):
                assert other.get(home).status_code == 404
            assert "passed-on" not in [memory["name"] for memory in other.get("/v1/memories").json()]
            one.put(home).raise_for_status()
            one.post(f"{home}/learn", json=lesson(1)).raise_for_status()
            assert other.get(home).json()["classes"] == [{"label": "sign 1", "rows": 1}]


def test_a_second_service_is_refused_and_a_polite_stop_loses_nothing(model: str, tmp_path: Path) -> None:
    server = Process("--model", model, "--memory", str(tmp_path / "m.apl"), "--rate", "0")
    with pytest.raises(RuntimeError, match="open for writing elsewhere") as refusal:
        Process("--model", model, "--memory", str(tmp_path / "m.apl"))
    *_, sentence = str(refusal.value).splitlines()
    assert sentence.startswith("apl serve: ") and "Traceback" not in str(refusal.value)
    answered: list[int] = []
    stop = threading.Event()

    def teach(client_number: int) -> None:
        with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client:
            for number in range(10_000):
                if stop.is_set():
                    return
                try:
                    label = f"{client_number} {number}"
                    response = client.post(f"{HOME}/learn", json=lesson(number % 6, number % 12, label=label))
                except httpx.TransportError:
                    return
                assert response.status_code in (200, 503)
                if response.status_code == 200:
                    answered.append(response.json()["row"])

    def watch() -> None:
        with httpx.stream("GET", f"{server.url}{HOME}/events", timeout=30) as stream:
            for _ in stream.iter_lines():
                pass

    with concurrent.futures.ThreadPoolExecutor(5) as threads:
        jobs = [threads.submit(teach, number) for number in range(4)] + [threads.submit(watch)]
        while len(answered) < 20 and not any(job.done() for job in jobs[:4]):
            time.sleep(0.02)
        status = server.stop()
        stop.set()
        for job in jobs:
            job.result(30)
    assert status == 0, server.log[-20:]
    events = [json.loads(line) for line in server.log]
    assert {"ready", "request", "stopped"} <= {event["event"] for event in events}
    assert all({"time", "level", "event"} <= set(event) for event in events)
    with open_store(tmp_path / "m.apl", read_only=True) as store:
        assert set(answered) <= set(store.load().ids.tolist())
        assert store.settings()["service curve"]["seen"] >= len(answered)


def test_a_repeated_request_names_the_same_row_after_a_kill_with_another_writer_in_between(
    model: str, tmp_path: Path
) -> None:
    options = ("--model", model, "--memory", str(tmp_path / "m.apl"))
    key, sent = {"Idempotency-Key": "once"}, {"examples": [lesson(0), lesson(1)]}
    server = Process(*options)
    first = server.client.post(f"{HOME}/learn/batch", json=sent, headers=key).json()
    server.kill()
    with OnlineClassifier.load(tmp_path / "m.apl") as classifier:
        classifier.forget(row=first[0]["row"])
        assert classifier.learn_one(drawing(4), "from outside").written
    server = Process(*options)
    assert server.client.post(f"{HOME}/learn/batch", json=sent, headers=key).json() == first
    labels = {row["row"]: row["label"] for row in server.client.get(f"{HOME}/rows").json()["rows"]}
    assert labels[first[1]["row"]] == "sign 1" and "from outside" in labels.values()
    server.stop()
