"""Start a topology in containers from its compose file, inspect the containers, and remove them."""

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
# The service of a topology that clients call. None: clients call every service, by order of name.
CALLED: Mapping[str, str | None] = {"microservices": "gateway", "nodes": None}

_BUILD = "build the images with `make images`"
_PATIENCE = 240.0  # seconds until all containers are healthy
_PAUSE = 0.25
_LAST_LINES = 5
_GROUPS = Path("/sys/fs/cgroup")
_MICRO, _NANO = 1e6, 1e9


@dataclass(frozen=True, slots=True)
class Container:
    """Describes a running container: its service, address, first process and health."""

    name: str
    address: str
    pid: int  # of its first process, on this machine
    health: str

    @property
    def is_there(self) -> bool:
        """Return True if the container's first process runs on this machine."""
        return Path(f"/proc/{self.pid}").exists()

    def cpu_seconds(self) -> float:
        """Return the processor seconds that the container used, including its health checks."""
        lines = Path(f"/proc/{self.pid}/cgroup").read_text().splitlines()
        groups = dict(line.split(":", 2)[1:] for line in lines)
        for controllers, path in groups.items():
            if "cpuacct" in controllers.split(","):
                usage = _GROUPS / controllers / path.lstrip("/") / "cpuacct.usage"
                return int(usage.read_text()) / _NANO
        stat = (_GROUPS / groups[""].lstrip("/") / "cpu.stat").read_text()
        return int(stat.split()[1]) / _MICRO  # usage_usec is the first


def check(folder: Path, topologies: Sequence[str]) -> None:
    """Raise InvalidArgument unless each topology can run in containers and has a compose file.

    ``folder`` is the folder of the compose files.
    """
    for name in topologies:
        if name not in CALLED:
            raise InvalidArgument(
                "--place",
                f"jq-bench cannot start {name} in containers, only {' and '.join(CALLED)};"
                f" start {name} yourself and name its addresses with --at",
            )
        if not _file(folder, name).is_file():
            raise InvalidArgument(
                "--compose",
                f"{_file(folder, name)} does not exist; name the folder deploy/compose of a"
                " checkout",
            )


async def described(folder: Path, topologies: Sequence[str]) -> dict[str, Any]:
    """Return the container engine's version, each image's commit and each container's limits.

    Raises NotFound if an image does not exist on this machine.
    """
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
    """Start a topology's containers in their own network, and yield them when all are healthy.

    The containers are removed at the end of the block, also after a failure.
    """
    project = f"jq-bench-{os.getpid():x}-{os.urandom(3).hex()}"
    files = ("--project-name", project, "--file", str(_file(folder, topology).resolve()))
    compose = (*await _compose(), *files)
    try:
        await _said(*compose, "up", "--detach", "--no-build")
        yield await _healthy(compose, topology)
    finally:
        # No grace period, because no data is kept. `down` removes the rest, also after a failure.
        with contextlib.suppress(Unavailable):
            await _said(*compose, "kill")
        await _said(*compose, "down", "--volumes", "--timeout", "1")


def called(topology: str, containers: Sequence[Container]) -> list[str]:
    """Return the container addresses that clients call directly, without Docker's port proxy."""
    name = CALLED[topology]
    return [f"{one.address}:{PORT}" for one in containers if name in (None, one.name)]


def _file(folder: Path, topology: str) -> Path:
    return folder / f"{topology}.yml"


async def _compose() -> tuple[str, ...]:
    """Return the Compose command: the plugin of ``docker``, else the older ``docker-compose``."""
    with contextlib.suppress(Unavailable):
        await _said("docker", "compose", "version")
        return ("docker", "compose")
    if shutil.which("docker-compose"):
        return ("docker-compose",)
    raise NotFound(
        "--place containers needs `docker compose` or `docker-compose`; neither is installed"
    )


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
                f"{topology} is not ready after {_PATIENCE:g} s: {', '.join(ill)}; read the reason"
                " with `docker logs`"
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
    """Return this process's environment with port 0 for every published port.

    Port 0 lets the system choose a free port, so two topologies cannot collide.
    """
    ports = ("GATEWAY_PORT", *(f"NODE_{number}_PORT" for number in range(6)))
    return {**os.environ, **dict.fromkeys(ports, "0")}


async def _said(*command: str) -> str:
    """Run a command and return its output.

    Raises Unavailable with the last error lines if it fails.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=_environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches this process only, which stops the containers
        )
    except FileNotFoundError:
        raise NotFound(f"--place containers needs {command[0]}, which is not installed") from None
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
