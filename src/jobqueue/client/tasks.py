"""Define tasks: functions whose calls can be submitted as jobs, with the function's types."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    TypeVarTuple,
    Unpack,
    cast,
    overload,
)

from jobqueue.client.handle import JobHandle
from jobqueue.client.options import (
    NO_OPTIONS,
    Seconds,
    SubmitOptions,
    SubmitSaid,
    backoff,
    exceptions,
    seconds,
    submit_options,
)
from jobqueue.core.breaker import Breaker
from jobqueue.core.cron import Cron
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import Job, JobSpec
from jobqueue.core.retry import Backoff
from jobqueue.core.schedule import (
    CATCH_UP,
    Overlap,
    ScheduleSpec,
    check_schedule_name,
    timing_of,
)
from jobqueue.core.store import Rules
from jobqueue.engine.admission import check_schedule
from jobqueue.tasks.context import Context
from jobqueue.tasks.task import (
    ConcurrencyKey,
    ExecutorName,
    TaskDefinition,
    TaskOptions,
    define,
)
from jobqueue.tasks.unique import Unique

if TYPE_CHECKING:
    from jobqueue.client.app import JobQueue
    from jobqueue.client.sender import Sender

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
A = TypeVar("A")
B = TypeVar("B")
Ts = TypeVarTuple("Ts")
F_co = TypeVar("F_co", bound=Callable[..., Any], covariant=True)
S_co = TypeVar("S_co", bound=Callable[..., Any], covariant=True)

OverlapName: TypeAlias = Literal["allow", "skip", "queue"]
Exceptions: TypeAlias = type[BaseException] | Iterable[type[BaseException]]
Coro: TypeAlias = Coroutine[Any, Any, R]
Results: TypeAlias = Sequence[R | BaseException]
Submitting: TypeAlias = Coroutine[Any, Any, JobHandle[R]]
CONNECTION = "connection"

# Python's types cannot add a keyword to the parameters of a function. So a call with a connection
# has a signature of its own, and its other arguments are checked when it runs.


class Submit(Protocol[P, R_co]):
    """Declares the type of ``Task.submit``."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Submitting[R_co]: ...
    @overload
    def __call__(self, *args: Any, connection: object, **kwargs: Any) -> Submitting[R_co]: ...


class SubmitByPlace(Protocol[R_co, *Ts]):
    """Declares the type of ``Task.submit`` for a task whose last parameter is the Context."""

    @overload
    def __call__(self, *args: *Ts) -> Submitting[R_co]: ...
    @overload
    def __call__(self, *args: Any, connection: object, **kwargs: Any) -> Submitting[R_co]: ...


