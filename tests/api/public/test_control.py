"""Cancel, retry, dead letters, lists, queues and workers, as any operator sees them."""

from __future__ import annotations

import pytest

from jobqueue.core.job import Transition, WorkerStatus
from tests import patience
from tests.api.public.conftest import ConnectHand
from tests.api.public.face import CancelSeen, PublicFace, Refused, Spec
from tests.api.public.hand import PATIENCE, Hand


async def submit(face: PublicFace, **spec: object) -> str:
    return (await face.submit(Spec(**spec))).job_id  # type: ignore[arg-type]


# -- cancel ----------------------------------------------------------------------------------


@pytest.mark.req("jq:FR-012")
async def test_cancel_a_pending_job(face: PublicFace, hand: Hand) -> None:
    job_id = await submit(face)
    other = await submit(face)
    assert await face.cancel(job_id) == CancelSeen("DEAD_LETTERED", False, False)
    job = await face.get(job_id)
    assert (job.state, job.reason) == ("DEAD_LETTERED", "CANCELLED")
    assert (await hand.run()).id == other


@pytest.mark.req("jq:FR-012")
async def test_cancel_an_assigned_job(face: PublicFace, hand: Hand) -> None:
    job_id = await submit(face)
    hand.link.grant(1)
    job = await hand.take()
    assert await face.cancel(job_id) == CancelSeen("DEAD_LETTERED", False, False)
    assert await patience.wait_for(hand.cancelled.get(), PATIENCE) == job.lease
    report = [Transition.succeeded(job.seq, job.lease, b"1")]
    assert await hand.link.report(report) == [False]
    ended = await face.get(job_id)
    assert (ended.state, ended.reason, ended.result) == ("DEAD_LETTERED", "CANCELLED", None)


async def test_cancel_a_running_job_asks_its_worker(face: PublicFace, hand: Hand) -> None:
    job_id = await submit(face)
    job = await hand.begin()
    assert await face.cancel(job_id) == CancelSeen("RUNNING", True, False)
    running = await face.get(job_id)
    assert (running.state, running.cancel_requested) == ("RUNNING", True)
    assert await patience.wait_for(hand.cancelled.get(), PATIENCE) == job.lease
    await hand.link.report([Transition.cancel_acknowledged(job.seq, job.lease)])
    ended = await face.get(job_id)
    assert (ended.state, ended.reason) == ("DEAD_LETTERED", "CANCELLED")


async def test_cancel_of_a_finished_job_changes_nothing(face: PublicFace, hand: Hand) -> None:
    job_id = await submit(face)
    await hand.run(b"7")
    before = await face.get(job_id)
    assert await face.cancel(job_id) == CancelSeen("DONE", False, True)
    assert await face.get(job_id) == before


# -- retry, dead letters, delete -------------------------------------------------------------


@pytest.mark.req("jq:FR-013", "jq:FR-035", "inp:DLQ")
async def test_a_dead_letter_is_listed_and_can_be_retried(face: PublicFace, hand: Hand) -> None:
    job_id = await submit(face, max_retries=1)
    await hand.fail(await hand.begin(), retry_after=0.0)
    await hand.fail(await hand.begin(), "still broken")
    [dead] = (await face.list(states=["DEAD_LETTERED"])).jobs
    assert (dead.job_id, dead.error, dead.retry_count) == (job_id, "still broken", 1)
    assert dead.reason == "RETRIES_EXHAUSTED"

    again = await face.retry(job_id)
    assert (again.state, again.retry_count, again.attempt) == ("PENDING", 0, 2)
    assert (await face.list(states=["DEAD_LETTERED"])).jobs == []
    job = await hand.run(b"1")
    assert (job.id, job.attempt) == (job_id, 3)
    assert (await face.get(job_id)).state == "DONE"


@pytest.mark.req("jq:FR-013", "jq:FR-033")
async def test_a_failed_job_waits_and_can_be_retried_at_once(face: PublicFace, hand: Hand) -> None:
    job_id = await submit(face, max_retries=5)
    await hand.fail(await hand.begin())
    failed = await face.get(job_id)
    assert failed.state == "FAILED"
    assert failed.next_retry_at is not None
    assert failed.completed_at is None
    again = await face.retry(job_id)
    assert (again.state, again.retry_count, again.next_retry_at) == ("PENDING", 0, None)
    assert (await hand.run()).id == job_id


