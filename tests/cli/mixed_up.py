"""jq-ctl with a topology of its own: services, two servers and a worker, jobs in an SQLite file.

It joins as any other would: by its wiring. So stages, services and several processes can be shown
apart from what the servers do with PostgreSQL.
"""

from __future__ import annotations

import socket
import sys
from urllib.parse import quote

from jobqueue.cli import ctl
from jobqueue.fleet import topologies as parts
from jobqueue.fleet.layout import BackingService, Layout, UpRequest
from jobqueue.fleet.topologies import LAYOUTS


def mixed(plan: UpRequest) -> Layout:
    db = {"JQ_DB_URL": f"sqlite:///{quote(str(plan.folder / 'jobs.db'))}"}
    # Whatever a service's URL is called, the process gets it.
    needs = {"JQ_TEST_POSTGRES": "postgres", "JQ_TEST_REDIS": "redis"}
    servers = [
        parts.server(plan, f"server-{n}", db | {"JQ_WORKER_CONCURRENCY": "0"}, needs)
        for n in (1, 2)
    ]
    return Layout(
        name="mixed",
        services=(BackingService("postgres", plan.postgres), BackingService("redis", plan.redis)),
        processes=(
            *(server.process for server in servers),
            parts.worker(plan, "worker-1", parts.on_servers(plan, [str(servers[0].grpc)])),
        ),
        http=tuple(str(server.http) for server in servers),
        grpc=tuple(str(server.grpc) for server in servers),
    )


thieves: list[socket.socket] = []


def stolen(plan: UpRequest) -> Layout:
    """As embedded, but the first time somebody takes the port before the server does."""
    layout = LAYOUTS["embedded"](plan)
    if not thieves:
        thieves.append(socket.create_server(("127.0.0.1", layout.processes[0].ports[1])))
    return layout


LAYOUTS["mixed"] = mixed
LAYOUTS["stolen"] = stolen

if __name__ == "__main__":
    sys.exit(ctl.run())
