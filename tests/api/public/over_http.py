"""The scenarios' words over HTTP."""

from __future__ import annotations

import base64
import itertools
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
from msgspec import Raw

from tests import patience
from tests.api.public.face import (
    CancelSeen,
    EventSeen,
    JobSeen,
    PageSeen,
    QueueSeen,
    Refused,
    ScheduleSeen,
    Spec,
    Submitted,
    WorkerSeen,
)
from tests.plain_http import plain_http


class _Progress(msgspec.Struct):
    value: float | None
    text: str
    at: str


class _Json(msgspec.Struct):
    """A job as it travels; payload and result stay the bytes they are."""

    job_id: str
    queue: str
    type: str
    status: str
    priority: int
    max_retries: int
    retry_count: int
    attempt: int
    version: int
    reason: str
    error: str
    idempotency_key: str | None
    unique: dict[str, Any] | None
    concurrency_key: str | None
    labels: dict[str, str]
    ttl: float | None
    timeout: float | None
    worker_id: str | None
    cancel_requested: bool
    created_at: str
    started_at: str | None
    completed_at: str | None
    run_at: str | None
    next_retry_at: str | None
    hint: str
    progress: _Progress | None
    payload: Raw = msgspec.field(default_factory=Raw)
    payload_base64: str = ""
    result: Raw = msgspec.field(default_factory=Raw)
    result_base64: str = ""


class _Page(msgspec.Struct):
    jobs: list[_Json]
    next_page_token: str


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _maybe(text: str | None) -> float | None:
    return None if text is None else _time(text)


def _seen(job: _Json) -> JobSeen:
    result: bytes | None = bytes(job.result) or base64.b64decode(job.result_base64)
    if result in (b"null", b""):
        result = None
    return JobSeen(
        job_id=job.job_id,
        queue=job.queue,
        type=job.type,
        state=job.status,
        payload=bytes(job.payload) or base64.b64decode(job.payload_base64),
        result=result,
        priority=job.priority,
        max_retries=job.max_retries,
        retry_count=job.retry_count,
        attempt=job.attempt,
        version=job.version,
        reason=job.reason,
        error=job.error,
        key=job.idempotency_key,
        unique=job.unique,
        concurrency_key=job.concurrency_key,
        labels=job.labels,
        ttl=job.ttl,
        timeout=job.timeout,
        worker_id=job.worker_id,
        cancel_requested=job.cancel_requested,
        created_at=_time(job.created_at),
        started_at=_maybe(job.started_at),
        completed_at=_maybe(job.completed_at),
        run_at=_maybe(job.run_at),
        next_retry_at=_maybe(job.next_retry_at),
        hint=job.hint,
        progress=None if job.progress is None else (job.progress.value, job.progress.text),
    )


def _event(event: dict[str, Any]) -> EventSeen:
    return EventSeen(
        event["version"],
        event["from_status"],
        event["to_status"],
        event["reason"],
        _time(event["at"]),
        event["detail"],
    )


def _queue(queue: dict[str, Any]) -> QueueSeen:
    weights = queue["priority_weights"]
    return QueueSeen(
        name=queue["name"],
        paused=queue["paused"],
        max_retries=queue["max_retries"],
        ttl=queue["ttl"],
        timeout=queue["timeout"],
        capacity=queue["capacity"],
        retry_profile=queue["retry_profile"],
        retry_base=queue["retry_base"],
        retry_max=queue["retry_max"],
        retry_jitter=queue["retry_jitter"],
        retention=queue["retention"],
        dead_letter_retention=queue["dead_letter_retention"],
        max_running=queue["max_running"],
        rate=queue["rate"],
        rate_period=queue["rate_period"],
        rate_burst=queue["rate_burst"],
        key_max_running=queue["key_max_running"],
        key_rate=queue["key_rate"],
        key_rate_period=queue["key_rate_period"],
        key_rate_burst=queue["key_rate_burst"],
        key_weights=queue["key_weights"],
        priority_weights=None if weights is None else {int(p): w for p, w in weights.items()},
        depth=queue["depth"],
        processed=queue["processed"],
        average_seconds=queue["average_seconds"],
        error_rate=queue["error_rate"],
        unserved=[(one["type"], one["jobs"]) for one in queue["unserved"]],
        held_back=[
            (one["limit"], one["jobs"], one["opens_in"], one["key"]) for one in queue["held_back"]
        ],
    )


class _ScheduleJob(msgspec.Struct):
    queue: str
    type: str
    priority: int
    labels: dict[str, str]
    concurrency_key: str | None
    payload: Raw = msgspec.field(default_factory=Raw)
    payload_base64: str = ""