async def test_only_what_has_failed_can_be_retried(face: PublicFace, hand: Hand) -> None:
    done = await submit(face)
    await hand.run()
    pending = await submit(face)
    for job_id in (done, pending):
        before = await face.get(job_id)
        with pytest.raises(Refused) as refused:
            await face.retry(job_id)
        assert refused.value.code == "CONFLICT"
        assert before.state in refused.value.message
        assert await face.get(job_id) == before


async def test_delete_a_finished_job(face: PublicFace, hand: Hand) -> None:
    done = await submit(face)
    await hand.run()
    pending = await submit(face)
    with pytest.raises(Refused) as refused:
        await face.delete(pending)
    assert refused.value.code == "CONFLICT"
    await face.delete(done)
    for ask in (face.get, face.history, face.delete, face.cancel, face.retry):
        with pytest.raises(Refused) as refused:
            await ask(done)
        assert refused.value.code == "NOT_FOUND"
    assert [job.job_id for job in (await face.list()).jobs] == [pending]


# -- lists -----------------------------------------------------------------------------------


@pytest.mark.req("jq:FR-032")
async def test_list_filters(face: PublicFace, connect_hand: ConnectHand) -> None:
    await face.create_queue("mail")
    default = [await submit(face, type="a"), await submit(face, type="b")]
    mail = [await submit(face, queue="mail", type="a")]
    hand = await connect_hand(queues=("mail",))
    await hand.run()

    async def ids(**filters: object) -> list[str]:
        return [job.job_id for job in (await face.list(**filters)).jobs]  # type: ignore[arg-type]

    assert await ids() == [*mail, *reversed(default)]
    assert await ids(queue="mail") == mail
    assert await ids(queue="default") == default[::-1]
    assert await ids(states=["PENDING"]) == default[::-1]
    assert await ids(states=["DONE"]) == mail
    assert await ids(states=["DONE", "PENDING"]) == [*mail, *reversed(default)]
    assert await ids(type="a") == [mail[0], default[0]]
    assert await ids(type="a", states=["PENDING"], queue="default") == [default[0]]
    assert await ids(states=["FAILED"]) == []


@pytest.mark.req("jq:FR-032")
async def test_pages_show_every_job_once(face: PublicFace) -> None:
    answers = await face.submit_batch([Spec(payload=str(n).encode()) for n in range(45)])
    assert not [answer for answer in answers if isinstance(answer, Refused)]
    first = await face.list()
    assert len(first.jobs) == 20
    assert first.jobs[0].payload == b"44"
    await submit(face, payload=b"45")  # newer than the page before: not shown twice, nor later
    pages = [first]
    while pages[-1].next_page_token:
        pages.append(await face.list(page_token=pages[-1].next_page_token))
    assert [len(page.jobs) for page in pages] == [20, 20, 5]
    seen = [job.payload for page in pages for job in page.jobs]
    assert seen == [str(n).encode() for n in reversed(range(45))]
    assert len((await face.list(limit=3)).jobs) == 3
    assert (await face.list(limit=1_000)).next_page_token == ""


# -- queues ----------------------------------------------------------------------------------


@pytest.mark.req("jq:FR-027")
async def test_the_default_queue_is_there(face: PublicFace) -> None:
    assert [queue.name for queue in await face.queues()] == ["default"]


@pytest.mark.req("jq:FR-025")
async def test_create_a_queue(face: PublicFace) -> None:
    made = await face.create_queue(
        "mail",
        max_retries=5,
        ttl=60.0,
        timeout=9.0,
        capacity=50,
        retry_profile="producer",
        priority_weights={9: 5, 0: 1},
    )
    assert (made.max_retries, made.ttl, made.timeout, made.capacity) == (5, 60.0, 9.0, 50)
    assert (made.retry_profile, made.priority_weights) == ("producer", {9: 5, 0: 1})
    assert not made.paused
    seen = await face.queue("mail")
    assert (seen.max_retries, seen.ttl, seen.timeout, seen.capacity) == (5, 60.0, 9.0, 50)
    assert (seen.retry_profile, seen.priority_weights) == ("producer", {9: 5, 0: 1})
    assert [queue.name for queue in await face.queues()] == ["default", "mail"]
    with pytest.raises(Refused) as refused:
        await face.create_queue("mail")
    assert refused.value.code == "ALREADY_EXISTS"
    assert (await face.queue("mail")).max_retries == 5


