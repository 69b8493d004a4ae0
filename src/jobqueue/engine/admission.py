"""Check all input of callers: raise InvalidArgument with the name of the wrong field."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence

from jobqueue.core.clock import LATEST, MAX_SECONDS
from jobqueue.core.errors import InvalidArgument, NotFound
from jobqueue.core.job import (
    MAX_PAGE,
    JobConditions,
    JobQuery,
    JobSpec,
    RetryQuery,
    TimeQuery,
    WorkerInfo,
    is_limited,
)
from jobqueue.core.lifecycle import DEATHS
from jobqueue.core.queue import MAX_PRIORITY, MAX_RETRIES, Queue, QueueSettings, QueueSpec
from jobqueue.core.schedule import MAX_PAYLOAD_BYTES, ScheduleSpec
from jobqueue.core.store import ALL_QUEUES, QueueStore
from jobqueue.core.texts import (
    MAX_CONCURRENCY_KEY_LENGTH,
    MAX_ERROR_FILTER_LENGTH,
    MAX_KEY_LENGTH,
    MAX_TYPE_LENGTH,
    MAX_WORKER_ID_LENGTH,
    QUEUE_NAME,
    check_labels,
    check_printable,
    check_text,
)

MAX_CONCURRENCY = 100_000
MAX_HOSTNAME_LENGTH = 255
MAX_VERSION_LENGTH = 100
MAX_PID = 2**31 - 1
MAX_TYPES = 5_000  # of a worker
MAX_QUEUES = 1_000  # of a worker; '*' stands for all
MAX_NAME_BYTES = 256 * 1024  # of all types and queues of a worker together
MAX_OFFSET = 10**18
_TTL_AGE = 1.0  # seconds after which the TTL of a queue is read again
_MOST_TTLS = 1_000
_NAME = re.compile(QUEUE_NAME)
_NAME_RULE = "1 to 100 letters, digits, '.', '_' or '-', the first a letter or digit"


def check_spec(spec: JobSpec, max_payload_bytes: int, now: float | None = None) -> None:
    """Raise InvalidArgument unless all fields of a job are valid.

    ``now`` is needed to refuse a ``run_at`` after the end of the job's TTL. Without ``now`` this
    is not checked.
    """
    _check_name("queue", spec.queue)
    size = len(spec.payload)
    if size == 0:
        raise InvalidArgument("payload", "must not be empty")
    _check_most("payload", size, max_payload_bytes, " bytes")
    if not 0 <= spec.priority <= MAX_PRIORITY:
        raise InvalidArgument(
            "priority",
            f"{spec.priority} is outside 0 to {MAX_PRIORITY} ({MAX_PRIORITY} is highest)",
        )
    if spec.max_retries is not None and not 0 <= spec.max_retries <= MAX_RETRIES:
        raise InvalidArgument("max_retries", f"{spec.max_retries} is outside 0 to {MAX_RETRIES}")
    if spec.ttl is not None:
        _check_positive("ttl", spec.ttl)
    if spec.timeout is not None:
        _check_positive("timeout", spec.timeout)
    if spec.delay is not None or spec.run_at is not None:
        if spec.delay is not None and spec.run_at is not None:
            raise InvalidArgument("delay", "give delay or run_at, not both")
        if spec.delay is not None:
            _check_range("delay", spec.delay, 0, MAX_SECONDS, f"0 to {MAX_SECONDS:.0f} seconds")
        _check_time("run_at", spec.run_at)
        if spec.ttl is not None:
            check_start_within(spec, spec.ttl, now)
    if spec.type:
        check_text("type", spec.type, MAX_TYPE_LENGTH)
    if spec.key is not None:
        check_text("idempotency_key", spec.key, MAX_KEY_LENGTH)
    if spec.unique is not None:
        spec.unique.check()
    if spec.concurrency_key is not None:
        check_text("concurrency_key", spec.concurrency_key, MAX_CONCURRENCY_KEY_LENGTH)
    if spec.labels:
        check_labels("labels", spec.labels, check_text)


def check_start_within(
    spec: JobSpec, ttl: float, now: float | None, whose: str = "its ttl"
) -> None:
    """Raise InvalidArgument if a delayed job would expire before it may start.

    The TTL counts from the submit. ``whose`` says in the error where the TTL comes from.
    """
    if spec.delay is not None:
        field, wait = "delay", spec.delay
    elif spec.run_at is not None and now is not None:
        field, wait = "run_at", spec.run_at - now
    else:
        return
    if wait >= ttl:
        raise InvalidArgument(
            field,
            f"the job would expire before it may start: it waits {wait:.6g} s, and {whose} ends"
            f" {ttl:.6g} s after the submit; make ttl longer than {field}",
        )


def check_queue(queue: Queue) -> None:
    """Raise InvalidArgument unless a queue's name and settings are valid."""
    _check_name("name", queue.name)
    queue.check()


