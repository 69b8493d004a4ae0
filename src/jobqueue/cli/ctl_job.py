"""Provide the commands of ``jq-ctl job``: they submit, show, cancel, retry and delete jobs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from jobqueue.cli import ctl_submit
from jobqueue.cli.display import (
    NO_TYPE,
    NONE,
    JobBar,
    YesOption,
    ago,
    ask,
    content_for_people,
    counted,
    is_asked,
    local_time,
    note,
    on_terminal,
    print_fields,
    print_json,
    print_table,
    progress_line,
    say,
)
from jobqueue.cli.program import examples, json_text
from jobqueue.cli.session import CliSession, CtlTyper
from jobqueue.core.api import Backend
from jobqueue.core.errors import Conflict, InvalidArgument, JobFailed, JobQueueError
from jobqueue.core.explain import span
from jobqueue.core.ids import parse_job_id
from jobqueue.core.job import MAX_PAGE, Event, Job, JobQuery, Page, older
from jobqueue.core.lifecycle import TERMINAL, State, parse_state
from jobqueue.core.progress import Progress
from jobqueue.documents import (
    event_document,
    explanation_document,
    job_document,
    progress_document,
)

app = CtlTyper(help="Submit, show, cancel, retry and delete jobs.", no_args_is_help=True)
app.command("submit", epilog=ctl_submit.EXAMPLES)(ctl_submit.submit)

JobId = Annotated[str, typer.Argument(metavar="JOB_ID", help="The job's id.")]
LimitOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Show at most this many jobs. Default: 20; on a terminal all, page by page."
    ),
]
QueueOption = Annotated[str | None, typer.Option(help="Only jobs of this queue.")]
TypeOption = Annotated[str | None, typer.Option("--type", help="Only jobs of this type.")]
PageTokenOption = Annotated[str, typer.Option(help="Where the page begins: from the last one.")]
_FIRST_LOOK, _NEXT_LOOK = 0.1, 1.0  # seconds before the first read of progress, and the next ones
_STATES = ", ".join(state.name for state in State)
_ID = "3f0c2a5e-8d1b-4f53-9a37-2b7d5f0c9e11"


@app.command(epilog=examples(f"jq-ctl job status {_ID}"))
def status(chosen: CliSession, job_id: JobId) -> None:
    """Show everything about a job."""
    wanted = parse_job_id(job_id)
    job = chosen.call(lambda backend: backend.get(wanted))
    show_job(job, chosen)


def show_job(job: Job, chosen: CliSession) -> None:
    """Print a job: as JSON, or as a list of its fields."""
    if chosen.json:
        print_json(job_document(job))
        return
    worker = f"{job.worker_id or NONE} (attempt {job.attempt})" if job.attempt else NONE
    fields = [
        ("Job ID", job.id),
        ("Queue", job.queue),
        ("Type", job.type),
        ("Status", job.state.name),
        *([("Waits", job.hint)] if job.hint else []),
        ("Reason", job.reason.value + (" (cancel requested)" if job.cancel_requested else "")),
        ("Priority", str(job.priority)),
        ("Retry count", f"{job.retry_count} of {job.max_retries}"),
        ("Worker", worker),
        ("Created", local_time(job.created_at)),
        ("Started", local_time(job.started_at)),
        ("Completed", local_time(job.completed_at)),
    ]
    told = job.progress
    optional = [
        ("Progress", "" if told is None else f"{progress_line(told)} ({ago(told.at)})"),
        ("Runs at", local_time(job.run_at) if job.run_at else ""),
        ("Expires", local_time(job.expires_at) if job.expires_at else ""),
        ("Next retry", local_time(job.next_retry_at) if job.next_retry_at else ""),
        ("Timeout", f"{job.timeout:g} s" if job.timeout else ""),
        ("Key", job.key or ""),
        ("Labels", ", ".join(f"{k}={v}" for k, v in sorted(job.labels.items()))),
        *((_title(name), _value(value)) for name, value in job.spec.more().items()),
        ("Error", job.error),
    ]
    fields += [(name, value) for name, value in optional if value]
    fields += [
        ("Payload", content_for_people(job.payload)),
        ("Result", content_for_people(job.result)),
    ]
    print_fields(fields)


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _value(value: Any) -> str:
    several = isinstance(value, tuple)
    return ", ".join(map(str, value)) if several else "" if value is None else str(value)


EXPLAIN_EXAMPLES = examples(f"jq-ctl explain {_ID}", f"jq-ctl explain {_ID} --output json")


def explain(chosen: CliSession, job_id: JobId) -> None:
    """Say why a job does not run: its queue, its workers, their slots, limits and times."""
    wanted = parse_job_id(job_id)
    found = chosen.call(lambda backend: backend.explain(wanted))
    if chosen.json:
        print_json(explanation_document(found))
        return
    say(f"Job {wanted} is {found.state.name}:")
    for one in found.causes:
        say(f"- {one.text} ({one.code})")
        for line in _held_by(one.facts.get("held_by", ()), found.at):
            say(f"    {line}")
        if one.advice:
            say(f"  > {one.advice}")


def _held_by(jobs: Sequence[Mapping[str, Any]], now: float) -> list[str]:
    return [
        f"{job['worker_id']} has job {job['job_id']} ({job['type'] or NO_TYPE})"
        f" for {span(now - job['since_at'])}"
        for job in jobs
    ]


@app.command(epilog=examples(f"jq-ctl job logs {_ID}"))
def logs(
    chosen: CliSession,
    job_id: JobId,
    before_version: Annotated[
        int | None, typer.Option(min=1, help="Show only transitions before this number.")
    ] = None,
) -> None:
    """Show a job's newest 500 transitions, oldest first."""
    wanted = parse_job_id(job_id)
    events = chosen.call(lambda backend: backend.history(wanted, before_version))
    earlier = older(events)
    if chosen.json:
        shown = [event_document(event) for event in events]
        print_json({"job_id": wanted, "events": shown, "older": earlier})
        return
    headers = ("#", "TIME", "FROM", "TO", "REASON", "ATTEMPT", "WORKER", "DETAIL")
    print_table(
        headers,
        [_event_row(event) for event in events],
        "There are no events.",
        spare=("FROM", "ATTEMPT", "WORKER", "DETAIL", "REASON"),
        elastic="DETAIL",
    )
    if earlier:
        before = f"jq-ctl job logs {wanted} --before-version {earlier + 1}"
        note(f"note: {counted(earlier, 'older transition')} not shown; see: {before}")


