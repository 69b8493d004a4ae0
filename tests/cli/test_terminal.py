"""What a person at a terminal sees, and what a pipe gets instead."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys

import pytest

from jobqueue.core.clock import ManualClock
from jobqueue.core.job import Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.store import Rules
from jobqueue.stores.sqlite.store import SqliteStore
from tests import patience
from tests.cli import processes, terminal
from tests.stores.driver import Driver


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A folder with an SQLite file that holds some jobs."""
    folder = tmp_path_factory.mktemp("store")
    with processes.server(folder, "--db-url", "sqlite:///jobs.db") as server:
        grpc = server.line("ready")["grpc"]
        for args in (("--count", "25"), ("--type", "fail", "--max-retries", "0", "--wait")):
            processes.run("ctl", "--server", grpc, "job", "submit", "default", "{}", *args,
                          cwd=folder)  # fmt: skip
        assert server.stop() == 0
    return folder


URL = "sqlite:///jobs.db"


def test_a_terminal_gets_a_table_with_colours_and_a_pipe_does_not(store):
    status, shown = terminal.run("ctl", "--url", URL, "dlq", "list", cwd=store)
    assert status == 0
    assert "\x1b[" in shown
    assert "RuntimeError: failed on purpose" in terminal.screen(shown)
    piped = processes.run("ctl", "--url", URL, "dlq", "list", cwd=store)
    assert "\x1b" not in piped.stdout
    header, row = piped.stdout.splitlines()
    assert header.split() == ["JOB", "ID", "QUEUE", "TYPE", "REASON", "ERROR", "RETRIES", "CREATED"]
    assert "RETRIES_EXHAUSTED" in row


def test_json_is_never_coloured(store):
    status, shown = terminal.run("ctl", "--url", URL, "queue", "list", "-o", "json", cwd=store)
    assert status == 0
    assert "\x1b" not in shown
    assert json.loads(shown)["queues"][0]["name"] == "default"


@pytest.mark.req("jq:FR-032")
def test_a_person_pages_through_a_list(store):
    status, shown = terminal.run(
        "ctl", "--url", URL, "job", "list", cwd=store, answers={"Enter for the next page": "\n"}
    )
    assert status == 0
    text = terminal.screen(shown)
    assert text.count("JOB ID") == 2
    assert text.count("DONE") + text.count("DEAD_LETTERED") == 26
    status, shown = terminal.run(
        "ctl", "--url", URL, "job", "list", cwd=store, answers={"Enter for the next page": "q\n"}
    )
    assert status == 0
    assert terminal.screen(shown).count("JOB ID") == 1


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_columns_are_left_out_where_there_is_no_room(store, columns):
    def lines(*args: str) -> list[str]:
        status, shown = terminal.run("ctl", "--url", URL, *args, cwd=store, columns=columns)
        assert status == 0
        found = [line.rstrip() for line in terminal.screen(shown).splitlines()]
        assert max(map(len, found)) <= columns, found
        return found

    listed = processes.run("ctl", "--url", URL, "dlq", "list", "-o", "json", cwd=store)
    dead = json.loads(listed.stdout)["jobs"][0]["job_id"]
    header, row, *rest = lines("dlq", "list", "--limit", "1")
    assert row.startswith(dead)
    assert "RuntimeError: failed" in row
    assert ("RETRIES" in header) is (columns == 200)
    assert ("No room for" in " ".join(rest)) is (columns != 200)
    header, *rows = lines("job", "list", "--limit", "4")
    for row in rows[:4]:
        assert re.match(r"[0-9a-f-]{36}  .*(DONE|DEAD_LETTERED|PENDING)", row), row
    for args in (("job", "logs", dead), ("queue", "list"), ("worker", "list", "--all")):
        assert lines(*args)


def test_a_pipe_gets_every_column_whole(store):
    piped = processes.run("ctl", "--url", URL, "dlq", "list", cwd=store, COLUMNS="60").stdout
    header, row = piped.splitlines()
    assert header.split()[-2:] == ["RETRIES", "CREATED"]
    assert "RuntimeError: failed on purpose" in row


