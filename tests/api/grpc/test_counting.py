"""Items are counted on the wire as protobuf would build them."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from jobqueue.access.rules import GRPC, RULES
from jobqueue.api.grpc.counting import RefusedRequest, counted
from jobqueue.pb.jq.v1 import client_pb2, types_pb2, worker_pb2

BATCH = client_pb2.SubmitBatchRequest
CONNECT = worker_pb2.ConnectRequest


def read(kind, items, data):
    return counted(kind.FromString, kind.DESCRIPTOR, items)(data)


def number(value: int, more: int) -> bytes:
    """A number with so many bytes more than it needs."""
    out = []
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    for _ in range(min(more, 4)):
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


fields = st.lists(
    st.tuples(
        st.sampled_from([(1, b""), (1, b"\x0a\x01p"), (1, b"\x5a\x00"), (9, b"\x0a\x00" * 3)]),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    max_size=12,
)


@given(fields, st.integers(1, 6), st.integers(1, 4))
def test_a_message_is_refused_if_and_only_if_protobuf_would_build_too_many(parts, most, labels):
    data = b"".join(
        number(field << 3 | 2, more) + number(len(inside), longer) + inside
        for (field, inside), more, longer in parts
    )
    built = BATCH.FromString(data)
    entries = data.count(b"\x5a\x00")  # on the wire: those with one key become one
    got = read(BATCH, {"specs": most, "specs.labels": labels}, data)
    assert isinstance(got, RefusedRequest) == (len(built.specs) > most or entries > labels)
    if not isinstance(got, RefusedRequest):
        assert got == built


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_told(data):
    try:
        built = BATCH.FromString(data)
    except DecodeError:
        built = None
    got = read(BATCH, {"specs": 1, "specs.labels": 1}, data)
    if built is None:
        assert isinstance(got, RefusedRequest)
    elif not isinstance(got, RefusedRequest):
        assert got == built


def test_what_only_looks_like_items_is_taken():
    spec = types_pb2.JobSpec(payload=b"\x0a\x00\x8a\x5a" * 100)
    data = BATCH(specs=[spec]).SerializeToString()
    assert read(BATCH, {"specs": 1, "specs.labels": 1}, data).specs == [spec]


def test_items_of_several_messages_are_counted_together():
    batch = worker_pb2.ReportBatch(reports=[worker_pb2.Report()] * 3)
    data = CONNECT(reports=[batch] * 3).SerializeToString()
    assert read(CONNECT, {"reports": 3, "reports.reports": 9}, data).reports
    got = read(CONNECT, {"reports": 3, "reports.reports": 8}, data)
    assert got.error.message == "reports.reports: at most 8 in one message"


@pytest.mark.parametrize("path", ["beat.leases", "beat.begun"])
def test_numbers_are_counted_as_they_are(path):
    beat = worker_pb2.Beat(leases=[1, 2, 3], begun=[1, 2, 3])
    data = CONNECT(beat=beat).SerializeToString()
    assert read(CONNECT, {path: 3}, data).beat == beat
    assert read(CONNECT, {path: 2}, data).error.field == path


def test_a_group_beside_what_could_be_items_is_refused():
    data = b"\x7b\x7c" + b"\x0a\x00" * 2
    assert "unknown kind" in read(BATCH, {"specs": 1}, data).error.message


def test_the_largest_batches_that_are_allowed_are_taken():
    rule = RULES[GRPC["/jq.v1.ClientService/SubmitBatch"]]
    spec = types_pb2.JobSpec(payload=b"Z" * 40, queue="default", labels={"a": "b"})
    data = BATCH(specs=[spec] * rule.items["specs"]).SerializeToString()
    assert len(read(BATCH, rule.items, data).specs) == rule.items["specs"]


def test_a_parser_with_an_answer_of_its_own_keeps_it():
    def parse(data: bytes) -> object:
        return "malformed"

    reader = counted(parse, client_pb2.ListJobsRequest.DESCRIPTOR, {"states": 1})
    assert reader(b"\xff") == "malformed"
