"""Implement ``TaskQueueClient``: the five calls of ``taskqueue.v1``, in every topology."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from jobqueue.access.tls import Credentials, Tls, tls_of
from jobqueue.connect.backends import warn_of_readable_key
from jobqueue.connect.urls import BackendUrl, parse_url
from jobqueue.core.errors import Conflict, DeadlineExceeded, InvalidArgument, JobQueueError
from jobqueue.taskqueue.client.values import (
    Deadlines,
    JobPage,
    JobState,
    job_id_of,
    job_spec,
    key_of,
    listing_of,
    page_of,
    reason_of,
    state_of,
    timeout_of,
)
from jobqueue.taskqueue.components.model import (
    Canceled,
    Envelope,
    JobRecord,
    Listing,
    Sort,
    Spec,
    Status,
    Submitted,
    SummaryPage,
)
from jobqueue.taskqueue.components.ownership import owner_index

T = TypeVar("T")

_FIRST_POLL = 0.02
_LONGEST_POLL = 1.0
_SLOWER = 1.5


MAX_NODES = 1_000


class NodeRouting:
    """Chooses the server of each call, as an index in the client's fixed list of servers.

    Nodes do not forward calls to each other, so the client must choose the right node. With a
    gateway the list has one server.
    """

    def __init__(self, targets: Sequence[str], *, gateway: bool, rng: random.Random) -> None:
        self.targets = tuple(targets)
        self._gateway = gateway
        # Start at a random server: otherwise many clients with one submit each would all use the
        # first one.
        self._next = rng.randrange(len(self.targets))

    def submit(self, key: str) -> int:
        """Return the server for a submit.

        A submit with a key goes to the node that owns the key, even if that node is down, because
        only that node knows whether a job has the key. Submits without a key go to each server in
        turn.
        """
        if key:
            return owner_index(key, len(self.targets))
        index = self._next
        self._next = (index + 1) % len(self.targets)
        return index

    def job(self, job_id: str) -> int:
        """Return the server that owns the job."""
        return owner_index(job_id, len(self.targets))

    def listing(self, node: int) -> int:
        """Return the checked index of the node whose jobs are listed."""
        if isinstance(node, bool) or not isinstance(node, int):
            raise InvalidArgument(
                "node", f"expected the index of a node as an int, got {node!r:.40}"
            )
        if not 0 <= node < len(self.targets):
            allowed = (
                "must be 0, because a gateway lists all jobs"
                if self._gateway
                else "must be 0 to {}"
            )
            raise InvalidArgument("node", f"{allowed.format(len(self.targets) - 1)}, got {node}")
        return node


def read_addresses(gateway: str | None, nodes: Sequence[str] | None) -> list[BackendUrl]:
    """Return the address of the gateway, or the addresses of all nodes in the given order."""
    if (gateway is None) == (nodes is None):
        which = "neither was" if gateway is None else "both were"
        raise InvalidArgument("gateway", f"pass either gateway= or nodes=; {which} given")
    if gateway is not None:
        return [_address(gateway, "gateway")]
    if isinstance(nodes, str) or not isinstance(nodes, Sequence):
        raise InvalidArgument(
            "nodes", "expected a list of HOST:PORT, in the order that all clients use"
        )
    if not 1 <= len(nodes) <= MAX_NODES:
        raise InvalidArgument("nodes", f"expected 1 to {MAX_NODES} nodes, got {len(nodes)}")
    addresses = [_address(node, f"nodes[{place}]") for place, node in enumerate(nodes)]
    for place, address in enumerate(addresses):
        if address in addresses[:place]:
            raise InvalidArgument(f"nodes[{place}]", f"{address.target} is in the list twice")
    return addresses


def _address(text: object, field: str) -> BackendUrl:
    # A text with a comma would name several servers, and a call might go to any of them.
    if not isinstance(text, str) or "://" in text or "," in text or text != text.strip():
        raise InvalidArgument(field, f"expected HOST:PORT, like 127.0.0.1:50051, got {text!r:.80}")
    return parse_url(f"grpc://{text}", field)


class TaskQueueTransport(Protocol):
    """Calls one server, without retries. Errors are classes of ``core.errors``."""

    async def submit(self, spec: Spec, key: str, *, timeout: float) -> Submitted: ...

    async def status(self, job_id: str, *, timeout: float) -> JobRecord: ...

    async def result(self, job_id: str, *, timeout: float) -> Envelope | None: ...

    async def cancel(self, job_id: str, reason: str, *, timeout: float) -> Canceled: ...

    async def list(self, listing: Listing, *, timeout: float) -> SummaryPage: ...

    async def close(self) -> None: ...


Connect = Callable[[str, Credentials | None], TaskQueueTransport]


def connect(target: str, credentials: Credentials | None) -> TaskQueueTransport:
    """Return a gRPC transport to a server. The gRPC library is imported here, not before."""
    from jobqueue.taskqueue.grpc.remote import RemoteTaskQueue

    return RemoteTaskQueue(target, credentials)


class Transports:
    """Holds the connections by server. They close with the event loop that opened them."""

    def __init__(self, connect: Connect, credentials: Credentials | None) -> None:
        self._connect = connect
        self._credentials = credentials
        self._open: dict[str, TaskQueueTransport] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._life: AsyncGenerator[None, None] | None = None

    async def to(self, target: str) -> TaskQueueTransport:
        """Return the connection to a server; open it if necessary."""
        here = asyncio.get_running_loop()
        if self._loop is not here:
            await self._settle(here)
        transport = self._open.get(target)
        if transport is None:
            transport = self._open[target] = self._connect(target, self._credentials)
        return transport

    async def _settle(self, here: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None and not self._loop.is_closed():
            raise Conflict(
                "the client is open on another event loop: call `await client.close()` there,"
                " or use one client for each loop"
            )
        self._loop, self._open = here, {}
        self._life = self._lifetime(self._open)
        await anext(self._life)

    async def _lifetime(self, opened: dict[str, TaskQueueTransport]) -> AsyncGenerator[None, None]:
        # An event loop closes its asynchronous generators before it ends. That closes the
        # connections of a client that was never closed.
        try:
            yield
        finally:
            self._loop, self._life, self._open = None, None, {}
            await asyncio.gather(*(transport.close() for transport in opened.values()))

    async def close(self) -> None:
        """Close all connections. The next call opens new ones."""
        if self._life is not None and self._loop is asyncio.get_running_loop():
            await self._life.aclose()


Sleep = Callable[[float], Awaitable[object]]


class TaskQueueClient:
    """A client of a gateway, or of nodes that each own their jobs.

    With ``gateway="host:50051"`` every call goes to the gateway. With ``nodes=["host:50051", …]``
    the client chooses the node of each call, and every client must list the same nodes in the same
    order. Submits without ``client_request_id`` go to each node in turn. A submit with
    ``client_request_id`` goes only to the node that owns this id, even if that node is down. Every
    other call about a job goes to the node that owns the job's id.

    If a server is unreachable, busy or too slow, the client makes up to 4 attempts; a submit is
    retried only if it has a ``client_request_id``. ``deadlines`` limits the time of one attempt.
    ``api_key`` and ``tls`` have the same meaning as in ``JobQueue``. The first call opens the
    connections; ``async with client:`` or ``await client.close()`` closes them.
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
        self._route = NodeRouting(targets, gateway=gateway is not None, rng=rng)
        self._transports = Transports(connect, credentials or None)
        self._rng = rng
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
        """Submit a job, given as a ``JobSpec`` or as its fields.

        Submits with the same ``client_request_id`` are one job; KeyConflict means that the id was
        used for another spec. A submit without ``client_request_id`` is not retried: after
        OutcomeUnknown, Unavailable or DeadlineExceeded the job may exist.
        """
        spec = job_spec(spec, job_type, work_duration_ms, payload_size_bytes, labels)
        key = key_of(client_request_id)
        node = self._route.submit(key)
        seconds = self._deadlines.submit_job
        return await self._call(
            node, lambda server: server.submit(spec, key, timeout=seconds), repeatable=bool(key)
        )

    async def get_job_status(self, job_id: str) -> JobState:
        """Return the current state of the job. NotFound means that the job does not exist."""
        job_id = job_id_of(job_id)
        seconds = self._deadlines.get_job_status
        record = await self._of_job(job_id, lambda server: server.status(job_id, timeout=seconds))
        return state_of(record)

    async def get_job_result(self, job_id: str) -> Envelope | None:
        """Return the job's result with its output; None while the job has not ended."""
        job_id = job_id_of(job_id)
        seconds = self._deadlines.get_job_result
        return await self._of_job(job_id, lambda server: server.result(job_id, timeout=seconds))

    async def cancel_job(self, job_id: str, reason: str = "") -> Canceled:
        """Cancel a queued job, or request that a running job ends.

        The running job may still end as DONE or FAILED.
        """
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
        """Return one page of jobs. ``page_token`` is the ``next_page_token`` of the previous page.

        A client with ``nodes=`` lists the jobs of one node only: ``node`` is the node's index in
        the list of nodes.
        """
        listing = listing_of(status_filter, page_size, page_token, sort)
        index = self._route.listing(node)
        seconds = self._deadlines.list_jobs
        page = await self._call(index, lambda server: server.list(listing, timeout=seconds))
        return page_of(page)

    async def wait_result(self, job_id: str, timeout: float | None = None) -> Envelope:
        """Wait until the job has a result, and return the result.

        A job that failed or was canceled has a result, too. The client polls with growing pauses
        of at most one second. DeadlineExceeded means that ``timeout`` seconds have passed; the job
        goes on.
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
                f"job {job_id} has no result after {timeout:g} s; the job goes on: call wait_result"
                " again to wait longer"
            ) from None
        return found

    async def close(self) -> None:
        """Close the connections. The next call opens new ones."""
        await self._transports.close()

    async def __aenter__(self) -> TaskQueueClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _of_job(self, job_id: str, call: Callable[[TaskQueueTransport], Awaitable[T]]) -> T:
        return await self._call(self._route.job(job_id), call)

    async def _call(
        self,
        index: int,
        call: Callable[[TaskQueueTransport], Awaitable[T]],
        *,
        repeatable: bool = True,
    ) -> T:
        """Call a server. A call that is ``repeatable`` makes at most four attempts.

        The random pauses between attempts are at most 100 ms, 200 ms and 400 ms.
        """
        # Imported at the first call, so that importing the package does not load gRPC.
        from jobqueue.taskqueue.grpc.errors import delays, is_retryable

        target = self._route.targets[index]
        for delay in delays(self._rng) if repeatable else ():
            try:
                return await call(await self._transports.to(target))
            except JobQueueError as error:
                if not is_retryable(error.code):
                    raise
            await self._sleep(delay)
        return await call(await self._transports.to(target))


def _checked(deadlines: Deadlines | None) -> Deadlines:
    if deadlines is None:
        return Deadlines()
    if not isinstance(deadlines, Deadlines):
        raise InvalidArgument("deadlines", f"expected Deadlines(…), got {deadlines!r:.80}")
    return deadlines
