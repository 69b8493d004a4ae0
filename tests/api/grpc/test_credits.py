"""However grants, reports, breaks and drains interleave, the server never has too many slots."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from jobqueue.api.grpc.remote.credits import Credits


def test_what_is_granted_is_sent_once():
    credits = Credits()
    credits.grant(3)
    assert credits.waiting
    assert credits.send() == 3
    assert not credits.waiting
    assert credits.send() == 0


def test_free_slots_are_offered_again_after_a_break():
    credits = Credits()
    credits.grant(5)
    credits.send()
    credits.assigned(2)
    credits.reconnect()
    assert credits.send() == 3


def test_a_lost_answer_does_not_free_a_slot_twice():
    credits = Credits()
    credits.grant(1)
    credits.send()
    credits.assigned(1)
    assert credits.send_freed(1) == 1
    credits.assigned(1)  # the server took the report and used the slot; then the stream broke
    credits.not_freed(1)
    credits.reconnect()
    assert credits.send() == 0
    assert credits.send_freed(1) == 0  # the worker repeats its report


def test_nothing_is_offered_during_a_drain():
    credits = Credits()
    credits.grant(4)
    credits.drain()
    assert credits.send() == 0
    credits.grant(2)
    assert not credits.waiting
    credits.drained()
    assert credits.send() == 2


@given(st.integers(1, 6), st.integers(0, 2**32))
def test_a_random_life(concurrency, seed):
    """A worker, and a server that assigns at will, loses answers, breaks off and drains."""
    draw = random.Random(seed)
    credits = Credits()
    server = 0  # slots that the server may assign
    busy = 0  # slots of the worker with a job in them
    ended = 0  # slots of the worker whose job ended, the report not being acknowledged
    credits.grant(concurrency)
    for _ in range(80):
        step = draw.choice(["send", "assign", "end", "report", "lose", "break", "drain"])
        if step == "send":
            server += credits.send()
        elif step == "assign" and server:
            server -= 1
            credits.assigned(1)
            busy += 1
        elif step == "end" and busy:
            busy, ended = busy - 1, ended + 1
        elif step == "report" and ended:
            server += credits.send_freed(1)
            ended -= 1
        elif step == "lose" and ended:  # written, but the stream breaks before the answer
            server += credits.send_freed(1)
            if server and draw.random() < 0.5:
                credits.assigned(1)
                busy += 1
                if credits.free < 0:
                    # It took the slot of the ended job, whose report will be repeated.
                    assert busy <= concurrency
            credits.not_freed(1)
            credits.reconnect()
            server = 0
        elif step == "break":
            credits.reconnect()
            server = 0
        elif step == "drain":
            credits.drain()
            credits.drained()
            server = 0
        assert server >= 0
        assert busy + server <= concurrency
