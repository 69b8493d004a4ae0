"""Which server a call goes to, and when it goes to another one."""

from __future__ import annotations

from typing import Any

import pytest

from jobqueue.api.grpc.channel import Dialer
from jobqueue.api.grpc.remote.server import RemoteServer
from jobqueue.api.grpc.remote.servers import Effect, Servers
from jobqueue.core.errors import (
    DeadlineExceeded,
    JobQueueError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from jobqueue.pb.jq.v1 import client_pb2, worker_pb2


class Replies:
    """What each server answers, instead of the network."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self.asked: list[int] = []
        self.errors: dict[int, JobQueueError] = {}
        for number, server in enumerate(servers._all):
            self._replace(number, server)

    def _replace(self, number: int, server: RemoteServer) -> None:
        def answer() -> int:
            self.asked.append(number)
            if number in self.errors:
                raise self.errors[number]
            return number

        async def call(*_: Any, **__: Any) -> int:
            return answer()

        server.call = call  # type: ignore[method-assign,assignment]
        server.heartbeat = lambda *_: answer()  # type: ignore[method-assign,assignment]

    async def call(self, **options: Any) -> Any:
        request = client_pb2.GetJobRequest()
        return await self.servers.call(lambda at: at.client.GetJob, request, **options)


@pytest.fixture
async def three():
    servers = Servers([Dialer(f"127.0.0.1:{port}") for port in (1, 2, 3)], 9.0)
    servers._current = 0
    yield Replies(servers)
    await servers.close()


async def test_all_calls_go_to_one_server_as_long_as_it_answers(three: Replies):
    assert [await three.call() for _ in range(3)] == [0, 0, 0]
    three.errors[0] = NotFound("no such job")
    with pytest.raises(NotFound):
        await three.call()
    assert three.asked == [0] * 4


async def test_what_did_not_happen_is_tried_at_the_next_server_which_is_then_used(three: Replies):
    three.errors[0] = Unavailable("down")
    assert await three.call(effect=Effect.ONCE) == 1
    del three.errors[0]
    assert await three.call() == 1
    assert three.asked == [0, 1, 1]


async def test_each_server_is_asked_once_at_most(three: Replies):
    for number in range(3):
        three.errors[number] = Unavailable(f"{number} is down")
    with pytest.raises(Unavailable, match="2 is down"):
        await three.call()
    assert three.asked == [0, 1, 2]


async def test_what_may_have_happened_is_repeated_only_if_it_may_happen_twice(three: Replies):
    three.errors[0] = OutcomeUnknown("the connection broke")
    with pytest.raises(OutcomeUnknown):
        await three.call(effect=Effect.ONCE)
    assert three.asked == [0]
    three.servers._current = 0
    assert await three.call(effect=Effect.REPEATABLE) == 1


async def test_what_may_have_happened_at_one_server_stays_unknown(three: Replies):
    three.errors[0] = OutcomeUnknown("the connection broke")
    three.errors[1] = three.errors[2] = Unavailable("down")
    with pytest.raises(OutcomeUnknown):
        await three.call(effect=Effect.REPEATABLE)
    assert three.asked == [0, 1, 2]


async def test_a_server_that_does_not_answer_in_time_is_left(three: Replies):
    three.errors[0] = DeadlineExceeded("late")
    with pytest.raises(DeadlineExceeded):
        await three.call()
    assert await three.call() == 1


async def test_two_callers_that_fail_together_do_not_skip_a_server(three: Replies):
    first = three.servers.pick()
    three.servers.leave(first)
    three.servers.leave(first)
    assert await three.call() == 1


async def test_a_heartbeat_goes_to_any_server_and_proves_less_the_second_time(three: Replies):
    beat = worker_pb2.HeartbeatRequest(worker_id="w", incarnation=1)
    own = three.servers._all[1]
    answer: Any = three.servers.heartbeat(beat, own)  # the number of the server
    assert answer == 1
    assert not beat.incomplete
    three.errors[1] = Unavailable("down")
    three.errors[0] = DeadlineExceeded("late")
    answer = three.servers.heartbeat(beat, own)
    assert answer == 2
    assert beat.incomplete  # the list was sent before: a lease may be missing from both
    three.errors[2] = Unavailable("down")
    with pytest.raises(Unavailable):
        three.servers.heartbeat(beat, own)


async def test_the_first_server_is_drawn():
    dialers = [Dialer(f"127.0.0.1:{port}") for port in (1, 2)]
    picked = []
    for _ in range(64):
        servers = Servers(dialers, 1.0)
        picked.append(servers._current)
        await servers.close()
    assert set(picked) == {0, 1}
