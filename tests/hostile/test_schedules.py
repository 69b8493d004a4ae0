"""Roles for schedules, and bad messages that must have no effect."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack

import pytest

from jobqueue.core.errors import InvalidArgument, PermissionDenied
from jobqueue.core.job import JobSpec
from jobqueue.core.schedule import MAX_DECLARED, ScheduleSpec
from tests.hostile.known_callers import over_grpc, over_http, serving

SPEC = ScheduleSpec(name="s", job=JobSpec(payload=b"{}"), cron="@yearly")


async def test_readers_read_operators_change_and_workers_declare() -> None:
    async with serving() as server, AsyncExitStack() as stack:
        remotes = {
            name: await stack.enter_async_context(over_grpc(server, name))
            for name in ("web", "ops", "night", "hands")
        }
        for name in ("web", "night", "hands"):
            with pytest.raises(PermissionDenied):
                await remotes[name].create_schedule(SPEC)
        await remotes["ops"].create_schedule(SPEC)
        for name in ("web", "ops", "night"):
            assert (await remotes[name].get_schedule("s")).name == "s"
            assert len((await remotes[name].list_schedules()).schedules) == 1
        with pytest.raises(PermissionDenied):
            await remotes["hands"].get_schedule("s")
        for change in ("pause_schedule", "resume_schedule", "run_schedule", "remove_schedule"):
            with pytest.raises(PermissionDenied):
                await getattr(remotes["web"], change)("s")
        own = ScheduleSpec(name="own", job=JobSpec(payload=b"{}"), cron="@yearly")
        for name in ("web", "ops"):
            with pytest.raises(PermissionDenied):
                await remotes[name].declare_schedules([own])
        with pytest.raises(PermissionDenied, match="needs the role client, too"):
            await remotes["hands"].declare_schedules([own])  # it may not submit jobs either
        assert await remotes["night"].declare_schedules([own]) == [None]
        async with over_http(server, "web") as client:
            assert (await client.get("/schedules/own")).json()["source"] == "code"
            assert (await client.post("/schedules/own/run")).status_code == 403
            assert (await client.delete("/schedules/own")).status_code == 403


async def test_a_worker_cannot_declare_without_end() -> None:
    many = [ScheduleSpec(name=f"{n}", job=JobSpec(payload=b"1"), every=60) for n in range(1_001)]
    assert len(many) > MAX_DECLARED
    async with serving() as server, over_grpc(server, "night") as night:
        with pytest.raises(InvalidArgument, match="schedules"):
            await night.declare_schedules(many)
        assert (await night.list_schedules()).schedules == []


async def test_changes_of_schedules_are_in_the_audit_log(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as server, AsyncExitStack() as stack:
        ops = await stack.enter_async_context(over_grpc(server, "ops"))
        night = await stack.enter_async_context(over_grpc(server, "night"))
        with caplog.at_level(logging.INFO, "jobqueue.audit"):
            await ops.create_schedule(SPEC)
            await ops.pause_schedule("s")
            await night.declare_schedules([ScheduleSpec(name="a", job=SPEC.job, every=60)])
            async with over_http(server, "ops") as client:
                body = {"name": "h", "every": 60, "job": {"payload": 1}}
                assert (await client.post("/schedules", json=body)).status_code == 201
                await client.delete("/schedules/h")
    told = [
        (one.caller, one.action, one.object, one.outcome)  # type: ignore[attr-defined]
        for one in caplog.records
        if one.name == "jobqueue.audit"
    ]
    assert told == [
        ("ops", "schedule.create", "s", "OK"),
        ("ops", "schedule.pause", "s", "OK"),
        ("night", "schedule.declare", "a", "OK"),
        ("ops", "schedule.create", "h", "OK"),
        ("ops", "schedule.remove", "h", "OK"),
    ]
