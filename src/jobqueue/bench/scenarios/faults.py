"""Cause faults in the replicated topology, and measure how long they disturb its work."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import httpx

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.bench.ground import Ground
from jobqueue.bench.records import Figure
from jobqueue.bench.scenarios.fleet import fleet, nap_spec, noop_spec, submit_batches
from jobqueue.bench.scenarios.stand import Site, Stand
from jobqueue.core.errors import JobQueueError
from jobqueue.core.waiting import is_set_within
from jobqueue.fleet.keeper import Keeper, Restarts
from jobqueue.fleet.layout import Layout

_PATIENCE = 60.0
_LOOK = 0.05
_STEP = 0.5  # seconds of one reading of the rate
_BACK = 0.8  # the share of the rate before the fault from which the rate has recovered
_NAP = 0.2  # seconds of a job
_WARM = 5.0
_AWAY = 5.0  # seconds until a server that was killed is started again
_CHUNK = 1 << 16
_AT_ONCE = Restarts(first_wait=0.0)
_NEVER = Restarts(allowed=False)


class TcpProxy:
    """Forwards connections to PostgreSQL, and drops or delays their bytes on request.

    ``url`` is the address of PostgreSQL through the proxy.
    """

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self.url = ""
        self.silent = False  # if True, connections stay open, and all bytes sent on them are lost
        self.delay = 0.0  # seconds, each way
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[TcpProxy]:
        """Listen on a free port until the block ends."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        login = self._parts.netloc.rpartition("@")[0]
        place = f"{login}@127.0.0.1:{port}" if login else f"127.0.0.1:{port}"
        query = "&".join(filter(None, [self._parts.query, "sslmode=disable"]))
        self.url = urlunsplit(self._parts._replace(netloc=place, query=query))
        try:
            yield self
        finally:
            server.close()
            for writer in self._writers:
                writer.transport.abort()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(self._parts.hostname, self._parts.port or 5432)
        self._writers |= {writer, there[1]}
        for source, sink in ((reader, there[1]), (there[0], writer)):
            task = asyncio.create_task(self._pass_on(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(_CHUNK):
                if self.delay:
                    await asyncio.sleep(self.delay)
                if not self.silent:
                    sink.write(data)
                    await sink.drain()
        except OSError:
            pass
        finally:
            sink.transport.abort()


class _Cluster:
    """Controls the servers and workers of a fault scenario, and measures their work."""

    def __init__(self, site: Site, ground: Ground, relay: TcpProxy, audits: list[Path]) -> None:
        self.site = site
        self.ground = ground
        self.relay = relay
        self._audits = audits

    def keeper(self, name: str) -> Keeper:
        return next(one for one in self.ground.keepers if one.unit.name == name)

    def kill(self) -> None:
        """Kill the first server with ``kill -9``."""
        self.keeper("server-1").unit.kill()

    async def ready(self, number: int = 0) -> bool:
        """Return True if /readyz of the server answers 200."""
        async with httpx.AsyncClient(trust_env=False, timeout=1.0) as http:
            with contextlib.suppress(httpx.HTTPError):
                answer = await http.get(f"{self.ground.http[number]}/readyz")
                return answer.status_code == httpx.codes.OK
        return False

    async def rate(self, seconds: float) -> float:
        before, began = (await self.site.stats()).succeeded, time.monotonic()
        await asyncio.sleep(seconds)
        return ((await self.site.stats()).succeeded - before) / (time.monotonic() - began)

    async def recovered(self, before: float) -> float:
        """Return the seconds until the rate of jobs is near ``before`` again for a second.

        Returns ``_PATIENCE`` if the rate does not recover in that time.
        """
        began = time.monotonic()
        good = 0
        while time.monotonic() < began + _PATIENCE:
            good = good + 1 if await self.rate(_STEP) >= _BACK * before else 0
            if good * _STEP >= 1.0:
                return max(0.0, time.monotonic() - began - 1.0)
        return _PATIENCE

    async def busy(self) -> float:
        """Submit a backlog, and return the jobs per second once the workers run steadily."""
        async with self.site.engine() as engine:
            jobs = self.site.stand.sizes.fault_jobs
            await submit_batches(engine, jobs, self.site.stand.sizes, lambda _: nap_spec(_NAP))
        await asyncio.sleep(_WARM)
        return await self.rate(_WARM)

    def places(self) -> list[int]:
        """Return the number of workers connected to each server, by the servers' audit logs."""
        latest: dict[str, tuple[str, int]] = {}
        for number, audit in enumerate(self._audits):
            lines = audit.read_text().splitlines() if audit.exists() else []
            for line in map(json.loads, lines):
                if line.get("action") == "worker.connect" and line.get("outcome") == "OK":
                    worker, said = line["object"], (line["timestamp"], number)
                    latest[worker] = max(said, latest.get(worker, said))
        where = [number for _, number in latest.values()]
        return [where.count(number) for number in range(len(self._audits))]


@contextlib.asynccontextmanager
async def _cluster(
    stand: Stand,
    servers: int,
    workers: int | None = None,
    slots: int | None = None,
    *,
    relayed: bool = False,
    restarts: Restarts = _NEVER,
) -> AsyncIterator[_Cluster]:
    """Start servers and workers, and kill them at the end of the block.

    With ``relayed``, the first server reaches PostgreSQL through the proxy.
    """
    sizes = stand.sizes
    async with stand.database() as site, TcpProxy(site.url).open() as relay:
        audits = [stand.folder / f"{stand.prefix()}audit" for _ in range(servers)]

        def change(layout: Layout) -> Layout:
            told = {f"server-{n}": {"JQ_LOG_AUDIT_FILE": str(f)} for n, f in enumerate(audits, 1)}
            if relayed:
                told["server-1"]["JQ_DB_URL"] = relay.url
            processes = [
                replace(
                    one,
                    environment={**one.environment, **(more := told.get(one.name, {}))},
                    needs={k: v for k, v in one.needs.items() if k not in more},
                )
                for one in layout.processes
            ]
            return replace(layout, processes=tuple(processes))

        async with fleet(
            site,
            servers=servers,
            workers=sizes.fault_workers if workers is None else workers,
            slots=slots or sizes.fault_slots,
            change=change,
            restarts=restarts,
        ) as ground:
            cluster = _Cluster(site, ground, relay, audits)
            try:
                yield cluster
            finally:
                for keeper in ground.keepers:  # even if jobs are left
                    keeper.unit.kill()


async def start(stand: Stand) -> list[Figure]:
    """Measure how long a jq-server takes to start when nothing else runs."""
    taken = []
    async with stand.database() as site:
        for _ in range(stand.sizes.starts):
            began = time.monotonic()
            async with fleet(site, workers=0):
                taken.append(time.monotonic() - began)
    how = f"{len(taken)} starts on PostgreSQL: {' '.join(f'{one:.2f}' for one in taken)} s"
    return [Figure("jq-server: start → ready (median)", statistics.median(taken), "s", None, how)]


async def stopped(stand: Stand) -> list[Figure]:
    """Count the jobs that run again after a server and its worker got SIGTERM at the same time."""
    jobs, seconds = stand.sizes.stopped_jobs, stand.sizes.stopped_seconds
    async with _cluster(stand, 1, 1, slots=jobs) as cluster:
        backend = GrpcBackend(cluster.ground.grpc[0])
        await backend.submit([nap_spec(seconds)] * jobs)
        await backend.stop()
        await asyncio.sleep(1.5)  # all of them run
        keepers = [cluster.keeper(name) for name in ("server-1", "worker-1")]
        began = time.monotonic()
        ends = [asyncio.create_task(keeper.stop()) for keeper in keepers]
        await ends[0]
        took = time.monotonic() - began
        await ends[1]
        lost = jobs - (await cluster.site.stats()).succeeded
    how = (
        f"{jobs} jobs of {seconds:g} s run; SIGTERM to the server and its worker at once; the"
        f" server ended after {took:.1f} s"
    )
    return [Figure("finished jobs that run again", lost, "jobs", 0.0, how)]


async def silent(stand: Stand) -> list[Figure]:
    """Measure the recovery after open connections to PostgreSQL lost all bytes for a while."""
    seconds = stand.sizes.silent_seconds
    async with _cluster(stand, 1, 0, relayed=True) as cluster:
        backend = GrpcBackend(cluster.ground.grpc[0], timeout=_PATIENCE)
        back, answered = math.inf, asyncio.Event()  # set by an answer after ``back``
        ready: list[tuple[float, bool]] = []

        async def submit() -> None:
            while True:
                with contextlib.suppress(JobQueueError):
                    await backend.submit([noop_spec(0)])
                    if time.monotonic() > back:
                        answered.set()
                await asyncio.sleep(_LOOK)

        async def probe() -> None:
            while True:
                ready.append((time.monotonic(), await cluster.ready()))
                await asyncio.sleep(0.2)

        tasks = [asyncio.create_task(work()) for work in (*[submit] * 4, probe)]
        await asyncio.sleep(3.0)
        cluster.relay.silent, began = True, time.monotonic()
        await asyncio.sleep(seconds)
        cluster.relay.silent, back = False, time.monotonic()
        await is_set_within(answered, _PATIENCE)
        took = time.monotonic() - back
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await backend.stop()
    late = [(at, said) for at, said in ready if began + 2.5 < at < back + took]
    lies = sum(said for _, said in late) / max(1, len(late))
    how = (
        f"bytes swallowed for {seconds:g} s, then passed on again; 4 submits in flight; /readyz"
        f" said 200 in {lies:.0%} of its answers meanwhile"
    )
    return [Figure("silent database: network back → submit answered", took, "s", 5.0, how)]


async def slow(stand: Stand) -> list[Figure]:
    """Measure the recovery after one of two servers got a slow connection to PostgreSQL."""
    delay = stand.sizes.delay
    async with _cluster(stand, 2, relayed=True) as cluster:
        before = await cluster.busy()
        places = cluster.places()
        cluster.relay.delay = delay
        stand.say("one server is slow")
        took = await cluster.recovered(before)
        after = cluster.places()
    how = (
        f"2 servers, {_work(stand)}; {delay * 1e3:.0f} ms more each way to PostgreSQL at one;"
        f" {before:.0f} jobs/s before; workers at each {places} before, {after} after;"
        f" {_PATIENCE:g} s: not back"
    )
    return [Figure("slow server → rate back", took, "s", 30.0, how)]


async def restarted(stand: Stand) -> list[Figure]:
    """Measure whether workers return to a server that was killed and started again."""
    workers, wait = stand.sizes.fault_workers, stand.sizes.return_seconds
    async with _cluster(stand, 2, restarts=Restarts(first_wait=_AWAY)) as cluster:
        cluster.kill()
        await asyncio.sleep(_AWAY)
        await _until_ready(cluster)
        stand.say(f"waiting for {wait:g} s")
        await asyncio.sleep(wait)
        places = cluster.places()
    how = f"2 servers, {workers} workers; at each {wait:g} s after the restart: {places}"
    off = abs(places[0] - workers / 2) / (workers / 2) * 100
    return [Figure("restarted server: share of workers off even", off, "%", 20.0, how)]


async def killed(stand: Stand) -> list[Figure]:
    """Measure the recovery after ``kill -9`` of one of two servers, and of the only server.

    The only server is started again at once.
    """
    figures, started, how = [], 0.0, ""
    for servers, what in ((2, "one of two servers"), (1, "the only server, started again")):
        stand.say(what)
        restarts = _NEVER if servers > 1 else _AT_ONCE
        async with _cluster(stand, servers, restarts=restarts) as cluster:
            before = await cluster.busy()
            cluster.kill()
            began = time.monotonic()
            watching = asyncio.create_task(cluster.recovered(before))
            if servers == 1:
                await _until_ready(cluster)
                started = time.monotonic() - began
            took = await watching
        how = f"{_work(stand)}, {before:.0f} jobs/s before"
        figures.append(Figure(f"kill -9 of {what} → rate back", took, "s", 5.0, how))
    name = "jq-server: killed → ready again, at the load of that moment"
    return [*figures, Figure(name, started, "s", None, how)]


async def _until_ready(cluster: _Cluster) -> None:
    give_up = time.monotonic() + _PATIENCE
    await asyncio.sleep(_LOOK)
    while not await cluster.ready():
        if time.monotonic() > give_up:
            raise TimeoutError(f"the killed server is not ready again after {_PATIENCE:g} s")
        await asyncio.sleep(_LOOK)


def _work(stand: Stand) -> str:
    sizes = stand.sizes
    return f"{sizes.fault_workers} workers with {sizes.fault_slots} slots, jobs of {_NAP:g} s"
