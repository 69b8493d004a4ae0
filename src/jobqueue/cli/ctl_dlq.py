"""``jq-ctl dlq``: look at dead letters and replay them."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from jobqueue.cli.ctl_job import show_pages
from jobqueue.cli.display import counted, note, print_json, progress
from jobqueue.cli.program import EXIT_CODES, clean, examples
from jobqueue.cli.session import OutputOption, Session, session
from jobqueue.core.api import Backend
from jobqueue.core.errors import Code, InvalidArgument, JobQueueError
from jobqueue.core.ids import parse_job_id
from jobqueue.core.job import JobQuery
from jobqueue.core.lifecycle import State

app = typer.Typer(help="Look at dead letters and replay them.", no_args_is_help=True)
_PAGE = 100


@app.command("list", epilog=examples("jq-ctl dlq list", "jq-ctl dlq list --queue mail -o json"))
def list_dead(
    context: typer.Context,
    queue: Annotated[str | None, typer.Option(help="Only jobs of this queue.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Jobs on a page.")] = 20,
    page_token: Annotated[str, typer.Option(help="Where the page begins: from the last one.")] = "",
    output: OutputOption = None,
) -> None:
    """List dead-lettered jobs, newest first, with why."""
    query = JobQuery(queue=queue, states=(State.DEAD_LETTERED,), limit=limit, page_token=page_token)
    show_pages(session(context), query, dead_letters=True)


@app.command(epilog=examples(
    "jq-ctl dlq retry 3f0c2a5e-8d1b-4f53-9a37-2b7d5f0c9e11",
    "jq-ctl dlq retry --all --queue mail",
))  # fmt: skip
def retry(
    context: typer.Context,
    job_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[JOB_ID]...", help="The jobs.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every dead letter.")] = False,
    queue: Annotated[str | None, typer.Option(help="With --all: of this queue only.")] = None,
    output: OutputOption = None,
) -> None:
    """Send dead letters back to PENDING, with their retries counted anew."""
    chosen = session(context)
    if bool(job_ids) == all_:
        raise InvalidArgument("JOB_ID", "give either job ids or --all")
    if queue is not None and not all_:
        raise InvalidArgument("--queue", "goes with --all only")
    wanted = [parse_job_id(job_id) for job_id in job_ids or ()]
    errors = _Errors()

    async def work(backend: Backend) -> int:
        if all_:
            return await _retry_all(chosen, backend, queue, errors)
        return await _retry_some(chosen, backend, wanted, errors)

    count = chosen.converse(work)
    if chosen.json:
        print_json({"retried": count, "errors": errors.found})
    else:
        typer.echo(f"{counted(count, 'job')} sent back to PENDING")
    if errors.first is not None:
        raise typer.Exit(EXIT_CODES[errors.first])


class _Errors:
    """What went wrong, job by job."""

    def __init__(self) -> None:
        self.first: Code | None = None
        self.found: list[dict[str, str]] = []

    def add(self, job_id: str, error: JobQueueError, *, silent: bool) -> None:
        self.first = self.first or error.code
        self.found.append({"job_id": job_id, "code": error.code, "message": error.message})
        if not silent:
            note(f"error: {job_id}: {clean(error.message)}")


async def _retry_some(
    chosen: Session, backend: Backend, job_ids: list[str], errors: _Errors
) -> int:
    async def one(job_id: str) -> JobQueueError | None:
        try:
            await backend.retry(job_id)
        except JobQueueError as error:
            return error
        return None

    outcomes = await chosen.within(asyncio.gather(*map(one, job_ids)))
    for job_id, error in zip(job_ids, outcomes, strict=True):
        if error is not None:
            errors.add(job_id, error, silent=chosen.json)
    return outcomes.count(None)


async def _retry_all(chosen: Session, backend: Backend, queue: str | None, errors: _Errors) -> int:
    if queue is None:
        figures = await chosen.within(backend.list_queues())
    else:
        figures = [await chosen.within(backend.queue_stats(queue))]
    total = sum(stats.depth.get(State.DEAD_LETTERED, 0) for stats in figures)
    query = JobQuery(queue=queue, states=(State.DEAD_LETTERED,), limit=_PAGE)
    count = 0
    with progress("Retrying", total) as bar:
        while True:
            # The token is a place in the order of jobs: what is replayed shifts nothing, and a
            # job that fails again behind us is not met twice.
            page = await chosen.within(backend.list_jobs(query))
            count += await _retry_some(chosen, backend, [job.id for job in page.jobs], errors)
            bar.advance(len(page.jobs))
            query.page_token = page.next_page_token
            if not page.next_page_token:
                return count
