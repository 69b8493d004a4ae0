"""The owner of a key: the published vectors, against which any client can be checked."""

from __future__ import annotations

import hashlib
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from jobqueue.taskqueue import owner_index

VECTORS = json.loads((Path(__file__).parents[3] / "docs/owner-vectors.json").read_text())["vectors"]

pytestmark = pytest.mark.req("tq:ROUTE", "tq:LOCK-43")


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: ascii(vector["key"])[:20])
def test_the_published_vectors(vector: dict[str, Any]) -> None:
    digest = hashlib.sha256(vector["key"].encode("utf-8")).hexdigest()
    assert vector["first_8_bytes"] == digest[:16]
    for nodes, owner in vector["owner"].items():
        assert owner == int(digest[:16], 16) % int(nodes)
        assert owner_index(vector["key"], int(nodes)) == owner


def test_the_vectors_cover_what_clients_get_wrong() -> None:
    keys = {vector["key"] for vector in VECTORS}
    assert {"", " "} <= keys
    assert {"e\u0301t\u00e9", "\u00e9t\u00e9"} <= keys  # one text, two Unicode forms
    assert sum(_is_uuid(key) for key in keys) >= 4
    assert any(key != key.lower() and key.lower() in keys for key in keys)
    assert any(ord(character) > 0xFFFF for key in keys for character in key)
    for vector in VECTORS:
        assert set(vector["owner"]) == {"1", "2", "3", "5", "6", "7"}
    # A number with its first bit set tells an unsigned one from a signed one.
    assert any(int(vector["first_8_bytes"], 16) >= 1 << 63 for vector in VECTORS)


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("key", "nodes", "owner"),
    [
        ("a", 6, 4),  # 0xca978112ca1bbdca
        ("a", 7, 4),
        ("order-1", 6, 2),  # 0x0bafe22156d2698c
        ("order-2", 6, 1),  # 0x3d5e3106cd72ba03
        ("order-3", 5, 1),  # 0x28ec9a8ff249fd5f
        ("order-3", 1, 0),
        ("\U0001f680", 6, 1),  # 0xebbc0b2870eb323f
    ],
)
def test_as_worked_out_by_hand(key: str, nodes: int, owner: int) -> None:
    assert owner_index(key, nodes) == owner


def test_every_node_owns_its_share() -> None:
    owned = [0] * 6
    for number in range(6_000):
        owned[owner_index(f"key-{number}", 6)] += 1
    assert sum(owned) == 6_000
    assert min(owned) > 800
