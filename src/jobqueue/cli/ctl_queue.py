"""Provide the commands of ``jq-ctl queue``: they create, change, show, pause and delete queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, cast

import typer

from jobqueue.cli.display import (
    NO_TYPE,
    NONE,
    YesOption,
    ask,
    counted,
    duration,
    is_asked,
    print_fields,
    print_json,
    print_table,
    staying,
)
from jobqueue.cli.program import examples, with_options
from jobqueue.cli.session import CliSession, CtlTyper
from jobqueue.core.api import Backend
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.key_weights import key_weights_text, read_key_weights
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import (
    MAX_PRIORITY,
    SETTINGS,
    HeldBack,
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

app = CtlTyper(help="Create, change, show, pause and delete queues.", no_args_is_help=True)
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
    "max_running": Annotated[
        int | None, typer.Option(min=0, help="The most jobs that run at a time; 0 = no limit.")
    ],
    "rate": Annotated[
        int | None, typer.Option(min=0, help="The most starts in a rate period; 0 = no limit.")
    ],
    "rate_period": _seconds("The time in which --rate jobs may start; default: 1 second."),
    "rate_burst": Annotated[
        int | None,
        typer.Option(
            min=0, help="The most starts at once after a pause; default: as many as in 1 second."
        ),
    ],
    "key_max_running": Annotated[
        int | None,
        typer.Option(min=0, help="The most jobs of a concurrency key that run; 0 = no limit."),
    ],
    "key_rate": Annotated[
        int | None, typer.Option(min=0, help="The most starts of a key in its rate period.")
    ],
    "key_rate_period": _seconds("The time of --key-rate; default: 1 second."),
    "key_rate_burst": Annotated[
        int | None, typer.Option(min=0, help="Starts of a key at once after a pause.")
    ],
    "key_weights": Annotated[
        str | None,
        typer.Option(
            metavar="KEY=W,...",
            help="Share running jobs among keys by weight; *: all other keys; or a JSON object.",
        ),
    ],
}
"""The option of each setting of a queue."""


with_settings = with_options(OPTIONS.items(), into="said")
"""Decorates a command with the options of all queue settings."""


@app.command(epilog=examples(
    "jq-ctl queue create mail",
    "jq-ctl queue create mail --max-retries 5 --ttl 3600 --priority-weights 9:5,5:3,0:1",
    "jq-ctl queue create mail --retry-base 2 --retry-max 60 --retry-jitter 0.5",
    "jq-ctl queue create mail --max-running 5 --rate 100 --rate-period 60",
    "jq-ctl queue create mail --key-max-running 2 --key-weights 'tenant:1=5,*=1'",
))  # fmt: skip
@with_settings
def create(chosen: CliSession, name: Name, said: dict[str, Any]) -> None:
    """Create a queue. The server's configuration gives the settings that are left out."""
    spec = _checked(name, said)
    created = chosen.call(lambda backend: backend.create_queue(spec))
    document = queue_document(QueueStats(queue=created, depth={}))
    chosen.tell(document, f"Queue {created.name} is created")


@app.command(epilog=examples(
    "jq-ctl queue update mail --max-retries 5",
    "jq-ctl queue update mail --retry-base 2 --retry-max 60 --retry-jitter 0.5",
    "jq-ctl queue update mail --capacity 1000 --reset ttl,priority-weights",
    "jq-ctl queue update mail --key-max-running 5 --key-rate 100 --key-weights '*=1'",
))  # fmt: skip
@with_settings
def update(
    chosen: CliSession,
    name: Name,
    said: dict[str, Any],
    reset: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            help="Settings to reset to the server's defaults, like ttl,retry-max.",
        ),
    ] = "",
) -> None:
    """Change the given settings of a queue. The other settings stay as they are.

    Earlier jobs keep their retries, TTL and timeout. The other settings apply to all jobs at once:
    the waits before retries, the capacity, the weights, the retention and the limits.
    """
    _checked(name, said)
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

    document = queue_document(chosen.call(work))
    shown = ", ".join(f"{_flag(name)} {_shown(SETTINGS[name], document[name])}" for name in said)
    chosen.tell(document, f"Queue {name} is changed: {shown}")


