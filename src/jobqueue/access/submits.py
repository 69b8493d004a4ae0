"""Submits of callers: at their rate, and under idempotency keys of their own."""

from __future__ import annotations

from collections.abc import Sequence

from jobqueue.access.callers import Caller, Role, current_caller
from jobqueue.access.limits import Limiter, Submit
from jobqueue.core.errors import PermissionDenied
from jobqueue.core.job import JobSpec, SubmitResult
from jobqueue.core.key_owner import TICKS


def for_callers(submit: Submit, limiter: Limiter | None) -> Submit:
    """A submit for a face: the keys of a known caller become its own."""

    async def owned(specs: Sequence[JobSpec]) -> list[SubmitResult]:
        caller = current_caller()
        if not caller.name:
            return await submit(specs)
        refused = {n: error for n, spec in enumerate(specs) if (error := _own(spec, caller))}
        if not refused:
            return await submit(specs)
        allowed = [spec for n, spec in enumerate(specs) if n not in refused]
        results = iter(await submit(allowed) if allowed else [])
        return [
            SubmitResult.refused(refused[n]) if n in refused else next(results)
            for n in range(len(specs))
        ]

    return owned if limiter is None else limiter.around(owned)


def _own(spec: JobSpec, caller: Caller) -> PermissionDenied | None:
    """Write the caller's name beside the job's key; an error if it may not have this key."""
    if spec.key is None:
        return None
    if not spec.key.startswith(TICKS):
        spec.key_owner = caller.name
    elif Role.WORKER not in caller.roles:
        return PermissionDenied(
            f"idempotency_key: keys that begin with {TICKS!r} are those of schedules and take the"
            f" role {Role.WORKER}; {caller.name!r} does not have it"
        )
    return None
