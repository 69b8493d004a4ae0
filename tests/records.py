"""Jobs, assignments and their first events from fields in one row, for tests that make them up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

from jobqueue.core.job import JobSpec

T = TypeVar("T")
_SPEC = {one.name for one in fields(JobSpec)}


def made(kind: Callable[..., T], **said: Any) -> T:
    """A record whose spec has those of the fields that are a spec's."""
    spec = {name: said.pop(name) for name in _SPEC & said.keys()}
    return kind(spec=JobSpec(**spec), **said)
