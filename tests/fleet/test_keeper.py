"""A keeper restarts a unit that ends, shows one that fails, and reports one that never starts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from jobqueue.core.errors import NotFound, Unavailable
from jobqueue.fleet.keeper import Finding, Keeper, Restarts, Unit, UnitHealth
from tests import patience


class Fake(Unit):
    """A unit whose fate the test decides."""

    name, role, stage, address = "fake", "server", 1, "127.0.0.1:1"
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
        self.seen: list[tuple[UnitHealth, str]] = []
        self.lines: list[str] = []
        self._news = asyncio.Event()
        policy = Restarts(**{"first_wait": 0.01, **restarts})  # type: ignore[arg-type]
        self.keeper = Keeper(self.unit, policy, self._changed)

    def _changed(self, line: str) -> None:
        if line:
            self.lines.append(line)
        row = self.keeper.row()
        self.seen.append((row.health, row.detail))
        self._news.set()

    async def until(self, health: UnitHealth) -> str:
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
        assert await made.until(UnitHealth.FAILING) == "store: gone"
        made.unit.found = Finding(True)
        await made.until(UnitHealth.OK)
    assert [health for health, _ in made.seen if health is not UnitHealth.STARTING] == [
        UnitHealth.OK,
        UnitHealth.FAILING,
        UnitHealth.OK,
        UnitHealth.STOPPING,
        UnitHealth.STOPPED,
    ]


async def test_what_people_should_know_of_a_unit_that_is_well_is_told():
    async with rig() as made:
        made.unit.found = Finding(True, "two roles were closed")
        await made.keeper.ready(5)
        assert made.lines[-1] == "fake ok at 127.0.0.1:1: two roles were closed"


async def test_what_ends_before_it_was_ready_is_not_started_again():
    async with rig() as made:
        made.unit.found = Finding(False, "not yet")
        await made.until(UnitHealth.STARTING)
        made.unit.how = "exit status 2"
        with pytest.raises(Unavailable, match="fake did not start: exit status 2"):
            await made.keeper.ready(5)
        assert made.keeper.health is UnitHealth.GIVEN_UP
        assert made.unit.launches == 1


async def test_a_kill_ends_a_start_that_is_under_way():
    class Slow(Fake):
        def __init__(self) -> None:
            super().__init__()
            self.prepared = asyncio.get_running_loop().create_future()

        async def launch(self) -> None:
            await asyncio.shield(self.prepared)
            await super().launch()

    unit = Slow()
    keeper = Keeper(unit, Restarts(), lambda line: None)
    keeper.start()
    while keeper.health is not UnitHealth.STARTING:
        await asyncio.sleep(0)
    unit.prepared.set_result(None)  # its start goes on at the next turn of the loop
    keeper.kill()
    await keeper.stop()
    assert unit.launches == 0


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
            await made.until(UnitHealth.OK)
            made.unit.how = "killed by SIGKILL"
            await made.until(
                UnitHealth.RESTARTING if made.unit.launches < 5 else UnitHealth.GIVEN_UP
            )
        waits = [detail for health, detail in made.seen if health is UnitHealth.RESTARTING]
        assert waits == [
            f"killed by SIGKILL; again in {wait} s" for wait in ("0.01", "0.02", "0.03", "0.03")
        ]
        assert made.keeper.row().restarts == 4
        assert made.keeper.row().detail == "killed by SIGKILL"


async def test_a_calm_run_begins_a_new_row():
    async with rig(in_a_row=1, calm=0.0) as made:
        await made.keeper.ready(5)
        for launches in (1, 2, 3):
            await made.until(UnitHealth.OK)
            assert made.unit.launches == launches
            await asyncio.sleep(0.15)  # the keeper looks ten times a second
            made.unit.how = "ended"
            await made.until(UnitHealth.RESTARTING)


async def test_a_service_that_cannot_be_started_again_is_tried_again():
    async with rig(in_a_row=3) as made:
        await made.keeper.ready(5)
        made.unit.refusal = Unavailable("port taken")
        made.unit.how = "ended"
        await made.until(UnitHealth.GIVEN_UP)
        assert made.unit.launches == 4
        assert made.keeper.row().detail == "port taken"


async def test_no_restart():
    async with rig(allowed=False) as made:
        await made.keeper.ready(5)
        made.unit.how = "ended"
        await made.until(UnitHealth.GIVEN_UP)
        assert made.unit.launches == 1


async def test_lines_are_for_changes_only():
    async with rig() as made:
        await made.keeper.ready(5)
        await asyncio.sleep(0.15)  # the keeper looks ten times a second
        assert made.lines == ["fake starting", "fake ok at 127.0.0.1:1"]