def test_a_large_payload_is_cut_for_people_only(tmp_path):
    with processes.server(tmp_path, "--db-url", URL) as server:
        grpc = server.line("ready")["grpc"]
        (tmp_path / "big.json").write_text(json.dumps({"rows": [{"n": n} for n in range(5_000)]}))
        answer = processes.run("ctl", "--server", grpc, "job", "submit", "default", "@big.json",
                               "--type", "echo", "--wait", "-o", "json", cwd=tmp_path)  # fmt: skip
        job_id = json.loads(answer.stdout)["job_id"]
        command = ("ctl", "--server", grpc, "job", "status", job_id)
        status, shown = terminal.run(*command, cwd=tmp_path, columns=80)
        text = terminal.screen(shown)
        assert status == 0
        assert len(text.splitlines()) < 80
        assert text.count("--output json shows all") == 2  # payload and result
        piped = processes.run(*command, cwd=tmp_path).stdout
        assert '"n": 4999' in piped
        document = json.loads(processes.run(*command, "-o", "json", cwd=tmp_path).stdout)
        assert len(document["payload"]["rows"]) == 5_000


def test_long_work_has_a_progress_bar_on_a_terminal_only(store):
    args = ("--url", URL, "job", "submit", "default", "1", "--count", "3000")
    status, shown = terminal.run("ctl", *args, cwd=store)
    assert status == 0
    assert "3000/3000" in terminal.screen(shown)
    piped = processes.run("ctl", *args, cwd=store)
    assert len(piped.stdout.split()) == 3000
    assert piped.stderr == "3000 jobs submitted\n"


def test_ctrl_c_is_quiet(store):
    job = processes.run("ctl", "--url", URL, "job", "submit", "default", "1", cwd=store)
    status, shown = terminal.run(
        "ctl", "--url", URL, "job", "watch", job.stdout.strip(), cwd=store,
        answers={"SUBMITTED": "^C"},
    )  # fmt: skip
    assert status == 130
    assert "Traceback" not in shown
    assert "error" not in shown


def test_a_reader_that_leaves_is_no_error(store):
    ctl = f"{sys.executable} -m jobqueue.cli.ctl --url {URL}"
    # The shell's own status is the last program's: ask for ours.
    command = f"{{ {ctl} job list --limit 1000; echo status $? >&2; }} | head -n 1"
    answer = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=store,
        env=processes.environment(),
        capture_output=True,
        text=True,
        timeout=patience.longest(30),
    )
    assert answer.stdout.startswith("JOB ID")
    assert answer.stderr == "status 0\n"
    assert "Error" not in answer.stderr
    assert "Traceback" not in answer.stderr


def test_the_environment_names_the_store(store):
    answer = processes.run("ctl", "queue", "list", "-o", "json", cwd=store, JQ_URL=URL)
    assert json.loads(answer.stdout)["queues"][0]["name"] == "default"


@pytest.mark.req("inp:DEMO")
def test_the_demo_shows_a_live_view(tmp_path):
    status, shown = terminal.run("demo", "--fast", "--seed", "1", cwd=tmp_path, columns=80)
    assert status == 0
    text = terminal.screen(shown)
    assert "queue default after" in text
    for name in ("PENDING", "RUNNING", "DEAD", "RETRIES", "ERRORS"):
        assert name in text
    assert "Drained in" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["job", "list", "--limit", "99999999999999"], "limit: must be 1 to 1000"),
        (["job", "list", "--queue", "\udcff"], "not valid Unicode text"),
        (["--timeout", "inf", "status"], "--timeout"),
    ],
)
def test_odd_arguments_get_a_line_not_a_traceback(server, tmp_path, words, said):
    answer = processes.run("ctl", "--server", server.grpc, *words, cwd=tmp_path)
    assert answer.returncode == 2
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_full_device_under_the_output_is_told(server):
    with open("/dev/full", "w") as full:
        answer = subprocess.run(
            [sys.executable, "-m", "jobqueue.cli.ctl", "--server", server.grpc, "status"],
            env=processes.environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=patience.longest(30),
        )
    assert answer.returncode == 1
    assert "Traceback" not in answer.stderr


# -- questions before something is done to many, or for good --------------------------------------


