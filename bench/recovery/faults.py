"""The faults, and what they cost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import signal
import statistics
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from bench.local import submit_batches
from bench.processes import online, running
from bench.progress import Say
from bench.recovery.relay import Relay
from bench.recovery.sizes import Sizes
from bench.replicated.ground import Ground, Site
from bench.report import Figure
from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import JobSpec
from jobqueue.core.waiting import is_set_within
from jobqueue.topology.backing.ports import free_port

_PATIENCE = 60.0
_LOOK = 0.05
_STEP = 0.5  # seconds of one reading of the rate
_BACK = 0.8  # of the rate before: it has recovered
_NAP = 0.2  # seconds of a job


class Member:
    """A jq-server with ports of its own, so that it can be started again."""

    def __init__(self, url: str, told: dict[str, str], folder: Path) -> None:
        self.port, self.http_port = free_port(), free_port()
        self.target = f"127.0.0.1:{self.port}"
        self.audit = folder / f"audit-{self.port}"
        self._told = {
            **told,
            "JQ_DB_URL": url,
            "JQ_GRPC_PORT": str(self.port),
            "JQ_HTTP_PORT": str(self.http_port),
            "JQ_WORKER_CONCURRENCY": "0",
            "JQ_LOG_AUDIT_FILE": str(self.audit),
        }
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self, stack: contextlib.ExitStack) -> float:
        """Start it; returns the seconds until it was ready."""
        began = time.monotonic()
        self.process = stack.enter_context(running("jobqueue.cli.server", self._told))
        while not await self.ready():
            if self.process.poll() is not None or time.monotonic() > began + _PATIENCE:
                raise RuntimeError(f"jq-server at {self.target} is not ready")
            await asyncio.sleep(_LOOK)
        return time.monotonic() - began

    async def ready(self) -> bool:
        """What /readyz says."""
        async with httpx.AsyncClient(trust_env=False, timeout=1.0) as http:
            with contextlib.suppress(httpx.HTTPError):
                answer = await http.get(f"http://127.0.0.1:{self.http_port}/readyz")
                return answer.status_code == httpx.codes.OK
        return False

    def kill(self) -> None:
        """``kill -9``."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()


class Cluster:
    """Servers and workers, and what they get done."""

    def __init__(self, site: Site, members: list[Member], stack: contextlib.ExitStack) -> None:
        self.site = site
        self.members = members
        self.stack = stack
        self._workers: list[subprocess.Popen[bytes]] = []

    def kill(self) -> None:
        """End all of it at once: what was to be measured is measured."""
        servers = [member.process for member in self.members]
        for process in (*self._workers, *servers):
            if process is not None:
                process.kill()

    async def workers(self, count: int, slots: int) -> list[subprocess.Popen[bytes]]:
        """Start workers that know every server, and wait until they are ONLINE."""
        for number in range(count):
            told = {
                "JQ_WORKER_ID": f"worker {number}",
                "JQ_WORKER_SERVER": ",".join(member.target for member in self.members),
                "JQ_WORKER_CONCURRENCY": str(slots),
                "JQ_WORKER_METRICS_PORT": "0",
                "JQ_WORKER_APP": "bench.tasks:app",
            }
            process = self.stack.enter_context(running("jobqueue.cli.worker", told))
            self._workers.append(process)
        give_up = time.monotonic() + _PATIENCE + 5 * count
        while len(online(await self.site.store.workers())) < count:
            if time.monotonic() > give_up:
                raise TimeoutError("the workers are not ready in time")
            await asyncio.sleep(_LOOK)
        return self._workers

    async def rate(self, seconds: float) -> float:
        """Jobs per second that succeed."""
        before, began = (await self.site.stats()).succeeded, time.monotonic()
        await asyncio.sleep(seconds)
        return ((await self.site.stats()).succeeded - before) / (time.monotonic() - began)

    async def recovered(self, before: float, most: float) -> float:
        """Seconds until the rate is back for a second; ``most`` if it does not come back."""
        began = time.monotonic()
        good = 0
        while time.monotonic() < began + most:
            good = good + 1 if await self.rate(_STEP) >= _BACK * before else 0
            if good * _STEP >= 1.0:
                return max(0.0, time.monotonic() - began - 1.0)
        return most

    def places(self) -> list[int]:
        """How many workers are connected to each server, by the servers' audit logs."""
        latest: dict[str, tuple[str, int]] = {}
        for number, member in enumerate(self.members):
            lines = member.audit.read_text().splitlines() if member.audit.exists() else []
            for line in map(json.loads, lines):
                if line.get("action") == "worker.connect" and line.get("outcome") == "OK":
                    worker, said = line["object"], (line["timestamp"], number)
                    latest[worker] = max(said, latest.get(worker, said))
        where = [number for _, number in latest.values()]
        return [where.count(number) for number in range(len(self.members))]


