"""Whether a service of the task queue answers: exit status 0, or 1; one JSON line says why.

The standard library is all it needs, so that a container can run it every few seconds.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import threading
import time
from collections.abc import Sequence

HIGHEST_PORT = 65_535
LONGEST_MS = 60_000


def target(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit() and 1 <= int(port) <= HIGHEST_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host, int(port)


def milliseconds(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= LONGEST_MS):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 1 to {LONGEST_MS}")
    return int(text)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m scripts.healthcheck", description=__doc__)
    made.add_argument(
        "--mode",
        required=True,
        choices=("tcp", "worker"),
        help="tcp: connect to the service itself; worker: to its coordinator",
    )
    made.add_argument("--target", required=True, type=target, metavar="HOST:PORT")
    made.add_argument("--timeout-ms", type=milliseconds, default=1000, metavar="MS")
    made.add_argument("--service", default="", metavar="NAME", help="named in the line")
    return made


def connect(host: str, port: int, seconds: float) -> str:
    """Empty when it answered in time, else why not.

    In a thread, since looking up a name takes as long as it likes.
    """
    found = []

    def attempt() -> None:
        try:
            with socket.create_connection((host, port), timeout=seconds):
                found.append("")
        except OSError as error:
            found.append(error.strerror or str(error) or type(error).__name__)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else f"no answer within {seconds * 1000:.0f} ms"


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    host, port = args.target
    began = time.monotonic()
    why = connect(host, port, args.timeout_ms / 1000)
    place = f"{host}:{port}" if args.mode == "tcp" else f"the coordinator at {host}:{port}"
    line = {
        "ts_ms": int(time.time() * 1000),
        "level": "ERROR" if why else "INFO",
        "service": args.service,
        "method": "",
        "event": "unhealthy" if why else "healthy",
        "message": f"{place}: {why}" if why else f"{place} answers",
        "mode": args.mode,
        "target": f"{host}:{port}",
        "latency_ms": round((time.monotonic() - began) * 1000, 1),
    }
    print(json.dumps(line), flush=True)
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
