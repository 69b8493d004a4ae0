"""Fetches the jars of a Kafka broker with Maven: for machines without a distribution of Kafka.

Nothing is installed. The jars go into a cache that all checkouts of a user share.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import ClassVar

from jobqueue.fleet.backing import kafka
from jobqueue.fleet.backing.server import KILL, BackingFailed, Ending

POM = Path(__file__).resolve().parents[2] / "scripts/kafka/pom.xml"

_TIMEOUT = 900.0  # seconds, for some 45 MB
_TAIL = 20  # lines of what Maven said


class FetchFailed(Exception):
    """Carries what Maven said."""


def can_fetch() -> bool:
    """Whether Java and Maven are there."""
    return kafka.find_java() is not None and shutil.which("mvn") is not None


def fetch() -> None:
    """Fill the cache. Whoever comes second waits, and finds it done."""
    if os.environ.get(kafka.HOME):
        raise FetchFailed(kafka.why_not_found())  # somebody wants another one
    if not can_fetch():
        raise FetchFailed(f"Java {kafka.OLDEST_JAVA} or newer and Maven (mvn) are needed")
    jars = kafka.cache_folder(os.environ)
    _make_folder(jars.parent)
    with jars.with_name(f"{jars.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kafka.is_complete(jars):
            _fetch(jars)
            _archive_classes(jars)


def _fetch(jars: Path) -> None:
    """Into a folder beside it: what is in the cache is whole."""
    with tempfile.TemporaryDirectory(prefix=f"{jars.name}.", dir=jars.parent) as scratch:
        made = Path(scratch, "jars")
        made.mkdir()
        _copy_dependencies(made)
        made.chmod(0o755)  # whatever the umask says: brokers run as somebody else
        for path in made.iterdir():
            path.chmod(0o644)
        if jars.exists():  # somebody took jars out of it
            jars.rename(Path(scratch, "before"))
        made.rename(jars)


def _copy_dependencies(into: Path) -> None:
    command = [
        *("mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies"),
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


def _archive_classes(jars: Path) -> None:
    """Run a broker once, and keep what it loaded. The archive holds the paths of the jars."""
    with tempfile.TemporaryDirectory(prefix="jobqueue-kafka-") as scratch:
        Path(scratch).chmod(0o755)
        broker = _Recording(Path(scratch, "kafka"))
        try:
            broker.start()
            broker.stop()
            _copy(broker.data / kafka.ARCHIVE, jars / kafka.ARCHIVE)
        except (BackingFailed, OSError) as failed:
            # It only saves time; and whoever starts a broker next is told why it does not.
            print(
                f"no archive of Kafka's classes, starts will take longer: {failed}", file=sys.stderr
            )
        finally:
            broker.remove()


def _copy(source: Path, target: Path) -> None:
    """Out of a folder of somebody else's, into one where others may be looking already."""
    scratch = target.with_name(f"{target.name}.new")
    opened = os.open(source, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(opened, "rb") as read, scratch.open("wb") as write:
        shutil.copyfileobj(read, write)
    scratch.chmod(0o644)
    scratch.replace(target)


class _Recording(kafka.PrivateKafka):
    orderly: ClassVar[Ending] = [(signal.SIGTERM, 240.0), *KILL]  # it writes the archive then

    def _class_archive(self, jars: Path) -> list[str]:
        return [f"-XX:ArchiveClassesAtExit={kafka.ARCHIVE}", "-Xlog:cds=off,cds+dynamic=off"]


def _make_folder(folder: Path) -> None:
    """Whatever the umask says, others can pass what is made here."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        path.chmod(0o755)
