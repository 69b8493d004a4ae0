"""Define each action's rule: the allowed roles, the budget, and the longest lists in a request.

The gRPC and the HTTP API read this table, and docs/security.md shows it. A server refuses a method
that is not in this table.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from jobqueue.access.callers import Role
from jobqueue.core.schedule import MAX_DECLARED


class BudgetKind(enum.Enum):
    """Names the budget that counts a call while the call is under way."""

    PROBE = "probe"  # has its own budget, so that an orchestrator does not kill a busy server
    CALL = "call"
    WAIT = "wait"  # a long poll
    STREAM = "stream"
    # Fewer than other streams: half a message of each may be in memory uncounted.
    SUBMIT_STREAM = "submit stream"
    WATCH = "watch"  # a stream of unknown callers; its budget is separate from the others
    PAGE = "page"  # the stream of an open console page; its budget is separate from the others


@dataclass(frozen=True, slots=True)
class Rule:
    """Defines who may do an action, which budget counts it, and how long its lists may be."""

    roles: frozenset[Role] | None  # the caller needs one of these; None: open to all
    kind: BudgetKind = BudgetKind.CALL
    # The most items of each list in one message, by the list's path in the gRPC request:
    # "specs.labels" are the labels of all specs together. The server counts the items before it
    # builds objects from them.
    items: Mapping[str, int] = field(default_factory=dict)
    changes: bool = False  # the audit log has a line for the action
    reads: bool = False  # changes nothing, and may have a large answer
    results: str = ""  # the request's list that has a result for each item


MAX_BATCH = 10_000  # jobs in one message
MAX_LABELS = 32 * MAX_BATCH  # of all jobs in one message
MAX_JOB_LABELS = 1_000  # of one job; the engine allows fewer and raises a better error
MAX_REPORTS = 10_000  # in one message; our worker sends at most 2,000
MAX_REPORT_BATCHES = 1_000  # in one message; our worker has one under way
MAX_LEASES = 100_000  # a worker's largest concurrency
MAX_SLOTS = 1_000  # of a worker of the task queue
MAX_NAMES = 10_000  # of queues or task types; the engine allows fewer and raises a better error
MAX_QUESTIONS = 1_000  # queues that a worker may ask about; a worker serves no more queues
MAX_WEIGHTS = 100  # there are ten priorities
MAX_KEYS = 10_000  # with weights; the engine allows fewer and raises a better error
MAX_FILTERS = 100  # there are fewer states, and fewer reasons
MAX_HEADERS = 128  # of any request, gRPC or HTTP: a header needs many times its bytes in memory
MAX_PARAMETERS = 128  # in a URL: the time to read them grows with their square

_OPEN = None
_CLIENT = frozenset({Role.CLIENT})
_READER = frozenset({Role.CLIENT, Role.VIEWER, Role.OPERATOR})
_CANCELLER = frozenset({Role.CLIENT, Role.OPERATOR})
_WORKER = frozenset({Role.WORKER})
_OPERATOR = frozenset({Role.OPERATOR})
_VIEWER = frozenset({Role.VIEWER, Role.OPERATOR})
_MONITOR = frozenset({Role.MONITOR, Role.OPERATOR})
# No role allows these calls: jq-service authorizes calls between its parts by the sender
# (taskqueue/grpc/callers.py). jq-server does not serve them.
_PARTS: frozenset[Role] = frozenset()

_WORKER_INFO = {"worker.queues": MAX_NAMES, "worker.types": MAX_NAMES}
_BEAT = {"leases": MAX_LEASES, "begun": MAX_LEASES, "progress": MAX_LEASES}

_WEIGHTS = {"queue.priority_weights": MAX_WEIGHTS, "queue.key_weights": MAX_KEYS}

RULES: dict[str, Rule] = {
    "server.probe": Rule(_OPEN, BudgetKind.PROBE),
    "server.watch_health": Rule(_OPEN, BudgetKind.WATCH),
    "server.describe": Rule(_OPEN),
    "server.reflect": Rule(_OPERATOR, BudgetKind.STREAM),
    "server.metrics": Rule(_MONITOR, BudgetKind.PROBE),
    "server.status": Rule(_VIEWER),
    "server.configuration": Rule(_OPERATOR),
    "server.live": Rule(_VIEWER, BudgetKind.PAGE),
    "server.log_in": Rule(_OPEN),
    "server.log_out": Rule(_VIEWER, changes=True),
    "server.load": Rule(_CLIENT | _WORKER),
    "job.submit": Rule(_CLIENT, items={"spec.labels": MAX_JOB_LABELS}),
    "job.submit_batch": Rule(
        _CLIENT, items={"specs": MAX_BATCH, "specs.labels": MAX_LABELS}, results="specs"
    ),
    "job.submit_stream": Rule(
        _CLIENT, BudgetKind.SUBMIT_STREAM, {"specs": MAX_BATCH, "specs.labels": MAX_LABELS}
    ),
    # A submit through the console. Unlike job.submit, it is in the audit log.
    "job.submit_by_hand": Rule(_CLIENT, changes=True),
    "job.read": Rule(_READER, reads=True),
    "job.result": Rule(_READER, reads=True),
    "job.history": Rule(_READER, reads=True),
    "job.explain": Rule(_READER, reads=True),
    "job.list": Rule(_READER, items={"states": MAX_FILTERS, "reasons": MAX_FILTERS}, reads=True),
    "job.wait": Rule(_READER, BudgetKind.WAIT, reads=True),
    "job.watch": Rule(_READER, BudgetKind.STREAM),
    "job.cancel": Rule(_CANCELLER, changes=True),
    "job.retry": Rule(_OPERATOR, changes=True),
    "job.retry_all": Rule(_OPERATOR, items={"reasons": MAX_FILTERS}, changes=True),
    "job.group": Rule(_READER, items={"reasons": MAX_FILTERS}),
    "job.delete": Rule(_OPERATOR, changes=True),
    "job.delete_all": Rule(_OPERATOR, items={"reasons": MAX_FILTERS}, changes=True),
    "task.submit": Rule(_CLIENT, items={"spec.labels": MAX_JOB_LABELS}),
    "task.list": Rule(_READER, items={"status_filter": MAX_FILTERS}, reads=True),
    "queue.list": Rule(_VIEWER, reads=True),
    "queue.read": Rule(_VIEWER),
    "queue.create": Rule(_OPERATOR, items=_WEIGHTS, changes=True),
    "queue.update": Rule(_OPERATOR, items={**_WEIGHTS, "reset": MAX_WEIGHTS}, changes=True),
    "queue.delete": Rule(_OPERATOR, changes=True),
    "queue.pause": Rule(_OPERATOR, changes=True),
    "queue.resume": Rule(_OPERATOR, changes=True),
    "schedule.list": Rule(_READER, reads=True),
    "schedule.read": Rule(_READER, reads=True),
    "schedule.create": Rule(_OPERATOR, items={"schedule.job.labels": MAX_JOB_LABELS}, changes=True),
    "schedule.pause": Rule(_OPERATOR, changes=True),
    "schedule.resume": Rule(_OPERATOR, changes=True),
    "schedule.run": Rule(_OPERATOR, changes=True),
    "schedule.remove": Rule(_OPERATOR, changes=True),
    # A worker needs the role client as well, because schedules submit jobs.
    "schedule.declare": Rule(
        _WORKER,
        items={"schedules": MAX_DECLARED, "schedules.job.labels": 32 * MAX_DECLARED},
        changes=True,
    ),
    "worker.connect": Rule(
        _WORKER,
        BudgetKind.STREAM,
        {
            "hello.worker.queues": MAX_NAMES,
            "hello.worker.types": MAX_NAMES,
            "reports": MAX_REPORT_BATCHES,
            "reports.reports": MAX_REPORTS,
            "beat.leases": MAX_LEASES,
            "beat.begun": MAX_LEASES,
            "beat.progress": MAX_LEASES,
            "breakers.open": MAX_NAMES,
        },
        changes=True,
    ),
    "worker.register": Rule(_WORKER, items=_WORKER_INFO, changes=True),
    "worker.fetch": Rule(_WORKER, BudgetKind.WAIT),
    "worker.report": Rule(_WORKER, items={"reports": MAX_REPORTS}),
    "worker.heartbeat": Rule(_WORKER, items=_BEAT),
    "worker.deregister": Rule(_WORKER, changes=True),
    "worker.missing_queues": Rule(_WORKER, items={"names": MAX_QUESTIONS}),
    "worker.list": Rule(_VIEWER, reads=True),
    "worker.drain": Rule(_OPERATOR, changes=True),
    "worker.undrain": Rule(_OPERATOR, changes=True),
    "worker.shutdown": Rule(_OPERATOR, changes=True),
    "part.create_job": Rule(_PARTS, items={"spec.labels": MAX_JOB_LABELS}),
    "part.list_jobs": Rule(_PARTS, items={"status_filter": MAX_FILTERS}),
    "part.heartbeat": Rule(_PARTS, items={"running_job_ids": MAX_SLOTS}),
    "part.call": Rule(_PARTS),
}

_PUBLIC = "/taskqueue.v1.TaskQueuePublicService"
_PART = "/taskqueue.internal.v1"

GRPC: dict[str, str] = {
    "/grpc.health.v1.Health/Check": "server.probe",
    "/grpc.health.v1.Health/List": "server.status",
    "/grpc.health.v1.Health/Watch": "server.watch_health",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": "server.reflect",
    "/jq.v1.ClientService/Submit": "job.submit",
    "/jq.v1.ClientService/SubmitBatch": "job.submit_batch",
    "/jq.v1.ClientService/SubmitStream": "job.submit_stream",
    "/jq.v1.ClientService/GetJob": "job.read",
    "/jq.v1.ClientService/WaitJob": "job.wait",
    "/jq.v1.ClientService/CancelJob": "job.cancel",
    "/jq.v1.ClientService/ListJobs": "job.list",
    "/jq.v1.ClientService/GetHistory": "job.history",
    "/jq.v1.ClientService/ExplainJob": "job.explain",
    "/jq.v1.ClientService/WatchJob": "job.watch",
    "/jq.v1.ClientService/GetLoad": "server.load",
    "/jq.v1.WorkerService/Connect": "worker.connect",
    "/jq.v1.WorkerService/Register": "worker.register",
    "/jq.v1.WorkerService/Fetch": "worker.fetch",
    "/jq.v1.WorkerService/Report": "worker.report",
    "/jq.v1.WorkerService/Heartbeat": "worker.heartbeat",
    "/jq.v1.WorkerService/Deregister": "worker.deregister",
    "/jq.v1.WorkerService/MissingQueues": "worker.missing_queues",
    "/jq.v1.OperatorService/CreateQueue": "queue.create",
    "/jq.v1.OperatorService/UpdateQueue": "queue.update",
    "/jq.v1.OperatorService/DeleteQueue": "queue.delete",
    "/jq.v1.OperatorService/PauseQueue": "queue.pause",
    "/jq.v1.OperatorService/ResumeQueue": "queue.resume",
    "/jq.v1.OperatorService/GetQueueStats": "queue.read",
    "/jq.v1.OperatorService/ListQueues": "queue.list",
    "/jq.v1.OperatorService/ListWorkers": "worker.list",
    "/jq.v1.OperatorService/DrainWorker": "worker.drain",
    "/jq.v1.OperatorService/UndrainWorker": "worker.undrain",
    "/jq.v1.OperatorService/ShutdownWorker": "worker.shutdown",
    "/jq.v1.OperatorService/RetryJob": "job.retry",
    "/jq.v1.OperatorService/RetryDeadLetters": "job.retry_all",
    "/jq.v1.OperatorService/GroupDeadLetters": "job.group",
    "/jq.v1.OperatorService/DeleteJob": "job.delete",
    "/jq.v1.OperatorService/DeleteDeadLetters": "job.delete_all",
    "/jq.v1.OperatorService/GetHealth": "server.status",
    "/jq.v1.ScheduleService/CreateSchedule": "schedule.create",
    "/jq.v1.ScheduleService/GetSchedule": "schedule.read",
    "/jq.v1.ScheduleService/ListSchedules": "schedule.list",
    "/jq.v1.ScheduleService/PauseSchedule": "schedule.pause",
    "/jq.v1.ScheduleService/ResumeSchedule": "schedule.resume",
    "/jq.v1.ScheduleService/RunSchedule": "schedule.run",
    "/jq.v1.ScheduleService/RemoveSchedule": "schedule.remove",
    "/jq.v1.ScheduleService/DeclareSchedules": "schedule.declare",
    f"{_PUBLIC}/SubmitJob": "task.submit",
    f"{_PUBLIC}/GetJobStatus": "job.read",
    f"{_PUBLIC}/GetJobResult": "job.result",
    f"{_PUBLIC}/CancelJob": "job.cancel",
    f"{_PUBLIC}/ListJobs": "task.list",
    f"{_PART}.JobInternalService/CreateJob": "part.create_job",
    f"{_PART}.JobInternalService/DeleteJobIfStatus": "part.call",
    f"{_PART}.JobInternalService/GetJobRecord": "part.call",
    f"{_PART}.JobInternalService/ListJobRecords": "part.list_jobs",
    f"{_PART}.JobInternalService/TransitionJobStatus": "part.call",
    f"{_PART}.JobInternalService/SetCancelRequested": "part.call",
    f"{_PART}.QueueInternalService/EnqueueJob": "part.call",
    f"{_PART}.QueueInternalService/DequeueJob": "part.call",
    f"{_PART}.QueueInternalService/RemoveJobIfPresent": "part.call",
    f"{_PART}.CoordinatorInternalService/WorkerHeartbeat": "part.heartbeat",
    f"{_PART}.CoordinatorInternalService/FetchWork": "part.call",
    f"{_PART}.CoordinatorInternalService/ReportWorkOutcome": "part.call",
    f"{_PART}.ResultInternalService/StoreResult": "part.call",
    f"{_PART}.ResultInternalService/GetResult": "part.call",
}

HTTP: dict[tuple[str, str], str] = {
    ("GET", "/healthz"): "server.probe",
    ("GET", "/readyz"): "server.probe",
    ("GET", "/metrics"): "server.metrics",
    ("GET", "/status"): "server.status",
    ("GET", "/configuration"): "server.configuration",
    ("GET", "/"): "server.describe",
    ("GET", "/docs"): "server.describe",
    ("GET", "/docs/start.js"): "server.describe",
    ("GET", "/docs/swagger-ui.css"): "server.describe",
    ("GET", "/docs/swagger-ui-bundle.js"): "server.describe",
    ("GET", "/openapi.json"): "server.describe",
    ("GET", "/ui"): "server.describe",
    ("GET", "/ui/static/console.css"): "server.describe",
    ("GET", "/ui/static/console.js"): "server.describe",
    ("GET", "/ui/static/icon.svg"): "server.describe",
    ("GET", "/ui/login"): "server.describe",
    ("POST", "/ui/login"): "server.log_in",
    ("POST", "/ui/logout"): "server.log_out",
    ("GET", "/ui/"): "server.status",
    ("GET", "/ui/queues"): "queue.list",
    ("POST", "/ui/queues"): "queue.create",
    ("GET", "/ui/queues/{name}"): "queue.read",
    ("POST", "/ui/queues/{name}/edit"): "queue.update",
    ("POST", "/ui/queues/{name}/pause"): "queue.pause",
    ("POST", "/ui/queues/{name}/resume"): "queue.resume",
    ("POST", "/ui/queues/{name}/delete"): "queue.delete",
    ("GET", "/ui/jobs"): "job.list",
    ("GET", "/ui/jobs/{job_id}"): "job.read",
    ("GET", "/ui/jobs/{job_id}/payload"): "job.read",
    ("GET", "/ui/jobs/{job_id}/result"): "job.read",
    ("POST", "/ui/jobs/{job_id}/cancel"): "job.cancel",
    ("POST", "/ui/jobs/{job_id}/retry"): "job.retry",
    ("POST", "/ui/jobs/{job_id}/delete"): "job.delete",
    ("GET", "/ui/submit"): "job.read",
    ("POST", "/ui/submit"): "job.submit_by_hand",
    ("GET", "/ui/dlq"): "job.group",
    ("POST", "/ui/dlq/retry"): "job.retry_all",
    ("POST", "/ui/dlq/delete"): "job.delete_all",
    ("GET", "/ui/schedules"): "schedule.list",
    ("POST", "/ui/schedules/pause"): "schedule.pause",
    ("POST", "/ui/schedules/resume"): "schedule.resume",
    ("POST", "/ui/schedules/run"): "schedule.run",
    ("POST", "/ui/schedules/remove"): "schedule.remove",
    ("GET", "/ui/workers"): "worker.list",
    ("POST", "/ui/workers/drain"): "worker.drain",
    ("POST", "/ui/workers/undrain"): "worker.undrain",
    ("POST", "/ui/workers/shutdown"): "worker.shutdown",
    ("GET", "/ui/system"): "server.status",
    ("GET", "/ui/live"): "server.live",
    ("POST", "/jobs"): "job.submit",
    ("POST", "/jobs/batch"): "job.submit_batch",
    ("GET", "/jobs"): "job.list",
    ("GET", "/jobs/{job_id}"): "job.read",
    ("GET", "/jobs/{job_id}/wait"): "job.wait",
    ("GET", "/jobs/{job_id}/explain"): "job.explain",
    ("GET", "/jobs/{job_id}/events"): "job.history",  # with follow it is job.watch
    ("POST", "/jobs/{job_id}/cancel"): "job.cancel",
    ("POST", "/jobs/{job_id}/retry"): "job.retry",
    ("DELETE", "/jobs/{job_id}"): "job.delete",
    ("GET", "/dlq"): "job.list",
    ("GET", "/dlq/groups"): "job.group",
    ("POST", "/dlq/retry"): "job.retry_all",
    ("POST", "/dlq/delete"): "job.delete_all",
    ("POST", "/dlq/{job_id}/retry"): "job.retry",
    ("GET", "/queues"): "queue.list",
    ("POST", "/queues"): "queue.create",
    ("GET", "/queues/{name}"): "queue.read",
    ("PATCH", "/queues/{name}"): "queue.update",
    ("DELETE", "/queues/{name}"): "queue.delete",
    ("POST", "/queues/{name}/pause"): "queue.pause",
    ("POST", "/queues/{name}/resume"): "queue.resume",
    ("GET", "/schedules"): "schedule.list",
    ("POST", "/schedules"): "schedule.create",
    ("GET", "/schedules/{name}"): "schedule.read",
    ("DELETE", "/schedules/{name}"): "schedule.remove",
    ("POST", "/schedules/{name}/pause"): "schedule.pause",
    ("POST", "/schedules/{name}/resume"): "schedule.resume",
    ("POST", "/schedules/{name}/run"): "schedule.run",
    ("GET", "/workers"): "worker.list",
    ("POST", "/workers/{worker_id}/drain"): "worker.drain",
    ("POST", "/workers/{worker_id}/undrain"): "worker.undrain",
    ("POST", "/workers/{worker_id}/shutdown"): "worker.shutdown",
}

_REFUSED = Rule(frozenset())


def grpc_rule(method: str) -> Rule:
    return RULES.get(GRPC.get(method, ""), _REFUSED)


def http_rule(verb: str, template: str) -> Rule:
    """Return the rule of an HTTP route. ``template`` is its path with the parameters' names."""
    return RULES.get(HTTP.get((verb, template), ""), _REFUSED)
