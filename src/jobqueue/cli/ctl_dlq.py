"""Provide the commands ``jq-ctl dlq list`` and ``jq-ctl dlq retry``, for dead letters."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated

import typer

from jobqueue.cli.ctl_job import LimitOption, PageTokenOption, QueueOption, TypeOption, show_jobs
from jobqueue.cli.display import (
    YesOption,
    ask,
    counted,
    is_asked,
    note,
    print_json,
    progress,
    staying,
)
from jobqueue.cli.program import EXIT_CODES, examples
from jobqueue.cli.session import CliSession, CtlTyper
from jobqueue.core.api import Backend
from jobqueue.core.errors import Code, InvalidArgument, JobQueueError
from jobqueue.core.ids import parse_job_id
from jobqueue.core.job import JobQuery, RetryQuery
from jobqueue.core.lifecycle import DEATHS, State, parse_deaths

app = CtlTyper(help="List dead letters and retry them.", no_args_is_help=True)
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_ERRORS_SHOWN = 5
_ERRORS_KEPT = 1_000
_REASONS = f"FAILURES, ALL, or of {', '.join(sorted(DEATHS))}; separated by commas"

ErrorOption = Annotated[
    str, typer.Option(metavar="TEXT", help="Only jobs whose error contains this text.")
]
SinceOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Only jobs given up since: 2h (ago), 2030-01-31T12:00."),
]
UntilOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="Only jobs given up before that time.")
]


@app.command("list", epilog=examples(
    "jq-ctl dlq list",
    "jq-ctl dlq list --queue mail --reason FAILURES --since 2h -o json",
))  # fmt: skip
def list_dead(
    chosen: CliSession,
    queue: QueueOption = None,
    type_: TypeOption = None,
    reason: Annotated[
        str | None, typer.Option(help=f"Only jobs given up for these reasons: {_REASONS}.")
    ] = None,
    error: ErrorOption = "",
    since: SinceOption = None,
    until: UntilOption = None,
    limit: LimitOption = None,
    page_token: PageTokenOption = "",
) -> None:
    """List dead letters, newest first, with the reason and error of each."""
    query = JobQuery(
        queue=queue,
        states=(State.DEAD_LETTERED,),
        type=type_,
        reasons=() if reason is None else parse_deaths([reason], "--reason"),
        error=error,
        since=parse_moment(since, "--since"),
        until=parse_moment(until, "--until"),
        page_token=page_token,
    )
    show_jobs(chosen, query, limit, dead_letters=True)


@app.command(epilog=examples(
    "jq-ctl dlq retry 3f0c2a5e-8d1b-4f53-9a37-2b7d5f0c9e11",
    "jq-ctl dlq retry --all --queue mail --error 'connection refused' --since 2h",
    "jq-ctl dlq retry --all --reason CANCELLED --dry-run",
))  # fmt: skip
def retry(
    chosen: CliSession,
    job_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[JOB_ID]...", help="The jobs.")
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Retry every dead letter that matches the other options.")
    ] = False,
    queue: QueueOption = None,
    type_: TypeOption = None,
    reason: Annotated[
        str | None,
        typer.Option(
            help=f"Only jobs given up for these reasons: {_REASONS}. Default: FAILURES, which"
            " leaves out jobs that were cancelled, superseded, expired, or dropped with their"
            " queue.",
        ),
    ] = None,
    error: ErrorOption = "",
    since: SinceOption = None,
    until: UntilOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the matching jobs, and change nothing.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Move dead letters back to PENDING, and reset their retry counters.

    With --all on a terminal, the command first shows the number of jobs and asks for a yes.
    """
    if bool(job_ids) == all_:
        raise InvalidArgument("JOB_ID", "give either job ids or --all")
    if all_:
        query = RetryQuery(
            queue=queue,
            type=type_,
            error=error,
            since=parse_moment(since, "--since"),
            until=parse_moment(until, "--until"),
        )
        if reason is not None:
            query.reasons = parse_deaths([reason], "--reason")
        done = _retry_all(chosen, query, dry_run=dry_run, yes=yes)
        if reason is None and done.looked_at and not done.matched:
            note(
                "Only failures are retried by default; --reason ALL includes cancelled and expired"
                " jobs."
            )
    else:
        _only_with_all(queue=queue, type=type_, reason=reason, error=error, since=since,
                       until=until, dry_run=dry_run)  # fmt: skip
        wanted = [parse_job_id(job_id) for job_id in job_ids or ()]
        done = chosen.converse(lambda backend: _retry_some(chosen, backend, wanted))
    _tell(chosen, done, dry_run=dry_run)
    if done.code is not None:
        raise typer.Exit(EXIT_CODES[done.code])


def parse_moment(text: str | None, field: str) -> float | None:
    """Return the time that a text describes, or None if ``text`` is None.

    ``2h`` means two hours ago. Any other text must be a date or a time in ISO 8601, which is local
    unless it has a UTC offset. Raise InvalidArgument for ``field`` if the text is not a time.
    """
    if text is None:
        return None
    ago = _AGO.fullmatch(text.strip().lower())
    if ago is not None:
        return max(0.0, time.time() - float(ago[1]) * _UNITS[ago[2]])
    try:
        return datetime.fromisoformat(text.strip()).astimezone().timestamp()
    except (ValueError, OverflowError):
        raise InvalidArgument(
            field,
            f"{text[:80]!r} is not a time; allowed: 30m, 2h or 7d (ago), 2030-01-31,"
            " 2030-01-31T12:00 (local) or 2030-01-31T12:00:00Z",
        ) from None


