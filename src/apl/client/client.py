"""The client: examples and requests, when they are sent again, and the verbs of `OnlineClassifier` made of them."""

from __future__ import annotations

import base64
import io
import os
import random
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
from PIL import Image

from apl.classifier.answers import Explanation, Forgotten, LabelSet, Probabilities, ReaderOpinion, RecalledRow, Receipt
from apl.classifier.drift import DriftReport
from apl.classifier.inputs import label_array
from apl.classifier.review import Suspect
from apl.classifier.suggest import Suggestion
from apl.pictures.photographs import read_photo, reduced, to_jpeg
from apl.store import Label

try:
    import httpx
except ImportError:
    raise ImportError("the package httpx is not installed: pip install 'apl-memory[client]'") from None

AT_ONCE, MOST_CHARACTERS = 64, 3_000_000
"""Examples in a request, and characters of them; the service takes 64 and 4 MB."""
SHORTER_SIDE = 1024
"""Pixels that a picture too large for a request is reduced to; no encoder looks at more."""
MOST_CLASSES, MOST_SUSPECTS = 200, 500
"""Classes of which the service names the probabilities, and suspects that it names."""
LONGEST_PAUSE = 10.0
_BUSY = (429, 502, 503, 504)
Record = TypeVar("Record")


class ServiceError(RuntimeError):
    """The service refused a request, or could not be reached. `status` is None in the second case."""

    def __init__(self, message: str, code: str, status: int | None = None) -> None:
        super().__init__(message)
        self.code, self.status = code, status


