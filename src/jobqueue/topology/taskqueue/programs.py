"""Which function runs which service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager

from jobqueue.topology.taskqueue import microservices
from jobqueue.topology.taskqueue.environment import Values
from jobqueue.topology.taskqueue.links import Links
from jobqueue.topology.taskqueue.node import node
from jobqueue.topology.taskqueue.running import Running

Program = Callable[[Values, Links], AbstractAsyncContextManager[Running]]

PROGRAMS: Mapping[str, Program] = {
    "gateway": microservices.gateway,
    "job": microservices.job,
    "queue": microservices.queue,
    "coordinator": microservices.coordinator,
    "result": microservices.result,
    "worker": microservices.worker,
    "node": node,
}
