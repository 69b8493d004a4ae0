"""jq-ctl against a running server: every command, what it prints, and how it fails."""

from __future__ import annotations

import json
import queue as queues
import re
import urllib.request
import uuid
from typing import Any

import grpc
import pytest

from jobqueue.cli import ctl_status
from jobqueue.core.job import ComponentHealth, Health
from jobqueue.core.queue import SETTINGS
from jobqueue.documents import health_document
from jobqueue.pb.jq.v1 import types_pb2, worker_pb2, worker_pb2_grpc
from tests import patience

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\n")
RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.fixture
def queue(ctl, server):
    """A queue of its own that no worker takes from."""
    name = f"q-{uuid.uuid4().hex[:8]}"
    assert ctl(server.grpc, "queue", "create", name).status == 0
    return name


def submit(ctl, server, *args) -> str:
    answer = ctl(server.grpc, "job", "submit", *args)
    assert answer.status == 0, answer.err
    return answer.out.split()[0]


def test_explain_says_why_a_job_does_not_run(ctl, server, queue):
    assert ctl(server.grpc, "queue", "pause", queue).status == 0
    job_id = submit(ctl, server, queue, "1", "--type", "nobody-knows")
    answer = ctl(server.grpc, "explain", job_id)
    assert (answer.status, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[:3] == [
        f"Job {job_id} is PENDING:",
        f"- queue {queue!r} is paused (QUEUE_PAUSED)",
        f"  > jq-ctl queue resume {queue}",
    ]
    found = ctl(server.grpc, "explain", job_id, "--output", "json").json
    assert (found["job_id"], found["status"]) == (job_id, "PENDING")
    assert found["causes"][0]["facts"] == {"queue": queue}
    assert {one["code"] for one in found["causes"]} > {"QUEUE_PAUSED"}
    unknown = ctl(server.grpc, "explain", str(uuid.uuid4()))
    assert (unknown.status, unknown.out) == (4, "")
    assert "there is no job" in unknown.err or "no job" in unknown.err


# -- job ---------------------------------------------------------------------------------------


@pytest.mark.req("jq:FR-008", "jq:FR-005")
def test_submit_prints_the_id_and_nothing_else(ctl, server, queue):
    answer = ctl(server.grpc, "job", "submit", queue, '{"a": 1}')
    assert answer.status == 0
    assert UUID.fullmatch(answer.out)
    assert answer.err == ""


@pytest.mark.req("jq:FR-001", "jq:AC-1", "jq:FR-031", "jq:FR-029")
def test_a_job_goes_from_pending_to_done(ctl, server):
    answer = ctl(server.grpc, "job", "submit", "default", '{"hello": "world"}', "--wait")
    assert answer.status == 0
    job_id, result = answer.out.splitlines()
    assert json.loads(result) == {"hello": "world"}
    logs = ctl(server.grpc, "job", "logs", job_id, "--output", "json").json
    assert [(e["from_status"], e["to_status"]) for e in logs["events"]] == [
        (None, "PENDING"),
        ("PENDING", "ASSIGNED"),
        ("ASSIGNED", "RUNNING"),
        ("RUNNING", "DONE"),
    ]
    assert [e["version"] for e in logs["events"]] == [1, 2, 3, 4]
    assert all(RFC3339.fullmatch(e["at"]) and e["reason"] for e in logs["events"])
    table = ctl(server.grpc, "job", "logs", job_id).out.splitlines()
    assert [row.split()[0] for row in table] == ["#", "1", "2", "3", "4"]
    assert "SUBMITTED" in table[1]
    assert "SUCCEEDED" in table[4]


@pytest.mark.req("jq:FR-030")
def test_status_shows_every_field(ctl, server, queue):
    job_id = submit(
        ctl, server, queue, '{"a": 1}', "--type", "echo", "--priority", "7", "--max-retries", "2",
        "--ttl", "600", "--delay", "300", "--timeout", "30", "--key", "k", "--label", "team=red",
    )  # fmt: skip
    document = ctl(server.grpc, "job", "status", job_id, "-o", "json").json
    assert document["job_id"] == job_id
    assert document["queue"] == queue
    assert document["status"] == "PENDING"
    assert (document["priority"], document["retry_count"], document["max_retries"]) == (7, 0, 2)
    assert document["payload"] == {"a": 1}
    assert document["result"] is None
    assert RFC3339.fullmatch(document["created_at"])
    assert (document["started_at"], document["completed_at"]) == (None, None)
    assert RFC3339.fullmatch(document["run_at"])
    assert (document["ttl"], document["timeout"]) == (600, 30)
    assert (document["idempotency_key"], document["labels"]) == ("k", {"team": "red"})
    text = ctl(server.grpc, "job", "status", job_id).out
    for name in ("Job ID", "Queue", "Status", "Priority", "Payload", "Result", "Retry count",
                 "Created", "Started", "Completed"):  # fmt: skip
        assert re.search(rf"^{name}: +\S", text, re.MULTILINE), name


def test_documents_have_the_names_of_the_http_face(ctl, server, queue):
    job_id = submit(ctl, server, queue, "1")
    documents = {
        f"/jobs/{job_id}": ("job", "status", job_id),
        "/queues": ("queue", "list"),
        "/workers": ("worker", "list"),
    }
    for path, command in documents.items():
        with urllib.request.urlopen(server.http + path, timeout=patience.longest(10)) as answer:
            ours, theirs = ctl(server.grpc, *command, "-o", "json").json, json.load(answer)
        if path in ("/queues", "/workers"):
            (name,) = ours
            ours, theirs = ours[name][0], theirs[name][0]
            ours.pop("last_heartbeat", None)
        for name, value in ours.items():
            assert theirs[name] == value or isinstance(value, dict | float), (path, name)


def test_payloads_that_are_not_json_survive(ctl, server, queue, tmp_path):
    (tmp_path / "raw").write_bytes(b"\xff\x00raw")
    raw = submit(ctl, server, queue, f"@{tmp_path / 'raw'}")
    assert ctl(server.grpc, "job", "status", raw, "-o", "json").json["payload_base64"] == "/wByYXc="
    assert "5 bytes: ff 00 72 61 77" in ctl(server.grpc, "job", "status", raw).out
    text = submit(ctl, server, queue, "plain words")
    assert "plain words" in ctl(server.grpc, "job", "status", text).out


def test_control_characters_do_not_reach_the_terminal(ctl, server, queue):
    job_id = submit(ctl, server, queue, "\x1b[31mred")
    assert "\x1b" not in ctl(server.grpc, "job", "status", job_id).out


@pytest.mark.req("jq:FR-032", "jq:FR-035", "jq:AC-3")
def test_a_job_that_keeps_failing_is_listed_as_dead(ctl, server):
    args = ("default", '{"message": "boo"}', "--type", "fail", "--max-retries", "1", "--wait")
    answer = ctl(server.grpc, "job", "submit", *args)
    job_id = answer.out.strip()
    assert answer.status == 12
    assert answer.err.startswith(f"error: job {job_id} was dead-lettered (RETRIES_EXHAUSTED): ")
    listed = ctl(server.grpc, "job", "list", "--status", "DEAD_LETTERED", "-o", "json").json
    (found,) = [job for job in listed["jobs"] if job["job_id"] == job_id]
    assert (found["retry_count"], found["attempt"], found["status"]) == (1, 2, "DEAD_LETTERED")
    dead = ctl(server.grpc, "dlq", "list").out
    assert re.search(rf"{job_id} +default +fail +RETRIES_EXHAUSTED +RuntimeError: boo", dead)


@pytest.mark.req("jq:FR-032")
def test_list_filters_and_pages(ctl, server, queue):
    ids = [submit(ctl, server, queue, str(n), "--type", f"t{n % 2}") for n in range(1, 6)]
    page = ctl(server.grpc, "job", "list", "--queue", queue, "--limit", "2")
    assert page.status == 0
    assert [line.split()[0] for line in page.out.splitlines()[1:]] == ids[:2:-1]
    token = re.search(r"--page-token (\S+)", page.err)
    assert token is not None
    rest = ctl(
        server.grpc, "job", "list", "--queue", queue, "--limit", "3", "--page-token", token[1],
        "-o", "json",
    ).json  # fmt: skip
    assert [job["job_id"] for job in rest["jobs"]] == ids[2::-1]
    assert rest["next_page_token"] == ""
    odd = ctl(server.grpc, "job", "list", "--queue", queue, "--type", "t1", "-o", "json").json
    assert [job["job_id"] for job in odd["jobs"]] == [ids[4], ids[2], ids[0]]
    none = ctl(server.grpc, "job", "list", "--queue", queue, "--status", "done,RUNNING")
    assert (none.status, none.out) == (0, "")


@pytest.mark.req("jq:FR-032")
def test_a_page_has_twenty_jobs_unless_told_otherwise(ctl, server, queue):
    assert ctl(server.grpc, "job", "submit", queue, "1", "--count", "21").status == 0
    page = ctl(server.grpc, "job", "list", "--queue", queue, "-o", "json").json
    assert len(page["jobs"]) == 20
    assert page["next_page_token"]


@pytest.mark.req("jq:FR-012", "jq:FR-013")
def test_cancel_retry_and_delete(ctl, server, queue):
    job_id = submit(ctl, server, queue, "1")
    assert ctl(server.grpc, "job", "delete", job_id).status == 5
    cancelled = ctl(server.grpc, "job", "cancel", job_id)
    assert cancelled.out == f"Job {job_id} is cancelled\n"
    job = ctl(server.grpc, "job", "status", job_id, "-o", "json").json
    assert (job["status"], job["reason"]) == ("DEAD_LETTERED", "CANCELLED")
    again = ctl(server.grpc, "job", "cancel", job_id)
    assert (again.status, again.out) == (5, "")
    assert again.err == (
        f"error: job {job_id} is DEAD_LETTERED; only jobs that have not ended can be cancelled\n"
    )
    assert ctl(server.grpc, "job", "cancel", job_id, "-o", "json").error["code"] == "CONFLICT"
    assert ctl(server.grpc, "job", "retry", job_id).out == f"Job {job_id} is PENDING again\n"
    refused = ctl(server.grpc, "job", "retry", job_id)
    assert refused.status == 5
    assert "only FAILED and DEAD_LETTERED jobs can be retried" in refused.err
    ctl(server.grpc, "job", "cancel", job_id)
    assert ctl(server.grpc, "job", "delete", job_id).out == f"Job {job_id} is deleted\n"
    assert ctl(server.grpc, "job", "status", job_id).status == 4


def test_a_running_job_is_asked_to_stop(ctl, server):
    job_id = submit(ctl, server, "default", '{"seconds": 60}', "--type", "sleep")
    while ctl(server.grpc, "job", "status", job_id, "-o", "json").json["status"] != "RUNNING":
        pass
    answer = ctl(server.grpc, "job", "cancel", job_id)
    assert answer.out == f"Job {job_id} is running; its worker was asked to stop it\n"
    watched = ctl(server.grpc, "job", "watch", job_id)
    assert watched.status == 12
    assert "CANCELLED" in watched.err


def test_watch_shows_the_transitions_as_json_lines(ctl, server):
    job_id = submit(ctl, server, "default", '{"seconds": 0.2}', "--type", "sleep")
    answer = ctl(server.grpc, "job", "watch", job_id, "-o", "json")
    assert answer.status == 0
    events = [json.loads(line) for line in answer.out.splitlines()]
    assert [event["to_status"] for event in events] == ["PENDING", "ASSIGNED", "RUNNING", "DONE"]


@pytest.mark.req("jq:NFR-004")
def test_waiting_ends_when_its_time_is_up(ctl, server, queue):
    answer = ctl(server.grpc, "job", "submit", queue, "1", "--wait", "--wait-timeout", "0.2")
    assert answer.status == 7
    assert "is PENDING after 0.2 s" in answer.err


@pytest.mark.req("inp:IDEMP")
def test_an_idempotency_key_gives_the_first_job_or_a_conflict(ctl, server, queue):
    first = submit(ctl, server, queue, '{"a": 1}', "--key", "order-42")
    again = ctl(server.grpc, "job", "submit", queue, '{"a": 1}', "--key", "order-42")
    assert (again.status, again.out.strip()) == (0, first)
    assert "was used before" in again.err
    other = ctl(server.grpc, "job", "submit", queue, '{"a": 2}', "--key", "order-42")
    assert (other.status, other.out) == (9, "")
    assert first in other.err
    as_json = ctl(
        server.grpc, "job", "submit", queue, '{"a": 1}', "--key", "order-42", "-o", "json"
    )
    assert as_json.json == {"job_id": first, "duplicate": True, "existing": False}


def test_a_unique_key_gives_the_job_that_has_it_or_a_refusal_or_its_place(ctl, server, queue):
    unique = ("--unique", "page-7")
    first = submit(ctl, server, queue, "1", *unique)
    shown = ctl(server.grpc, "job", "status", first)
    assert "page-7 (unfinished, existing)" in shown.out
    again = ctl(server.grpc, "job", "submit", queue, "2", *unique)
    assert (again.status, again.out.strip()) == (0, first)
    assert "nothing was submitted" in again.err
    as_json = ctl(server.grpc, "job", "submit", queue, "2", *unique, "-o", "json")
    assert as_json.json == {"job_id": first, "duplicate": False, "existing": True}
    refused = ctl(server.grpc, "job", "submit", queue, "3", *unique, "--on-conflict", "reject")
    assert (refused.status, refused.out) == (15, "")
    assert f"unique.key: 'page-7' belongs to job {first}" in refused.err
    waiting = (*unique, "--unique-scope", "waiting", "--on-conflict", "replace")
    later = submit(ctl, server, queue, "4", *waiting)
    old = ctl(server.grpc, "job", "status", first, "-o", "json").json
    assert (old["status"], old["reason"]) == ("DEAD_LETTERED", "SUPERSEDED")
    within = ctl(server.grpc, "job", "submit", queue, "5", *unique, "--unique-period", "3600")
    assert within.out.strip() == later


def test_a_unique_key_in_a_file_of_jobs(ctl, server, queue, tmp_path):
    lines = tmp_path / "jobs.jsonl"
    lines.write_text(
        '{"payload": 1, "unique": {"key": "k"}}\n'
        '{"payload": 2, "unique": {"key": "k"}}\n'
        '{"payload": 3, "unique": {"key": "k", "on_conflict": "reject"}}\n'
    )
    done = ctl(server.grpc, "job", "submit", queue, "--batch", str(lines), "-o", "json")
    assert done.status == 15
    assert [one["status"] for one in done.json["results"]] == ["accepted", "existing", "refused"]
    lines.write_text('{"payload": 1, "unique": {"key": "k", "owner": "ann"}}\n')
    wrong = ctl(server.grpc, "job", "submit", queue, "--batch", str(lines))
    assert wrong.status == 2
    assert "line 1: unique: " in wrong.err


def test_count_submits_copies(ctl, server, queue):
    answer = ctl(server.grpc, "job", "submit", queue, "1", "--count", "1200")
    assert answer.status == 0
    assert len(set(answer.out.split())) == 1200
    assert answer.err == "1200 jobs submitted\n"
    stats = ctl(server.grpc, "queue", "stats", queue, "-o", "json").json
    assert stats["depth"]["PENDING"] == 1200


def test_a_batch_file_is_taken_line_by_line(ctl, server, queue, tmp_path):
    file = tmp_path / "jobs.jsonl"
    file.write_text(
        '{"payload": {"n": 1}, "priority": 3, "labels": {"a": "b"}}\n\n'
        '{"payload": 2, "priority": 12}\n'
        '{"payload": "three", "queue": "nowhere"}\n'
        '{"payload": 4, "type": "echo"}\n'
    )
    answer = ctl(server.grpc, "job", "submit", queue, "--batch", str(file))
    assert answer.status == 2
    assert len(answer.out.split()) == 2
    assert "error: 3: priority: 12" in answer.err
    assert "error: 4: queue: there is no queue 'nowhere'" in answer.err
    document = ctl(server.grpc, "job", "submit", queue, "--batch", str(file), "-o", "json").json
    assert document["accepted"] == 2
    assert [item["status"] for item in document["results"]] == [
        "accepted",
        "refused",
        "refused",
        "accepted",
    ]
    first = ctl(server.grpc, "job", "status", document["results"][0]["job_id"], "-o", "json").json
    assert (first["payload"], first["priority"]) == ({"n": 1}, 3)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "line 1: is not JSON"),
        ('{"payload": NaN}', "line 1: is not JSON: NaN"),
        ("[1]", 'line 1: must be an object with a "payload"'),
        ('{"payload": 1, "prio": 2}', "line 1: unknown field 'prio'; allowed: payload, queue"),
        ('{"payload": 1, "priority": "2"}', "line 1: priority: Expected int"),
        ('{"payload": 1, "priority": true}', "line 1: priority: Expected int"),
    ],
)
def test_a_bad_batch_line_is_named_and_nothing_is_submitted(
    ctl, server, queue, tmp_path, line, expected
):
    file = tmp_path / "jobs.jsonl"
    file.write_text(f"{line}\n" + '{"payload": 1}\n')
    answer = ctl(server.grpc, "job", "submit", queue, "--batch", str(file))
    assert answer.status == 2
    assert expected in answer.err
    stats = ctl(server.grpc, "queue", "stats", queue, "-o", "json").json
    assert stats["depth"]["PENDING"] == 0


