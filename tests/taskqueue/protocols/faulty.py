"""A proxy around any part, with a named failpoint for each of its methods.

A point is called ``jobs.create``, ``queue.dequeue``, ``results.store``, ``coordination.fetch`` and
so on; a transition names its statuses (``jobs.transition QUEUED->RUNNING``), and putting back what
was taken is ``queue.enqueue rescue``. Each fault planned for a point meets one call, in order.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from jobqueue.core.errors import JobQueueError, Unavailable

T = TypeVar("T")


@dataclass
class Call:
    """One call; ``go`` carries it out, as often as it is awaited."""

    point: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    inner: Callable[..., Awaitable[Any]]
    answers: list[Any] = field(default_factory=list)

    async def go(self) -> Any:
        answer = await self.inner(*self.arguments, **self.keywords)
        self.answers.append(answer)
        return answer

    @property
    def request_id(self) -> str | None:
        return self.keywords.get("request_id")


Fault = Callable[[Call], Awaitable[Any]]


class Failpoints:
    """The faults to come, and the calls that were made."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.choose: Callable[[Call], Fault | None] = lambda call: None
        self._planned: dict[str, deque[Fault]] = defaultdict(deque)

    def around(self, inner: T, name: str) -> T:
        """The same part, with failpoints."""
        return cast(T, _Proxy(self, inner, name))

    def on(self, point: str, *faults: Fault) -> None:
        """The next calls of this point go like this."""
        self._planned[point].extend(faults)

    @property
    def unmet(self) -> list[str]:
        """Points with faults that no call has met: the test has not driven what it says."""
        return [point for point, faults in self._planned.items() if faults]

    def of(self, point: str) -> list[Call]:
        """The calls of one point."""
        return [call for call in self.calls if call.point == point]

    async def carry_out(self, call: Call) -> Any:
        self.calls.append(call)
        planned = self._planned[call.point]
        fault = planned.popleft() if planned else self.choose(call)
        return await (call.go() if fault is None else fault(call))


class _Proxy:
    def __init__(self, points: Failpoints, inner: object, name: str) -> None:
        self._points = points
        self._inner = inner
        self._name = name

    def __getattr__(self, method: str) -> Any:
        inner = getattr(self._inner, method)
        if not inspect.iscoroutinefunction(inner):
            return inner

        async def called(*arguments: Any, **keywords: Any) -> Any:
            point = f"{self._name}.{_point(method, arguments, keywords)}"
            return await self._points.carry_out(Call(point, arguments, keywords, inner))

        return called


def _point(method: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    if method == "transition":
        return f"transition {arguments[1].name}->{arguments[2].name}"
    if keywords.get("rescue"):
        return f"{method} rescue"
    return method


# -- faults --------------------------------------------------------------------------------------


async def passes(call: Call) -> Any:
    """Nothing goes wrong."""
    return await call.go()


def fails(error: JobQueueError | None = None) -> Fault:
    """It does not happen."""

    async def fault(call: Call) -> Any:
        raise error or Unavailable(f"{call.point} cannot be reached")

    return fault


def loses_reply(error: JobQueueError | None = None) -> Fault:
    """It happens, and the caller does not hear of it."""

    async def fault(call: Call) -> Any:
        await call.go()
        raise error or Unavailable(f"the answer of {call.point} was lost")

    return fault


async def twice(call: Call) -> Any:
    """The same request arrives two times; both answers are the same."""
    first = await call.go()
    second = await call.go()
    assert first == second, f"{call.point} answered {first}, and when repeated {second}"
    return second


def first(hook: Callable[[], Awaitable[Any]]) -> Fault:
    """Something else happens just before."""

    async def fault(call: Call) -> Any:
        await hook()
        return await call.go()

    return fault


def then(hook: Callable[[], Awaitable[Any]]) -> Fault:
    """Something else happens just after, before the caller has the answer."""

    async def fault(call: Call) -> Any:
        answer = await call.go()
        await hook()
        return answer

    return fault


def answers(answer: object) -> Fault:
    """It does not happen, but this is the answer."""

    async def fault(call: Call) -> Any:
        return answer

    return fault


class Hold:
    """A call that stands still until it is released; ``before`` or ``after`` it happens."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._go_on = asyncio.Event()

    def release(self) -> None:
        self._go_on.set()

    async def _stand(self) -> None:
        self.reached.set()
        await self._go_on.wait()

    async def before(self, call: Call) -> Any:
        await self._stand()
        return await call.go()

    async def after(self, call: Call) -> Any:
        answer = await call.go()
        await self._stand()
        return answer
