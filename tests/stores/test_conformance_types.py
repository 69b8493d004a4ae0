"""Claims that mean some types of jobs only."""

from __future__ import annotations

import random

from jobqueue.core.job import Transition
from jobqueue.core.queue import WaitingType
from jobqueue.core.store import ALL_QUEUES, Claim
from tests.stores.conftest import OpenDriver
from tests.stores.driver import Driver, new, spec, worker


async def payloads(driver: Driver, slots: int, **where: object) -> list[int]:
    return [int(one.payload) for one in await driver.claim(slots, **where)]  # type: ignore[arg-type]


async def test_a_claim_gets_only_jobs_of_its_types(driver: Driver):
    await driver.results(*(spec(b"%d" % n, type="ab"[n % 2]) for n in range(6)))
    assert await payloads(driver, 10, types={"b", "c"}) == [1, 3, 5]
    assert await payloads(driver, 10, types={"c"}) == []
    assert await payloads(driver, 10, types={"a"}) == [0, 2, 4]


async def test_no_type_is_a_type(driver: Driver):
    await driver.results(spec(b"0", type="a"), spec(b"1"), spec(b"2", type="a"))
    assert await payloads(driver, 10, types={""}) == [1]
    assert await payloads(driver, 10, types={"a", ""}) == [0, 2]


async def test_a_claim_without_types_gets_all(driver: Driver):
    await driver.results(*(spec(b"%d" % n, type="abc"[n % 3]) for n in range(6)))
    assert await payloads(driver, 10) == [0, 1, 2, 3, 4, 5]


async def test_order_holds_across_types(driver: Driver):
    kinds = "abcabacbbcabcaacb"
    order = [3, 0, 9, 3, 9, 0, 5, 5, 5, 0, 9, 9, 3, 0, 1, 1, 3]
    jobs = list(zip(kinds, order, strict=True))
    await driver.results(*(spec(b"%d" % n, type=k, priority=p) for n, (k, p) in enumerate(jobs)))
    expected = sorted(
        (n for n in range(len(jobs)) if kinds[n] in "ac"), key=lambda n: (-order[n], n)
    )
    taken = [n for _ in range(4) for n in await payloads(driver, 3, types={"a", "c"})]
    assert taken == expected[: len(taken)]
    assert len(taken) == min(12, len(expected))
    rest = sorted(set(range(len(jobs))) - set(taken), key=lambda n: (-order[n], n))
    assert await payloads(driver, 20) == rest


async def test_what_comes_back_keeps_its_type(driver: Driver):
    await driver.results(spec(b"0", type="a"), spec(b"1", type="b"), spec(b"2", type="a"))
    first = await driver.claim_one(types={"a"})
    await driver.do(Transition.handed_back(first.seq, first.lease))
    assert await payloads(driver, 10, types={"b"}) == [1]
    assert await payloads(driver, 10, types={"a"}) == [0, 2]


async def test_a_delayed_job_is_claimed_by_who_knows_it(driver: Driver):
    await driver.submit(b"0", type="b", delay=5)
    await driver.submit(b"1", type="a", delay=5)
    driver.clock.advance(6)
    await driver.store.upkeep.due(100)
    assert await payloads(driver, 10, types={"a"}) == [1]
    assert await payloads(driver, 10, types={"b"}) == [0]


async def test_a_claim_that_found_nothing_hides_nothing_from_others(driver: Driver):
    await driver.submit(b"0", type="b")
    assert await payloads(driver, 5, types={"a"}) == []
    assert await payloads(driver, 5, types={"a"}) == []
    await driver.submit(b"1", type="a")
    await driver.submit(b"2", type="b")
    assert await payloads(driver, 5, types={"a"}) == [1]
    assert await payloads(driver, 5, types={"a", "b"}) == [0, 2]


async def test_claims_of_one_call_have_types_of_their_own(driver: Driver):
    await driver.results(*(spec(b"%d" % n, type="ab"[n % 2]) for n in range(6)))
    claims = [
        Claim(("q",), ["x"] * 2, types=frozenset("b")),
        Claim((ALL_QUEUES,), ["y"] * 2, types=frozenset("a")),
        Claim(("q",), ["z"] * 9),
    ]
    got = [(one.worker_id, int(one.payload)) for one in await driver.store.jobs.claim(claims)]
    assert sorted(got) == [("x", 1), ("x", 3), ("y", 0), ("y", 2), ("z", 4), ("z", 5)]


async def test_a_queue_that_is_named_twice_is_one(driver: Driver):
    await driver.results(*(spec(b"%d" % n, type="ab"[n % 2]) for n in range(6)))
    assert await payloads(driver, 4, queues=("q", "q")) == [0, 1, 2, 3]
    assert await payloads(driver, 4, queues=("q", "q"), types={"a", "b"}) == [4, 5]


