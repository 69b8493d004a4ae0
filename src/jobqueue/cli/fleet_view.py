"""Show a running topology: as a live table on a terminal, else as a line for each change."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
from collections.abc import Callable

import typer
from rich.console import Console
from rich.live import Live

from jobqueue.cli import fleet
from jobqueue.cli.display import on_terminal, print_fields, print_json
from jobqueue.cli.program import clean
from jobqueue.fleet.layout import JQ_API
from jobqueue.fleet.state import FleetState
from jobqueue.fleet.supervisor import Ending, Supervisor, supervise

_REFRESH = 0.25


async def watch(supervisor: Supervisor, *, as_json: bool) -> Ending:
    """Run a topology until a signal stops it, and show it meanwhile.

    The topology continues if the terminal or the reader of the output goes away.
    """
    if as_json:
        return await supervise(
            supervisor,
            _quietly(lambda: print_json(fleet.state_document(supervisor.state()))),
            lambda: None,
        )
    ended = await (_watch_live(supervisor) if on_terminal() else _watch_lines(supervisor))
    how = "was killed" if ended is Ending.KILLED else "is down"
    _say(f"{supervisor.layout.name} {how}; data and logs stay in {supervisor.folder}")
    return ended


def _quietly(show: Callable[[], None]) -> Callable[[], None]:
    def shown() -> None:
        with contextlib.suppress(OSError):  # the reader of the output has gone
            show()

    return shown


async def _watch_lines(supervisor: Supervisor) -> Ending:
    """Run a topology, and print a line for each change."""

    def on_change(line: str) -> None:
        if line:
            _say(line)

    supervisor.on_change = on_change
    return await supervise(
        supervisor,
        _quietly(lambda: print_welcome(supervisor.state())),
        lambda: _say("stopping; a second signal kills all processes"),
    )


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # the reader of the output has gone
        typer.echo(f"{time.strftime('%H:%M:%S')} {clean(line)}")


async def _watch_live(supervisor: Supervisor) -> Ending:
    """Run a topology, and show a table that is updated."""
    table = _LiveTable(supervisor)

    def on_up() -> None:
        table.hide()  # so that the text above the table is not cut to the table's width
        print_welcome(supervisor.state())
        table.caption = "Ctrl-C stops all processes"
        table.draw()

    def on_stopping() -> None:
        table.caption = "stopping; Ctrl-C again kills all processes"
        table.draw()

    supervisor.on_change = lambda line: table.draw()
    drawing = asyncio.create_task(table.keep_drawing(), name="draw")
    try:
        return await supervise(supervisor, _quietly(on_up), _quietly(on_stopping))
    finally:
        drawing.cancel()
        await asyncio.gather(drawing, return_exceptions=True)
        table.hide()


class _LiveTable:
    """Draws a topology's table at the bottom of the terminal, and can hide the table."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.caption = "starting …"
        self._supervisor = supervisor
        self._live: Live | None = None

    def draw(self) -> None:
        if self._live is None:
            self._live = Live(console=Console(), auto_refresh=False, transient=True)
            self._live.start()
        rows = self._supervisor.state().rows
        width = self._live.console.width
        self._live.update(fleet.table(rows, width, self.caption), refresh=True)

    def hide(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            with contextlib.suppress(OSError):
                live.stop()

    async def keep_drawing(self) -> None:
        while True:
            with contextlib.suppress(OSError):  # the terminal was closed; a SIGHUP follows
                self.draw()
            await asyncio.sleep(_REFRESH)


def print_welcome(state: FleetState) -> None:
    """Print a topology's addresses, an example command, the logs' folder and the way to stop."""
    seconds = time.time() - state.started
    typer.echo(f"{state.topology} is up ({seconds:.1f} s)\n")
    folder = shlex.quote(str(state.folder))
    fields = []
    if state.http:
        fields.append(("HTTP", "  ".join(f"{url}/docs" for url in state.http)))
    if state.grpc:
        named = "gRPC" if state.api == JQ_API else f"gRPC ({state.api})"
        fields.append((named, "  ".join(state.grpc)))
    if state.grpc and state.api == JQ_API:  # jq-ctl cannot use another API
        fields.append(("Try", f"jq-ctl --server {state.grpc[0]} job submit default"
                              """ '{"hello": "world"}' --wait"""))  # fmt: skip
    fields.append(("Logs", str(state.logs)))
    down = f"jq-ctl down --folder {folder}"
    fields.append(("Stop", down if state.detached else f"Ctrl-C, or {down}"))
    print_fields(fields)
    typer.echo()
