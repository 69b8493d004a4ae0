"""One jq-server with its own pool, on an SQLite file in the folder."""

from __future__ import annotations

from urllib.parse import quote

from jobqueue.topology.layouts import parts
from jobqueue.topology.layouts.layout import Layout
from jobqueue.topology.layouts.plan import Plan


def embedded(plan: Plan) -> Layout:
    """The wiring."""
    plan.refuse_all_but("embedded")
    file = quote(str(plan.folder / "jobqueue.db"))
    environment = {} if "db.url" in plan.flags else {"JQ_DB_URL": f"sqlite:///{file}"}
    server = parts.server(plan, "server", environment)
    return Layout(
        name="embedded",
        processes=(server.process,),
        http=(server.http,) if server.http else (),
        grpc=(server.grpc,) if server.grpc else (),
    )
