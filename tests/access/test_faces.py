"""Each face, with every kind of credential, on real ports."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import grpc.aio
import pytest

from jobqueue.access import audit
from jobqueue.access.limits import Limiter
from jobqueue.access.policy import Access
from jobqueue.access.tls import Credentials
from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.api.grpc.server import GrpcFace
from jobqueue.api.http.authorizer import OPEN
from jobqueue.core.clock import ManualClock
from jobqueue.core.errors import PermissionDenied, RateLimited, Unauthenticated
from jobqueue.core.job import JobQuery, JobSpec, SubmitStatus, WorkerInfo, WorkerStatus
from jobqueue.engine.engine import Engine
from jobqueue.stores.memory import MemoryStore
from tests import patience
from tests.access.callers import FACES, OK, bearer, calling
from tests.access.conftest import AUDIENCE, KEYS, SECRET
from tests.access.jwt import encode, sign
from tests.api.grpc.inbox import RecordingInbox

pytestmark = pytest.mark.req("inp:PROD")
UNAUTHENTICATED, DENIED = "UNAUTHENTICATED", "PERMISSION_DENIED"

WORKER = WorkerInfo(id="w", incarnation=1, hostname="h", pid=1, queues=("default",), concurrency=1)


def token(clock: ManualClock, secret: bytes = SECRET, **changes: object) -> str:
    claims = {"sub": "ann", "aud": AUDIENCE, "roles": ["client"], "exp": clock.now() + 60}
    return sign({**claims, **changes}, secret)


@pytest.mark.parametrize("face", FACES)
async def test_without_any_way_to_be_known_everybody_may_do_everything(face, serve):
    served = await serve()
    async with calling(face, served) as caller:
        assert await caller.submit([]) == OK
        assert await caller.operate([]) == OK
        assert await caller.operate(bearer("whatever-that-may-be")) == OK


@pytest.mark.parametrize("face", FACES)
async def test_a_key_is_needed_and_must_be_right(face, serve, access):
    served = await serve(access)
    async with calling(face, served) as caller:
        wrong = [
            [],
            bearer("client-key-012345678"),
            bearer(KEYS["client"] + "0"),
            [("Authorization", "Bearer")],
            [("Authorization", KEYS["client"])],
            [("Authorization", f"Basic {KEYS['client']}")],
            [("X-API-Key", "wrong")],
            [*bearer(KEYS["client"]), ("X-API-Key", KEYS["client"])],
            [*bearer(KEYS["client"]), *bearer(KEYS["client"])],
            bearer("x" * 9000) if face == "http" else bearer("x" * 7000),
        ]
        for headers in wrong:
            assert await caller.submit(headers) == UNAUTHENTICATED, headers
        assert (await served.engine.list_jobs(JobQuery())).jobs == []
        assert await caller.submit(bearer(KEYS["client"])) == OK
        assert await caller.submit([("authorization", f"bearer {KEYS['client']}")]) == OK
        assert await caller.submit([("X-API-Key", KEYS["client"])]) == OK
        assert await caller.probe() == OK


@pytest.mark.parametrize("face", FACES)
async def test_a_role_opens_its_own_doors_only(face, serve, access):
    served = await serve(access)
    async with calling(face, served) as caller:
        seen = {
            role: [
                await caller.submit(bearer(key)),
                await caller.read(bearer(key)),
                await caller.operate(bearer(key)),
            ]
            for role, key in KEYS.items()
        }
    assert seen == {
        "client": [OK, OK, DENIED],
        "worker": [DENIED, DENIED, DENIED],
        "operator": [DENIED, OK, OK],
        "monitor": [DENIED, DENIED, DENIED],
    }


async def test_only_workers_work(serve, access):
    served = await serve(access)
    async with calling("grpc", served) as caller:
        seen = {role: await caller.work(bearer(key)) for role, key in KEYS.items()}
        assert seen == {**dict.fromkeys(KEYS, DENIED), "worker": OK}
        assert await caller.work([]) == UNAUTHENTICATED


@pytest.mark.parametrize("face", FACES)
async def test_a_token_is_as_good_as_it_is(face, serve, access, clock):
    served = await serve(access)
    claims = {"sub": "ann", "aud": AUDIENCE, "roles": ["client"], "exp": clock.now() + 60}
    unsigned = f"{encode({'alg': 'none'})}.{encode(claims)}."
    cases = {
        token(clock): OK,
        token(clock, exp=clock.now() - 60): UNAUTHENTICATED,
        token(clock, nbf=clock.now() + 60): UNAUTHENTICATED,
        token(clock, aud="elsewhere"): UNAUTHENTICATED,
        token(clock, roles=["operator"]): DENIED,
        token(clock, roles=[]): DENIED,
        token(clock, b"another secret of thirty-two bytes!"): UNAUTHENTICATED,
        unsigned: UNAUTHENTICATED,
    }
    async with calling(face, served) as caller:
        for text, expected in cases.items():
            assert await caller.submit(bearer(text)) == expected, text


async def test_http_says_how_to_be_known(serve, access):
    served = await serve(access)
    async with calling("http", served) as caller:
        assert await caller.submit([]) == UNAUTHENTICATED
        assert caller.last.status_code == 401
        assert caller.last.headers["www-authenticate"] == 'Bearer realm="jobqueue"'
        assert await caller.operate(bearer(KEYS["client"])) == DENIED
        assert caller.last.status_code == 403
        assert "needs the role operator or viewer; 'client-1' does not" in caller.last.text
        # What does not exist is nobody's business but that of callers who are known.
        assert await caller.ask("GET", "/nowhere", []) == UNAUTHENTICATED
        assert await caller.ask("GET", "/nowhere", bearer(KEYS["worker"])) == "NOT_FOUND"
        assert await caller.ask("PUT", "/jobs", []) == UNAUTHENTICATED
        assert await caller.ask("GET", "/metrics", bearer(KEYS["client"])) == DENIED
        assert await caller.ask("GET", "/status", bearer(KEYS["monitor"])) == DENIED
        for path in sorted(OPEN - {"/ui"}):  # which leads to /ui/
            assert await caller.ask("GET", path, []) == OK, path


async def test_grpc_refusals_have_their_status_and_are_counted(serve, access):
    served = await serve(access, reflection=True)
    async with calling("grpc", served) as caller:
        assert await caller.submit([]) == UNAUTHENTICATED
        assert caller.last.code().name == UNAUTHENTICATED
        assert await caller.operate(bearer(KEYS["client"])) == DENIED
        assert caller.last.code().name == DENIED
        assert served.calls == [
            ("/jq.v1.ClientService/Submit", UNAUTHENTICATED),
            ("/jq.v1.OperatorService/ListQueues", DENIED),
        ]
        unknown = caller.channel.unary_unary("/jq.v1.ClientService/Nothing")
        assert await caller.ask(unknown, b"", []) == "UNIMPLEMENTED"


async def test_reflection_is_the_operators(serve, access):
    served = await serve(access, reflection=True)
    list_services = b"\x3a\x00"
    async with calling("grpc", served) as caller:
        # One request, sent with the headers. grpcio's asyncio client may show INTERNAL in place of
        # the server's status if it still writes requests when that arrives (grpc issue 36066).
        reflect = caller.channel.unary_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        )

        async def ask(request, metadata, timeout):
            call = reflect(request, metadata=metadata, timeout=timeout)
            answers = [answer async for answer in call]
            assert b"jq.v1.ClientService" in answers[0]

        assert await caller.ask(ask, list_services, []) == UNAUTHENTICATED
        assert await caller.ask(ask, list_services, bearer(KEYS["client"])) == DENIED
        assert await caller.ask(ask, list_services, bearer(KEYS["operator"])) == OK


# -- the remote client -------------------------------------------------------------------------


async def test_the_remote_client_shows_its_key_on_every_kind_of_call(serve, access):
    served = await serve(access)
    target = f"127.0.0.1:{served.grpc}"
    client = GrpcBackend(
        target, timeout=patience.longest(5), credentials=Credentials(KEYS["client"])
    )
    operator = GrpcBackend(
        target, timeout=patience.longest(5), credentials=Credentials(KEYS["operator"])
    )
    nobody = GrpcBackend(target, timeout=patience.longest(5))
    try:
        (result,) = await client.submit([JobSpec(payload=b"1")])
        job_id = result.unwrap()
        assert (await client.get(job_id)).payload == b"1"
        await client.cancel(job_id)
        assert [event.version async for event in client.watch(job_id)] == [1, 2]
        assert [q.queue.name for q in await operator.list_queues()] == ["default"]
        with pytest.raises(PermissionDenied):
            await operator.submit([JobSpec(payload=b"1")])
        with pytest.raises(PermissionDenied):
            await client.list_queues()
        for work in (
            nobody.submit([JobSpec(payload=b"1")]),
            nobody.submit([JobSpec(payload=b"1" * 700_000)]),
            nobody.get(job_id),
            nobody.health(),
            anext(nobody.watch(job_id)),
        ):
            with pytest.raises(Unauthenticated):
                await work
    finally:
        for backend in (client, operator, nobody):
            await backend.stop()


async def test_a_refused_submit_always_says_why(serve, access, monkeypatch):
    """The refusal and the first message must not cross on the way."""
    monkeypatch.setattr(audit, "HOLD", 0.01)  # what comes at once and what comes later
    served = await serve(access)
    for _ in range(50):
        nobody = GrpcBackend(f"127.0.0.1:{served.grpc}", timeout=patience.longest(5))
        waiting = [nobody.submit([JobSpec(payload=b"1")]) for _ in range(3)]
        told = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in told] == [Unauthenticated] * 3
        await nobody.stop()
    assert (await served.engine.list_jobs(JobQuery())).jobs == []


async def test_a_workers_stream_and_its_heartbeats_show_the_key(serve, access):
    served = await serve(access)
    target = f"127.0.0.1:{served.grpc}"
    backend = GrpcBackend(
        target, timeout=patience.longest(5), credentials=Credentials(KEYS["worker"])
    )
    client = GrpcBackend(
        target, timeout=patience.longest(5), credentials=Credentials(KEYS["client"])
    )
    try:
        link = await backend.connect(WORKER, RecordingInbox())
        assert (await asyncio.to_thread(link.pulse, [])).known
        await link.close()
        assert ("/jq.v1.WorkerService/Deregister", OK) in served.calls
        with pytest.raises(PermissionDenied):
            await client.connect(WORKER, RecordingInbox())
    finally:
        await backend.stop()
        await client.stop()


async def test_a_worker_whose_key_is_not_valid_any_more_stops(access):
    engine = Engine(MemoryStore())
    await engine.start()
    first, second = GrpcFace(engine), GrpcFace(engine, access=access)
    port = await first.start("127.0.0.1", 0)
    backend = GrpcBackend(f"127.0.0.1:{port}", timeout=patience.longest(5))
    inbox = RecordingInbox()
    try:
        await backend.connect(WORKER, inbox)
        await first.stop(0.1)
        await second.start("127.0.0.1", port)
        await inbox.until(lambda seen: WorkerStatus.STOPPING in seen.statuses, within=15)
    finally:
        await backend.stop()
        await first.stop(0.1)
        await second.stop(0.1)
        await engine.stop()


# -- rates -------------------------------------------------------------------------------------


@pytest.mark.parametrize("face", FACES)
async def test_a_caller_over_its_rate_is_told_when_to_come_back(face, serve, access, clock):
    served = await serve(access, Limiter(0.5, 2, clock=clock))
    ann, bob = bearer(token(clock, sub="ann")), bearer(token(clock, sub="bob"))
    async with calling(face, served) as caller:
        assert [await caller.submit(ann) for _ in range(3)] == [OK, OK, "RATE_LIMITED"]
        if face == "http":
            assert caller.last.status_code == 429
            assert caller.last.headers["retry-after"] == "2"
        else:
            assert caller.last.code().name == "RESOURCE_EXHAUSTED"
            assert dict(caller.last.trailing_metadata())["retry-after"] == "2"
        assert await caller.read(ann) == OK
        assert await caller.submit(bob) == OK
        clock.advance(2)
        assert [await caller.submit(ann) for _ in range(2)] == [OK, "RATE_LIMITED"]


@pytest.mark.parametrize("face", FACES)
async def test_callers_without_a_name_share_the_rate_of_their_address(face, serve, clock):
    served = await serve(Access(), Limiter(1, 1, clock=clock))
    async with calling(face, served) as one, calling(face, served) as other:
        assert await one.submit([]) == OK
        assert await other.submit([]) == "RATE_LIMITED"


async def test_both_faces_share_a_callers_rate(serve, access, clock):
    served = await serve(access, Limiter(1, 1, clock=clock))
    async with calling("http", served) as http, calling("grpc", served) as grpc:
        assert await http.submit(bearer(KEYS["client"])) == OK
        assert await grpc.submit(bearer(KEYS["client"])) == "RATE_LIMITED"


async def test_a_batch_over_http_counts_its_jobs(serve, clock):
    served = await serve(Access(), Limiter(1, 3, clock=clock))
    async with calling("http", served) as caller:
        batch = {"jobs": [{"payload": n} for n in range(5)]}
        assert await caller.ask("POST", "/jobs/batch", [], batch) == OK
        assert caller.last.status_code == 207
        assert caller.last.headers["retry-after"] == "2"
        told = caller.last.json()
        assert (told["accepted"], told["refused"]) == (3, 2)
        assert await caller.ask("POST", "/jobs/batch", [], batch) == "RATE_LIMITED"
        assert caller.last.status_code == 429
        assert len((await caller._client.get("/jobs")).json()["jobs"]) == 3


async def test_a_stream_counts_its_jobs_and_the_client_raises_the_same_error(serve, clock):
    served = await serve(Access(), Limiter(1, 3, clock=clock))
    backend = GrpcBackend(f"127.0.0.1:{served.grpc}", timeout=patience.longest(5))
    try:
        results = await backend.submit([JobSpec(payload=b"1")] * 5)
        assert [r.status for r in results[:3]] == [SubmitStatus.ACCEPTED] * 3
        for refused in results[3:]:
            with pytest.raises(RateLimited) as caught:
                refused.unwrap()
            assert caught.value.retry_after == pytest.approx(2.0)
        clock.advance(1)
        (result,) = await backend.submit([JobSpec(payload=b"1")])
        assert result.status is SubmitStatus.ACCEPTED
    finally:
        await backend.stop()


# -- secrets -----------------------------------------------------------------------------------


@pytest.mark.parametrize("face", FACES)
async def test_no_credential_is_logged(face, serve, access, clock, caplog):
    caplog.set_level(logging.DEBUG)
    served = await serve(access, Limiter(1, 1, clock=clock))
    wrong, good = "wrong-key-0123456789", token(clock)
    async with calling(face, served) as caller:
        for secret in (wrong, good, good, KEYS["operator"]):
            await caller.submit(bearer(secret))
    ours = [record for record in caplog.records if record.name.startswith("jobqueue")]
    said = " ".join(f"{record.getMessage()} {vars(record)}" for record in ours)
    assert said
    for secret in (wrong, good, KEYS["operator"]):
        assert secret not in said


def test_credentials_are_not_in_reprs(access):
    from jobqueue import JobQueue
    from jobqueue.access.policy import Shown

    app = JobQueue("grpc://127.0.0.1:1", api_key=KEYS["client"])
    shown = Shown((f"Bearer {KEYS['client']}",), (KEYS["worker"],))
    text = f"{app!r} {app.credentials!r} {shown!r} {access!r} {Credentials(KEYS['client'])}"
    assert not any(key in text for key in KEYS.values())


async def test_only_the_health_calls_that_exist_are_open(serve, access):
    served = await serve(access)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.grpc}") as channel:
        check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        listing: Any = channel.unary_unary("/grpc.health.v1.Health/List")
        assert await check(b"", timeout=patience.longest(10)) is not None
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await listing(b"", timeout=patience.longest(10))
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
