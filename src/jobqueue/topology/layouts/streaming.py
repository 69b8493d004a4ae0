"""Redis decides, Kafka tells: an API, schedulers of which one leads, and workers."""

from __future__ import annotations

from jobqueue.core.errors import InvalidArgument
from jobqueue.topology.connect import is_redis
from jobqueue.topology.layouts import parts
from jobqueue.topology.layouts.layout import Layout, Service
from jobqueue.topology.layouts.plan import Plan, counted

_PROFILE = {"JQ_PROFILE": "streaming"}
_KAFKA = {"JQ_KAFKA_BOOTSTRAP": "kafka"}
_STORE = {"JQ_DB_URL": "redis", **_KAFKA}
# What was accepted must survive: every write is on the disk before it is answered, and a Redis
# that is full refuses instead of forgetting.
_DURABLE = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
_DECIDED = {
    "profile": "it is `streaming` here",
    "kafka.dispatch": "it is on here",
    "server.role": "each process has its own",
    "db.url": "name the Redis with --redis",
    "redis.url": "the jobs are in Redis here; name it with --redis",
    "kafka.bootstrap": "name it with --kafka",
}


def streaming(plan: Plan) -> Layout:
    """The wiring."""
    plan.refuse_all_but("streaming", "--schedulers", "--workers", "--redis", "--kafka")
    parts.refuse_one_for_all(plan)
    for path, why in _DECIDED.items():
        if path in plan.flags:
            raise InvalidArgument(path, f"cannot be set for the streaming topology: {why}")
    api = parts.server(plan, "api", {**_PROFILE, "JQ_SERVER_ROLE": "api"}, _STORE)
    schedulers = [
        parts.scheduler(
            plan, f"scheduler-{number + 1}", {**_PROFILE, "JQ_SERVER_ROLE": "scheduler"}, _STORE
        )
        for number in range(counted("--schedulers", plan.schedulers, 2, least=1))
    ]
    workers = [
        parts.worker_on(
            plan, f"worker-{number + 1}", _PROFILE, {"JQ_WORKER_SERVER": "redis", **_KAFKA}
        )
        for number in range(counted("--workers", plan.workers, 2, least=0))
    ]
    return Layout(
        name="streaming",
        services=_services(plan),
        processes=(api.process, *schedulers, *workers),
        http=(api.http,) if api.http else (),
        grpc=(api.grpc,) if api.grpc else (),
    )


def _services(plan: Plan) -> tuple[Service, ...]:
    """Private ones, unless the flags, the environment or the file name others."""
    db, kafka = plan.settings.db.url, plan.settings.kafka.bootstrap
    named = db if is_redis(db) else None
    return (
        Service("redis", plan.redis or named, _DURABLE),
        Service("kafka", plan.kafka or kafka or None),
    )
