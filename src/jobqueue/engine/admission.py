"""What may be submitted, created and asked: every limit, and every message with its field."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from jobqueue.core.clock import LATEST, MAX_SECONDS
from jobqueue.core.errors import InvalidArgument, NotFound
from jobqueue.core.job import MAX_PAGE, JobQuery, JobSpec, RetryQuery, TimeQuery, WorkerInfo
from jobqueue.core.lifecycle import DEATHS
from jobqueue.core.queue import (
    MAX_PRIORITY,
    MAX_RETRIES,
    Queue,
    QueueSettings,
    QueueSpec,
)
from jobqueue.core.store import ALL_QUEUES
from jobqueue.core.texts import (
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
MAX_NAME_BYTES = 256 * 1024  # of the types and queues that a worker names, together
MAX_OFFSET = 10**18
_NAME = re.compile(QUEUE_NAME)
_NAME_RULE = "1 to 100 letters, digits, '.', '_' or '-', the first a letter or digit"


def check_spec(spec: JobSpec, max_payload_bytes: int, now: float | None = None) -> None:
    """Refuse a job that could not be carried out as it says; ``run_at`` is judged by ``now``."""
    _check_name("queue", spec.queue)
    size = len(spec.payload)
    if size == 0:
        raise InvalidArgument("payload", "must not be empty")
    if size > max_payload_bytes:
        raise InvalidArgument(
            "payload", f"{size} bytes are too many; at most {max_payload_bytes} are allowed"
        )
    if not 0 <= spec.priority <= MAX_PRIORITY:
        raise InvalidArgument(
            "priority",
            f"{spec.priority} is outside 0 to {MAX_PRIORITY} ({MAX_PRIORITY} is highest)",
        )
    if spec.max_retries is not None:
        _check_retries(spec.max_retries)
    if spec.ttl is not None:
        _check_positive("ttl", spec.ttl)
    if spec.timeout is not None:
        _check_positive("timeout", spec.timeout)
    if spec.delay is not None or spec.run_at is not None:
        _check_times(spec)
        if spec.ttl is not None:
            check_start_within(spec, spec.ttl, now)
    if spec.type:
        check_text("type", spec.type, MAX_TYPE_LENGTH)
    if spec.key is not None:
        check_text("idempotency_key", spec.key, MAX_KEY_LENGTH)
    if spec.labels:
        check_labels("labels", spec.labels, check_text)


def _check_times(spec: JobSpec) -> None:
    if spec.delay is not None and spec.run_at is not None:
        raise InvalidArgument("delay", "give delay or run_at, not both")
    # NaN is in no range, and a whole number may be too large for a float.
    if spec.delay is not None and not 0 <= spec.delay <= MAX_SECONDS:
        raise InvalidArgument("delay", f"must be 0 to {MAX_SECONDS:.0f} seconds")
    if spec.run_at is not None and not 0 <= spec.run_at <= LATEST:
        raise InvalidArgument("run_at", "must be a time between 1970 and 9999")


def check_start_within(
    spec: JobSpec, ttl: float, now: float | None, whose: str = "its ttl"
) -> None:
    """Refuse a job that would expire before it may start: its TTL counts from the submit."""
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
    """Refuse a queue whose settings make no sense."""
    _check_name("name", queue.name)
    queue.check()


def check_queue_spec(spec: QueueSpec) -> None:
    """The same, as far as it can be judged where the server's settings are not known."""
    # A base or a maximum alone may fit the profile that the server has.
    check_queue(spec.resolve(QueueSettings(retry_base=math.ulp(0.0), retry_max=MAX_SECONDS)))


def check_worker_id(worker_id: str) -> None:
    """Refuse an id that no worker can have: not every store could read it."""
    check_printable("worker_id", worker_id, MAX_WORKER_ID_LENGTH)