def check_queue_spec(spec: QueueSpec) -> None:
    """Raise InvalidArgument for a queue's name or settings that no server accepts.

    Callers that do not know the settings of the server use this instead of ``check_queue``.
    """
    # The retry base or maximum alone may fit the retry profile of the server, and the details of a
    # rate limit alone may fit the queue.
    server = QueueSettings(retry_base=math.ulp(0.0), retry_max=MAX_SECONDS, rate=1, key_rate=1)
    check_queue(spec.resolve(server))


def check_schedule(spec: ScheduleSpec) -> None:
    """Raise InvalidArgument unless a schedule and the jobs that it submits are valid."""
    spec.check()
    check_spec(spec.tick(0.0), MAX_PAYLOAD_BYTES)


def check_worker_id(worker_id: str) -> None:
    """Raise InvalidArgument for an id that no worker can have, and that some stores cannot read."""
    check_printable("worker_id", worker_id, MAX_WORKER_ID_LENGTH)


def check_worker(info: WorkerInfo) -> None:
    """Raise InvalidArgument unless a worker's id, numbers, queues and types are valid."""
    check_worker_id(info.id)
    if info.hostname:
        check_printable("hostname", info.hostname, MAX_HOSTNAME_LENGTH)
    if info.version:
        check_printable("version", info.version, MAX_VERSION_LENGTH)
    _check_range("pid", info.pid, 0, MAX_PID)
    _check_range("concurrency", info.concurrency, 1, MAX_CONCURRENCY)
    if info.fallback and is_limited(info.owner):
        # Its queues depend on those of all other workers, and are looked up for each claim.
        raise InvalidArgument("fallback", "is for a server's own pool where callers are known")
    if not info.queues:
        raise InvalidArgument("queues", "name at least one queue, or '*' for all")
    _check_most("queues", len(info.queues), MAX_QUEUES, rest=", or '*' for all")
    check_queue_names([name for name in info.queues if name != ALL_QUEUES])
    if info.types is not None:
        _check_types(info.types)
    size = sum(len(name.encode()) for name in (*info.queues, *(info.types or ())))
    if size > MAX_NAME_BYTES:
        raise InvalidArgument(
            "types",
            f"the names of types and queues take {size} bytes, which are too many; at most"
            f" {MAX_NAME_BYTES} are allowed",
        )


def _check_types(types: frozenset[str]) -> None:
    if not types:
        raise InvalidArgument("types", "name at least one type, or give no list for all types")
    _check_most("types", len(types), MAX_TYPES)
    for type in types:
        if type:  # the empty text stands for jobs without a type
            check_text("types", type, MAX_TYPE_LENGTH)


def check_query(query: JobQuery) -> None:
    """Raise InvalidArgument unless the conditions and the page size of a query are valid."""
    _check_range("limit", query.limit, 1, MAX_PAGE)
    _check_conditions(query)


def check_retry_query(query: RetryQuery) -> None:
    """Raise InvalidArgument for invalid conditions, or for reasons that no dead letter has."""
    _check_conditions(query)
    if not query.reasons:
        raise InvalidArgument("reasons", f"name at least one of {', '.join(sorted(DEATHS))}")
    for reason in query.reasons:
        if reason not in DEATHS:
            raise InvalidArgument(
                "reasons",
                f"{reason} is no reason of a dead letter; allowed: {', '.join(sorted(DEATHS))}",
            )


