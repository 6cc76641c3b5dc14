"""The client that waits for each answer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from apl.classifier.answers import Explanation, Forgotten, Probabilities, Receipt
from apl.client.calls import MOST_CLASSES, Answer, Call, Requests, best, httpx, in_order, known_best, label_array, table
from apl.store import Label


class Client(Requests):
    """A memory of a running service, with the verbs of `OnlineClassifier`.

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
        super().__init__(url, token, memory, retries, top)
        self._http = httpx.Client(base_url=self.url, headers=self._headers, timeout=timeout, transport=transport)

    def learn_one(self, x: Any, y: Any, *, source: str | None = None) -> Receipt:
        """Predict, then learn the label. It lasts when this returns."""
        return self.learn_many([x], [y], sources=[source])[0]

    def learn_many(
        self, X: Iterable[Any], y: Iterable[Any], *, sources: Sequence[str | None] | None = None
    ) -> list[Receipt]:
        """Learn a batch; receipts in the order given."""
        return [receipt for call in self._learn(self._kind(), X, y, sources) for receipt in self._send(call)]

    def predict_one(self, x: Any, *, new_above: float | None = None) -> Label | None:
        """The most probable known class. None if nothing is known, or if P(new class) exceeds `new_above`."""
        return best(self.predict_proba_one(x), new_above)

    def predict_proba_one(self, x: Any) -> Probabilities:
        """The `top` most probable classes, largest first, and the probability of a new class in `.new_class`."""
        return self._asked([x], self.top)[0]

    def predict(self, X: Iterable[Any]) -> np.ndarray:
        """The most probable known class of each example."""
        return label_array([known_best(found) for found in self._asked(X, 1)])

    def predict_new(self, X: Iterable[Any]) -> np.ndarray:
        """The probability of each example to belong to no known class."""
        return np.array([found.new_class for found in self._asked(X, 1)])

    def predict_proba(self, X: Iterable[Any]) -> np.ndarray:
        """Probabilities of the known classes, in the order of `classes_`."""
        return table(self.classes_.tolist(), self._asked(X, MOST_CLASSES))

    def explain(self, x: Any) -> Explanation:
        """The rows and readers behind an answer."""
        return self._send(self._explain(self._kind(), x))

    def forget(self, *, label: Any = None, row: int | None = None, source: str | None = None) -> Forgotten:
        """Forget a class, a row, or everything from a source."""
        return self._send(self._forget(label, row, source))

    def rename(self, label: Any, to: Any) -> list[int]:
        """Give a class another name; returns the rows."""
        return self._send(self._rename(label, to))

    def counts(self) -> dict[Label, int]:
        """Rows of each known class."""
        return self._send(self._counts())

    @property
    def classes_(self) -> np.ndarray:
        """The known labels, sorted (integers before text)."""
        return label_array(in_order(self.counts()))

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

    def _kind(self) -> str:
        if self._takes is None:
            self._takes = str(self._send(self._service())["takes"])
        return self._takes

    def _asked(self, X: Iterable[Any], top: int) -> list[Probabilities]:
        return [answer for call in self._ask(self._kind(), X, top) for answer in self._send(call)]

    def _send(self, call: Call[Answer]) -> Answer:
        attempt = 0
        while True:
            found: httpx.Response | httpx.TransportError
            try:
                found = self._http.request(**self._options(call))
            except httpx.TransportError as error:
                found = error
            pause = self._pause(call, attempt, found)
            if pause is None:
                return self._read(call, found)
            time.sleep(pause)
            attempt += 1