def _checked(name: str, said: dict[str, Any]) -> QueueSpec:
    """Return the spec of a queue. Raise InvalidArgument for a setting that no server accepts.

    Only the server can check the queue's name, and settings whose limits depend on the retry
    profile or on the stored queue.
    """
    if "priority_weights" in said:
        said["priority_weights"] = parse_weights(said["priority_weights"])
    if "key_weights" in said:
        said["key_weights"] = parse_key_weights(said["key_weights"])
    spec = QueueSpec(name, **cast(SettingsSaid, said))
    others = spec.said.copy()
    named = others.pop("retry_profile", None)
    try:
        if named is not None:
            profile(named)
        check_queue_spec(QueueSpec("default", **others))
    except InvalidArgument as error:
        raise InvalidArgument(f"--{_flag(error.field)}", error.problem) from None
    return spec


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


def _shown(setting: Setting, value: object) -> str:
    if isinstance(value, dict):
        return _weights(value) if setting.kind is Kind.WEIGHTS else key_weights_text(value)
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


def parse_key_weights(text: str) -> dict[str, int] | None:
    """Return the weight of each key in a text like ``tenant:1=5,*=1``; None if it is empty."""
    try:
        return read_key_weights(text)
    except ValueError as error:
        raise InvalidArgument("--key-weights", str(error)) from None


@app.command(epilog=examples("jq-ctl queue delete mail", "jq-ctl queue delete mail --force --yes"))
def delete(
    chosen: CliSession,
    name: Name,
    force: Annotated[
        bool, typer.Option("--force", help="Dead-letter its unfinished jobs first.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Delete a queue without unfinished jobs; with --force, delete any queue.

    On a terminal, the command asks for a yes first. Ended jobs are kept and can be shown. Dead
    letters can be retried when a queue of that name exists again.
    """
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
    more = f"; {counted(dropped, 'unfinished job')} dead-lettered" if dropped else ""
    if dead:
        more += f"; {staying(dead)}"
    document = {
        "name": name,
        "deleted": True,
        "dead_lettered": dropped,
        "dead_letters": dead + dropped,
    }
    chosen.tell(document, f"Queue {name} is deleted{more}")


@app.command("list", epilog=examples("jq-ctl queue list", "jq-ctl queue list --output json"))
def list_queues(chosen: CliSession) -> None:
    """List all queues with their depth."""
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
def stats(chosen: CliSession, name: Name) -> None:
    """Show a queue's depth by status, jobs processed, average time and error rate."""
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
    if found.held_back:
        fields.append(("Held back", "\n".join(map(_held_back, found.held_back))))
    print_fields(fields)


def _held_back(one: HeldBack) -> str:
    if one.opens_in is None:
        until = "until a running job ends"
    else:
        until = f"the next start is possible in {duration(one.opens_in)}"
    of_key = f" of key {one.key!r}" if one.key else ""
    return f"{one.count} by {_flag(one.limit)}{of_key}, {until}"


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
        case Kind.KEY_WEIGHTS:
            return key_weights_text(value)
        case _:
            return str(value)


@app.command(epilog=examples("jq-ctl queue pause mail"))
def pause(chosen: CliSession, name: Name) -> None:
    """Stop handing out the jobs of a queue. The queue still accepts jobs."""
    _set_paused(chosen, name, paused=True)


@app.command(epilog=examples("jq-ctl queue resume mail"))
def resume(chosen: CliSession, name: Name) -> None:
    """Hand out jobs of a queue again."""
    _set_paused(chosen, name, paused=False)


def _set_paused(chosen: CliSession, name: str, *, paused: bool) -> None:

    async def work(backend: Backend) -> None:
        await (backend.pause_queue(name) if paused else backend.resume_queue(name))

    chosen.call(work)
    state = "paused" if paused else "active"
    chosen.tell({"name": name, "paused": paused}, f"Queue {name} is {state}")