def check_worker(info: WorkerInfo) -> None:
    """Refuse a worker that could not be told apart or fed."""
    check_worker_id(info.id)
    if info.hostname:
        check_printable("hostname", info.hostname, MAX_HOSTNAME_LENGTH)
    if info.version:
        check_printable("version", info.version, MAX_VERSION_LENGTH)
    if not 0 <= info.pid <= MAX_PID:
        raise InvalidArgument("pid", f"must be 0 to {MAX_PID}")
    if not 1 <= info.concurrency <= MAX_CONCURRENCY:
        raise InvalidArgument("concurrency", f"must be 1 to {MAX_CONCURRENCY}")
    if not info.queues:
        raise InvalidArgument("queues", "name at least one queue, or '*' for all")
    if len(info.queues) > MAX_QUEUES:
        raise InvalidArgument(
            "queues",
            f"{len(info.queues)} are too many; at most {MAX_QUEUES} are allowed, or '*' for all",
        )
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
        raise InvalidArgument("types", "name at least one, or give no list for every type")
    if len(types) > MAX_TYPES:
        raise InvalidArgument(
            "types", f"{len(types)} are too many; at most {MAX_TYPES} are allowed"
        )
    for type in types:
        if type:  # the empty one stands for jobs without a type
            check_text("types", type, MAX_TYPE_LENGTH)


def check_query(query: JobQuery) -> None:
    """Refuse a page that is too large."""
    if not 1 <= query.limit <= MAX_PAGE:
        raise InvalidArgument("limit", f"must be 1 to {MAX_PAGE}")
    _check_filter(query)


def check_retry_query(query: RetryQuery) -> None:
    """Refuse what no dead letter can match."""
    _check_filter(query)
    if not query.reasons:
        raise InvalidArgument("reasons", f"name at least one of {', '.join(sorted(DEATHS))}")
    for reason in query.reasons:
        if reason not in DEATHS:
            raise InvalidArgument(
                "reasons",
                f"no job is dead-lettered for {reason}; allowed: {', '.join(sorted(DEATHS))}",
            )


def _check_filter(query: JobQuery | RetryQuery) -> None:
    if query.queue is not None:
        _check_name("queue", query.queue)
    if query.type:
        check_text("type", query.type, MAX_TYPE_LENGTH)
    if query.error:
        check_text("error", query.error, MAX_ERROR_FILTER_LENGTH)
    for field, moment in (("since", query.since), ("until", query.until)):
        if moment is not None and not 0 <= moment <= LATEST:  # NaN, too
            raise InvalidArgument(field, "must be a time between 1970 and 9999")
    if query.since is not None and query.until is not None and query.since >= query.until:
        raise InvalidArgument("until", "must be later than since")


def check_time_query(query: TimeQuery) -> None:
    """The same, and an offset that a store can count to."""
    if not 1 <= query.limit <= MAX_PAGE:
        raise InvalidArgument("limit", f"must be 1 to {MAX_PAGE}")
    if not 0 <= query.offset <= MAX_OFFSET:
        raise InvalidArgument("offset", f"must be 0 to {MAX_OFFSET}")
    _check_name("queue", query.queue)
    if query.type:
        check_text("type", query.type, MAX_TYPE_LENGTH)


def write_page_token(seq: int) -> str:
    """Name the place after which the next page begins."""
    return f"s{seq:x}"


def read_page_token(token: str) -> int | None:
    """Find the place again; None is the first page."""
    if not token:
        return None
    if not re.fullmatch(r"s[0-9a-f]{1,15}", token):
        raise InvalidArgument(
            "page_token", "is not one that a list call returned as next_page_token"
        )
    return int(token[1:], 16)


def check_queue_names(names: Sequence[str]) -> None:
    """Refuse a list with a name that no queue can have."""
    for name in names:
        _check_name("queues", name)


def check_may_exist(name: str) -> None:
    """Refuse to look for a queue that cannot exist: not every store could read its name."""
    if not _NAME.fullmatch(name):
        raise NotFound(f"queue: there is no queue {name[:120]!r}: a name is {_NAME_RULE}")


def _check_name(field: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidArgument(field, f"{name[:120]!r} is not a queue name: {_NAME_RULE}")


def _check_retries(value: int) -> None:
    if not 0 <= value <= MAX_RETRIES:
        raise InvalidArgument("max_retries", f"{value} is outside 0 to {MAX_RETRIES}")


def _check_positive(field: str, value: float) -> None:
    if not 0 < value <= MAX_SECONDS:  # NaN, too
        raise InvalidArgument(field, f"must be more than 0 and at most {MAX_SECONDS:.0f} seconds")
