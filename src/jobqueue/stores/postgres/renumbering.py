"""A database that was moved to another cluster, by a dump for example.

Its rows have the numbers of the old cluster's transactions. Numbers that the new one has not given
out yet would not be read before it has, and whatever it writes until then would count as read.
"""

from __future__ import annotations

import logging
from typing import Any

from jobqueue.stores.postgres.following import Position, Snapshot, between, snapshot
from jobqueue.stores.postgres.statements import SQL

_log = logging.getLogger("jobqueue.stores.postgres")
_TIMEOUT = 6 * 3600.0  # every event may have to be written anew


async def renumber(db: Any) -> None:
    """Give what the stream has not got a number of this cluster's, if there are others.

    Jobs go on meanwhile. It is the same whoever does it: no term is needed.
    """
    if not await db.fetchval(SQL["numbers_of_others"]):
        return
    async with db.transaction():
        await db.execute(SQL["renumber_lock"])  # one at a time
        if not await db.fetchval(SQL["numbers_of_others"]):
            return
        _log.warning(
            "this database was moved here from another cluster: the transactions of its events are"
            " given new numbers, the event stream goes on after that"
        )
        own = int(await db.fetchval("SELECT pg_current_xact_id()::text"))
        await db.execute("SET LOCAL jobqueue.renumbering = 'on'")
        await db.execute(SQL["renumber_events"], own, timeout=_TIMEOUT)
        await db.execute(SQL["renumber_outbox"], own, timeout=_TIMEOUT)
        here = including(await snapshot(db), own)
        at = Position(here, here, 0, 0)
        await db.execute(SQL["move_mark"], str(at.pack()), *between(at), 0, 0, 0)


def including(seen: Snapshot, own: int) -> Snapshot:
    """A snapshot of a transaction's own as others see it: itself is open, and so may be all that
    began since the latest one ended."""
    unfinished = {*seen.open, *range(seen.above, own), own}
    return Snapshot(seen.below, max(seen.above, own + 1), tuple(sorted(unfinished)))
