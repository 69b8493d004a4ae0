"""The documents' own bounds on the streaming topology. Run by ``make test-bounds``."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.bench.bounds import kept
from tests.services.topics import Topics
from tests.streaming.programs import Programs, line
from tests.streaming.system import TTL
from tests.streaming.test_faults import LEADS

pytestmark = [pytest.mark.bench, pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.mark.req("sch:LEADER", "sch:PARTITION")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "paused"])
async def test_a_standby_leads_within_the_time_to_live_and_a_second(
    tmp_path: Path, redis_url: str, kafka: Topics, end: signal.Signals
) -> None:
    async def takeover() -> float:
        run = Programs(tmp_path, redis_url, kafka)
        try:
            leader = run.server("scheduler")
            await line(leader, LEADS)
            standby = run.server("scheduler")
            await line(standby, "ready")
            gone = time.monotonic()
            leader.signal(end)
            await line(standby, LEADS)
            taken = time.monotonic() - gone
            if end == signal.SIGSTOP:
                leader.signal(signal.SIGCONT)
        finally:
            run.close()
        return taken

    await kept(takeover, lambda seconds: seconds <= TTL + 1.0)
