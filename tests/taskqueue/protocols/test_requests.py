"""The limits of requests, and the messages of those beyond."""

from __future__ import annotations

import pytest

from jobqueue.core.errors import InvalidArgument
from jobqueue.taskqueue.components.model import Spec
from jobqueue.taskqueue.components.requests import (
    check_key,
    check_reason,
    check_spec,
    check_worker_id,
    page_offset,
    page_size,
)
from tests.taskqueue.protocols.rig import Rig
from tests.taskqueue.protocols.virtual_time import virtual_time

UINT32 = 2**32 - 1
BAD_SPECS = {
    "no type": (Spec(""), "spec.job_type", "1 to 200"),
    "a long type": (Spec("x" * 201), "spec.job_type", "1 to 200"),
    "a type of two lines": (Spec("a\nb"), "spec.job_type", "printable"),
    "too many labels": (Spec("t", labels={str(n): "" for n in range(33)}), "spec.labels", "32"),
    "no label name": (Spec("t", labels={"": "v"}), "spec.labels", "1 to 255"),
    "a long label name": (Spec("t", labels={"x" * 256: "v"}), "spec.labels", "1 to 255"),
    "a long label": (Spec("t", labels={"n": "x" * 256}), "spec.labels", "1 to 255"),
    "a label of two lines": (Spec("t", labels={"n": "a\x00"}), "spec.labels", "printable"),
    "a negative time": (Spec("t", -1), "spec.work_duration_ms", str(UINT32)),
    "a time too long": (Spec("t", UINT32 + 1), "spec.work_duration_ms", str(UINT32)),
    "a negative size": (Spec("t", 0, -1), "spec.payload_size_bytes", str(UINT32)),
    "a size too large": (Spec("t", 0, UINT32 + 1), "spec.payload_size_bytes", str(UINT32)),
}


@pytest.mark.req("tq:CODES")
@pytest.mark.parametrize("name", BAD_SPECS)
@virtual_time
async def test_a_bad_spec_is_refused_by_field_and_creates_nothing(rig: Rig, name):
    spec, field, allowed = BAD_SPECS[name]
    with pytest.raises(InvalidArgument, match=allowed) as caught:
        await rig.gateway.submit(spec, "")
    assert caught.value.field == field
    assert rig.gateway_calls.calls == []


@pytest.mark.parametrize(
    "spec",
    [
        Spec("t"),
        Spec("x" * 200, UINT32, UINT32, {str(n): "" for n in range(32)}),
        Spec("mit Ümläuten", 0, 0, {"x" * 255: "y" * 255}),
    ],
)
def test_a_spec_at_its_limits_is_accepted(spec: Spec):
    check_spec(spec)


@pytest.mark.req("tq:CODES")
@pytest.mark.parametrize("key", ["x" * 256, "a\tb", "\n"])
@virtual_time
async def test_a_bad_key_is_refused_and_creates_nothing(rig: Rig, key):
    with pytest.raises(InvalidArgument, match="client_request_id: must have 1 to 255"):
        await rig.gateway.submit(Spec("t"), key)
    assert rig.gateway_calls.calls == []


def test_good_keys_and_no_key():
    for key in ("", "k", "x" * 255, "with space"):
        check_key(key)


@virtual_time
async def test_a_reason_has_a_bound(rig: Rig):
    check_reason("x" * 1_000)
    with pytest.raises(InvalidArgument, match="reason: must have at most 1000"):
        await rig.gateway.cancel("j", "x" * 1_001)
    assert rig.gateway_calls.calls == []


def test_a_worker_has_a_name_that_can_be_read():
    check_worker_id("w")
    for bad in ("", "x" * 256, "\x07"):
        with pytest.raises(InvalidArgument, match="worker_id"):
            check_worker_id(bad)


@pytest.mark.req("tq:LIST")
@pytest.mark.parametrize(("asked", "size"), [(0, 50), (1, 1), (50, 50), (200, 200), (201, 200)])
def test_page_sizes(asked, size):
    assert page_size(asked) == size


@pytest.mark.req("tq:LIST", "tq:LOCK-7")
@pytest.mark.parametrize(
    ("token", "offset"), [("", 0), ("0", 0), ("7", 7), ("1" * 18, int("1" * 18))]
)
def test_page_tokens(token, offset):
    assert page_offset(token) == offset


@pytest.mark.req("tq:LIST", "tq:CODES", "tq:LOCK-7")
@pytest.mark.parametrize("token", ["-1", "+1", " 1", "1.0", "x", "٣", "²", "1_0", "0x1", "9" * 19])
def test_a_token_that_is_no_offset_is_refused(token):
    with pytest.raises(InvalidArgument, match=r"page\.page_token.*non-negative integer"):
        page_offset(token)