def _only_with_all(**options: object) -> None:
    for name, value in options.items():
        if value:
            raise InvalidArgument(f"--{name.replace('_', '-')}", "is allowed with --all only")


@dataclass(slots=True)
class _Done:
    """Counts dead letters that were read, matched and retried; keeps the errors of retries."""

    looked_at: int = 0
    matched: int = 0
    retried: int = 0
    refused: int = 0
    moved: int = 0  # jobs that left DEAD_LETTERED before this command retried them
    code: Code | None = None  # of the first error
    errors: list[dict[str, str]] = field(default_factory=list)

    @property
    def stayed(self) -> int:
        """Return the number of dead letters that were read and are still dead letters."""
        return self.looked_at - self.retried - self.moved

    def add(self, job_id: str, code: Code, message: str, *, silent: bool) -> None:
        self.refused += 1
        self.code = self.code or code
        if len(self.errors) < _ERRORS_KEPT:
            self.errors.append({"job_id": job_id, "code": code, "message": message})
        if not silent and self.refused <= _ERRORS_SHOWN:
            note(f"error: {job_id}: {message}")
        elif not silent and self.refused == _ERRORS_SHOWN + 1:
            note("error: more jobs were refused; --output json lists them")


def _tell(chosen: CliSession, done: _Done, *, dry_run: bool) -> None:
    if chosen.json:
        print_json({
            "matched": done.matched,
            "retried": done.retried,
            "stayed": done.stayed,
            "refused": done.refused,
            "errors": done.errors,
        })  # fmt: skip
    elif dry_run:
        others = done.looked_at - done.matched
        more = f"; {counted(others, 'dead letter')} would stay behind" if others else ""
        typer.echo(f"{counted(done.matched, 'job')} would be sent back to PENDING{more}")
    else:
        more = f"; {staying(done.stayed)}" if done.stayed else ""
        typer.echo(f"{counted(done.retried, 'job')} sent back to PENDING{more}")


async def _retry_some(chosen: CliSession, backend: Backend, job_ids: list[str]) -> _Done:
    async def one(job_id: str) -> JobQueueError | None:
        try:
            await backend.retry(job_id)
        except JobQueueError as error:
            return error
        return None

    outcomes = await chosen.within(asyncio.gather(*map(one, job_ids)))
    done = _Done(matched=len(job_ids), retried=outcomes.count(None))
    done.looked_at = done.retried  # the state of the other jobs is not known
    for job_id, error in zip(job_ids, outcomes, strict=True):
        if error is not None:
            done.add(job_id, error.code, error.message, silent=chosen.json)
    return done


def _retry_all(chosen: CliSession, query: RetryQuery, *, dry_run: bool, yes: bool) -> _Done:
    if dry_run or is_asked(yes):
        counting = replace(query, dry_run=True)
        seen = chosen.converse(lambda backend: _walk(chosen, backend, counting, "Counting"))
        if dry_run or not seen.matched:
            return seen
        others = seen.looked_at - seen.matched
        stay = f" {staying(others, 'other')}." if others else ""
        where = f" of queue {query.queue}" if query.queue else ""
        ask(
            f"{counted(seen.matched, 'job')}{where} will be sent back to PENDING"
            f" ({', '.join(query.reasons)}).{stay}"
        )
    return chosen.converse(lambda backend: _walk(chosen, backend, query, "Retrying"))


async def _walk(chosen: CliSession, backend: Backend, query: RetryQuery, label: str) -> _Done:
    """Retry or count the matching dead letters page by page, newest first.

    A page token is a place in the order of all jobs, so that retried jobs do not shift the pages. A
    job that becomes a dead letter again meanwhile is not retried a second time.
    """
    if query.queue is None:
        figures = await chosen.within(backend.list_queues())
    else:
        figures = [await chosen.within(backend.queue_stats(query.queue))]
    total = sum(stats.depth.get(State.DEAD_LETTERED, 0) for stats in figures)
    done = _Done()
    ended = False
    try:
        with progress(label, total) as bar:
            while not ended:
                page = await chosen.within(backend.retry_dead_letters(query))
                done.looked_at += page.looked_at
                done.matched += page.matched
                done.retried += page.retried
                if not query.dry_run:
                    done.moved += page.matched - page.retried - len(page.refused)
                for one in page.refused:
                    done.add(one.job_id, Code.CONFLICT, one.message, silent=chosen.json)
                bar.advance(page.looked_at)
                query.page_token = page.next_page_token
                ended = not page.next_page_token
    finally:
        if not ended and done.retried:  # an error, or Ctrl-C
            so_far = counted(done.retried, "job")
            note(f"{so_far} sent back to PENDING so far; run the same command again for the rest")
    return done
