"""Kafka equals ``job_event`` whatever happens: real servers, a worker, PostgreSQL and Kafka.

The same at full size: ``make bench-streaming ARGS='--only scenarios'``.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from bench.streaming import scenarios
from bench.streaming.stage import Stage
from jobqueue.core.lifecycle import State
from tests.services.topics import Topics as OwnTopics

pytestmark = [
    *(pytest.mark.integration, pytest.mark.faults, pytest.mark.slow),
    pytest.mark.timeout(180),
]
JOBS = 300


def silent(_: str) -> None:
    return


@pytest.fixture
def stage(kafka: OwnTopics, postgres_dsn: str, tmp_path: Path) -> Stage:
    return Stage(postgres_dsn, kafka.bootstrap, kafka.prefix, tmp_path)


def assert_complete(outcome: scenarios.Outcome, jobs: int = JOBS) -> None:
    """Whatever the variant: every job is there with its end, and its way to it."""
    compared = outcome.comparison
    assert compared.jobs == jobs
    assert set(compared.ends) == {State.DONE, State.DEAD_LETTERED}
    assert compared.events > 3 * jobs


@pytest.mark.req("jq:FR-034", "jq:FR-036", "jq:FR-037")
async def test_the_stream_equals_the_table_and_keeps_each_jobs_order(stage: Stage):
    assert_complete(await scenarios.plain(stage, JOBS, silent))


@pytest.mark.req("jq:FR-036", "jq:FR-038")
async def test_the_server_that_publishes_is_killed_at_each_failpoint(stage: Stage):
    assert_complete(await scenarios.killed(stage, JOBS, silent))


@pytest.mark.req("jq:FR-036")
async def test_transactions_that_commit_in_reverse_order(stage: Stage):
    assert_complete(await scenarios.reverse(stage, JOBS, silent))


@pytest.mark.req("jq:FR-036")
async def test_a_transaction_that_stays_open_holds_up_nothing_but_its_own(stage: Stage):
    """The bound of one second is for every event; a busy machine may make a few wait."""
    outcome = await scenarios.left_open(stage, JOBS, silent, seconds=3.0)
    assert_complete(outcome, JOBS + 1)
    assert statistics.median(outcome.delays) < 1.0
