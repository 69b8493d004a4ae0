"""(new) -> PENDING: batches of a bounded size, each in one script."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from jobqueue.core.accept import full
from jobqueue.core.errors import Internal, JobQueueError, no_such_queue
from jobqueue.core.job import Assignment, NewJob, SubmitResult
from jobqueue.core.store import Claim, Rules, Submission
from jobqueue.stores.redis import documents
from jobqueue.stores.redis.claiming import claims_of, seed
from jobqueue.stores.redis.runner import Runner, opaque
from jobqueue.stores.rows import write_more

MOST_JOBS = 500  # Redis does nothing else meanwhile: some 10 ms
MOST_BYTES = 8 * 1024 * 1024


class Submitting:
    """Accepts jobs."""

    def __init__(self, runner: Runner, rules: Rules) -> None:
        self._runner = runner
        self._rules = rules

    async def submit(self, jobs: Sequence[NewJob], claims: Sequence[Claim]) -> Submission:
        """See ``Store.submit``. Claims are filled with the last part."""
        results: list[SubmitResult] = []
        assigned: list[Assignment] = []
        parts = list(_parts(jobs))
        for n, part in enumerate(parts):
            last = n == len(parts) - 1
            try:
                said, rows = await self._runner.write(
                    "submit",
                    (
                        [_packed(job) for job in part],
                        self._rules.key_ttl,
                        claims_of(claims) if last else [],
                        self._rules.assignment_timeout,
                        seed(),
                    ),
                )
            except JobQueueError as error:
                if not results:
                    raise
                # Some are written: the others hear of it one by one.
                left = len(jobs) - len(results)
                results += [SubmitResult.refused(error) for _ in range(left)]
                break
            results += [_result(job, one) for job, one in zip(part, said, strict=True)]
            assigned += [documents.assignment(row) for row in rows]
        return Submission(results, assigned)


def _parts(jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
    begin, size = 0, 0
    for n, job in enumerate(jobs):
        size += len(job.spec.payload)
        if n > begin and (n - begin == MOST_JOBS or size > MOST_BYTES):
            yield jobs[begin:n]
            begin, size = n, len(job.spec.payload)
    yield jobs[begin:]


def _packed(job: NewJob) -> tuple[Any, ...]:
    spec = job.spec
    return (
        job.id,
        spec.queue,
        spec.type,
        opaque(spec.payload),
        json.dumps(dict(spec.labels), ensure_ascii=False) if spec.labels else None,
        spec.priority,
        spec.max_retries,
        spec.ttl,
        spec.timeout,
        spec.run_at,
        spec.delay,
        spec.stored_key,
        None if spec.key is None else spec.fingerprint().hex(),
        spec.shared_key,
        write_more(spec),
    )


def _result(job: NewJob, said: Sequence[Any]) -> SubmitResult:
    word: bytes = said[0]
    spec = job.spec
    if word == b"accepted":
        return SubmitResult.accepted(job.id)
    if word == b"duplicate":
        return SubmitResult.duplicate(said[1].decode())
    if word == b"conflict":
        return SubmitResult.conflict(said[1].decode(), spec.key or "")
    if word == b"no queue":
        return SubmitResult.refused(no_such_queue(spec.queue))
    if word == b"full":
        return full(spec.queue, int(said[1]))
    return SubmitResult.refused(Internal(f"Redis: a submit was answered {word!r}"))
