"""Checked by mypy, never run: what the SDK's types promise.

Each ``type: ignore`` marks a mistake that must be reported: if it is not, the ignore is unused,
and that is an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, assert_type

from jobqueue import Backoff, Context, Job, JobHandle, JobQueue, Task

app = JobQueue("memory://")


@app.task(queue="mail", max_retries=5, timeout=30)
async def send(to: str, subject: str, ctx: Context) -> dict[str, int]:
    return {to: len(subject) + ctx.attempt}


@app.task
async def first(ctx: Context, to: str, times: int = 1) -> list[str]:
    return [to] * times


@app.task(backoff=Backoff(base=1, max=60), retry_on=OSError, abort_on=(KeyError, ValueError))
async def picky() -> None: ...


@app.task(backoff=[1, timedelta(minutes=1)])
async def stepped() -> None: ...


app.task(backoff="soon")  # type: ignore[arg-type]
app.task(retry_on="OSError")  # type: ignore[arg-type]


@app.task
async def plain(a: int, *, b: str = "") -> str:
    return b * a


@app.task(cron="@hourly", timezone="Europe/Zurich")
async def hourly(ctx: Context, times: int = 1) -> int:
    return times


app.periodic("@daily", plain, 1, name="nightly", priority=9)
app.periodic("@daily", plain, 1, key="mine")  # type: ignore[call-arg]


@app.task
def sync_last(a: int, ctx: Context) -> int:
    return a + ctx.attempt


@app.task(executor="process")
def sync_first(ctx: Context, a: int) -> float:
    return a / ctx.attempt


@app.task
def sync_plain(a: int, b: int = 2) -> tuple[int, int]:
    return a, b


@app.task
async def only_context(ctx: Context) -> bytes:
    return ctx.payload


@app.task
def nothing() -> None:
    return None


@app.task
def anything(value: Any) -> Any:
    return value


@app.task
def whatever(value: object) -> bool:
    return value is not None


mail = app.task(queue="mail")


@mail(timeout=3)
def kept(a: int) -> int:
    return a


@app.task(batch=100, batch_wait=0.2, queue="index")
async def lengths(texts: list[str], contexts: list[Context]) -> list[int | Exception]:
    return [len(text) for text in texts]


@app.task(batch=10)
def sums(a: list[int], b: list[float]) -> list[float]:
    return [x + y for x, y in zip(a, b, strict=True)]


@app.task(batch=10)
async def gathered(texts: list[str]) -> list[int | BaseException]:
    return await asyncio.gather(*map(measured, texts), return_exceptions=True)


async def measured(text: str) -> int:
    return len(text)


@app.task(batch=10)
async def stored(texts: list[str]) -> None: ...


by_tens = app.task(batch=10)


@by_tens(queue="index")
def upper(texts: list[str]) -> list[str]:
    return [text.upper() for text in texts]


async def batches() -> None:
    assert_type(await lengths.submit("one"), JobHandle[int])
    assert_type(await sums.submit(1, 2.0), JobHandle[float])
    assert_type(await gathered.submit("one"), JobHandle[int])
    assert_type(await stored.submit("one"), JobHandle[None])
    assert_type(await upper.submit("one"), JobHandle[str])
    assert_type(await lengths.submit_many([("one",)]), list[JobHandle[int]])
    await lengths.submit(["one"])  # type: ignore[arg-type]
    await lengths.submit("one", "two")  # type: ignore[call-arg]
    await sums.submit(1, "2")  # type: ignore[arg-type]
    app.task(batch=10, executor="process")  # type: ignore[call-overload]
    app.task(batch_wait=1)  # type: ignore[call-overload]


async def results() -> None:
    assert_type(await (await send.submit("a@b.c", "hello")).result(timeout=10), dict[str, int])
    assert_type(await (await first.submit("a", times=3)).result(), list[str])
    assert_type(await (await plain.submit(1, b="x")).result(), str)
    assert_type(await (await sync_last.submit(1)).result(), int)
    assert_type(await (await sync_first.submit(1)).result(), float)
    assert_type(await (await sync_plain.submit(1)).result(), tuple[int, int])
    assert_type(await (await only_context.submit()).result(), bytes)
    assert_type(await nothing.submit(), JobHandle[None])
    assert_type(await (await anything.submit(3)).result(), Any)
    assert_type(await (await whatever.submit("x")).result(), Any)
    assert_type(await kept.submit(1), JobHandle[int])
    assert_type(await (await send.submit("a", "b")).status(), Job)
    assert_type(await send.submit_many([("a", "b")]), list[JobHandle[dict[str, int]]])
    assert_type(await send.options(priority=9, delay=3).submit("a", "b"), JobHandle[dict[str, int]])
    assert_type(await send.submit("a", "b", connection=object()), JobHandle[dict[str, int]])
    assert_type(await first.submit("a", times=3, connection=None), JobHandle[list[str]])
    assert_type(await nothing.submit(connection=object()), JobHandle[None])
    within = send.options(key="k", connection=object())
    assert_type(await within.submit("a", "b"), JobHandle[dict[str, int]])
    assert_type(
        await send.submit_many([("a", "b")], connection=object()), list[JobHandle[dict[str, int]]]
    )
    assert_type(await app.submit("send", connection=object()), JobHandle[Any])
    assert_type(app.job("id"), JobHandle[Any])
    assert_type(app.job("id", send), JobHandle[dict[str, int]])


async def mistakes() -> None:
    await send.submit("a@b.c")  # type: ignore[call-overload]
    await send.submit("a@b.c", 3)  # type: ignore[call-overload]
    await send.submit("a@b.c", "hello", "more")  # type: ignore[call-overload]
    await send.submit("a@b.c", subject="hello")  # type: ignore[call-overload]
    await first.submit(3)  # type: ignore[call-overload]
    await first.submit("a", times="3")  # type: ignore[call-overload]
    await first.submit("a", often=3)  # type: ignore[call-overload]
    await plain.submit(1, "x")  # type: ignore[call-overload]
    await sync_last.submit("1")  # type: ignore[call-overload]
    await sync_first.submit()  # type: ignore[call-overload]
    await nothing.submit(1)  # type: ignore[call-overload]
    await send.options(priority="high").submit("a", "b")  # type: ignore[arg-type]
    await send.options(prio=1).submit("a", "b")  # type: ignore[call-arg]
    app.task(queues="mail")  # type: ignore[call-overload]
    app.task(executor="threads")  # type: ignore[call-overload]
    wrong: JobHandle[str] = await send.submit("a", "b")  # type: ignore[assignment]
    del wrong


async def direct_calls() -> None:
    assert_type(await send("a", "b", Context()), dict[str, int])
    assert_type(sync_first(Context(), 3), float)
    assert_type(sync_plain(1, 2), tuple[int, int])
    sync_plain("1")  # type: ignore[arg-type]
    await first("a")  # type: ignore[call-arg, arg-type]


def blocking() -> None:
    with app.sync() as q:
        assert_type(q.submit(send, "a@b.c", "hello").result(timeout=10), dict[str, int])
        assert_type(q.submit(first.options(priority=3), "a", times=2).result(), list[str])
        assert_type(q.submit(sync_plain, 1).status(), Job)
        assert_type(q.submit(sync_plain, 1, connection=object()).result(), tuple[int, int])
        assert_type(q.submit(send, "a", "b", connection=object()).result(), dict[str, int])
        q.submit(send, "a@b.c")  # type: ignore[call-overload]
        q.submit(first, "a", times="2")  # type: ignore[arg-type]


def takes_task(
    task: Task[Callable[[int], int], Callable[[int], Coroutine[Any, Any, JobHandle[int]]]],
) -> None:
    del task


takes_task(kept)
takes_task(send)  # type: ignore[arg-type]
