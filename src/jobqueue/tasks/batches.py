"""Define the annotations and the options of batch handlers, which run many jobs in one call.

A batch handler is written like the handler of one job, with a list in place of each value:
``docs: list[Doc]`` for ``doc: Doc``, ``contexts: list[Context]`` for ``ctx: Context``, and a list
of results for one result. An exception in the list of results fails the job at its place.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Union, get_args, get_origin

from jobqueue.core.errors import InvalidArgument
from jobqueue.tasks.codec import resolve_hints, spell

MAX_BATCH = 10_000  # as many slots as a worker may have
MAX_WAIT = 60.0
DEFAULT_WAIT = 0.1

_LISTS = (list, Sequence, Collection, Iterable)
_RESULTS = (*_LISTS, tuple)
_EMPTY = inspect.Parameter.empty
_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def check_batch(batch: object, wait: float | None, executor: str) -> None:
    """Check the options ``batch``, ``batch_wait`` and ``executor`` of a task together."""
    if batch is None:
        if wait is not None:
            raise InvalidArgument("batch_wait", "is only allowed together with batch=")
        return
    if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= MAX_BATCH:
        raise InvalidArgument(
            "batch",
            f"expected the largest number of jobs in one call, 1 to {MAX_BATCH}, got {batch!r:.80}",
        )
    if wait is not None and not 0 <= wait <= MAX_WAIT:  # NaN is refused, too
        raise InvalidArgument("batch_wait", f"must be 0 to {MAX_WAIT:g} s, got {wait:g} s")
    if executor == "process":
        raise InvalidArgument(
            "batch",
            "is not allowed together with executor='process', which runs one job at a time; an"
            " `async def` or `def` handler may have batches",
        )


def hints_of_one_job(name: str, fn: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the annotations that the batch handler ``fn`` would have if it ran one job.

    Raises InvalidArgument, which names the task ``name``, if ``fn`` cannot be a batch handler.
    """
    hints = resolve_hints(fn)
    parameters = inspect.signature(fn).parameters.values()
    if not parameters:
        raise InvalidArgument(
            f"task {name!r}",
            "a batch handler needs a parameter: a list of its jobs' arguments, like"
            " `docs: list[Doc]`, or `contexts: list[Context]`",
        )
    found = {one.name: _of_one(name, one, hints.get(one.name, Any)) for one in parameters}
    found["return"] = _result_of_one(name, hints.get("return", Any))
    return found


def _of_one(name: str, parameter: inspect.Parameter, hint: Any) -> Any:
    where = f"parameter {parameter.name!r}"
    if parameter.kind in _MANY:
        raise InvalidArgument(
            f"task {name!r}", f"{where}: a batch handler cannot have *args or **kwargs"
        )
    if parameter.default is not _EMPTY:
        raise InvalidArgument(
            f"task {name!r}",
            f"{where} cannot have a default: a batch handler gets a list with an argument of"
            " each job",
        )
    element = _element(hint, _LISTS)
    if element is _EMPTY:
        raise InvalidArgument(
            f"task {name!r}",
            f"{where} must be a list, because a batch handler gets an argument of each job:"
            f" expected `list[{spell(hint).strip('`')}]`, got {spell(hint)}",
        )
    return element


def _result_of_one(name: str, hint: Any) -> Any:
    if hint is None or hint is type(None):
        return None
    element = _element(hint, _RESULTS)
    if element is _EMPTY:
        raise InvalidArgument(
            f"task {name!r}",
            "a batch handler must return a list with a result or an exception for each job, or"
            f" None: expected `list[{spell(hint).strip('`')}]`, got {spell(hint)}",
        )
    return _without_exceptions(element)


def _element(hint: Any, lists: tuple[type, ...]) -> Any:
    """Return the type of a list's elements, or ``_EMPTY`` if the annotation is not a list."""
    if hint is Any or hint is object:
        return Any
    if (get_origin(hint) or hint) not in lists:
        return _EMPTY
    elements = [one for one in get_args(hint) if one is not Ellipsis]
    if len(elements) > 1:
        return _EMPTY  # a tuple of a fixed length
    return elements[0] if elements else Any


def _without_exceptions(hint: Any) -> Any:
    """Return a type without the exceptions in it; None if it has nothing else."""
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    rest = [one for one in parts if not (isinstance(one, type) and issubclass(one, BaseException))]
    return functools.reduce(operator.or_, rest) if rest else None
