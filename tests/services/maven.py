"""Fetches the jars of a Kafka broker with Maven: for machines without a distribution of Kafka.

Nothing is installed. The jars go into a cache that all checkouts of a user share.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from jobqueue.topology.backing import java, kafka

POM = Path(__file__).resolve().parents[2] / "scripts/kafka/pom.xml"

_TIMEOUT = 900.0  # seconds, for some 45 MB
_TAIL = 20  # lines of what Maven said


class FetchFailed(Exception):
    """Carries what Maven said."""


def can_fetch() -> bool:
    """Whether Java and Maven are there."""
    return java.find_java() is not None and shutil.which("mvn") is not None


def fetch(pom: Path = POM, jars: Path | None = None) -> None:
    """Fill the cache. Whoever comes second waits, and finds it done."""
    if os.environ.get(kafka.HOME):
        raise FetchFailed(kafka.why_not_found())  # somebody wants another one
    if not can_fetch():
        raise FetchFailed(f"Java {java.OLDEST} or newer and Maven (mvn) are needed")
    jars = jars or kafka.cache_folder(os.environ)
    _make_folder(jars.parent)
    with jars.with_name(f"{jars.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kafka.is_complete(jars):
            _fetch(pom, jars)


def _fetch(pom: Path, jars: Path) -> None:
    """Into a folder beside it: what is in the cache is whole."""
    with tempfile.TemporaryDirectory(prefix=f"{jars.name}.", dir=jars.parent) as scratch:
        made = Path(scratch, "jars")
        made.mkdir()
        _copy_dependencies(pom, made)
        made.chmod(0o755)  # whatever the umask says: brokers run as somebody else
        for path in made.iterdir():
            path.chmod(0o644)
        if jars.exists():  # somebody took jars out of it
            jars.rename(Path(scratch, "before"))
        made.rename(jars)


def _copy_dependencies(pom: Path, into: Path) -> None:
    command = [
        *("mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"),
        *("-DincludeScope=runtime", f"-DoutputDirectory={into}"),
    ]
    try:
        done = subprocess.run(
            command,
            cwd=into,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise FetchFailed(f"Maven took more than {_TIMEOUT:.0f} s") from None
    if done.returncode:
        raise FetchFailed("\n".join(done.stdout.splitlines()[-_TAIL:]))


def _make_folder(folder: Path) -> None:
    """Whatever the umask says, others can pass what is made here."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        path.chmod(0o755)