class Client:
    """A memory of a running service, with the verbs of `OnlineClassifier`. Threads may share one.

    Args:
        url: the service.
        token: where the service asks for one.
        memory: the memory's name there.
        retries: further attempts while the service is busy or cannot be reached.
        timeout: seconds that an attempt may take.
        top: the number of most probable classes in an answer.
        transport: an httpx transport, for proxies and tests.

    Examples are what the service takes: texts, or pictures as a path, bytes, PIL image or array. `learn_many` sends 64
    examples in a request; those of one request last together, or none does.

    Examples:
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
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(headers=headers, timeout=timeout, transport=transport)

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
            body |= {"label": label, "source": source}
        learnt: list[Receipt] = []
        for part in in_parts(bodies):
            found = self._send("POST", "/learn/batch", {"examples": part}, key=uuid.uuid4().hex)
            learnt += [_record(Receipt, one) for one in found]
        return learnt

    def predict_one(self, x: Any, *, new_above: float | None = None, false_alarms: float | None = None) -> Label | None:
        """The most probable known class. None if nothing is known, or if it is called new: see `predict`."""
        best: Label | None = self._asked([x], 1, new_above, false_alarms)[0]["predicted"]
        return best

    def predict_proba_one(self, x: Any) -> Probabilities:
        """The `top` most probable classes, largest first, and the probability of a new class in `.new_class`."""
        return _probabilities(self._asked([x], self.top)[0])

    def predict_set(self, x: Any, coverage: float = 0.9) -> LabelSet:
        """The labels that contain the true one with this frequency."""
        return _record(LabelSet, self._send("POST", "/predict_set", self._bodies([x])[0], {"coverage": coverage}))

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
        found = self._send("POST", "/explain", self._bodies([x])[0], {"top": self.top})
        for row in found["neighbours"]:
            row["payload"] = row["payload"] and base64.urlsafe_b64decode(row["payload"])
        neighbours = [_record(RecalledRow, one) for one in found["neighbours"]]
        readers = [_record(ReaderOpinion, one) for one in found["readers"]]
        made = {"probabilities": _probabilities(found), "neighbours": neighbours, "readers": readers}
        return _record(Explanation, found | made)

    def suggest(self, pool: Iterable[Any], n: int = 20) -> list[Suggestion]:
        """The examples of a pool (at most 500) that are most worth a label, best first. Nothing is learnt."""
        bodies = self._bodies(pool)
        found = self._send("POST", "/suggest", {"examples": bodies}, {"n": n}) if bodies else []
        return [_record(Suggestion, one) for one in found]

    def review(self) -> list[Suspect]:
        """Rows whose label looks wrong (at most 500), the most suspicious first."""
        return [_record(Suspect, one) for one in self._send("GET", "/review", query={"limit": MOST_SUSPECTS})]

    def relabel(self, row: int, label: Any, *, source: str | None = None) -> int:
        """Give a row, or what a source contributed to it, another label. Returns the row that has it then."""
        body = {"row": row, "label": _plain(label), "source": source}
        return int(self._send("POST", "/relabel", body, repeatable=False))

    def drift(self) -> DriftReport:
        """Whether surprise has risen over the latest examples, since when, and with which classes."""
        return _record(DriftReport, self._send("GET", "/drift"))

    def forget(self, *, label: Any = None, row: int | None = None, source: str | None = None) -> Forgotten:
        """Forget a class, a row, or everything from a source."""
        body = {"label": _plain(label), "row": row, "source": source}
        found = self._send("POST", "/forget", body, repeatable=False)
        return Forgotten(found["rows"], found["rebuilt"])

    def rename(self, label: Any, to: Any) -> list[int]:
        """Give a class another name; returns the rows."""
        body = {"label": _plain(label), "to": _plain(to)}
        return list(self._send("POST", "/rename", body, repeatable=False))

    def counts(self) -> dict[Label, int]:
        """Rows of each known class."""
        return {one["label"]: one["rows"] for one in self._send("GET", "")["classes"]}

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

    def _bodies(self, X: Iterable[Any]) -> list[dict[str, Any]]:
        """Examples as the service takes them."""
        if self._takes is None:
            self._takes = str(self._send("GET", "/v1/service")["takes"])
        return [encoded(self._takes, x) for x in X]

    def _asked(
        self, X: Iterable[Any], top: int, new_above: float | None = None, false_alarms: float | None = None
    ) -> list[dict[str, Any]]:
        asked = {"top": top, "new_above": new_above, "false_alarms": false_alarms}
        query = {name: value for name, value in asked.items() if value is not None}
        parts = [{"examples": part} for part in in_parts(self._bodies(X))]
        return [one for part in parts for one in self._send("POST", "/predict/batch", part, query)]

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
        home = "" if path.startswith("/v1") else f"/v1/memories/{quote(self.memory, safe='')}"
        headers = {} if key is None else {"Idempotency-Key": key}
        for attempt in range(self.retries + 1):
            last, asked = attempt == self.retries, ""
            try:
                found = self._http.request(method, self.url + home + path, json=body, params=query, headers=headers)
            except httpx.TransportError as error:
                if last or not (repeatable or isinstance(error, httpx.ConnectError)):
                    told = f"the service at {self.url} cannot be reached: {str(error) or type(error).__name__}"
                    raise ServiceError(told, "unreachable") from error
            else:
                if last or found.status_code not in _BUSY:
                    return self._read(found)
                asked = found.headers.get("retry-after", "")
            pause = float(asked) if asked.isdecimal() else 0.1 * 2**attempt * random.uniform(0.5, 1.0)
            time.sleep(min(LONGEST_PAUSE, pause))

    def _read(self, found: httpx.Response) -> Any:
        if found.is_success:
            return found.json()
        try:
            error = found.json()["error"]
            raise ServiceError(error["message"], error["code"], found.status_code)
        except (ValueError, KeyError, TypeError):
            told = f"the service at {self.url} answered with status {found.status_code}"
            raise ServiceError(told, "unknown", found.status_code) from None


def encoded(takes: str, x: Any) -> dict[str, Any]:
    """An example as the service takes it: a text, or a picture in base64."""
    if takes == "text":
        if not isinstance(x, str):
            raise TypeError(f"this service takes texts, got {type(x).__name__}")
        return {"text": x}
    if isinstance(x, (str, os.PathLike)):
        content = Path(x).read_bytes()
    elif isinstance(x, (bytes, bytearray)):
        content = bytes(x)
    else:
        file = io.BytesIO()
        (x if isinstance(x, Image.Image) else read_photo(x)).save(file, "PNG")
        content = file.getvalue()
    if len(content) > MOST_CHARACTERS // 2:
        content = to_jpeg(reduced(read_photo(content), SHORTER_SIDE))
    return {"image": base64.b64encode(content).decode()}


def in_parts(bodies: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Requests with as many examples as the service takes at once."""
    part: list[dict[str, Any]] = []
    characters = 0
    for body in bodies:
        size = len(body.get("image") or body.get("text") or "")
        if part and (len(part) == AT_ONCE or characters + size > MOST_CHARACTERS):
            yield part
            part, characters = [], 0
        part.append(body)
        characters += size
    if part:
        yield part


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