class Task(Generic[F_co, S_co]):
    """A function that can be called directly, or whose calls can be submitted as jobs.

    ``F_co`` is the type of the function. ``S_co`` is the type of ``submit``: it has the same
    parameters without the Context, and returns a JobHandle for the function's result.
    """

    def __init__(
        self,
        definition: TaskDefinition,
        sender: Sender,
        overrides: SubmitOptions = NO_OPTIONS,
        connection: object = None,
    ) -> None:
        self.definition = definition
        self._sender = sender
        self._overrides = overrides
        self._connection = connection
        # A process pool imports this Task and finds the function in ``__wrapped__``.
        functools.update_wrapper(self, definition.fn)

    def __repr__(self) -> str:
        return f"<Task {self.name!r} on queue {self.definition.options.queue!r}>"

    @property
    def name(self) -> str:
        """Return the task's name, which is the type of its jobs."""
        return self.definition.name

    @property
    def __call__(self) -> F_co:
        """Return the function itself, so that ``task(...)`` calls it directly, without a job."""
        return cast("F_co", self.definition.fn)

    @property
    def submit(self) -> S_co:
        """Return the method that submits a call as a job: ``await task.submit(*args)``.

        When the call returns, the job is stored; in a durable store it survives a crash. With
        ``connection=``, the job is part of the transaction on the user's own connection to the
        database of the jobs: it exists if and only if that transaction commits. A parameter of the
        function that has this name, or ``**kwargs``, gets the value instead; then use
        ``task.options(connection=...)``.
        """
        return cast("S_co", self._submit)

    async def submit_many(
        self: Task[Any, Callable[..., Submitting[R]]],
        calls: Iterable[tuple[Any, ...]],
        *,
        connection: object = None,
    ) -> list[JobHandle[R]]:
        """Submit many calls as jobs, and return the jobs' handles in order.

        Each call is a tuple of arguments. All arguments are checked before the first job is sent.
        Raises BatchRefused if the engine refuses some of the jobs. ``connection`` is as in
        ``submit``.
        """
        specs = self.specs(calls)
        return await self._sender.send_many(specs, self.decode, self.connection_of(connection))

    def specs(self, calls: Iterable[tuple[Any, ...]]) -> list[JobSpec]:
        """Return the specs of the jobs that ``submit_many`` would send for these calls."""
        if self._overrides.key is not None:
            raise InvalidArgument(
                "key", "a key identifies only one job; submit the jobs one by one"
            )
        if self._unique is not None and isinstance(self._unique.key, str):
            raise InvalidArgument(
                "unique.key",
                "one text for many jobs would keep all but one away; give a function of the"
                " arguments, or submit the jobs one by one",
            )
        specs = []
        for index, args in enumerate(calls):
            if not isinstance(args, tuple):
                raise InvalidArgument(
                    f"calls[{index}]", f"expected a tuple of arguments, got {args!r:.80}"
                )
            try:
                specs.append(self.spec(*args))
            except InvalidArgument as error:
                raise InvalidArgument(f"calls[{index}]", error.message) from error
        return specs

    def options(self, *, connection: object = None, **said: Unpack[SubmitSaid]) -> Task[F_co, S_co]:
        """Return a copy of this task that submits jobs with the given options (``SubmitSaid``).

        With ``connection``, ``submit`` writes its jobs in the transaction of that connection.
        """
        overrides = submit_options(**said).over(self._overrides)
        return Task(self.definition, self._sender, overrides, self.connection_of(connection))

    def decode(self, job: Job) -> Any:
        """Decode a job's result to the type of the function's return annotation."""
        return self.definition.decode_result(job.result)

    async def _submit(self, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        connection = self.take_connection(kwargs)
        return await self._sender.send(self.spec(*args, **kwargs), self.decode, connection)

    def take_connection(self, kwargs: dict[str, Any]) -> object:
        """Remove the user's connection from the arguments of ``submit``, and return it, or None."""
        if CONNECTION in kwargs and not self.definition.takes(CONNECTION):
            return self.connection_of(kwargs.pop(CONNECTION))
        return self._connection

    def connection_of(self, connection: object) -> object:
        """Return ``connection`` if it is given, else the connection of ``options``, else None."""
        return self._connection if connection is None else connection

    def spec(self, *args: Any, **kwargs: Any) -> JobSpec:
        """Return the spec of the job that ``submit`` would send for these arguments."""
        definition = self.definition
        payload = definition.encode(args, kwargs)
        spec = self._overrides.spec(payload, definition.name, definition.options)
        unique = self._unique
        if unique is not None:
            arguments = definition.codec.arguments(args, kwargs)
            spec.unique = unique.of_call(definition, arguments, payload)
        if spec.concurrency_key is None and definition.options.concurrency_key is not None:
            spec.concurrency_key = definition.concurrency_key(args, kwargs)
        return spec

    @property
    def _unique(self) -> Unique | None:
        return self._overrides.unique or self.definition.options.unique


class _Unknown:
    """Selects overloads: only a parameter annotated Any, object or not at all accepts this type."""


class BatchDecorator(Protocol):
    """The decorator ``@app.task(batch=100)``: its function gets lists, and runs many jobs at once.

    ``submit`` takes the arguments of one job, and returns the handle of its result.
    """

    # Overloads for type checkers: one or two lists of arguments, with or without the contexts at
    # the end, each without results and with results. The last one accepts every other function.
    @overload
    def __call__(
        self, fn: Callable[[list[A]], Coro[None] | None], /
    ) -> Task[Callable[[list[A]], Any], Callable[[A], Submitting[None]]]: ...
    @overload
    def __call__(
        self, fn: Callable[[list[A]], Coro[Results[R]] | Results[R]], /
    ) -> Task[Callable[[list[A]], Any], Callable[[A], Submitting[R]]]: ...
    @overload
    def __call__(
        self, fn: Callable[[list[A], list[Context]], Coro[None] | None], /
    ) -> Task[Callable[[list[A], list[Context]], Any], Callable[[A], Submitting[None]]]: ...
    @overload
    def __call__(
        self, fn: Callable[[list[A], list[Context]], Coro[Results[R]] | Results[R]], /
    ) -> Task[Callable[[list[A], list[Context]], Any], Callable[[A], Submitting[R]]]: ...
    @overload
    def __call__(
        self, fn: Callable[[list[A], list[B]], Coro[None] | None], /
    ) -> Task[Callable[[list[A], list[B]], Any], Callable[[A, B], Submitting[None]]]: ...
    @overload
    def __call__(
        self, fn: Callable[[list[A], list[B]], Coro[Results[R]] | Results[R]], /
    ) -> Task[Callable[[list[A], list[B]], Any], Callable[[A, B], Submitting[R]]]: ...
    @overload
    def __call__(
        self, fn: Callable[..., Any], /
    ) -> Task[Callable[..., Any], Callable[..., Submitting[Any]]]: ...
    @overload
    def __call__(self, /, **options: Any) -> BatchDecorator: ...


class TaskDecorator:
    """The decorator ``@app.task`` or ``@app.task(queue="mail", ...)``, which makes tasks.

    The function may be ``async def`` or ``def``. With options, the call returns a decorator, which
    may be kept and used many times. The worker fills in a parameter annotated ``Context``, which
    must be the first or the last parameter; ``submit`` has no argument for it.

    ``backoff`` sets the waits before the retries of a failed job, in place of the queue's waits: a
    number of seconds, a list like ``[1, 10, 60]`` (the last number applies to all further retries),
    or a ``Backoff``, whose waits double. Only exceptions in ``retry_on`` are retried. Exceptions in
    ``abort_on`` are never retried, even if they are in ``retry_on``.

    ``unique=Unique()`` keeps a job with equal arguments from being submitted while the task's
    earlier one has not ended. ``Unique`` says which jobs are equal, for how long, and what a later
    submit does.

    ``concurrency_key`` is the concurrency key of the task's jobs, or a function of their arguments
    that returns it: ``lambda tenant, **_: f"tenant:{tenant}"``. Limits of the queue count the jobs
    of equal keys together.

    ``breaker=Breaker(failures=10, pause=30)`` pauses the task in a worker process whose attempts
    failed 10 times in a row: for 30 seconds the process takes no jobs of the task, then it tries
    one job.

    ``batch=100`` collects up to 100 jobs for one call of the function, which gets a list in place
    of each argument, and returns a list with a result or an exception for each job. A call waits at
    most ``batch_wait`` seconds (0.1) for jobs after its first one. Each job takes a slot.

    ``cron="*/5 * * * *"`` submits the task at these times, in UTC or in ``timezone``, and
    ``every=90`` each 90 seconds. ``overlap`` says what happens at a fire time while the schedule's
    last job is unfinished: ``allow`` (another job), ``skip``, or ``queue`` (one tick waits for its
    end). Such a task must not need arguments. Its workers declare the schedule when they start.
    """

    def __init__(
        self,
        app: JobQueue,
        options: TaskOptions,
        name: str | None = None,
        default: bool = False,
        times: Times | None = None,
    ) -> None:
        self._app = app
        self._options = options
        self._name = name
        self._default = default
        self._times = times

    # Overloads for type checkers, in order. 1 and 2: the first or last parameter accepts anything;
    # it might be a Context, so the task is untyped. 3 and 4: the Context is first. 5 and 6: the
    # Context is last; arguments only by position. 7 and 8: no Context. 9: the decorator is called
    # with options. 10: the same for a batch task.
    @overload
    def __call__(
        self, fn: Callable[Concatenate[_Unknown, P], Any], /
    ) -> Task[Callable[..., Any], Callable[..., Submitting[Any]]]: ...
    @overload
    def __call__(
        self, fn: Callable[[*Ts, _Unknown], Any], /
    ) -> Task[Callable[..., Any], Callable[..., Submitting[Any]]]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[Concatenate[Context, P], Coro[R]], /
    ) -> Task[Callable[Concatenate[Context, P], Coro[R]], Submit[P, R]]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[Context, P], R], /
    ) -> Task[Callable[Concatenate[Context, P], R], Submit[P, R]]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[[*Ts, Context], Coro[R]], /
    ) -> Task[Callable[..., Coro[R]], SubmitByPlace[R, *Ts]]: ...
    @overload
    def __call__(
        self, fn: Callable[[*Ts, Context], R], /
    ) -> Task[Callable[..., R], SubmitByPlace[R, *Ts]]: ...
    @overload
    def __call__(self, fn: Callable[P, Coro[R]], /) -> Task[Callable[P, Coro[R]], Submit[P, R]]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Task[Callable[P, R], Submit[P, R]]: ...
    @overload
    def __call__(
        self,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        max_retries: int | None = None,
        timeout: Seconds | None = None,
        priority: int | None = None,
        ttl: Seconds | None = None,
        executor: ExecutorName | None = None,
        backoff: Seconds | Sequence[Seconds] | Backoff | None = None,
        retry_on: Exceptions | None = None,
        abort_on: Exceptions | None = None,
        unique: Unique | None = None,
        concurrency_key: ConcurrencyKey | None = None,
        breaker: Breaker | None = None,
        cron: str | None = None,
        every: Seconds | None = None,
        timezone: str | None = None,
        overlap: OverlapName | None = None,
        default: bool = False,
    ) -> TaskDecorator: ...
    @overload
    def __call__(
        self,
        /,
        *,
        batch: int,
        batch_wait: Seconds | None = None,
        name: str | None = None,
        queue: str | None = None,
        max_retries: int | None = None,
        timeout: Seconds | None = None,
        priority: int | None = None,
        ttl: Seconds | None = None,
        backoff: Seconds | Sequence[Seconds] | Backoff | None = None,
        retry_on: Exceptions | None = None,
        abort_on: Exceptions | None = None,
        unique: Unique | None = None,
        concurrency_key: ConcurrencyKey | None = None,
        breaker: Breaker | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        default: bool = False,
    ) -> BatchDecorator: ...

    def __call__(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        default: bool = False,
        cron: str | None = None,
        every: Seconds | None = None,
        timezone: str | None = None,
        overlap: OverlapName | None = None,
        **said: Any,
    ) -> Any:
        if fn is None:
            return TaskDecorator(
                self._app,
                _with(self._options, said),
                name or self._name,
                default or self._default,
                _times(cron, every, timezone, overlap) or self._times,
            )
        if isinstance(fn, Task):
            raise InvalidArgument(f"task {fn.name!r}", "is a task already")
        if not callable(fn):
            raise InvalidArgument(
                "task", f"expected a function, got {fn!r:.80}; options are given by name"
            )
        definition = define(fn, name=self._name, options=self._options)
        return self._app.add_task(definition, default=self._default, times=self._times)


