"""Define ``JobQueue``, the object through which a program defines tasks and submits jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from jobqueue.access.tls import Credentials, Tls, tls_of
from jobqueue.client.handle import JobHandle, Port, decode_json
from jobqueue.client.operator import Operator
from jobqueue.client.options import (
    NO_OPTIONS,
    Seconds,
    SubmitSaid,
    seconds,
    submit_options,
)
from jobqueue.client.sender import Sender
from jobqueue.client.shared_backend import SharedBackend
from jobqueue.client.sync import SyncQueue
from jobqueue.client.tasks import (
    OverlapName,
    Submitting,
    Task,
    TaskDecorator,
    Times,
    check_catch_up,
    times,
)
from jobqueue.client.working import WorkerBlock, run_worker, work
from jobqueue.connect.backends import create_backend, create_locks, orphaned
from jobqueue.connect.transactions import OwnTransactions
from jobqueue.connect.urls import check_redis_url, parse_url
from jobqueue.core.api import Backend
from jobqueue.core.bridge import Bridge
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.ids import parse_job_id
from jobqueue.core.job import DEFAULT_QUEUE, Job
from jobqueue.core.queue import QueueSpec
from jobqueue.core.store import Rules
from jobqueue.engine.admission import check_queue_spec, check_spec
from jobqueue.redaction import redact_value
from jobqueue.tasks.codec import write_json
from jobqueue.tasks.task import TaskDefinition, TaskOptions
from jobqueue.worker.registry import Registry

if TYPE_CHECKING:
    from jobqueue.client.inline import InlineBackend, InlineBlock
    from jobqueue.engine.settings import EngineSettings

R = TypeVar("R")
Q = TypeVar("Q")

_SOME_PAYLOAD = b"{}"


class JobQueue:
    """An app: defines tasks, submits their jobs to one store or server, and runs workers.

    ``url`` names the store or the server: ``sqlite:///jobs.db``, ``memory://``,
    ``postgresql://user@host/database``, ``redis://host:6379/0`` or ``grpc://host:50051``. The first
    call opens the store or connection; ``async with app:``, ``await app.close()`` or the end of the
    event loop closes it.

    ``queue``, ``max_retries``, ``timeout``, ``priority`` and ``ttl`` are defaults for the tasks.
    ``queues`` declares further queues; a ``QueueSpec`` also sets the settings of a queue. The first
    submit and the start of a worker create the declared queues; on a server, the caller needs the
    role operator for this. ``catch_up`` limits how late the newest missed job of a periodic task
    may be submitted after an outage: an hour by default; 0 skips such jobs. ``settings`` and
    ``rules`` apply to an engine in this process. ``api_key`` (or a token) and ``tls`` apply to a
    server: ``True`` or ``grpcs://`` trusts the system's root certificates, and
    ``Tls(ca=..., cert=..., key=...)`` names PEM files. ``redis_url`` names a Redis with locks for
    several processes on one PostgreSQL; without it, they use only PostgreSQL's locks.
    """

    def __init__(
        self,
        url: str,
        *,
        queue: str = DEFAULT_QUEUE,
        max_retries: int | None = None,
        timeout: Seconds | None = None,
        priority: int = 0,
        ttl: Seconds | None = None,
        queues: Iterable[QueueSpec | str] = (),
        catch_up: Seconds | None = None,
        settings: EngineSettings | None = None,
        rules: Rules | None = None,
        api_key: str | None = None,
        tls: Tls | bool = False,
        redis_url: str = "",
    ) -> None:
        scheme = parse_url(url).scheme
        self.url = url
        self.redis_url = _redis_url(scheme, redis_url)
        self.credentials = _credentials(scheme, api_key, tls)
        self.registry = Registry()
        self.registry.catch_up = check_catch_up(catch_up, rules or Rules())
        self._settings = settings
        self._rules = rules
        self._tasks: dict[str, Task[Any, Any]] = {}
        self._inline: list[InlineBackend] = []
        for declared in map(_as_queue, _as_list(queues)):
            self.registry.declare(declared)
        self.shared = SharedBackend(self._create_backend, self._prepare, orphaned(scheme))
        self._transactions = OwnTransactions(url, rules, settings)
        self.sender = Sender(
            self.shared,
            self._port,
            self.registry.declared,
            self._transactions,
            at_open=scheme != "grpc",
        )
        self._bridge = Bridge(
            instead="use `await task.submit(...)` and `await job.result()`",
            loop=lambda: self.shared.loop,
            inlined=lambda: self.inlined,
            pinned=lambda: scheme == "memory" or self.shared.workers > 0,
        )
        self.operator = Operator(self._port)
        self.task = TaskDecorator(
            self,
            TaskOptions(
                queue=queue,
                max_retries=max_retries,
                timeout=seconds("timeout", timeout),
                priority=priority,
                ttl=seconds("ttl", ttl),
            ),
        )

    def __repr__(self) -> str:
        return f"<JobQueue {redact_value(self.url)}>"

    # -- tasks and jobs --------------------------------------------------------------------

    def add_task(
        self, definition: TaskDefinition, *, default: bool = False, times: Times | None = None
    ) -> Task[Any, Any]:
        """Register a task and, if ``times`` is given, its schedule; return the task.

        ``@app.task`` calls this method.
        """
        try:
            check_spec(
                NO_OPTIONS.spec(_SOME_PAYLOAD, definition.name, definition.options),
                len(_SOME_PAYLOAD),
            )
        except InvalidArgument as error:
            raise InvalidArgument(f"task {definition.name!r}", error.message) from None
        task: Task[Any, Any] = Task(definition, self.sender)
        made = None if times is None else times.schedule(task)
        if made is not None:
            self.registry.check_schedule(made.name)
        self.registry.add(definition, default=default)
        self._tasks[definition.name] = task
        if made is not None:
            self.registry.add_schedule(made)
        return task

    def periodic(
        self,
        cron: str | Seconds,
        task: Task[Any, Any],
        *args: Any,
        timezone: str | None = None,
        name: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        overlap: OverlapName | None = None,
    ) -> None:
        """Submit ``task(*args)`` at the times of ``cron``, or every ``cron`` seconds.

        Each time gives one job, even if several workers run. ``cron`` has five fields, or is a
        shorthand like ``@hourly``, or is a number of seconds or a timedelta. ``name`` identifies
        the schedule; it must be the same in every process, and is the task's name by default. The
        options of ``task.options(...)`` apply, except key, unique and run_at. ``overlap`` says what
        happens while the schedule's last job is unfinished: ``allow``, ``skip`` or ``queue``. The
        workers of the app declare the schedule when they start; the server, or the process that has
        the store open, submits its jobs from then on.
        """
        if not any(
            own.definition is getattr(task, "definition", None) for own in self._tasks.values()
        ):
            raise InvalidArgument("task", f"expected a task of this app, got {task!r:.80}")
        chosen = task.options(queue=queue, priority=priority)
        text, every = (cron, None) if isinstance(cron, str) else (None, cron)
        made = times(text, every, timezone, overlap).schedule(chosen, args, name)
        self.registry.add_schedule(made)

    async def submit(
        self,
        type: str,
        payload: Any = None,
        *,
        connection: object = None,
        **said: Unpack[SubmitSaid],
    ) -> JobHandle[Any]:
        """Submit a job for the task with the name ``type``, and return the job's handle.

        ``payload`` is any JSON value, or bytes. A dict holds the task's arguments by name. For a
        task of this app, prefer ``task.submit``, which checks the arguments. The options are the
        same as those of ``Task.options``; ``connection`` is that of ``task.submit``.
        """
        options = submit_options(**said)
        known = self._tasks.get(type)
        defaults = TaskOptions() if known is None else known.definition.options
        spec = options.spec(_encode(payload), type, defaults)
        unique = options.unique or defaults.unique
        if unique is not None:
            spec.unique = (
                unique.of_call(
                    known.definition, known.definition.codec.arguments((), payload), spec.payload
                )
                if known is not None and isinstance(payload, Mapping)
                else unique.of_payload(type, spec.payload)
            )
        if known is not None and spec.concurrency_key is None and isinstance(payload, Mapping):
            spec.concurrency_key = known.definition.concurrency_key((), payload)
        return await self.sender.send(spec, self._decode, connection)

    @overload
    def job(self, job_id: str) -> JobHandle[Any]: ...
    @overload
    def job(self, job_id: str, task: Task[Any, Callable[..., Submitting[R]]]) -> JobHandle[R]: ...
    def job(self, job_id: str, task: Task[Any, Any] | None = None) -> JobHandle[Any]:
        """Return the handle of a job that any process submitted earlier.

        With ``task``, the result is decoded to the type that the task returns.
        """
        decode = self._decode if task is None else task.decode
        return JobHandle(self._port(), parse_job_id(job_id), decode)

    # -- the blocking client, inline mode, workers -----------------------------------------

    def sync(self) -> SyncQueue:
        """Return the blocking client of the app.

        Use: ``with app.sync() as q: q.submit(send, "a@b.c").result()``.
        """
        return SyncQueue(self._bridge, self)

    def inline(self) -> InlineBlock:
        """Return a block for tests: jobs submitted inside the block run at once, in the caller.

        Use: ``with app.inline() as jobs: ...``.
        """
        from jobqueue.client.inline import InlineBackend, InlineBlock

        backend = InlineBackend(self.registry, self._settings, self._rules)
        return InlineBlock(backend, self._inline)

    def worker(
        self, queues: Iterable[str] | None = None, concurrency: int | None = None
    ) -> WorkerBlock:
        """Return a block that executes jobs in the background, and drains at its end.

        Use: ``async with app.worker(): ...``. By default, the worker serves the queues that the
        tasks declare.
        """
        return self._worker(queues, concurrency)

    def _worker(
        self, queues: Iterable[str] | None, concurrency: int | None, *, recycle: bool = False
    ) -> WorkerBlock:
        return WorkerBlock(
            self.shared,
            self.registry,
            self.worker_queues(queues),
            concurrency,
            ticks=not self.inlined,
            recycle=recycle,
            transactions=self._transactions,
        )

    async def work(
        self,
        queues: Iterable[str] | None = None,
        concurrency: int | None = None,
        *,
        signals: bool = False,
    ) -> None:
        """Execute jobs until this call is cancelled, then drain.

        With ``signals``, SIGTERM and SIGINT also end the call. ``queues`` are by default the queues
        that the tasks declare.
        """
        await work(self.worker(queues, concurrency), signals=signals)

    def run_worker(
        self, queues: Iterable[str] | None = None, concurrency: int | None = None
    ) -> None:
        """Execute jobs in this process until SIGTERM or SIGINT, then drain. The call blocks.

        A second signal ends the process at once. If the program has not configured logging,
        starts, failures and stops are logged to stdout: as text on a terminal, otherwise as JSON.
        Raises Unavailable when every slot is blocked by a ``def`` task that did not return at its
        timeout; then the program must be started again.
        """
        run_worker(self._worker(queues, concurrency, recycle=True), self.close)

    # -- open and close --------------------------------------------------------------------

    async def open(self) -> None:
        """Open the store or the connection now, without waiting for the first call."""
        await self.shared.open()

    async def close(self) -> None:
        """Close the store or the connection. The next call of the app opens it again."""
        await self.shared.close()

    async def __aenter__(self) -> JobQueue:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def inlined(self) -> bool:
        """Return True while a ``with app.inline()`` block runs."""
        return bool(self._inline)

    def worker_queues(self, queues: Iterable[str] | None = None) -> tuple[str, ...]:
        """Return the queues for a worker: ``queues`` if given, else all that the tasks declare."""
        return self.registry.queues() if queues is None else tuple(_as_list(queues))

    def _port(self) -> Port:
        return self._inline[-1] if self._inline else self.shared

    def _create_backend(self) -> Backend:
        return create_backend(
            self.url,
            settings=self._settings,
            rules=self._rules,
            credentials=self.credentials,
            locks=create_locks(self.redis_url, field="redis_url"),
        )

    async def _prepare(self, backend: Backend) -> None:
        await self.sender.prepare(backend)

    def _decode(self, job: Job) -> Any:
        task = self._tasks.get(job.type)
        return decode_json(job) if task is None else task.decode(job)


def _credentials(scheme: str, api_key: str | None, tls: Tls | bool) -> Credentials | None:
    made = Credentials(api_key, tls_of(tls))
    if made and scheme != "grpc":
        field = "tls" if api_key is None else "api_key"
        raise InvalidArgument(
            field, "is only for the URL of a server: grpc://HOST:PORT or grpcs://HOST:PORT"
        )
    return made or None


def _redis_url(scheme: str, url: str) -> str:
    if url:
        check_redis_url(url, "redis_url")
        if scheme != "postgresql":
            raise InvalidArgument("redis_url", "is only for a store on PostgreSQL: postgresql://…")
    return url


def _as_list(queues: Iterable[Q]) -> Iterable[Q]:
    if isinstance(queues, str):
        raise InvalidArgument("queues", f"expected a list of names, like [{queues!r}]")
    if isinstance(queues, bytes | Mapping) or not isinstance(queues, Iterable):
        raise InvalidArgument("queues", f"expected a list, like ['mail'], got {queues!r:.80}")
    return queues


def _as_queue(queue: QueueSpec | str) -> QueueSpec:
    made = QueueSpec(name=queue) if isinstance(queue, str) else queue
    if not isinstance(made, QueueSpec):
        raise InvalidArgument("queues", f"expected names or QueueSpecs, got {made!r:.80}")
    check_queue_spec(made)
    return made


def _encode(payload: Any) -> bytes:
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    return write_json(payload, "payload")