# -- queue -------------------------------------------------------------------------------------


@pytest.mark.req("jq:FR-025")
def test_queue_create_takes_its_options(ctl, server):
    name = f"q-{uuid.uuid4().hex[:8]}"
    answer = ctl(
        server.grpc, "queue", "create", name, "--max-retries", "5", "--ttl", "60",
        "--priority-weights", "9:5,5:3,0:1", "--capacity", "7", "--timeout", "30",
        "--retry-profile", "producer",
    )  # fmt: skip
    assert (answer.status, answer.out) == (0, f"Queue {name} is created\n")
    document = ctl(server.grpc, "queue", "stats", name, "-o", "json").json
    assert (document["max_retries"], document["ttl"], document["timeout"]) == (5, 60, 30)
    assert document["priority_weights"] == {"9": 5, "5": 3, "0": 1}
    assert (document["capacity"], document["retry_profile"]) == (7, "producer")
    assert ctl(server.grpc, "queue", "create", name).status == 8


def test_every_setting_of_a_queue_is_shown_to_people(ctl, server):
    name = f"q-{uuid.uuid4().hex[:8]}"
    shown = {
        "max_retries": ("5", "5"), "ttl": ("60", "60 s"), "timeout": ("0.5", "500 ms"),
        "capacity": ("0", "unbounded"), "retry_profile": ("producer", "producer"),
        "retry_base": ("2", "2 s"), "retry_max": ("60", "60 s"), "retry_jitter": ("0.25", "25%"),
        "priority_weights": ("9:5,0:1", "9:5,0:1"), "retention": ("0", "for ever"),
        "dead_letter_retention": ("86400", "1 day"), "max_running": ("5", "5"),
        "rate": ("100", "100"), "rate_period": ("60", "60 s"), "rate_burst": ("7", "7"),
        "key_max_running": ("2", "2"), "key_rate": ("3", "3"), "key_rate_period": ("60", "60 s"),
        "key_rate_burst": ("4", "4"), "key_weights": ("a:1=5,*=1", "a:1=5,*=1"),
    }  # fmt: skip
    assert shown.keys() == SETTINGS.keys()
    said = [part for one, (given, _) in shown.items() for part in (option(one), given)]
    assert ctl(server.grpc, "queue", "create", name, *said).status == 0
    lines = ctl(server.grpc, "queue", "stats", name).out.splitlines()
    parts = [line.partition(":") for line in lines]
    found = {title.strip(): words.strip() for title, _, words in parts}
    assert {one: found[setting.title] for one, setting in SETTINGS.items()} == {
        one: words for one, (_, words) in shown.items()
    }


