"""Show workers with the jobs that they hold; drain them, undo that, or let them exit."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Request
from starlette.responses import Response

from jobqueue.api.console.console import Console, Form
from jobqueue.api.http.errors import OBJECT
from jobqueue.core.job import Job, JobQuery, WorkerStatus
from jobqueue.core.lifecycle import State
from jobqueue.core.waiting import Recent

MOST_SHOWN = 200
_MOST_HELD = 200  # held jobs that are read, of all workers together
_FRESH = 2.0
_ORDER = (WorkerStatus.ONLINE, WorkerStatus.DRAINING, WorkerStatus.STOPPING, WorkerStatus.OFFLINE)


def pages(console: Console) -> None:
    backend = console.backend

    async def read_held() -> tuple[Mapping[str, list[Job]], bool]:
        """Return the held jobs by worker, and True if these are all of them."""
        query = JobQuery(states=(State.ASSIGNED, State.RUNNING), limit=_MOST_HELD)
        page = await backend.list_jobs(query)
        found: dict[str, list[Job]] = {}
        for job in page.jobs:
            found.setdefault(job.worker_id or "", []).append(job)
        return found, not page.next_page_token

    held = Recent(read_held, _FRESH)

    @console.page("/workers")
    async def show(request: Request) -> Response:
        wanted = request.query_params.get("name", "").strip()
        workers = await console.reads.list_workers()
        matching = [
            one for one in workers if wanted.lower() in f"{one.info.id} {one.info.hostname}".lower()
        ]
        matching.sort(key=lambda one: (_ORDER.index(one.status), one.info.id))
        jobs, has_all = await held.read()
        return console.show(
            request,
            "workers.html",
            workers=matching[:MOST_SHOWN],
            matching=len(matching),
            wanted=wanted,
            held=jobs,
            has_all=has_all,
        )

    def named(request: Request, form: Form) -> str:
        name = form.get("worker_id", "")
        request.scope[OBJECT] = name
        return name

    @console.action("/workers/drain")
    async def drain(request: Request, form: Form) -> Response:
        await backend.drain_worker(named(request, form))
        return console.go(request, "workers", did="drained")

    @console.action("/workers/undrain")
    async def undrain(request: Request, form: Form) -> Response:
        await backend.undrain_worker(named(request, form))
        return console.go(request, "workers", did="undrained")

    @console.action("/workers/shutdown")
    async def shutdown(request: Request, form: Form) -> Response:
        await backend.shutdown_worker(named(request, form))
        return console.go(request, "workers", did="stopped")
