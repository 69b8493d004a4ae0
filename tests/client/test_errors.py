"""What a handler raised, as it is recorded: with what caused it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from jobqueue import Abort, JobFailed, JobQueue, RetryLater
from jobqueue.core.job import MAX_ERROR_BYTES
from jobqueue.worker.execution import describe

app = JobQueue("memory://", max_retries=0)


def find(name: str) -> str:
    prices: dict[str, str] = {}
    return prices[name]


def total(name: str) -> None:
    try:
        find(name)
    except KeyError as error:
        raise ValueError("no total") from error


@app.task
async def on_the_loop() -> None:
    total("milk")


@app.task
def in_a_thread() -> None:
    total("milk")


@app.task(executor="process")
def in_a_process() -> None:
    total("milk")


@pytest.mark.parametrize("kind", ["on_the_loop", "in_a_thread", "in_a_process"])
async def test_the_recorded_error_shows_what_caused_it(
    kind: Literal["on_the_loop", "in_a_thread", "in_a_process"], tmp_path: Path
) -> None:
    task = {"on_the_loop": on_the_loop, "in_a_thread": in_a_thread, "in_a_process": in_a_process}
    async with app, app.worker():
        job = await task[kind].submit()
        with pytest.raises(JobFailed) as failed:
            await job.result(timeout=300)
    said = failed.value.error
    assert said.startswith("ValueError: no total\n")
    assert "in total" in said
    _, own, cause = said.partition("caused by KeyError: 'milk'\n")
    assert own
    assert "in find" in cause


def described(raised: type[BaseException], *, chain: bool = True) -> str:
    try:
        try:
            find("milk")
        except KeyError as error:
            if chain:
                raise raised("outer") from error
            raise raised("outer") from None
    except BaseException as error:
        return describe(error)
    raise AssertionError("nothing was raised")


def test_an_abort_shows_what_caused_it() -> None:
    said = described(Abort)
    assert said.startswith("Abort: outer\ncaused by KeyError: 'milk'\n")
    assert "in find" in said
    assert described(Abort, chain=False) == "Abort: outer"


def test_an_error_raised_while_another_is_handled_shows_both() -> None:
    try:
        try:
            find("milk")
        except KeyError:
            find("flour")
    except KeyError as error:
        said = describe(error)
    assert said.startswith("KeyError: 'flour'\n")
    assert "\nwhile handling KeyError: 'milk'\n" in said


def test_a_chain_that_is_cut_off_is_not_shown() -> None:
    assert "KeyError" not in described(ValueError, chain=False)


def test_a_retry_that_is_asked_for_shows_what_caused_it() -> None:
    try:
        try:
            find("milk")
        except KeyError as error:
            raise RetryLater(5) from error
    except RetryLater as error:
        said = describe(error)
    assert "caused by KeyError: 'milk'" in said


def test_a_long_chain_is_bounded() -> None:
    error = ValueError("x" * 10_000)
    for number in range(50):
        outer = ValueError(f"{number} " + "y" * 10_000)
        outer.__cause__ = error
        error = outer
    error.__cause__.__cause__.__cause__ = error  # type: ignore[union-attr]  # and goes in a circle
    said = describe(error)
    assert len(said.encode()) <= MAX_ERROR_BYTES
    assert said.startswith("ValueError: 49 ")
    assert "caused by ValueError: 48 " in said


def test_inline_the_failure_is_caused_by_the_handlers_own_exception() -> None:
    with app.inline():
        job = app.sync().submit(on_the_loop)
        with pytest.raises(JobFailed) as failed:
            job.result()
    cause = failed.value.__cause__
    assert isinstance(cause, ValueError)
    assert isinstance(cause.__cause__, KeyError)
    assert cause.__traceback__ is not None


async def test_inline_the_failure_of_an_async_caller_has_its_cause_too() -> None:
    async with app.inline():
        job = await in_a_thread.submit()
        with pytest.raises(JobFailed) as failed:
            await job.result()
    assert isinstance(failed.value.__cause__, ValueError)
