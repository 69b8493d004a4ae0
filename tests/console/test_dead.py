"""The page of dead letters: their groups, and changes of all that match."""

from __future__ import annotations

import re

import pytest

from jobqueue.core.job import JobQuery, JobSpec
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import QueueSpec
from jobqueue.engine import operator
from jobqueue.server.process import ServerProcess
from tests.console.person import Person, at
from tests.console.played import Played
from tests.hostile.known_callers import over_http, serving


async def failed(server: ServerProcess, *errors: str, type: str = "send", **fields: object) -> None:
    """Jobs that failed for good, with these errors."""
    spec = JobSpec(payload=b"1", type=type, max_retries=0, **fields)  # type: ignore[arg-type]
    await server.backend.submit([spec] * len(errors))
    async with Played(server, id=f"played-{type}") as played:
        for error in errors:
            await played.fail(type, error)


async def count(server: ServerProcess, *states: State) -> int:
    return len((await server.backend.list_jobs(JobQuery(states=states, limit=1_000))).jobs)


async def test_dead_letters_are_grouped_and_a_group_is_retried(stored: ServerProcess):
    await stored.backend.create_queue(QueueSpec("mail"))
    await failed(stored, *(f"order {n}: timed out" for n in range(3)))
    await failed(stored, "KeyError: 'a'", type="other", queue="mail")
    async with at(stored) as person:
        page = await person.open("/ui/dlq")
        assert "order …: timed out" in page.text
        assert "KeyError: 'a'" in page.text
        page = await person.open(
            str(page.answer.url.join(page.links["3"]))  # the largest group, by its number
        )
        assert page.answer.url.params["type"] == "send"
        assert "KeyError" not in page.text
        page = await person.open(str(page.answer.url.join(page.links["Retry all that match …"])))
        assert "Retry 3 dead letters that match the filter?" in page.text
        page = await person.press("Retry them")
        assert "3 jobs wait for a worker again." in page.text
        assert await count(stored, State.PENDING) == 3
        page = await person.open("/ui/dlq")
        page = await person.open(str(page.answer.url.join(page.links["Delete all that match …"])))
        assert "Delete 1 dead letter that match the filter?" in page.text
        page = await person.press("Delete them")
        assert "1 job deleted." in page.text
        assert await count(stored, State.DEAD_LETTERED) == 0
        assert "No job has failed for good." in (await person.open("/ui/dlq")).text


@pytest.mark.parametrize(("what", "words"), [("retry", "Retry them"), ("delete", "Delete them")])
async def test_many_are_changed_part_by_part(
    person: Person, server: ServerProcess, monkeypatch: pytest.MonkeyPatch, what: str, words: str
):
    monkeypatch.setattr(operator, "_RETRY_CHUNK", 2)
    monkeypatch.setattr(operator, "_DELETE_CHUNK", 2)
    await failed(server, *(["boom"] * 5))
    await person.open(f"/ui/dlq?change={what}&since=1h")
    page = await person.press(words)
    seen = []
    while "so far" in page.text:
        seen += re.findall(r"(\d+) (?:retried|deleted) so far", page.text)
        bars = [a for tag, a in page.tags if tag == "progress"]
        assert bars == [{"value": str(2 * len(seen)), "max": "5"}]
        assert page.form("Go on").fields["since"].startswith("20")  # it does not move
        page = await person.press("Go on")
    assert seen == ["2", "4"]
    assert "5 jobs" in page.text
    assert await count(server, State.DEAD_LETTERED) == 0


async def test_a_wrong_filter_of_dead_letters_is_shown_with_the_reason(person: Person):
    for query, says in {
        "reason=STARTED": "unknown reason 'STARTED'",
        "since=x": "'x' is not a time",
        "queue=nowhere": "there is no queue 'nowhere'",
        "since=1h&until=2h": "must be later than since",
    }.items():
        page = await person.open(f"/ui/dlq?{query}")
        assert page.status in (400, 404)
        assert says in page.text


async def test_programs_group_and_delete_dead_letters_by_http():
    async with serving() as server, over_http(server, "ops") as http:
        await failed(server, "order 1: late", "order 2: late", "other")
        found = (await http.get("/dlq/groups")).json()
        assert (found["looked_at"], found["complete"]) == (3, True)
        assert [(one["error"], one["jobs"]) for one in found["groups"]] == [
            ("order …: late", 2),
            ("other", 1),
        ]
        wanted = {"error": found["groups"][0]["part"], "type": "send"}
        dry = (await http.post("/dlq/delete", params={**wanted, "dry_run": "true"})).json()
        assert (dry["matched"], dry["deleted"]) == (2, 0)
        done = (await http.post("/dlq/delete", params=wanted)).json()
        assert (done["looked_at"], done["matched"], done["deleted"]) == (3, 2, 2)
        assert (await http.post("/dlq/delete", params={"reason": "x"})).status_code == 400
        assert (await http.get("/dlq/groups", params={"queue": "nowhere"})).status_code == 404
        assert await count(server, State.DEAD_LETTERED) == 1
