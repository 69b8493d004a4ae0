"""Show the health of the system's parts, and the server that answers."""

from __future__ import annotations

import platform

from fastapi import Request
from starlette.responses import Response

from jobqueue.access.callers import current_caller
from jobqueue.api.console.console import Console
from jobqueue.api.console.rendering import may


def pages(console: Console) -> None:
    settings = console.context.settings

    @console.page("/system")
    async def show(request: Request) -> Response:
        sees = may(current_caller(), "server.configuration")
        return console.show(
            request,
            "system.html",
            health=await console.reads.health(),
            started_at=settings.started_at,
            python=platform.python_version(),
            # None: the caller may not see the settings.
            configuration=settings.configuration if sees else None,
            has_metrics=settings.metrics is not None,
        )
