"""Kafka equals ``job_event`` whatever happens: real servers, a worker, PostgreSQL and Kafka.

The same at full size: ``jq-bench run streaming``.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import httpx
import pytest

from jobqueue.bench.ground import Ground
from jobqueue.bench.scenarios import stream_faults
from jobqueue.bench.scenarios.stream_faults import FaultStage
from jobqueue.core.lifecycle import State
from tests import patience
from tests.services.plugin import OwnKafka
from tests.services.topics import Topics as OwnTopics

pytestmark = [
    *(pytest.mark.integration, pytest.mark.faults, pytest.mark.slow),
    pytest.mark.timeout(180),
]
JOBS = 300


def silent(_: str) -> None:
    return


@pytest.fixture
def stage(kafka: OwnTopics, postgres_dsn: str, tmp_path: Path) -> FaultStage:
    return FaultStage(postgres_dsn, kafka.bootstrap, kafka.prefix, tmp_path)


def assert_complete(outcome: stream_faults.ScenarioResult, jobs: int = JOBS) -> None:
    """Whatever the variant: every job is there with its end, and its way to it."""
    compared = outcome.comparison
    assert compared.jobs == jobs
    assert set(compared.ends) == {State.DONE, State.DEAD_LETTERED}
    assert compared.events > 3 * jobs


@pytest.mark.req("jq:FR-034", "jq:FR-036", "jq:FR-037")
async def test_the_stream_equals_the_table_and_keeps_each_jobs_order(stage: FaultStage):
    assert_complete(await stream_faults.plain(stage, JOBS, silent))


@pytest.mark.req("jq:FR-036", "jq:FR-038")
async def test_kafka_is_away_for_a_while(own_kafka: OwnKafka, postgres_dsn: str, tmp_path: Path):
    """Jobs go on, an operator sees why and how far the stream is behind, and it catches up."""
    broker = await asyncio.to_thread(own_kafka)
    stage = FaultStage(postgres_dsn, broker.bootstrap, "t-", tmp_path)
    told: list[str] = []

    async def look(servers: Ground) -> None:
        told.append(await stands_still(servers))
        async with httpx.AsyncClient(base_url=servers.http[0], trust_env=False) as client:
            metrics = (await client.get("/metrics")).text
        (errors,) = re.findall(
            r'^jq_kafka_publish_errors_total\{topic="t-jobs"\} (\S+)$', metrics, re.MULTILINE
        )
        assert float(errors) > 0

    assert_complete(await stream_faults.outage(stage, JOBS, silent, broker, 2.0, look))
    (status,) = told
    assert re.search(r"^Kafka: .*jobs go on, .*\d+ events behind, the oldest for ", status, re.M)


async def stands_still(servers: Ground) -> str:
    """What jq-ctl status says once it does."""
    async with patience.timeout(60.0):
        while True:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "jobqueue.cli.ctl", "--server", servers.grpc[0], "status"),
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdout=asyncio.subprocess.PIPE,
            )
            out, _ = await process.communicate()
            assert process.returncode == 0  # the system does its work
            if b"jobs go on" in out:
                return out.decode()


@pytest.mark.req("jq:FR-036", "jq:FR-038")
async def test_the_server_that_publishes_is_killed_at_each_failpoint(stage: FaultStage):
    assert_complete(await stream_faults.killed(stage, JOBS, silent))


@pytest.mark.req("jq:FR-036")
async def test_transactions_that_commit_in_reverse_order(stage: FaultStage):
    assert_complete(await stream_faults.reverse(stage, JOBS, silent))


@pytest.mark.req("jq:FR-036")
async def test_a_transaction_that_stays_open_holds_up_nothing_but_its_own(stage: FaultStage):
    """Everything else was published before it ended. How soon: ``jq-bench run streaming``."""
    outcome = await stream_faults.left_open(stage, JOBS // 3, silent, seconds=3.0)
    assert outcome.comparison.jobs > JOBS // 3  # as many as this machine could take
    assert_complete(outcome, outcome.comparison.jobs)
    assert len(outcome.delays) >= outcome.comparison.jobs - 1
