"""Show schedules; pause, resume, run and remove them."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from jobqueue.api.console.console import Console, Form
from jobqueue.api.http.errors import OBJECT
from jobqueue.core.job import MAX_PAGE
from jobqueue.core.schedule import Schedule
from jobqueue.core.waiting import Recent

MOST_SHOWN = 200
_FRESH = 2.0


def pages(console: Console) -> None:
    backend = console.backend

    async def read_all() -> list[Schedule]:
        found: list[Schedule] = []
        token = ""
        while True:
            page = await backend.list_schedules(MAX_PAGE, token)
            found += page.schedules
            token = page.next_page_token
            if not token:
                return found

    every = Recent(read_all, _FRESH)

    @console.page("/schedules")
    async def show(request: Request) -> Response:
        wanted = request.query_params.get("name", "").strip()
        found = await every.read()
        matching = [
            one
            for one in found
            if wanted.lower() in f"{one.name} {one.spec.job.type} {one.spec.job.queue}".lower()
        ]
        # Those that do not run as planned come first, then the next ones.
        matching.sort(
            key=lambda one: (
                not one.state.problem,
                one.state.next_at is None,
                one.state.next_at or 0.0,
                one.name,
            )
        )
        return console.show(
            request,
            "schedules.html",
            schedules=matching[:MOST_SHOWN],
            matching=len(matching),
            wanted=wanted,
        )

    def named(request: Request, form: Form) -> str:
        every.forget()
        name = form.get("name", "")
        request.scope[OBJECT] = name
        return name

    @console.action("/schedules/pause")
    async def pause(request: Request, form: Form) -> Response:
        await backend.pause_schedule(named(request, form))
        return console.go(request, "schedules", did="schedule-paused")

    @console.action("/schedules/resume")
    async def resume(request: Request, form: Form) -> Response:
        await backend.resume_schedule(named(request, form))
        return console.go(request, "schedules", did="schedule-resumed")

    @console.action("/schedules/run")
    async def run(request: Request, form: Form) -> Response:
        job_id = await backend.run_schedule(named(request, form))
        return console.go(request, f"jobs/{job_id}", did="schedule-ran")

    @console.action("/schedules/remove")
    async def remove(request: Request, form: Form) -> Response:
        await backend.remove_schedule(named(request, form))
        return console.go(request, "schedules", did="schedule-removed")
