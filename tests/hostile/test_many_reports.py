"""One worker's reports neither fail nor delay those of other workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import MAX_SEQ, Refusal, Transition, WorkerInfo
from jobqueue.core.lifecycle import Move
from jobqueue.core.queue import Queue
from jobqueue.engine.engine import Engine
from jobqueue.stores.postgres import connections
from jobqueue.stores.postgres.leases import WINDOW, new_base
from jobqueue.stores.postgres.store import PostgresStore
from tests import patience
from tests.api.grpc.inbox import RecordingInbox
from tests.stores.driver import worker

MANY = 300
FEW_STATEMENTS = 40  # of one call, however many reports it has


def info(worker_id: str) -> WorkerInfo:
    return WorkerInfo(
        id=worker_id, incarnation=1, hostname="h", pid=1, concurrency=4, queues=("default",)
    )


@pytest.mark.parametrize("seq", [-(2**63), -1, 0, MAX_SEQ + 1, 2**63 - 1])
@pytest.mark.parametrize("move", [Move.START, Move.SUCCEED, Move.FAIL])
async def test_a_number_that_no_job_has_is_refused(engine: Engine, seq: int, move: Move):
    """Such a number must not fail the reports of other workers in the same batch."""
    link = await engine.connect(info("w"), RecordingInbox())
    with pytest.raises(InvalidArgument, match="seq"):
        await link.report([Transition(seq, move, lease=1)])


@pytest_asyncio.fixture
async def postgres(postgres_dsn: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_dsn, patience=patience.stretched(5.0), few=1)
    await store.open()
    await store.queues.create(Queue(name="q"))
    await store.workers.register(worker())
    yield store
    await store.close()


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that are sent to PostgreSQL."""
    sent: list[str] = []
    for name in ("execute", "fetch", "fetchrow", "fetchval"):
        inner = getattr(connections._Asked, name)

        def call(self: Any, query: str, *args: Any, inner: Any = inner, **options: Any) -> Any:
            sent.append(query)
            return inner(self, query, *args, **options)

        monkeypatch.setattr(connections._Asked, name, call)
    return sent


def same_job(n: int) -> Transition:
    return Transition.failed(5, n + 1, "again")


def same_base(n: int) -> Transition:
    # The lease of a job in a held row leads to the row, which need not exist.
    seq = WINDOW * (n + 1)
    return Transition.succeeded(seq, BASE + seq, b"r", 0.1)


BASE = new_base()


@pytest.mark.integration
@pytest.mark.parametrize("make", [same_job, same_base])
async def test_many_reports_take_few_statements(
    postgres: PostgresStore, statements: list[str], make: Callable[[int], Transition]
):
    """Before, it took some for each of them, one after the other, and others waited meanwhile."""
    await postgres.jobs.apply([make(0)])  # opens the connection
    statements.clear()
    outcomes = (await postgres.jobs.apply([make(n) for n in range(MANY)])).outcomes
    assert {outcome.refusal for outcome in outcomes} == {Refusal.NO_SUCH_JOB}
    assert len(statements) < FEW_STATEMENTS
