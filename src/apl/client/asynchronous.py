"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from apl.classifier.answers import Explanation, Forgotten, Probabilities, Receipt
from apl.client.calls import MOST_CLASSES, Answer, Call, Requests, best, httpx, in_order, known_best, label_array, table
from apl.store import Label


class AsyncClient(Requests):
    """`Client` for asyncio: the same verbs, awaited; `classes()` instead of `classes_`.

    >>> async def ask(text):
    ...     async with AsyncClient(service_url, memory="words") as client:
    ...         await client.learn_one("my card has not come", "card")
    ...         return await client.predict_one(text)
    >>> asyncio.run(ask("where is my card?"))
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
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(url, token, memory, retries, top)
        self._http = httpx.AsyncClient(base_url=self.url, headers=self._headers, timeout=timeout, transport=transport)

    async def learn_one(self, x: Any, y: Any, *, source: str | None = None) -> Receipt:
        return (await self.learn_many([x], [y], sources=[source]))[0]

    async def learn_many(
        self, X: Iterable[Any], y: Iterable[Any], *, sources: Sequence[str | None] | None = None
    ) -> list[Receipt]:
        return [
            receipt for call in self._learn(await self._kind(), X, y, sources) for receipt in await self._send(call)
        ]

    async def predict_one(self, x: Any, *, new_above: float | None = None) -> Label | None:
        return best(await self.predict_proba_one(x), new_above)

    async def predict_proba_one(self, x: Any) -> Probabilities:
        return (await self._asked([x], self.top))[0]

    async def predict(self, X: Iterable[Any]) -> np.ndarray:
        return label_array([known_best(found) for found in await self._asked(X, 1)])

    async def predict_new(self, X: Iterable[Any]) -> np.ndarray:
        return np.array([found.new_class for found in await self._asked(X, 1)])

    async def predict_proba(self, X: Iterable[Any]) -> np.ndarray:
        return table((await self.classes()).tolist(), await self._asked(X, MOST_CLASSES))

    async def explain(self, x: Any) -> Explanation:
        return await self._send(self._explain(await self._kind(), x))

    async def forget(self, *, label: Any = None, row: int | None = None, source: str | None = None) -> Forgotten:
        return await self._send(self._forget(label, row, source))

    async def rename(self, label: Any, to: Any) -> list[int]:
        return await self._send(self._rename(label, to))

    async def counts(self) -> dict[Label, int]:
        return await self._send(self._counts())

    async def classes(self) -> np.ndarray:
        return label_array(in_order(await self.counts()))

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _kind(self) -> str:
        if self._takes is None:
            self._takes = str((await self._send(self._service()))["takes"])
        return self._takes

    async def _asked(self, X: Iterable[Any], top: int) -> list[Probabilities]:
        return [answer for call in self._ask(await self._kind(), X, top) for answer in await self._send(call)]

    async def _send(self, call: Call[Answer]) -> Answer:
        attempt = 0
        while True:
            found: httpx.Response | httpx.TransportError
            try:
                found = await self._http.request(**self._options(call))
            except httpx.TransportError as error:
                found = error
            pause = self._pause(call, attempt, found)
            if pause is None:
                return self._read(call, found)
            await asyncio.sleep(pause)
            attempt += 1
