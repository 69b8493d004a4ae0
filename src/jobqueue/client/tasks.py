"""Define tasks: functions whose calls can be submitted as jobs, with the function's types."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
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
from jobqueue.core.store import Rules
from jobqueue.engine.admission import check_spec
from jobqueue.tasks.context import Context
from jobqueue.tasks.task import ExecutorName, TaskDefinition, TaskOptions, define
from jobqueue.worker.periodic import CATCH_UP, MAX_NAME_LENGTH, Schedule

if TYPE_CHECKING:
    from jobqueue.client.app import JobQueue
    from jobqueue.client.sender import Sender

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
Ts = TypeVarTuple("Ts")
F_co = TypeVar("F_co", bound=Callable[..., Any], covariant=True)
S_co = TypeVar("S_co", bound=Callable[..., Any], covariant=True)

Exceptions: TypeAlias = type[BaseException] | Iterable[type[BaseException]]
Coro: TypeAlias = Coroutine[Any, Any, R]
Results: TypeAlias = Sequence[R | BaseException]
Submitting: TypeAlias = Coroutine[Any, Any, JobHandle[R]]


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
    ) -> None:
        self.definition = definition
        self._sender = sender
        self._overrides = overrides
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

        When the call returns, the job is stored; in a durable store it survives a crash.
        """
        return cast("S_co", self._submit)

    async def submit_many(
        self: Task[Any, Callable[..., Submitting[R]]], calls: Iterable[tuple[Any, ...]]
    ) -> list[JobHandle[R]]:
        """Submit many calls as jobs, and return the jobs' handles in order.

        Each call is a tuple of arguments. All arguments are checked before the first job is sent.
        Raises BatchRefused if the engine refuses some of the jobs.
        """
        if self._overrides.key is not None:
            raise InvalidArgument(
                "key", "a key identifies only one job; submit the jobs one by one"
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
        return await self._sender.send_many(specs, self.decode)

    def options(self, **said: Unpack[SubmitSaid]) -> Task[F_co, S_co]:
        """Return a copy of this task that submits jobs with the given options (``SubmitSaid``)."""
        return Task(self.definition, self._sender, submit_options(**said).over(self._overrides))

    def decode(self, job: Job) -> Any:
        """Decode a job's result to the type of the function's return annotation."""
        return self.definition.decode_result(job.result)

    async def _submit(self, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        return await self._sender.send(self.spec(*args, **kwargs), self.decode)

    def spec(self, *args: Any, **kwargs: Any) -> JobSpec:
        """Return the spec of the job that ``submit`` would send for these arguments."""
        definition = self.definition
        payload = definition.encode(args, kwargs)
        return self._overrides.spec(payload, definition.name, definition.options)


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

    ``breaker=Breaker(failures=10, pause=30)`` pauses the task in a worker process whose attempts
    failed 10 times in a row: for 30 seconds the process takes no jobs of it, then it tries one.

    ``batch=100`` collects up to 100 jobs for one call of the function, which gets a list in place
    of each argument, and returns a list with a result or an exception for each job. A call waits at
    most ``batch_wait`` seconds (0.1) for jobs after its first one. Each job takes a slot.

    ``cron="*/5 * * * *"`` submits the task at these times, in UTC or in ``timezone``, while any
    worker of the app runs. Such a task must not need arguments.
    """

    def __init__(
        self,
        app: JobQueue,
        options: TaskOptions,
        name: str | None = None,
        default: bool = False,
        cron: Cron | None = None,
    ) -> None:
        self._app = app
        self._options = options
        self._name = name
        self._default = default
        self._cron = cron

    # Overloads for type checkers, in order. 1 and 2: the first or last parameter accepts anything;
    # it might be a Context, so the task is untyped. 3 and 4: the Context is first. 5 and 6: the
    # Context is last; arguments only by position. 7 and 8: no Context. 9 and 10: the call with
    # options, without and with batches.
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
    ) -> Task[Callable[Concatenate[Context, P], Coro[R]], Callable[P, Submitting[R]]]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[Context, P], R], /
    ) -> Task[Callable[Concatenate[Context, P], R], Callable[P, Submitting[R]]]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[[*Ts, Context], Coro[R]], /
    ) -> Task[Callable[..., Coro[R]], Callable[[*Ts], Submitting[R]]]: ...
    @overload
    def __call__(
        self, fn: Callable[[*Ts, Context], R], /
    ) -> Task[Callable[..., R], Callable[[*Ts], Submitting[R]]]: ...
    @overload
    def __call__(
        self, fn: Callable[P, Coro[R]], /
    ) -> Task[Callable[P, Coro[R]], Callable[P, Submitting[R]]]: ...
    @overload
    def __call__(
        self, fn: Callable[P, R], /
    ) -> Task[Callable[P, R], Callable[P, Submitting[R]]]: ...
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
        breaker: Breaker | None = None,
        cron: str | None = None,
        timezone: str | None = None,
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
        timezone: str | None = None,
        **said: Any,
    ) -> Any:
        if fn is None:
            if cron is None and timezone is not None:
                raise InvalidArgument("timezone", "is only allowed together with cron=")
            return TaskDecorator(
                self._app,
                _with(self._options, said),
                name or self._name,
                default or self._default,
                self._cron if cron is None else Cron.parse(cron, timezone or "UTC"),
            )
        if isinstance(fn, Task):
            raise InvalidArgument(f"task {fn.name!r}", "is a task already")
        if not callable(fn):
            raise InvalidArgument(
                "task", f"expected a function, got {fn!r:.80}; options are given by name"
            )
        definition = define(fn, name=self._name, options=self._options)
        return self._app.add_task(definition, default=self._default, cron=self._cron)


_OTHERS = {"name", "default", "cron", "timezone"}


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
    if changes.get("retry_on") == ():
        raise InvalidArgument(
            "retry_on", "name at least one exception; to retry nothing, set max_retries=0"
        )
    return replace(options, **changes)


def schedule(cron: Cron, task: Task[Any, Any], args: tuple[Any, ...], name: str | None) -> Schedule:
    """Return a schedule that submits the task with ``args`` at the times of ``cron``.

    ``name`` is the schedule's name; None means the task's name.
    """
    name = task.name if name is None else name
    if not 1 <= len(name) <= MAX_NAME_LENGTH:
        raise InvalidArgument("name", f"1 to {MAX_NAME_LENGTH} characters are allowed")
    try:
        spec = task.spec(*args)
    except InvalidArgument as error:
        hint = "" if args else "; give arguments by app.periodic(cron, task, *args)"
        raise InvalidArgument(f"schedule {name!r}", f"{error.message}{hint}") from error
    if spec.key is not None:
        raise InvalidArgument("key", "is not allowed: a schedule makes a key for each of its jobs")
    if spec.run_at is not None:
        raise InvalidArgument("run_at", "is not allowed: a schedule has its own times; use delay")
    made = Schedule(name, cron, spec)
    try:
        check_spec(made.tick(0.0), len(spec.payload))
    except InvalidArgument as error:
        raise InvalidArgument(f"schedule {name!r}", error.message) from None
    return made


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
