"""Provide the command ``jq-ctl status``: it shows the health of the system."""

from __future__ import annotations

import typer

from jobqueue.cli.ctl_queue import print_depths
from jobqueue.cli.display import print_fields, print_json
from jobqueue.cli.program import EXIT_CODES, examples
from jobqueue.cli.session import CliSession
from jobqueue.core.api import Backend, Overview, overview
from jobqueue.core.errors import Code, DeadlineExceeded, JobQueueError, Unavailable
from jobqueue.core.job import ComponentHealth, Health, WorkerStatus
from jobqueue.documents import Document, health_document, queue_document
from jobqueue.redaction import redact_value

EXAMPLES = examples("jq-ctl status", "jq-ctl --server 10.0.0.5:50051 status --output json")
NOT_CONFIGURED = "not configured"
_NO_SERVER = "not used: the store is opened directly"
# Lines of the output, each with the names that a server may give to the component.
_PARTS = {"DB": ("db", "store", "database"), "Redis": ("redis",), "Kafka": ("kafka",)}


def status(chosen: CliSession) -> None:
    """Show the health of the server, its store and its workers.

    Exit with an error if a part that the system needs fails.
    """
    shown_url = redact_value(chosen.url)

    async def work(backend: Backend) -> Overview:
        return await overview(backend, chosen.timeout)

    try:
        view = chosen.call(work)
    except (Unavailable, DeadlineExceeded) as error:
        _say_unreachable(shown_url, error, as_json=chosen.json)
        raise typer.Exit(EXIT_CODES[error.code]) from None
    if chosen.json:
        print_json(_document(shown_url, view))
    else:
        _print(shown_url, view)
    if view.missing or not view.health.ok:
        raise typer.Exit(EXIT_CODES[Code.UNAVAILABLE])


def _say_unreachable(url: str, error: JobQueueError, *, as_json: bool) -> None:
    if as_json:
        print_json({"ok": False, "server": {"url": url, "reachable": False,
                                            "error": error.message}})  # fmt: skip
    elif _is_server(url):
        print_fields([("Server", "unreachable"), ("Address", url), ("Error", error.message)])
    else:
        failing = f"failing ({error.message})"
        print_fields([("Server", _NO_SERVER), ("Address", url), ("DB", failing)])


def _document(url: str, view: Overview) -> Document:
    workers = _by_status(view)
    connectivity = {name.lower(): _part(view.health, name) for name in _PARTS}
    return {
        **health_document(view.health),
        "server": {"url": url, "reachable": True},
        "connectivity": connectivity,
        "workers": workers,
        "active_workers": None if workers is None else _active(workers),
        "queues": None if view.queues is None else [queue_document(one) for one in view.queues],
        "missing": view.missing,
    }


def _by_status(view: Overview) -> dict[str, int] | None:
    if view.workers is None:
        return None
    counts = dict.fromkeys((one.value for one in WorkerStatus), 0)
    for worker in view.workers:
        counts[worker.status.value] += 1
    return counts


def _active(workers: dict[str, int]) -> int:
    return sum(n for name, n in workers.items() if name != WorkerStatus.OFFLINE.value)


def _is_server(url: str) -> bool:
    return url.startswith(("grpc:", "grpcs:"))


def _server(url: str, health: Health) -> str:
    return health.status if _is_server(url) else _NO_SERVER


def _state(health: Health, component: ComponentHealth) -> str:
    """Return "ok", "degraded" or "failing".

    A component that fails is "degraded" if the system works without it.
    """
    if component.ok:
        return "ok"
    return "degraded" if health.ok else "failing"


def _part(health: Health, name: str) -> str:
    for component in health.components:
        if component.name.lower() in _PARTS[name]:
            state = _state(health, component)
            return f"{state} ({component.detail})" if component.detail else state
    if name == "Redis":
        for component in health.components:
            if component.name == "database" and component.detail.lower().startswith("redis"):
                return f"{_state(health, component)} (keeps the jobs: see DB)"
    return NOT_CONFIGURED


def _other(health: Health, part: ComponentHealth) -> str:
    if part.name == "leader":
        return part.detail
    return _state(health, part) + f" {part.detail}".rstrip()


def _print(url: str, view: Overview) -> None:
    known = {alias for aliases in _PARTS.values() for alias in aliases}
    fields = [
        ("Server", _server(url, view.health)),
        ("Address", url),
        ("Version", view.health.version),
    ]
    fields += [(name, _part(view.health, name)) for name in _PARTS]
    fields += [
        (part.name.capitalize(), _other(view.health, part))
        for part in view.health.components
        if part.name.lower() not in known
    ]
    fields.append(("Active workers", _workers(view)))
    if view.queues is None:
        fields.append(("Queues", f"not known ({view.missing['queues']})"))
    print_fields(fields)
    if view.queues is not None:
        typer.echo()
        print_depths(view.queues)


def _workers(view: Overview) -> str:
    found = _by_status(view)
    if found is None:
        return f"not known ({view.missing['workers']})"
    counts = ", ".join(f"{n} {name.lower()}" for name, n in found.items() if n)
    return f"{_active(found)}" + (f" ({counts})" if counts else "")
