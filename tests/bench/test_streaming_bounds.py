"""The documents' own bounds on the streaming topology. Run by ``make test-bounds``."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.services.topics import Topics
from tests.streaming.programs import Programs, line
from tests.streaming.system import TTL
from tests.streaming.test_faults import LEADS

pytestmark = [pytest.mark.bench, pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.mark.req("sch:LEADER", "sch:PARTITION")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "paused"])
async def test_a_standby_leads_within_the_time_to_live_and_a_second(
    tmp_path: Path, redis_url: str, kafka: Topics, end: signal.Signals
) -> None:
    run = Programs(tmp_path, redis_url, kafka)
    try:
        leader = run.server("scheduler")
        await line(leader, LEADS)
        standby = run.server("scheduler")
        await line(standby, "ready")
        gone = time.monotonic()
        leader.signal(end)
        await line(standby, LEADS)
        assert time.monotonic() - gone <= TTL + 1.0
        if end == signal.SIGSTOP:
            leader.signal(signal.SIGCONT)
    finally:
        run.close()