_OTHERS = {"name", "default", "cron", "every", "timezone", "overlap"}


def _with(options: TaskOptions, said: Mapping[str, Any]) -> TaskOptions:
    known = set(TaskOptions.__slots__)
    if unknown := sorted(said.keys() - known):
        raise InvalidArgument(
            unknown[0], f"is not an option of a task; allowed: {', '.join(sorted(known | _OTHERS))}"
        )
    changes = {name: value for name, value in said.items() if value is not None}
    for name in ("timeout", "ttl", "batch_wait"):
        if name in changes:
            changes[name] = seconds(name, changes[name])
    if "backoff" in changes:
        changes["backoff"] = backoff(changes["backoff"])
    for name in ("retry_on", "abort_on"):
        if name in changes:
            changes[name] = exceptions(name, changes[name])
    if not isinstance(key := changes.get("concurrency_key", ""), str) and not callable(key):
        raise InvalidArgument(
            "concurrency_key",
            f"expected a text, or a function of the task's arguments, got {key!r:.80}",
        )
    if changes.get("retry_on") == ():
        raise InvalidArgument(
            "retry_on", "name at least one exception; to retry nothing, set max_retries=0"
        )
    return replace(options, **changes)


@dataclass(frozen=True, slots=True)
class Times:
    """The fire times of a schedule in code, checked, and its overlap policy."""

    cron: str
    every: int | None
    timezone: str
    overlap: Overlap

    def schedule(
        self, task: Task[Any, Any], args: tuple[Any, ...] = (), name: str | None = None
    ) -> ScheduleSpec:
        """Return a schedule that submits the task with ``args`` at these times.

        ``name`` is the schedule's name; None means the task's name.
        """
        name = task.name if name is None else name
        check_schedule_name(name)
        try:
            job = task.spec(*args)
        except InvalidArgument as error:
            hint = "" if args else "; give arguments by app.periodic(cron, task, *args)"
            raise InvalidArgument(f"schedule {name!r}", f"{error.message}{hint}") from error
        if job.key is not None:
            raise InvalidArgument(
                "key", "is not allowed: a schedule makes a key for each of its jobs"
            )
        if job.unique is not None:
            raise InvalidArgument(
                "unique",
                "is not allowed for a schedule: its overlap says what happens while its last job"
                " is unfinished; give unique= where you submit: task.options(unique=...)",
            )
        made = ScheduleSpec(
            name=name,
            job=job,
            cron=self.cron,
            every=self.every,
            timezone=self.timezone,
            overlap=self.overlap,
        )
        if job.run_at is not None:
            made.check()
        try:
            check_schedule(made)
        except InvalidArgument as error:
            raise InvalidArgument(f"schedule {name!r}", error.message) from None
        return made


