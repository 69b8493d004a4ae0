"""Several jq-server and jq-worker on PostgreSQL, which decides, and Redis, which advises."""

from __future__ import annotations

from jobqueue.core.errors import InvalidArgument
from jobqueue.topology.layouts import parts
from jobqueue.topology.layouts.layout import Layout, Service
from jobqueue.topology.layouts.plan import Plan, counted

_NEEDS = {"JQ_DB_URL": "postgres", "JQ_REDIS_URL": "redis"}
# Jobs run in the workers; a pool in each server would only be in their way.
_NO_POOL = {"JQ_WORKER_CONCURRENCY": "0"}


def replicated(plan: Plan) -> Layout:
    """The wiring."""
    plan.refuse_all_but("replicated", "--servers", "--workers", "--postgres", "--redis")
    parts.refuse_one_for_all(plan)
    count = counted("--servers", plan.servers, 2, least=1)
    servers = [
        parts.server(plan, f"server-{number}", _NO_POOL, _NEEDS) for number in range(1, count + 1)
    ]
    targets = [server.grpc for server in servers if server.grpc]
    if not targets:
        raise InvalidArgument("grpc.enabled", "must be true: the workers use it")
    workers = [
        parts.worker(plan, f"worker-{number + 1}", _beginning_at(targets, number))
        for number in range(counted("--workers", plan.workers, 2, least=0))
    ]
    return Layout(
        name="replicated",
        services=_services(plan),
        processes=(*(server.process for server in servers), *workers),
        http=tuple(server.http for server in servers if server.http),
        grpc=tuple(targets),
    )


def _services(plan: Plan) -> tuple[Service, ...]:
    """Private ones, unless the flags, the environment or the file name others."""
    db, redis = plan.settings.db.url, plan.settings.redis.url
    named = db if db.startswith(("postgresql://", "postgres://")) else None
    return (
        Service("postgres", plan.postgres or named),
        Service("redis", plan.redis or redis or None),
    )


def _beginning_at(targets: list[str], number: int) -> list[str]:
    """All servers, each worker with another one first, so that they spread out."""
    first = number % len(targets)
    return targets[first:] + targets[:first]
