"""What both clients share: requests out, answers in, and when to try again."""

from __future__ import annotations

import base64
import io
import os
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import numpy as np
from PIL import Image

from apl.classifier.answers import Explanation, Forgotten, Probabilities, ReaderOpinion, RecalledRow, Receipt
from apl.pictures.photographs import read_photo, reduced, to_jpeg
from apl.store import Label

try:
    import httpx
except ImportError:
    raise ImportError("the package httpx is not installed: pip install 'apl-memory[client]'") from None

AT_ONCE = 64
"""Examples in a request; the service takes no more."""
MOST_CHARACTERS = 3_000_000
"""Of pictures in a request; the service takes 4 MB."""
SHORTER_SIDE = 1024
"""Pixels that a picture too large for a request is reduced to; no encoder looks at more."""
MOST_CLASSES = 200
"""Classes of which the service names the probabilities."""
LONGEST_PAUSE = 10.0
_BUSY = (429, 502, 503, 504)
Answer = TypeVar("Answer")


class ServiceError(RuntimeError):
    """The service refused a request, or could not be reached. `status` is None in the second case."""

    def __init__(self, message: str, code: str, status: int | None = None) -> None:
        super().__init__(message)
        self.code, self.status = code, status


@dataclass(frozen=True)
class Call(Generic[Answer]):
    """A request, and how its answer is read."""

    method: str
    path: str
    read: Callable[[Any], Answer]
    body: dict[str, Any] | None = None
    key: str | None = None
    repeatable: bool = True
    """A lost answer may be asked for again: the request changes nothing, or has a key."""


class Requests:
    """Requests to one memory of a service."""

    def __init__(self, url: str, token: str | None, memory: str, retries: int, top: int) -> None:
        self.url, self.memory, self.retries, self.top = url.rstrip("/"), memory, retries, top
        self._path = f"/v1/memories/{quote(memory, safe='')}"
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._takes: str | None = None

    # --- requests ------------------------------------------------------------------------------------------------

    def _service(self) -> Call[dict[str, Any]]:
        return Call("GET", "/v1/service", dict)

    def _learn(
        self, takes: str, X: Iterable[Any], y: Iterable[Any], sources: Sequence[str | None] | None
    ) -> Iterator[Call[list[Receipt]]]:
        examples, labels = list(X), [_plain(label) for label in y]
        named = [None] * len(labels) if sources is None else list(sources)
        if not len(examples) == len(labels) == len(named):
            raise ValueError(f"{len(examples)} examples, {len(labels)} labels, {len(named)} sources")
        bodies = [
            {**_example(takes, x), "label": label, **({} if source is None else {"source": source})}
            for x, label, source in zip(examples, labels, named, strict=True)
        ]
        for part in _parts(bodies):
            yield Call("POST", f"{self._path}/learn/batch", _receipts, {"examples": part}, uuid.uuid4().hex)

    def _ask(self, takes: str, X: Iterable[Any], top: int) -> Iterator[Call[list[Probabilities]]]:
        for part in _parts([_example(takes, x) for x in X]):
            yield Call("POST", f"{self._path}/predict/batch?top={top}", _answers, {"examples": part})

    def _explain(self, takes: str, x: Any) -> Call[Explanation]:
        return Call("POST", f"{self._path}/explain?top={self.top}", _explanation, _example(takes, x))

    def _forget(self, label: Any, row: int | None, source: str | None) -> Call[Forgotten]:
        named = {"label": None if label is None else _plain(label), "row": row, "source": source}
        body = {name: value for name, value in named.items() if value is not None}
        read = lambda found: Forgotten(found["rows"], found["rebuilt"])  # noqa: E731
        return Call("POST", f"{self._path}/forget", read, body, repeatable=False)

    def _rename(self, label: Any, to: Any) -> Call[list[int]]:
        body = {"label": _plain(label), "to": _plain(to)}
        return Call("POST", f"{self._path}/rename", lambda found: list(found["rows"]), body, repeatable=False)

    def _counts(self) -> Call[dict[Label, int]]:
        return Call("GET", f"{self._path}/counts", lambda found: {c["label"]: c["rows"] for c in found["classes"]})

    # --- answers -------------------------------------------------------------------------------------------------

    def _pause(self, call: Call[Any], attempt: int, found: httpx.Response | httpx.TransportError) -> float | None:
        """Seconds until the next attempt; None if there is none."""
        if attempt >= self.retries:
            return None
        pause = min(LONGEST_PAUSE, 0.1 * 2**attempt) * random.uniform(0.5, 1.0)
        if isinstance(found, httpx.Response):
            if found.status_code not in _BUSY:
                return None
            asked = found.headers.get("retry-after", "")
            return min(LONGEST_PAUSE, float(asked)) if asked.isdecimal() else pause
        return pause if call.repeatable or isinstance(found, httpx.ConnectError) else None

    def _read(self, call: Call[Answer], found: httpx.Response | httpx.TransportError) -> Answer:
        if isinstance(found, httpx.TransportError):
            told = str(found) or type(found).__name__
            raise ServiceError(f"the service at {self.url} cannot be reached: {told}", "unreachable") from found
        if found.is_success:
            return call.read(found.json())
        try:
            error = found.json()["error"]
            raise ServiceError(error["message"], error["code"], found.status_code)
        except (ValueError, KeyError, TypeError):
            told = f"the service at {self.url} answered with status {found.status_code}"
            raise ServiceError(told, "unknown", found.status_code) from None

    def _options(self, call: Call[Any]) -> dict[str, Any]:
        key = {} if call.key is None else {"Idempotency-Key": call.key}
        return {"method": call.method, "url": call.path, "json": call.body, "headers": key}


