"""Provide the commands of ``jq-ctl queue``: they create, change, show, pause and delete queues."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, cast

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
    say,
    staying,
)
from jobqueue.cli.program import examples
from jobqueue.cli.session import OutputOption, session
from jobqueue.core.api import Backend
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import (
    MAX_PRIORITY,
    SETTINGS,
    Kind,
    QueueSpec,
    QueueStats,
    QueueUpdate,
    Setting,
    SettingsSaid,
)
from jobqueue.core.retry import PROFILES, profile
from jobqueue.documents import queue_document
from jobqueue.engine.admission import check_queue_spec

app = typer.Typer(help="Create, change, show, pause and delete queues.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The queue's name.")]


def _seconds(help: str) -> Any:
    return Annotated[float | None, typer.Option(metavar="SECONDS", help=help)]


OPTIONS: dict[str, Any] = {
    "max_retries": Annotated[int | None, typer.Option(min=0, help="Retries of its jobs.")],
    "ttl": _seconds("Time in which its jobs must start."),
    "timeout": _seconds("Time that one attempt may run."),
    "capacity": Annotated[
        int | None, typer.Option(min=0, help="The most PENDING jobs; 0 = unbounded.")
    ],
    "retry_profile": Annotated[
        str | None, typer.Option(help=f"How long retries wait: {', '.join(PROFILES)}.")
    ],
    "retry_base": _seconds("First wait before a retry, which doubles each time; default: profile."),
    "retry_max": _seconds("Longest wait before a retry, with its jitter."),
    "retry_jitter": Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Random share of a wait, 0 to 1; 0.25 = up to 25 %."),
    ],
    "priority_weights": Annotated[
        str | None,
        typer.Option(
            metavar="P:W,...",
            help="Share dispatch among priorities by weight. Default: strict priority.",
        ),
    ],
    "retention": _seconds("Time DONE jobs are kept; 0 = for ever."),
    "dead_letter_retention": _seconds("Time dead letters are kept; 0 = until they are deleted."),
}
"""The option of each setting of a queue."""


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command with the options of all queue settings.

    The command's parameter ``said`` gets the settings that the user gave.
    """

    def run(**given: Any) -> None:
        said = {name: value for name in OPTIONS if (value := given.pop(name)) is not None}
        if "priority_weights" in said:
            said["priority_weights"] = parse_weights(said["priority_weights"])
        command(said=said, **given)

    parameters: list[Parameter] = []
    for own in signature(command, eval_str=True).parameters.values():
        parameters += (
            [Parameter(n, own.KEYWORD_ONLY, default=None, annotation=o) for n, o in OPTIONS.items()]
            if own.name == "said"
            else [own.replace(kind=own.KEYWORD_ONLY)]
        )
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {own.name: own.annotation for own in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


@app.command(epilog=examples(
    "jq-ctl queue create mail",
    "jq-ctl queue create mail --max-retries 5 --ttl 3600 --priority-weights 9:5,5:3,0:1",
    "jq-ctl queue create mail --retry-base 2 --retry-max 60 --retry-jitter 0.5",
))  # fmt: skip
@with_settings
def create(
    context: typer.Context, name: Name, said: dict[str, Any], output: OutputOption = None
) -> None:
    """Create a queue. The server's configuration gives the settings that are left out."""
    chosen = session(context)
    spec = QueueSpec(name, **cast(SettingsSaid, said))
    _check(spec)
    created = chosen.call(lambda backend: backend.create_queue(spec))
    if chosen.json:
        print_json(queue_document(QueueStats(queue=created, depth={})))
    else:
        say(f"Queue {created.name} is created")


@app.command(epilog=examples(
    "jq-ctl queue update mail --max-retries 5",
    "jq-ctl queue update mail --retry-base 2 --retry-max 60 --retry-jitter 0.5",
    "jq-ctl queue update mail --capacity 1000 --reset ttl,priority-weights",
))  # fmt: skip
@with_settings
def update(
    context: typer.Context,
    name: Name,
    said: dict[str, Any],
    reset: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            help="Settings to reset to the server's defaults, like ttl,retry-max.",
        ),
    ] = "",
    output: OutputOption = None,
) -> None:
    """Change the given settings of a queue. The other settings stay as they are.

    Earlier jobs keep their retries, TTL and timeout. The other settings apply to all jobs at once:
    the waits before retries, the capacity, the weights and the retention.
    """
    chosen = session(context)
    _check(QueueSpec(name, **cast(SettingsSaid, said)))
    for field in parse_reset(reset):
        if field in said:
            raise InvalidArgument(
                "--reset", f"{_flag(field)} is also set by --{_flag(field)}; give only one of them"
            )
        said[field] = None
    if not said:
        flags = ", ".join(f"--{_flag(field)}" for field in SETTINGS)
        raise InvalidArgument(
            "update", f"no setting to change is given; give at least one of: {flags}, --reset"
        )
    change = QueueUpdate(**cast(SettingsSaid, said))

    async def work(backend: Backend) -> QueueStats:
        await backend.update_queue(name, change)
        return await backend.queue_stats(name)

    changed = chosen.call(work)
    if chosen.json:
        print_json(queue_document(changed))
        return
    document = queue_document(changed)
    shown = ", ".join(f"{_flag(field)} {_shown(document[field])}" for field in said)
    say(f"Queue {name} is changed: {shown}")


