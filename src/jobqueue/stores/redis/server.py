"""What a store needs of its Redis. Jobs are as safe as its settings make them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from redis.exceptions import ResponseError

from jobqueue.core.errors import JobQueueError, Unavailable
from jobqueue.stores.redis.documents import fields
from jobqueue.stores.redis.runner import Runner

# What each setting must be, and what it costs otherwise.
NEEDED: Mapping[str, tuple[str, str]] = {
    "appendonly": ("yes", "nothing is written to its disk as it happens"),
    "appendfsync": ("always", "the newest writes are lost when its machine fails"),
    "no-appendfsync-on-rewrite": ("no", "writes are not flushed while the file is rewritten"),
    "maxmemory-policy": ("noeviction", "jobs are thrown away when its memory is full"),
}
_OLDEST = 7  # before it, a script that asked for the time could not write


async def check_version(runner: Runner) -> None:
    """Refuse a Redis whose scripts cannot do what ours do."""
    said = await runner.command("open", "INFO", "server")
    found = re.search(rb"^redis_version:(\d+)", said, re.MULTILINE)
    if found is not None and int(found[1]) < _OLDEST:
        raise Unavailable(f"Redis: version {_OLDEST} or newer is needed, this is {int(found[1])}")


async def shortcomings(runner: Runner) -> list[str]:
    """Why jobs that were accepted may be lost; empty if they may not."""
    said: dict[str, str] = {}
    try:
        for names in ("*append*", "maxmemory-policy"):
            found = fields(await runner.command("durability", "CONFIG", "GET", names))
            said |= {name.decode(): value.decode() for name, value in found.items()}
    except JobQueueError as error:
        if not isinstance(error.__cause__, ResponseError):
            raise
        return [f"its settings cannot be read ({error})"]  # as where CONFIG is forbidden
    return [
        f"{name} is {said.get(name, 'unknown')}, not {needed}: {cost}"
        for name, (needed, cost) in NEEDED.items()
        if said.get(name) != needed
    ]
