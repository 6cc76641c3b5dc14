"""Real servers for the tests of the stores (`experiments.bench.servers`). Where one cannot start, its tests are skipped, and the
reason names what to install."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from experiments.bench.milvus_server import LocalMilvus
from experiments.bench.servers import NoServer, PostgresServer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    pytest.importorskip("psycopg", reason="NOT TESTED: memories on PostgreSQL; pip install 'apl-memory[postgres]'")
    pytest.importorskip("pgvector", reason="NOT TESTED: memories on PostgreSQL; pip install 'apl-memory[postgres]'")
    try:
        server = PostgresServer()
    except NoServer as error:
        pytest.skip(f"NOT TESTED: {error}")
    yield server
    server.close()


@pytest.fixture(scope="session")
def postgres_url(postgres_server: PostgresServer) -> str:
    return postgres_server.url


@pytest.fixture(scope="session")
def milvus_server(request: pytest.FixtureRequest) -> Iterator[LocalMilvus]:
    pytest.importorskip("pymilvus", reason="NOT TESTED: an index on Milvus; pip install 'apl-memory[milvus]'")
    try:
        server = LocalMilvus(request.config.cache.mkdir("milvus-server"))
    except NoServer as error:
        pytest.skip(f"NOT TESTED: {error}")
    yield server
    server.close()
