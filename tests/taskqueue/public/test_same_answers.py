"""One script of calls, drawn at random, has the same answers everywhere: the reference's."""

from __future__ import annotations

import grpc.aio
import pytest

from jobqueue.pb import taskqueue_public_pb2 as pb
from jobqueue.taskqueue import JobSpec, JobStatus
from tests.taskqueue.public.public import UNKNOWN, Public
from tests.taskqueue.public.reference import NO_ID, UNKNOWN_JOB, Answer, Reference, Step, script


class Player:
    """Makes the calls of a script on the wire, and puts the answers into its words."""

    def __init__(self, tq: Public, running: list[str]) -> None:
        self._tq = tq
        self._ids = list(running)

    async def play(self, step: Step) -> Answer:
        method, *arguments = step
        try:
            return ("OK", *await getattr(self, f"_{method}")(*arguments))
        except grpc.aio.AioRpcError as error:
            return (error.code().name,)

    def _id(self, number: int) -> str:
        return {UNKNOWN_JOB: UNKNOWN, NO_ID: "no id"}.get(number) or self._ids[number]

    def _number(self, job_id: str) -> int:
        return self._ids.index(job_id)

    async def _submit(self, spec: JobSpec, key: str) -> Answer:
        request = pb.SubmitJobRequest(
            spec=pb.JobSpec(
                job_type=spec.job_type,
                work_duration_ms=spec.work_duration_ms,
                payload_size_bytes=spec.payload_size_bytes,
                labels=spec.labels,
            ),
            client_request_id=key,
        )
        answer = await self._tq.stub(key).SubmitJob(request)
        if answer.job_id not in self._ids:
            self._ids.append(answer.job_id)
        return (self._number(answer.job_id), pb.JobStatus.Name(answer.initial_status))

    async def _status(self, number: int) -> Answer:
        job_id = self._id(number)
        answer = await self._tq.stub(job_id).GetJobStatus(pb.GetJobStatusRequest(job_id=job_id))
        times = (answer.created_at_ms, answer.started_at_ms, answer.finished_at_ms)
        known = [at for at in times if at]
        assert known == sorted(known)
        return (
            self._number(answer.job_id),
            pb.JobStatus.Name(answer.status),
            answer.cancel_requested,
            tuple(at > 0 for at in times),
            answer.failure_reason,
        )

    async def _result(self, number: int) -> Answer:
        job_id = self._id(number)
        answer = await self._tq.stub(job_id).GetJobResult(pb.GetJobResultRequest(job_id=job_id))
        return (
            self._number(answer.job_id),
            answer.result_ready,
            pb.JobStatus.Name(answer.terminal_status),
            answer.output_bytes,
            answer.output_summary,
            answer.checksum,
        )

    async def _cancel(self, number: int) -> Answer:
        job_id = self._id(number)
        answer = await self._tq.stub(job_id).CancelJob(pb.CancelJobRequest(job_id=job_id))
        status = pb.JobStatus.Name(answer.current_status)
        return (self._number(answer.job_id), answer.accepted, status, answer.already_terminal)

    async def _list(self, statuses: tuple[JobStatus, ...]) -> Answer:
        """Of every node: what one of them shows is excepted, what they show together is not."""
        jobs = [job for jobs in await self._tq.lists(statuses) for job in jobs]
        shown = [
            (self._number(job.job_id), job.status.name, job.job_type, job.cancel_requested)
            for job in jobs
        ]
        return (sorted(shown),)

    async def settle(self, answer: Answer) -> None:
        """Wait until the job has ended that was just submitted."""
        if answer[0] == "OK":
            await self._tq.end(self._ids[answer[1]])


@pytest.mark.parametrize("seed", [4, 1915])
@pytest.mark.req("tq:NFR-1", "tq:CODES", "tq:CANCEL", "tq:DEDUP", "tq:RESULT")
async def test_while_jobs_wait(tq: Public, seed: int) -> None:
    held = await tq.hold()
    player = Player(tq, held)
    steps = script(seed, 60, Reference(runs=False, running=len(held)))
    for number, (step, expected) in enumerate(steps):
        assert await player.play(step) == expected, f"call {number}: {step}"


@pytest.mark.parametrize("seed", [4])
@pytest.mark.req("tq:NFR-1", "tq:CODES", "tq:CANCEL", "tq:DEDUP", "tq:RESULT")
async def test_while_each_job_ends_before_the_next_call(tq: Public, seed: int) -> None:
    player = Player(tq, [])
    steps = script(seed, 60, Reference(runs=True))
    for number, (step, expected) in enumerate(steps):
        answer = await player.play(step)
        if step[0] == "submit":
            await player.settle(answer)
        assert answer == expected, f"call {number}: {step}"


def test_the_scripts_make_every_call_and_meet_every_code() -> None:
    """Otherwise the comparison would show less than it says."""
    answers: set[tuple[str, str]] = set()
    for seed, reference in (
        (4, Reference(runs=False, running=6)),
        (1915, Reference(runs=False, running=6)),
        (4, Reference(runs=True)),
    ):
        answers |= {(step[0], answer[0]) for step, answer in script(seed, 60, reference)}
    by_id = {"OK", "NOT_FOUND", "INVALID_ARGUMENT"}
    assert answers == {
        *(("submit", code) for code in ("OK", "FAILED_PRECONDITION", "INVALID_ARGUMENT")),
        *((method, code) for method in ("status", "result", "cancel") for code in by_id),
        ("list", "OK"),
    }
