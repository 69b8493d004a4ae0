"""Unique jobs as their page says, by the installed package."""

from __future__ import annotations

import json

from tests.journeys.machine import Machine
from tests.journeys.pages import blocks, shell

PAGE = "docs/unique.md"


def test_the_program_of_the_unique_page_works(machine: Machine) -> None:
    (text,) = blocks(PAGE, "python")
    machine.write("unique.py", text)
    ran = machine.run("python", "unique.py")
    (console,) = blocks(PAGE, "console")
    assert (ran.returncode, ran.stdout) == (0, console.split("\n", 1)[1]), ran.stderr


def test_the_commands_of_the_unique_page_work(machine: Machine) -> None:
    ports = ("--http-port", "0", "--grpc-port", "0", "--worker-concurrency", "0")
    server = machine.start("jq-server", *ports)
    ready = json.loads(server.line_with('"message": "ready'))
    ctl = f'jq-ctl() {{ command jq-ctl --server {ready["grpc"]} "$@"; }}'
    (commands,) = blocks(PAGE, "sh")
    first, again, *_ = shell(machine, f"{ctl}\nHTTP={ready['http']}", commands).split()
    assert again == first
    for wrong, said in (
        ("--unique=", "unique.key: 1 to 255 characters are allowed"),
        ("--unique-scope=waiting", "--unique-scope: needs --unique KEY"),
        ("--unique=k --unique-scope=never", "unique.scope: 'never' is unknown; allowed: waiting,"),
        ("--unique=k --on-conflict=replace", "'replace' needs the scope 'waiting'"),
        ("--unique=k --unique-period=0", "unique.period: must be more than 0"),
    ):
        mistake = machine.run(
            "jq-ctl", "--server", ready["grpc"], "job", "submit", "default", "1", *wrong.split()
        )
        assert (mistake.returncode, mistake.stdout) == (2, ""), wrong
        assert said in mistake.stderr
    assert server.stop() == 0