def times(
    cron: str | None,
    every: Seconds | None,
    timezone: str | None = None,
    overlap: str | None = None,
) -> Times:
    """Check the times of a schedule. Exactly one of ``cron`` and ``every`` must be given."""
    if (cron is None) == (every is None):
        raise InvalidArgument("cron", "give either cron= or every=")
    chosen = Overlap.ALLOW.value if overlap is None else overlap
    if chosen not in list(Overlap):
        allowed = ", ".join(Overlap)
        raise InvalidArgument("overlap", f"{overlap!r:.80} is unknown; allowed: {allowed}")
    zone = timezone or "UTC"
    if cron is not None:
        return Times(Cron.parse(cron, zone).text, None, zone, Overlap(chosen))
    if timezone is not None:
        raise InvalidArgument("timezone", "is only allowed together with cron=")
    wait: Any = seconds("every", every)
    wait = int(wait) if wait.is_integer() else wait
    timing_of("", wait, zone)
    return Times("", wait, zone, Overlap(chosen))


def _times(
    cron: str | None, every: Seconds | None, timezone: str | None, overlap: str | None
) -> Times | None:
    if cron is None and every is None:
        if timezone is not None:
            raise InvalidArgument("timezone", "is only allowed together with cron=")
        if overlap is not None:
            raise InvalidArgument("overlap", "is only allowed together with cron= or every=")
        return None
    return times(cron, every, timezone, overlap)


def check_catch_up(value: Seconds | None, rules: Rules) -> float:
    """Return, in seconds, how late a schedule's job may be submitted.

    Raises InvalidArgument if ``value`` is longer than idempotency keys are kept, because a later
    job could be submitted twice.
    """
    late = seconds("catch_up", value)
    if late is None:
        return min(CATCH_UP, rules.key_ttl)
    if not 0 <= late <= rules.key_ttl:
        raise InvalidArgument(
            "catch_up",
            f"must be 0 to {rules.key_ttl:g} s, because idempotency keys are kept no longer;"
            f" got {late:g} s",
        )
    return late
