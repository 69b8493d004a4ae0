"""Provide the command ``jq-ctl replay``: it rebuilds a store from the event stream."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any

import typer

from jobqueue.cli.ctl_events import kafka_settings
from jobqueue.cli.display import counted, print_json, progress
from jobqueue.cli.program import clean, examples, run_async
from jobqueue.cli.session import CliSession, CtlTyper
from jobqueue.config import Settings
from jobqueue.connect.backends import create_store
from jobqueue.connect.urls import parse_url
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.rebuild import Restored, Told, gather, not_empty
from jobqueue.core.store import JobFilter, Store
from jobqueue.events.replay import Replay
from jobqueue.redaction import redact_value
from jobqueue.server import stream

_TARGETS = (
    "redis://HOST:PORT/NUMBER, postgresql://USER@HOST:PORT/DATABASE, sqlite:///FILE (relative),"
    " sqlite:////PATH/FILE (absolute)"
)
_SHOWN = 5

app = CtlTyper(add_completion=False, rich_markup_mode="rich")


@app.command(epilog=examples(
    "jq-ctl replay --from-kafka --kafka-bootstrap localhost:9092 --dry-run",
    "jq-ctl replay --from-kafka --into postgresql://jobs@db/jobs",
    "jq-ctl replay --from-kafka --into sqlite:////var/lib/jobs.db --new-stream",
))  # fmt: skip
def replay(
    chosen: CliSession,
    from_kafka: Annotated[
        bool, typer.Option("--from-kafka", help="Read the event stream in Kafka.")
    ] = False,
    into: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help=f"The store to write, which must be empty: {_TARGETS}."
            " Its password: JQ_DB_PASSWORD.",
        ),
    ] = None,
    kafka_bootstrap: Annotated[
        str | None,
        typer.Option(
            help="The address of Kafka, as HOST:PORT. JQ_KAFKA_BOOTSTRAP gives a default, and the"
            " other JQ_KAFKA_ variables give the topics and the login."
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Rebuild this store, if the topics hold the records of several stores.",
        ),
    ] = None,
    skip_damaged: Annotated[
        bool,
        typer.Option("--skip-damaged", help="Leave out jobs with missing records, and list them."),
    ] = False,
    continue_stream: Annotated[
        bool,
        typer.Option(
            "--continue-stream/--new-stream",
            help="Whether the store's servers will publish to the same topics, after the records"
            " there; or publish everything from the beginning to new topics.",
        ),
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only read the records, and print their numbers.")
    ] = False,
) -> None:
    """Rebuild the whole job state from the event stream, in an empty store.

    Stop the servers first: records that are published later are not read. The state is built in
    memory before it is written, which needs about 2 KB for each job, plus its payload and result.
    Jobs that were running are written as running; the servers that start afterwards find that the
    workers of these jobs are lost, and retry the jobs.
    """
    if not from_kafka:
        raise InvalidArgument("--from-kafka", "must be given: Kafka is the only source")
    settings = kafka_settings(kafka_bootstrap, "--kafka-bootstrap")
    url = _target(into, dry_run=dry_run)
    quiet = chosen.json
    if not dry_run:
        run_async(_look_at(url, settings))
    found = _read(settings, None, quiet)
    if store is not None:
        only = found.of_store(store)
        if set(found.stores) - only:
            if continue_stream and not dry_run:
                raise InvalidArgument(
                    "--store",
                    "needs --new-stream: the topics also hold the records of other stores, so that"
                    " the store's servers must publish to new topics",
                )
            found = _read(settings, only, quiet)
    found.check_one_store()
    if not skip_damaged:
        found.check()
    identity = found.identity()
    state = gather(found.world, published=continue_stream, identity=identity)
    if not dry_run:
        with _told("writing", len(state.jobs), quiet) as told:
            run_async(_write(url, settings, state, told))
    report = _report(found, state, into=None if dry_run else redact_value(url))
    if quiet:
        print_json(report)
    else:
        _show(report)


def _read(settings: Settings, only: frozenset[str] | None, quiet: bool) -> Replay:
    found = Replay(only)
    with stream.record(settings) as record, _told("reading", record.total, quiet) as told:
        found.read(record, told)
    return found


def _target(into: str | None, *, dry_run: bool) -> str:
    if into is None:
        if not dry_run:
            raise InvalidArgument("--into", f"must name the store to write; allowed: {_TARGETS}")
        return ""
    if parse_url(into, "--into", _TARGETS).scheme in ("memory", "grpc"):
        raise InvalidArgument(
            "--into", f"{redact_value(into)!r} is not a store to write; allowed: {_TARGETS}"
        )
    return into


@asynccontextmanager
async def _opened(url: str, settings: Settings) -> AsyncIterator[Store]:
    from jobqueue.server import options  # imports every face, which other commands do not need

    store = create_store(
        options.db_url(settings, url), rules=options.rules(settings), field="--into"
    )
    try:
        await store.open()
        yield store
    finally:
        await store.close()


async def _look_at(url: str, settings: Settings) -> None:
    """Raise Conflict if the store has jobs, so that the long reading is not done in vain."""
    async with _opened(url, settings) as store:
        if await store.reads.list_jobs(JobFilter(limit=1)):
            raise not_empty("jobs")


async def _write(url: str, settings: Settings, state: Restored, told: Told) -> None:
    async with _opened(url, settings) as store:
        await store.restore(state, told)


@contextmanager
def _told(label: str, total: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows the progress, given the number of records or jobs so far.

    The progress is a bar on a terminal, else lines, which ``quiet`` suppresses.
    """
    with progress(label, total) as bar:
        seen = shown = 0

        def told(count: int) -> None:
            nonlocal seen, shown
            bar.advance(count - seen)
            seen = count
            tenth = 10 * count // total if total else 10
            if tenth > shown and not quiet and not sys.stderr.isatty():
                shown = tenth
                typer.echo(f"{label}: {count} of {total}", err=True)

        yield told


def _report(found: Replay, state: Restored, into: str | None) -> dict[str, Any]:
    return {
        "into": into,
        "store": state.identity.store,
        "generation": state.identity.generation,
        "records": found.records,
        "repeated": found.repeated,
        "jobs": len(state.jobs),
        "queues": sum(not one.deleted for one in state.queues),
        "keys": len(state.keys),
        "schedules": len(state.schedules),
        "ignored": found.ignored,
        "left_out": [{"what": what, "why": why} for what, why in found.damaged.items()],
    }


def _show(report: dict[str, Any]) -> None:
    parts = [
        counted(report["jobs"], "job"),
        counted(report["queues"], "queue"),
        counted(report["keys"], "idempotency key"),
    ]
    if report["schedules"]:
        parts.append(counted(report["schedules"], "schedule"))
    what = ", ".join(parts)
    read = f"{counted(report['records'], 'record')}, {report['repeated']} of them repeated"
    done = f"written to {report['into']}" if report["into"] else "nothing was written"
    typer.echo(clean(f"{read}: {what}; {done}"))
    if report["into"]:
        typer.echo(f"the store is {report['store']}, generation {report['generation']}")
    ignored = report["ignored"]
    for where in ignored[:_SHOWN]:
        typer.echo(clean(f"ignored: {where}: not a record of the event stream"))
    if len(ignored) > _SHOWN:
        typer.echo(f"ignored: and {len(ignored) - _SHOWN} more")
    for one in report["left_out"]:
        typer.echo(clean(f"left out: {one['what']}: {one['why']}"))