def _check(spec: QueueSpec) -> None:
    """Raise InvalidArgument for settings that every server would refuse.

    The server itself checks the queue's name, and waits that depend on the profile or the queue.
    """
    said = spec.said.copy()
    named = said.pop("retry_profile", None)
    try:
        if named is not None:
            profile(named)
        check_queue_spec(QueueSpec("default", **said))
    except InvalidArgument as error:
        raise InvalidArgument(f"--{_flag(error.field)}", error.problem) from None


def parse_reset(text: str) -> list[str]:
    """Return the names of the settings in a text like ``ttl,retry-max``."""
    names = [part.strip().replace("-", "_") for part in text.split(",") if part.strip()]
    for name in names:
        if name not in SETTINGS:
            allowed = ", ".join(map(_flag, SETTINGS))
            raise InvalidArgument("--reset", f"{name!r} is not a setting; allowed: {allowed}")
    return list(dict.fromkeys(names))


def _flag(field: str) -> str:
    return field.replace("_", "-")


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return _weights(value)
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value)


def _weights(value: Mapping[Any, int]) -> str:
    return ",".join(f"{priority}:{weight}" for priority, weight in sorted(value.items())[::-1])


def parse_weights(text: str) -> dict[int, int] | None:
    """Return the weight of each priority in a text like ``9:5,5:3``; None if the text is empty."""
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
    """Delete a queue without unfinished jobs; with --force, delete any queue.

    On a terminal, the command asks for a yes first. Ended jobs are kept and can be shown. Dead
    letters can be retried when a queue of that name exists again.
    """
    chosen = session(context)
    before = chosen.call(lambda backend: backend.queue_stats(name))
    dead = before.depth.get(State.DEAD_LETTERED, 0)
    if is_asked(yes) and (force or not before.unfinished):  # otherwise the server refuses
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
    say(f"Queue {name} is deleted{more}")


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
    """Print a table of queues with the number of jobs in each state."""
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
    fields = [("Queue", queue.name), ("State", "paused" if queue.paused else "active")]
    fields += [(state.name, str(found.depth.get(state, 0))) for state in State]
    fields += [
        ("Processed", f"{found.processed} ({found.succeeded} succeeded, {found.failed} failed)"),
        ("Average time", duration(found.average_seconds) if found.timed else NONE),
        ("Error rate", f"{found.error_rate:.1%}"),
    ]
    fields += [
        (setting.title, _for_people(setting, value))
        for setting in SETTINGS.values()
        if (value := getattr(queue, setting.name)) is not None
    ]
    if found.unserved:
        types = [f"{one.type or NO_TYPE}: {one.count}" for one in found.unserved]
        fields.append(("No worker for", "\n".join(types)))
    print_fields(fields)


def _for_people(setting: Setting, value: Any) -> str:
    if value == 0 and setting.zero:
        return setting.zero
    match setting.kind:
        case Kind.SECONDS:
            return duration(value)
        case Kind.SHARE:
            return f"{100 * value:g}%"
        case Kind.WEIGHTS:
            return _weights(value)
        case _:
            return str(value)


@app.command(epilog=examples("jq-ctl queue pause mail"))
def pause(context: typer.Context, name: Name, output: OutputOption = None) -> None:
    """Stop handing out the jobs of a queue. The queue still accepts jobs."""
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
        say(f"Queue {name} is {'paused' if paused else 'active'}")
