"""Limits as the page says: set for a queue, changed while jobs run, and shown."""

from __future__ import annotations

import json

from tests.journeys.machine import Machine
from tests.journeys.pages import blocks, shell

PAGE = "docs/limits.md"


def test_the_program_of_the_limits_page_works(machine: Machine) -> None:
    (text,) = blocks(PAGE, "python")
    machine.write("limited.py", text)
    ran = machine.run("python", "limited.py")
    assert (ran.returncode, ran.stdout) == (0, "at most 2 at a time\nslower\n"), ran.stderr


def test_the_commands_of_the_limits_page_work(machine: Machine) -> None:
    ports = ("--http-port", "0", "--grpc-port", "0", "--worker-concurrency", "0")
    server = machine.start("jq-server", *ports)
    ready = json.loads(server.line_with('"message": "ready'))
    prelude = f'jq-ctl() {{ command jq-ctl --server {ready["grpc"]} "$@"; }}'
    (commands,) = blocks(PAGE, "sh")
    printed = shell(machine, prelude, commands)
    assert "Queue mail is changed: max-running 20, rate-burst 10" in printed
    assert "Queue mail is changed: rate none" in printed
    for wrong, said in (
        ("--max-running=-1", "--max-running"),
        ("--rate=ten", "--rate"),
        ("--rate-burst=5", "rate_burst: is only allowed together with rate"),
        ("--rate=2000000", "rate: 2000000 starts in 1 s are too many"),
    ):
        mistake = machine.run("jq-ctl", "--server", ready["grpc"], "queue", "update", "mail", wrong)
        assert (mistake.returncode, mistake.stdout) == (2, ""), wrong
        assert said in mistake.stderr
    assert server.stop() == 0