def _check_conditions(query: JobConditions) -> None:
    if query.queue is not None:
        _check_name("queue", query.queue)
    if query.type:
        check_text("type", query.type, MAX_TYPE_LENGTH)
    if query.error:
        check_text("error", query.error, MAX_ERROR_FILTER_LENGTH)
    _check_time("since", query.since)
    _check_time("until", query.until)
    if query.since is not None and query.until is not None and query.since >= query.until:
        raise InvalidArgument("until", "must be later than since")


def check_time_query(query: TimeQuery) -> None:
    """Raise InvalidArgument unless limit, offset, queue and type of a query are valid."""
    _check_range("limit", query.limit, 1, MAX_PAGE)
    _check_range("offset", query.offset, 0, MAX_OFFSET)
    _check_name("queue", query.queue)
    if query.type:
        check_text("type", query.type, MAX_TYPE_LENGTH)


def write_page_token(seq: int) -> str:
    """Return the token of the page that begins after the job with the number ``seq``."""
    return f"s{seq:x}"


def read_page_token(token: str) -> int | None:
    """Return the job number in a page token, or None if the token is empty (the first page)."""
    if not token:
        return None
    if not re.fullmatch(r"s[0-9a-f]{1,15}", token):
        raise InvalidArgument(
            "page_token", "is not a token that a list call returned as next_page_token"
        )
    return int(token[1:], 16)


def check_queue_names(names: Sequence[str]) -> None:
    for name in names:
        _check_name("queues", name)


def check_may_exist(name: str) -> None:
    """Raise NotFound for a name that no queue can have. Some stores cannot read such a name."""
    if not _NAME.fullmatch(name):
        raise NotFound(f"queue: there is no queue {name[:120]!r}: a name is {_NAME_RULE}")


def _check_name(field: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidArgument(field, f"{name[:120]!r} is not a queue name: {_NAME_RULE}")


def _check_positive(field: str, value: float) -> None:
    if not 0 < value <= MAX_SECONDS:  # NaN, too
        raise InvalidArgument(field, f"must be more than 0 and at most {MAX_SECONDS:.0f} seconds")


def _check_range(field: str, value: float, low: float, high: float, allowed: str = "") -> None:
    if not low <= value <= high:  # NaN, too
        raise InvalidArgument(field, f"must be {allowed or f'{low} to {high}'}")


def _check_most(field: str, count: int, most: int, unit: str = "", rest: str = "") -> None:
    if count > most:
        raise InvalidArgument(
            field, f"{count}{unit} are too many; at most {most} are allowed{rest}"
        )


def _check_time(field: str, moment: float | None) -> None:
    if moment is not None:
        _check_range(field, moment, 0, LATEST, "a time between 1970 and 9999")


class QueueTtls:
    """Reads the TTLs of queues, which apply to delayed jobs without a TTL of their own.

    The TTL of each queue is read from the store at most once a second.
    """

    def __init__(self, queues: QueueStore) -> None:
        self._queues = queues
        self._known: dict[str, tuple[float, float | None]] = {}  # time of reading, and the TTL

    async def of(self, specs: Sequence[JobSpec]) -> dict[str, float]:
        """Return the TTLs, by queue, that apply to the delayed jobs among ``specs``."""
        names = {
            spec.queue
            for spec in specs
            if spec.ttl is None and (spec.delay is not None or spec.run_at is not None)
        }
        ttls = {name: await self._ttl(name) for name in names}
        return {name: ttl for name, ttl in ttls.items() if ttl is not None}

    async def _ttl(self, name: str) -> float | None:
        now = time.monotonic()
        known = self._known.get(name)
        if known is not None and now - known[0] < _TTL_AGE:
            return known[1]
        if len(self._known) >= _MOST_TTLS:
            self._known.clear()
        stats = await self._queues.stats(name)
        ttl = stats[0].queue.ttl if stats else None
        self._known[name] = (now, ttl)
        return ttl
