"""Makes the secrets of a compose project, once: the first step of `docker compose up`.

    python -m scripts.compose_secrets /run/jobqueue

Each folder below is a volume of its own, so that a container sees only what it needs:

    server/     passwords of the backing servers, and the API keys' hashes
    worker/     the workers' API key (--workers-on-redis: and the password of Redis)
    operator/   the API key of jq-ctl, which may do everything
    backing/    what PostgreSQL and Redis read
    monitoring/ the API key of Prometheus, and the password of Grafana

What is there already stays as it is.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDERS = ("server", "worker", "operator", "backing", "monitoring")
_FOR_US = 0o400
_FOR_THE_GROUP = 0o440  # the others' servers run as users of their own, in our group
_DONE = ".done"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers-on-redis", action="store_true")
    args = parser.parse_args(argv)
    server, worker, operator, backing, monitoring = (args.folder / name for name in FOLDERS)
    watched = os.access(monitoring, os.W_OK)  # not every project has a Prometheus
    if (server / _DONE).exists():
        print("the secrets are there already")
        return 0
    postgres, redis, grafana = (secrets.token_urlsafe(32) for _ in range(3))
    working, operating, watching = (secrets.token_urlsafe(32) for _ in range(3))
    for folder in (server, worker, operator, backing, *([monitoring] if watched else [])):
        folder.chmod(0o750)
    write(server / "postgres-password", postgres)
    write(server / "redis-password", redis)
    write(
        server / "api-keys",
        f"worker:worker:sha256={hashed(working)}\n"
        f"operator:operator+client:sha256={hashed(operating)}"
        + (f"\nprometheus:monitor:sha256={hashed(watching)}" if watched else ""),
    )
    write(worker / "api-key", working)
    if args.workers_on_redis:
        write(worker / "redis-password", redis)
    write(operator / "api-key", operating)
    write(backing / "postgres-password", postgres, _FOR_THE_GROUP)
    write(backing / "redis.conf", f"requirepass {redis}\nprotected-mode yes", _FOR_THE_GROUP)
    if watched:
        write(monitoring / "api-key", watching, _FOR_THE_GROUP)
        write(monitoring / "grafana-password", grafana, _FOR_THE_GROUP)
    write(server / _DONE, "")  # last: who is interrupted begins again
    print("made the secrets")
    return 0


def hashed(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def write(file: Path, text: str, mode: int = _FOR_US) -> None:
    scratch = file.with_name(f"{file.name}.new")
    scratch.unlink(missing_ok=True)
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as opened:
        opened.write(f"{text}\n")
    scratch.replace(file)


if __name__ == "__main__":
    sys.exit(main())
