"""Implement ScheduleService, the gRPC service for schedules."""

from __future__ import annotations

from typing import Protocol

from jobqueue.access.callers import Role, current_caller
from jobqueue.api.grpc.calls import Calls, unary
from jobqueue.api.grpc.codec import schedule_spec_from_pb
from jobqueue.api.grpc.errors import error_to_pb
from jobqueue.core.api import AttendanceApi, ScheduleApi
from jobqueue.core.errors import InvalidArgument, JobQueueError, PermissionDenied
from jobqueue.core.schedule import MAX_DECLARED
from jobqueue.core.waiting import JOB, in_turns
from jobqueue.pb.jq.v1 import schedules_pb2 as pb
from jobqueue.pb.jq.v1 import schedules_pb2_grpc as rpc
from jobqueue.wire import schedule_to_pb

DEFAULT_PAGE = 100


class ScheduleBackend(ScheduleApi, AttendanceApi, Protocol):
    """Combines the calls for schedules that operators and workers make."""


class ScheduleServicer(rpc.ScheduleServiceServicer):
    """Implements jq.v1.ScheduleService; the proto file documents its methods."""

    def __init__(self, backend: ScheduleBackend, calls: Calls) -> None:
        self._backend = backend
        self.calls = calls

    @unary
    async def CreateSchedule(self, request: pb.CreateScheduleRequest) -> pb.CreateScheduleResponse:
        if not request.HasField("schedule"):
            raise InvalidArgument("schedule", "is missing")
        made = await self._backend.create_schedule(schedule_spec_from_pb(request.schedule))
        return pb.CreateScheduleResponse(schedule=schedule_to_pb(made))

    @unary
    async def GetSchedule(self, request: pb.GetScheduleRequest) -> pb.GetScheduleResponse:
        found = await self._backend.get_schedule(request.name)
        return pb.GetScheduleResponse(schedule=schedule_to_pb(found))

    @unary
    async def ListSchedules(self, request: pb.ListSchedulesRequest) -> pb.ListSchedulesResponse:
        limit = request.page_size if request.HasField("page_size") else DEFAULT_PAGE
        page = await self._backend.list_schedules(limit, request.page_token)
        shown = await in_turns(schedule_to_pb, page.schedules, JOB)
        return pb.ListSchedulesResponse(schedules=shown, next_page_token=page.next_page_token)

    @unary
    async def PauseSchedule(self, request: pb.PauseScheduleRequest) -> pb.PauseScheduleResponse:
        found = await self._backend.pause_schedule(request.name)
        return pb.PauseScheduleResponse(schedule=schedule_to_pb(found))

    @unary
    async def ResumeSchedule(self, request: pb.ResumeScheduleRequest) -> pb.ResumeScheduleResponse:
        found = await self._backend.resume_schedule(request.name)
        return pb.ResumeScheduleResponse(schedule=schedule_to_pb(found))

    @unary
    async def RunSchedule(self, request: pb.RunScheduleRequest) -> pb.RunScheduleResponse:
        return pb.RunScheduleResponse(job_id=await self._backend.run_schedule(request.name))

    @unary
    async def RemoveSchedule(self, request: pb.RemoveScheduleRequest) -> pb.RemoveScheduleResponse:
        await self._backend.remove_schedule(request.name)
        return pb.RemoveScheduleResponse()

    @unary
    async def DeclareSchedules(
        self, request: pb.DeclareSchedulesRequest
    ) -> pb.DeclareSchedulesResponse:
        caller = current_caller()
        if Role.CLIENT not in caller.roles:
            raise PermissionDenied(
                f"a schedule submits jobs, so a worker that declares one needs the role"
                f" {Role.CLIENT}, too; {caller.name!r} does not have it"
            )
        if len(request.schedules) > MAX_DECLARED:
            raise InvalidArgument("schedules", f"at most {MAX_DECLARED} are allowed")
        answers: list[JobQueueError | None] = []
        for one in request.schedules:
            try:
                (answer,) = await self._backend.declare_schedules([schedule_spec_from_pb(one)])
            except InvalidArgument as error:
                answer = error
            answers.append(answer)
        return pb.DeclareSchedulesResponse(
            results=[
                pb.DeclareResult(error=None if error is None else error_to_pb(error))
                for error in answers
            ]
        )
