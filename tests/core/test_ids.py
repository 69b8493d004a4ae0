"""Job ids and leases."""

from __future__ import annotations

import os
import uuid

import pytest

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.ids import (
    id_from_bytes,
    id_to_bytes,
    new_job_ids,
    new_lease,
    parse_job_id,
)


@pytest.mark.req("jq:FR-005")
def test_job_ids_are_uuid4_and_unique():
    ids = [*new_job_ids(5_000), *new_job_ids(5_000)]
    assert len(set(ids)) == 10_000
    for text in ids:
        parsed = uuid.UUID(text)
        assert str(parsed) == text
        assert (parsed.version, parsed.variant) == (4, uuid.RFC_4122)


def test_every_free_bit_of_an_id_is_drawn():
    ones = 0
    zeros = 0
    for text in new_job_ids(2_000):
        value = uuid.UUID(text).int
        ones |= value
        zeros |= ~value
    varying = bin(ones & zeros & (2**128 - 1)).count("1")
    assert varying == 122, "a UUIDv4 has 122 random bits"


def test_an_empty_batch_draws_nothing():
    assert new_job_ids(0) == []


def test_ids_survive_the_way_through_bytes():
    for text in new_job_ids(100):
        assert len(id_to_bytes(text)) == 16
        assert id_from_bytes(id_to_bytes(text)) == text


def test_an_id_is_taken_as_it_was_given_out():
    for text in new_job_ids(10):
        assert parse_job_id(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "42",
        "not-a-uuid",
        "00000000000000000000000000000000",
        "00000000-0000-0000-0000-00000000000g",
        "00000000-0000-0000-0000-0000000000000",
        "{00000000-0000-0000-0000-000000000000}",
        "ABCDEFAB-0000-4000-8000-000000000000",
        " 00000000-0000-0000-0000-000000000000",
        "00000000-0000-0000-0000-000000000000\n",
        "٠0000000-0000-0000-0000-000000000000",
    ],
)
def test_what_is_no_uuid_is_refused_by_name(text: str):
    with pytest.raises(InvalidArgument) as refused:
        parse_job_id(text, "id")
    assert refused.value.field == "id"
    assert "UUID" in refused.value.message


def test_a_refusal_does_not_repeat_a_huge_input():
    with pytest.raises(InvalidArgument) as refused:
        parse_job_id("x" * 1_000_000)
    assert len(refused.value.message) < 300


def test_leases_are_positive_63_bit_and_do_not_repeat():
    leases = [new_lease() for _ in range(10_000)]
    assert len(set(leases)) == 10_000
    assert all(0 < lease < 2**63 for lease in leases)


def test_a_forked_child_does_not_repeat_its_parents_leases():
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b"".join(new_lease().to_bytes(8, "big") for _ in range(10)))
        os._exit(0)
    os.close(write)
    drawn = os.read(read, 80)
    os.close(read)
    assert os.waitpid(child, 0)[1] == 0
    theirs = {int.from_bytes(drawn[i : i + 8], "big") for i in range(0, 80, 8)}
    ours = {new_lease() for _ in range(10)}
    assert len(theirs) == 10
    assert not theirs & ours