@pytest.fixture
def graveyard(tmp_path):
    """A folder with an SQLite file that holds failed, cancelled and waiting jobs."""

    async def fill() -> None:
        store = SqliteStore(str(tmp_path / "jobs.db"))
        await store.open()
        driver = Driver(store, ManualClock(), Rules())
        await driver.queue("default")
        await driver.queue("idle")
        for _ in range(2):
            await driver.brought_to(State.DEAD_LETTERED, queue="default")
        first, *_ = [await driver.submit(queue="idle") for _ in range(3)]
        await driver.do(Transition.cancelled((await driver.job(first)).seq))
        await store.close()

    asyncio.run(fill())
    return tmp_path


def _depth(folder, queue: str) -> dict[str, int]:
    answer = processes.run("ctl", "--url", URL, "queue", "stats", queue, "-o", "json", cwd=folder)
    depth: dict[str, int] = json.loads(answer.stdout)["depth"]
    return depth


def test_a_person_is_asked_before_many_dead_letters_are_retried(graveyard):
    command = ("ctl", "--url", URL, "dlq", "retry", "--all")
    status, shown = terminal.run(*command, cwd=graveyard, answers={"Go on?": "n\n"})
    text = " ".join(terminal.screen(shown).split())
    assert status == 1
    assert "2 jobs will be sent back to PENDING" in text
    assert "1 other dead letter stays behind." in text
    assert "Nothing was changed." in text
    assert _depth(graveyard, "default")["DEAD_LETTERED"] == 2
    status, shown = terminal.run(*command, cwd=graveyard, answers={"Go on?": "y\n"})
    assert status == 0
    shown = terminal.screen(shown)
    assert "2 jobs sent back to PENDING; 1 dead letter stays behind" in shown
    assert _depth(graveyard, "default")["PENDING"] == 2
    assert _depth(graveyard, "idle")["DEAD_LETTERED"] == 1


def test_nothing_is_asked_when_nothing_matches_or_yes_is_said(graveyard):
    command = ("ctl", "--url", URL, "dlq", "retry", "--all")
    status, shown = terminal.run(*command, "--queue", "idle", cwd=graveyard)
    assert (status, "Go on?" in shown) == (0, False)
    assert "--reason ALL" in shown
    status, shown = terminal.run(*command, "--yes", cwd=graveyard)
    assert (status, "Go on?" in shown) == (0, False)
    assert _depth(graveyard, "default")["PENDING"] == 2


@pytest.mark.req("jq:FR-026")
def test_a_person_is_asked_before_a_queue_is_deleted(graveyard):
    command = ("ctl", "--url", URL, "queue", "delete", "idle")
    status, shown = terminal.run(*command, cwd=graveyard)
    assert (status, "Go on?" in shown) == (5, False)  # it is refused anyway
    assert "2 unfinished jobs" in shown
    status, shown = terminal.run(*command, "--force", cwd=graveyard, answers={"Go on?": "\n"})
    text = " ".join(terminal.screen(shown).split())
    assert status == 1
    assert "2 unfinished jobs become dead letters. 1 dead letter stays behind. Go on?" in text
    assert _depth(graveyard, "idle")["PENDING"] == 2
    status, shown = terminal.run(*command, "--force", cwd=graveyard, answers={"Go on?": "y\n"})
    assert status == 0
    assert "2 unfinished jobs dead-lettered; 1 dead letter stays behind" in terminal.screen(shown)


def test_a_person_is_asked_before_a_job_is_removed(graveyard):
    listed = processes.run(
        "ctl", "--url", URL, "dlq", "list", "--queue", "idle", "-o", "json", cwd=graveyard
    )
    (job,) = json.loads(listed.stdout)["jobs"]
    command = ("ctl", "--url", URL, "job", "delete", job["job_id"])
    status, _ = terminal.run(*command, cwd=graveyard, answers={"Go on?": "n\n"})
    assert status == 1
    status, shown = terminal.run(*command, cwd=graveyard, answers={"Go on?": "y\n"})
    assert (status, "is deleted" in shown) == (0, True)


@pytest.mark.req("jq:FR-032")
def test_a_limit_is_kept_and_nothing_is_asked(store):
    status, shown = terminal.run(
        "ctl", "--url", URL, "job", "list", "--limit", "4", cwd=store, timeout=20.0
    )
    assert status == 0
    assert len(re.findall(r"DONE|DEAD_LETTERED|PENDING", terminal.screen(shown))) == 4
    assert "next page" not in shown
