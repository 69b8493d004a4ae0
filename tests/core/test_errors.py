"""Every error has a stable code of its own."""

from __future__ import annotations

import pytest

from jobqueue.core import errors
from jobqueue.core.errors import Code, JobFailed, JobQueueError, KeyConflict, QueueFull


def _leaves() -> list[type[JobQueueError]]:
    """Of this package's core; other modules may have their own below these."""
    return [e for e in JobQueueError.__subclasses__() if e.__module__ == errors.__name__]


def test_each_code_has_one_error_and_each_error_one_code():
    assert sorted(error.code for error in _leaves()) == sorted(Code)


@pytest.mark.parametrize("code", Code)
def test_codes_are_their_own_names(code: Code):
    assert code.value == code.name


def test_the_tree_at_the_top_of_the_module_names_every_error():
    text = errors.__doc__ or ""
    for error in _leaves():
        assert f"── {error.__name__}" in text


def test_errors_carry_what_a_caller_needs():
    assert QueueFull("full", retry_after=2.5).retry_after == 2.5
    assert KeyConflict("taken", job_id="j").job_id == "j"
    assert errors.InvalidArgument("priority", "must be 0-9").message == "priority: must be 0-9"
    failed = JobFailed("j", "CANCELLED", "")
    assert (failed.job_id, failed.reason) == ("j", "CANCELLED")
    assert "CANCELLED" in str(failed)
    assert "no error text" in str(failed)
