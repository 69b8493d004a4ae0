"""The page of schedules: what it shows, and what an operator does there."""

from __future__ import annotations

import pytest

from jobqueue.core.errors import NotFound
from jobqueue.core.job import JobSpec
from jobqueue.core.schedule import Overlap, ScheduleSpec
from jobqueue.server.process import ServerProcess
from tests.console.person import Person, at
from tests.console.test_texts import HOSTILE, shows


def nightly(name: str = "nightly", **more: object) -> ScheduleSpec:
    job = JobSpec(payload=b"{}", type="clean_up")
    return ScheduleSpec(name=name, job=job, **({"cron": "0 3 * * *"} | more))  # type: ignore[arg-type]


async def test_a_schedule_is_paused_resumed_run_and_removed(server: ServerProcess):
    backend = server.backend
    await backend.create_schedule(nightly(timezone="Europe/Zurich", overlap=Overlap.SKIP))
    await backend.create_schedule(ScheduleSpec(name="poll", every=3_600, job=JobSpec(payload=b"1")))
    async with at(server) as person:
        page = await person.open("/ui/schedules")
        for word in ("nightly", "0 3 * * *", "Europe/Zurich", "overlap: skip", "clean_up",
                     "every 1 h", "added by an operator"):  # fmt: skip
            assert word in page.text, word
        page = await person.press("Pause", "schedules/pause", name="nightly")
        assert "its times are skipped" in page.text
        assert "paused" in page.text
        assert (await backend.get_schedule("nightly")).state.paused
        page = await person.press("Run now", "schedules/run", name="nightly")
        state = (await backend.get_schedule("nightly")).state
        assert page.answer.url.path == f"/ui/jobs/{state.last_job_id}"
        assert "The schedule's job was submitted." in page.text
        page = await person.open("/ui/schedules")
        assert f"job {state.last_job_id[:8]}" in page.links
        page = await person.press("Resume", "schedules/resume", name="nightly")
        assert not (await backend.get_schedule("nightly")).state.paused
        page = await person.press("Remove it", "schedules/remove", name="nightly")
        assert "The schedule was removed." in page.text
        assert "clean_up" not in page.text
        with pytest.raises(NotFound):
            await backend.get_schedule("nightly")
        gone = await person.press("Remove it", "schedules/remove", name="nightly")
        assert gone.status == 404
        page = await person.open("/ui/schedules?name=none+such")
        assert "No schedule has “none such”" in page.text


async def test_a_viewer_sees_schedules_and_no_buttons(keyed: ServerProcess):
    await keyed.backend.create_schedule(nightly())
    async with at(keyed) as person:
        await person.log_in("guest")
        page = await person.open("/ui/schedules")
        assert "nightly" in page.text
        assert page.buttons == {"Log out"}
        token = page.form("Log out").fields["token"]
        for what in ("pause", "resume", "run", "remove"):
            answer = await person.client.post(
                f"/ui/schedules/{what}",
                data={"name": "nightly", "token": token},
                headers={"Sec-Fetch-Site": "same-origin"},
            )
            assert answer.status_code == 403, what


async def test_the_page_says_how_to_add_the_first_schedule(person: Person):
    assert "There are no schedules." in (await person.open("/ui/schedules")).text


async def test_what_a_schedule_is_named_is_only_text(server: ServerProcess, person: Person):
    for number, text in enumerate(HOSTILE):
        job = JobSpec(payload=b"1", type=text)
        await server.backend.create_schedule(
            ScheduleSpec(name=f"{number}{text}", every=60, job=job)
        )
    page = await person.open("/ui/schedules?name=")
    for number, text in enumerate(HOSTILE):
        shows(page, f"{number}{text}")
    await person.press("Pause", "schedules/pause", name=f"0{HOSTILE[0]}")
    assert (await server.backend.get_schedule(f"0{HOSTILE[0]}")).state.paused