class _Schedule(msgspec.Struct):
    name: str
    cron: str
    every: int | None
    timezone: str
    overlap: str
    catch_up: float | None
    source: str
    paused: bool
    next_at: str | None
    last_at: str | None
    last_job_id: str | None
    skipped: int
    problem: str
    job: _ScheduleJob


class _Schedules(msgspec.Struct):
    schedules: list[_Schedule]
    next_page_token: str


def _schedule(found: _Schedule) -> ScheduleSeen:
    job = found.job
    return ScheduleSeen(
        name=found.name,
        cron=found.cron,
        every=found.every,
        timezone=found.timezone,
        overlap=found.overlap,
        catch_up=found.catch_up,
        source=found.source,
        paused=found.paused,
        next_at=_maybe(found.next_at),
        last_at=_maybe(found.last_at),
        last_job_id=found.last_job_id or "",
        skipped=found.skipped,
        problem=found.problem,
        queue=job.queue,
        type=job.type,
        payload=bytes(job.payload) or base64.b64decode(job.payload_base64),
        priority=job.priority,
        labels=job.labels,
        concurrency_key=job.concurrency_key,
    )


def _refused(error: dict[str, Any], retry_after: str | None = None, job_id: str = "") -> Refused:
    return Refused(
        error["code"],
        error["message"],
        field=error.get("field"),
        retry_after=None if retry_after is None else float(retry_after),
        job_id=job_id,
    )


def _body(spec: Spec) -> dict[str, Any]:
    body: dict[str, Any] = {"queue": spec.queue, "priority": spec.priority}
    if spec.payload:
        body["payload"] = Raw(spec.payload)
    if spec.type:
        body["type"] = spec.type
    for name in ("max_retries", "ttl", "delay", "run_at", "timeout"):
        if getattr(spec, name) is not None:
            body[name] = getattr(spec, name)
    if spec.key is not None:
        body["idempotency_key"] = spec.key
    if spec.unique is not None:
        body["unique"] = spec.unique
    if spec.concurrency_key is not None:
        body["concurrency_key"] = spec.concurrency_key
    if spec.labels:
        body["labels"] = spec.labels
    return body


