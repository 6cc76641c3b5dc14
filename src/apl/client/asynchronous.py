"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from apl.client.client import Client

P = ParamSpec("P")
Answer = TypeVar("Answer")


def _awaited(
    verb: Callable[Concatenate[Client, P], Answer],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, Answer]]:
    """The same verb in a thread: preparing a picture takes time as well as waiting for the answer."""

    @wraps(verb)
    async def called(self: AsyncClient, /, *args: P.args, **named: P.kwargs) -> Answer:
        return await asyncio.to_thread(partial(verb, self._client, *args, **named))

    return called


class AsyncClient:
    """`Client` for asyncio: the same parameters and verbs, awaited; `classes()` instead of `classes_`.

    Examples:
        >>> async def ask(text):
        ...     async with AsyncClient(service_url, memory="words") as client:
        ...         await client.learn_one("my card has not come", "card")
        ...         return await client.predict_one(text)
        >>> asyncio.run(ask("where is my card?"))
        'card'
    """

    def __init__(self, url: str, token: str | None = None, **parameters: Any) -> None:
        self._client = Client(url, token, **parameters)

    learn_one = _awaited(Client.learn_one)
    learn_many = _awaited(Client.learn_many)
    predict_one = _awaited(Client.predict_one)
    predict_proba_one = _awaited(Client.predict_proba_one)
    predict_set = _awaited(Client.predict_set)
    predict = _awaited(Client.predict)
    predict_new = _awaited(Client.predict_new)
    predict_proba = _awaited(Client.predict_proba)
    explain = _awaited(Client.explain)
    suggest = _awaited(Client.suggest)
    review = _awaited(Client.review)
    relabel = _awaited(Client.relabel)
    drift = _awaited(Client.drift)
    forget = _awaited(Client.forget)
    rename = _awaited(Client.rename)
    counts = _awaited(Client.counts)
    close = _awaited(Client.close)

    @_awaited
    def classes(client: Client) -> np.ndarray:
        """The known labels, sorted (integers before text)."""
        return client.classes_

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
