"""Installs services from the packages of Debian and Ubuntu, without a server of the system's.

Their packages make and start servers for the whole machine. Here only the programs are wanted: so
for the time of the installation the system is told to start nothing and to make no cluster, and
afterwards these files are as they were.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.services.catalog import Service

_APT = ("apt-get", "-q", "-y", "-o", "Dpkg::Use-Pty=0")


class InstallFailed(Exception):
    """Carries what the package manager said."""


def can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(services: Sequence[Service], root: Path = Path("/")) -> None:
    """As root. `root` is where the files of the system are; tests name another."""
    packages = [package for service in services for package in service.packages]
    with nothing_started(root), no_cluster_made(root):
        if _run(*_APT, "install", "--no-install-recommends", *packages).returncode:
            _run(*_APT, "update")  # a fresh machine knows no packages yet
            done = _run(*_APT, "install", "--no-install-recommends", *packages)
            if done.returncode:
                raise InstallFailed(done.stdout)
    if shutil.which("systemctl"):
        for unit in (unit for service in services for unit in service.units):
            _run("systemctl", "disable", unit)  # nor at the next boot


def nothing_started(root: Path) -> contextlib.AbstractContextManager[None]:
    """Packages ask this program whether they may start a service; 101 is no."""
    return _for_now(root / "usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n", 0o755)


def no_cluster_made(root: Path) -> contextlib.AbstractContextManager[None]:
    path = root / "etc/postgresql-common/createcluster.d/jobqueue.conf"
    return _for_now(path, "create_main_cluster = false\n", 0o644)


@contextlib.contextmanager
def _for_now(path: Path, text: str, mode: int) -> Iterator[None]:
    """A file that is there for a while. One that was there before comes back."""
    before = path.with_name(f"{path.name}.before-jobqueue")
    made = _make_folders(path.parent)
    if path.exists():
        path.rename(before)
    try:
        path.write_text(text)
        path.chmod(mode)
        yield
    finally:
        path.unlink(missing_ok=True)
        if before.exists():
            before.rename(path)
        for folder in made:
            with contextlib.suppress(OSError):  # by now somebody else uses it
                folder.rmdir()


def _make_folders(path: Path) -> list[Path]:
    """Those that were not there, innermost first."""
    made = []
    for folder in (path, *path.parents):
        if folder.exists():
            break
        made.append(folder)
    path.mkdir(parents=True, exist_ok=True)
    return made


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
