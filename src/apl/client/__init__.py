"""A service (`apl serve`) used like a classifier: `Client` and `AsyncClient` have the verbs of `OnlineClassifier`.

Each request that learns carries an idempotency key, so that one sent twice is learnt once. Requests are sent again while the
service is busy, and when the connection fails.
"""

from apl.client.asynchronous import AsyncClient
from apl.client.client import Client, ServiceError

__all__ = ["AsyncClient", "Client", "ServiceError"]
