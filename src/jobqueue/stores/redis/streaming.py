"""The event stream's side of Redis: what it reads, and how far it has come."""

from __future__ import annotations

from jobqueue.core.errors import Unavailable
from jobqueue.core.identity import Identity, identity_of, new_store_id
from jobqueue.core.store import Lag, Term, TermEnded
from jobqueue.core.stream import Changes, bytes_of
from jobqueue.stores.positions import pack, unpack
from jobqueue.stores.redis import outbox
from jobqueue.stores.redis.documents import place_of
from jobqueue.stores.redis.leadership import term_of
from jobqueue.stores.redis.runner import Runner

_PAGE = 500  # of one script: Redis does nothing else meanwhile


class Streaming:
    """The calls of whoever publishes the stream."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        # Whose positions are read from. A Redis that is emptied counts from the beginning again.
        self._store: tuple[str, str] | None = None

    async def begin(self, term: Term) -> int:
        """See ``Store.begin_stream``."""
        said = await self._runner.write("begin_stream", (term_of(term), new_store_id()))
        if said is None:
            raise TermEnded
        self._store = said[2].decode(), said[3].decode()
        return pack(int(said[0]), int(said[1]))

    async def end(self, term: Term) -> None:
        """See ``Store.end_stream``."""
        if await self._runner.write("end_stream", (term_of(term),)) is None:
            raise TermEnded

    async def changes_after(self, position: int, limit: int, size: int) -> Changes:
        """See ``Store.changes_after``. A page of many is read in parts, each at one moment."""
        found = Changes([], position)
        while len(found.items) < limit and (size > 0 or not found.items):
            event, entry = unpack(found.position)
            wanted = min(_PAGE, limit - len(found.items))
            rows = await self._runner.read(
                "changes", (str(event), str(entry), wanted, max(size, 1), self._store)
            )
            if rows is None:
                raise Unavailable(
                    "Redis: it has gone back behind what was read from it: it was emptied, or"
                    " another one took over that has not got everything"
                )
            for place, *rest in rows:
                item = outbox.item(place_of(place), *rest)
                found.items.append(item)
                found.position = pack(*place_of(place))
                size -= bytes_of(item)
            if len(rows) < wanted:
                break
        return found

    async def identity(self) -> Identity:
        """See ``Store.identity``."""
        said = await self._runner.read("identity", (new_store_id(),))
        return identity_of(*(part.decode() for part in said))

    async def move_mark(self, position: int, term: Term, refused: int) -> None:
        """See ``Store.move_mark``."""
        event, entry = unpack(position)
        asked = (str(event), entry, refused, term_of(term))
        if await self._runner.write("move_mark", asked) is None:
            raise TermEnded

    async def lag(self) -> Lag | None:
        """See ``Store.stream_lag``."""
        said = await self._runner.read("stream_lag")
        if said is None:
            return None
        count, oldest, now, refused = said
        return Lag(int(count), max(0.0, float(now) - float(oldest)), int(refused))