def _event_row(event: Event) -> list[str]:
    return [
        str(event.version),
        local_time(event.at, precise=True),
        event.from_state.name if event.from_state else NONE,
        event.to_state.name,
        event.reason.value,
        str(event.attempt),
        event.worker_id or NONE,
        _first_line(event.detail) or NONE,
    ]


@app.command("list", epilog=examples(
    "jq-ctl job list --queue mail --status PENDING,RUNNING",
    "jq-ctl job list --status DEAD_LETTERED --limit 100 --output json",
))  # fmt: skip
def list_jobs(
    chosen: CliSession,
    queue: QueueOption = None,
    status: Annotated[
        str, typer.Option(help=f"Only jobs in these states, separated by commas: {_STATES}.")
    ] = "",
    type_: TypeOption = None,
    limit: LimitOption = None,
    page_token: PageTokenOption = "",
) -> None:
    """List jobs, newest first."""
    states = tuple(parse_state(name, "--status") for name in status.split(",") if name.strip())
    query = JobQuery(queue=queue, states=states, type=type_, page_token=page_token)
    show_jobs(chosen, query, limit)


def show_jobs(
    chosen: CliSession, query: JobQuery, limit: int | None, *, dead_letters: bool = False
) -> None:
    """Print the jobs that match a query, at most ``limit``.

    If ``limit`` is None, print a page. On a terminal, ask after each page whether to print the
    next page.
    """
    if limit is not None and limit > MAX_PAGE:
        raise InvalidArgument("--limit", f"must be 1 to {MAX_PAGE}")

    async def pages(backend: Backend) -> None:
        while True:
            page = await _read_page(chosen, backend, query, limit or query.limit)
            _print_page(chosen, page, dead_letters=dead_letters)
            query.page_token = page.next_page_token
            if chosen.json or not page.next_page_token:
                return
            if limit is not None or not (on_terminal() and sys.stdin.isatty()):
                if not on_terminal():
                    note(f"There are more: add --page-token {query.page_token}")
                return
            if not _next_page_wanted():
                return

    chosen.converse(pages)


async def _read_page(chosen: CliSession, backend: Backend, query: JobQuery, limit: int) -> Page:
    """Return a page with ``limit`` jobs. The server returns shorter pages if jobs are large."""
    whole = Page([])
    asked = replace(query, limit=limit)
    while True:
        page = await chosen.within(backend.list_jobs(asked))
        whole.jobs += page.jobs
        whole.next_page_token = asked.page_token = page.next_page_token
        asked.limit = limit - len(whole.jobs)
        if asked.limit < 1 or not page.next_page_token:
            return whole


def _print_page(chosen: CliSession, page: Page, *, dead_letters: bool) -> None:
    if chosen.json:
        jobs = [job_document(job) for job in page.jobs]
        print_json({"jobs": jobs, "next_page_token": page.next_page_token})
        return
    headers = ["JOB ID", "QUEUE", "TYPE", "STATUS", "PRIO", "RETRIES", "CREATED"]
    if dead_letters:
        headers[3:5] = ["REASON", "ERROR"]
    rows = []
    for job in page.jobs:
        row = [job.id, job.queue, job.type or NONE, job.state.name, str(job.priority),
               f"{job.retry_count}/{job.max_retries}", local_time(job.created_at)]  # fmt: skip
        if dead_letters:
            row[3:5] = [job.reason.value, _first_line(job.error) or NONE]
        rows.append(row)
    print_table(
        headers,
        rows,
        "There are no such jobs.",
        spare=("RETRIES", "PRIO", "CREATED", "QUEUE", "REASON", "TYPE"),
        elastic="ERROR",
    )


