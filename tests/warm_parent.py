"""A process that has imported what the programs import, and forks each program that is asked for.

It is given the number of a connected socket, at whose other end is `tests/warm.py`. It imports
nothing of the tests, so that the programs find nothing of them either.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import io
import json
import os
import resource
import runpy
import select
import socket
import struct
import sys
import termios
import threading
from importlib import import_module
from typing import Any

NUMBER = struct.Struct("q")
# What the programs import, at once or later. A program imports itself what is missing here.
PRELOADED = [
    "asyncpg", "email.message", "fastapi.openapi.utils", "grpc.aio", "grpc_health.v1.health_pb2",
    "grpc_reflection.v1alpha.reflection", "httptools", "jobqueue.api.grpc.remote",
    "jobqueue.api.http.face", "jobqueue.cli.ctl", "jobqueue.cli.ctl_down",
    "jobqueue.cli.ctl_events", "jobqueue.cli.ctl_layout", "jobqueue.cli.ctl_ps",
    "jobqueue.cli.ctl_replay", "jobqueue.cli.ctl_up", "jobqueue.cli.server",
    "jobqueue.cli.service", "jobqueue.cli.worker", "jobqueue.server.process",
    "jobqueue.server.worker", "jobqueue.stores.memory", "jobqueue.stores.postgres.store",
    "jobqueue.stores.redis.store", "jobqueue.stores.sqlite.store", "pydantic.v1", "redis.asyncio",
    "rich.markdown", "rich.table", "sqlite3", "typer._adapters", "typer._click._textwrap",
    "typer._click.decorators", "typer.rich_utils", "uvicorn", "uvicorn.lifespan.off",
    "uvicorn.protocols.http.httptools_impl", "uvloop",
]  # fmt: skip


def read_exactly(connection: socket.socket, count: int) -> bytes:
    """Fewer bytes at the end of the connection only."""
    found = b""
    while len(found) < count:
        more = connection.recv(count - len(found))
        if not more:
            break
        found += more
    return found


def unbuffered(descriptor: int, errors: str | None) -> io.TextIOWrapper:
    """As the interpreter makes it with PYTHONUNBUFFERED."""
    raw = io.FileIO(descriptor, "w", closefd=False)
    is_terminal = raw.isatty()
    return io.TextIOWrapper(raw, errors=errors, line_buffering=is_terminal, write_through=True)


def become(request: dict[str, Any], streams: list[int]) -> str:
    """Make this process the one that was asked for; returns the module to run."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if request["tty"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.umask(request["umask"])
    resource.setrlimit(resource.RLIMIT_NOFILE, request["files"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = unbuffered(1, sys.stdout.errors)
    sys.stderr = unbuffered(2, "backslashreplace")
    module, *arguments = request["command"]
    sys.argv = ["", *arguments]
    sys.path[0] = os.getcwd()
    del sys.modules["tests"]
    if sys.modules.pop(module, None) is not None:  # it is run as __main__, and imported anew if so
        package, _, name = module.rpartition(".")
        delattr(sys.modules[package], name)
    return str(module)


def serve(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each request, and tell its exit status; returns in the forked processes."""
    running: dict[int, tuple[int, int]] = {}  # by pidfd: the process, and who waits for its status
    while True:
        for descriptor in select.select([connection.fileno(), *running], [], [])[0]:
            if descriptor in running:
                pid, told = running.pop(descriptor)
                _, status = os.waitpid(pid, 0)
                with contextlib.suppress(BrokenPipeError):
                    os.write(told, NUMBER.pack(status))
                os.close(told)
                os.close(descriptor)
                continue
            header, passed, _, _ = socket.recv_fds(connection, NUMBER.size, 4)
            if not header:
                os._exit(0)
            header += read_exactly(connection, NUMBER.size - len(header))
            request = json.loads(read_exactly(connection, NUMBER.unpack(header)[0]))
            *streams, told = passed
            pid = os.fork()
            if not pid:
                connection.close()
                for opened in (told, *running, *(waits for _, waits in running.values())):
                    os.close(opened)
                return request, streams
            for one in streams:
                os.close(one)
            running[os.pidfd_open(pid)] = (pid, told)
            with contextlib.suppress(BrokenPipeError):
                os.write(told, NUMBER.pack(pid))


def main() -> str:
    """Returns in each forked process: the module that it is to run."""
    with contextlib.suppress(AttributeError):
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # as the programs, before they import it
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            import_module(name)
    gc.collect()
    gc.freeze()
    try:
        return become(*serve(socket.socket(fileno=int(sys.argv[1]))))
    except KeyboardInterrupt:
        os._exit(130)


def leave(status: int) -> None:
    """End this process as the interpreter does, but do not take its modules apart first.

    That would copy the memory that it shares with its parent: 40 ms, more than many programs take.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # wait for threads that are no daemons
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.exit(status)  # the interpreter tells it in its own way
    os._exit(status)


if __name__ == "__main__":
    module = main()
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if not (ended.code is None or isinstance(ended.code, int)):
            raise
        leave((ended.code or 0) & 0xFF)
    leave(0)
