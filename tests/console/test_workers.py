"""The page of workers."""

from __future__ import annotations

from jobqueue.core.job import JobSpec, WorkerStatus
from jobqueue.server.process import ServerProcess
from tests.console.person import Person, at
from tests.console.played import Played


async def test_workers_are_shown_with_their_jobs_and_are_drained(stored: ServerProcess):
    [made] = await stored.backend.submit([JobSpec(payload=b"1", type="send")])
    id = "a/b ?%41&c=d"  # whatever can be printed
    async with Played(stored, id=id, types=frozenset({"send", "x"}), slots=7) as played:
        await played.take("send")
        async with at(stored) as person:
            page = await person.open("/ui/workers")
            assert id in page.text
            assert "1 of 7" in page.text
            assert page.links["send"].endswith(made.job_id)
            page = await person.press("Drain")
            assert "The worker gets no more jobs." in page.text
            assert "DRAINING" in page.text
            assert played.told == [WorkerStatus.DRAINING]
            page = await person.press("Undrain")
            assert "The worker gets jobs again." in page.text
            page = await person.press("Shut it down")
            assert "The worker finishes its jobs, and exits." in page.text
            assert played.told[-1] is WorkerStatus.STOPPING
            assert {"Drain", "Undrain", "Shut it down"}.isdisjoint(page.buttons)


async def test_a_page_without_workers_says_how_to_start_one(person: Person):
    page = await person.open("/ui/workers")
    assert "No worker is registered." in page.text
    page = await person.open("/ui/workers?name=x")
    assert "No worker has “x”" in page.text


async def test_a_worker_that_does_not_exist_cannot_be_drained(person: Person):
    await person.open("/ui/queues")
    token = person.page.form("Create the queue").fields["token"]
    answer = await person.client.post(
        "/ui/workers/drain",
        data={"token": token, "worker_id": "nobody"},
        headers={"Sec-Fetch-Site": "same-origin"},
    )
    assert answer.status_code == 404
