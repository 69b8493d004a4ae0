"""Provide the commands of ``jq-ctl schedule``: they add, show, pause, run and remove schedules."""

from __future__ import annotations

from typing import Annotated

import typer

from jobqueue.cli.display import (
    NONE,
    YesOption,
    ask,
    content_for_people,
    counted,
    duration,
    is_asked,
    local_time,
    note,
    print_fields,
    print_json,
    print_table,
)
from jobqueue.cli.program import examples
from jobqueue.cli.session import CliSession, CtlTyper
from jobqueue.cli.submission import parse_labels, read_payload
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import MAX_PAGE, JobSpec
from jobqueue.core.schedule import Overlap, Schedule, ScheduleSpec
from jobqueue.documents import schedule_document
from jobqueue.engine.admission import check_schedule

app = CtlTyper(
    help="Add, show, pause, run and remove schedules, which submit jobs at their times.",
    no_args_is_help=True,
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]
_FLAGS = {"payload": "PAYLOAD", "queue": "QUEUE", "name": "NAME"}


@app.command(epilog=examples(
    'jq-ctl schedule add nightly default \'{"days": 30}\' --cron "0 3 * * *" --type clean_up',
    'jq-ctl schedule add report mail @report.json --cron "30 6 * * mon-fri"'
    " --timezone Europe/Zurich --overlap skip",
    "jq-ctl schedule add poll default '{}' --every 90 --type poll --priority 5",
))  # fmt: skip
def add(
    chosen: CliSession,
    name: Name,
    queue: Annotated[str, typer.Argument(help="The queue of its jobs.")],
    payload: Annotated[
        str, typer.Argument(help="The payload of its jobs: text, @FILE, or - for stdin.")
    ],
    cron: Annotated[
        str,
        typer.Option(
            metavar="FIELDS",
            help="Its times: minute, hour, day of month, month and day of week, or a shorthand"
            " like @hourly.",
        ),
    ] = "",
    every: Annotated[
        int | None,
        typer.Option(metavar="SECONDS", help="Seconds between two ticks, instead of --cron."),
    ] = None,
    timezone: Annotated[
        str, typer.Option(metavar="ZONE", help="The time zone of --cron, like Europe/Zurich.")
    ] = "UTC",
    overlap: Annotated[
        Overlap,
        typer.Option(
            help="While its last job is unfinished: allow another job, skip the tick, or queue one"
            " tick until that job has ended."
        ),
    ] = Overlap.ALLOW,
    catch_up: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="How late the newest missed tick may be after an outage; 0 = missed ticks are"
            " skipped. Default: the server's setting.",
        ),
    ] = None,
    type_: Annotated[
        str, typer.Option("--type", help="The task's name. Default: the default handler runs.")
    ] = "",
    priority: Annotated[int, typer.Option(help="0 to 9, 9 first.")] = 0,
    max_retries: Annotated[
        int | None, typer.Option(help="The most retries. Default: the queue's setting.")
    ] = None,
    ttl: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time in which a job must start.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time that one attempt may run.")
    ] = None,
    concurrency_key: Annotated[
        str | None,
        typer.Option(help="Limits of the queue count the jobs of equal keys together."),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A label; may be repeated.")
    ] = None,
) -> None:
    """Add a schedule. The servers submit a copy of its job at each of its times (ticks).

    The first tick is the next one from now on. Ticks of --every are the multiples of that many
    seconds since 1970 in UTC. To change a schedule, remove it and add it again.
    """
    spec = ScheduleSpec(
        name=name,
        job=JobSpec(
            payload=read_payload(payload),
            queue=queue,
            type=type_,
            priority=priority,
            max_retries=max_retries,
            ttl=ttl,
            timeout=timeout,
            labels=parse_labels(label or []),
            concurrency_key=concurrency_key,
        ),
        cron=cron,
        every=every,
        timezone=timezone,
        overlap=overlap,
        catch_up=catch_up,
    )
    if not cron and every is None:
        raise InvalidArgument("--cron", "give --cron FIELDS or --every SECONDS")
    try:
        check_schedule(spec)
    except InvalidArgument as error:
        flag = _FLAGS.get(error.field, f"--{error.field.replace('_', '-')}")
        raise InvalidArgument(flag, error.problem) from None
    made = chosen.call(lambda backend: backend.create_schedule(spec))
    chosen.tell(_document(made), f"Schedule {name} is added; its next tick is at {_next(made)}")


@app.command("list", epilog=examples(
    "jq-ctl schedule list", "jq-ctl schedule list --output json"
))  # fmt: skip
def list_schedules(
    chosen: CliSession,
    limit: Annotated[int, typer.Option(min=1, help="The most schedules to list.")] = 1000,
    page_token: Annotated[
        str, typer.Option(metavar="TOKEN", help="Continue an earlier list: the token at its end.")
    ] = "",
) -> None:
    """List schedules by name, with their last and next ticks."""
    found: list[Schedule] = []
    token = page_token
    while True:
        want = min(MAX_PAGE, limit - len(found))
        page = chosen.call(
            lambda backend, want=want, token=token: backend.list_schedules(want, token)  # type: ignore[misc]
        )
        found += page.schedules
        token = page.next_page_token
        if not token or len(found) >= limit:
            break
    if chosen.json:
        documents = [schedule_document(one) for one in found]
        print_json({"schedules": documents, "next_page_token": token})
        return
    headers = [
        "SCHEDULE",
        "TIMES",
        "STATE",
        "NEXT",
        "LAST",
        "SKIPPED",
        "OVERLAP",
        "QUEUE",
        "TYPE",
        "FROM",
    ]
    rows = [
        [
            one.name,
            _times(one),
            _state(one),
            _next(one),
            local_time(one.state.last_at),
            str(one.state.skipped),
            one.spec.overlap.value,
            one.spec.job.queue,
            one.spec.job.type or NONE,
            one.source.value,
        ]
        for one in found
    ]
    print_table(
        headers,
        rows,
        "There are no schedules.",
        spare=("FROM", "OVERLAP", "SKIPPED", "TYPE", "QUEUE", "LAST"),
        elastic="SCHEDULE",
    )
    if token:
        note(f"More schedules follow: --page-token {token}")