def option(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"


@pytest.mark.req("jq:FR-028", "jq:FR-035")
def test_how_long_jobs_of_a_queue_are_kept_is_set_and_shown(ctl, server, queue):
    shown = ctl(server.grpc, "queue", "stats", queue).out
    assert re.search(r"Dead letters kept: +until deleted", shown), shown
    assert re.search(r"DONE jobs kept: +\d+ days?$", shown, re.MULTILINE), shown
    said = ("--retention", "0", "--dead-letter-retention", "90.5")
    assert ctl(server.grpc, "queue", "update", queue, *said).status == 0
    shown = ctl(server.grpc, "queue", "stats", queue).out
    assert re.search(r"DONE jobs kept: +for ever", shown), shown
    document = ctl(server.grpc, "queue", "stats", queue, "-o", "json").json
    assert (document["retention"], document["dead_letter_retention"]) == (0.0, 90.5)


@pytest.mark.parametrize("command", ["create", "update"])
@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--retention", "-1", "must be 0 (for ever) to 315360000 seconds"),
        ("--retention", "nan", "must be 0 (for ever) to"),
        ("--dead-letter-retention", "1e300", "must be 0 (until deleted) to"),
        ("--ttl", "0", "must be more than 0 and at most"),
        ("--timeout", "-0.5", "must be more than 0 and at most"),
        ("--retry-base", "inf", "must be more than 0 and at most"),
        ("--retry-max", "-3", "must be more than 0 and at most"),
        ("--retry-jitter", "1.1", "must be a share of the wait, 0 to 1"),
        ("--capacity", str(10**30), "must be 0 (unbounded) to"),
        ("--retry-profile", "never", "unknown"),
        ("--max-retries", "1000000", "1000000 is outside 0 to"),
        ("--priority-weights", f"9:{10**30}", f"9:{10**30} is not a priority 0 to 9 and a weight"),
    ],
)
def test_a_setting_that_no_queue_can_have_is_refused_without_a_server(
    ctl, command, option, value, allowed
):
    answer = ctl("127.0.0.1:1", "queue", command, "mail", f"{option}={value}")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith(f"error: {option}: {allowed}"), answer.err