def _example(takes: str, x: Any) -> dict[str, Any]:
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


def _plain(label: Any) -> Any:
    """numpy's integers and strings as Python's."""
    return label.item() if isinstance(label, np.generic) else label


def _parts(bodies: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
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


def _record(kind: type[Answer], found: dict[str, Any]) -> Answer:
    """A record from an answer; fields of a newer service are ignored."""
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in found.items() if name in known})


def _receipts(found: dict[str, Any]) -> list[Receipt]:
    return [_record(Receipt, one | {"evicted": tuple(one["evicted"])}) for one in found["receipts"]]


def _probabilities(found: dict[str, Any]) -> Probabilities:
    known = {share["label"]: share["probability"] for share in found["probabilities"]}
    return Probabilities(known, found["probability_new"])


def _answers(found: dict[str, Any]) -> list[Probabilities]:
    return [_probabilities(one) for one in found["answers"]]


def _explanation(found: dict[str, Any]) -> Explanation:
    neighbours = tuple(_record(RecalledRow, one) for one in found["neighbours"])
    readers = tuple(_record(ReaderOpinion, one) for one in found["readers"])
    made = {"probabilities": _probabilities(found), "neighbours": neighbours, "readers": readers}
    return _record(Explanation, found | made)


def best(found: Probabilities, new_above: float | None) -> Label | None:
    if new_above is not None and found.new_class > new_above:
        return None
    return next(iter(found), None)


def known_best(found: Probabilities) -> Label:
    if not found:
        raise ValueError("no class is known yet: learn an example first")
    first: Label = next(iter(found))
    return first


def table(classes: list[Label], answers: list[Probabilities]) -> np.ndarray:
    """One row per answer, one column per class."""
    if len(classes) > MOST_CLASSES:
        raise ValueError(f"the service names {MOST_CLASSES} classes at most, this memory has {len(classes)}")
    return np.array([[found.get(label, 0.0) for label in classes] for found in answers]).reshape(-1, len(classes))


def in_order(labels: Iterable[Label]) -> list[Label]:
    """Integers before text."""
    return sorted(labels, key=lambda label: (isinstance(label, str), label))


def label_array(labels: list[Label]) -> np.ndarray:
    return np.array(labels, dtype=object if len({type(label) for label in labels}) > 1 else None)
