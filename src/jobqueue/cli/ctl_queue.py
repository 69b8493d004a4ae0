"""``jq-ctl queue``: create, look at, pause and delete queues."""

from __future__ import annotations

from typing import Annotated

import typer

from jobqueue.cli.asking import YesOption, ask, is_asked
from jobqueue.cli.display import (
    NO_TYPE,
    NONE,
    counted,
    duration,
    print_fields,
    print_json,
    print_table,
    staying,
)
from jobqueue.cli.documents import queue_document
from jobqueue.cli.program import examples
from jobqueue.cli.session import OutputOption, session
from jobqueue.core.api import Backend
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import MAX_PRIORITY, QueueSpec, QueueStats
from jobqueue.core.lifecycle import State
from jobqueue.core.retry import PROFILES, profile

app = typer.Typer(help="Create, look at, pause and delete queues.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The queue's name.")]


@app.command(epilog=examples(
    "jq-ctl queue create mail",
    "jq-ctl queue create mail --max-retries 5 --ttl 3600 --priority-weights 9:5,5:3,0:1",
))  # fmt: skip
def create(
    context: typer.Context,
    name: Name,
    max_retries: Annotated[int | None, typer.Option(min=0, help="Retries of its jobs.")] = None,
    ttl: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time in which its jobs must start.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time that one attempt may run.")
    ] = None,
    capacity: Annotated[
        int | None, typer.Option(min=0, help="PENDING jobs it takes at most; 0 = unbounded.")
    ] = None,
    retry_profile: Annotated[
        str | None, typer.Option(help=f"How long retries wait: {', '.join(PROFILES)}.")
    ] = None,
    priority_weights: Annotated[
        str,
        typer.Option(
            metavar="P:W,...",
            help="Share dispatch among priorities by weight; without it priority is strict.",
        ),
    ] = "",
    output: OutputOption = None,
) -> None:
    """Create a queue."""
    chosen = session(context)
    if retry_profile is not None:
        profile(retry_profile)  # a wrong name is told before anything is sent
    spec = QueueSpec(
        name=name,
        max_retries=max_retries,
        ttl=ttl,
        timeout=timeout,
        capacity=capacity,
        retry_profile=retry_profile,
        priority_weights=parse_weights(priority_weights),
    )
    created = chosen.call(lambda backend: backend.create_queue(spec))
    if chosen.json:
        print_json(queue_document(QueueStats(queue=created, depth={})))
    else:
        typer.echo(f"Queue {created.name} is created")