async def test_how_long_jobs_are_kept_is_a_setting_of_the_queue(face: PublicFace) -> None:
    await face.create_queue("mail", retention=60.0)
    seen = await face.queue("mail")
    assert (seen.retention, seen.dead_letter_retention) == (60.0, 0.0)  # shown as it counts
    changed = await face.update_queue("mail", retention=None, dead_letter_retention=90.0)
    for queue in (changed, await face.queue("mail")):
        assert (queue.retention, queue.dead_letter_retention) == (7 * 86_400.0, 90.0)
    assert (await face.update_queue("mail", retention=0.0)).retention == 0.0


async def test_update_a_queue(face: PublicFace, connect_hand: ConnectHand) -> None:
    await face.create_queue("mail", max_retries=5, ttl=60.0, capacity=50, retry_jitter=0.5)
    old = await submit(face, queue="mail")
    await face.pause_queue("mail")
    changed = await face.update_queue(
        "mail", max_retries=1, ttl=None, timeout=9.0, retry_base=100.0, retry_max=200.0
    )
    seen = await face.queue("mail")
    for queue in (changed, seen):
        assert (queue.max_retries, queue.ttl, queue.timeout, queue.capacity) == (1, None, 9.0, 50)
        assert (queue.retry_base, queue.retry_max, queue.retry_jitter) == (100.0, 200.0, 0.5)
        assert (queue.retry_profile, queue.paused) == ("default", True)
    await face.resume_queue("mail")
    assert (await face.get(old)).max_retries == 5
    new = await face.get(await submit(face, queue="mail"))
    assert (new.max_retries, new.ttl, new.timeout) == (1, None, 9.0)
    hand = await connect_hand(queues=("mail",))
    await hand.fail(await hand.begin())
    failed = await face.get(old)
    assert failed.next_retry_at is not None
    # By the profile alone it is 5 s; the attempt itself takes no time.
    assert failed.next_retry_at - failed.created_at >= 99.0
    weighted = await face.update_queue("mail", priority_weights={9: 5, 0: 1})
    assert weighted.priority_weights == {9: 5, 0: 1}
    assert (await face.update_queue("mail", priority_weights=None)).priority_weights is None


@pytest.mark.req("jq:FR-026")
async def test_delete_a_queue(face: PublicFace, hand: Hand) -> None:
    await face.create_queue("mail")
    pending = await submit(face, queue="mail")
    with pytest.raises(Refused) as refused:
        await face.delete_queue("mail")
    assert refused.value.code == "CONFLICT"
    assert (await face.get(pending)).state == "PENDING"
    assert await face.delete_queue("mail", force=True) == 1
    dropped = await face.get(pending)  # its record stays
    assert (dropped.state, dropped.reason) == ("DEAD_LETTERED", "QUEUE_DELETED")
    for ask in (face.queue, face.delete_queue, face.pause_queue, face.resume_queue):
        with pytest.raises(Refused) as refused:
            await ask("mail")
        assert refused.value.code == "NOT_FOUND"
    with pytest.raises(Refused) as refused:
        await face.retry(pending)
    assert refused.value.code == "CONFLICT"
    with pytest.raises(Refused) as refused:
        await submit(face, queue="mail")
    assert refused.value.code == "NOT_FOUND"


@pytest.mark.req("jq:FR-026")
async def test_a_queue_with_only_finished_jobs_is_empty(
    face: PublicFace, connect_hand: ConnectHand
) -> None:
    await face.create_queue("mail")
    job_id = await submit(face, queue="mail")
    hand = await connect_hand(queues=("mail",))
    await hand.run()
    assert await face.delete_queue("mail") == 0
    assert (await face.get(job_id)).state == "DONE"


async def test_pause_and_resume(face: PublicFace, hand: Hand) -> None:
    await face.pause_queue("default")
    assert (await face.queue("default")).paused
    hand.link.grant(1)
    job_id = await submit(face)
    await face.create_queue("other")  # a round trip later, nothing was handed out
    assert hand.jobs.empty()
    assert (await face.get(job_id)).state == "PENDING"
    await face.resume_queue("default")
    assert not (await face.queue("default")).paused
    assert (await hand.take()).id == job_id