def test_queue_update_changes_what_it_names(ctl, server, queue):
    answer = ctl(
        server.grpc, "queue", "update", queue, "--max-retries", "5", "--retry-base", "2",
        "--retry-max", "60", "--retry-jitter", "0.5", "--priority-weights", "9:5,0:1",
    )  # fmt: skip
    assert (answer.status, answer.out) == (
        0,
        f"Queue {queue} is changed: max-retries 5, retry-base 2, retry-max 60, retry-jitter 0.5,"
        " priority-weights 9:5,0:1\n",
    )
    shown = ctl(server.grpc, "queue", "stats", queue).out
    assert re.search(r"Retry base: +2 s\nRetry max: +60 s\nRetry jitter: +50%", shown), shown
    back = ctl(
        server.grpc, "queue", "update", queue, "--capacity", "9",
        "--reset", "retry-max,retry_base,priority-weights", "-o", "json",
    ).json  # fmt: skip
    assert (back["capacity"], back["max_retries"], back["retry_jitter"]) == (9, 5, 0.5)
    assert (back["retry_base"], back["retry_max"], back["priority_weights"]) == (None, None, None)
    twice = ctl(
        server.grpc, "queue", "update", queue, "--reset", "ttl,ttl", "--retry-jitter", "0.005"
    )
    assert (twice.status, twice.out) == (
        0,
        f"Queue {queue} is changed: retry-jitter 0.005, ttl none\n",
    )
    assert re.search(r"Retry jitter: +0\.5%", ctl(server.grpc, "queue", "stats", queue).out)


