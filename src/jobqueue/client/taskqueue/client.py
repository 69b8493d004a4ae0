"""``TaskQueueClient``: the five calls of ``taskqueue.v1``, in every topology."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

from jobqueue.access.tls import Credentials, Tls, tls_of
from jobqueue.client.taskqueue.answers import JobPage, JobState, page_of, state_of
from jobqueue.client.taskqueue.asked import (
    job_id_of,
    job_spec,
    key_of,
    listing_of,
    reason_of,
    timeout_of,
)
from jobqueue.client.taskqueue.attempts import Attempts, Sleep
from jobqueue.client.taskqueue.deadlines import Deadlines
from jobqueue.client.taskqueue.routing import Route, read_addresses
from jobqueue.client.taskqueue.transport import Connect, Transport, Transports, connect
from jobqueue.core.errors import DeadlineExceeded, InvalidArgument
from jobqueue.services.model import Canceled, Envelope, Sort, Spec, Status, Submitted
from jobqueue.topology.connect import warn_of_readable_key

T = TypeVar("T")

_FIRST_POLL = 0.02
_LONGEST_POLL = 1.0
_SLOWER = 1.5


class TaskQueueClient:
    """A client of a gateway, or of nodes that each own their jobs.

    ``gateway="host:50051"``: every call goes there. ``nodes=["host:50051", …]``: this client
    routes, and every client must name the same nodes in the same order. A submit without
    ``client_request_id`` goes to each node in turn, one with it to the node that owns it and to no
    other, even if that one is down; what concerns a job goes to the node that owns its id.

    A call that finds the server away, busy or too slow is tried again, 4 times in all; a submit
    only if it has a ``client_request_id``. ``deadlines`` says how long one attempt may take.
    ``api_key`` and ``tls`` are those of ``JobQueue``. Nothing is opened before the first call;
    ``async with client:`` or ``await client.close()`` closes it.
    """

    def __init__(
        self,
        gateway: str | None = None,
        nodes: Sequence[str] | None = None,
        *,
        api_key: str | None = None,
        tls: Tls | bool = False,
        deadlines: Deadlines | None = None,
        connect: Connect = connect,
        rng: random.Random | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        addresses = read_addresses(gateway, nodes)
        credentials = Credentials(api_key, tls_of(tls))
        credentials.check()
        for address in addresses:
            warn_of_readable_key(credentials, address)
        rng = rng or random.Random()
        targets = [address.target for address in addresses]
        self._route = Route(targets, gateway=gateway is not None, rng=rng)
        self._transports = Transports(connect, credentials or None)
        self._attempts = Attempts(rng, sleep)
        self._sleep = sleep
        self._deadlines = _checked(deadlines)

    def __repr__(self) -> str:
        return f"<TaskQueueClient {', '.join(self._route.targets)}>"

    async def submit_job(
        self,
        spec: Spec | None = None,
        *,
        job_type: str | None = None,
        work_duration_ms: int = 0,
        payload_size_bytes: int = 0,
        labels: Mapping[str, str] | None = None,
        client_request_id: str = "",
    ) -> Submitted:
        """Submit a job: a ``JobSpec``, or its fields.

        With ``client_request_id`` the same submit may be made again and is still one job
        (KeyConflict: it was used for another spec). Without it nothing is tried again: after
        OutcomeUnknown, Unavailable or DeadlineExceeded the job may exist.
        """
        spec = job_spec(spec, job_type, work_duration_ms, payload_size_bytes, labels)
        key = key_of(client_request_id)
        node = self._route.submit(key)
        seconds = self._deadlines.submit_job
        attempts = self._attempts.several if key else self._attempts.once
        return await attempts(
            lambda: self._at(node, lambda server: server.submit(spec, key, timeout=seconds))
        )

    async def get_job_status(self, job_id: str) -> JobState:
        """The job as it is now; NotFound if there is none."""
        job_id = job_id_of(job_id)
        seconds = self._deadlines.get_job_status
        record = await self._of_job(job_id, lambda server: server.status(job_id, timeout=seconds))
        return state_of(record)

    async def get_job_result(self, job_id: str) -> Envelope | None:
        """How the job ended, with its output; None while it has not."""
        job_id = job_id_of(job_id)
        seconds = self._deadlines.get_job_result
        return await self._of_job(job_id, lambda server: server.result(job_id, timeout=seconds))

    async def cancel_job(self, job_id: str, reason: str = "") -> Canceled:
        """Cancel a job that is queued; one that runs is asked to, and may still end as it would."""
        job_id = job_id_of(job_id)
        reason = reason_of(reason)
        seconds = self._deadlines.cancel_job
        return await self._of_job(
            job_id, lambda server: server.cancel(job_id, reason, timeout=seconds)
        )

    async def list_jobs(
        self,
        status_filter: Iterable[Status] = (),
        page_size: int = 0,
        page_token: str = "",
        sort: Sort = Sort.CREATED_AT_DESC,
        *,
        node: int = 0,
    ) -> JobPage:
        """One page of jobs; ``page_token`` is the ``next_page_token`` of the page before.

        With ``nodes=`` these are the jobs of one node, by its place in the list, not of all.
        """
        listing = listing_of(status_filter, page_size, page_token, sort)
        index = self._route.listing(node)
        seconds = self._deadlines.list_jobs
        page = await self._attempts.several(
            lambda: self._at(index, lambda server: server.list(listing, timeout=seconds))
        )
        return page_of(page)

    async def wait_result(self, job_id: str, timeout: float | None = None) -> Envelope:
        """Ask for the result until there is one, less and less often, at least once a second.

        A job that failed or was canceled has one, too. DeadlineExceeded when ``timeout`` seconds
        have passed; the job goes on.
        """
        job_id = job_id_of(job_id)
        timeout = timeout_of(timeout)
        pause = _FIRST_POLL
        try:
            async with asyncio.timeout(timeout):
                while (found := await self.get_job_result(job_id)) is None:
                    await self._sleep(pause)
                    pause = min(pause * _SLOWER, _LONGEST_POLL)
        except TimeoutError:
            raise DeadlineExceeded(
                f"job {job_id} has no result after {timeout:g} s; it goes on"
            ) from None
        return found

    async def close(self) -> None:
        """Close what was opened. The next call opens it again."""
        await self._transports.close()

    async def __aenter__(self) -> TaskQueueClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _of_job(self, job_id: str, call: Callable[[Transport], Awaitable[T]]) -> T:
        owner = self._route.job(job_id)
        return await self._attempts.several(lambda: self._at(owner, call))

    async def _at(self, index: int, call: Callable[[Transport], Awaitable[T]]) -> T:
        return await call(await self._transports.to(self._route.targets[index]))


def _checked(deadlines: Deadlines | None) -> Deadlines:
    if deadlines is None:
        return Deadlines()
    if not isinstance(deadlines, Deadlines):
        raise InvalidArgument("deadlines", f"expected Deadlines(…), got {deadlines!r:.80}")
    return deadlines