async def test_a_submit_hands_jobs_only_to_who_knows_them(driver: Driver):
    await driver.store.workers.register(worker("x"))
    await driver.store.workers.register(worker("y"))
    claims = [
        Claim(("q",), ["x"] * 2, types=frozenset("b")),
        Claim(("q",), ["y"] * 2, types=frozenset("a")),
    ]
    jobs = new(*(spec(b"%d" % n, type="abc"[n % 3]) for n in range(6)))
    submission = await driver.store.jobs.submit(jobs, claims)
    driver.accepted |= {result.unwrap() for result in submission.results}
    got = list(submission.assigned) + await driver.store.jobs.claim(
        [
            Claim(
                ("q",),
                ["x"] * (2 - sum(a.worker_id == "x" for a in submission.assigned)),
                types=frozenset("b"),
            ),
            Claim(
                ("q",),
                ["y"] * (2 - sum(a.worker_id == "y" for a in submission.assigned)),
                types=frozenset("a"),
            ),
        ]
    )
    assert sorted((one.worker_id, int(one.payload)) for one in got) == [
        ("x", 1), ("x", 4), ("y", 0), ("y", 3),
    ]  # fmt: skip
    assert await payloads(driver, 10) == [2, 5]


async def test_an_apply_claims_by_type(driver: Driver):
    await driver.results(spec(b"0", type="a"), spec(b"1", type="b"), spec(b"2", type="a"))
    first = await driver.claim_one(types={"a"})
    done = Transition.succeeded(first.seq, first.lease, b"r", 0.1)
    application = await driver.store.jobs.apply(
        [done], [Claim(("q",), ["w"] * 5, types=frozenset("a"))]
    )
    got = list(application.assigned) or await driver.claim(5, types={"a"})
    assert [int(one.payload) for one in got] == [2]


async def test_order_holds_however_types_are_mixed(driver: Driver):
    """A few types are frequent, the others rare; claims of many sizes mean some or all."""
    source = random.Random(12)
    frequency = (60, 20, 1, 1, 5, 1, 9, 1, 1, 1)
    waiting: list[tuple[int, int, str]] = []
    for start in range(0, 400, 100):
        types = source.choices("abcdefghij", frequency, k=100)
        priorities = source.choices((0, 5), (5, 1), k=100)
        named = list(zip(range(start, start + 100), types, priorities, strict=True))
        await driver.results(*(spec(b"%d" % n, type=t, priority=p) for n, t, p in named))
        waiting += [(-priority, n, type) for n, type, priority in named]
        for meant in (None, {"a", "b"}, {"a", "c", "d", "e", "h"}, None, set("bcdefghij")):
            slots = source.choice((1, 7, 30))
            waiting.sort()
            expected = [n for _, n, type in waiting if meant is None or type in meant][:slots]
            assert await payloads(driver, slots, types=meant) == expected
            waiting = [one for one in waiting if one[1] not in expected]


async def test_weights_hold_among_the_types_that_are_meant(open_driver: OpenDriver):
    driver = await open_driver(priority_weights={9: 1, 0: 1})
    await driver.results(
        *(spec(b"%d" % n, type="ab"[n % 2], priority=9 if n < 20 else 0) for n in range(40))
    )
    got = await payloads(driver, 40, types={"a"})
    assert sorted(got) == list(range(0, 40, 2))
    for half in (range(20), range(20, 40)):
        assert [n for n in got if n in half] == sorted(n for n in got if n in half)


async def test_many_jobs_of_another_type_in_front(driver: Driver):
    for _ in range(2):
        await driver.results(*(spec(b"-1", type="b", priority=9) for _ in range(600)))
    await driver.results(*(spec(b"%d" % n, type="a") for n in range(5)))
    assert await payloads(driver, 2, types={"a"}) == [0, 1]
    assert await payloads(driver, 9, types={"a"}) == [2, 3, 4]
    assert await payloads(driver, 9, types={"a"}) == []


async def test_a_thousand_types_are_merged_in_order(driver: Driver):
    kinds = [f"t{n * 7 % 1_000}" for n in range(2_000)]
    await driver.results(
        *(spec(b"%d" % n, type=kind, priority=n % 3) for n, kind in enumerate(kinds))
    )
    order = sorted(range(2_000), key=lambda n: (-(n % 3), n))
    assert await payloads(driver, 700) == order[:700]
    odd = {f"t{n}" for n in range(1, 1_000, 2)}
    left = [n for n in order[700:] if kinds[n] in odd]
    assert await payloads(driver, 300, types=odd) == left[:300]


async def test_waiting_types_are_counted_up_to_a_limit(driver: Driver):
    await driver.queue("r")
    await driver.results(*(spec(type="b", priority=n) for n in range(5)), spec(), spec(queue="r"))
    await driver.submit(type="later", delay=60)
    (held,) = await driver.claim(1, types={"b"})
    assert await driver.store.queues.waiting_types(3) == [
        WaitingType("q", "", 1),
        WaitingType("q", "b", 3),
        WaitingType("r", "", 1),
    ]
    assert await driver.store.queues.waiting_types(100, "q") == [
        WaitingType("q", "", 1),
        WaitingType("q", "b", 4),
    ]
    assert await driver.store.queues.waiting_types(100, "nowhere") == []
    await driver.do(Transition.handed_back(held.seq, held.lease))
    assert await driver.store.queues.waiting_types(100, "q") == [
        WaitingType("q", "", 1),
        WaitingType("q", "b", 5),
    ]


async def test_a_worker_is_kept_with_its_types(driver: Driver):
    await driver.store.workers.register(worker("some", types=frozenset({"a", "", "b c"})))
    await driver.store.workers.register(worker("all"))
    known = {one.info.id: one.info.types for one in await driver.store.workers.all()}
    assert known == {"some": frozenset({"a", "", "b c"}), "all": None}