class HttpDriver:
    """A client of the HTTP faces of one or more servers; each call goes to the next one."""

    name = "http"

    def __init__(self, ports: Sequence[int]) -> None:
        self._clients = [
            plain_http(f"http://127.0.0.1:{port}", timeout=patience.longest(30)) for port in ports
        ]
        self._turns = itertools.cycle(self._clients)

    @property
    def _http(self) -> httpx.AsyncClient:
        return next(self._turns)

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()

    async def _call(self, method: str, path: str, **request: Any) -> httpx.Response:
        response = await self._http.request(method, path, **request)
        if response.is_error:
            body = response.json()
            raise _refused(
                body["error"], response.headers.get("retry-after"), body.get("job_id", "")
            )
        return response

    async def _job(self, method: str, path: str, **request: Any) -> JobSeen:
        response = await self._call(method, path, **request)
        return _seen(msgspec.json.decode(response.content, type=_Json))

    async def submit(self, spec: Spec) -> Submitted:
        try:
            response = await self._call("POST", "/jobs", content=msgspec.json.encode(_body(spec)))
        except Refused as refused:
            if refused.code == "ALREADY_EXISTS":  # on this face a duplicate is a 409
                return Submitted(refused.job_id, duplicate=True)
            raise
        return Submitted(response.json()["job_id"], existing=response.status_code == 200)

    async def submit_batch(self, specs: Sequence[Spec]) -> list[Submitted | Refused]:
        body = msgspec.json.encode({"jobs": [_body(spec) for spec in specs]})
        response = await self._http.post("/jobs/batch", content=body)
        answer = response.json()
        if "results" not in answer:
            raise _refused(answer["error"])
        return [
            _refused(item["error"], job_id=item.get("job_id", ""))
            if item["status"] == "refused"
            else Submitted(
                item["job_id"], item["status"] == "duplicate", item["status"] == "existing"
            )
            for item in answer["results"]
        ]

    async def get(self, job_id: str) -> JobSeen:
        return await self._job("GET", f"/jobs/{job_id}")

    async def wait(self, job_id: str, timeout: float) -> JobSeen:
        return await self._job("GET", f"/jobs/{job_id}/wait", params={"timeout": timeout})

    async def cancel(self, job_id: str) -> CancelSeen:
        body = (await self._call("POST", f"/jobs/{job_id}/cancel")).json()
        return CancelSeen(body["status"], body["cancel_requested"], body["already_terminal"])

    async def list(
        self,
        *,
        queue: str | None = None,
        states: Sequence[str] = (),
        type: str | None = None,
        limit: int | None = None,
        page_token: str = "",
    ) -> PageSeen:
        asked = {"queue": queue, "type": type, "limit": limit, "page_token": page_token or None}
        params: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        if states:
            params["status"] = list(states)
        response = await self._call("GET", "/jobs", params=params)
        page = msgspec.json.decode(response.content, type=_Page)
        return PageSeen([_seen(job) for job in page.jobs], page.next_page_token)

    async def history(self, job_id: str) -> Sequence[EventSeen]:
        body = (await self._call("GET", f"/jobs/{job_id}/events")).json()
        return [_event(event) for event in body["events"]]

    async def watch(self, job_id: str) -> AsyncIterator[EventSeen]:
        async with self._http.stream("GET", f"/jobs/{job_id}/events?watch=1") as response:
            if response.is_error:
                raise _refused(msgspec.json.decode(await response.aread())["error"])
            name = ""
            async for line in response.aiter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: ") and name == "transition":
                    yield _event(msgspec.json.decode(line.removeprefix("data: ")))
        if name != "end":
            raise Refused("UNAVAILABLE", f"the stream ended with {name!r}")

    async def retry(self, job_id: str) -> JobSeen:
        return await self._job("POST", f"/jobs/{job_id}/retry")

    async def delete(self, job_id: str) -> None:
        await self._call("DELETE", f"/jobs/{job_id}")

    async def create_queue(self, name: str, **settings: Any) -> QueueSeen:
        return _queue((await self._call("POST", "/queues", json={"name": name, **settings})).json())

    async def update_queue(self, name: str, **settings: Any) -> QueueSeen:
        return _queue((await self._call("PATCH", f"/queues/{name}", json=settings)).json())

    async def delete_queue(self, name: str, *, force: bool = False) -> int:
        params = {"force": "true"} if force else {}
        body = (await self._call("DELETE", f"/queues/{name}", params=params)).json()
        dropped: int = body["dead_lettered"]
        return dropped

    async def pause_queue(self, name: str) -> None:
        await self._call("POST", f"/queues/{name}/pause")

    async def resume_queue(self, name: str) -> None:
        await self._call("POST", f"/queues/{name}/resume")

    async def queue(self, name: str) -> QueueSeen:
        return _queue((await self._call("GET", f"/queues/{name}")).json())

    async def queues(self) -> Sequence[QueueSeen]:
        return [_queue(queue) for queue in (await self._call("GET", "/queues")).json()["queues"]]

    async def workers(self) -> Sequence[WorkerSeen]:
        body = (await self._call("GET", "/workers")).json()
        names = ("worker_id", "status", "concurrency", "queues", "types", "running")
        return [WorkerSeen(**{name: w[name] for name in names}) for w in body["workers"]]

    async def drain_worker(self, worker_id: str) -> None:
        await self._call("POST", f"/workers/{worker_id}/drain")

    async def undrain_worker(self, worker_id: str) -> None:
        await self._call("POST", f"/workers/{worker_id}/undrain")

    async def shutdown_worker(self, worker_id: str) -> None:
        await self._call("POST", f"/workers/{worker_id}/shutdown")

    async def _schedule(self, method: str, path: str, **request: Any) -> ScheduleSeen:
        response = await self._call(method, path, **request)
        return _schedule(msgspec.json.decode(response.content, type=_Schedule))

    async def create_schedule(self, name: str, job: Spec, **settings: Any) -> ScheduleSeen:
        body = msgspec.json.encode({"name": name, "job": _body(job), **settings})
        return await self._schedule("POST", "/schedules", content=body)

    async def schedule(self, name: str) -> ScheduleSeen:
        return await self._schedule("GET", f"/schedules/{quote(name)}")

    async def schedules(
        self, limit: int | None = None, page_token: str = ""
    ) -> tuple[Sequence[ScheduleSeen], str]:
        asked = {"limit": limit, "page_token": page_token or None}
        params = {name: value for name, value in asked.items() if value is not None}
        response = await self._call("GET", "/schedules", params=params)
        page = msgspec.json.decode(response.content, type=_Schedules)
        return [_schedule(one) for one in page.schedules], page.next_page_token

    async def pause_schedule(self, name: str) -> ScheduleSeen:
        return await self._schedule("POST", f"/schedules/{quote(name)}/pause")

    async def resume_schedule(self, name: str) -> ScheduleSeen:
        return await self._schedule("POST", f"/schedules/{quote(name)}/resume")

    async def run_schedule(self, name: str) -> str:
        response = await self._call("POST", f"/schedules/{quote(name)}/run")
        job_id: str = response.json()["job_id"]
        return job_id

    async def remove_schedule(self, name: str) -> None:
        await self._call("DELETE", f"/schedules/{quote(name)}")

    async def healthy(self) -> bool:
        return (await self._http.get("/readyz")).status_code == 200