@pytest.mark.parametrize("weights", ["9", "9:x", "10:1", "9:0", "9:1,9:2", "-1:2"])
def test_wrong_priority_weights_are_refused(ctl, server, weights):
    answer = ctl(server.grpc, "queue", "create", "w", "--priority-weights", weights)
    assert answer.status == 2
    assert "--priority-weights" in answer.err
    assert ctl(server.grpc, "queue", "stats", "w").status == 4


@pytest.mark.req("jq:FR-026")
def test_a_queue_with_jobs_is_deleted_by_force_only(ctl, server, queue):
    job_id = submit(ctl, server, queue, "1")
    refused = ctl(server.grpc, "queue", "delete", queue)
    assert refused.status == 5
    forced = ctl(server.grpc, "queue", "delete", queue, "--force")
    assert forced.out == f"Queue {queue} is deleted; 1 unfinished job dead-lettered\n"
    job = ctl(server.grpc, "job", "status", job_id, "-o", "json").json
    assert (job["status"], job["reason"]) == ("DEAD_LETTERED", "QUEUE_DELETED")
    assert ctl(server.grpc, "queue", "delete", queue).status == 4


@pytest.mark.req("jq:FR-026")
def test_a_deletion_says_how_many_dead_letters_stay(ctl, server, queue):
    ctl(server.grpc, "job", "cancel", submit(ctl, server, queue, "1"))
    submit(ctl, server, queue, "2")
    forced = ctl(server.grpc, "queue", "delete", queue, "--force")
    assert forced.out == (
        f"Queue {queue} is deleted; 1 unfinished job dead-lettered; 1 dead letter stays behind\n"
    )
    refused = ctl(server.grpc, "dlq", "retry", "--all", "--queue", queue)
    assert refused.status == 4


@pytest.mark.req("jq:FR-027")
def test_the_default_queue_is_there_from_the_start(ctl, server):
    assert ctl(server.grpc, "queue", "stats", "default").status == 0


@pytest.mark.req("jq:FR-028", "jq:AC-5")
def test_queue_stats_are_accurate(ctl, server):
    before = ctl(server.grpc, "queue", "stats", "default", "-o", "json").json
    for _ in range(3):
        ctl(server.grpc, "job", "submit", "default", '{"seconds": 0.1}', "--type", "sleep",
            "--wait")  # fmt: skip
    ctl(server.grpc, "job", "submit", "default", "{}", "--type", "fail", "--max-retries", "0",
        "--wait")  # fmt: skip
    after = ctl(server.grpc, "queue", "stats", "default", "-o", "json").json
    assert after["processed"] - before["processed"] == 4
    assert after["succeeded"] - before["succeeded"] == 3
    assert after["failed"] - before["failed"] == 1
    assert after["depth"]["DONE"] - before["depth"]["DONE"] == 3
    assert after["error_rate"] == pytest.approx(after["failed"] / after["processed"])
    assert after["average_seconds"] > 0
    text = ctl(server.grpc, "queue", "stats", "default").out
    for name in ("PENDING", "RUNNING", "FAILED", "Processed", "Average time", "Error rate"):
        assert re.search(rf"^{name}: +\S", text, re.MULTILINE), name


def test_a_paused_queue_hands_out_nothing(ctl, server):
    assert ctl(server.grpc, "queue", "pause", "default").out == "Queue default is paused\n"
    try:
        waiting = ctl(
            server.grpc, "job", "submit", "default", "1", "--wait", "--wait-timeout", "0.3"
        )
        assert waiting.status == 7
        assert re.search(r"^default +paused", ctl(server.grpc, "queue", "list").out, re.MULTILINE)
    finally:
        answer = ctl(server.grpc, "queue", "resume", "default", "-o", "json")
    assert answer.json == {"name": "default", "paused": False}
    assert ctl(server.grpc, "job", "watch", waiting.out.strip()).status == 0


