"""Tasks: functions whose calls can be submitted as jobs, typed by the function's signature."""

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
    from jobqueue.client.sender import Sender

P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")
F_co = TypeVar("F_co", bound=Callable[..., Any], covariant=True)
S_co = TypeVar("S_co", bound=Callable[..., Any], covariant=True)

Exceptions: TypeAlias = type[BaseException] | Iterable[type[BaseException]]
Coro: TypeAlias = Coroutine[Any, Any, R]
Submitting: TypeAlias = Coroutine[Any, Any, JobHandle[R]]


class Task(Generic[F_co, S_co]):
    """A function that can be called as it is, or submitted as a job.

    ``F`` is the function's type, ``S`` that of ``submit``: the same parameters without the
    Context, and a JobHandle of what the function returns.
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
        # ``__wrapped__`` leads a process pool, which finds handlers by import, to the function.
        functools.update_wrapper(self, definition.fn)

    def __repr__(self) -> str:
        return f"<Task {self.name!r} on queue {self.definition.options.queue!r}>"

    @property
    def name(self) -> str:
        """The type that the task's jobs carry."""
        return self.definition.name

    @property
    def __call__(self) -> F_co:
        """Call the function directly, without a job."""
        return cast("F_co", self.definition.fn)

    @property
    def submit(self) -> S_co:
        """Submit a call: ``await task.submit(*args)``. In a durable store it is safe on return."""
        return cast("S_co", self._submit)

    async def submit_many(
        self: Task[Any, Callable[..., Submitting[R]]], calls: Iterable[tuple[Any, ...]]
    ) -> list[JobHandle[R]]:
        """Submit many calls, each given as a tuple of arguments; returns their handles in order.

        All arguments are checked before the first job is sent. Raises BatchRefused if the queue
        refused some of them.
        """
        if self._overrides.key is not None:
            raise InvalidArgument("key", "one key stands for one job; submit them one by one")
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
        """Return this task with other options (``SubmitSaid``) for the jobs it submits."""
        return Task(self.definition, self._sender, submit_options(**said).over(self._overrides))

    def decode(self, job: Job) -> Any:
        """Read a job's result by the function's return annotation."""
        return self.definition.decode_result(job.result)

    async def _submit(self, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        return await self._sender.send(self.spec(*args, **kwargs), self.decode)

    def spec(self, *args: Any, **kwargs: Any) -> JobSpec:
        """Return the job that ``submit`` would send."""
        definition = self.definition
        payload = definition.encode(args, kwargs)
        return self._overrides.spec(payload, definition.name, definition.options)


class Defines(Protocol):
    """The part of an app that registers the decorator's tasks."""

    def add_task(
        self, definition: TaskDefinition, *, default: bool, cron: Cron | None
    ) -> Task[Any, Any]:
        """Register a task, and its schedule if it has one."""
        ...


class _Unknown:
    """Accepted only by parameters that accept anything: Any, object, or no annotation."""


class TaskDecorator:
    """``@app.task`` or ``@app.task(queue="mail", ...)``, on ``async def`` and ``def`` alike.

    Called with options it returns a decorator with these options, which can be kept and used many
    times. A parameter annotated ``Context`` is filled in by the worker and is not an argument of
    ``submit``; put it first or last.

    ``backoff`` sets the waits of a failed job before its retries, in place of the queue's: a number
    of seconds, a list like ``[1, 10, 60]`` (the last for all further ones), or a ``Backoff`` that
    doubles. Only exceptions in ``retry_on`` are retried, and those in ``abort_on`` never are:
    ``abort_on`` wins.

    ``cron="*/5 * * * *"`` submits the task at these times, in UTC or the ``timezone`` given, while
    any worker of the app runs; the task must do without arguments.
    """

    def __init__(
        self,
        app: Defines,
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

    # For type checkers, in order: parameters that accept anything cannot be told from a Context,
    # so the task is left untyped; Context first; Context last (arguments by position only); none.
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
        cron: str | None = None,
        timezone: str | None = None,
        default: bool = False,
    ) -> TaskDecorator: ...

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
                raise InvalidArgument("timezone", "is for a task with cron=")
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
    for name in ("timeout", "ttl"):
        if name in changes:
            changes[name] = seconds(name, changes[name])
    if "backoff" in changes:
        changes["backoff"] = backoff(changes["backoff"])
    for name in ("retry_on", "abort_on"):
        if name in changes:
            changes[name] = exceptions(name, changes[name])
    if changes.get("retry_on") == ():
        raise InvalidArgument("retry_on", "name at least one exception; max_retries=0 retries none")
    return replace(options, **changes)


def schedule(cron: Cron, task: Task[Any, Any], args: tuple[Any, ...], name: str | None) -> Schedule:
    """Make a schedule of the task, under the task's name unless another is given."""
    name = task.name if name is None else name
    if not 1 <= len(name) <= MAX_NAME_LENGTH:
        raise InvalidArgument("name", f"1 to {MAX_NAME_LENGTH} characters are allowed")
    try:
        spec = task.spec(*args)
    except InvalidArgument as error:
        hint = "" if args else "; give arguments by app.periodic(cron, task, *args)"
        raise InvalidArgument(f"schedule {name!r}", f"{error.message}{hint}") from error
    if spec.key is not None:
        raise InvalidArgument("key", "a schedule has a key of its own for every tick")
    if spec.run_at is not None:
        raise InvalidArgument("run_at", "a schedule has its own times; delay is allowed")
    made = Schedule(name, cron, spec)
    try:
        check_spec(made.tick(0.0), len(spec.payload))
    except InvalidArgument as error:
        raise InvalidArgument(f"schedule {name!r}", error.message) from None
    return made


def check_catch_up(value: Seconds | None, rules: Rules) -> float:
    """Read how late a tick may be submitted: at most as long as its key is remembered."""
    late = seconds("catch_up", value)
    if late is None:
        return min(CATCH_UP, rules.key_ttl)
    if not 0 <= late <= rules.key_ttl:
        raise InvalidArgument(
            "catch_up",
            f"{late:g} s is not 0 to {rules.key_ttl:g} s, the time an idempotency key is kept",
        )
    return late