@app.command(epilog=examples("jq-ctl schedule show nightly"))
def show(chosen: CliSession, name: Name) -> None:
    """Show a schedule: its definition, its last job, and its next tick."""
    found = chosen.call(lambda backend: backend.get_schedule(name))
    if chosen.json:
        print_json(_document(found))
        return
    spec, state, job = found.spec, found.state, found.spec.job
    limit = "the server's setting" if spec.catch_up is None else duration(spec.catch_up)
    fields = [
        ("Schedule", found.name),
        ("State", _state(found)),
        ("Times", _times(found)),
        ("Next tick", _next(found)),
        ("Last tick", local_time(state.last_at)),
        ("Last job", state.last_job_id or NONE),
    ]
    if state.waiting_at is not None:
        fields.append(
            ("Waiting tick", f"{local_time(state.waiting_at)} (for the end of the last job)")
        )
    if state.skipped:
        fields.append(
            (
                "Skipped",
                f"{counted(state.skipped, 'tick')}, the last one at"
                f" {local_time(state.skipped_at)}: {state.skipped_why}",
            )
        )
    if state.problem:
        fields.append(("Problem", state.problem))
    fields += [
        ("Overlap", spec.overlap.value),
        ("Catch up", "never" if spec.catch_up == 0 else limit),
        ("From", found.source.value),
        ("Queue", job.queue),
        ("Type", job.type or NONE),
        ("Priority", str(job.priority)),
    ]
    for title, value in (("Max retries", job.max_retries),):
        if value is not None:
            fields.append((title, str(value)))
    for title, seconds in (("TTL", job.ttl), ("Delay", job.delay), ("Timeout", job.timeout)):
        if seconds is not None:
            fields.append((title, duration(seconds)))
    if job.concurrency_key is not None:
        fields.append(("Concurrency key", job.concurrency_key))
    if job.labels:
        fields.append(("Labels", ", ".join(f"{n}={v}" for n, v in sorted(job.labels.items()))))
    fields += [
        ("Created", local_time(found.created_at)),
        ("Changed", local_time(found.updated_at)),
        ("Payload", content_for_people(job.payload)),
    ]
    print_fields(fields)


@app.command(epilog=examples("jq-ctl schedule pause nightly"))
def pause(chosen: CliSession, name: Name) -> None:
    """Submit no more jobs of a schedule until it is resumed. Its ticks are skipped."""
    found = chosen.call(lambda backend: backend.pause_schedule(name))
    chosen.tell(_document(found), f"Schedule {name} is paused")


@app.command(epilog=examples("jq-ctl schedule resume nightly"))
def resume(chosen: CliSession, name: Name) -> None:
    """Submit the jobs of a paused schedule again, from its next tick on."""
    found = chosen.call(lambda backend: backend.resume_schedule(name))
    chosen.tell(_document(found), f"Schedule {name} is active; its next tick is at {_next(found)}")


@app.command("run-now", epilog=examples("jq-ctl schedule run-now nightly"))
def run_now(chosen: CliSession, name: Name) -> None:
    """Submit the job of a schedule now, also of a paused one, and print the job's id."""
    job_id = chosen.call(lambda backend: backend.run_schedule(name))
    chosen.tell({"name": name, "job_id": job_id}, job_id)


@app.command(epilog=examples("jq-ctl schedule remove nightly", "jq-ctl schedule remove old --yes"))
def remove(chosen: CliSession, name: Name, yes: YesOption = False) -> None:
    """Remove a schedule; its jobs stay. On a terminal, the command asks for a yes first.

    A schedule that code declares is created again when a worker with that code starts: remove it
    from the code first, or pause it.
    """
    if is_asked(yes):
        found = chosen.call(lambda backend: backend.get_schedule(name))
        ask(f"Schedule {name} ({_times(found)}) will be removed.")
    chosen.call(lambda backend: backend.remove_schedule(name))
    chosen.tell({"name": name, "removed": True}, f"Schedule {name} is removed")


def _document(found: Schedule) -> dict[str, object]:
    return schedule_document(found, payload=True)


def _times(found: Schedule) -> str:
    spec = found.spec
    if spec.every is not None:
        return f"every {duration(spec.every)}"
    return spec.cron if spec.timezone == "UTC" else f"{spec.cron} {spec.timezone}"


def _state(found: Schedule) -> str:
    if found.state.paused:
        return "paused"
    return "failing" if found.state.problem else "active"


def _next(found: Schedule) -> str:
    return local_time(found.state.next_at)
