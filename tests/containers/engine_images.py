"""Fills an engine with images where no image registry can be had.

The base of our own images, and what stands in for the public images that the compose files name,
are made from Debian's packages. They are kept in the cache that the jars of Kafka are in, too.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from jobqueue.fleet.backing import kafka

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent / "stand_ins"
RELEASE = "bookworm"
BASE = "python:3.11-slim"
BUILD = "python:3.11"  # with the tools that shrink compiled modules
BUILD_FILE = "build.Dockerfile"
STAND_INS = {
    "postgres": "postgres:16",
    "redis": "redis:7",
    "kafka": "apache/kafka:4.2.0",
    "prometheus": "prom/prometheus:v2.53.4",
}
_ALL = (BASE, BUILD, *STAND_INS.values())
_INCLUDED = ("python3", "python3-venv", "ca-certificates")
_APT = (Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*"))


def fill(host: str) -> None:
    """The base, the stand-ins, and what our images are built in."""
    if _lacks_some(host):
        archive = _cached(f"images-{_digest()}.tar", _maker(host))
        if _lacks_some(host):  # they were made at another time, in another engine
            docker(host, "load", "--input", str(archive))


def build_ours(host: str, *images: str) -> str:
    """As `make images` does: all of them, or some. Returns what it says."""
    kept = str(_cache() / "wheels")
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/images.py"), "--wheels", kept, *images],
        env=environment(host),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def docker(host: str, *arguments: str) -> str:
    """What it says. An error carries all of it."""
    done = subprocess.run(
        ["docker", *arguments],
        env=environment(host),
        text=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, f"docker {' '.join(arguments)}\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


def environment(host: str, **more: str) -> dict[str, str]:
    """Without settings of ours: compose files must not pick up what a developer has set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JQ_")}
    # The builder that every engine has: BuildKit takes a plugin by now.
    return {**kept, "DOCKER_HOST": host, "DOCKER_BUILDKIT": "0", **more}


def _lacks_some(host: str) -> bool:
    return not all(docker(host, "images", "--quiet", image) for image in _ALL)


def _cache() -> Path:
    return kafka.cache_folder(os.environ).parent / "images"


def _cached(name: str, make: Callable[[Path], None]) -> Path:
    """A file of the cache, made now if it is not there. An interrupted making leaves no half."""
    file = _cache() / name
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch = file.with_suffix(f".{os.getpid()}.new")
        try:
            make(scratch)
            scratch.replace(file)
        finally:
            scratch.unlink(missing_ok=True)
    return file


def _make_base(archive: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch, "root")
        choice = ["--variant=minbase", f"--include={','.join(_INCLUDED)}"]
        _run("debootstrap", *choice, RELEASE, str(root), *_mirror())
        (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        for pattern in (
            "var/cache/apt/archives/*.deb",
            "var/cache/apt/*.bin",
            "var/lib/apt/lists/*",
        ):
            for found in root.glob(pattern):
                shutil.rmtree(found) if found.is_dir() else found.unlink()
        left_out = [f"--exclude=./{name}/*" for name in ("proc", "sys", "dev")]
        _run("tar", "-C", str(root), "--one-file-system", *left_out, "-cf", str(archive), ".")


def _digest() -> str:
    """Of all that the images are made of, but for what apt finds."""
    read = hashlib.sha256("\n".join(sorted(jar.name for jar in _jars().glob("*.jar"))).encode())
    for file in sorted(filter(Path.is_file, HERE.iterdir())):
        read.update(file.name.encode() + file.read_bytes())
    return read.hexdigest()[:12]


def _jars() -> Path:
    found = kafka.find_kafka()
    assert found is not None, "scripts/services ensure kafka"
    return found


def _maker(host: str) -> Callable[[Path], None]:
    """All images in one archive: an engine reads it in a fraction of the time that they take."""

    def make(archive: Path) -> None:
        path = "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
        base = _cached(f"base-{RELEASE}.tar", _make_base)
        docker(host, "import", "--change", f"ENV {path}", str(base), BASE)
        with tempfile.TemporaryDirectory() as scratch:
            shutil.copy(HERE / BUILD_FILE, Path(scratch, "Dockerfile"))
            # The one build with a network, for apt.
            docker(host, "build", "--network", "host", "--tag", BUILD, scratch)
        with tempfile.TemporaryDirectory() as scratch:
            context = Path(scratch)
            shutil.copytree(HERE, context, dirs_exist_ok=True)
            shutil.copytree(_jars(), context / "kafka", ignore=shutil.ignore_patterns("*.jsa"))
            for target, name in STAND_INS.items():
                wanted = ("--target", target, "--tag", name)
                docker(host, "build", "--network", "none", *wanted, scratch)
        docker(host, "save", "--output", str(archive), *_ALL)

    return make


def _mirror() -> list[str]:
    """The one that apt is set up with, where that is Debian's; else debootstrap's own choice."""
    for file in _APT:
        if file.is_file() and (
            found := re.search(r"https?://\S+/debian/?(?=\s)", file.read_text())
        ):
            return [found[0]]
    return []


def _run(*command: str) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