# -- dlq, worker, status -----------------------------------------------------------------------


@pytest.mark.req("inp:DLQ")
def test_all_dead_letters_of_a_queue_are_replayed(ctl, server, queue):
    ids = [submit(ctl, server, queue, str(n)) for n in range(3)]
    spared = submit(ctl, server, queue, "4")
    for job_id in ids:
        ctl(server.grpc, "job", "cancel", job_id)
    assert ctl(server.grpc, "dlq", "retry").status == 2
    answer = ctl(server.grpc, "dlq", "retry", "--all", "--queue", queue, "--reason", "all")
    assert (answer.status, answer.out) == (0, "3 jobs sent back to PENDING\n")
    depth = ctl(server.grpc, "queue", "stats", queue, "-o", "json").json["depth"]
    assert (depth["PENDING"], depth["DEAD_LETTERED"]) == (4, 0)
    mixed = ctl(server.grpc, "dlq", "retry", spared, str(uuid.UUID(int=0)), "-o", "json")
    assert mixed.status == 5
    assert mixed.json["retried"] == 0
    assert [item["code"] for item in mixed.json["errors"]] == ["CONFLICT", "NOT_FOUND"]


@pytest.mark.req("inp:DLQ")
def test_only_failures_are_replayed_unless_others_are_named(ctl, server, queue):
    cancelled = submit(ctl, server, queue, "1")
    ctl(server.grpc, "job", "cancel", cancelled)
    answer = ctl(server.grpc, "dlq", "retry", "--all", "--queue", queue)
    assert answer.status == 0
    assert answer.out == "0 jobs sent back to PENDING; 1 dead letter stays behind\n"
    assert "--reason ALL" in answer.err
    dry = ctl(server.grpc, "dlq", "retry", "--all", "--queue", queue, "--reason", "cancelled",
              "--dry-run", "-o", "json")  # fmt: skip
    assert (dry.json["matched"], dry.json["retried"], dry.json["stayed"]) == (1, 0, 1)
    status = ctl(server.grpc, "job", "status", cancelled, "-o", "json").json
    assert (status["status"], status["reason"]) == ("DEAD_LETTERED", "CANCELLED")
    answer = ctl(server.grpc, "dlq", "retry", "--all", "--queue", queue, "--reason", "cancelled")
    assert answer.out == "1 job sent back to PENDING\n"


def test_dead_letters_are_chosen_by_type_error_and_time(ctl, server):
    for kind, payload in (("fail", '{"message": "x"}'), ("simulate", '{"work_duration_ms": -1}')):
        ctl(server.grpc, "job", "submit", "default", payload, "--type", kind, "--max-retries",
            "0", "--wait", "--wait-timeout", "1")  # fmt: skip

    def found(*options: str) -> set[str]:
        answer = ctl(server.grpc, "dlq", "list", "--queue", "default", "-o", "json", *options)
        assert answer.status == 0, answer.err
        return {job["type"] for job in answer.json["jobs"]}

    def matched(*options: str) -> int:
        answer = ctl(server.grpc, "dlq", "retry", "--all", "--queue", "default", "--dry-run",
                     "-o", "json", *options)  # fmt: skip
        assert answer.status == 0, answer.err
        count: int = answer.json["matched"]
        return count

    assert "fail" in found()
    assert found("--type", "fail") == {"fail"}
    assert found("--since", "1h", "--type", "fail") == {"fail"}
    assert found("--until", "1h") == set()
    assert found("--reason", "poison") == set()
    everything = matched()
    assert everything >= 1
    assert matched("--type", "nothing-is-called-this") == 0
    assert matched("--error", "no error has this text") == 0
    assert matched("--since", "1h") == everything
    assert matched("--until", "1h") == 0


@pytest.mark.parametrize(
    "options",
    [
        ["--all", "--reason", "boredom"],
        ["--all", "--reason", "done"],
        ["--all", "--since", "yesterday"],
        ["--all", "--since", "1h", "--until", "2h"],
        ["--all", "--error", "x" * 2000],
        ["--reason", "all", str(uuid.UUID(int=1))],
        ["--dry-run", str(uuid.UUID(int=1))],
    ],
)
def test_a_wrong_choice_of_dead_letters_is_refused(ctl, server, options):
    answer = ctl(server.grpc, "dlq", "retry", *options)
    assert answer.status == 2
    assert answer.err.startswith("error: ")


def test_the_built_in_pool_is_listed(ctl, server):
    (worker,) = ctl(server.grpc, "worker", "list", "-o", "json").json["workers"]
    assert (worker["status"], worker["concurrency"]) == ("ONLINE", 4)
    # The worker beside replicated servers was told its queues; a pool that was not takes more.
    assert worker["queues"] in (["default"], ["default", "taskqueue"])
    assert worker["worker_id"] in ctl(server.grpc, "worker", "list").out
    assert ctl(server.grpc, "worker", "drain", "nobody").status == 4
    assert ctl(server.grpc, "worker", "undrain", "nobody").status == 4
    assert ctl(server.grpc, "worker", "shutdown", "nobody").status == 4