@contextlib.asynccontextmanager
async def cluster(
    ground: Ground, sizes: Sizes, folder: Path, servers: int, relayed: bool = False
) -> AsyncIterator[tuple[Cluster, Relay]]:
    """Servers that are ready, the first one behind the relay on request."""
    with contextlib.ExitStack() as stack:
        async with ground.database() as site, Relay(site.url).open() as relay:
            told = ground.environment()
            members = [
                Member(relay.url if relayed and not number else site.url, told, folder)
                for number in range(servers)
            ]
            for member in members:
                await member.start(stack)
            fleet = Cluster(site, members, stack)
            try:
                yield fleet, relay
            finally:
                fleet.kill()
                stack.close()


async def _backlog(site: Site, jobs: int) -> None:
    payload = json.dumps({"seconds": _NAP}).encode()
    async with site.engine() as engine:
        await submit_batches(engine, jobs, spec=lambda _: JobSpec(payload=payload, type="nap"))


async def stopped(ground: Ground, sizes: Sizes, folder: Path) -> list[Figure]:
    """A server and its worker get SIGTERM at once while jobs run."""
    async with cluster(ground, sizes, folder, 1) as (fleet, _):
        (worker,) = await fleet.workers(1, sizes.stopped_jobs)
        payload = json.dumps({"seconds": sizes.stopped_seconds}).encode()
        backend = GrpcBackend(fleet.members[0].target)
        await backend.submit([JobSpec(payload=payload, type="nap")] * sizes.stopped_jobs)
        await backend.stop()
        await asyncio.sleep(1.5)  # all of them run
        server = fleet.members[0].process
        assert server is not None
        began = time.monotonic()
        for process in (server, worker):
            process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(server.wait)
        took = time.monotonic() - began
        await asyncio.to_thread(worker.wait)
        lost = sizes.stopped_jobs - (await fleet.site.stats()).succeeded
    how = (
        f"{sizes.stopped_jobs} jobs of {sizes.stopped_seconds:g} s run; SIGTERM to the server and"
        f" its worker at once; the server ended after {took:.1f} s"
    )
    return [Figure("finished jobs that run again", lost, "jobs", 0.0, how)]


async def silent(ground: Ground, sizes: Sizes, folder: Path) -> list[Figure]:
    """The server's connections to PostgreSQL swallow bytes for a while; nothing is reset."""
    async with cluster(ground, sizes, folder, 1, relayed=True) as (fleet, relay):
        member = fleet.members[0]
        backend = GrpcBackend(member.target, timeout=_PATIENCE)
        back, answered = math.inf, asyncio.Event()  # since the network is back
        ready: list[tuple[float, bool]] = []

        async def submit() -> None:
            while True:
                with contextlib.suppress(JobQueueError):
                    await backend.submit([JobSpec(payload=b"{}", type="noop")])
                    if time.monotonic() > back:
                        answered.set()
                await asyncio.sleep(_LOOK)

        async def probe() -> None:
            while True:
                ready.append((time.monotonic(), await member.ready()))
                await asyncio.sleep(0.2)

        tasks = [asyncio.create_task(work()) for work in (*[submit] * 4, probe)]
        await asyncio.sleep(3.0)
        relay.silent, began = True, time.monotonic()
        await asyncio.sleep(sizes.silent_seconds)
        relay.silent, back = False, time.monotonic()
        await is_set_within(answered, _PATIENCE)
        took = time.monotonic() - back
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await backend.stop()
    late = [(at, said) for at, said in ready if began + 2.5 < at < back + took]
    lies = sum(said for _, said in late) / max(1, len(late))
    how = (
        f"bytes swallowed for {sizes.silent_seconds:g} s, then passed on again; 4 submits in"
        f" flight; /readyz said 200 in {lies:.0%} of its answers meanwhile"
    )
    return [Figure("silent database: network back → submit answered", took, "s", 5.0, how)]


