"""Real PostgreSQL, Redis, Kafka, Prometheus and Chromium for tests and for trying things out.

    scripts/services ensure            install what is missing (Debian and Ubuntu, as root)
    scripts/services ensure containers a container engine, which only some tests need
    eval "$(scripts/services start)"   start private servers and name them to this shell
    scripts/services start --json redis
    scripts/services status
    scripts/services stop

Private servers listen on free ports of 127.0.0.1, run as an unprivileged user, keep their data in
a temporary folder, and have nothing to do with servers of the system. A service that is named in
the environment (JQ_TEST_POSTGRES_DSN, JQ_TEST_REDIS_URL, JQ_TEST_KAFKA_BOOTSTRAP) is used as it
is, and not started. Kafka is that of KAFKA_HOME; without it, Maven fetches it into a cache. Tests
have a Prometheus or a Chromium each, so none is started here.
`make test` needs none of this but `ensure`: a test run starts and stops its own servers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobqueue.fleet.backing import BackingFailed
from jobqueue.redaction import redact_value
from tests.services import catalog, install
from tests.services.catalog import SERVICES, Service, known
from tests.services.maven import FetchFailed
from tests.services.places import end_all, places

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    try:
        status: int = args.run(args.services or list(SERVICES.values()), args)
    except (BackingFailed, install.InstallFailed, Refused, ValueError) as failed:
        print(f"scripts/services: {failed}", file=sys.stderr)
        return 1
    return status


class Refused(Exception):
    """Not done, for a reason that the message gives."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/services",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Any, help: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=help, description=help)
        added.add_argument(
            "services",
            nargs="*",
            type=_service,
            metavar="SERVICE",
            help=f"{', '.join(known())}; if none is named: {', '.join(SERVICES)}",
        )
        added.set_defaults(run=run)
        return added

    ensuring = command("ensure", ensure, "Find the services; install what is missing, or say how.")
    ensuring.add_argument(
        "--or-skip",
        action="store_true",
        help=f"fail only if a service that {catalog.REQUIRE} names is missing",
    )
    starting = command("start", start, "Start private servers; print the variables that name them.")
    starting.add_argument("--json", action="store_true", help="print JSON, not shell commands")
    stopping = command("stop", stop, "Stop them and delete their data.")
    showing = command("status", show, "Show what is installed, named and running.")
    for added in (starting, stopping, showing):
        added.add_argument(
            "--folder", type=Path, default=_folder(), help="where their data is (%(default)s)"
        )
    return parser


def _service(name: str) -> Service:
    if name not in known():
        raise argparse.ArgumentTypeError(f"unknown service {name!r}; known: {', '.join(known())}")
    return known()[name]


def _folder() -> Path:
    """The same at each call by this user from this checkout, however full the places are."""
    whose = hashlib.sha256(f"{os.getuid()} {ROOT}".encode()).hexdigest()[:8]
    folders = [place / f"jobqueue-services-{whose}" for place in places()]
    return next(filter(Path.is_dir, folders), folders[0])


def ensure(services: Sequence[Service], args: argparse.Namespace) -> int:
    missing = [service for service in services if not _is_there(service)]
    lacking = [service for service in missing if not service.can_fetch()]
    if lacking and install.can_install():
        packages = " ".join(package for service in lacking for package in service.packages)
        _say(f"installing {packages} with apt-get; no system service is started")
        try:
            install.install(lacking)
        except install.InstallFailed as failed:
            _say(f"apt-get failed:\n{failed}")
    for service in missing:
        if service.fetch and service.can_fetch():
            _say(f"fetching {service.name} with Maven, once")
            try:
                service.fetch()
            except FetchFailed as failed:
                _say(f"that failed:\n{failed}")
    missing = [service for service in missing if service.find() is None]
    for service in missing:
        _say(f"{service.name} is missing: {service.how_to_get}")
    if args.or_skip:
        required = catalog.required(os.environ)
        missing = [service for service in missing if service.name in required]
    return 1 if missing else 0


def _is_there(service: Service) -> bool:
    return bool(os.environ.get(service.variable)) or service.find() is not None


def start(services: Sequence[Service], args: argparse.Namespace) -> int:
    addresses: dict[str, str] = {}
    for service in services:
        if not service.variable:
            _say(f"{service.name}: tests start their own, nothing started")
            continue
        if named := os.environ.get(service.variable):
            addresses[service.variable] = named
            _say(f"{service.name}: named by {service.variable}, nothing started")
            continue
        _claim(args.folder)
        server = service.server(args.folder / service.name, service.settings)
        server.start()
        addresses[service.variable] = service.address(server)
    if args.json:
        print(json.dumps(addresses))
    else:
        for variable, address in addresses.items():
            print(f"export {variable}={shlex.quote(address)}")
    return 0


def _claim(folder: Path) -> None:
    """Its name can be guessed: it must be ours."""
    folder.mkdir(parents=True, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise Refused(f"{folder} belongs to somebody else: choose another with --folder")
    folder.chmod(0o755)  # whatever the umask says: servers run as somebody else


def stop(services: Sequence[Service], args: argparse.Namespace) -> int:
    if list(services) == list(SERVICES.values()):
        end_all(args.folder)
        return 0
    for service in services:
        service.server(args.folder / service.name).remove()
    return 0


def show(services: Sequence[Service], args: argparse.Namespace) -> int:
    lines = [("SERVICE", "STATE", "PID", "ADDRESS", "PROGRAM")]
    for service in services:
        server = service.server(args.folder / service.name)
        program = str(service.find() or "not installed")
        if server.alive():
            address = redact_value(service.address(server))
            lines.append((service.name, "running", str(server.pid), address, program))
        elif os.environ.get(service.variable):  # by its name: the value may hold a password
            lines.append((service.name, "named", "-", f"${service.variable}", program))
        else:
            lines.append((service.name, "stopped", "-", "-", program))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(map(str.ljust, line, widths)).rstrip())
    return 0


def _say(message: str) -> None:
    """Beside what `eval` reads."""
    print(f"scripts/services: {message}", file=sys.stderr)