@pytest.mark.req("jq:FR-021")
def test_a_worker_is_listed_with_the_slots_that_do_not_come_free(ctl, server):
    channel: Any
    with grpc.insecure_channel(server.grpc) as channel:
        worker: Any = worker_pb2_grpc.WorkerServiceStub(channel)
        info = types_pb2.WorkerInfo(id="stuck", incarnation=7, concurrency=3, queues=["none"])
        worker.Register(worker_pb2.RegisterRequest(worker=info))
        worker.Heartbeat(worker_pb2.HeartbeatRequest(worker_id="stuck", incarnation=7, overrun=2))
        listed = ctl(server.grpc, "worker", "list", "-o", "json").json["workers"]
        shown = ctl(server.grpc, "worker", "list").out
        worker.Deregister(worker_pb2.DeregisterRequest(worker_id="stuck", incarnation=7))
    assert {one["worker_id"] == "stuck": one["overrun"] for one in listed} == {True: 2, False: 0}
    assert re.search(r"^stuck +ONLINE .* 0/3 \+2 overrun  ", shown, re.MULTILINE)


def test_a_worker_is_shown_with_what_it_has_paused(ctl, server):
    channel: Any
    with grpc.insecure_channel(server.grpc) as channel:
        info = types_pb2.WorkerInfo(
            id="tired", incarnation=7, concurrency=3, queues=["none"], types=["pay", "other"]
        )
        open_ = [types_pb2.OpenBreaker(type="pay", failures=3, until=1_900_000_000, trial=1)]
        told: queues.SimpleQueue[Any] = queues.SimpleQueue()
        told.put(worker_pb2.ConnectRequest(hello=worker_pb2.Hello(worker=info)))
        told.put(worker_pb2.ConnectRequest(breakers=worker_pb2.Breakers(open=open_)))
        worker: Any = worker_pb2_grpc.WorkerServiceStub(channel)
        next(worker.Connect(iter(told.get, None)))

        def paused() -> bool:
            return "ONLINE (1 paused)" in ctl(server.grpc, "worker", "list").out

        patience.until(paused, "the breaker is recorded")
        shown = ctl(server.grpc, "worker", "show", "tired").out
        document = ctl(server.grpc, "worker", "show", "tired", "-o", "json").json
        told.put(None)
        worker.Deregister(worker_pb2.DeregisterRequest(worker_id="tired", incarnation=7))
    assert "Types:      other, pay" in shown
    assert "Paused:     pay: 3 failed attempts in a row; it tries one job now" in shown
    assert document["breakers"] == [
        {"type": "pay", "failures": 3, "until": "2030-03-17T17:46:40.000Z", "trial": True}
    ]
    unknown = ctl(server.grpc, "worker", "show", "nobody")
    assert (unknown.status, unknown.out) == (4, "")
    assert "there is no worker 'nobody'; list them with: jq-ctl worker list" in unknown.err


def test_a_worker_is_listed_with_its_types(ctl, server):
    """Whole for programs, a few for people."""
    (worker,) = ctl(server.grpc, "worker", "list", "-o", "json").json["workers"]
    assert worker["types"] == ["", "echo", "fail", "simulate", "sleep", "taskqueue.v1"]
    assert "echo,fail,simulate +3" in ctl(server.grpc, "worker", "list").out


def test_a_job_that_nobody_knows_waits_and_says_so(ctl, server):
    job_id = submit(ctl, server, "default", "{}", "--type", "nobody-knows")
    said = "no connected worker takes type 'nobody-knows' from queue 'default'"
    try:
        text = ctl(server.grpc, "job", "status", job_id).out
        assert re.search(rf"^Status: +PENDING\nWaits: +{said}$", text, re.MULTILINE)
        assert ctl(server.grpc, "job", "status", job_id, "-o", "json").json["hint"] == said
        waited = ctl(
            server.grpc, "job", "submit", "default", "{}", "--type", "nobody-knows", "--wait",
            "--wait-timeout", "0.1",
        )  # fmt: skip
        assert said in waited.err
        second = waited.out.strip()
        stats = ("queue", "stats", "default")
        expected = [{"type": "nobody-knows", "jobs": 2}]

        def metrics() -> bytes:
            url = server.http + "/metrics"
            with urllib.request.urlopen(url, timeout=patience.longest(10)) as page:
                return bytes(page.read())

        # What each of the servers says of jobs may be a second old.
        for says in (
            lambda: ctl(server.grpc, *stats, "-o", "json").json["unserved"] == expected,
            lambda: re.search(
                r"^No worker for: +nobody-knows: 2$", ctl(server.grpc, *stats).out, re.M
            ),
            lambda: b'jq_jobs_without_worker{queue="default"} 2.0' in metrics(),
        ):
            patience.until(says, "both jobs are told of")
    finally:
        ctl(server.grpc, "job", "cancel", job_id)
    ctl(server.grpc, "job", "cancel", second)


@pytest.mark.req("jq:FR-042")
def test_status_sums_up_the_system(ctl, server):
    grpc = server.grpc
    answer = ctl(grpc, "status")
    assert answer.status == 0
    lines = dict(
        re.split(r": +", line, maxsplit=1) for line in answer.out.splitlines() if ": " in line
    )
    assert lines["Server"] == "ok"
    assert lines["Address"] == f"grpc://{grpc}"
    store, redis = ("postgresql", "ok") if server.redis_url else ("sqlite", "not configured")
    assert lines["DB"].startswith(f"ok ({store}, durable")
    assert lines["Redis"].startswith(redis)
    assert lines["Kafka"] == "not configured"
    assert lines["Active workers"].startswith("1 ")
    assert re.search(r"^default +active +\d+", answer.out, re.MULTILINE)
    document = ctl(grpc, "status", "--output", "json").json
    assert document["ok"] is True
    assert document["server"] == {"url": f"grpc://{grpc}", "reachable": True}
    assert document["connectivity"]["kafka"] == "not configured"
    assert document["active_workers"] == 1
    assert "default" in [queue["name"] for queue in document["queues"]]


