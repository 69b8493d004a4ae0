"""Show the state of the whole system at one glance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request
from starlette.responses import Response

from jobqueue.api.console.console import Console
from jobqueue.core.api import Overview, overview
from jobqueue.core.job import Worker, WorkerStatus
from jobqueue.core.lifecycle import HELD, State
from jobqueue.core.queue import QueueStats

TIMEOUT = 5.0
MOST_QUEUES = 20


@dataclass(frozen=True, slots=True)
class Totals:
    """Holds the sums of the numbers of all queues."""

    waiting: int
    running: int
    retrying: int
    dead: int
    done: int

    @classmethod
    def of(cls, queues: Sequence[QueueStats]) -> Totals:
        depth = {state: sum(one.depth.get(state, 0) for one in queues) for state in State}
        return cls(
            depth[State.PENDING],
            sum(depth[state] for state in HELD),
            depth[State.FAILED],
            depth[State.DEAD_LETTERED],
            depth[State.DONE],
        )


@dataclass(frozen=True, slots=True)
class Slots:
    """Holds the workers that take jobs, and their slots."""

    workers: int
    used: int
    slots: int

    @classmethod
    def of(cls, workers: Sequence[Worker]) -> Slots:
        there = [one for one in workers if one.status is not WorkerStatus.OFFLINE]
        return cls(
            len(there), sum(w.running for w in there), sum(w.info.concurrency for w in there)
        )


def pages(console: Console) -> None:
    @console.page("/")
    async def show(request: Request) -> Response:
        found = await overview(console.reads, TIMEOUT)
        queues = found.queues or []
        busiest = sorted(queues, key=lambda one: (-one.unfinished, one.queue.name))[:MOST_QUEUES]
        return console.show(
            request,
            "overview.html",
            found=found,
            totals=None if found.queues is None else Totals.of(queues),
            slots=None if found.workers is None else Slots.of(found.workers),
            busiest=busiest,
            warnings=warnings(found),
        )


def warnings(found: Overview) -> list[tuple[str, str, str]]:
    """Return the warnings for an operator: each is a text, a page, and the words of its link."""
    told = [
        (f"{part.name}: {part.detail or 'not ok'}", "system", "System")
        for part in found.health.components
        if not part.ok
    ]
    told += [(f"Cannot read the {name}: {why}.", "", "") for name, why in found.missing.items()]
    queues = found.queues or []
    if paused := [one.queue.name for one in queues if one.queue.paused]:
        told.append((f"Paused: {_names(paused)}.", "queues", "Queues"))
    if full := [
        one.queue.name
        for one in queues
        if 0 < one.queue.capacity <= one.depth.get(State.PENDING, 0)
    ]:
        told.append((f"Full, and refusing jobs: {_names(full)}.", "queues", "Queues"))
    told += [
        (
            f"In {one.queue.name} jobs wait that no connected worker takes:"
            f" {_names([types.type or '(no type)' for types in one.unserved])}.",
            "workers",
            "Workers",
        )
        for one in queues
        if one.unserved
    ]
    offline = [one for one in found.workers or () if one.status is WorkerStatus.OFFLINE]
    if offline:
        text = f"{len(offline):,} worker{'s are' if len(offline) > 1 else ' is'} OFFLINE."
        told.append((text, "workers", "Workers"))
    return told


def _names(names: Sequence[str], most: int = 5) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")