def _first_line(text: str) -> str:
    """Return the first line of an error's text: the message without the traceback."""
    return text.strip().partition("\n")[0]


def _next_page_wanted() -> bool:
    answer = typer.prompt("Enter for the next page, q to stop", default="", show_default=False)
    return not answer.lower().startswith("q")


@app.command(epilog=examples(f"jq-ctl job cancel {_ID}"))
def cancel(chosen: CliSession, job_id: JobId) -> None:
    """Cancel a job at once if it waits. If the job is running, ask its worker to stop it."""
    wanted = parse_job_id(job_id)
    answer = chosen.call(lambda backend: backend.cancel(wanted))
    if answer.already_terminal:
        raise Conflict(
            f"job {wanted} is {answer.state.name}; only jobs that have not ended can be cancelled"
        )
    how = "running; its worker was asked to stop it" if answer.requested else "cancelled"
    document = {
        "job_id": wanted,
        "status": answer.state.name,
        "cancel_requested": answer.requested,
        "already_terminal": False,
    }
    chosen.tell(document, f"Job {wanted} is {how}")


@app.command(epilog=examples(f"jq-ctl job retry {_ID}"))
def retry(chosen: CliSession, job_id: JobId) -> None:
    """Move a FAILED or DEAD_LETTERED job back to PENDING, and reset its retry counter."""
    wanted = parse_job_id(job_id)
    job = chosen.call(lambda backend: backend.retry(wanted))
    chosen.tell(job_document(job), f"Job {job.id} is {job.state.name} again")


@app.command(epilog=examples(f"jq-ctl job delete {_ID}"))
def delete(chosen: CliSession, job_id: JobId, yes: YesOption = False) -> None:
    """Delete an ended job and its history permanently. On a terminal, ask for a yes first."""
    wanted = parse_job_id(job_id)
    if is_asked(yes):
        job = chosen.call(lambda backend: backend.get(wanted))
        if job.state in TERMINAL:  # the server refuses to delete any other job
            what = f"{job.state.name}, queue {job.queue}{f', {job.type}' if job.type else ''}"
            ask(f"Job {wanted} ({what}) and its history will be removed for good.")
    chosen.call(lambda backend: backend.delete_job(wanted))
    chosen.tell({"job_id": wanted, "deleted": True}, f"Job {wanted} is deleted")


@app.command(epilog=examples(f"jq-ctl job watch {_ID}"))
def watch(chosen: CliSession, job_id: JobId) -> None:
    """Show a job's transitions and its progress as they happen, until the job ends.

    With JSON output, each transition and each change of the progress is an object on a line. Only
    an object about the progress has the field "progress".
    """
    wanted = parse_job_id(job_id)

    async def follow(backend: Backend) -> Job:
        found = await chosen.within(backend.get(wanted))  # raises NotFound for an unknown job
        if found.hint:
            note(f"note: the job waits: {found.hint}")
        bar = JobBar() if on_terminal() and not chosen.json else None
        try:
            async for news in _followed(chosen, backend, wanted):
                _show_news(news, chosen, bar)
        finally:
            if bar is not None:
                bar.hide()
        return await chosen.within(backend.get(wanted))

    job = chosen.converse(follow)
    if job.state is State.DEAD_LETTERED:
        raise JobFailed(job.id, job.reason.value, job.error)


async def _followed(
    chosen: CliSession, backend: Backend, job_id: str
) -> AsyncIterator[Event | Job]:
    """Yield a job's transitions, and the running job itself each time its progress has changed."""
    events = backend.watch(job_id)
    upcoming = asyncio.ensure_future(anext(events, None))
    pause: float | None = None  # before the next read of progress; None: the job does not run
    shown: Progress | None = None
    try:
        while True:
            await asyncio.wait({upcoming}, timeout=pause)
            if upcoming.done():
                event = upcoming.result()
                if event is None:
                    return
                yield event
                upcoming = asyncio.ensure_future(anext(events, None))
                pause = _FIRST_LOOK if event.to_state is State.RUNNING else None
                continue
            pause = _NEXT_LOOK
            try:
                job = await chosen.within(backend.get(job_id))
            except JobQueueError:  # progress is optional: continue with the transitions
                continue
            if job.progress is not None and job.progress != shown:
                shown = job.progress
                yield job
    finally:
        upcoming.cancel()


def _show_news(news: Event | Job, chosen: CliSession, bar: JobBar | None) -> None:
    if isinstance(news, Event):
        if bar is not None:
            bar.hide()
        if chosen.json:
            typer.echo(json_text(event_document(news)))
        else:
            say("  ".join(_event_row(news)[1:6]))
    elif (told := news.progress) is not None:
        if chosen.json:
            document = {"progress": progress_document(told), "attempt": news.attempt}
            typer.echo(json_text(document))
        elif bar is not None:
            bar.show(told)
        else:
            say(f"{local_time(told.at, precise=True)}  progress  {progress_line(told)}")
