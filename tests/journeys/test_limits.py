"""Limits as the page says: set for a queue, changed while jobs run, and shown."""

from __future__ import annotations

import json

from tests.journeys.machine import Machine
from tests.journeys.pages import blocks, shell

PAGE = "docs/limits.md"
PRINTED = (
    "at most 2 at a time\nslower\n",
    "at most 2 of the flood at a time\nthe others did not wait: True\n",
)


def test_the_programs_of_the_limits_page_work(machine: Machine) -> None:
    for text, printed in zip(blocks(PAGE, "python"), PRINTED, strict=True):
        machine.write("limited.py", text)
        ran = machine.run("python", "limited.py")
        assert (ran.returncode, ran.stdout) == (0, printed), ran.stderr


def test_the_commands_of_the_limits_page_work(machine: Machine) -> None:
    ports = ("--http-port", "0", "--grpc-port", "0", "--worker-concurrency", "0")
    server = machine.start("jq-server", *ports)
    ready = json.loads(server.line_with('"message": "ready'))
    prelude = f'jq-ctl() {{ command jq-ctl --server {ready["grpc"]} "$@"; }}'
    printed = shell(machine, prelude, "\n".join(blocks(PAGE, "sh")))
    assert "Queue mail is changed: max-running 20, rate-burst 10" in printed
    assert "Queue mail is changed: rate none" in printed
    assert "Queue import is changed: key-rate 100, key-rate-period 60, key-rate-burst 10" in printed
    assert "tenant:big=3,*=1" in printed
    for wrong, said in (
        ("--max-running=-1", "--max-running"),
        ("--rate=ten", "--rate"),
        ("--rate-burst=5", "rate_burst: is only allowed together with rate"),
        ("--rate=2000000", "rate: 2000000 starts in 1 s are too many"),
        ("--key-max-running=-1", "--key-max-running"),
        ("--key-rate-burst=5", "key_rate_burst: is only allowed together with key_rate"),
        ("--key-rate=2000000", "--key-rate: 2000000 starts in 1 s are too many"),
        ("--key-weights=a:1", "'a:1' is not KEY=WEIGHT, each key once, as in tenant:1=5,*=1"),
        ("--key-weights=a=0", "--key-weights: a: 0 is not a weight from 1 to 1000000"),
        (f"--key-weights={'k' * 201}=1", "--key-weights: 1 to 200 characters are allowed"),
    ):
        mistake = machine.run("jq-ctl", "--server", ready["grpc"], "queue", "update", "mail", wrong)
        assert (mistake.returncode, mistake.stdout) == (2, ""), wrong
        assert said in mistake.stderr
    submit = ("jq-ctl", "--server", ready["grpc"], "job", "submit", "import", "{}")
    for wrong in ("", "k" * 201):
        mistake = machine.run(*submit, "--concurrency-key", wrong)
        assert (mistake.returncode, mistake.stdout) == (2, "")
        assert "1 to 200 characters are allowed" in mistake.stderr
        assert "concurrency" in mistake.stderr
    assert server.stop() == 0
