"""Define a task by its name, its handler and the options of its jobs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from jobqueue.core.breaker import Breaker
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import DEFAULT_QUEUE
from jobqueue.core.retry import Backoff
from jobqueue.tasks.batches import DEFAULT_WAIT, check_batch, hints_of_one_job
from jobqueue.tasks.codec import Codec
from jobqueue.tasks.unique import Unique, check_unique

ExecutorName = Literal["auto", "process"]
ConcurrencyKey = str | Callable[..., str | None]
"""A concurrency key, or a function of a task's arguments, given by name, that returns one."""
_EXECUTORS = ("auto", "process")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """Holds the default options of a task's jobs; None stands for the queue's setting.

    A submit may override these options.
    """

    queue: str = DEFAULT_QUEUE
    max_retries: int | None = None
    timeout: float | None = None
    priority: int = 0
    ttl: float | None = None
    executor: ExecutorName = "auto"  # auto: ``async def`` on the loop, ``def`` in a thread
    # Seconds before each retry; the last number applies to all further retries. None: as the queue.
    backoff: Backoff | tuple[float, ...] | None = None
    retry_on: tuple[type[BaseException], ...] | None = None  # None: every exception
    abort_on: tuple[type[BaseException], ...] = ()
    unique: Unique | None = None  # None: any number of equal jobs
    # The concurrency key of its jobs, or a function that returns it for a job's arguments.
    concurrency_key: ConcurrencyKey | None = None
    breaker: Breaker | None = None  # stops the task's jobs after failures in a row
    batch: int | None = None  # most jobs in one call of the handler; None: one job, without a list
    batch_wait: float | None = None  # seconds to wait for more jobs; None: the default


DEFAULT_OPTIONS = TaskOptions()


@dataclass(slots=True, eq=False)
class TaskDefinition:
    """A task: a handler with a name, options and a codec. Create it with ``define``.

    The codec of a batch task encodes and decodes a single job.
    """

    name: str
    fn: Callable[..., Any]
    options: TaskOptions
    is_async: bool
    codec: Codec = field(repr=False)
    runs: Literal["coroutine", "thread", "batch", "process"] = field(init=False)
    # The codec's methods, looked up once, because every job calls them.
    context_parameter: str | None = field(init=False)
    decode: Callable[[bytes], dict[str, Any]] = field(init=False, repr=False)
    encode_result: Callable[[Any], bytes | None] = field(init=False, repr=False)
    encode: Callable[[Sequence[Any], Mapping[str, Any]], bytes] = field(init=False, repr=False)
    decode_result: Callable[[bytes | None], Any] = field(init=False, repr=False)

    @property
    def batch_wait(self) -> float:
        """Return how many seconds a batch waits for more jobs after its first."""
        wait = self.options.batch_wait
        return DEFAULT_WAIT if wait is None else wait

    def __post_init__(self) -> None:
        if self.options.batch is not None:
            self.runs = "batch"
        elif self.options.executor == "process":
            self.runs = "process"
        else:
            self.runs = "coroutine" if self.is_async else "thread"
        self.context_parameter = self.codec.context_parameter
        self.decode = self.codec.decode
        self.encode_result = self.codec.encode_result
        self.encode = self.codec.encode
        self.decode_result = self.codec.decode_result

    def concurrency_key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Return the concurrency key of the job for these arguments, or None if it has none.

        Raises InvalidArgument if the task's function for it fails, or returns no text.
        """
        key = self.options.concurrency_key
        if not callable(key):
            return key
        arguments = self.codec.arguments(args, kwargs)
        try:
            found = key(**arguments)
        except Exception as error:
            raise InvalidArgument(
                "concurrency_key",
                f"the function of task {self.name!r} raised {type(error).__name__}: {error}",
            ) from error
        if found is not None and not isinstance(found, str):
            raise InvalidArgument(
                "concurrency_key",
                f"the function of task {self.name!r} must return a text or None, got {found!r:.80}",
            )
        return found

    def takes(self, name: str) -> bool:
        """Return True if the handler can be called with an argument of this name."""
        return self.codec.takes(name)


def define(
    fn: Callable[..., Any], *, name: str | None = None, options: TaskOptions = DEFAULT_OPTIONS
) -> TaskDefinition:
    """Create the task definition of a function, under ``name`` or the function's name.

    Raises InvalidArgument if the function cannot be a handler.
    """
    if name is None:
        name = getattr(fn, "__name__", type(fn).__name__)
        if name == "<lambda>":
            raise InvalidArgument("name", "a lambda needs a name: give name='…'")
    if not name:
        raise InvalidArgument("name", "must not be empty")
    call = fn if inspect.isroutine(fn) else type(fn).__call__
    if inspect.isasyncgenfunction(call) or inspect.isgeneratorfunction(call):
        raise InvalidArgument(f"task {name!r}", "a generator cannot be a handler; return a value")
    if options.executor not in _EXECUTORS:
        raise InvalidArgument(
            "executor", f"{options.executor!r} is unknown; allowed: {', '.join(_EXECUTORS)}"
        )
    if options.executor == "process" and "<locals>" in getattr(fn, "__qualname__", "<locals>"):
        raise InvalidArgument(
            f"task {name!r}",
            "executor='process' imports the handler by its name: define the function at module"
            " level",
        )
    if options.breaker is not None and not isinstance(options.breaker, Breaker):
        raise InvalidArgument(
            "breaker", f"expected Breaker(failures=10, pause=30), got {options.breaker!r:.80}"
        )
    check_unique(options.unique)
    check_batch(options.batch, options.batch_wait, options.executor)
    hints = None if options.batch is None else hints_of_one_job(name, fn)
    is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(call)
    return TaskDefinition(name, fn, options, is_async, Codec(name, fn, hints))
