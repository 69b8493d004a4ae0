"""Every key has one owner among the nodes."""

from __future__ import annotations

import hashlib
import uuid

import pytest

from jobqueue.taskqueue.components.ownership import owned_job_id, owner_index

# The first eight bytes as `sha256sum` prints them.
VECTORS = {
    ("", 6): 0xE3B0C44298FC1C14 % 6,
    ("abc", 6): 0xBA7816BF8F01CFEA % 6,
    ("abc", 7): 0xBA7816BF8F01CFEA % 7,
    ("abc", 1): 0,
}


@pytest.mark.req("tq:ROUTE", "tq:LOCK-43")
@pytest.mark.parametrize(("key", "nodes"), VECTORS)
def test_known_digests(key, nodes):
    assert owner_index(key, nodes) == VECTORS[key, nodes]


@pytest.mark.req("tq:ROUTE", "tq:LOCK-43")
def test_the_key_is_hashed_as_utf_8():
    digest = hashlib.sha256("schlüssel".encode()).digest()
    assert owner_index("schlüssel", 1000) == int.from_bytes(digest[:8], "big") % 1000


@pytest.mark.req("tq:INGRESS", "tq:LOCK-35")
@pytest.mark.parametrize("index", range(6))
def test_a_node_issues_ids_that_it_owns(index):
    ids = {owned_job_id(index, 6) for _ in range(20)}
    assert len(ids) == 20
    for job_id in ids:
        assert owner_index(job_id, 6) == index
        assert uuid.UUID(job_id).version == 4


@pytest.mark.parametrize(("index", "nodes"), [(6, 6), (-1, 6), (0, 0)])
def test_a_node_that_does_not_exist_issues_nothing(index, nodes):
    with pytest.raises(ValueError, match=f"node {index} is none"):
        owned_job_id(index, nodes)
