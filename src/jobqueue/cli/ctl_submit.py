"""Provide the command ``jq-ctl job submit``: it submits a job, copies of it, or a file of jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from jobqueue.cli.display import content, counted, note, print_json, progress, say
from jobqueue.cli.program import EXIT_CODES, clean, examples
from jobqueue.cli.session import CliSession
from jobqueue.cli.submission import parse_labels, read_lines, read_payload
from jobqueue.core.api import Backend
from jobqueue.core.errors import Code, DeadlineExceeded, InvalidArgument, JobFailed
from jobqueue.core.job import Job, JobSpec, SubmitResult, SubmitStatus
from jobqueue.core.lifecycle import TERMINAL, State
from jobqueue.core.unique import CONFLICTS, SCOPES, UNFINISHED, UniqueKey
from jobqueue.documents import job_document

EXAMPLES = examples(
    'jq-ctl job submit default \'{"hello": "world"}\'',
    "jq-ctl job submit mail @message.json --type send --priority 5 --key order-42 --wait",
    "jq-ctl job submit index '{\"page\": 7}' --unique page-7",
    "jq-ctl job submit index '{\"page\": 7}' --unique page-7 --unique-scope waiting "
    "--on-conflict replace --delay 10",
    "date | jq-ctl job submit default -",
    "jq-ctl job submit mail @message.json --concurrency-key tenant:42",
    "jq-ctl job submit default '\"x\"' --count 10000",
    "jq-ctl job submit default --batch jobs.jsonl   "
    '[dim](lines like {"payload": 1, "type": "echo", "priority": 5})[/dim]',
)
_CHUNK = 500  # jobs in one request
_CHUNK_BYTES = 1 << 20
_POLL = 30.0
_FIRST_POLL = 2.0  # short: a person soon reads the note that no worker can take the job


def submit(
    chosen: CliSession,
    queue: Annotated[str, typer.Argument(help="The queue.")],
    payload: Annotated[
        str | None,
        typer.Argument(help="The payload: text, @FILE, or - for stdin."),
    ] = None,
    type_: Annotated[
        str, typer.Option("--type", help="The task's name. Default: the default handler runs.")
    ] = "",
    priority: Annotated[int, typer.Option(help="0 to 9, 9 first.")] = 0,
    max_retries: Annotated[
        int | None, typer.Option(help="The most retries. Default: the queue's setting.")
    ] = None,
    ttl: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time in which the job must start.")
    ] = None,
    delay: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time to hold the job back.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time that one attempt may run.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Idempotency key: an equal job is not submitted twice.")
    ] = None,
    unique: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Unique key: while a job has it, no other one gets it."),
    ] = None,
    unique_scope: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(SCOPES), help=f"When a job has its unique key. Default: {UNFINISHED}."
        ),
    ] = None,
    unique_period: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="In place of the scope: time after its submit."),
    ] = None,
    on_conflict: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(CONFLICTS),
            help="Print the id of the job that has the key (the default), fail, or take its place.",
        ),
    ] = None,
    concurrency_key: Annotated[
        str | None,
        typer.Option(help="Limits of the queue count the jobs of equal keys together."),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A label; may be repeated.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Submit that many copies.")] = 1,
    batch: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Submit the jobs of a JSON lines file.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job has ended.")] = False,
    wait_timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Longest wait with --wait.")
    ] = None,
) -> None:
    """Submit a job and print its id."""
    if (payload is None) == (batch is None):
        raise InvalidArgument("PAYLOAD", "give either a payload or --batch FILE")
    if batch is not None:
        if count > 1 or wait or key or unique:
            raise InvalidArgument(
                "--batch", "cannot be given with --count, --key, --unique or --wait"
            )
        _submit_many(chosen, read_lines(batch, queue), None)
        return
    assert payload is not None
    spec = JobSpec(
        payload=read_payload(payload),
        queue=queue,
        type=type_,
        priority=priority,
        max_retries=max_retries,
        ttl=ttl,
        delay=delay,
        timeout=timeout,
        key=key,
        unique=_unique(unique, unique_scope, unique_period, on_conflict),
        concurrency_key=concurrency_key,
        labels=parse_labels(label or []),
    )
    if count == 1:
        _submit_one(chosen, spec, wait, wait_timeout)
        return
    if key or unique or wait:
        raise InvalidArgument("--count", "cannot be given with --key, --unique or --wait")
    _submit_many(chosen, ((number, spec) for number in range(1, count + 1)), count)


def _unique(
    key: str | None, scope: str | None, period: float | None, on_conflict: str | None
) -> UniqueKey | None:
    said = {"scope": scope, "period": period, "on_conflict": on_conflict}
    given: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    if key is None:
        for name in given:
            option = "--on-conflict" if name == "on_conflict" else f"--unique-{name}"
            raise InvalidArgument(option, "needs --unique KEY")
        return None
    return UniqueKey(key=key, **given)


def _submit_one(chosen: CliSession, spec: JobSpec, wait: bool, wait_timeout: float | None) -> None:
    async def work(backend: Backend) -> Job | None:
        (result,) = await chosen.within(backend.submit([spec]))
        job_id = result.unwrap()
        duplicate = result.status is SubmitStatus.DUPLICATE
        existing = result.status is SubmitStatus.EXISTING
        if not chosen.json:
            say(job_id)
            if duplicate:
                note(f"note: key {spec.key!r} was used before; the printed id is the earlier job's")
            if existing and spec.unique is not None:
                note(
                    f"note: nothing was submitted: the printed id is that of the job with the"
                    f" unique key {spec.unique.key!r}"
                )
        elif not wait:
            print_json({"job_id": job_id, "duplicate": duplicate, "existing": existing})
        return await _wait(chosen, backend, job_id, wait_timeout) if wait else None

    job = chosen.converse(work)
    if job is None:
        return
    if chosen.json:
        print_json(job_document(job))
    elif job.state is State.DONE and job.result:
        typer.echo(clean(content(job.result), 0))
    if job.state is State.DEAD_LETTERED:
        raise JobFailed(job.id, job.reason.value, job.error)
    if job.state not in TERMINAL:
        why = f" ({job.hint})" if job.hint else ""
        raise DeadlineExceeded(f"job {job.id} is {job.state.name} after {wait_timeout:g} s{why}")


async def _wait(chosen: CliSession, backend: Backend, job_id: str, limit: float | None) -> Job:
    """Wait until the job is terminal, or ``limit`` seconds pass, and return the job.

    The wait consists of several calls, so that an unreachable server is noticed.
    """
    left = limit
    told = ""
    poll = _FIRST_POLL
    while True:
        slice_ = poll if left is None else min(poll, left)
        poll = _POLL
        job = await backend.wait(job_id, slice_)
        left = None if left is None else left - slice_
        if job.state in TERMINAL or (left is not None and left <= 0):
            return job
        if job.hint and job.hint != told:
            told = job.hint
            note(f"note: the job waits: {job.hint}")


def _submit_many(
    chosen: CliSession, specs: Iterable[tuple[int, JobSpec]], total: int | None
) -> None:
    async def work(backend: Backend) -> Code | None:
        first_error: Code | None = None
        documents = []
        accepted = 0
        with progress("Submitting", total) as bar:
            for chunk in _chunks(specs):
                results = await chosen.within(backend.submit([spec for _, spec in chunk]))
                for (number, _), result in zip(chunk, results, strict=True):
                    accepted += result.error is None
                    if result.error is not None:
                        first_error = first_error or result.error.code
                    if chosen.json:
                        documents.append(_item(number, result))
                    else:
                        _print_item(number, result)
                bar.advance(len(chunk))
        if chosen.json:
            print_json({"accepted": accepted, "results": documents})
        else:
            note(f"{counted(accepted, 'job')} submitted")
        return first_error

    code = chosen.converse(work)
    if code is not None:
        raise typer.Exit(EXIT_CODES[code])


def _chunks(specs: Iterable[tuple[int, JobSpec]]) -> Iterator[list[tuple[int, JobSpec]]]:
    """Yield lists of jobs for one request each, with a bounded number of jobs and bytes."""
    items = iter(specs)
    while first := list(islice(items, 1)):
        chunk, size = first, len(first[0][1].payload)
        while len(chunk) < _CHUNK and size < _CHUNK_BYTES and (more := list(islice(items, 1))):
            chunk += more
            size += len(more[0][1].payload)
        yield chunk


def _item(number: int, result: SubmitResult) -> dict[str, object]:
    document: dict[str, object] = {"line": number, "status": result.status.value}
    if result.job_id:
        document["job_id"] = result.job_id
    if result.error is not None:
        document["error"] = {"code": result.error.code.value, "message": result.error.message}
    return document


def _print_item(number: int, result: SubmitResult) -> None:
    if result.error is None:
        say(result.job_id)
    else:
        note(f"error: {number}: {result.error.message}")
