"""The transcripts of docs/replay.md: a lost store, from the loss to the rebuilt one."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests import ports
from tests.journeys.machine import Machine
from tests.journeys.pages import blocks
from tests.services.topics import Topics as OwnTopics

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.req("sch:REPLAY")]
BLOCKS = {"redis": slice(0, 2), "sqlite": slice(2, 3)}
# What differs from run to run.
_MASKS = [
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "ID"),
    (re.compile(r"\b[0-9a-f]{12}\b"), "STORE"),
    (re.compile(r"generation 2-[0-9a-f]{8}"), "generation 2-…"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"redis://\S+"), "redis://HOST"),
    (re.compile(r" +"), " "),
]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with Machine(tmp_path, Path(sys.executable).parent, os.environ) as made:
        yield made


def masked(text: str) -> list[str]:
    for pattern, word in _MASKS:
        text = pattern.sub(word, text)
    return [line.rstrip() for line in text.splitlines()]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", BLOCKS)
def test_the_transcript_of_a_lost_store(
    kind: str, machine: Machine, kafka: OwnTopics, request: pytest.FixtureRequest
) -> None:
    if not shutil.which("redis-cli"):
        pytest.skip("needs redis-cli")
    lines = [
        line
        for block in blocks("docs/replay.md", "console")[BLOCKS[kind]]
        for line in block.splitlines()
    ]
    script = "\n".join(line.removeprefix("$ ") for line in lines if line.startswith("$ "))
    script = script.replace("localhost:9092", kafka.bootstrap)
    if kind == "redis":
        url = urlsplit(request.getfixturevalue("own_redis")().url)  # all of it is emptied
        script = script.replace("redis://localhost:6379", url.geturl())
        script = script.replace(
            "redis-cli -p 6379", f"REDISCLI_AUTH={url.password} redis-cli -p {url.port}"
        )
    http, grpc = ports.take(), ports.take()
    variables = {
        "JQ_HTTP_PORT": str(http),
        "JQ_GRPC_PORT": str(grpc),
        "JQ_KAFKA_REPLICATION": "1",
        **{
            f"JQ_KAFKA_TOPIC_{one.upper()}": kafka.name(one)
            for one in ("jobs", "dead_letters", "queues")
        },
    }
    prelude = f"""
        set -em
        trap 'kill $(jobs -p) 2> /dev/null || true' EXIT
        jq-ctl() {{ command jq-ctl --server 127.0.0.1:{grpc} "$@"; }}
    """
    ran = machine.run("bash", "-c", f"{prelude}\n{script}", timeout=90, **variables)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    assert "Traceback" not in ran.stderr
    shown = "\n".join(line for line in lines if not line.startswith("$ "))
    assert masked(ran.stdout) == masked(shown)
    log = (machine.folder / "server.log").read_text()
    assert "ERROR" not in log.upper(), log
