"""A topology in containers: its compose file is brought up, looked at, and taken down."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from jobqueue.core.errors import InvalidArgument, NotFound, Unavailable

COMPOSE = Path("deploy/compose")  # in a checkout
PORT = 50051  # inside the container
# The service that clients call; none: they call all of them, in the order of their names.
CALLED: Mapping[str, str | None] = {"microservices": "gateway", "nodes": None}

_BUILD = "build them with `make images`"
_PATIENCE = 240.0  # until all are healthy
_PAUSE = 0.25
_LAST_LINES = 5
_GROUPS = Path("/sys/fs/cgroup")
_MICRO, _NANO = 1e6, 1e9


@dataclass(frozen=True, slots=True)
class Container:
    """A service that runs in one."""

    name: str
    address: str
    pid: int  # of its first process, on this machine
    health: str

    @property
    def is_there(self) -> bool:
        """Tell if that process runs on this machine."""
        return Path(f"/proc/{self.pid}").exists()

    def cpu_seconds(self) -> float:
        """All that its control group has used: its health checks, too."""
        lines = Path(f"/proc/{self.pid}/cgroup").read_text().splitlines()
        groups = dict(line.split(":", 2)[1:] for line in lines)
        for controllers, path in groups.items():
            if "cpuacct" in controllers.split(","):
                usage = _GROUPS / controllers / path.lstrip("/") / "cpuacct.usage"
                return int(usage.read_text()) / _NANO
        stat = (_GROUPS / groups[""].lstrip("/") / "cpu.stat").read_text()
        return int(stat.split()[1]) / _MICRO  # usage_usec is the first


def check(folder: Path, topologies: Sequence[str]) -> None:
    """Refuse a topology that has no compose file. Raises InvalidArgument."""
    for name in topologies:
        if name not in CALLED:
            raise InvalidArgument(
                "--place",
                f"{name} is not brought up in containers here, only {' and '.join(CALLED)};"
                " say where it runs with --at",
            )
        if not _file(folder, name).is_file():
            raise InvalidArgument(
                "--compose",
                f"there is no {_file(folder, name)}; name the folder deploy/compose of a checkout",
            )


async def described(folder: Path, topologies: Sequence[str]) -> dict[str, Any]:
    """The engine, the image and the limits, for a reader. NotFound: an image is not there."""
    engine = (await _said("docker", "version", "--format", "{{.Server.Version}}")).strip()
    found: dict[str, Any] = {"engine": engine}
    for name in topologies:
        services = yaml.safe_load(_file(folder, name).read_text())["services"].values()
        for image in dict.fromkeys(one["image"] for one in services):
            try:
                text = await _said("docker", "image", "inspect", image)
            except Unavailable as error:
                raise NotFound(f"image {image}: {error.message}; {_BUILD}") from error
            (known,) = json.loads(text)
            labels = known["Config"].get("Labels") or {}
            revision = labels.get("org.opencontainers.image.revision", "unknown")
            found[f"{image} was built from commit"] = revision
        limits = {f"{one.get('cpus')} cores, {one.get('mem_limit')} memory" for one in services}
        found[f"limits of each container of {name}"] = "; ".join(sorted(limits))
    return found


@contextlib.asynccontextmanager
async def up(folder: Path, topology: str) -> AsyncIterator[list[Container]]:
    """The containers of a topology, all of them healthy, with a network of their own."""
    project = f"jq-bench-{os.getpid():x}-{os.urandom(3).hex()}"
    files = ("--project-name", project, "--file", str(_file(folder, topology).resolve()))
    compose = (*await _compose(), *files)
    try:
        await _said(*compose, "up", "--detach", "--no-build")
        yield await _healthy(compose, topology)
    finally:
        # No grace period: nothing in them is kept. `down` removes the rest, also after a failure.
        with contextlib.suppress(Unavailable):
            await _said(*compose, "kill")
        await _said(*compose, "down", "--volumes", "--timeout", "1")


def called(topology: str, containers: Sequence[Container]) -> list[str]:
    """The addresses for clients, in the project's network: no proxy stands in between."""
    name = CALLED[topology]
    return [f"{one.address}:{PORT}" for one in containers if name in (None, one.name)]


def _file(folder: Path, topology: str) -> Path:
    return folder / f"{topology}.yml"


async def _compose() -> tuple[str, ...]:
    """The plugin of ``docker``, or the program of its own that came before."""
    with contextlib.suppress(Unavailable):
        await _said("docker", "compose", "version")
        return ("docker", "compose")
    if shutil.which("docker-compose"):
        return ("docker-compose",)
    raise NotFound("neither `docker compose` nor `docker-compose` is installed")


async def _healthy(compose: Sequence[str], topology: str) -> list[Container]:
    ids = (await _said(*compose, "ps", "--quiet")).split()
    loop = asyncio.get_running_loop()
    give_up = loop.time() + _PATIENCE
    while True:
        found = [_container(one) for one in json.loads(await _said("docker", "inspect", *ids))]
        ill = [f"{one.name} is {one.health}" for one in found if one.health != "healthy"]
        if not ill:
            return sorted(found, key=lambda one: one.name)
        if loop.time() > give_up:
            raise Unavailable(
                f"{topology}: after {_PATIENCE:g} s {', '.join(ill)}; `docker logs` says why"
            )
        await asyncio.sleep(_PAUSE)


def _container(known: Mapping[str, Any]) -> Container:
    networks = known["NetworkSettings"]["Networks"].values()
    return Container(
        name=known["Config"]["Labels"]["com.docker.compose.service"],
        address=next((one["IPAddress"] for one in networks if one["IPAddress"]), ""),
        pid=known["State"]["Pid"],
        health=known["State"].get("Health", {}).get("Status", known["State"]["Status"]),
    )


def _environment() -> dict[str, str]:
    """This environment with port 0 for every published port, so that none collides."""
    ports = ("GATEWAY_PORT", *(f"NODE_{number}_PORT" for number in range(6)))
    return {**os.environ, **dict.fromkeys(ports, "0")}


async def _said(*command: str) -> str:
    """Run a command and return its output. Unavailable, with its last lines, if it fails."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=_environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process, which takes them down
        )
    except FileNotFoundError:
        raise NotFound(f"{command[0]} is not installed, and containers need it") from None
    try:
        out, err = await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    if process.returncode:
        last = " / ".join(err.decode(errors="replace").strip().splitlines()[-_LAST_LINES:])
        raise Unavailable(f"{' '.join(command[:2])} failed: {last}")
    return out.decode()