# -- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (
            ("job", "submit", "nowhere", "1"),
            4,
            "error: queue: there is no queue 'nowhere'; create it with: jq-ctl queue create",
        ),
        (("job", "submit", "default", ""), 2, "error: payload: must not be empty"),
        (("job", "submit", "default", "1", "--priority", "10"), 2, "error: priority: 10"),
        (("job", "submit", "default", "1", "--max-retries", "-1"), 2, "error: max_retries: -1"),
        (("job", "submit", "default", "1", "--label", "x"), 2, "error: --label: 'x' is not NAME="),
        (("job", "submit", "default"), 2, "error: PAYLOAD: give either a payload or --batch"),
        (("job", "submit", "default", "@/no/file"), 2, "error: PAYLOAD: cannot read '/no/file'"),
        (("job", "submit", "default", "1", "--key", "k", "--count", "2"), 2, "error: --count:"),
        (("job", "submit", "default", "1", "--unique", "k", "--count", "2"), 2, "error: --count:"),
        (
            ("job", "submit", "default", "1", "--unique-scope", "waiting"),
            2,
            "error: --unique-scope: needs --unique KEY",
        ),
        (
            ("job", "submit", "default", "1", "--unique", "k", "--on-conflict", "merge"),
            2,
            "error: unique.on_conflict: 'merge' is unknown; allowed: existing, reject, replace",
        ),
        (("job", "status", "123"), 2, "error: job_id: '123' is not a UUID"),
        (("job", "status", str(uuid.UUID(int=1))), 4, "error: job_id: there is no job"),
        (("job", "watch", str(uuid.UUID(int=1))), 4, "error: job_id: there is no job"),
        (("job", "list", "--status", "FOO"), 2, "error: --status: unknown state 'FOO'; allowed"),
        (("job", "list", "--page-token", "!"), 2, "error: page_token:"),
        (("job", "list", "--limit", "0"), 2, "error: Invalid value for '--limit'"),
        (("job", "lst"), 2, "error: No such command 'lst'"),
        (("job", "status"), 2, "error: Missing argument 'JOB_ID'"),
        (("--nope",), 2, "error: No such option"),
        (("queue", "create", "bad name"), 2, "error: name: 'bad name' is not a queue name"),
        (("queue", "create", "x", "--retry-profile", "y"), 2, "error: --retry-profile: unknown"),
        (
            ("queue", "create", "x", "--retry-jitter", "2"),
            2,
            "error: --retry-jitter: must be a share",
        ),
        (("queue", "update", "default"), 2, "error: update: no setting to change is given"),
        (
            ("queue", "update", "default", "--retry-max", "0.5"),
            2,
            "error: retry_max: 0.5 s is less",
        ),
        (("queue", "update", "default", "--reset", "name"), 2, "error: --reset: 'name' is not a"),
        (
            ("queue", "update", "default", "--ttl", "1", "--reset", "ttl"),
            2,
            "error: --reset: ttl is also set by --ttl",
        ),
        (("queue", "update", "nowhere", "--ttl", "1"), 4, "error: queue: there is no queue"),
    ],
)
def test_bad_input_is_named_on_stderr_with_its_exit_code(ctl, server, args, status, message):
    answer = ctl(server.grpc, *args)
    assert (answer.status, answer.out) == (status, "")
    assert answer.err.startswith(message), answer.err


def test_an_oversized_payload_is_refused(ctl, server, tmp_path):
    (tmp_path / "big").write_bytes(b"x" * (1024 * 1024 + 1))
    answer = ctl(server.grpc, "job", "submit", "default", f"@{tmp_path / 'big'}")
    assert answer.status == 2
    assert "payload" in answer.err
    assert "1048576" in answer.err


def test_errors_are_json_where_a_program_reads(ctl, server):
    answer = ctl(server.grpc, "job", "submit", "nowhere", "1", "--output", "json")
    assert (answer.status, answer.out) == (4, "")
    assert answer.error["code"] == "NOT_FOUND"
    usage = ctl(server.grpc, "-o", "json", "job", "lst")
    assert (usage.status, usage.error["code"]) == (2, "INVALID_ARGUMENT")


def test_server_and_url_together_are_refused(ctl, server):
    answer = ctl(server.grpc, "--url", "memory://", "status")
    assert answer.status == 2
    assert "either --server or --url" in answer.err


# -- several servers ---------------------------------------------------------------------------


@pytest.mark.req("jq:NFR-008")
def test_another_server_is_asked_when_one_is_down(ctl, server):
    both = f"127.0.0.1:1,{server.grpc.removeprefix('grpc://')}"
    for _ in range(6):  # which one is asked first is drawn
        answer = ctl(both, "queue", "list", "-o", "json")
        assert answer.status == 0, answer.err
    assert ctl("127.0.0.1:1,127.0.0.1:2", "queue", "list").status != 0


# -- parts that fail ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ok", "redis", "said", "part"),
    [
        (True, True, "ok", "ok"),
        (True, False, "degraded", "degraded (no answer)"),
        (False, False, "failing", "failing (no answer)"),
    ],
)
def test_a_part_that_only_slows_the_system_is_shown_as_degraded(ok, redis, said, part):
    detail = "" if redis else "no answer"
    health = Health(ok, "1", [ComponentHealth("redis", redis, detail)])
    assert ctl_status._server("grpc://h:1", health) == said
    assert ctl_status._server("grpcs://h:1", health) == said
    assert ctl_status._part(health, "Redis") == part
    assert health_document(health)["status"] == said
