"""Which job goes where, and when: two servers that hand out jobs at the same time."""

from __future__ import annotations

import json
import uuid
from bisect import bisect_right
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import redis

from jobqueue.stores.redis.locks import PREFIX
from tests.cli.layouts import Running
from tests.cli.ups import wait
from tests.e2e.conftest import ON_TWO_HASTY_SERVERS, Ctl, Query, Workshop

pytestmark = [pytest.mark.e2e, ON_TWO_HASTY_SERVERS]


@pytest.mark.req("jq:FR-014")
def test_highest_priority_first_then_first_in_first_out(
    ctl: Ctl, queue: str, workshop: Workshop, tmp_path: Path
) -> None:
    priorities = [0, 5, 9, 5, 0, 9, 1]
    lines = [json.dumps({"payload": {}, "type": "work", "priority": p}) for p in priorities]
    (tmp_path / "jobs").write_text("\n".join(lines))
    ids = ctl.ok("job", "submit", queue, "--batch", "jobs").split()
    with workshop.worker(queue, "--concurrency", "1") as worker:
        wait(lambda: len(workshop.attempts()) == len(ids), "all have run")
        assert worker.stop() == 0
    ran = [ids.index(job_id) for job_id, _ in workshop.attempts()]
    assert ran == [2, 5, 1, 3, 6, 0, 4]


@pytest.mark.req("jq:AC-4", "jq:FR-015", "jq:NFR-008", "jq:NFR-006")
def test_two_servers_hand_out_every_job_once_each_under_its_lock(
    layout: Running, ctl: Ctl, queue: str, query: Query, workshop: Workshop
) -> None:
    count = 400
    ctl.ok("queue", "pause", queue)  # until both are there
    ids = ctl.ok("job", "submit", queue, "{}", "--type", "work", "--count", str(count)).split()
    depth = "SELECT done::int FROM queue_depth WHERE queue = $1"
    one, two = layout.targets
    with (
        redis.Redis.from_url(layout.redis_url, decode_responses=True) as client,
        client.monitor() as commands,
        workshop.worker(queue, "--server", one) as first,
        workshop.worker(queue, "--server", two) as second,
    ):
        there = "SELECT count(*)::int FROM workers WHERE $1 = ANY (queues) AND status = 'ONLINE'"
        wait(lambda: query(there, queue) == [(2,)], "both workers are there")
        ctl.ok("queue", "resume", queue)
        wait(lambda: query(depth, queue) == [(count,)], "all jobs are done")
        assert (first.stop(), second.stop()) == (0, 0)
        locks = locks_taken(commands, client)
    assert Counter(workshop.attempts()) == dict.fromkeys([(job_id, 1) for job_id in ids], 1)
    rows = query("SELECT worker_id, seq FROM jobs WHERE queue = $1", queue)
    assert len({worker for worker, _ in rows}) == 2, "one server did nothing"
    # A lock names a range and its front: its holder takes the jobs from there on.
    fronts = sorted(
        (int(front), token)
        for name, token in locks.items()
        if (front := name.rpartition(":")[2].partition("-")[2])
    )
    holders: dict[str, Counter[str]] = defaultdict(Counter)
    for worker, seq in rows:
        if place := bisect_right(fronts, (seq, "g")):  # tokens are hexadecimal
            holders[worker][fronts[place - 1][1]] += 1
    # Where Redis does not answer in time, a server goes on without it for a moment.
    best = [counted.most_common(1)[0] for counted in holders.values()]
    assert sum(jobs for _, jobs in best) > count / 2
    assert len({token for token, _ in best}) == 2, "a token for each server"


def locks_taken(commands: redis.client.Monitor, client: redis.Redis) -> dict[str, str]:
    """Each lock that was asked for, with the token of the first who did: nobody had it before."""
    client.echo("no more")
    taken: dict[str, str] = {}
    while (command := commands.next_command()["command"]) != "ECHO no more":
        name, *words = command.split(" ")
        if name == "SET" and words[0].startswith(PREFIX):
            taken.setdefault(words[0].removeprefix(PREFIX), words[1])
    return taken


@pytest.mark.req("jq:FR-017")
def test_a_cycle_hands_out_no_more_than_the_batch(
    ctl: Ctl, queue: str, query: Query, workshop: Workshop
) -> None:
    ctl.ok("job", "submit", queue, '{"seconds": 1}', "--type", "work", "--count", "20")
    with workshop.worker(queue, "--concurrency", "20") as worker:
        wait(lambda: len(workshop.attempts()) == 20, "all have begun")
        assert worker.stop() == 0
    cycles = query(
        "SELECT count(*) FROM job_events WHERE queue = $1 AND to_status = 'ASSIGNED' GROUP BY at",
        queue,
    )
    assert sum(size for (size,) in cycles) == 20
    assert max(size for (size,) in cycles) == 3


@pytest.mark.req("jq:FR-017")
def test_work_that_no_word_announced_is_found_all_the_same(
    ctl: Ctl, queue: str, query: Query, workshop: Workshop
) -> None:
    """A word may be lost. The look after each idle interval needs none."""
    with workshop.worker(queue) as worker:
        worker.line("ready")
        job_id = ctl.ok("job", "submit", queue, "{}", "--type", "work", "--delay", "3600")
        assert workshop.attempts() == []
        query(
            "UPDATE job_live SET ready = 2, run_at = NULL, wake_at = NULL WHERE id = $1",
            uuid.UUID(job_id),
        )
        wait(lambda: workshop.attempts() == [(job_id, 1)], "it is found")
        assert worker.stop() == 0


@pytest.mark.req("jq:FR-016", "jq:FR-010")
def test_a_job_that_its_worker_does_not_start_in_time_is_given_to_another(
    ctl: Ctl, queue: str, query: Query, workshop: Workshop
) -> None:
    """A handler blocks the worker: it lives and beats, but starts nothing."""
    with workshop.worker(queue, "--concurrency", "2", "--id", "blocked") as worker:
        ctl.ok("job", "submit", queue, "{}", "--type", "work", "--wait")
        ctl.ok("job", "submit", queue, '{"seconds": 600}', "--type", "block")
        wait(lambda: len(workshop.attempts()) == 2, "it is blocked")
        job_id = ctl.ok("job", "submit", queue, "{}", "--type", "work")
        state = "SELECT status, worker_id FROM jobs WHERE job_id = $1"
        assigned = [("ASSIGNED", "blocked")]
        wait(lambda: query(state, uuid.UUID(job_id)) == assigned, "it is assigned")
        with workshop.worker(queue, "--id", "other") as other:
            ctl.ok("job", "watch", job_id)
            assert other.stop() == 0
        worker.process.kill()
    job = ctl.json("job", "status", job_id)
    assert (job["status"], job["worker_id"], job["attempt"]) == ("DONE", "other", 2)
    events = query(
        "SELECT from_status, to_status, reason FROM job_events WHERE job_id = $1", uuid.UUID(job_id)
    )
    assert ("ASSIGNED", "FAILED", "ASSIGNMENT_TIMEOUT") in events
