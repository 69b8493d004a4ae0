"""Bodies with a great many labels, or of the largest size, keep nobody waiting."""

from __future__ import annotations

import json

import pytest

from jobqueue.api.http import bodies
from jobqueue.api.http.settings import MIB, HttpFaceSettings
from jobqueue.core.errors import InvalidArgument


def many_labels(count: int) -> bytes:
    labels = ",".join(f'"{n:05d}":""' for n in range(count))
    return f'{{"payload":1,"labels":{{{labels}}}}}'.encode()


async def test_too_many_labels_are_not_decoded(monkeypatch: pytest.MonkeyPatch):
    """Before, a hundred such bodies, sent at once, stopped the server for seconds."""

    class Never:
        def decode(self, _: bytes) -> None:
            raise AssertionError("decoded")

    settings = HttpFaceSettings()
    with monkeypatch.context() as patched:
        patched.setattr(bodies, "_JOB", Never())
        with pytest.raises(InvalidArgument, match=r"labels: .*32768 bytes"):
            bodies.decode_job(many_labels(100_000), settings)
        twice = many_labels(100_000)[:-1] + b',"labels":{},"payload":2}'
        with pytest.raises(InvalidArgument, match=r"labels: .*32768 bytes"):
            bodies.decode_job(twice, settings)
    batch = b'{"jobs":[%b]}' % b",".join([many_labels(100_000), b'{"payload":1}'] * 4)
    items = await bodies.decode_batch(batch, settings)
    assert [isinstance(item, InvalidArgument) for item in items] == [True, False] * 4
    # Others have an error of their own, or none: the names may be those of a payload.
    nested = b'{"payload":{"labels":%b}}' % many_labels(50_000)
    assert bodies.decode_job(nested, settings).labels == {}
    with pytest.raises(InvalidArgument, match="unknown field"):
        bodies.decode_job(b'{"payload":1,"unknown":%b}' % many_labels(5_000), settings)
    colons = json.dumps({"payload": 1, "labels": {f"{n}": ":" * 255 for n in range(32)}})
    assert len(bodies.decode_job(colons.encode(), settings).labels) == 32
    assert len(bodies.decode_job(many_labels(30), settings).labels) == 30


async def test_large_bodies_are_decoded_in_turns(turns):
    turns.count(bodies, "_decode_one")
    large = b'{"payload":"%b","unknown":1}' % (b"x" * MIB)
    items = await bodies.decode_batch(
        b'{"jobs":[%b]}' % b",".join([large] * 14), HttpFaceSettings()
    )
    assert all(isinstance(item, InvalidArgument) for item in items)
    assert (turns.total, turns.most <= 6) == (14, True)
