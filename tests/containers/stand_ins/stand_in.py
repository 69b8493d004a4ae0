"""Starts a server as the entry point of its public image does: told by the same variables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def postgres() -> list[str]:
    """POSTGRES_USER, POSTGRES_DB, POSTGRES_PASSWORD_FILE; the data are made at the first start."""
    [programs] = Path("/usr/lib/postgresql").glob("*/bin")
    data = Path("/var/lib/postgresql/data")
    user, database = os.environ["POSTGRES_USER"], os.environ["POSTGRES_DB"]
    if not (data / "PG_VERSION").exists():
        login = [f"--username={user}", f"--pwfile={os.environ['POSTGRES_PASSWORD_FILE']}"]
        subprocess.run(
            [programs / "initdb", "-D", data, *login, "--auth=scram-sha-256"], check=True
        )
        with (data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all all scram-sha-256\n")
        subprocess.run(
            [programs / "postgres", "--single", "-D", data, "postgres"],
            input=f"CREATE DATABASE {database}\n".encode(),
            check=True,
        )
    return [str(programs / "postgres"), "-D", str(data), "-c", "listen_addresses=*", *sys.argv[2:]]


def kafka() -> list[str]:
    """KAFKA_A_B is a.b of its properties; KAFKA_HEAP_OPTS is for the JVM."""
    heap = os.environ.pop("KAFKA_HEAP_OPTS", "").split()
    properties = Path("/tmp/server.properties")
    properties.write_text(
        "".join(
            f"{name.removeprefix('KAFKA_').lower().replace('_', '.')}={value}\n"
            for name, value in os.environ.items()
            if name.startswith("KAFKA_")
        )
    )
    java = [
        "java",
        *heap,
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-cp",
        "/opt/kafka/libs/*",
    ]
    if not Path(os.environ["KAFKA_LOG_DIRS"], "meta.properties").exists():
        identity = ["--cluster-id", "MkU3OEVBNTcwNTJENDM2Qg", "--config", str(properties)]
        subprocess.run([*java, "kafka.tools.StorageTool", "format", *identity], check=True)
    return [*java, "kafka.Kafka", str(properties)]


if __name__ == "__main__":
    command = {"postgres": postgres, "kafka": kafka}[sys.argv[1]]()
    os.execvp(command[0], command)