@pytest.mark.req("jq:FR-028", "jq:AC-5")
async def test_queue_figures(face: PublicFace, hand: Hand) -> None:
    empty = await face.queue("default")
    assert (empty.processed, empty.average_seconds, empty.error_rate) == (0, 0.0, 0.0)
    for _ in range(3):
        await submit(face)
    await hand.run()
    await hand.fail(await hand.begin())
    running = await hand.begin()
    await submit(face)
    stats = await face.queue("default")
    depth = {state: count for state, count in stats.depth.items() if count}
    assert depth == {"PENDING": 1, "RUNNING": 1, "DONE": 1, "FAILED": 1}
    assert (stats.processed, stats.error_rate) == (2, 0.5)
    assert stats.average_seconds == pytest.approx(0.25)
    await hand.succeed(running)
    assert (await face.queue("default")).processed == 3


# -- workers ---------------------------------------------------------------------------------


@pytest.mark.req("jq:FR-018", "jq:FR-022")
async def test_workers_get_jobs_of_their_queues(
    face: PublicFace, connect_hand: ConnectHand
) -> None:
    await face.create_queue("mail")
    mail = await connect_hand(worker_id="m", queues=("mail",), concurrency=3, slots=3)
    both = await connect_hand(worker_id="b", queues=("default", "mail"))
    first, second = await submit(face), await submit(face, queue="mail")
    assert (await mail.take()).id == second
    assert mail.jobs.empty()
    assert (await both.run()).id == first
    seen = {worker.worker_id: worker for worker in await face.workers()}
    assert (seen["m"].status, seen["m"].concurrency, seen["m"].running) == ("ONLINE", 3, 1)
    assert (list(seen["b"].queues), seen["b"].running) == (["default", "mail"], 0)


@pytest.mark.req("jq:FR-023")
async def test_a_drained_worker_gets_no_more(face: PublicFace, hand: Hand) -> None:
    running_id = await submit(face)
    running = await hand.begin()
    await face.drain_worker("hand")
    assert await patience.wait_for(hand.statuses.get(), PATIENCE) is WorkerStatus.DRAINING
    [seen] = await face.workers()
    assert (seen.status, seen.running) == ("DRAINING", 1)
    hand.link.grant(5)
    waiting = await submit(face)
    await hand.succeed(running, b"1")
    assert (await face.get(running_id)).state == "DONE"
    assert (await face.get(waiting)).state == "PENDING"
    assert hand.jobs.empty()


@pytest.mark.req("jq:FR-023")
async def test_a_drained_worker_is_taken_back(face: PublicFace, hand: Hand) -> None:
    await face.drain_worker("hand")
    assert await patience.wait_for(hand.statuses.get(), PATIENCE) is WorkerStatus.DRAINING
    await hand.link.drain()
    job_id = await submit(face)
    for _ in range(2):  # the second time there is nothing to take back
        await face.undrain_worker("hand")
    assert await patience.wait_for(hand.statuses.get(), PATIENCE) is WorkerStatus.ONLINE
    assert [worker.status for worker in await face.workers()] == ["ONLINE"]
    await hand.succeed(await hand.begin(), b"1")
    assert (await face.get(job_id)).state == "DONE"


@pytest.mark.req("jq:FR-024")
async def test_a_worker_is_told_to_shut_down(face: PublicFace, hand: Hand) -> None:
    await face.shutdown_worker("hand")
    assert await patience.wait_for(hand.statuses.get(), PATIENCE) is WorkerStatus.STOPPING
    assert [worker.status for worker in await face.workers()] == ["STOPPING"]
    with pytest.raises(Refused, match="'hand' is STOPPING") as refused:
        await face.undrain_worker("hand")
    assert refused.value.code == "CONFLICT"
    await face.drain_worker("hand")  # it does that already
    assert [worker.status for worker in await face.workers()] == ["STOPPING"]


async def test_unknown_workers(face: PublicFace) -> None:
    for ask in (face.drain_worker, face.undrain_worker, face.shutdown_worker):
        with pytest.raises(Refused, match="nobody") as refused:
            await ask("nobody")
        assert refused.value.code == "NOT_FOUND"
    assert list(await face.workers()) == []


async def test_health(face: PublicFace) -> None:
    assert await face.healthy()