def parse_weights(text: str) -> dict[int, int] | None:
    """``9:5,5:3`` as a mapping of priorities to weights."""
    weights: dict[int, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        priority, sep, weight = item.partition(":")
        if not (sep and priority.isdecimal() and weight.isdecimal()):
            raise InvalidArgument(
                "--priority-weights", f"{item!r} is not PRIORITY:WEIGHT, as in 9:5,5:3,0:1"
            )
        if int(priority) > MAX_PRIORITY or int(weight) < 1 or int(priority) in weights:
            raise InvalidArgument(
                "--priority-weights",
                f"{item!r}: priorities are 0 to {MAX_PRIORITY}, each once; weights are 1 or more",
            )
        weights[int(priority)] = int(weight)
    return weights or None


@app.command(epilog=examples("jq-ctl queue delete mail", "jq-ctl queue delete mail --force --yes"))
def delete(
    context: typer.Context,
    name: Name,
    force: Annotated[
        bool, typer.Option("--force", help="Dead-letter its unfinished jobs first.")
    ] = False,
    yes: YesOption = False,
    output: OutputOption = None,
) -> None:
    """Delete an empty queue, or by force one with unfinished jobs.

    It asks first on a terminal. Jobs that have ended stay, and can be looked at; dead letters
    can be retried when there is a queue of that name again.
    """
    chosen = session(context)
    before = chosen.call(lambda backend: backend.queue_stats(name))
    dead = before.depth.get(State.DEAD_LETTERED, 0)
    if is_asked(yes) and (force or not before.unfinished):  # otherwise it is refused anyway
        parts = [f"Queue {name} will be deleted."]
        if before.unfinished:
            become = "becomes a dead letter" if before.unfinished == 1 else "become dead letters"
            parts.append(f"{counted(before.unfinished, 'unfinished job')} {become}.")
        if dead:
            parts.append(f"{staying(dead)}.")
        ask(" ".join(parts))
    dropped = chosen.call(lambda backend: backend.delete_queue(name, force=force))
    if chosen.json:
        print_json({
            "name": name,
            "deleted": True,
            "dead_lettered": dropped,
            "dead_letters": dead + dropped,
        })  # fmt: skip
        return
    more = f"; {counted(dropped, 'unfinished job')} dead-lettered" if dropped else ""
    if dead:
        more += f"; {staying(dead)}"
    typer.echo(f"Queue {name} is deleted{more}")


@app.command("list", epilog=examples("jq-ctl queue list", "jq-ctl queue list --output json"))
def list_queues(context: typer.Context, output: OutputOption = None) -> None:
    """List all queues with their depth."""
    chosen = session(context)
    queues = chosen.call(lambda backend: backend.list_queues())
    if chosen.json:
        print_json({"queues": [queue_document(stats) for stats in queues]})
    else:
        print_depths(queues)


def print_depths(queues: list[QueueStats]) -> None:
    """One row for each queue, a column for each state."""
    headers = ["QUEUE", "STATE", *(state.name for state in State), "PROCESSED"]
    rows = [
        [
            stats.queue.name,
            "paused" if stats.queue.paused else "active",
            *(str(stats.depth.get(state, 0)) for state in State),
            str(stats.processed),
        ]
        for stats in queues
    ]
    print_table(
        headers,
        rows,
        "There are no queues.",
        spare=("PROCESSED", "ASSIGNED", "DONE", "FAILED", "RUNNING", "DEAD_LETTERED", "PENDING"),
    )


@app.command(epilog=examples("jq-ctl queue stats default"))
def stats(context: typer.Context, name: Name, output: OutputOption = None) -> None:
    """Show a queue's depth by status, jobs processed, average time and error rate."""
    chosen = session(context)
    found = chosen.call(lambda backend: backend.queue_stats(name))
    if chosen.json:
        print_json(queue_document(found))
        return
    queue = found.queue
    weights = queue.priority_weights
    fields = [("Queue", queue.name), ("State", "paused" if queue.paused else "active")]
    fields += [(state.name, str(found.depth.get(state, 0))) for state in State]
    fields += [
        ("Processed", f"{found.processed} ({found.succeeded} succeeded, {found.failed} failed)"),
        ("Average time", duration(found.average_seconds) if found.timed else NONE),
        ("Error rate", f"{found.error_rate:.1%}"),
        ("Max retries", str(queue.max_retries)),
        ("Retry profile", queue.retry_profile),
        ("Capacity", str(queue.capacity) if queue.capacity else "unbounded"),
    ]
    if found.unserved:
        types = [f"{one.type or NO_TYPE}: {one.count}" for one in found.unserved]
        fields.append(("No worker for", "\n".join(types)))
    if queue.ttl:
        fields.append(("TTL", duration(queue.ttl)))
    if queue.timeout:
        fields.append(("Timeout", duration(queue.timeout)))
    if weights:
        fields.append(("Priority weights", ",".join(f"{p}:{w}" for p, w in weights.items())))
    print_fields(fields)


@app.command(epilog=examples("jq-ctl queue pause mail"))
def pause(context: typer.Context, name: Name, output: OutputOption = None) -> None:
    """Hand out no more jobs of a queue; it still accepts them."""
    _set_paused(context, name, paused=True)


@app.command(epilog=examples("jq-ctl queue resume mail"))
def resume(context: typer.Context, name: Name, output: OutputOption = None) -> None:
    """Hand out jobs of a queue again."""
    _set_paused(context, name, paused=False)


def _set_paused(context: typer.Context, name: str, *, paused: bool) -> None:
    chosen = session(context)

    async def work(backend: Backend) -> None:
        await (backend.pause_queue(name) if paused else backend.resume_queue(name))

    chosen.call(work)
    if chosen.json:
        print_json({"name": name, "paused": paused})
    else:
        typer.echo(f"Queue {name} is {'paused' if paused else 'active'}")
