"""Provide the commands of ``jq-ctl worker``: they list, show, drain, undrain and stop workers."""

from __future__ import annotations

from typing import Annotated

import typer

from jobqueue.cli.display import (
    NO_TYPE,
    ago,
    counted,
    local_time,
    print_fields,
    print_json,
    print_table,
)
from jobqueue.cli.program import examples
from jobqueue.cli.session import CliSession, CtlTyper
from jobqueue.core.breaker import OpenBreaker
from jobqueue.core.errors import NotFound
from jobqueue.core.job import Worker, WorkerStatus
from jobqueue.documents import worker_document

app = CtlTyper(help="List, show, drain, undrain and stop workers.", no_args_is_help=True)
_TYPES_SHOWN = 3
WorkerId = Annotated[str, typer.Argument(metavar="WORKER_ID", help="The worker's id.")]


@app.command("list", epilog=examples("jq-ctl worker list", "jq-ctl worker list --all"))
def list_workers(
    chosen: CliSession,
    all_: Annotated[bool, typer.Option("--all", help="Show OFFLINE workers too.")] = False,
) -> None:
    """List the workers."""
    workers = chosen.call(lambda backend: backend.list_workers())
    if chosen.json:
        print_json({"workers": [worker_document(worker) for worker in workers]})
        return
    shown = [w for w in workers if all_ or w.status is not WorkerStatus.OFFLINE]
    headers = ("WORKER", "STATUS", "HOST", "PID", "JOBS", "QUEUES", "TYPES", "LAST SEEN")
    rows = [
        [
            worker.info.id,
            _status(worker),
            worker.info.hostname,
            str(worker.info.pid),
            _jobs(worker),
            ",".join(worker.info.queues) + _more(worker.queues_left_out),
            _types(worker),
            ago(worker.last_seen),
        ]
        for worker in shown
    ]
    print_table(
        headers,
        rows,
        "There are no workers.",
        spare=("PID", "HOST", "LAST SEEN", "TYPES", "QUEUES", "JOBS"),
        elastic="QUEUES",
    )


@app.command(epilog=examples("jq-ctl worker show host1-4711"))
def show(chosen: CliSession, worker_id: WorkerId) -> None:
    """Show a worker, with the types that it has paused because their jobs kept failing."""
    workers = chosen.call(lambda backend: backend.list_workers())
    worker = next((one for one in workers if one.info.id == worker_id), None)
    if worker is None:
        raise NotFound(
            f"worker_id: there is no worker {worker_id!r}; list them with: jq-ctl worker list"
        )
    if chosen.json:
        print_json(worker_document(worker))
        return
    info = worker.info
    types = None if info.types is None else sorted(type or NO_TYPE for type in info.types)
    fields = [
        ("Worker", info.id),
        ("Status", worker.status.value),
        ("Host", info.hostname),
        ("Pid", str(info.pid)),
        ("Version", info.version),
        ("Jobs", _jobs(worker)),
        ("Queues", ", ".join(info.queues) + _more(worker.queues_left_out)),
        ("Types", "*" if types is None else ", ".join(types) + _more(worker.types_left_out)),
        *(("Paused", _paused(one)) for one in worker.breakers),
        ("Registered", local_time(worker.registered_at)),
        ("Last seen", ago(worker.last_seen)),
    ]
    print_fields(fields)


def _paused(one: OpenBreaker) -> str:
    """Return a line about a paused type, like ``send: 10 failed attempts in a row; …``."""
    then = "it tries one job now" if one.trial else f"it tries one job at {local_time(one.until)}"
    return f"{one.type or NO_TYPE}: {counted(one.failures, 'failed attempt')} in a row; {then}"


def _status(worker: Worker) -> str:
    """Return a worker's status, with the number of types that it has paused."""
    paused = f" ({len(worker.breakers)} paused)" if worker.breakers else ""
    return worker.status.value + paused


def _jobs(worker: Worker) -> str:
    """Return how many jobs a worker runs in how many slots, like ``3/4 +1 overrun``.

    In an overrun slot, the attempt has ended, but its function still runs.
    """
    jobs = f"{worker.running}/{worker.info.concurrency}"
    return f"{jobs} +{worker.overrun} overrun" if worker.overrun else jobs


def _more(count: int) -> str:
    return f" +{count}" if count else ""


def _types(worker: Worker) -> str:
    """Return the worker's first types as text; built-in types are sorted last."""
    from jobqueue.taskqueue import engine_job  # the other commands do not need these modules
    from jobqueue.worker.registry import Registry

    types = worker.info.types
    if types is None:
        return "*"
    builtin = {*Registry().names(), engine_job.TYPE}
    named = sorted(types - {""}, key=lambda type: (type in builtin, type))
    shown = named[:_TYPES_SHOWN] or [NO_TYPE]
    return ",".join(shown) + _more(len(types) + worker.types_left_out - len(shown))


@app.command(epilog=examples("jq-ctl worker drain host1-4711"))
def drain(chosen: CliSession, worker_id: WorkerId) -> None:
    """Assign no more jobs to a worker. Its running jobs continue until they end."""
    chosen.call(lambda backend: backend.drain_worker(worker_id))
    _tell(chosen, worker_id, WorkerStatus.DRAINING, "is draining")


@app.command(epilog=examples("jq-ctl worker undrain host1-4711"))
def undrain(chosen: CliSession, worker_id: WorkerId) -> None:
    """Assign jobs again to a worker that was drained."""
    chosen.call(lambda backend: backend.undrain_worker(worker_id))
    _tell(chosen, worker_id, WorkerStatus.ONLINE, "takes jobs again")


@app.command(epilog=examples("jq-ctl worker shutdown host1-4711"))
def shutdown(chosen: CliSession, worker_id: WorkerId) -> None:
    """Stop a worker after its running jobs have ended."""
    chosen.call(lambda backend: backend.shutdown_worker(worker_id))
    _tell(chosen, worker_id, WorkerStatus.STOPPING, "is stopping")


def _tell(chosen: CliSession, worker_id: str, status: WorkerStatus, change: str) -> None:
    document = {"worker_id": worker_id, "status": status.value}
    chosen.tell(document, f"Worker {worker_id} {change}")
