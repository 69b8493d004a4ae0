"""What a keeper does with a unit that ends, fails or never starts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jobqueue.core.errors import NotFound, Unavailable
from jobqueue.topology.layouts.layout import Probe
from jobqueue.topology.supervisor.changes import Changes
from jobqueue.topology.supervisor.keeper import Health, Keeper, Restarts
from jobqueue.topology.supervisor.probing import Finding
from tests import patience


class Fake:
    """A unit whose fate the test decides."""

    name, role, stage, address = "fake", "server", 1, "127.0.0.1:1"
    log: Path | None = None
    probe: Probe | None = None
    pid: int | None = None
    stop_signal = 15

    def __init__(self) -> None:
        self.launches = 0
        self.found = Finding(True)
        self.how: str | None = None
        self.refusal: Exception | None = None
        self.stopped = False

    async def launch(self) -> None:
        self.launches += 1
        if self.refusal is not None:
            raise self.refusal
        self.how = None

    def ended(self) -> str | None:
        return self.how

    async def health(self) -> Finding:
        return self.found

    async def stop(self) -> None:
        self.stopped = True

    def kill(self) -> None:
        self.stopped = True


class Rig:
    """A keeper that tells the test of every change."""

    def __init__(self, **restarts: float) -> None:
        self.unit = Fake()
        self.seen: list[tuple[Health, str]] = []
        self._news = asyncio.Event()
        policy = Restarts(**{"first_wait": 0.01, **restarts})  # type: ignore[arg-type]
        self.keeper = Keeper(self.unit, policy, self._changed)

    def _changed(self) -> None:
        row = self.keeper.row()
        self.seen.append((row.health, row.detail))
        self._news.set()

    async def until(self, health: Health) -> str:
        async with patience.timeout(10):
            while self.keeper.health is not health:
                self._news.clear()
                await self._news.wait()
        return self.keeper.row().detail


@contextlib.asynccontextmanager
async def rig(**restarts: float) -> AsyncIterator[Rig]:
    made = Rig(**restarts)
    made.keeper.start()
    yield made
    await made.keeper.stop()
    assert made.unit.stopped


async def test_it_is_ready_when_it_answers():
    async with rig() as made:
        await made.keeper.ready(5)
        made.unit.found = Finding(False, "store: gone")
        assert await made.until(Health.FAILING) == "store: gone"
        made.unit.found = Finding(True)
        await made.until(Health.OK)
    assert [health for health, _ in made.seen if health is not Health.STARTING] == [
        Health.OK,
        Health.FAILING,
        Health.OK,
        Health.STOPPING,
        Health.STOPPED,
    ]


async def test_what_people_should_know_of_a_unit_that_is_well_is_told():
    async with rig() as made:
        made.unit.found = Finding(True, "two roles were closed")
        await made.keeper.ready(5)
        (line,) = Changes().lines([made.keeper.row()])
        assert line == "fake ok at 127.0.0.1:1: two roles were closed"


async def test_what_ends_before_it_was_ready_is_not_started_again():
    async with rig() as made:
        made.unit.found = Finding(False, "not yet")
        await made.until(Health.STARTING)
        made.unit.how = "exit status 2"
        with pytest.raises(Unavailable, match="fake did not start: exit status 2"):
            await made.keeper.ready(5)
        assert made.keeper.health is Health.GIVEN_UP
        assert made.unit.launches == 1


async def test_a_refusal_keeps_its_kind():
    made = Rig()
    made.unit.refusal = NotFound("Redis is not installed")
    made.keeper.start()
    with pytest.raises(NotFound, match="not installed"):
        await made.keeper.ready(5)
    await made.keeper.stop()


async def test_what_does_not_answer_in_time_is_told_with_its_reason():
    async with rig() as made:
        made.unit.found = Finding(False, "no answer: Connection refused")
        with pytest.raises(Unavailable, match=r"not ready after 0.3 s: no answer: Connection"):
            await made.keeper.ready(0.3)


async def test_it_waits_longer_from_time_to_time_and_then_gives_up():
    async with rig(first_wait=0.01, longest_wait=0.03, in_a_row=4) as made:
        await made.keeper.ready(5)
        for _ in range(5):
            await made.until(Health.OK)
            made.unit.how = "killed by SIGKILL"
            await made.until(Health.RESTARTING if made.unit.launches < 5 else Health.GIVEN_UP)
        waits = [detail for health, detail in made.seen if health is Health.RESTARTING]
        assert waits == [
            f"killed by SIGKILL; again in {wait} s" for wait in ("0.01", "0.02", "0.03", "0.03")
        ]
        assert made.keeper.row().restarts == 4
        assert made.keeper.row().detail == "killed by SIGKILL"


async def test_a_calm_run_begins_a_new_row():
    async with rig(in_a_row=1, calm=0.0) as made:
        await made.keeper.ready(5)
        for launches in (1, 2, 3):
            await made.until(Health.OK)
            assert made.unit.launches == launches
            await asyncio.sleep(0.15)  # the keeper looks ten times a second
            made.unit.how = "ended"
            await made.until(Health.RESTARTING)


async def test_a_service_that_cannot_be_started_again_is_tried_again():
    async with rig(in_a_row=3) as made:
        await made.keeper.ready(5)
        made.unit.refusal = Unavailable("port taken")
        made.unit.how = "ended"
        await made.until(Health.GIVEN_UP)
        assert made.unit.launches == 4
        assert made.keeper.row().detail == "port taken"


async def test_no_restart():
    async with rig(allowed=False) as made:
        await made.keeper.ready(5)
        made.unit.how = "ended"
        await made.until(Health.GIVEN_UP)
        assert made.unit.launches == 1


async def test_lines_are_for_changes_only():
    async with rig() as made:
        changes = Changes()
        await made.keeper.ready(5)
        assert changes.lines([made.keeper.row()]) == ["fake ok at 127.0.0.1:1"]
        assert changes.lines([made.keeper.row()]) == []
