"""Provide the commands of ``jq-ctl worker``: they list, drain, undrain and stop workers."""

from __future__ import annotations

from typing import Annotated

import typer

from jobqueue.cli.display import NO_TYPE, ago, print_json, print_table, say
from jobqueue.cli.program import examples
from jobqueue.cli.session import OutputOption, session
from jobqueue.core.job import Worker, WorkerStatus
from jobqueue.documents import worker_document

app = typer.Typer(help="List, drain, undrain and stop workers.", no_args_is_help=True)
_TYPES_SHOWN = 3
WorkerId = Annotated[str, typer.Argument(metavar="WORKER_ID", help="The worker's id.")]


@app.command("list", epilog=examples("jq-ctl worker list", "jq-ctl worker list --all"))
def list_workers(
    context: typer.Context,
    all_: Annotated[bool, typer.Option("--all", help="Show OFFLINE workers too.")] = False,
    output: OutputOption = None,
) -> None:
    """List the workers."""
    chosen = session(context)
    workers = chosen.call(lambda backend: backend.list_workers())
    if chosen.json:
        print_json({"workers": [worker_document(worker) for worker in workers]})
        return
    shown = [w for w in workers if all_ or w.status is not WorkerStatus.OFFLINE]
    headers = ("WORKER", "STATUS", "HOST", "PID", "JOBS", "QUEUES", "TYPES", "LAST SEEN")
    rows = [
        [
            worker.info.id,
            worker.status.value,
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


def _jobs(worker: Worker) -> str:
    """Return the numbers of a worker's running jobs, its slots and its overrun slots as text.

    In an overrun slot, the attempt has ended, but its function still runs.
    """
    jobs = f"{worker.running}/{worker.info.concurrency}"
    return f"{jobs} +{worker.overrun} overrun" if worker.overrun else jobs


def _more(count: int) -> str:
    return f" +{count}" if count else ""


def _types(worker: Worker) -> str:
    """Return some of the worker's types as text; the types that every worker has come last."""
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
def drain(context: typer.Context, worker_id: WorkerId, output: OutputOption = None) -> None:
    """Assign no more jobs to a worker. Its running jobs continue until they end."""
    chosen = session(context)
    chosen.call(lambda backend: backend.drain_worker(worker_id))
    if chosen.json:
        print_json({"worker_id": worker_id, "status": WorkerStatus.DRAINING.value})
    else:
        say(f"Worker {worker_id} is draining")


@app.command(epilog=examples("jq-ctl worker undrain host1-4711"))
def undrain(context: typer.Context, worker_id: WorkerId, output: OutputOption = None) -> None:
    """Assign jobs again to a worker that was drained."""
    chosen = session(context)
    chosen.call(lambda backend: backend.undrain_worker(worker_id))
    if chosen.json:
        print_json({"worker_id": worker_id, "status": WorkerStatus.ONLINE.value})
    else:
        say(f"Worker {worker_id} takes jobs again")


@app.command(epilog=examples("jq-ctl worker shutdown host1-4711"))
def shutdown(context: typer.Context, worker_id: WorkerId, output: OutputOption = None) -> None:
    """Stop a worker after its running jobs have ended."""
    chosen = session(context)
    chosen.call(lambda backend: backend.shutdown_worker(worker_id))
    if chosen.json:
        print_json({"worker_id": worker_id, "status": WorkerStatus.STOPPING.value})
    else:
        say(f"Worker {worker_id} is stopping")
