"""Provide the command ``jq-ctl events tail``: it shows the event stream in Kafka."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from jobqueue import config
from jobqueue.cli.display import NONE, local_time
from jobqueue.cli.program import clean_line, examples, json_text
from jobqueue.cli.session import CliSession, CtlTyper
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.ids import parse_job_id
from jobqueue.core.stream import (
    CancelRequested,
    JobDeleted,
    JobEvent,
    ScheduleEvent,
    StreamItem,
)
from jobqueue.documents import Document, job_event_document, rfc3339, schedule_event_document
from jobqueue.server import stream

app = CtlTyper(name="events", no_args_is_help=True, add_completion=False, rich_markup_mode="rich")
_ID = "3f0c2a5e-8d1b-4f53-9a37-2b7d5f0c9e11"
ShownRecord = JobEvent | CancelRequested | JobDeleted | ScheduleEvent


@app.callback()
def events() -> None:
    """Read the event stream in Kafka."""


@app.command(epilog=examples(
    "jq-ctl events tail --bootstrap localhost:9092",
    "jq-ctl events tail --queue mail --output json",
    f"jq-ctl events tail --job {_ID} --from-beginning --no-follow",
    "jq-ctl events tail --schedules --from-beginning",
))  # fmt: skip
def tail(
    chosen: CliSession,
    queue: Annotated[str | None, typer.Option(help="Only jobs of this queue.")] = None,
    job: Annotated[str | None, typer.Option(metavar="JOB_ID", help="Only this job.")] = None,
    schedules: Annotated[
        bool, typer.Option("--schedules", help="Show changes and ticks of schedules, not jobs.")
    ] = False,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            help="The address of Kafka, as HOST:PORT. JQ_KAFKA_BOOTSTRAP gives a default, and the"
            " other JQ_KAFKA_ variables give the login."
        ),
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Show the older events in Kafka first.")
    ] = False,
    follow: Annotated[bool, typer.Option(help="Wait for new events.")] = True,
    count: Annotated[int | None, typer.Option(min=1, help="Exit after this many events.")] = None,
) -> None:
    """Show events as they are published. With JSON output, each event is an object on a line."""
    settings = kafka_settings(bootstrap, "--bootstrap")
    wanted = None if job is None else parse_job_id(job)
    if schedules and (queue is not None or job is not None):
        raise InvalidArgument("--schedules", "cannot be given with --queue or --job")
    shown = 0
    with stream.tail(settings, beginning=from_beginning, schedules=schedules) as records:
        for item in records.records(follow=follow):
            if schedules is not isinstance(item, ScheduleEvent):
                continue
            if not isinstance(item, ShownRecord) or not _meant(item, queue, wanted):
                continue
            if chosen.json:
                typer.echo(json_text(_document(item)))
            else:
                typer.echo(line_of(item))
            shown += 1
            if shown == count:
                return


def kafka_settings(bootstrap: str | None, flag: str) -> config.Settings:
    """Return the settings for reading the event stream.

    Raise InvalidArgument for ``flag`` if no address of Kafka is given.
    """
    settings = config.load(None, os.environ, {"kafka.bootstrap": bootstrap}).settings
    if not settings.kafka.bootstrap:
        raise InvalidArgument(flag, "give the address of Kafka here or in JQ_KAFKA_BOOTSTRAP")
    return settings


def _meant(item: ShownRecord, queue: str | None, job_id: str | None) -> bool:
    if isinstance(item, ScheduleEvent):
        return True
    about = item.event if isinstance(item, JobEvent) else item
    return queue in (None, about.queue) and job_id in (None, about.job_id)


def _document(item: ShownRecord) -> Document:
    if isinstance(item, JobEvent):
        return job_event_document(item)
    if isinstance(item, ScheduleEvent):
        return schedule_event_document(item)
    what = "CANCEL_REQUESTED" if isinstance(item, CancelRequested) else "DELETED"
    document: Document = {
        "event_id": item.event_id,
        "job_id": item.job_id,
        "queue": item.queue,
        "what": what,
        "version": item.version,
        "at": rfc3339(item.at),
    }
    if isinstance(item, JobDeleted):
        document["key_freed"] = item.key_freed
    return document


def line_of(item: StreamItem) -> str:
    """Return the text of an event on one line, for people."""
    return clean_line(_line(item))


def _line(item: StreamItem) -> str:
    if isinstance(item, JobEvent):
        event = item.event
        before = event.from_state.name if event.from_state else NONE
        return "  ".join(
            (local_time(event.at, precise=True), event.job_id, event.queue,
             f"{before} → {event.to_state.name}", event.reason.value, event.worker_id or NONE,
             event.detail)
        ).rstrip()  # fmt: skip
    if isinstance(item, ScheduleEvent):
        state, when = item.state, local_time(item.at, precise=True)
        last = f"last {local_time(state.last_at)} {state.last_job_id or NONE}"
        return "  ".join(
            (when, item.name, item.change.name, last, f"next {local_time(state.next_at)}",
             state.problem)
        ).rstrip()  # fmt: skip
    assert isinstance(item, CancelRequested | JobDeleted)
    what = "cancel requested" if isinstance(item, CancelRequested) else "deleted"
    return "  ".join((local_time(item.at, precise=True), item.job_id, item.queue, what))
