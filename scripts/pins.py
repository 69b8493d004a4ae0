"""Renews pins/*.txt from pyproject.toml: every package that is installed, with its hashes.

    make pins                    keep the versions; add what is new, drop what is gone
    make pins ARGS=--upgrade     the newest version of everything

The hashes are those of all files of a release, for every platform. Takes a few seconds, and the
index of packages that uv is set up to use (UV_DEFAULT_INDEX); its address is not written down.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "pins"
PEER_PINS = ROOT / "src/jobqueue/bench/peers/pins"
# What `jq-bench peers` compares with: each is installed in an environment of its own. jobqueue
# installs hiredis with its Redis client, so the others get it, too.
PEERS = {
    "celery": ["celery[redis]", "redis[hiredis]"],
    "dramatiq": ["dramatiq[redis]", "redis[hiredis]"],
    "huey": ["huey[redis]", "redis[hiredis]"],
    "pgqueuer": ["pgqueuer[asyncpg]"],
    # Not psycopg[binary]: procrastinate asks for psycopg[pool], and older versions of pip find the
    # hashes under that very name only.
    "procrastinate": ["procrastinate", "psycopg-binary"],
    "rq": ["rq", "redis[hiredis]"],
}
UV = ROOT / ".venv" / "bin" / "uv"
OLDEST_PYTHON = "3.11"
# No part of what users run.
FOR_DEVELOPERS = {"dev", "bench"}
# Packages that only a process with the HTTP API imports: images without one leave them out.
FOR_HTTP = {"fastapi", "fastapi-swagger", "httptools", "jinja2", "uvicorn"}
HEAD = """\
# {what}
# Written by `make pins` from pyproject.toml: do not edit. The hashes are those of all files of each
# release, so that they serve every platform; CONTRIBUTING.md ("Dependencies") says how to use them.
"""
HEAD_OF_PEER = """\
# {what}
# Written by `make pins` (scripts/pins.py): do not edit.
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    upgrade = parser.parse_args().upgrade
    if not UV.exists():
        print("pins: there is no .venv/bin/uv: run `make setup`", file=sys.stderr)
        return 1
    if unmerged := [file.name for file in PINS.glob("*.txt") if "<<<<<<<" in file.read_text()]:
        print(
            f"pins: {', '.join(unmerged)}: conflicts of a merge; take either side and run this"
            " again: git checkout --ours pins",
            file=sys.stderr,
        )
        return 1
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    every = list(project["project"]["optional-dependencies"])
    extras = [name for name in every if name not in FOR_DEVELOPERS]
    # hatchling asks for editables when it makes an editable install.
    build = [*project["build-system"]["requires"], "editables"]

    # The others get the versions that the first one chose.
    renew("dev.txt", "Everything: the package, all extras, the development tools.", every, upgrade)
    renew("extras.txt", "What jobqueue needs with all its extras.", extras)
    renew("run.txt", "What jobqueue needs without any extra.", [])
    renew("build.txt", "What builds jobqueue from its source.", [], needed=build)
    # Of the images that need another list than extras.txt, which is the server's.
    renew("bench.txt", "What the benchmarks' image holds.", [*extras, "bench"])
    small = [line for line in project["project"]["dependencies"] if name_of(line) not in FOR_HTTP]
    clients = [
        line
        for extra in ("postgres", "redis", "kafka")
        for line in project["project"]["optional-dependencies"][extra]
    ]
    renew("worker.txt", "What the worker's image holds.", [], needed=[*small, *clients])
    renew("taskqueue.txt", "What the image of the task queue's services holds.", [], needed=small)
    for name, lines in PEERS.items():
        renew(f"{name}.txt", f"What {name} needs.", [], upgrade, needed=lines, folder=PEER_PINS)
    return 0


def name_of(requirement: str) -> str:
    """The package that a line of pyproject.toml asks for."""
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


def renew(
    name: str,
    what: str,
    extras: list[str],
    upgrade: bool = False,
    needed: list[str] | None = None,
    folder: Path = PINS,
) -> None:
    """Write one list: of the package with these extras, or of what is needed instead."""
    file = folder / name
    ours = folder == PINS
    print(f"{file.relative_to(ROOT)} ... ", end="", flush=True)
    command = [
        *(str(UV), "pip", "compile", "--quiet", "--no-header", "--annotation-style", "line"),
        *("--universal", "--fork-strategy", "fewest", "--python-version", OLDEST_PYTHON),
        # Every environment has pip already, and replacing it while it works is a risk.
        *("--generate-hashes", "--no-emit-package", "pip"),
        # Older versions of pip know a package with an extra, which another one asks for, by that
        # name only: without it in the list they take the newest release, and miss its hashes.
        "--no-strip-extras",
        *("--output-file", str(file.relative_to(ROOT))),
        *(["--upgrade"] if upgrade else []),
        *(["--constraints", "pins/dev.txt"] if ours and name != "dev.txt" else []),
        *(option for extra in extras for option in ("--extra", extra)),
        "pyproject.toml" if needed is None else "-",
    ]
    given = None if needed is None else "\n".join(needed)
    ran = subprocess.run(
        command, cwd=ROOT, input=given, stdout=subprocess.DEVNULL, text=True, check=False
    )
    if ran.returncode:
        raise SystemExit(f"pins: cannot renew {name} (its reason is above)")
    text = file.read_text()
    if "://" in text:
        raise SystemExit(f"pins: {name} names an address; take it out of uv's settings")
    head = HEAD if ours else HEAD_OF_PEER
    file.write_text(head.format(what=what) + text)
    print(f"{text.count('==')} packages, {text.count('--hash=')} hashes")


if __name__ == "__main__":
    sys.exit(main())
