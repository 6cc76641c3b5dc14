"""The client: requests, when they are sent again, and the verbs of `OnlineClassifier` made of them."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np

from apl.classifier.answers import Explanation, Forgotten, LabelSet, Probabilities, ReaderOpinion, RecalledRow, Receipt
from apl.classifier.drift import DriftReport
from apl.classifier.inputs import label_array
from apl.classifier.review import Suspect
from apl.classifier.suggest import Suggestion
from apl.client.examples import encoded, in_parts
from apl.store import Label

try:
    import httpx
except ImportError:
    raise ImportError("the package httpx is not installed: pip install 'apl-memory[client]'") from None

LONGEST_PAUSE = 10.0
MOST_CLASSES = 200
"""Classes of which the service names the probabilities."""
MOST_SUSPECTS = 500
_BUSY = (429, 502, 503, 504)
Record = TypeVar("Record")


class ServiceError(RuntimeError):
    """The service refused a request, or could not be reached. `status` is None in the second case."""

    def __init__(self, message: str, code: str, status: int | None = None) -> None:
        super().__init__(message)
        self.code, self.status = code, status


class Client:
    """A memory of a running service, with the verbs of `OnlineClassifier`. Threads may share one.

    url, token: the service, and a token where it asks for one.
    memory: the memory's name there.
    retries: further attempts while the service is busy or cannot be reached.
    transport: an httpx transport, for proxies and tests.

    Examples are what the service takes: texts, or pictures as a path, bytes, PIL image or array. `learn_many` sends 64
    examples in a request; those of one request last together, or none does.

    >>> with Client(service_url, memory="words") as client:
    ...     receipt = client.learn_one("my card has not come", "card")
    ...     client.predict_one("where is my card?")
    'card'
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        memory: str = "default",
        retries: int = 5,
        timeout: float = 60.0,
        top: int = 20,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url, self.memory, self.retries, self.top = url.rstrip("/"), memory, retries, top
        self._takes: str | None = None
        """What examples are there; known after the first of them."""
        base, headers = f"{self.url}/v1/memories/{quote(memory, safe='')}", {}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx.Client(base_url=base, headers=headers, timeout=timeout, transport=transport)

    def learn_one(self, x: Any, y: Any, *, source: str | None = None) -> Receipt:
        """Predict, then learn the label. It lasts when this returns."""
        return self.learn_many([x], [y], sources=[source])[0]

    def learn_many(
        self, X: Iterable[Any], y: Iterable[Any], *, sources: Sequence[str | None] | None = None
    ) -> list[Receipt]:
        """Learn a batch; receipts in the order given."""
        examples, labels = list(X), [_plain(label) for label in y]
        named = [None] * len(labels) if sources is None else list(sources)
        if not len(examples) == len(labels) == len(named):
            raise ValueError(f"{len(examples)} examples, {len(labels)} labels, {len(named)} sources")
        bodies = self._bodies(examples)
        for body, label, source in zip(bodies, labels, named, strict=True):
            body |= {"label": label} if source is None else {"label": label, "source": source}
        learnt: list[Receipt] = []
        for part in in_parts(bodies):
            found = self._send("POST", "/learn/batch", {"examples": part}, key=uuid.uuid4().hex)
            learnt += [_record(Receipt, one) for one in found["receipts"]]
        return learnt

    def predict_one(self, x: Any, *, new_above: float | None = None, false_alarms: float | None = None) -> Label | None:
        """The most probable known class. None if nothing is known, or if it is called new: see `predict`."""
        [found] = self._asked([x], 1, new_above, false_alarms)
        best: Label | None = found["predicted"]
        return best

    def predict_proba_one(self, x: Any) -> Probabilities:
        """The `top` most probable classes, largest first, and the probability of a new class in `.new_class`."""
        return _probabilities(self._asked([x], self.top)[0])

    def predict_set(self, x: Any, coverage: float = 0.9) -> LabelSet:
        """The labels that contain the true one with this frequency."""
        [body] = self._bodies([x])
        return _record(LabelSet, self._send("POST", "/predict_set", body, {"coverage": coverage}))

    def predict(
        self, X: Iterable[Any], *, new_above: float | None = None, false_alarms: float | None = None
    ) -> np.ndarray:
        """The most probable known class of each example; None for those called new: where P(new class) exceeds `new_above`, or for
        the share `false_alarms` of examples of known classes and what is as new."""
        found = self._asked(X, 1, new_above, false_alarms)
        if any(not one["probabilities"] for one in found):
            raise ValueError("no class is known yet: learn an example first")
        labels = [one["predicted"] for one in found]
        return np.array(labels, dtype=object) if None in labels else label_array(labels)

    def predict_new(self, X: Iterable[Any]) -> np.ndarray:
        """The probability of each example to belong to no known class."""
        return np.array([one["probability_new"] for one in self._asked(X, 1)])

    def predict_proba(self, X: Iterable[Any]) -> np.ndarray:
        """Probabilities of the known classes, in the order of `classes_`."""
        labels = self.classes_.tolist()
        if len(labels) > MOST_CLASSES:
            raise ValueError(f"the service names {MOST_CLASSES} classes at most, this memory has {len(labels)}")
        found = [_probabilities(one) for one in self._asked(X, MOST_CLASSES)]
        return np.array([[one.get(label, 0.0) for label in labels] for one in found]).reshape(-1, len(labels))

    def explain(self, x: Any) -> Explanation:
        """The rows and readers behind an answer."""
        [body] = self._bodies([x])
        found = self._send("POST", "/explain", body, {"top": self.top})
        neighbours = [_record(RecalledRow, one) for one in found["neighbours"]]
        readers = [_record(ReaderOpinion, one) for one in found["readers"]]
        made = {"probabilities": _probabilities(found), "neighbours": neighbours, "readers": readers}
        return _record(Explanation, found | made)

    def suggest(self, pool: Iterable[Any], n: int = 20) -> list[Suggestion]:
        """The examples of a pool (at most 500) that are most worth a label, best first. Nothing is learnt."""
        bodies = self._bodies(pool)
        if not bodies:
            return []
        found = self._send("POST", "/suggest", {"examples": bodies}, {"n": n})
        return [_record(Suggestion, one) for one in found["suggestions"]]

    def review(self) -> list[Suspect]:
        """Rows whose label looks wrong (at most 500), the most suspicious first."""
        found = self._send("GET", "/review", query={"limit": MOST_SUSPECTS})
        return [_record(Suspect, one) for one in found["suspects"]]

    def relabel(self, row: int, label: Any, *, source: str | None = None) -> int:
        """Give a row, or what a source contributed to it, another label. Returns the row that has it then."""
        body = {"row": row, "label": _plain(label)} | ({} if source is None else {"source": source})
        return int(self._send("POST", "/relabel", body, repeatable=False)["row"])

    def drift(self) -> DriftReport:
        """Whether surprise has risen over the latest examples, since when, and with which classes."""
        return _record(DriftReport, self._send("GET", "/drift"))

    def forget(self, *, label: Any = None, row: int | None = None, source: str | None = None) -> Forgotten:
        """Forget a class, a row, or everything from a source."""
        named = {"label": _plain(label), "row": row, "source": source}
        body = {name: value for name, value in named.items() if value is not None}
        found = self._send("POST", "/forget", body, repeatable=False)
        return Forgotten(found["rows"], found["rebuilt"])

    def rename(self, label: Any, to: Any) -> list[int]:
        """Give a class another name; returns the rows."""
        body = {"label": _plain(label), "to": _plain(to)}
        return list(self._send("POST", "/rename", body, repeatable=False)["rows"])

    def counts(self) -> dict[Label, int]:
        """Rows of each known class."""
        return {one["label"]: one["rows"] for one in self._send("GET", "/counts")["classes"]}

    @property
    def classes_(self) -> np.ndarray:
        """The known labels, sorted (integers before text)."""
        return label_array(sorted(self.counts(), key=lambda label: (isinstance(label, str), label)))

    def __len__(self) -> int:
        """Rows in the memory."""
        return sum(self.counts().values())

    def __bool__(self) -> bool:
        return True

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- requests ------------------------------------------------------------------------------------------------

    def _bodies(self, X: Iterable[Any]) -> list[dict[str, Any]]:
        """Examples as the service takes them."""
        if self._takes is None:
            self._takes = str(self._send("GET", f"{self.url}/v1/service")["takes"])
        return [encoded(self._takes, x) for x in X]

    def _asked(
        self, X: Iterable[Any], top: int, new_above: float | None = None, false_alarms: float | None = None
    ) -> list[dict[str, Any]]:
        asked = {"top": top, "new_above": new_above, "false_alarms": false_alarms}
        query = {name: value for name, value in asked.items() if value is not None}
        parts = [{"examples": part} for part in in_parts(self._bodies(X))]
        return [one for part in parts for one in self._send("POST", "/predict/batch", part, query)["answers"]]

    def _send(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        query: dict[str, Any] | None = None,
        key: str | None = None,
        repeatable: bool = True,
    ) -> Any:
        """The answer to a request. `repeatable`: it changes nothing, or has a key, so that a lost answer may be asked for again."""
        headers, attempt = {} if key is None else {"Idempotency-Key": key}, 0
        while True:
            found: httpx.Response | httpx.TransportError
            try:
                found = self._http.request(method, path, json=body, params=query, headers=headers)
            except httpx.TransportError as error:
                found = error
            pause = self._pause(attempt, found, repeatable)
            if pause is None:
                return self._read(found)
            time.sleep(pause)
            attempt += 1

    def _pause(self, attempt: int, found: httpx.Response | httpx.TransportError, repeatable: bool) -> float | None:
        """Seconds until the next attempt; None if there is none."""
        if attempt >= self.retries:
            return None
        pause = min(LONGEST_PAUSE, 0.1 * 2**attempt) * random.uniform(0.5, 1.0)
        if isinstance(found, httpx.Response):
            if found.status_code not in _BUSY:
                return None
            asked = found.headers.get("retry-after", "")
            return min(LONGEST_PAUSE, float(asked)) if asked.isdecimal() else pause
        return pause if repeatable or isinstance(found, httpx.ConnectError) else None

    def _read(self, found: httpx.Response | httpx.TransportError) -> Any:
        if isinstance(found, httpx.TransportError):
            told = str(found) or type(found).__name__
            raise ServiceError(f"the service at {self.url} cannot be reached: {told}", "unreachable") from found
        if found.is_success:
            return found.json()
        try:
            error = found.json()["error"]
            raise ServiceError(error["message"], error["code"], found.status_code)
        except (ValueError, KeyError, TypeError):
            told = f"the service at {self.url} answered with status {found.status_code}"
            raise ServiceError(told, "unknown", found.status_code) from None


def _plain(label: Any) -> Any:
    """numpy's integers and strings as Python's."""
    return label.item() if isinstance(label, np.generic) else label


def _probabilities(found: dict[str, Any]) -> Probabilities:
    known = {share["label"]: share["probability"] for share in found["probabilities"]}
    return Probabilities(known, found["probability_new"])


def _record(kind: type[Record], found: dict[str, Any]) -> Record:
    """A record from an answer; fields of a newer service are ignored."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    known = {name: value for name, value in found.items() if name in names}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in known.items()})