async def slow(ground: Ground, sizes: Sizes, folder: Path, say: Say) -> list[Figure]:
    """One of two servers becomes slow: its way to PostgreSQL takes longer."""
    async with cluster(ground, sizes, folder, 2, relayed=True) as (fleet, relay):
        await fleet.workers(sizes.workers, sizes.slots)
        await _backlog(fleet.site, sizes.jobs)
        await asyncio.sleep(5.0)
        before = await fleet.rate(5.0)
        places = fleet.places()
        relay.delay = sizes.delay
        say("one server is slow")
        took = await fleet.recovered(before, _PATIENCE)
        after = fleet.places()
    how = (
        f"2 servers, {sizes.workers} workers with {sizes.slots} slots, jobs of {_NAP:g} s;"
        f" {sizes.delay * 1e3:.0f} ms more each way to PostgreSQL at one; {before:.0f} jobs/s"
        f" before; workers at each {places} before, {after} after; {_PATIENCE:g} s: not back"
    )
    return [Figure("slow server → rate back", took, "s", 30.0, how)]


async def restarted(ground: Ground, sizes: Sizes, folder: Path, say: Say) -> list[Figure]:
    """One of two servers is killed and started again: do workers come back?"""
    async with cluster(ground, sizes, folder, 2) as (fleet, _):
        await fleet.workers(sizes.workers, sizes.slots)
        fleet.members[0].kill()
        await asyncio.sleep(5.0)
        await fleet.members[0].start(fleet.stack)
        say("waiting for 30 s")
        await asyncio.sleep(30.0)
        places = fleet.places()
    even = sizes.workers / 2
    how = f"2 servers, {sizes.workers} workers; at each 30 s after the restart: {places}"
    off = abs(places[0] - even) / even * 100
    return [Figure("restarted server: share of workers off even", off, "%", 20.0, how)]


async def killed(ground: Ground, sizes: Sizes, folder: Path, say: Say) -> list[Figure]:
    """``kill -9`` of one of two servers, and of the only one, which is started again at once."""
    figures = []
    for servers in (2, 1):
        taken, rates, starts = [], [], []
        for number in range(sizes.rounds):
            say(f"{servers} servers, round {number + 1}")
            async with cluster(ground, sizes, folder, servers) as (fleet, _):
                await fleet.workers(sizes.workers, sizes.slots)
                await _backlog(fleet.site, sizes.jobs)
                await asyncio.sleep(5.0)
                rates.append(await fleet.rate(5.0))
                fleet.members[0].kill()
                watching = asyncio.create_task(fleet.recovered(rates[-1], _PATIENCE))
                if servers == 1:
                    starts.append(await fleet.members[0].start(fleet.stack))
                taken.append(await watching)
        listed = " ".join(f"{one:.1f}" for one in taken)
        how = (
            f"{sizes.workers} workers with {sizes.slots} slots, jobs of {_NAP:g} s,"
            f" {statistics.median(rates):.0f} jobs/s before; {sizes.rounds} rounds: {listed} s"
        )
        what = "one of two servers" if servers == 2 else "the only server, started again"
        figures.append(Figure(f"kill -9 of {what} → rate back", max(taken), "s", 5.0, how))
        if starts:
            name = "jq-server: start → ready, at the load of that moment"
            figures.append(Figure(name, statistics.median(starts), "s", None, how))
    return figures


async def start(ground: Ground, sizes: Sizes, folder: Path) -> list[Figure]:
    """A jq-server's start, when nothing else runs here."""
    taken = []
    async with ground.database() as site:
        for _ in range(sizes.starts):
            with contextlib.ExitStack() as stack:
                taken.append(await Member(site.url, ground.environment(), folder).start(stack))
    how = f"{sizes.starts} starts on PostgreSQL: {' '.join(f'{one:.2f}' for one in taken)} s"
    return [Figure("jq-server: start → ready (median)", statistics.median(taken), "s", None, how)]
